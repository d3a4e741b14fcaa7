"""Which tensors a kernel can read: those with memory of their own. Others only stand for numbers.

Nor may it read any while make_fx records: that sees torch's operators only, and would miss what the kernel did.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch

FAKE_MODE, RECORDING = torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY
ABOVE_AUTOGRAD = torch._C.DispatchKey.PreDispatch
PLAIN = frozenset((Tensor, nn.Parameter, type(None)))
IN_CPP = Tensor.__torch_dispatch__  # of tensors whose operators are not Python


def are_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Whether they are ordinary tensors, in no mode that makes or records others: a quick answer for most calls."""
    if torch._C._len_torch_dispatch_stack() or functorch.maybe_current_level() is not None:
        return False
    if torch._C._dispatch_tls_is_dispatch_key_included(ABOVE_AUTOGRAD):
        return False
    for t in tensors:  # noqa: SIM110  # no generator: it would cost a call for each tensor
        if type(t) not in PLAIN or (t is not None and functorch.is_legacy_batchedtensor(t)):
            return False
    return True


def are_readable(tensors: Iterable[Tensor | None]) -> bool:
    """False for fake tensors and for wrappers, where all new tensors are fake, and while make_fx records."""
    if torch._C._get_dispatch_mode(FAKE_MODE) is not None or is_recording():
        return False
    return all(t is None or type(t).__torch_dispatch__ is IN_CPP or has_memory(t) for t in tensors)


def is_recording() -> bool:
    """Whether make_fx records what this thread does, above autograd (pre_dispatch=True) or below it."""
    if torch._C._get_dispatch_mode(RECORDING) is not None:
        return True
    # The mode above autograd is one for all threads; the key is set in the thread that records.
    if not torch._C._dispatch_tls_is_dispatch_key_included(ABOVE_AUTOGRAD):
        return False
    return torch._ops._get_dispatch_mode_pre_dispatch(RECORDING) is not None


def has_memory(t: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor  # slow to import, and there already if there are such tensors

    if isinstance(t, FakeTensor):
        return False
    try:
        return t.data_ptr() != 0
    except RuntimeError:
        return False


def are_mapped(tensors: Iterable[Tensor | None]) -> bool:
    """Whether one of them is several at once: within vmap, and for is_grads_batched=True."""
    return any(t is not None and is_mapped(t) for t in tensors)


def is_mapped(t: Tensor) -> bool:
    while functorch.is_gradtrackingtensor(t):
        t = functorch.get_unwrapped(t)
    return functorch.is_batchedtensor(t) or functorch.is_legacy_batchedtensor(t)
