"""CUDA, version 4, ours: tensors of the device, one launch for all steps (kernels/cuda/blocks.py)."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.trace import trace, why_untraceable
from ..errors import PlaitError
from ..kernels.cuda.blocks import MOST_UNITS, SAMPLES, kernel, tiles
from ..kernels.cuda.gpu import enough_memory, why_no_triton
from ..layout import Layout
from .base import Prepared, Weights
from .one_launch import Job, OneLaunch, weight_tensors


class BlocksEngine(OneLaunch):
    name, about = "cuda:v4", "Triton: one launch for all steps, a block for each 16 samples; CUDA tensors, float32"

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        if dtype != torch.float32:
            return f"{self.name} runs float32, the layer is {dtype}: use engine='torch'."
        return why_untraceable(cell) or why_no_triton(device)

    def prepare(self, cell: type[Cell], w: Weights, reverse: bool = False, *, lasting: bool = True) -> Prepared:
        p = Prepared(cell, w, reverse)
        if why := why_too_wide(max(p.H, p.P)):
            raise PlaitError(f"engine {self.name}: {why}: use engine='torch', or 'auto'.")
        return p

    def parts(self, B: int) -> int:
        """One for each block, so that the order of the sum is always the same."""
        return -(-B // SAMPLES)

    def launch(self, kind: str, p: Prepared, layout: Layout, job: Job) -> None:
        device = p.weights.w_hh.device
        tensors = {**weight_tensors(p.weights), **job.read, **job.both, **job.sums}
        tensors = {name: t.detach().contiguous() for name, t in tensors.items()}
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        sizes, cut = (layout.T, layout.B, layout.N, p.H, p.P), tiles(max(p.H, p.P), capability)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # Triton takes the current one
            kernel(job.form, kind).run(sizes, {**tensors, "starts": starts_of(layout, device)}, cut)

    # --- a layer: memory that is missing is missing somewhere in here
    def forward(self, ps: Sequence[Prepared], x: Tensor, *args: Any, **options: Any) -> Any:
        with enough_memory(needed(ps, x), x.device):
            return super().forward(ps, x, *args, **options)

    def backward(self, ps: Sequence[Prepared], x: Tensor, *args: Any, **options: Any) -> Any:
        with enough_memory(2 * needed(ps, x), x.device):
            return super().backward(ps, x, *args, **options)


def needed(ps: Sequence[Prepared], x: Tensor) -> int:
    """Bytes of a pass, of all directions: W x, what is saved of each step, states and outputs."""
    rows, cell = x.numel() // max(1, x.shape[-1]), ps[0].cell
    numbers = 2 * len(cell.gates) + trace(cell).extra + len(cell.states) + 1
    return len(ps) * rows * numbers * ps[0].H * x.element_size()


class CudaEngine(BlocksEngine):
    name, about = "cuda", f"cuda:v4; beyond {MOST_UNITS} units torch's own layer"


def why_too_wide(H: int) -> str | None:
    return None if H <= MOST_UNITS else f"its kernels take at most {MOST_UNITS} units, this layer has {H}"


def starts_of(layout: Layout, device: torch.device) -> Tensor:  # (T + 1,)
    """The first row of each step, and the end, on the device."""
    key = ("starts", device)
    if key not in layout.cache:
        dense = torch.arange(layout.T + 1, device=device) * layout.B if layout.is_dense else None
        layout.cache[key] = layout.bounds.to(device) if dense is None else dense
    found: Tensor = layout.cache[key]
    return found
