"""Layers, with all their directions, as one differentiable function.

The engine computes the first derivative. For higher ones (`create_graph=True`), and for gradients that a kernel cannot
read (readable.py), the same step runs on torch's operators, and autograd differentiates those.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..cells import Cell
from ..cells.trace import why_untraceable
from ..errors import PlaitError
from .readable import are_mapped, are_readable
from .stack import Stack

NOTHING = nullcontext()


def is_autocast(device: torch.device) -> bool:
    kind = device.type
    return (kind == "cpu" or torch.amp.is_autocast_available(kind)) and torch.is_autocast_enabled(kind)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Engines compute in the precision of the weights, and in no other."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else NOTHING


def no_vmap(engine: str) -> PlaitError:
    return PlaitError(
        f"vmap over a recurrent layer is not supported: engine '{engine}' has a batch axis of its own. "
        "Put the mapped axis into the batch axis instead."
    )


def no_jvp(engine: str) -> PlaitError:
    return PlaitError(f"jvp: engine '{engine}' differentiates this layer in reverse only: use torch.func.vjp or grad.")


def no_trace(tool: str, cell: type[Cell]) -> PlaitError:
    todo = "use torch.export" if cell.mode is None else "plait.restore(model) first, then trace it"
    return PlaitError(f"{tool} cannot record plait's kernels: {todo}.")


def check_alone(stack: Stack, what: str) -> None:
    """torch's operators know of no other process."""
    if any(visit.link is not None for call in stack.calls for visit in call.visits):
        raise PlaitError(f"{what} on time ranks are not supported: use one process, or data ranks.")


class Traced:
    """A stack that passes through Recurrence.apply. It carries what `forward` made to setup_context."""

    __slots__ = ("kept", "stack")

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.kept: Sequence[Tensor] = ()


def keep(ctx: Any, stack: Stack, given: Sequence[Tensor], kept: Sequence[Tensor], spendable: bool) -> None:
    """For the way back. spendable: the first one may write over what is kept, because nobody else has it."""
    ctx.stack, ctx.end, ctx.spent, ctx.spendable = stack, len(given), False, spendable
    ctx.save_for_backward(*given, *kept)
    ctx.set_materialize_grads(False)


class Recurrence(torch.autograd.Function):
    """(traced, x, *tensors) -> rows, *last states. In the form that torch.func needs"""

    @staticmethod
    def forward(traced: Traced, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        rows, finals, traced.kept = traced.stack.run(x, tensors)
        return rows, *finals

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        keep(ctx, inputs[0].stack, inputs[1:], inputs[0].kept, spendable=False)  # every level of it has the same tape

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor | None, *d_finals: Tensor | None) -> tuple[Tensor | None, ...]:
        stack, needs, saved = ctx.stack, ctx.needs_input_grad[1:], ctx.saved_tensors
        x, tensors, kept = saved[0], saved[1 : ctx.end], saved[ctx.end :]
        once = not torch.is_grad_enabled()  # else create_graph=True: the derivative must be differentiable, too
        d_outputs = d_rows, *d_finals
        if are_mapped(d_outputs) or not are_readable(d_outputs):
            check_alone(stack, "mapped, fake and recorded gradients")
            with without_autocast(x.device):
                d = stack.filled(x, tensors, d_outputs)
                return None, *stack.vjp_on_operators(x, tensors, stack.masks(kept), d, needs)
        spent, ctx.spent = ctx.spent, ctx.spent or (once and ctx.spendable)
        with without_autocast(x.device):
            if spent:  # the first backward has overwritten what was kept; retain_graph=True allows another
                with torch.no_grad():
                    kept = stack.run(x, tensors, masks=stack.masks(kept))[2]
            if once:
                return None, *stack.run_vjp(x, tensors, kept, d_rows, d_finals, needs, spend=ctx.spendable)
            check_alone(stack, "second derivatives")
            request = Request(stack, needs, len(tensors), len(kept))
            d = stack.filled(x, tensors, d_outputs)
            return None, *request.spread(RecurrenceVJP.apply(request, x, *tensors, *kept, *d))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise no_jvp(ctx.stack.calls[0].engine)

    @staticmethod
    def vmap(info: Any, in_dims: Any, traced: Traced, *_: Any) -> NoReturn:
        raise no_vmap(traced.stack.calls[0].engine)


