"""Steps shared out among ranks: every rank has what one exact walk gives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.tasks.test_classify import SMALL, write_waves

from plait import PlaitError
from plait.ranks.shape import Shape
from processes import started
from rank_jobs import Team, odd_calls_over_time, over_time

SHOOTING = "shooting:chunks=6,tolerance=1e-09,warmup={},fallback=False"
MULTIGRID = "multigrid:levels={},coarsening=2,forward_iterations={n},backward_iterations={n},fallback=False"


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(3)
    yield team
    team.close()


def check(team: Team, ranks: int, *job, bound: float = 1e-8, split: bool = True) -> None:
    found = [f for f in team.ask(over_time, ranks, *job) if f is not None]
    assert len(found) == ranks
    for f in found:
        assert max(f["errors"]) < bound
        assert f["split"] == [split] * 2
        assert f["bytes"] == found[0]["bytes"]  # weights would stay the same on all ranks


CASES = [(cell, 2, True) for cell in ("rnn", "gru", "implicit_gru", "peephole")] + [
    ("lstm", 1, True),
    ("lstm", 3, False),
]
REST = [
    (cell, ranks, ragged)
    for cell in ("rnn", "lstm", "gru", "implicit_gru", "peephole")
    for ranks in (1, 2, 3)
    for ragged in (False, True)
]


@pytest.mark.parametrize(
    ("cell", "ranks", "ragged"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST if case not in CASES)],
)
def test_every_cell(team: Team, cell: str, ranks: int, ragged: bool) -> None:
    check(team, ranks, cell, 40, ragged, SHOOTING.format(3))
    check(team, ranks, cell, 18, ragged, MULTIGRID.format(2, n=12))


@pytest.mark.parametrize("T", [3, 4, 7, *(pytest.param(T, marks=pytest.mark.slow) for T in (31, 64, 200))])
def test_any_length(team: Team, T: int) -> None:
    for ragged in (False, True):
        check(team, 3, "lstm", T, ragged, SHOOTING.format(T % 5))
        if T != 64:
            check(team, 2, "implicit_gru", T, ragged, MULTIGRID.format(2 + (T > 30), n=T // 2 + 2))


def test_fewer_steps_than_ranks_are_walked_by_all(team: Team) -> None:
    check(team, 3, "gru", 2, True, SHOOTING.format(0))
    check(team, 3, "gru", 1, False, SHOOTING.format(0), split=False)


def test_dropout_between_layers_is_that_of_one_process(team: Team) -> None:
    check(team, 2, "gru", 40, True, SHOOTING.format(8), "float64", 0.5)


def test_float32(team: Team) -> None:
    solver = "shooting:chunks=6,tolerance=1e-06,warmup=16,fallback=False"
    check(team, 2, "lstm", 64, True, solver, "float32", bound=1e-5)


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
def test_ranks_that_walk_one_after_another(team: Team, ragged: bool) -> None:
    """Multigrid fails on a network that is chaotic, on all ranks; and there may be one level only."""
    check(team, 3, "rnn", 64, ragged, "multigrid:levels=2", "float64", 0.0, 6.0, bound=1e-8, split=False)
    check(team, 2, "lstm", 30, ragged, "multigrid:levels=1", bound=1e-10, split=False)


def test_warm_ups_that_are_longer_than_a_part(team: Team) -> None:
    """The first steps of a part are then guessed from zeros, and the repairs put them right."""
    check(team, 3, "implicit_gru", 50, True, "shooting:chunks=7,tolerance=1e-09,fallback=False")


def test_odd_calls() -> None:
    team = Team(2)
    try:
        found = team.ask(odd_calls_over_time)
    finally:
        team.close()
    for f in found:
        assert f["compared"] < 1e-8
        assert max(f["half frozen"], f["frozen"], f["serial"]) < 1e-8
        assert (f["gradient"] == found[0]["gradient"]).all()
        assert f["second"] == "second derivatives on time ranks are not supported: use one process, or data ranks."


# --- the command -----------------------------------------------------------------------------------------------------
def weights(run: str) -> dict[str, torch.Tensor]:
    return load_file(Path(run) / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    ["time=2", pytest.param("data=2,time=2", marks=pytest.mark.slow), pytest.param("time=3", marks=pytest.mark.slow)],
)
def test_training_on_time_ranks_is_training(mesh: str, plait) -> None:
    """The weights are those of one process."""
    write_waves()
    solver = ("--solver", "shooting:chunks=4,tolerance=0.001,fallback=no")
    options = (*SMALL, "--epochs", "2", "--optimizer", "sgd", "--lr", "0.1", "--dropout", "0", *solver)
    assert plait("train", "classify", *options, "--out", "one")[0] == 0
    process = started("train", "classify", *options, "--parallel", mesh, "--out", "several")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, (out, err)
    assert f"ranks: {mesh}" in out
    assert "100.0% of the training calls of layers were cut in time" in out
    one, several = weights("one"), weights("several")
    for key, tensor in one.items():
        assert (tensor - several[key]).abs().max() / tensor.abs().max() < 5e-3


def test_what_is_refused(refused) -> None:
    write_waves()
    said = refused("train", "classify", *SMALL, "--parallel", "layers=2,time=2")
    assert "layers=2,time=2: the stages of a pipeline take the steps one after another" in said
    said = refused("train", "classify", *SMALL, "--parallel", "time=2", "--out", "refused")
    assert "time=2 with solver serial: ranks would wait for each other; use one that cuts time" in said
    assert not Path("refused").exists()


def test_a_mesh_by_itself() -> None:
    with pytest.raises(PlaitError, match=r"layers=2,time=2"):
        Shape(1, 2, 2)
