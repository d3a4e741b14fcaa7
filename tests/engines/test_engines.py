"""What engines promise beside being right, which test_equivalence.py looks at."""

import pytest
import torch

import plait
from plait import PlaitError, engines
from plait.cells import CELLS
from plait.engines import Layout, Needs, Weights
from plait.engines.python import BackThroughTime
from plait.engines.tape import Room
from plait.ladder.rungs import engine_deviation
from plait.layers import Recurrent

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", engines.of_the_host())
@pytest.mark.parametrize("cell", CELLS.values(), ids=list(CELLS))
def test_longer_steps_and_ragged_walks_equal_the_step_iterated(name: str, cell) -> None:
    generator = torch.Generator().manual_seed(3)
    assert max(engine_deviation(cell, name, dt, generator) for dt in (1, 2, 5)) < 1e-12


@pytest.mark.parametrize(
    ("name", "steps_of"), [("python", lambda T: T), ("python:quadratic", lambda T: T * (T + 1) // 2 + T)]
)
def test_backpropagation_is_linear_in_time_and_the_textbooks_quadratic(name: str, steps_of, monkeypatch) -> None:
    """Counts the steps walked back: T of them, or T + (T-1) + ... + 1 and T more for the last state's gradient."""
    counts = {}
    for T in (4, 8):
        taken = 0
        back = BackThroughTime.back

        def counted(self, steps, *rest, back=back):
            nonlocal taken
            taken += len(steps)
            back(self, steps, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(BackThroughTime, "back", counted)
            cell, engine = CELLS["gru"], engines.get(name)
            w = Weights(torch.randn(6, 1), torch.randn(6, 2), None, None, None)
            x, layout = torch.randn(T, 1), Layout(T, 1)
            ps = [engine.prepare(cell, w)]
            rows, _, kept = engine.forward(ps, x, [torch.zeros(1, 1, 2)], layout)
            engine.backward(ps, x, kept, torch.ones_like(rows), [None], layout, needs=Needs.all(ps))
        counts[T] = taken
    assert counts == {T: steps_of(T) for T in (4, 8)}


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
