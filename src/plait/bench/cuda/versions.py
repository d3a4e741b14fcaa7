"""The CUDA versions as contenders: the first paper's 1 to 3, and engine cuda, which is version 4."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import cells, layers
from ...kernels.cuda.gpu import interpreted, why_no_triton
from ..ladder.rungs import Rung
from ..peers.contenders.network import Array, Network, Stepper, Weights
from ..peers.contenders.with_torch import Torch
from .device import simulated, why_no_numba
from .launch import TrainingStep


class OneKernel(Stepper):
    """Versions 1 to 3: a whole training step in one kernel; the host moves the weights."""

    def __init__(self, net: Network, version: int) -> None:
        super().__init__(net)
        self.take = TrainingStep(cells.get(net.cell), {n: w.copy() for n, w in net.weights.items()}, version)

    def step(self, x: Array, y: Array) -> float:
        return self.take(x, y, self.rate)

    def weights(self) -> Weights:
        return {name: w.copy() for name, w in self.take.weights.items()}


class OnDevice(Torch):
    """A layer of torch's or plait's on the device, where there is one. The network's own mini-batch is there as well,
    others are copied at each step."""

    def __init__(self, net: Network, engine: str | None = None) -> None:
        super().__init__(net)
        if engine:
            layers.accelerate(self.layer, engine)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for module in (self.layer, self.head):
            module.to(self.device)
        self.data = tuple(t.to(self.device) for t in self.data)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().step(x.to(self.device), y.to(self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return loss


def sample_rung(version: int, **columns: Any) -> Rung:
    return Rung(f"cuda v{version}", partial(OneKernel, version=version), device="GPU", **columns)


SAMPLES = (
    sample_rung(1, slow=True, transfers="no"),
    sample_rung(2, threads="yes", transfers="no"),
    sample_rung(3, threads="yes", transfers="yes"),
)
BLOCKS = Rung("cuda v4", partial(OnDevice, engine="cuda"), device="GPU", threads="yes", transfers="yes")


def versions(*, simulators: bool) -> tuple[list[Rung], list[str]]:
    """Those that can run here; and why the others cannot. simulators: they count as well, though they are slow."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    able, missing = list[Rung](), list[str]()
    why_not = "numba simulates a device, which is slow" if simulated() and not simulators else why_no_numba()
    if why_not is None:
        able += SAMPLES
    else:
        missing.append(f"cuda v1, v2 and v3 are left out: {why_not.rstrip('.')}.")
    why_not = "Triton interprets, which is slow" if interpreted() and not simulators else why_no_triton(device)
    if why_not is None:
        able.append(BLOCKS)
    else:
        missing.append(f"cuda v4 is left out: {why_not.rstrip('.')}.")
    return able, missing
