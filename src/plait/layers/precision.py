"""In which precision a layer multiplies, and in which type its results are.

The weights say it, or `precision=` of the layer, or torch.autocast around the call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..errors import PlaitError, say_once
from .arguments import converted, states_of
from .autograd import is_autocast, without_autocast

PRECISIONS = ("float32", "bf16")  # "float32": not rounded, whatever autocast says; float64 weights stay float64
NATIVE = (torch.float32, torch.float64)  # types of weights that the engines compute in as they are


class Precision(NamedTuple):
    """Of a call."""

    rounded: bool  # operands of products are rounded to bfloat16
    type: torch.dtype  # of all tensors that an engine gets
    results: tuple[torch.dtype, ...]  # of the output and of each state
    is_autocast: bool  # then the arguments may have any type

    def inside(self, x: Any, hx: Any, own: torch.dtype) -> tuple[Any, Any]:
        """The arguments in the type of the weights. Outside of autocast they must have it already."""
        return (converted(x, own), converted(hx, own)) if self.is_autocast else (x, hx)

    def outside(self, y: Any, state: Any) -> tuple[Any, Any]:
        """The results in the types that the caller is promised."""
        states = state if isinstance(state, tuple) else (state,)
        found = tuple(s.to(kind) for s, kind in zip(states, self.results[1:], strict=True))
        return y.to(self.results[0]), found if isinstance(state, tuple) else found[0]


def check_precision(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in PRECISIONS):
        raise PlaitError(
            f"precision {value!r}: expected 'bf16', 'float32', or None for what the weights and autocast say."
        )
    return value


def is_ordinary(precision: str | None, weight: Tensor) -> bool:
    """Whether the layer computes in the type of its weights, and nothing has to be converted."""
    return precision in (None, "float32") and weight.dtype in NATIVE and not is_autocast(weight.device)


def in_own_precision(
    precision: str | None, weight: Tensor, forward: Callable[..., Any], x: Any, hx: Any, *more: Any
) -> Any:
    """torch's own layer or cell; not under autocast if precision="float32"."""
    if precision is None or not is_autocast(weight.device):
        return forward(x, hx, *more)
    with without_autocast(weight.device):
        return forward(converted(x, weight.dtype), converted(hx, weight.dtype), *more)


def precision_of(layer: Any, engine: str, input: Any, hx: Any, weight: Tensor) -> Precision:
    """For engines of plait: torch's own layer does as torch says."""
    wish, own, device = check_precision(layer.precision), weight.dtype, weight.device.type
    count = 1 + len(layer._plait_cell.states)
    if wish == "bf16":
        check_possible(layer, engine, own, device)
    autocast = torch.get_autocast_dtype(device) if is_autocast(weight.device) else None
    if autocast is torch.float16:
        tell("autocast to float16: plait's layers do not round, use dtype=torch.bfloat16.")
    is_wanted = wish == "bf16" or own is torch.bfloat16 or (autocast is torch.bfloat16 and own is torch.float32)
    rounded = is_wanted and wish != "float32" and device == "cpu"
    if rounded and (engine != "fused" or cuts_time(layer)):
        what = f"solver {layer.solver}" if cuts_time(layer) else f"engine {engine}"
        tell(f"bfloat16: {what} computes in {str(own)[6:]}, only engine fused with plait.Serial() rounds.")
        rounded = False
    kind = torch.float32 if own is torch.bfloat16 and engine == "fused" else own
    is_promised = rounded and autocast is torch.bfloat16
    results = types_under_autocast(layer, input, hx, own) if is_promised else (own,) * count
    return Precision(rounded, kind, results, autocast is not None)


def types_under_autocast(layer: Any, input: Any, hx: Any, own: torch.dtype) -> tuple[torch.dtype, ...]:
    """Those of torch: bfloat16 for an RNN and, unless it is packed, for an LSTM; else the type of the initial state, or
    without one that of the input. With a projection, h of an LSTM is always bfloat16, and c never by itself.
    """
    is_packed, count = isinstance(input, PackedSequence), 1 + len(layer._plait_cell.states)
    given = (input.data if is_packed else input).dtype if hx is None else states_of(hx)[-1].dtype
    given = given if given in (torch.bfloat16, torch.float32) else torch.float32
    low = torch.bfloat16
    if isinstance(layer, nn.RNN | nn.RNNCell):
        return (low,) * count
    if isinstance(layer, nn.LSTM) and (layer.proj_size or not is_packed):
        return low, low, given if layer.proj_size else low
    return (given,) * count


def check_possible(layer: Any, engine: str, own: torch.dtype, device: str) -> None:
    """What was asked for by name is done, or refused."""
    if own is torch.float64:
        raise PlaitError("precision 'bf16' of a layer in torch.float64: expected float32 weights, use layer.float().")
    if device != "cpu":
        raise PlaitError(f"precision 'bf16' of a layer on {device}: expected the CPU, use torch.autocast('{device}').")
    if engine != "fused":
        raise PlaitError(f"precision 'bf16' with engine '{engine}': expected engine='fused', or torch.autocast.")
    if cuts_time(layer):
        raise PlaitError(f"precision 'bf16' with solver {layer.solver}: expected solver=plait.Serial().")


def tell(sentence: str) -> None:
    """Code that is being compiled cannot warn."""
    if not torch.compiler.is_compiling():
        say_once(sentence)


def cuts_time(layer: Any) -> bool:
    """Whether it has a solver that does. Cells have none."""
    return getattr(layer, "solver", None) is not None and layer.solver.sweeps
