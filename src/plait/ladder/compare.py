"""What a layer computes, and how far two results are apart."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..layers import Recurrent

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative: max|a - b| / max|b|, tensor by tensor
# of bfloat16, from the same roundings of exact sums: one number was rounded the other way (docs/precision.md)
ONE_ROUNDING = 2.0**-8


def relative(found: Tensor, expected: Tensor) -> float:
    """max|found - expected| / max|expected|; other shapes and NaN: infinite."""
    if found.shape != expected.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    difference = (found.detach().double() - expected.detach().double()).abs().max().item()
    scale = expected.detach().abs().max().item()
    ratio = difference / scale if scale else difference
    return ratio if ratio == ratio else float("inf")


def worst(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max((relative(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


def outputs_and_gradients(
    layer: nn.Module,
    x: Tensor | PackedSequence,
    hx: Sequence[Tensor] | None,
    lengths: Tensor | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Outputs, last states, and the gradients of a random loss."""
    data = (x.data if isinstance(x, PackedSequence) else x).detach().requires_grad_()
    given: Any = x._replace(data=data) if isinstance(x, PackedSequence) else data
    states = None if hx is None else [s.detach().requires_grad_() for s in hx]
    hidden = None if states is None else tuple(states) if len(states) > 1 else states[0]
    parameters = {name: p.detach().requires_grad_() for name, p in layer.named_parameters()}
    more = {} if lengths is None else {"lengths": lengths}
    y, last = torch.func.functional_call(layer, parameters, (given, hidden), more)
    outputs = [y.data if isinstance(y, PackedSequence) else y, *(last if isinstance(last, tuple) else (last,))]
    generator = torch.Generator().manual_seed(seed)
    d_outputs = [torch.randn(o.shape, generator=generator, dtype=o.dtype).to(o.device) for o in outputs]
    inputs = {"x": data, **{f"hx{k}": s for k, s in enumerate(states or [])}, **parameters}
    gradients = torch.autograd.grad(outputs, list(inputs.values()), d_outputs, allow_unused=True)
    result = {f"output {k}": o for k, o in enumerate(outputs)}
    for (name, value), d in zip(inputs.items(), gradients, strict=True):
        result[f"d_{name}"] = torch.zeros_like(value) if d is None else d
    return result


def deviation(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    if found.keys() != expected.keys():
        raise ValueError(f"two layers with the same parameters were expected, not {list(found)} and {list(expected)}.")
    return max((relative(found[name], expected[name]), name) for name in expected)


def with_engine(layer: Recurrent, engine: str) -> Recurrent:
    other = copy.deepcopy(layer)
    other.engine = engine
    return other
