"""One layer, all its directions, as one differentiable function.

The engine computes the first derivative. For higher ones (`create_graph=True`) the same step runs on torch's operators,
and autograd differentiates those.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..cells.trace import why_untraceable
from ..errors import PlaitError
from .call import Call, differentiable, run, run_vjp

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


class Traced:
    """A call that passes through Recurrence.apply. It carries what `forward` made to setup_context."""

    def __init__(self, call: Call, spendable: bool) -> None:
        self.call = call
        self.spendable = spendable  # the first backward may write over what is kept: nobody else has it
        self.kept: Sequence[Tensor] = ()


class Recurrence(torch.autograd.Function):
    """(traced, x, *tensors) -> rows, *last states"""

    @staticmethod
    def forward(traced: Traced, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        rows, finals, traced.kept = run(traced.call, x, tensors)
        return rows, *finals

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        traced, x, *tensors = inputs
        ctx.call, ctx.count, ctx.spent, ctx.spendable = traced.call, len(tensors), False, traced.spendable
        ctx.save_for_backward(x, *tensors, *traced.kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor | None, *d_finals: Tensor | None) -> tuple[Tensor | None, ...]:
        call, needs = ctx.call, ctx.needs_input_grad[1:]
        x, *rest = ctx.saved_tensors
        tensors, kept = rest[: ctx.count], rest[ctx.count :]
        once = not torch.is_grad_enabled()  # else create_graph=True: the derivative must be differentiable, too
        spent, ctx.spent = ctx.spent, ctx.spent or (once and ctx.spendable)
        with without_autocast(x.device):
            if spent:  # the first backward has overwritten what was kept; retain_graph=True allows another
                with torch.no_grad():
                    kept = run(call, x, tensors)[2]
            if once:
                return None, *run_vjp(call, x, tensors, kept, d_rows, d_finals, needs, spend=ctx.spendable)
            if any(visit.link is not None for visit in call.visits):
                raise PlaitError("second derivatives on time ranks are not supported: use one process, or data ranks.")
            shapes = call.shapes(x, tensors)
            d_outputs = [
                x.new_zeros(shape) if d is None else d for d, shape in zip((d_rows, *d_finals), shapes, strict=True)
            ]
            request = Request(call, needs, len(tensors), len(kept))
            return None, *request.spread(RecurrenceVJP.apply(request, x, *tensors, *kept, *d_outputs))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise no_jvp(ctx.call.engine)

    @staticmethod
    def vmap(info: Any, in_dims: Any, traced: Traced, *_: Any) -> NoReturn:
        raise no_vmap(traced.call.engine)


@dataclass(frozen=True)
class Request:
    """How to split the arguments of RecurrenceVJP: first the tensors, then what was kept, then d_outputs."""

    call: Call
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
        return request.chosen(run_vjp(request.call, x, tensors, kept, d_outputs[0], d_outputs[1:], request.needs))

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

        with without_autocast(dd[0].device):
            result = torch.func.vjp(derivative, *ctx.saved_tensors)[1](dd)
        nothing = [None] * request.kept  # no gradient: they depend on the inputs, whose gradient includes them
        return None, *result[:k], *nothing, *result[k:]

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise PlaitError("jvp through the derivative of a recurrent layer is not supported: use reverse mode twice.")

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: Request, *_: Any) -> NoReturn:
        raise no_vmap(request.call.engine)


def apply(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """-> rows (., directions*P), *last states (directions, B, .), differentiable"""
    global _undisturbed
    if "torch._dynamo" not in sys.modules:
        return _apply(call, x, tensors)
    if _undisturbed is None:  # after a graph break dynamo would compile the functions of the engines
        _undisturbed = torch.compiler.disable(_apply)
    return _undisturbed(call, x, tensors)


def _apply(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    if torch._C._is_tracing():
        raise PlaitError("torch.jit.trace cannot record plait's kernels: plait.restore(model) first, then trace it.")
    if call.engine == "torch" and why_untraceable(call.cell) is not None:
        if call.solver.sweeps:
            raise PlaitError(f"solver {call.solver}: {why_untraceable(call.cell)} Use plait.Serial() for it.")
        with without_autocast(x.device):
            return differentiable(call, x, tensors)
    if not in_functorch():
        if not is_recorded(x, tensors):
            rows, finals, _ = run(call, x, tensors, keep=False)
            return rows, *finals
        # Function.apply inspects the signature of forward each time, for functorch. That takes a tenth of a small step
        result: tuple[Tensor, ...] = plainly(Traced(call, spendable=True), x, *tensors)
    else:
        result = Recurrence.apply(Traced(call, spendable=False), x, *tensors)  # every level of it has the same tape
    return result


def is_recorded(x: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether a derivative may be needed."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(t.requires_grad for t in tensors)


plainly = super(torch.autograd.Function, Recurrence).apply
in_functorch: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_undisturbed: Callable[..., tuple[Tensor, ...]] | None = None
