"""One step a call, without gradients: a module that takes many remembers what the last one was bound to."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..engines.bound import Bound
from .call import Call
from .pinned import Block
from .tensor_kinds import are_plain


class LastStep(NamedTuple):
    """Of a module. It is not copied with it, nor saved."""

    step: Bound
    block: Block | None  # of `plait.packed`
    settings: tuple[Any, ...]  # of the module

    def __deepcopy__(self, memo: object) -> None:
        return

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def again(
        self, block: Block | None, settings: tuple[Any, ...], input: Any, hx: Any, weights: Sequence[Any]
    ) -> list[Tensor] | None:
        """The results, if this call is like the last one; else None, and the call goes its ordinary way."""
        if block is not self.block or settings != self.settings or is_disturbed():
            return None
        if block is not None and not block.is_open:
            return None
        tensors = (input,) if hx is None else (input, *hx) if isinstance(hx, tuple | list) else (input, hx)
        if not are_plain(tensors) or not are_plain(weights):
            return None
        return self.step.run(tensors, weights)


def is_disturbed() -> bool:
    """Whether a derivative may be wanted, or something other than the module decides how it runs."""
    return (
        torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
    )


def last_step(
    call: Call,
    settings: tuple[Any, ...],
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> LastStep | None:
    """What a call leaves to the next one. tensors: x and the initial states, as the user gave them"""
    plan, layout = call.plan, call.layout
    if plan is None or is_disturbed() or not are_plain((*tensors, *weights)):
        return None
    pins: Any = call.in_block([*tensors[1:], *weights])
    if bool(pins) != plan.key.pinned:  # another thread has closed the block
        return None
    step = plan.bound(layout, tensors, outputs, weights, pins)
    return None if step is None else LastStep(step, call.block, settings)
