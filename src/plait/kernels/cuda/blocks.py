"""The text of block_text.py compiled by Triton, for tensors that are on the device. Nothing is copied.

With TRITON_INTERPRET=1 Triton's interpreter runs it, without a device.
"""

import linecache
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .block_text import SIZES, text_of
from .form import Form
from .gpu import interpreted

SAMPLES = 16  # of a block: the least that a tensor core takes
LEAST, MOST = 16, 32  # units of a tile
MOST_UNITS = 512  # beyond it every block reads too many weights at each step: cuDNN shares them out among all
WARPS = 4
MOST_KERNELS = 512


class Tiles(NamedTuple):
    """How a kernel is cut for a layer and an architecture."""

    BB: int
    BN: int
    BK: int
    PRECISION: str  # of the products
    num_warps: int = WARPS
    num_stages: int = 2
    maxnreg: int = 255  # registers of a thread, all that there are: there are few blocks, and nothing may spill


def tiles(H: int, capability: tuple[int, int]) -> Tiles:
    """tf32x3: three products on the tensor cores that together are as exact as one in float32."""
    width = min(MOST, max(LEAST, 1 << (H - 1).bit_length()))
    if capability < (8, 0):
        return Tiles(SAMPLES, width, width, "ieee", 2 * WARPS)  # without tensor cores a product takes more registers
    warps = WARPS if H % SAMPLES == 0 else 2 * WARPS  # and so do rows that do not begin at round addresses
    return Tiles(SAMPLES, width, width, "tf32" if tf32_is_allowed() else "tf32x3", warps)


def tf32_is_allowed() -> bool:
    """By torch's own switch for products, in its newer form or in the older one. (They must not be mixed.)"""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return bool(torch.backends.cuda.matmul.allow_tf32) if precision is None else precision == "tf32"


class Kernel:
    def __init__(self, form: Form, kind: str) -> None:
        text, self.arrays = text_of(form, kind)
        name = f"<plait {form.cell.name} {kind} {id(self):x}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # Triton reads the text there
        scope: dict[str, Any] = {"__name__": name}
        exec(compile(text, name, "exec"), scope)
        self.function = scope["kernel"]

    def run(self, sizes: tuple[int, ...], tensors: Mapping[str, Tensor], cut: Tiles) -> None:
        """sizes: T, B, N, H, P"""
        assert len(sizes) == len(SIZES)
        blocks = -(-sizes[1] // cut.BB)
        options = cut._asdict()
        if interpreted():
            options = {name: options[name] for name in ("BB", "BN", "BK", "PRECISION")}
        self.function[(blocks,)](*sizes, *(tensors[name] for name in self.arrays), **options)


kernel = lru_cache(MOST_KERNELS)(Kernel)
