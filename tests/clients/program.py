"""What is measured of a client: a model of its own, one training step and one inference, as its users write them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
Accelerate = Callable[[nn.Module], nn.Module]  # plait.accelerate, or what leaves a model as it is


@dataclass(frozen=True)
class Program:
    """What `build(case, accelerate)` of each `with_NAME.py` returns."""

    model: nn.Module
    train: Callable[[], float]  # one training step -> its loss
    infer: Callable[[], Tensor]


def recurrent(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, RECURRENT)]


def is_plaits(module: nn.Module) -> bool:
    return any(cls.__module__.startswith("plait.") for cls in type(module).__mro__)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same lists, tuples, dicts and packed sequences, of other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, PackedSequence):
        return value._replace(data=change(value.data))
    if isinstance(value, dict):
        return {key: mapped(v, change) for key, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(mapped(v, change) for v in value)
    return value
