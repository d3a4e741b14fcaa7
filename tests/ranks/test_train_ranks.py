"""`plait train --parallel`: the same curve as one process, checkpoints that go on with any mesh, and mistakes."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import plait as package
from jobs import finished, until
from plait.cli.train_ranks import stored_mesh
from plait.ladder.compare import relative
from plait.ranks.shape import Shape
from plait.training.run import Run
from plait.training.tensors import with_prefix
from processes import hear
from rank_jobs import Said, commands

HOST = socket.gethostname()
PLAIT = [sys.executable, "-m", "plait"]
ALWAYS = "train language --data book --hidden 8 --layers 2 --lr 0.03 --threads 1 --patience 0"
STREAMS = "--by streams --batch 6 --steps 8"  # 7 steps an epoch: in the last one only two streams have a token left
SENTENCES = "--by sentences --batch 5"


def write_book(folder: Path) -> None:
    """Most words follow from the one before, so that there is something to learn."""
    r, k = random.Random(0), 0
    (folder / "book").mkdir()
    for name, tokens in (("train", 6 * 48 + 2), ("valid", 60), ("test", 60)):
        lines: list[list[str]] = []
        while tokens:
            words = min(r.randint(1, 9), tokens - 1) if tokens > 2 else tokens - 1
            lines.append([])
            for _ in range(words):
                k = (k + 1) % 12 if r.random() < 0.9 else r.randrange(12)
                lines[-1].append(f"w{k}")
            tokens -= words + 1  # and the end of the line
        (folder / "book" / f"{name}.txt").write_text("".join(f"{' '.join(line)}\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_book(tmp_path)
    return tmp_path


def plait(
    folder: Path, line: str, mesh: str = "", *, ranks: int | None = None, stop: tuple[int, int] | None = None
) -> Said:
    """What the first rank of a job says, or a process by itself. All must end alike.

    ranks: how many there are, where no mesh is given
    """
    ranks = ranks or size_of(mesh or "data=1")
    said = commands([f"{line} --parallel {mesh}" if mesh else line] * ranks, [folder] * ranks, stop=stop)
    assert len({s.code for s in said}) == 1, said
    assert not any(s.out for s in said[1:]), said
    assert not any("Traceback" in s.err or "Warning" in s.err for s in said), said
    return said[0]


def size_of(mesh: str) -> int:
    return Shape.parse(mesh).size


class Left(NamedTuple):
    """What a run has left."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    config: dict[str, Any]
    history: dict[str, Any]

    @classmethod
    def by(cls, folder: Path) -> "Left":
        config, history = (json.loads((folder / f"{name}.json").read_text()) for name in ("config", "history"))
        return cls(*Run(folder).read_tensors("state.safetensors"), config, history)

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.history["epochs"]]

    @property
    def validations(self) -> list[float]:
        return [row["validation"] for row in self.history["epochs"]]

    def off(self, other: "Left", prefix: str) -> float:
        found, expected = (with_prefix(left.tensors, prefix) for left in (self, other))
        assert found.keys() == expected.keys() != set()
        return max(relative(found[name], expected[name]) for name in expected)


# --- curves ----------------------------------------------------------------------------------------------------------
CURVES = {  # of about a hundred steps
    "streams": f"{ALWAYS} {STREAMS} --epochs 14",
    "sentences": f"{ALWAYS} {SENTENCES} --epochs 10 --warmup 5 --lr-batch 3",
    "tied": f"{ALWAYS} {STREAMS} --epochs 14 --tied --optimizer sgd --momentum 0.9 --lr 0.5 --init 0.4",
}
QUICK = [("streams", "data=2,layers=2"), ("sentences", "layers=2"), ("tied", "data=2")]
MESHES = ("data=2", "layers=2", "data=2,layers=2")
SLOW = [(name, mesh) for name in CURVES for mesh in MESHES if (name, mesh) not in QUICK]
SLOW += [("streams", "data=2:server"), ("sentences", "data=2:network,layers=2:micro=2:chunks=3")]


