"""The seam between autograd and an engine: a solver of one's own is called, found again, and copied."""

import copy
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

import plait
from plait import PlaitError, solvers
from plait.solvers import Serial, Solver


class Counting(Serial):
    """Serial, and it counts. `each` stands for an option."""

    def __init__(self, each: int = 1) -> None:
        self.each, self.calls = each, 0

    @property
    def text(self) -> str:
        return f"counting:each={self.each}"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Counting":
        return cls(**{name: int(value) for name, value in options.items()})

    def forward(self, *arguments: Any, **options: Any) -> Any:
        self.calls += self.each
        return super().forward(*arguments, **options)

    def backward(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 100 * self.each
        return super().backward(*arguments, **options)


@pytest.fixture(autouse=True)
def _known(monkeypatch) -> None:
    monkeypatch.setitem(solvers.SOLVERS, "counting", Counting)


def outputs_and_gradients(layer: torch.nn.Module, x: torch.Tensor) -> Sequence[torch.Tensor]:
    y, _ = layer(x)
    return y.detach(), *torch.autograd.grad(y.sum(), list(layer.parameters()))


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_a_layer_calls_its_solver_once_each_way_and_layer(engine: str) -> None:
    """Also where torch has whole layers: a solver stands between."""
    solver, x = Counting(), torch.randn(4, 2, 3)
    layer = plait.GRU(3, 5, 2, engine=engine, solver=solver)
    found = outputs_and_gradients(layer, x)
    assert solver.calls == 202
    layer.solver = Serial()
    for a, b in zip(found, outputs_and_gradients(layer, x), strict=True):
        torch.testing.assert_close(a, b)
    assert solver.calls == 202


def test_the_compiled_layer_calls_the_same_solver(dynamo) -> None:
    """An op takes numbers and texts only: the key leads back to the object."""
    solver, x = Counting(3), torch.randn(4, 2, 3)
    layer = plait.GRU(3, 5, engine="fused", solver=solver)
    expected = outputs_and_gradients(layer, x)
    assert solver.calls == 303
    with dynamo.config.patch(allow_rnn=True):
        found = outputs_and_gradients(torch.compile(layer, backend="aot_eager", fullgraph=True), x)
    assert solver.calls == 606
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_a_solver_is_found_by_its_key_or_made_from_its_text() -> None:
    solver = Counting(2)
    assert solvers.find(solver.text, solver.key) is solver
    assert solvers.find("counting:each=5", solver.key).each == 5  # another object has that key now
    key = solver.key
    del solver
    made = solvers.find("counting:each=2", key)
    assert (made.each, made.key == key) == (2, False)
    assert Solver.known[made.key] is made


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_has_a_key_of_its_own(clone) -> None:
    solver = Counting(2)
    twin = clone(solver)
    assert twin == solver
    assert hash(twin) == hash(solver)
    assert twin.key != solver.key
    assert solvers.find(twin.text, twin.key) is twin
    layer = clone(plait.GRU(3, 5, solver=solver))
    assert layer.solver == solver
    assert "solver=counting:each=2" in repr(layer)


def test_what_a_solvers_text_may_be() -> None:
    assert solvers.parse("serial") == Serial() == plait.Serial()
    assert solvers.parse("counting:each=4") == Counting(4) != Counting(5)
    for text, sentence in (
        ("parareal", "solver 'parareal': expected one of serial"),
        ("serial:levels=3", "solver serial: option 'levels' is not known; it has no options"),
    ):
        with pytest.raises(PlaitError, match=sentence):
            solvers.parse(text)
    with pytest.raises(PlaitError, match=r"solver 3: expected a solver such as plait.Shooting\(\), or its name"):
        plait.LSTM(3, 5, solver=3)


def test_a_solver_has_the_name_that_the_command_line_gives_it() -> None:
    assert plait.LSTM(3, 5, solver="shooting").solver == plait.Shooting()
    assert plait.LSTM(3, 5, solver="serial").solver == plait.Serial()
    model = plait.accelerate(torch.nn.Sequential(torch.nn.GRU(3, 5)), solver="multigrid:tolerance=0.001")
    assert model[0].solver == plait.Multigrid(tolerance=0.001)
    for wrong in (lambda: plait.GRU(3, 5, solver="parareal"), lambda: plait.accelerate(model, solver="parareal")):
        with pytest.raises(PlaitError, match="solver 'parareal': expected one of serial, shooting, multigrid"):
            wrong()
