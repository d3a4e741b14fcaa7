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
from .engines import Layout, Tape, Weights
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

    def split(self, tensors: Sequence[Any]) -> list[tuple[Sequence[Any], Sequence[Any]]]:
        """Per direction: its states, its weights."""
        S, each = len(self.cell.states), len(tensors) // self.directions
        groups = [tensors[d * each : (d + 1) * each] for d in range(self.directions)]
        return [(group[:S], group[S:]) for group in groups]


def run(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """-> rows (N, directions*P), last states, what the tapes hold"""
    rows: list[Tensor] = []
    finals: list[Tensor] = []
    tapes: list[Tensor] = []
    x = x.resolve_neg()  # a lazily negated view, such as z.conj().imag, has no numbers that an engine could read
    for d, (state0, weights) in enumerate(call.split(tensors)):
        w = Weights.of(weights, bias=call.bias)
        y, final, tape = engines.get(call.engine).forward(call.cell, x, state0, w, call.layout, reverse=d == 1)
        rows.append(y)
        finals += final
        tapes += tape.tensors
    return torch.cat(rows, 1), finals, tapes  # a copy, always: what the user does to it must not reach the tape


def run_vjp(
    call: Call,
    x: Tensor,
    tensors: Sequence[Tensor],
    tapes: Sequence[Tensor],
    d_rows: Tensor | None,
    d_finals: Sequence[Tensor | None],
    needs_x: bool,
) -> tuple[Tensor | None, list[Tensor]]:
    """-> d_x, and d_ of all tensors in their order"""
    S, each = len(call.cell.states), len(tapes) // call.directions
    x, d_rows, *d_finals = (None if t is None else t.resolve_neg() for t in (x, d_rows, *d_finals))  # type: ignore[assignment]
    d_x, d_tensors = None, []
    for d, (_, weights) in enumerate(call.split(tensors)):
        w = Weights.of(weights, bias=call.bias)
        tape = Tape.of(call.cell, call.layout, tapes[d * each : (d + 1) * each], reverse=d == 1)
        P = w.w_hh.shape[1]
        d_y = x.new_zeros(x.shape[0], P) if d_rows is None else d_rows[:, d * P : (d + 1) * P]
        g = engines.get(call.engine).backward(
            call.cell, x, w, tape, d_y, d_finals[d * S : (d + 1) * S], needs_x=needs_x
        )
        d_x = g.x if d_x is None or g.x is None else d_x + g.x
        d_tensors += [*g.state0, *g.weights.tensors]
    return d_x, d_tensors


def differentiable(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same on torch's operators, for autograd to differentiate as often as it likes."""
    rows: list[Tensor] = []
    finals: list[Tensor] = []
    for d, (state0, weights) in enumerate(call.split(tensors)):
        w = Weights.of(weights, bias=call.bias)
        y, final = unrolled(call.cell, x, state0, w, call.layout, reverse=d == 1)
        rows.append(y)
        finals += final
    return torch.cat(rows, 1), *finals


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The engines have one precision: that of the weights."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


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

    @staticmethod
    def forward(traced: Traced, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        rows, finals, traced.tapes = run(traced.call, x, tensors)
        return rows, *finals

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        traced, x, *tensors = inputs
        ctx.call, ctx.count, ctx.shapes = traced.call, len(tensors), [o.shape for o in output]
        ctx.save_for_backward(x, *tensors, *traced.tapes)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor | None, *d_finals: Tensor | None) -> tuple[Tensor | None, ...]:
        call, needs_x = ctx.call, ctx.needs_input_grad[1]
        x, *rest = ctx.saved_tensors
        tensors, tapes = rest[: ctx.count], rest[ctx.count :]
        with without_autocast(x.device):
            if not torch.is_grad_enabled():
                d_x, d_tensors = run_vjp(call, x, tensors, tapes, d_rows, d_finals, needs_x)
                return None, d_x, *d_tensors
            # create_graph: the derivative must be differentiable in its turn
            d_outputs = [
                x.new_zeros(shape) if d is None else d for d, shape in zip((d_rows, *d_finals), ctx.shapes, strict=True)
            ]
            request = Request(call, needs_x, len(tensors), len(tapes))
            grads = RecurrenceVJP.apply(request, x, *tensors, *tapes, *d_outputs)
            return None, *(grads if needs_x else (None, *grads))

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
    needs_x: bool
    tensors: int
    tapes: int

    def split(self, rest: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        a, b = self.tensors, self.tensors + self.tapes
        return rest[:a], rest[a:b], rest[b:]


class RecurrenceVJP(torch.autograd.Function):
    """(request, x, *tensors, *tapes, *d_outputs) -> d_x (if needed), *d_tensors: differentiable once more"""

    @staticmethod
    def forward(request: Request, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        tensors, tapes, d_outputs = request.split(rest)
        d_x, d_tensors = run_vjp(request.call, x, tensors, tapes, d_outputs[0], d_outputs[1:], request.needs_x)
        return tuple(d_tensors) if d_x is None else (d_x, *d_tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.request, x, *rest = inputs
        tensors, _, d_outputs = ctx.request.split(rest)
        ctx.save_for_backward(x, *tensors, *d_outputs)

    @staticmethod
    def backward(ctx: Any, *dd: Tensor) -> tuple[Tensor | None, ...]:
        request, k = ctx.request, 1 + ctx.request.tensors
        if not request.needs_x:
            dd = (torch.zeros_like(ctx.saved_tensors[0]), *dd)

        def gradients(*args: Tensor) -> tuple[Tensor, ...]:
            pull = torch.func.vjp(lambda x, *tensors: differentiable(request.call, x, tensors), *args[:k])[1]
            return tuple(pull(args[k:]))

        result = torch.func.vjp(gradients, *ctx.saved_tensors)[1](dd)
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
    result: tuple[Tensor, ...] = Recurrence.apply(Traced(call), x, *tensors)
    return result


_undisturbed: Callable[..., tuple[Tensor, ...]] | None = None
