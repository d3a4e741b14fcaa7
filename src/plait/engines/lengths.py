"""The layout of a padded batch, from the lengths of its sequences: computed by a kernel in one pass."""

import ctypes
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..errors import PlaitError
from ..kernels import pool
from ..kernels.launch import compiler
from ..kernels.records import Padded
from ..layout import Layout, Padding, check_lengths


def padded_layout(lengths: Any, T: int, B: int, batch_first: bool) -> Layout:
    """lengths: of the user, in any order"""
    given = lengths
    if type(given) is Tensor and given.dtype is torch.int64 and given.shape == (B,) and given.is_cpu:
        given = given.resolve_neg().clone(memory_format=torch.contiguous_format)  # another thread may change it
    else:
        given = torch.from_numpy(check_lengths(lengths, T, B))
    if type(given) is not Tensor:  # nothing has numbers here, as in a FakeTensorMode
        check_lengths(given, T, B)
        raise PlaitError("lengths without numbers: call the layer outside of a mode that makes fake tensors.")
    counts = (B, 2 * B, B, T + 1, T + 1, T * B, T * B, T * B)  # of the arrays, as records.Padded has them
    starts = list(accumulate(counts, initial=Padded.SIZE))
    memory = pool.empty(given, starts[-1])
    at = memory.data_ptr()
    lay_out()(given.data_ptr(), T, B, batch_first, at)
    N, steps = int(memory[Padded.N]), int(memory[Padded.STEPS])
    if N < 0:
        check_lengths(given, T, B)  # it says what is wrong
    order, inverse, ordered, sizes, bounds, places, sources, before = starts[:-1]
    layout = Layout(
        steps,
        B,
        memory[sizes : sizes + steps],
        N=N,
        is_dense=steps * B == N,
        permutation=memory[order : order + B],
        inverse=memory[inverse : inverse + B],
        lengths=memory[ordered : ordered + B].numpy(),
        bounds=memory[bounds : bounds + steps + 1],
        padding=Padding(
            (B, T) if batch_first else (T, B),
            memory[places : places + N],
            memory[order : order + B],
            memory[inverse : inverse + B],
            (T * B, at + 8 * places, at + 8 * sources, at + 8 * inverse),
        ),
    )
    layout.cache["rows before", False] = memory[before : before + N]
    return layout


@cache
def lay_out() -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(compiler.shared()["plait_lay_out"])
