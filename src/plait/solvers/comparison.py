"""How far a solver is from one exact walk."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .serial import Serial


class Comparison(NamedTuple):
    """Relative errors, against one exact walk with the same random numbers."""

    loss: float
    gradient: float  # of all weights as one vector


def compare(model: nn.Module, loss: Callable[[], Tensor]) -> Comparison:
    """The loss and its gradient, with the solvers of a model's layers and with an exact walk.

        found = plait.compare(model, lambda: criterion(model(x), y))
        print(found.gradient)

    End to end: the loss is computed again from what the solvers give. Weights, gradients and random numbers are left as
    they were, and so is what the solvers have learnt.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    random, kept = torch.get_rng_state(), remembered(model)
    try:
        mine = derivative(loss, parameters)
        torch.set_rng_state(random)
        with exactly(model):
            exact = derivative(loss, parameters)
    finally:
        torch.set_rng_state(random)
        for module, warm_starts in kept:
            module.__dict__["_plait_warm_starts"] = warm_starts
    return Comparison(error(mine[:1], exact[:1]), error(mine[1:], exact[1:]))


def derivative(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    with torch.enable_grad():
        value = loss()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    return [
        value.detach(),
        *(torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)),
    ]


def error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    a, b = (torch.cat([t.flatten().double() for t in some]) for some in (found, exact))
    size = float(b.norm())
    return float((a - b).norm()) / size if size else float((a - b).norm())


@contextmanager
def exactly(model: nn.Module) -> Iterator[None]:
    mine = [(m, m.solver) for m in model.modules() if hasattr(m, "_plait_cell")]
    try:
        for module, _ in mine:
            module.solver = Serial()  # type: ignore[assignment]
        yield
    finally:
        for module, solver in mine:
            module.solver = solver


def remembered(model: nn.Module) -> list[tuple[nn.Module, object]]:
    found = []
    for module in model.modules():
        if hasattr(module, "_plait_cell"):
            found.append((module, module.__dict__.get("_plait_warm_starts")))
            module.__dict__["_plait_warm_starts"] = copy.deepcopy(found[-1][1])
    return found
