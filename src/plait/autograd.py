"""One layer, all its directions, as one differentiable function.

The first derivative comes from the engine. Higher ones (`create_graph=True`) differentiate torch's operators, on which
the same step runs.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import engines
from .cells import Cell
from .engines import Layout, Needs, Tape, Weights
from .engines.torch import unrolled
from .errors import PlaitError


@dataclass(frozen=True)
class Call:
    """What a layer is besides its tensors. Those are, per direction, the initial states and then the weights."""

    cell: Cell
    engine: str
    layout: Layout
    directions: int
    bias: bool
    stateful: bool  # initial states are given; else they are zero

    def split(self, tensors: Sequence[Any]) -> tuple[list[Sequence[Any] | None], list[Sequence[Any]]]:
        """Per direction: its states, its weights."""
        S, each = len(self.cell.states) if self.stateful else 0, len(tensors) // self.directions
        groups = [tensors[d * each : (d + 1) * each] for d in range(self.directions)]
        return [group[:S] if self.stateful else None for group in groups], [group[S:] for group in groups]

    def shapes(self, x: Tensor, tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
        """Of the rows and the last states."""
        w = self.weights(self.split(tensors)[1])[0]
        H, P, N, B = w.w_hh.shape[0] // len(self.cell.gates), w.w_hh.shape[1], x.shape[0], self.layout.B
        states = [(B, P), *[(B, H)] * (len(self.cell.states) - 1)]
        return [(N, self.directions * P), *states * self.directions]

    def weights(self, groups: Sequence[Sequence[Tensor]]) -> list[Weights]:
        return [Weights.of(group, bias=self.bias) for group in groups]

    def tapes(self, tensors: Sequence[Tensor], weights: Sequence[Weights]) -> list[Tape]:
        each = len(tensors) // self.directions
        return [
            Tape.of(
                self.cell,
                self.layout,
                tensors[d * each : (d + 1) * each],
                projected=w.w_hr is not None,
                reverse=d == 1,
            )
            for d, w in enumerate(weights)
        ]


def run(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """-> rows (N, directions*P), last states, what the tapes hold"""
    state0, groups = call.split(tensors)
    x = x.resolve_neg()  # a lazily negated view, such as z.conj().imag, has no numbers that an engine could read
    rows, finals, tapes = engines.get(call.engine).forward(call.cell, x, state0, call.weights(groups), call.layout)
    return rows, finals, [t for tape in tapes for t in tape.tensors]


def run_vjp(
    call: Call,
    x: Tensor,
    tensors: Sequence[Tensor],
    tapes: Sequence[Tensor],
    d_rows: Tensor | None,
    d_finals: Sequence[Tensor | None],
    needs: Sequence[bool],
    *,
    spend: bool = False,
) -> list[Tensor | None]:
    """-> d_x and d_ of all tensors in their order, as far as they are needed. `spend`: the tapes may be overwritten."""
    x, d_rows, *d_finals = (None if t is None else t.resolve_neg() for t in (x, d_rows, *d_finals))  # type: ignore[assignment]
    _, groups = call.split(tensors)
    weights = call.weights(groups)
    by_state, by_weight = call.split(needs[1:])
    unused = [False] * len(call.cell.states)
    wanted = Needs(needs[0], [some or unused for some in by_state], by_weight)
    d_x, by_direction = engines.get(call.engine).backward(
        call.cell, x, weights, call.tapes(tapes, weights), d_rows, d_finals, needs=wanted, spend=spend
    )
    result: list[Tensor | None] = [d_x]
    for d_state0, d_weights in by_direction:
        result += [*(d_state0 if call.stateful else ()), *d_weights]
    return result


def differentiable(call: Call, x: Tensor, tensors: Sequence[Tensor], dt: float = 1) -> tuple[Tensor, ...]:
    """The same on torch's operators, for autograd to differentiate as often as it likes."""
    rows: list[Tensor] = []
    finals: list[Tensor] = []
    state0, groups = call.split(tensors)
    for d, (given, w) in enumerate(zip(state0, call.weights(groups), strict=True)):
        y, final = unrolled(call.cell, x, given, w, call.layout, reverse=d == 1, dt=dt)
        rows.append(y)
        finals += final
    return torch.cat(rows, 1), *finals


NOTHING = nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The engines have one precision: that of the weights."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else NOTHING


def no_vmap(engine: str) -> PlaitError:
    return PlaitError(
        f"vmap over a recurrent layer is not there: engine '{engine}' batches by itself. "
        "Put the mapped axis into the batch axis instead."
    )


def no_jvp(engine: str) -> PlaitError:
    return PlaitError(f"jvp: engine '{engine}' differentiates this layer in reverse only: use torch.func.vjp or grad.")


@dataclass
class Traced:
    """A call on its way through Recurrence.apply: carries the tapes from forward to setup_context."""

    call: Call
    tapes: Sequence[Tensor] = ()


