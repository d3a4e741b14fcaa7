"""sigmoid, tanh, relu and masked for floats, NumPy arrays and torch tensors."""

import math
from typing import Any

import numpy as np
import torch


class Floats:
    tanh = staticmethod(math.tanh)

    @staticmethod
    def sigmoid(x: float) -> float:
        if x >= 0:
            return 1.0 / (1.0 + math.exp(-x))
        e = math.exp(x)  # exp of the negative side only: it cannot overflow
        return e / (1.0 + e)

    @staticmethod
    def relu(x: float) -> float:
        return x if x > 0 or x != x else 0.0  # NaN stays NaN, as in torch

    @staticmethod
    def masked(d: float, x: float) -> float:
        return 0.0 if x <= 0 else d  # NaN passes, as in torch


class Arrays:
    tanh = staticmethod(np.tanh)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        e = np.exp(-np.abs(x))  # likewise
        return np.where(x >= 0, 1.0, e) / (1.0 + e)

    @staticmethod
    def relu(x: Any) -> Any:
        return np.maximum(x, 0.0)

    @staticmethod
    def masked(d: Any, x: Any) -> Any:
        return np.where(x <= 0, 0.0, d)


class Tensors:
    sigmoid = staticmethod(torch.sigmoid)
    tanh = staticmethod(torch.tanh)
    relu = staticmethod(torch.relu)

    @staticmethod
    def masked(d: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x <= 0, 0.0, d)


floats, arrays, tensors = Floats(), Arrays(), Tensors()
