"""Which tensors a kernel can read: those with memory. Others only stand for tensors."""

from collections.abc import Iterable

import torch
from torch import Tensor

FAKE = torch._C._TorchDispatchModeKey.FAKE
PLAIN = Tensor.__torch_dispatch__


def are_readable(tensors: Iterable[Tensor]) -> bool:
    """False of those whose operators are Python, such as FakeTensor, and where all new tensors are fake."""
    if torch._C._get_dispatch_mode(FAKE) is not None:
        return False
    return all(type(t).__torch_dispatch__ is PLAIN for t in tensors)


def are_mapped(tensors: Iterable[Tensor | None]) -> bool:
    """Whether one of them stands for several at once: within vmap, and for is_grads_batched=True."""
    return not all(t is None or torch._C._has_storage(t) for t in tensors)
