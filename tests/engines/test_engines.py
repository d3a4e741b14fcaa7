"""What engines promise beside being right, which test_equivalence.py looks at."""

import json
from pathlib import Path

import pytest
import torch

import plait
from plait import PlaitError, engines
from plait.cells import CELLS
from plait.engines import Layout
from plait.engines.tape import Room
from plait.ladder.rungs import engine_deviation
from plait.layers import Recurrent

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", engines.of_the_host())
@pytest.mark.parametrize("cell", CELLS.values(), ids=list(CELLS))
def test_longer_steps_and_ragged_walks_equal_the_step_iterated(name: str, cell) -> None:
    generator = torch.Generator().manual_seed(3)
    assert max(engine_deviation(cell, name, dt, generator) for dt in (1, 3)) < 1e-12


@pytest.mark.parametrize(("name", "instead"), engines.MOVED.items())
def test_a_name_that_has_left_the_engines(name: str, instead: str, refused, empty_folder: Path) -> None:
    """It is said where it went, also for a run that was stored with it."""
    sentence = f"engine '{name}' is no engine for layers any more, it is a training step of `plait bench ladder`"
    assert name not in engines.names()
    with pytest.raises(PlaitError, match=f"{sentence}: use '{instead}' or 'auto'."):
        plait.GRU(2, 3, engine=name)
    assert sentence in refused("train", "forecast", "--engine", name)
    Path("run").mkdir()
    Path("run/config.json").write_text(json.dumps({"task": "forecast", "settings": {"engine": name}, "threads": 1}))
    assert sentence in refused("evaluate", "run")
    assert sentence in refused("train", "forecast", "--resume", "run")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [[3, 3, 3], [3, 2, 1]])
def test_tape_knows_the_state_before_each_step(sizes: list[int], reverse: bool) -> None:
    layout = Layout.ragged(torch.tensor(sizes))
    room = Room(CELLS["rnn"], 1, layout.N, layout.B, 1, 1, False, reverse)
    tape = room.tape(torch.arange(room.total).float(), layout)
    for t in range(layout.T):
        for b in range(sizes[t]):
            previous = t + 1 if reverse else t - 1
            alive = 0 <= previous < layout.T and b < sizes[previous]
            expected = tape.states[0][layout.starts[previous] + b] if alive else tape.initial[0][b]
            assert tape.before(0, t)[b] == expected
    assert torch.equal(tape.before_all(0), torch.cat([tape.before(0, t) for t in range(layout.T)]))


def test_an_engine_that_cannot_says_why() -> None:
    with pytest.raises(
        PlaitError, match=r"numpy runs float32 and float64, the layer is torch.bfloat16: .*engine='torch'"
    ):
        engines.choose("numpy", CELLS["gru"], torch.bfloat16, CPU)
    with pytest.raises(PlaitError, match="numpy runs on the CPU, the layer is on meta"):
        engines.choose("numpy", CELLS["gru"], torch.float32, torch.device("meta"))
    with pytest.raises(PlaitError, match="python returns float32 and float64"):
        engines.choose("python", CELLS["gru"], torch.float16, CPU)


def test_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(PlaitError, match="engine 'nunpy' is not known: did you mean 'numpy'"):
        engines.get("nunpy")


@pytest.mark.parametrize("kind", [plait.RNN, plait.LSTM, plait.GRU])
def test_products_of_numpy_do_not_warn(kind: type[Recurrent]) -> None:
    """Other engines do not, and OpenBLAS makes NumPy warn where all is well. A warning fails a test here."""
    layer = kind(5, 2, engine="numpy")
    x = torch.full((3, 1, 5), torch.inf, requires_grad=True)  # inf - inf is what NumPy calls invalid
    y = layer(x)[0]
    y.sum().backward()
    assert y.isnan().any()
    assert layer.weight_hh_l0.grad.isnan().any()
