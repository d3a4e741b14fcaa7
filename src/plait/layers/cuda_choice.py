"""On a CUDA device: version 4, or torch's own layer? `auto` compares them once for a shape, and keeps to the faster.

Lengths and batches are counted in powers of two: a new length of text is no new shape. A run keeps its choices in its
config.json, and goes on with them: the order of sums depends on them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .. import engines
from ..errors import say_once
from ..kernels.cuda.gpu import TorchDevice
from .autograd import is_autocast, without_autocast
from .call import SERIAL
from .tensor_kinds import are_readable

CHOICES: dict[str, str] = {}  # shape -> engine
REPEATS = 5


def engine_for(layer: Any, chosen: str, input: Any, weight: Tensor) -> str:
    """The engine of a call on a CUDA device, where `chosen` is what the names alone decide."""
    from ..engines.cuda_blocks import why_too_wide  # most programs never come here

    wide = why_too_wide(max(layer.hidden_size, layer.proj_size))
    if layer.engine == "cuda" and wide:
        instead = "own layer runs" if layer._plait_cell.mode is not None else "operators run, step by step,"
        say_once(f"engine cuda: {wide}: torch's {instead} instead.")
        return "torch"
    if layer.engine != "auto" or wide or torch.compiler.is_compiling() or not are_readable((weight,)):
        return chosen
    cell = layer._plait_cell
    if engines.get("cuda").why_not(cell, weight.dtype, weight.device) is not None:
        return chosen
    if cell.mode is None or layer.solver != SERIAL:
        return "cuda"  # torch has no layer for it, only steps
    T, B = extent(input, layer.batch_first)
    if not T * B:
        return chosen
    device, passes = TorchDevice(weight.device), "forward and backward" if torch.is_grad_enabled() else "forward"
    passes += ", autocast" if is_autocast(weight.device) else ""
    shape = f"{shape_of(layer, T, B)}, {passes}, {device.name}"
    return fastest(device, shape, lambda: contenders(layer, T, B, weight))


def extent(input: Any, batch_first: bool) -> tuple[int, int]:
    """T, B; zeros if it is no input of a layer at all, which the layer says."""
    if isinstance(input, PackedSequence):
        return len(input.batch_sizes), int(input.batch_sizes[0])
    if input.dim() == 2:
        return input.shape[0], 1
    if input.dim() != 3:
        return 0, 0
    return (input.shape[1], input.shape[0]) if batch_first else (input.shape[0], input.shape[1])


def shape_of(layer: nn.RNNBase, T: int, B: int) -> str:
    T, B = (1 << (max(n, 1) - 1).bit_length() for n in (T, B))
    options = f"{layer.num_layers} x {2 if layer.bidirectional else 1}, bias {layer.bias}, projection {layer.proj_size}"
    return f"{layer.mode} {B},{T},{layer.input_size},{layer.hidden_size}, {options}"


def fastest(device: TorchDevice, shape: str, runs: Callable[[], Mapping[str, Callable[[], object]]]) -> str:
    if shape not in CHOICES:
        some = runs()
        for run in some.values():
            run()  # compiles it
        seconds = {name: device.seconds(run, REPEATS) for name, run in some.items()}
        CHOICES[shape] = min(seconds, key=lambda name: seconds[name])
    return CHOICES[shape]


def contenders(layer: Any, T: int, B: int, weight: Tensor) -> dict[str, Callable[[], object]]:
    """Forward and backward, if something is trained; random numbers are not used up."""
    shape = (B, T, layer.input_size) if layer.batch_first else (T, B, layer.input_size)
    x = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
    trained = [p for p in layer.parameters() if p.requires_grad] if torch.is_grad_enabled() else []

    def run(forward: Callable[[Tensor, None], tuple[Tensor, Any]]) -> None:
        devices = [weight.device] if weight.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.set_grad_enabled(bool(trained)):
            y, _ = forward(x, None)
            if trained:
                torch.autograd.grad(y.sum(), trained, allow_unused=True)

    def exactly(x: Tensor, hx: None) -> tuple[Tensor, Any]:
        with without_autocast(weight.device):
            result: tuple[Tensor, Any] = layer._plait_run(layer._plait_cell, "cuda", x, hx)
        return result

    return {"cuda": lambda: run(exactly), "torch": lambda: run(layer._plait_native)}
