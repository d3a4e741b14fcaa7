"""Layers, with all their directions, as one differentiable function.

The engine computes the first derivative. For higher ones (`create_graph=True`), and for gradients that a kernel cannot
read (tensor_kinds.py), the same step runs on torch's operators, and autograd differentiates those.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..cells import Cell
from ..cells.trace import why_untraceable
from ..errors import PlaitError
from .call import Call
from .tensor_kinds import are_mapped, are_plain, are_readable

NOTHING = nullcontext()


def is_autocast(device: torch.device) -> bool:
    kind = device.type
    return (kind == "cpu" or torch.amp.is_autocast_available(kind)) and torch.is_autocast_enabled(kind)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Engines compute in the precision of the weights, and in no other."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else NOTHING


def no_vmap(engine: str, cell: type[Cell]) -> PlaitError:
    other = "" if engine == "torch" or cell.mode is None else ", or map gradients, vmap(grad(...)), with engine='torch'"
    return PlaitError(
        f"vmap over a recurrent layer is not supported: engine '{engine}' has a batch axis of its own. "
        f"Put the mapped axis into the batch axis instead{other}."
    )


def no_jvp(engine: str) -> PlaitError:
    return PlaitError(f"jvp: engine '{engine}' differentiates this layer in reverse only: use torch.func.vjp or grad.")


def no_trace(tool: str, cell: type[Cell]) -> PlaitError:
    todo = "use torch.export" if cell.mode is None else "plait.restore(model) first"
    return PlaitError(f"{tool} cannot record plait's kernels: {todo}.")


def check_alone(call: Call, what: str) -> None:
    """torch's operators know of no other process."""
    if any(visit.link is not None for visit in call.visits):
        raise PlaitError(f"{what} on time ranks are not supported: use one process, or data ranks.")


class Recurrence(torch.autograd.Function):
    """(call, x, *tensors) -> rows, *last states"""

    @staticmethod
    def forward(call: Call, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        rows, finals, call.kept = call.run(x, tensors)
        return rows, *finals

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, *given = inputs
        ctx.call, ctx.end = call, len(given)
        # Whether the first backward pass may write over what is kept. A call in stretches does not.
        ctx.spent, ctx.spendable = False, not (call.is_shared or call.steps)
        ctx.save_for_backward(*given, *call.kept)
        ctx.set_materialize_grads(False)
        if not call.is_shared:
            call.kept = ()

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        call, needs, saved = ctx.call, ctx.needs_input_grad[1:], ctx.saved_tensors
        x, tensors, kept = saved[0], saved[1 : ctx.end], saved[ctx.end :]
        once = not torch.is_grad_enabled()  # else create_graph=True: the derivative must be differentiable, too
        if once and not ctx.spent and ctx.spendable and are_plain(d_outputs) and not torch.is_autocast_enabled("cpu"):
            ctx.spent = True
            return None, *call.run_vjp(x, tensors, kept, d_outputs, needs, spend=True)
        return general_backward(ctx, x, tensors, kept, d_outputs, needs)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise no_jvp(ctx.call.engine)

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *_: Any) -> NoReturn:
        raise no_vmap(call.engine, call.cell)


def general_backward(
    ctx: Any,
    x: Tensor,
    tensors: Sequence[Tensor],
    kept: Sequence[Tensor],
    d_outputs: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients that are differentiated again, or that no kernel can read; a second pass through the same graph."""
    call, once = ctx.call, not torch.is_grad_enabled()
    with without_autocast(x.device):
        if are_mapped(d_outputs) or not are_readable(d_outputs):
            check_alone(call, "mapped, fake and recorded gradients")
            d = call.filled(x, d_outputs)
            return None, *call.vjp_on_operators(x, tensors, call.masks(kept, x), d, needs)
        spent, ctx.spent = ctx.spent, ctx.spent or (once and ctx.spendable)
        if spent:  # the first backward pass has overwritten what was kept; retain_graph=True allows another
            with torch.no_grad():
                kept = call.run(x, tensors, masks=call.masks(kept, x))[2]
        if once:
            return None, *call.run_vjp(x, tensors, kept, d_outputs, needs, spend=ctx.spendable)
        check_alone(call, "second derivatives")
        request = Request(call, needs, len(tensors), len(kept))
        d = call.filled(x, d_outputs)
        return None, *request.spread(RecurrenceVJP.apply(request, x, *tensors, *kept, *d))


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
        return request.chosen(request.call.run_vjp(x, tensors, kept, d_outputs, request.needs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.request, x, *rest = inputs
        tensors, kept, d_outputs = ctx.request.split(rest)
        masks = ctx.request.call.masks(kept, x)
        ctx.masks = len(masks)
        ctx.save_for_backward(*masks, x, *tensors, *d_outputs)

    @staticmethod
    def backward(ctx: Any, *dd: Tensor) -> tuple[Tensor | None, ...]:
        request, k, call = ctx.request, 1 + ctx.request.tensors, ctx.request.call
        masks, given = ctx.saved_tensors[: ctx.masks], ctx.saved_tensors[ctx.masks :]

        def derivative(*args: Tensor) -> tuple[Tensor, ...]:
            found = call.vjp_on_operators(args[0], args[1:k], masks, args[k:], request.needs)
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
        raise no_vmap(request.call.engine, request.call.cell)


def apply(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """-> rows (., directions*P), *last states (layers*directions, B, .), differentiable"""
    if torch._C._is_tracing():
        raise no_trace("torch.jit.trace", call.cell)
    if call.engine == "torch" and why_untraceable(call.cell) is not None:
        if call.solver.sweeps:
            raise PlaitError(f"solver {call.solver}: {why_untraceable(call.cell)} Use plait.Serial() for it.")
        with without_autocast(x.device):
            return call.differentiable(x, tensors)
    if in_functorch():
        call.is_shared = True
        result: tuple[Tensor, ...] = Recurrence.apply(call, x, *tensors)
        return result
    if (
        torch.is_grad_enabled() and (x.requires_grad or True in map(learns, tensors))
    ) or forward_ad._current_level >= 0:
        return apply_plainly(call, x, *tensors)
    rows, finals, _ = call.run(x, tensors, keep=False)
    return rows, *finals


def is_recorded(x: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether a derivative may be needed."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and (x.requires_grad or any(t.requires_grad for t in tensors))


learns = attrgetter("requires_grad")
in_functorch: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
# Function.apply inspects the signature of forward at each call, which only torch.func needs
apply_plainly: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, Recurrence).apply


@cache
def undisturbed() -> Callable[..., tuple[Tensor, ...]]:
    """`apply` for a process that has imported dynamo: after a graph break it would compile the functions of engines."""
    found: Callable[..., tuple[Tensor, ...]] = torch.compiler.disable(apply)
    return found
