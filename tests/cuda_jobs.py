"""What processes of their own do for tests/cuda: there numba's simulator, or Triton's interpreter, is switched on.

python cuda_jobs.py JOB ... prints one line of JSON for each thing that was compared.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from plait import engines, layers
from plait.bench.cuda.launch import OneKernel
from plait.bench.cuda.versions import BLOCKS, SAMPLES
from plait.bench.ladder.problem import problem
from plait.bench.ladder.rungs import TORCH
from plait.bench.peers.contenders.network import WEIGHTS, Network
from plait.bench.questions import LadderOptions
from plait.cells import CELLS, Cell
from plait.engines import Layout, Weights
from plait.kernels.cuda import blocks
from plait.ladder.compare import deviation, outputs_and_gradients, with_engine, worst
from plait.ladder.rungs import layer_deviation
from some_cells import PeepholeLSTM

CPU = torch.device("cpu")
Line = dict[str, Any]


class EveryFunction(Cell):
    """All functions that a step may use."""

    gates, states, params = ("a", "b"), ("h", "k"), ("p",)

    def step(wx, rh, state, params, ops):
        (h, k), (p,) = state, params
        a, b = ops.softplus(wx[0] + rh[0] - 6), ops.relu(wx[1] + rh[1])
        a = ops.log(1 + ops.abs(a)) + ops.sqrt(1 + ops.exp(-b)) + p * ops.sigmoid(b)
        k = ops.where(a > b, ops.maximum(k, a), ops.minimum(h, b))
        return ops.tanh(a * k + 0.5 * h), 0.5 * k


def all_cells() -> list[type[Cell]]:
    return [*CELLS.values(), PeepholeLSTM, EveryFunction]


def small_layers(name: str) -> Iterator[Line]:
    """Two layers, both directions, dense and ragged, projections: against engine python."""
    for cell in all_cells():
        # of the weights, too: `where` in EveryFunction is no smooth function, and some weights are close to its edge
        generator = torch.manual_seed(3)
        yield {"what": f"{name} {cell.name}", "off": layer_deviation(cell, name, torch.float32, CPU, generator)}


def layer_of(cell: type[Cell], B: int, T: int, I: int, H: int, ragged: bool) -> tuple[Any, torch.Tensor, Any, Any]:
    torch.manual_seed(0)
    layer = layers.layer(cell, I, H, engine="python", dtype=torch.float32)
    x, hx = torch.randn(T, B, I), [torch.randn(1, B, H) for _ in cell.states]
    lengths = torch.tensor([T, *np.random.default_rng(0).integers(1, T + 1, B - 1).tolist()]) if ragged else None
    return layer, x, hx, lengths


def largest_small(name: str) -> Iterator[Line]:
    for cell in all_cells():
        for ragged in (False, True):
            layer, x, hx, lengths = layer_of(cell, 5, 6, 3, 8, ragged)
            expected = outputs_and_gradients(layer, x, hx, lengths)
            found = outputs_and_gradients(with_engine(layer, name), x, hx, lengths)
            yield {"what": f"{name} {cell.name} ragged {ragged}", "off": deviation(found, expected)[0]}


def sweeps(name: str) -> Iterator[Line]:
    """What solvers ask for: a source, and steps that start from states of their own."""
    for cell in all_cells():
        for reverse in (False, True):
            g = torch.Generator().manual_seed(1)
            layout, G, H = Layout.of_lengths([4, 3, 3, 1]), len(cell.gates), 5

            def draw(*shape: int, g: torch.Generator = g) -> torch.Tensor:
                return torch.randn(*shape, generator=g)

            own = tuple(draw(H) for _ in cell.params)
            w = Weights(draw(G * H, 2), draw(G * H, H), draw(G * H), draw(G * H), None, own)
            wx, N = draw(layout.N, G * H), layout.N
            state0, states, source, d_states = ([draw(n, H) for _ in cell.states] for n in (layout.B, N, N, N))
            d_last, results = [draw(layout.B, H) for _ in cell.states], []
            for engine in (engines.get(name), engines.get("python")):
                p, out = engine.prepare(cell, w, reverse), [torch.empty(N, H) for _ in cell.states]
                last, _ = engine.recur(p, wx, state0, layout, source=source, keep=False, out=out)
                tape = engine.linearise(p, wx, states, state0, layout)
                d, d_state0 = engine.recur_vjp(p, tape, d_states, d_last)
                results.append([*last, *out, d.d_wx, torch.cat([*d.d_rh], 1), *d.d_params, *d_state0])
            yield {"what": f"{name} {cell.name} reverse {reverse}", "off": worst(*results)}


def counted_copies() -> dict[str, int]:
    """Bytes that the simulator itself copies to its device and back, from now on."""
    from numba import cuda
    from numba.cuda import args as hints
    from numba.cuda.simulator.cudadrv import devicearray

    counted = {"there": 0, "back": 0}
    to_device, to_host = devicearray.to_device, devicearray.FakeCUDAArray.copy_to_host

    def counting_to_device(array: Any, *args: Any, **options: Any) -> Any:
        counted["there"] += array.nbytes
        return to_device(array, *args, **options)

    def counting_to_host(self: Any, array: Any = None, stream: int = 0) -> Any:
        result = to_host(self, array, stream)
        counted["back"] += result.nbytes
        return result

    devicearray.FakeCUDAArray.copy_to_host = counting_to_host
    for place in (devicearray, cuda, hints, getattr(hints, "devicearray", hints)):
        if getattr(place, "to_device", None) is to_device:
            place.to_device = counting_to_device
    return counted


def training_steps(kind: str) -> Iterator[Line]:
    """Whole steps in one kernel, against autograd; and what was copied, as counted by the simulator itself."""
    counted, dtype = counted_copies(), getattr(torch, kind)
    CELLS.update({cell.name: cell for cell in all_cells()})
    B, T, I, H = 5, 6, 2, 8
    for name, cell in CELLS.items():
        for version in (1, 2, 3):
            layer, x, _, _ = layer_of(cell, B, T, I, H, False)
            layer, x = layer.to(dtype), x.to(dtype)
            head, y = nn.Linear(H, 2, dtype=dtype), torch.randn(B, 2, dtype=dtype)
            loss = nn.functional.mse_loss(head(layer(x)[0][-1]), y)
            of_layer = [*layer.parameters()]
            parameters = [*of_layer[:4], *head.parameters(), *of_layer[4:]]
            expected = torch.autograd.grad(loss, parameters)
            names = (*WEIGHTS, *(f"param_{k}" for k in range(len(cell.params))))
            weights = {n: p.detach().numpy() for n, p in zip(names, parameters, strict=True)}
            step = OneKernel(Network(name, 0.1, x.numpy(), y.numpy(), weights), version)
            counted.update(there=0, back=0)
            found, value = step.gradients(x.numpy(), y.numpy())
            off = worst([torch.from_numpy(d) for d in found.values()], expected)
            off = max(off, abs(value - loss.item()) / loss.item())
            line = {"what": f"step v{version} {name}", "off": off, "cell": name, "version": version, **counted}
            line["batch"] = x.numpy().nbytes + y.numpy().nbytes
            yield line | {"weights": sum(w.nbytes for w in weights.values()), "loss": B * x.itemsize}


def several_tiles(name: str) -> Iterator[Line]:
    """Two blocks of samples, and two tiles of units, as they are on a device."""
    for cell in all_cells():
        layer, x, hx, lengths = layer_of(cell, 20, 3, 3, 40, True)
        expected = outputs_and_gradients(with_engine(layer, "torch:steps"), x, hx, lengths)
        found = outputs_and_gradients(with_engine(layer, name), x, hx, lengths)
        yield {"what": f"{name} {cell.name} in tiles", "off": deviation(found, expected)[0]}


def large(name: str, cell: str) -> Iterator[Line]:
    """B 100, T 50, H 128: against torch's operators. With larger tiles, for the interpreter is slow."""
    blocks.MOST = 128
    layer, x, hx, _ = layer_of(CELLS[cell], 100, 50, 64, 128, False)
    expected = outputs_and_gradients(with_engine(layer, "torch:steps"), x, hx)
    found = outputs_and_gradients(with_engine(layer, name), x, hx)
    yield {"what": f"{name} {cell} 100,50,64,128", "off": deviation(found, expected)[0]}


def rungs() -> Iterator[Line]:
    """Those of `bench ladder` on a device: the loss after a few steps, against torch's own layer."""
    small = replace(problem(LadderOptions(hidden=4), 1), batch=4)
    losses = {}
    for rung in (TORCH, *SAMPLES, BLOCKS):
        made = rung.make(small.network())
        for x, y in small.batches()[:2]:
            made.step(*made.batch(x, y))
        losses[rung.name] = small.loss(made.weights())
    expected = losses.pop(TORCH.name)
    for name, loss in losses.items():
        yield {"what": f"rung {name}", "off": abs(loss - expected) / expected}


JOBS = {
    "small": small_layers,
    "largest": largest_small,
    "sweeps": sweeps,
    "steps": training_steps,
    "rungs": rungs,
    "tiles": several_tiles,
    "large": large,
}

if __name__ == "__main__":
    sys.setswitchinterval(1e-5)  # the simulator has a thread for each of the device's, and they wait for each other
    for line in JOBS[sys.argv[1]](*sys.argv[2:]):
        print(json.dumps(line), flush=True)
