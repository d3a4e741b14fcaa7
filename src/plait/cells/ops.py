"""The functions of a step (base.FUNCTIONS) for floats, NumPy arrays and torch tensors.

All three treat the ends as torch does: NaN stays NaN, exp(-inf) = 0, log(0) = -inf, log(-1) = sqrt(-1) = NaN.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

INF, NAN = math.inf, math.nan


class Floats:
    tanh = staticmethod(math.tanh)
    abs = staticmethod(abs)

    def like(self, x: Any) -> "Floats":
        return self

    @staticmethod
    def sigmoid(x: float) -> float:
        if x >= 0:
            return 1.0 / (1.0 + math.exp(-x))
        e = math.exp(x)  # exp of the negative side only: it cannot overflow
        return e / (1.0 + e)

    @staticmethod
    def relu(x: float) -> float:
        return x if x > 0 or x != x else 0.0

    @staticmethod
    def exp(x: float) -> float:
        return INF if x > 709.8 else math.exp(x)

    @staticmethod
    def log(x: float) -> float:
        return math.log(x) if x > 0 else -INF if x == 0 else NAN

    @staticmethod
    def sqrt(x: float) -> float:
        return NAN if x < 0 else math.sqrt(x)

    @staticmethod
    def softplus(x: float) -> float:
        return (x if x > 0 else 0.0) + math.log1p(math.exp(-abs(x)))

    @staticmethod
    def maximum(a: float, b: float) -> float:
        return a if a > b or a != a else b

    @staticmethod
    def minimum(a: float, b: float) -> float:
        return a if a < b or a != a else b

    @staticmethod
    def where(condition: bool, a: float, b: float) -> float:
        return a if condition else b

    @staticmethod
    def full(x: float, number: float) -> float:
        return number


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's, without its warnings about infinity and NaN."""

    def run(x: Any) -> Any:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return function(x)

    return run


class Arrays:
    tanh, abs = staticmethod(np.tanh), staticmethod(np.abs)
    exp, log, sqrt = (staticmethod(quiet(function)) for function in (np.exp, np.log, np.sqrt))
    maximum, minimum, where = staticmethod(np.maximum), staticmethod(np.minimum), staticmethod(np.where)
    full = staticmethod(np.full_like)

    def like(self, x: Any) -> "Arrays":
        return self

    @staticmethod
    def sigmoid(x: Any) -> Any:
        e = np.exp(-np.abs(x))  # of the negative side only, as above
        return np.where(x >= 0, 1.0, e) / (1.0 + e)

    @staticmethod
    def relu(x: Any) -> Any:
        return np.maximum(x, 0.0)

    @staticmethod
    def softplus(x: Any) -> Any:
        return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def either(name: str, function: Callable[..., Any]) -> Any:
    """torch's function, for plain numbers as well."""

    def run(*args: Any) -> Any:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not tensors:
            return getattr(floats, name)(*args)
        if len(tensors) < len(args):
            return function(*(a if isinstance(a, Tensor) else tensors[0].new_tensor(a) for a in args))
        return function(*args)

    return staticmethod(run)


def softplus(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x, 1.0, 40.0)  # torch's own end, 20, is felt in float64


@dataclass(frozen=True)
class Tensors:
    dtype: torch.dtype | None = None  # of numbers that meet no tensor; else torch's default

    sigmoid, tanh, relu = (either(name, getattr(torch, name)) for name in ("sigmoid", "tanh", "relu"))
    exp, log, sqrt, abs = (either(name, getattr(torch, name)) for name in ("exp", "log", "sqrt", "abs"))
    maximum, minimum = (either(name, getattr(torch, name)) for name in ("maximum", "minimum"))
    softplus, full = either("softplus", softplus), staticmethod(torch.full_like)

    def like(self, x: Any) -> "Tensors":
        return self if x.dtype is self.dtype else Tensors(x.dtype)

    def where(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        if not isinstance(a, Tensor) and not isinstance(b, Tensor):
            a = torch.tensor(a, dtype=self.dtype, device=condition.device)
        return torch.where(condition, a, b)


floats, arrays, tensors = Floats(), Arrays(), Tensors()