class PlainRecurrence(torch.autograd.Function):
    """(stack, x, *tensors) -> rows, *last states. A small step spends a tenth of its time in what torch.func needs"""

    @staticmethod
    def forward(ctx: Any, stack: Stack, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        rows, finals, kept = stack.run(x, tensors)
        keep(ctx, stack, (x, *tensors), kept, spendable=True)
        return rows, *finals

    backward, jvp = Recurrence.backward, Recurrence.jvp


@dataclass(frozen=True)
class Request:
    """How to split the arguments of RecurrenceVJP: first the tensors, then what was kept, then d_outputs."""

    stack: Stack
    needs: Sequence[bool]  # of x and of the tensors
    tensors: int  # how many
    kept: int  # how many

    def split(self, rest: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        a, b = self.tensors, self.tensors + self.kept
        return rest[:a], rest[a:b], rest[b:]

    def chosen(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(v for v, needed in zip(values, self.needs, strict=True) if needed)

    def spread(self, chosen: Sequence[Any]) -> tuple[Any, ...]:
        """The inverse of `chosen`: None for what is not needed."""
        values = iter(chosen)
        return tuple(next(values) if needed else None for needed in self.needs)


class RecurrenceVJP(torch.autograd.Function):
    """(request, x, *tensors, *kept, *d_outputs) -> what is needed of d_x, *d_tensors: differentiable once more"""

    @staticmethod
    def forward(request: Request, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        tensors, kept, d_outputs = request.split(rest)
        return request.chosen(request.stack.run_vjp(x, tensors, kept, d_outputs[0], d_outputs[1:], request.needs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.request, x, *rest = inputs
        tensors, kept, d_outputs = ctx.request.split(rest)
        masks = ctx.request.stack.masks(kept)
        ctx.masks = len(masks)
        ctx.save_for_backward(*masks, x, *tensors, *d_outputs)

    @staticmethod
    def backward(ctx: Any, *dd: Tensor) -> tuple[Tensor | None, ...]:
        request, k, stack = ctx.request, 1 + ctx.request.tensors, ctx.request.stack
        masks, given = ctx.saved_tensors[: ctx.masks], ctx.saved_tensors[ctx.masks :]

        def derivative(*args: Tensor) -> tuple[Tensor, ...]:
            found = stack.vjp_on_operators(args[0], args[1:k], masks, args[k:], request.needs)
            gradients: tuple[Tensor, ...] = request.chosen(found)
            return gradients

        with without_autocast(dd[0].device):
            result = torch.func.vjp(derivative, *given)[1](dd)
        nothing = [None] * request.kept  # no gradient: they depend on the inputs, whose gradient includes them
        return None, *result[:k], *nothing, *result[k:]

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise PlaitError("jvp through the derivative of a recurrent layer is not supported: use reverse mode twice.")

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: Request, *_: Any) -> NoReturn:
        raise no_vmap(request.stack.calls[0].engine)


class Stacked(Protocol):
    """What has a stack for a call."""

    def stack(self, x: Tensor, tensors: Sequence[Tensor]) -> Stack: ...


def apply(of: Stacked, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """-> rows (., directions*P), *last states (layers*directions, B, .), differentiable"""
    global _undisturbed
    if "torch._dynamo" not in sys.modules:
        return _apply(of, x, tensors)
    if _undisturbed is None:  # after a graph break dynamo would compile the functions of the engines
        _undisturbed = torch.compiler.disable(_apply)
    return _undisturbed(of, x, tensors)


def _apply(of: Stacked, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    stack = of.stack(x, tensors)
    call = stack.calls[0]
    if torch._C._is_tracing():
        raise no_trace("torch.jit.trace", call.cell)
    if call.engine == "torch" and why_untraceable(call.cell) is not None:
        if call.solver.sweeps:
            raise PlaitError(f"solver {call.solver}: {why_untraceable(call.cell)} Use plait.Serial() for it.")
        with without_autocast(x.device):
            return stack.differentiable(x, tensors, ())
    if not in_functorch():
        if not is_recorded(x, tensors):
            rows, finals, _ = stack.run(x, tensors, keep=False)
            return rows, *finals
        # Function.apply inspects the signature of forward each time, for torch.func
        result: tuple[Tensor, ...] = plainly(stack, x, *tensors)
    else:
        result = Recurrence.apply(Traced(stack), x, *tensors)
    return result


def is_recorded(x: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether a derivative may be needed."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(t.requires_grad for t in tensors)


plainly = super(torch.autograd.Function, PlainRecurrence).apply
in_functorch: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_undisturbed: Callable[..., tuple[Tensor, ...]] | None = None