class Recurrence(torch.autograd.Function):
    """(traced, x, *tensors) -> rows, *last states"""

    @classmethod
    def plainly(cls, *args: Any) -> Any:
        """`apply` outside of torch.func's transforms."""
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]

    @staticmethod
    def forward(traced: Traced, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        rows, finals, traced.tapes = run(traced.call, x, tensors)
        return rows, *finals

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        traced, x, *tensors = inputs
        ctx.call, ctx.count, ctx.spent = traced.call, len(tensors), False
        ctx.save_for_backward(x, *tensors, *traced.tapes)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor | None, *d_finals: Tensor | None) -> tuple[Tensor | None, ...]:
        call, needs = ctx.call, ctx.needs_input_grad[1:]
        x, *rest = ctx.saved_tensors
        tensors, tapes = rest[: ctx.count], rest[ctx.count :]
        with without_autocast(x.device):
            if ctx.spent:  # the first backward wrote over the tapes, and retain_graph=True asks for another
                with torch.no_grad():
                    tapes = run(call, x, tensors)[2]
            if not torch.is_grad_enabled():
                ctx.spent = True
                return None, *run_vjp(call, x, tensors, tapes, d_rows, d_finals, needs, spend=True)
            # create_graph: the derivative must be differentiable in its turn
            shapes = call.shapes(x, tensors)
            d_outputs = [
                x.new_zeros(shape) if d is None else d for d, shape in zip((d_rows, *d_finals), shapes, strict=True)
            ]
            request = Request(call, needs, len(tensors), len(tapes))
            return None, *request.spread(RecurrenceVJP.apply(request, x, *tensors, *tapes, *d_outputs))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise no_jvp(ctx.call.engine)

    @staticmethod
    def vmap(info: Any, in_dims: Any, traced: Traced, *_: Any) -> NoReturn:
        raise no_vmap(traced.call.engine)


@dataclass(frozen=True)
class Request:
    """What RecurrenceVJP's arguments are: how many tensors, then how many tapes, and the rest d_outputs."""

    call: Call
    needs: Sequence[bool]  # of x and of the tensors
    tensors: int
    tapes: int

    def split(self, rest: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        a, b = self.tensors, self.tensors + self.tapes
        return rest[:a], rest[a:b], rest[b:]

    def chosen(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(v for v, needed in zip(values, self.needs, strict=True) if needed)

    def spread(self, chosen: Sequence[Any]) -> tuple[Any, ...]:
        """`chosen` undone: None for what is not needed."""
        values = iter(chosen)
        return tuple(next(values) if needed else None for needed in self.needs)


class RecurrenceVJP(torch.autograd.Function):
    """(request, x, *tensors, *tapes, *d_outputs) -> what is needed of d_x, *d_tensors: differentiable once more"""

    @staticmethod
    def forward(request: Request, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        tensors, tapes, d_outputs = request.split(rest)
        return request.chosen(run_vjp(request.call, x, tensors, tapes, d_outputs[0], d_outputs[1:], request.needs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.request, x, *rest = inputs
        tensors, _, d_outputs = ctx.request.split(rest)
        ctx.save_for_backward(x, *tensors, *d_outputs)

    @staticmethod
    def backward(ctx: Any, *dd: Tensor) -> tuple[Tensor | None, ...]:
        request, k = ctx.request, 1 + ctx.request.tensors

        def derivative(*args: Tensor) -> tuple[Tensor, ...]:
            pull = torch.func.vjp(lambda x, *tensors: differentiable(request.call, x, tensors), *args[:k])[1]
            gradients: tuple[Tensor, ...] = request.chosen(pull(args[k:]))
            return gradients

        result = torch.func.vjp(derivative, *ctx.saved_tensors)[1](dd)
        nothing = [None] * request.tapes  # they are functions of the inputs, and counted there
        return None, *result[:k], *nothing, *result[k:]

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise PlaitError("jvp through the derivative of a recurrent layer is not there: use reverse mode twice.")

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: Request, *_: Any) -> NoReturn:
        raise no_vmap(request.call.engine)


def apply(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """-> rows (N, directions*P), *last states (B, .), differentiable"""
    global _undisturbed
    if "torch._dynamo" not in sys.modules:
        return _apply(call, x, tensors)
    if _undisturbed is None:  # beyond a graph break dynamo would compile the engines' own functions
        _undisturbed = torch.compiler.disable(_apply)
    return _undisturbed(call, x, tensors)


def _apply(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    # Function.apply inspects the signature of forward at each call, for functorch's sake: a tenth of a small step
    apply = Recurrence.apply if in_functorch() else Recurrence.plainly
    result: tuple[Tensor, ...] = apply(Traced(call), x, *tensors)
    return result


in_functorch: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_undisturbed: Callable[..., tuple[Tensor, ...]] | None = None
