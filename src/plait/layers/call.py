"""One call of a layer: all about it but its tensors, and how an engine, or torch's operators, run it there and back."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import engines
from ..cells import Cell
from ..engines import Layout, Needs, Prepared, Weights
from ..engines.padding import Padding
from ..engines.torch import unrolled
from ..solvers import Serial, Solver, Visit
from .held import Held

SERIAL = Serial()


class Call(NamedTuple):
    """All about a layer but its tensors. Those are the initial states, if any, and per direction the weights."""

    cell: type[Cell]
    engine: str
    layout: Layout
    directions: int
    bias: bool
    stateful: bool  # initial states are given; else they are zero
    solver: Solver = SERIAL
    held: Held | None = None  # the block of `plait.packed`, if the layer is in one
    number: int = 0  # of the layer, in a stack
    visits: tuple[Visit, ...] = ()  # per direction: what a solver that sweeps knows of this call
    padding: Padding | None = None  # of the input or the output, if one is padded, with states in the user's order

    @property
    def more(self) -> dict[str, Any]:
        """Options for the solver and the engine that most calls do not have."""
        found: dict[str, Any] = {"visits": self.visits} if self.visits else {}
        return found if self.padding is None else {**found, "padding": self.padding}

    def split(self, tensors: Sequence[Any]) -> tuple[Sequence[Any] | None, list[Sequence[Any]]]:
        """The states; per direction its weights."""
        S = len(self.cell.states) if self.stateful else 0
        each = (len(tensors) - S) // self.directions
        groups = [tensors[S + d * each : S + (d + 1) * each] for d in range(self.directions)]
        return tensors[:S] if self.stateful else None, groups

    def shapes(self, x: Tensor, tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """The shapes of the rows and of the last states."""
        widths, D = self.weights(tensors)[0].widths(self.cell), self.directions
        rows: Sequence[int] = x.shape[:-1] if self.padding is None else self.padding.of_output()
        return [(*rows, D * widths[0]), *((D, self.layout.B, width) for width in widths)]

    def weights(self, tensors: Sequence[Tensor]) -> list[Weights]:
        return [Weights.of(self.cell, group, bias=self.bias) for group in self.split(tensors)[1]]

    def prepared(self, tensors: Sequence[Tensor]) -> list[Prepared]:
        """The weights, ready for the engine: for this call only, or for all calls within a block of `plait.packed`."""
        if self.held is None or not self.held.is_open:
            return self.prepare(tensors, self.solver.sweeps)
        own = tensors[len(self.cell.states) if self.stateful else 0 :]
        return self.held.prepared(self.engine, self.number, own, lambda: self.prepare(tensors, True))

    def prepare(self, tensors: Sequence[Tensor], lasting: bool) -> list[Prepared]:
        engine, weights = engines.get(self.engine), self.weights([t.resolve_neg() for t in tensors])
        return [engine.prepare(self.cell, w, d == 1, lasting=lasting) for d, w in enumerate(weights)]


def run(
    call: Call, x: Tensor, tensors: Sequence[Tensor], *, keep: bool = True
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """-> rows (., directions*P), last states, what is kept for the derivative"""
    # an engine cannot read a view that is negated lazily, such as z.conj().imag: resolve_neg makes a copy of it
    state0 = [s.resolve_neg() for s in tensors[: len(call.cell.states)]] if call.stateful else None
    ps, engine = call.prepared(tensors), engines.get(call.engine)
    return call.solver.forward(engine, ps, x.resolve_neg(), state0, call.layout, keep=keep, **call.more)


def run_vjp(
    call: Call,
    x: Tensor,
    tensors: Sequence[Tensor],
    kept: Sequence[Tensor],
    d_rows: Tensor | None,
    d_finals: Sequence[Tensor | None],
    needs: Sequence[bool],
    *,
    spend: bool = False,
) -> list[Tensor | None]:
    """-> d_x and d_ of all tensors in order, None for those not needed. `spend`: `kept` may be overwritten."""
    d_rows, *d_finals = [None if d is None else d.resolve_neg() for d in (d_rows, *d_finals)]
    states, groups = call.split(needs[1:])
    wanted = Needs(needs[0], states or (), groups)
    found = call.solver.backward(
        engines.get(call.engine),
        call.prepared(tensors),
        x.resolve_neg(),
        kept,
        d_rows,
        d_finals,
        call.layout,
        needs=wanted,
        spend=spend,
        **call.more,
    )
    result = [found.x]
    if states is not None:
        result += found.states or [None] * len(states)
    for group in found.weights:
        result += group
    return result


def differentiable(call: Call, x: Tensor, tensors: Sequence[Tensor], dt: float = 1) -> tuple[Tensor, ...]:
    """The same on torch's operators: autograd can differentiate it any number of times."""
    if call.padding is not None:
        p, S = call.padding, len(call.cell.states) if call.stateful else 0
        inner = call._replace(padding=None)
        y, *last = differentiable(inner, p.entering(x), [*p.sorted(tensors[:S]), *tensors[S:]], dt)
        return p.leaving(y), *p.unsorted(last)
    rows: list[Tensor] = []
    finals: list[tuple[Tensor, ...]] = []
    state0, _ = call.split(tensors)
    for d, w in enumerate(call.weights(tensors)):
        given = None if state0 is None else [s[d] for s in state0]
        y, final = unrolled(call.cell, x.flatten(0, -2), given, w, call.layout, reverse=d == 1, dt=dt)
        rows.append(y)
        finals.append(final)
    y = torch.cat(rows, 1)
    return y.view(*x.shape[:-1], y.shape[1]), *(torch.stack(some) for some in zip(*finals, strict=True))