@pytest.mark.parametrize(("name", "mesh"), [*QUICK, *[pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]])
def test_a_hundred_steps_are_those_of_one_process(folder: Path, name: str, mesh: str) -> None:
    assert plait(folder, f"{CURVES[name]} --out one").code == 0
    said = plait(folder, f"{CURVES[name]} --out many", mesh)
    assert said.code == 0, said
    assert f"{size_of(mesh)} ranks: {mesh}; " in said.out
    one, many = (Left.by(folder / run) for run in ("one", "many"))
    assert 95 <= len(one.losses) * {"sentences": 10}.get(name, 7) <= 110
    assert one.losses[-1] < 0.8 * one.losses[0]  # it learns, and the losses say something
    assert many.losses == pytest.approx(one.losses, rel=1e-4)
    assert many.validations == pytest.approx(one.validations, rel=1e-4)
    assert many.history["test"]["test"]["model"]["entropy"] == pytest.approx(
        one.history["test"]["test"]["model"]["entropy"], rel=1e-4
    )
    assert many.off(one, "model.") < 1e-3


@pytest.mark.slow
def test_one_command_starts_all_and_prints_one_result(folder: Path) -> None:
    """Real processes from the first to the last, and nothing but JSON on the console."""
    line = f"{CURVES['streams']} --json - --out"
    results = []
    for out, mesh in (("one", []), ("many", ["--parallel", "data=2,layers=2"])):
        done = subprocess.run(
            [*PLAIT, *line.split(), out, *mesh], cwd=folder, capture_output=True, text=True, check=True
        )
        results.append(json.loads(done.stdout))
    one, many = ([row["loss"] for row in result["epochs"]] for result in results)
    assert many == pytest.approx(one, rel=1e-4)
    assert results[1]["run"] == "many"


def test_a_task_without_stages(folder: Path) -> None:
    """Its batches leave a rest of 3 for 4 ranks."""
    line = "train forecast --hidden 4 --epochs 4 --batch 9 --threads 1 --out"
    assert plait(folder, f"{line} one").code == 0
    assert plait(folder, f"{line} many", "data=4").code == 0
    one, many = (Left.by(folder / run) for run in ("one", "many"))
    assert len(one.losses) == 4
    assert many.losses == pytest.approx(one.losses, rel=1e-4)
    assert many.history["test"]["model"]["rmse"] == pytest.approx(one.history["test"]["model"]["rmse"], rel=1e-4)


# --- checkpoints -----------------------------------------------------------------------------------------------------
GO_ON = "train language --resume {}"
WHOLE = f"{ALWAYS} {STREAMS} --epochs 3"
STOP = 10  # in this step a rank gets the Ctrl-C: the third one of the second epoch


def assert_same_bits(a: Path, b: Path) -> None:
    found, expected = Left.by(a), Left.by(b)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, t in expected.tensors.items():
        assert torch.equal(found.tensors[name], t), name
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    assert (found.losses, found.validations) == (expected.losses, expected.validations)


def test_stopped_in_mid_epoch_it_goes_on_to_the_same_bits(folder: Path) -> None:
    line = f"{WHOLE} --dropout 0.3 --out"
    assert plait(folder, f"{line} whole", "data=2").code == 0
    said = plait(folder, f"{line} parts", "data=2", stop=(1, STOP))
    assert said.code == 130
    assert re.search(r"^stopped in epoch 2 of 3$", said.out, re.M)
    assert re.search(r"^go on     plait train language --resume parts$", said.out, re.M)
    left = Left.by(folder / "parts")
    assert (left.meta["progress"]["epoch"], left.meta["progress"]["position"]) == (1, 3)
    assert left.config["parallel"] == {"mesh": "data=2", "cut": None}
    said = plait(folder, GO_ON.format("parts"), ranks=2)  # the mesh is that of the run
    assert said.code == 0, said
    assert "goes on in epoch 2 of 3, after 3 of its 7 steps" in said.out
    assert_same_bits(folder / "parts", folder / "whole")


@pytest.mark.parametrize("mesh", ["layers=2", pytest.param("data=2,layers=2", marks=pytest.mark.slow)])
def test_a_pipeline_goes_on_to_the_same_bits_with_its_plan(folder: Path, mesh: str) -> None:
    """Two copies of one run: one is stopped again. Its cut is none that would be chosen."""
    assert plait(folder, f"{WHOLE} --dropout 0.3 --out whole", mesh, stop=(0, 3)).code == 130
    run = Run(folder / "whole")
    assert run.config()["parallel"]["mesh"] == mesh
    cut = {"split": [1, 1], "chunks": 5, "micro": 2, "early": 3, "step_cost": 1.25}
    assert run.config()["parallel"]["cut"].keys() == cut.keys()
    run.write_config({**run.config(), "parallel": {"mesh": mesh, "cut": cut}})
    shutil.copytree(folder / "whole", folder / "parts")
    assert plait(folder, GO_ON.format("whole"), ranks=size_of(mesh)).code == 0
    assert plait(folder, GO_ON.format("parts"), mesh, stop=(0, 7)).code == 130
    assert Left.by(folder / "parts").meta["progress"]["position"] == 3
    assert plait(folder, GO_ON.format("parts"), ranks=size_of(mesh)).code == 0
    assert_same_bits(folder / "parts", folder / "whole")
    for name in ("parts", "whole"):
        assert Left.by(folder / name).config["parallel"] == {"mesh": mesh, "cut": cut}


