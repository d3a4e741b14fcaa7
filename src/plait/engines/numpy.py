"""NumPy, vectorised over the batch: the second rung of the ladder."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cells import Cell
from ..cells.ops import arrays
from ..cells.trace import why_untraceable
from .stepwise import Stepwise


class NumpyEngine(Stepwise):
    name, about, ops = "numpy", "NumPy, one step after another, vectorised over the batch", arrays

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"numpy runs on the CPU, the layer is on {device}: use engine='torch' there."
        if dtype not in (torch.float32, torch.float64):
            return f"numpy runs float32 and float64, the layer is {dtype}: convert it, or use engine='torch'."
        return why_untraceable(cell)

    def array(self, tensor: Tensor) -> Any:
        return tensor.detach().numpy()

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.from_numpy(self.product(self.array(a), self.array(b)))

    def product(self, a: Any, b: Any) -> Any:
        """Without NumPy's warning of invalid numbers. OpenBLAS reads memory that nothing has written, behind a column
        of 5 numbers (AVX-512, float32). It uses none of it, but NumPy warns if it was no number.
        """
        with np.errstate(invalid="ignore"):
            return a @ b
