"""A call of some layers, one after the other: all about it but its tensors, and how it runs forward and backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import engines
from ..cells import Cell
from ..engines import Layout, Needs, Prepared, Weights, fused
from ..engines.fused import FusedEngine
from ..engines.packed import Packed, as_read, evaluated
from ..engines.plan import Plan
from ..engines.torch import unrolled
from ..errors import PlaitError
from ..kernels.launch import threads
from ..kernels.launch.key import Key
from ..solvers import Problem, Serial, Solver, Visit
from . import recompute
from .pinned import Block

SERIAL = Serial()
REVERSE = {1: (False,), 2: (False, True)}


@dataclass(slots=True, eq=False)
class Call:
    """Its tensors are x, the initial states of all layers, if any, and per layer and direction the weights."""

    cell: type[Cell]
    engine: str
    layout: Layout
    directions: int
    bias: bool
    stateful: bool  # initial states are given; else they are zero
    H: int
    projection: int = 0  # width of a projected h; 0: it is not projected
    layers: int = 1
    number: int = 0  # of the first layer, in its module
    dropout: float = 0.0  # between layers: the share of the numbers that become zero
    solver: Solver = SERIAL
    visits: Sequence[Visit] = ()  # per direction: what a solver that sweeps knows of this call
    block: Block | None = None  # of `plait.packed`, if the layer is in one
    plan: Plan | None = None  # what ran the forward pass; None: the solver did
    kept: Sequence[Tensor] = ()  # what the forward pass saves for backward, on its way to autograd
    step: bool = False  # of a cell: x (B, I), states (B, .); the rows are h, which is not repeated in the last states
    rounded: bool = False  # operands of products are rounded to bfloat16
    is_shared: bool = False  # by several levels of torch.func: none may write over what is kept
    steps: int = 0  # of a stretch, if the backward pass walks it again (recompute.py); 0: the tapes are kept
    apart: bool = False  # without stretches, each layer would be a plan of its own
    ours: Sequence[tuple[bool, bool]] = ()  # per layer: whether the launch computes W x and d_x, without stretches

    # --- its tensors
    @property
    def S(self) -> int:
        """The number of initial states."""
        return len(self.cell.states) if self.stateful else 0

    def split(self, values: Sequence[Any]) -> tuple[Sequence[Any], list[Sequence[Any]]]:
        """Of the tensors, or of a value for each of them: those of the states; per layer and direction the weights."""
        S, count = self.S, self.layers * self.directions
        each = (len(values) - S) // count
        return values[:S], [values[S + k * each : S + (k + 1) * each] for k in range(count)]

    def weights(self, tensors: Sequence[Tensor]) -> list[Weights]:
        return [Weights.of(self.cell, group, bias=self.bias) for group in self.split(tensors)[1]]

    def shapes(self, x: Tensor) -> list[tuple[int, ...]]:
        """The shapes of the rows and of the last states."""
        P, count = self.projection or self.H, self.layers * self.directions
        widths = [P, *[self.H] * (len(self.cell.states) - 1)]
        if self.step:
            return [(self.layout.B, width) for width in widths]
        return [(*x.shape[:-1], self.directions * P), *((count, self.layout.B, width) for width in widths)]

    def masks(self, kept: Sequence[Tensor], x: Tensor) -> Sequence[Tensor]:
        found = kept[: self.layers - 1 if self.dropout else 0]
        return recompute.all_masks(self, found, x) if self.steps else found

    def filled(self, x: Tensor, d_outputs: Sequence[Tensor | None]) -> list[Tensor]:
        """With zeros for the outputs that have no gradient."""
        return [x.new_zeros(s) if d is None else d for d, s in zip(d_outputs, self.shapes(x), strict=True)]

    def prepared(self, tensors: Sequence[Tensor]) -> list[Prepared]:
        """The weights, ready for the engine: for this call only, or for all calls within a block of `plait.packed`."""
        return self.in_block(tensors) or self.prepare(tensors, self.solver.sweeps)

    def in_block(self, tensors: Sequence[Tensor]) -> list[Prepared]:
        """Nothing outside of a block. Another thread may close it at any time: whether it is open is asked once."""
        if self.block is None or not self.block.is_open:
            return []
        name = self.cell, self.engine, self.number, self.layers, self.rounded
        return self.block.prepared(name, tensors[self.S :], lambda: self.prepare(tensors, True))

    def prepare(self, tensors: Sequence[Tensor], lasting: bool) -> list[Prepared]:
        engine, found = engines.get(self.engine), enumerate(self.weights(as_read(tensors)))
        more = {"rounded": True} if self.rounded else {}
        return [engine.prepare(self.cell, w, k % self.directions == 1, lasting=lasting, **more) for k, w in found]

    # --- what runs it
    def key(self, x: Tensor, pinned: bool) -> Key:
        """Of the plan of all layers, at all steps."""
        layout = self.layout
        ragged = not layout.is_dense or layout.padding is not None
        return Key(
            self.cell,
            x.dtype,
            ragged,
            0 if ragged else layout.T,
            layout.B,
            x.shape[-1],
            self.H,
            self.projection or self.H,
            self.layers,
            REVERSE[self.directions],
            self.bias,
            self.projection > 0,
            self.stateful,
            threads.threads(),
            self.dropout > 0,
            x.requires_grad,
            pinned,
            layout.padding is not None,
            True,
            step=self.step,
            rounded=self.rounded,
        )

    def find_plan(self, x: Tensor, keep: bool, pinned: bool) -> Plan | None:
        layout = self.layout
        if self.engine != "fused" or not layout.N:
            return None
        if self.solver is not SERIAL and self.solver.is_cut(self.H, layout, self.visits, keep):
            return None
        engine: FusedEngine = engines.get("fused")  # type: ignore[assignment]
        key = self.key(x, pinned)
        plan = engine.plans.get(key)
        if plan is None:
            plan = engine.plan(key)
        return plan if keep or self.step or plan.bytes(layout.N) <= fused.WITHOUT_TAPE else None

    def run(
        self, x: Tensor, tensors: Sequence[Tensor], *, keep: bool = True, masks: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor], Sequence[Tensor]]:
        """-> rows (., D*P), last states (L*D, B, .), what is kept. masks: those of an earlier run, if any"""
        pins: Sequence[Packed] = () if self.block is None else self.in_block(tensors)  # type: ignore[assignment]
        if self.steps and keep:
            assert not masks, "a call in stretches has masks of its own, as bits"
            return recompute.forward(self, x, tensors, pins)
        self.plan = plan = self.find_plan(x, keep, bool(pins))
        if plan is None:
            return self.run_layers(x, tensors, keep)
        S = len(self.cell.states) if self.stateful else 0
        given = as_read((x, *tensors))
        if not x.is_cpu:
            raise PlaitError(f"the input is on {x.device}, the layer on the CPU: move one of them.")
        if self.dropout and not masks:
            masks = plan.masks(x, self.layout.N, self.dropout)
        states, weights = given[1 : 1 + S], given[1 + S :]
        y, finals, tapes = plan.forward(given[0], states, weights, self.layout, masks=masks, pins=pins)
        return y, finals[1:] if self.step else finals, [*masks, *tapes, plan.order] if keep else ()

    def run_layers(
        self, x: Tensor, tensors: Sequence[Tensor], keep: bool
    ) -> tuple[Tensor, list[Tensor], Sequence[Tensor]]:
        """One layer after another, by the solver. Several layers keep nothing: they would be a plan."""
        assert self.layers == 1 or not keep, "a stack that learns is a plan"
        engine, layout, D, finals = engines.get(self.engine), self.layout, self.directions, []
        x, *states = as_read((x, *tensors[: self.S]))
        if layout.padding is not None:
            x, states = layout.padding.gathered(x), layout.padding.sorted(states)
        ps, kept = self.prepared(tensors), list[Tensor]()
        for k in range(self.layers):
            if k and self.dropout:
                x = torch.nn.functional.dropout(x, self.dropout)
            given = [s[k * D : (k + 1) * D] for s in states] if self.stateful else None
            problem = Problem(engine, ps[k * D : (k + 1) * D], layout, self.visits)
            x, last, kept = self.solver.forward(problem, x, given, keep=keep)
            finals.append(last)
        ends = finals[0] if self.layers == 1 else [torch.cat(some) for some in zip(*finals, strict=True)]
        if layout.padding is not None:
            x, ends = layout.padding.scattered(x), layout.padding.unsorted(ends)
        return x, ends, kept

    def run_vjp(
        self,
        x: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        d_outputs: Sequence[Tensor | None],
        needs: Sequence[bool],
        *,
        spend: bool = False,
    ) -> list[Tensor | None]:
        """-> d_x and d_ of all tensors in order, None for those not needed. spend: what is kept may be overwritten."""
        d = [None if d is None else evaluated(d) for d in d_outputs]
        d[1:1] = [None] if self.step else []
        if self.steps:
            return recompute.backward(self, x, tensors, kept, d, needs)
        if self.plan is None:
            return self.run_layer_vjp(x, tensors, kept, d, needs, spend)
        plan, gaps = self.plan, self.layers - 1 if self.dropout else 0
        S, masks, tapes, order = len(self.cell.states) if self.stateful else 0, kept[:gaps], kept[gaps:-1], kept[-1]
        if order.data_ptr() != plan.order.data_ptr() and self.is_other_order(order):
            tapes = self.run(x, tensors, masks=masks)[2][gaps:-1]
            plan = self.plan
        pins: Sequence[Packed] = ()
        if plan.key.pinned:
            pins = self.in_block(tensors)  # type: ignore[assignment]
            if not pins:  # the block has ended
                engine: FusedEngine = engines.get("fused")  # type: ignore[assignment]
                plan = engine.plan(plan.key._replace(pinned=False, slabs=False))
        given = as_read((x, *tensors[S:], *tapes))
        end, needs = len(given) - len(tapes), tuple(needs)
        weights, tapes = given[1:end], given[end:]
        back = plan.backward(given[0], weights, tapes, d, self.layout, needs, spend=spend, masks=masks, pins=pins)
        for visit in self.visits:
            visit.not_cut_back()
        if not S:
            return [back.x, *back.weights]
        states: Sequence[Tensor | None] = back.states or [None] * S
        return [back.x, *[d if n else None for d, n in zip(states, needs[1 : 1 + S], strict=True)], *back.weights]

    def is_other_order(self, order: Tensor) -> bool:
        """Whether another plan has made the tapes: torch.utils.checkpoint computes them once more in the backward pass,
        maybe with another number of threads.
        """
        assert self.plan is not None
        found, B = order.tolist(), self.layout.B
        if len(found) != 1 or found[0] not in range(1, B + 1):
            raise PlaitError(f"the saved tapes are in {found} slabs: expected 1 to {B}, as the layer has saved them.")
        return bool(found[0] != self.plan.slabs)

    def run_layer_vjp(
        self,
        x: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        d_outputs: Sequence[Tensor | None],
        needs: Sequence[bool],
        spend: bool,
    ) -> list[Tensor | None]:
        """By the solver."""
        states, groups = self.split(needs[1:])
        engine, ps, wanted = engines.get(self.engine), self.prepared(tensors), Needs(needs[0], states, groups)
        problem, (d_rows, *d_finals) = Problem(engine, ps, self.layout, self.visits), d_outputs
        found = self.solver.backward(problem, as_read([x])[0], kept, d_rows, d_finals, needs=wanted, spend=spend)
        result = [found.x, *(found.states if found.states and states else [None] * len(states))]
        for group in found.weights:
            result += group
        return result

    # --- the same on torch's operators
    def differentiable(
        self, x: Tensor, tensors: Sequence[Tensor], masks: Sequence[Tensor] = (), dt: float = 1
    ) -> tuple[Tensor, ...]:
        """Autograd can differentiate it any number of times."""
        padding, layout, D, every = self.layout.padding, self.layout, self.directions, self.weights(tensors)
        states, finals = list(tensors[: self.S]), []
        if padding is not None:
            x, states = padding.gathered(x), padding.sorted(states)
        for k in range(self.layers):
            rows: list[Tensor] = []
            x = x * masks[k - 1].view(x.shape) if k and masks else x
            for d in range(D):
                given = (states if self.step else [s[k * D + d] for s in states]) if self.stateful else None
                w = every[k * D + d]
                y, final = unrolled(self.cell, x.flatten(0, -2), given, w, layout, reverse=d == 1, dt=dt)
                rows.append(y)
                finals.append(final)
            y = torch.cat(rows, 1)
            x = y.view(*x.shape[:-1], y.shape[1])
        ends = finals[0][1:] if self.step else [torch.stack(some) for some in zip(*finals, strict=True)]
        if padding is not None:
            x, ends = padding.scattered(x), padding.unsorted(ends)
        return x, *ends

    def vjp_on_operators(
        self,
        x: Tensor,
        tensors: Sequence[Tensor],
        masks: Sequence[Tensor],
        d_outputs: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """As run_vjp, by autograd: it can be differentiated, and takes gradients that a kernel cannot read."""
        given, chosen = [x, *tensors], [k for k, needed in enumerate(needs) if needed]

        def outputs_of(*some: Tensor) -> tuple[Tensor, ...]:
            every = list(given)
            for k, t in zip(chosen, some, strict=True):
                every[k] = t
            return self.differentiable(every[0], every[1:], masks)

        pull = torch.func.vjp(outputs_of, *[given[k] for k in chosen])[1]
        found = iter(pull(tuple(d_outputs)))
        return [next(found) if needed else None for needed in needs]