CHANGES = [("data=2", "layers=2"), ("data=2", "data=1"), ("data=1", "data=2")]
MORE = [("layers=2", "data=1"), ("data=1", "data=2,layers=2"), ("data=2,layers=2", "data=3"), ("layers=2", "data=2")]
MORE += [("data=2:server", "layers=2"), ("data=2:server,layers=2", "data=4")]


@pytest.mark.parametrize(
    ("before", "after"), [*CHANGES, *[pytest.param(*change, marks=pytest.mark.slow) for change in MORE]]
)
def test_a_run_goes_on_with_another_mesh(folder: Path, before: str, after: str) -> None:
    """With the same weights, optimizer and next batch."""
    line = WHOLE.replace("--lr 0.03", "--lr 0.005")  # Adam makes a difference in the last bit as large as that
    assert plait(folder, f"{line} --out whole").code == 0
    assert plait(folder, f"{line} --out parts", before, stop=(size_of(before) - 1, STOP)).code == 130
    left = Left.by(folder / "parts")
    assert {name: left.meta["progress"][name] for name in ("epoch", "position", "count")} == AT_STOP
    assert (left.config.get("parallel") or {"mesh": "data=1"})["mesh"] == before
    assert with_prefix(left.tensors, "random.").keys() == {"cpu", *(f"cpu@{r}" for r in range(1, size_of(before)))}
    assert {name: t.shape for name, t in with_prefix(left.tensors, "carried.").items()} == CARRIED
    said = plait(folder, GO_ON.format("parts"), after)
    assert said.code == 0, said
    assert "goes on in epoch 2 of 3, after 3 of its 7 steps" in said.out
    whole, parts = (Left.by(folder / name) for name in ("whole", "parts"))
    assert parts.off(whole, "model.") < 1e-5
    assert parts.off(whole, "best.") < 1e-5
    assert parts.off(whole, "optimizer.") < 1e-4
    assert parts.losses == pytest.approx(whole.losses, rel=1e-6)
    assert parts.validations == pytest.approx(whole.validations, rel=1e-6)
    assert (parts.config["parallel"] or {"mesh": "data=1"})["mesh"] == after
    assert {f"cpu@{r}" for r in range(1, size_of(after))} <= with_prefix(parts.tensors, "random.").keys()


AT_STOP = {"epoch": 1, "position": 3, "count": 3 * 6 * 8}
CARRIED = {"0": (2, 6, 8), "1": (2, 6, 8)}  # layers, streams, units


def test_ctrl_c_for_the_launcher(folder: Path) -> None:
    """As a person does it: one command, one console, one run folder."""
    line = f"{ALWAYS} --by streams --batch 6 --steps 2 --epochs 6 --dropout 0.3 --save-every 0 --parallel data=2 --out"
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*PLAIT, *line.split(), "parts"], cwd=folder, preexec_fn=hear, **pipe)
    try:
        run = folder / "parts" / "config.json"
        until(lambda: process.poll() is not None or (run.exists() and steps_done(folder / "parts") >= 3), 180)
        process.send_signal(signal.SIGINT)
        code, out, err = finished(process, 180)
    finally:
        process.kill()
    assert code == 130, (out, err)
    assert "plait: " not in err
    cores = os.cpu_count() or 1
    assert ("2 ranks of 1 thread on" in out) == (cores >= 2)
    assert "\n2 ranks: data=2; gradients by shared memory\nrun parts\n" in out
    assert re.search(r"^stopped in epoch \d of 6$", out, re.M)
    assert re.search(r"^go on     plait train language --resume parts$", out, re.M)
    assert sorted(p.name for p in folder.iterdir()) == ["book", "parts"]
    assert plait(folder, GO_ON.format("parts"), ranks=2).code == 0
    assert plait(folder, f"{line} whole".replace("--parallel data=2 ", ""), "data=2").code == 0
    assert_same_bits(folder / "parts", folder / "whole")


def steps_done(folder: Path) -> int:
    progress = Run(folder).read_tensors("state.safetensors")[1]["progress"]
    return progress["epoch"] * 25 + progress["position"]


# --- only the first rank has the files -------------------------------------------------------------------------------
def test_the_other_ranks_need_neither_data_nor_run(folder: Path) -> None:
    (elsewhere := folder / "elsewhere").mkdir()
    line = f"{WHOLE} --out run --parallel data=2"
    said = commands([line] * 2, [folder, elsewhere], stop=(0, STOP))
    assert [s.code for s in said] == [130, 130], said
    assert list(elsewhere.iterdir()) == []
    said = commands([f"{GO_ON.format('run')} --parallel layers=2"] * 2, [folder, elsewhere])
    assert [s.code for s in said] == [0, 0], said
    assert list(elsewhere.iterdir()) == []
    assert len(Left.by(folder / "run").losses) == 3


# --- mistakes --------------------------------------------------------------------------------------------------------
def test_what_is_wrong_with_parallel_is_said_before_anything_starts(refused, empty_folder: Path) -> None:
    for mesh, sentence in (
        ("garbage", "--parallel: axis 'garbage' is not known: Expected one of data, layers, time."),
        ("data=2,data=2", "--parallel data=2,data=2: data is given twice; give it once."),
        ("data=0", "--parallel data=0: expected a whole number from 1 to 100000."),
        ("layers=two", "--parallel layers=two: expected a whole number from 1 to 100000."),
        (
            "time=2",
            "time=2 with solver serial: ranks would wait for each other; use one that cuts time, such as shooting "
            "(--solver shooting, solver=plait.Shooting()).",
        ),
    ):
        assert refused("train", "forecast", "--parallel", mesh) == f"plait: {sentence}\n"
    assert refused("train", "forecast", "--max-restarts", "-1") == "plait: max_restarts -1: must be at least 0.\n"
    assert refused("train", "forecast", "--timeout", "0") == "plait: timeout 0.0: must be at least 1.\n"
    wrong = refused("train", "forecast", "--parallel", "data=2", "--hidden", "0")
    assert wrong == "plait: hidden 0: must be at least 1.\n"
    write_book(empty_folder)
    assert "nowhere does not exist" in refused("train", "language", "--parallel", "data=2", "--resume", "nowhere")


BAD = {
    "more stages than layers": (
        f"{ALWAYS.replace('--layers 2', '--layers 1')} --parallel layers=2",
        "layers=2: the network has 1 layer, and every stage needs one: use layers=1 or fewer.",
    ),
    "a mesh larger than the world": (
        f"{ALWAYS} --parallel data=4",
        "--parallel data=4 needs 4 ranks, and 2 were started: start 4 ranks.",
    ),
    "a mesh that is no divisor of the world": (
        f"{ALWAYS} --parallel layers=3",
        "--parallel layers=3 needs 3 ranks, and 2 were started: start 3 ranks.",
    ),
    "fewer streams than ranks": (
        f"{ALWAYS} --batch 1 --parallel data=2",
        "batch 1 for 2 data ranks: each needs a share of it; use fewer data ranks, or a larger --batch.",
    ),
    "fewer sentences than ranks": (
        f"{ALWAYS} --by sentences --batch 1 --parallel data=2",
        "batch 1 for 2 data ranks: each needs a share of it; use fewer data ranks, or a larger --batch.",
    ),
    "a task without stages": (
        "train forecast --threads 1 --parallel layers=2",
        "the network of task forecast cannot be cut into stages: use data= instead of layers=.",
    ),
    "no data": (f"{ALWAYS} --data nowhere.txt --parallel data=2", "nowhere.txt does not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_ranks_find_out_together(folder: Path, name: str) -> None:
    line, sentence = BAD[name]
    first, second = commands([line] * 2, [folder] * 2)
    assert (first.code, first.out, second.code, second.out) == (2, "", 2, "")
    assert first.err.startswith(f"plait: {sentence}")
    assert first.err.count("\n") == 1
    assert second.err in ("", first.err)  # what they know from each other is said once
    assert [p.name for p in folder.iterdir()] == ["book"]


@pytest.mark.slow
def test_what_the_launcher_says_of_it(folder: Path) -> None:
    """Once, whoever found it."""
    for line, sentence in list(BAD.values())[:1] + list(BAD.values())[3:]:
        done = subprocess.run([*PLAIT, *line.split()], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(f"plait: {sentence}")
        assert done.stderr.count("\n") == 1
        assert [p.name for p in folder.iterdir()] == ["book"]


def test_a_rate_that_is_too_high(folder: Path) -> None:
    line = f"{WHOLE} --cell rnn_relu --init 3 --optimizer sgd --lr 1e6 --out run --parallel layers=2"
    for rank, said in enumerate(commands([line] * 2, [folder] * 2)):
        assert (said.code, "Traceback" in said.err) == (2, False)
        left = "" if rank else " The last good checkpoint is in run."
        words = r"the (loss|gradient) became (nan|inf) in epoch 1, after \d steps of it: lower --lr, or set --clip\."
        assert re.fullmatch(rf"plait: {words}{left}\n", said.err), said


def test_ranks_that_were_started_differently(folder: Path) -> None:
    """They name the rank, its host, and both values."""
    todo = "start all ranks with the same command, and the same versions"
    lines = [f"{ALWAYS} --parallel data=2", f"{ALWAYS.replace('--hidden 8', '--hidden 7')} --parallel data=2"]
    sentence = f"plait: rank 1 on {HOST} has --hidden 7, and the first rank has 8: {todo}.\n"
    assert commands(lines, [folder] * 2) == [Said(2, "", sentence), Said(2, "", "")]
    lines = [f"{ALWAYS} --parallel data=2", f"{ALWAYS} --parallel layers=2"]
    sentence = f"plait: rank 1 on {HOST} has --parallel layers=2, and the first rank has data=2: {todo}.\n"
    assert commands(lines, [folder] * 2) == [Said(2, "", sentence), Said(2, "", "")]
    for name, what in (("plait.cli.train_ranks.__version__", "plait"), ("numpy.__version__", "numpy")):
        now = {"plait": package.__version__, "numpy": np.__version__}[what]
        sentence = f"plait: rank 1 on {HOST} has {what} 9.9, and the first rank has {now}: {todo}.\n"
        assert commands(lines[:1] * 2, [folder] * 2, other={name: "9.9"}) == [Said(2, "", sentence), Said(2, "", "")]
    assert [p.name for p in folder.iterdir()] == ["book"]


def test_a_config_whose_mesh_was_spoilt(plait, empty_folder: Path, refused) -> None:
    write_book(empty_folder)
    assert plait(*f"{WHOLE} --out run --epochs 1".split())[0] == 0
    run = Run(empty_folder / "run")
    config = run.config()
    words = "plait: run/config.json has a mesh that makes no sense ("
    for parallel in ("data=2", ["data=2"], {}, {"cut": None}, {"mesh": None}, {"mesh": 2}, {"mesh": "units=2"}):
        run.write_config({**config, "parallel": parallel})
        if parallel:
            assert refused("train", "language", "--resume", "run").startswith(words), parallel
    run.write_config({**config, "parallel": "data=2"})
    found = commands([f"{GO_ON.format('run')} --parallel data=2"] * 2, [empty_folder] * 2)
    assert found == [Said(2, "", f"{words}'data=2'): restore it from a copy.\n"), Said(2, "", "")]
    cut = {"split": [1, 1], "chunks": 0, "micro": 1, "early": 0, "step_cost": 0.0}
    run.write_config({**config, "parallel": {"mesh": "layers=2", "cut": cut}})
    for said in commands([GO_ON.format("run")] * 2, [empty_folder] * 2):
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("plait: a cut into stages makes no sense: ")


class Kept(Run):
    def __init__(self, parallel: object) -> None:
        super().__init__(Path("run"))
        self.parallel = parallel

    def config(self, task: str | None = None) -> dict[str, Any]:
        return {"parallel": self.parallel}


@pytest.mark.parametrize(
    ("asked", "world", "expected"),
    [
        (None, 4, ("data=2,layers=2", "cut")),
        ("data=2,layers=2", 4, ("data=2,layers=2", "cut")),
        ("layers=2,data=2", 4, ("data=2,layers=2", "cut")),
        ("layers=2", 4, ("data=2,layers=2", "cut")),  # all that are left share the data
        ("layers=2", 2, ("layers=2", None)),
        ("data=4", 4, ("data=4", None)),
        ("layers=2:chunks=3", 4, ("layers=2:chunks=3", None)),
    ],
)
def test_a_cut_is_kept_with_its_mesh(asked: str | None, world: int, expected: tuple[str, str | None]) -> None:
    assert stored_mesh(Kept({"mesh": "data=2,layers=2", "cut": "cut"}), asked, world) == expected
