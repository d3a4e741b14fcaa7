"""The rungs of `bench ladder` on a CUDA device: the first paper's versions 1 to 3, and version 4."""

import torch
from torch import Tensor

from .. import cells
from ..kernels.cuda.gpu import interpreted, simulated, why_no_numba, why_no_triton
from ..kernels.cuda.steps import TrainingStep
from .ladder_problem import Head, Problem, Weights
from .ladder_rungs import Autograd, Place, Rung

PLACES = {
    1: Place("CPU", "GPU", "GPU", "no", "no"),
    2: Place("CPU", "GPU", "GPU", "yes", "no"),
    3: Place("CPU", "GPU", "GPU", "yes", "yes"),
}


class OnDevice(Rung):
    """A whole training step in one kernel; the host moves the weights."""

    def __init__(self, problem: Problem, version: int) -> None:
        super().__init__(problem)
        self.name, self.place, self.slow = f"cuda v{version}", PLACES[version], version == 1
        weights = {name: value.copy() for name, value in problem.weights.items()}
        weights |= {"w_out": problem.head[0].copy(), "b_out": problem.head[1].copy()}
        self.take = TrainingStep(cells.get("lstm"), weights, version)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.take(x.numpy(), y.numpy(), self.problem.rate)

    def result(self) -> tuple[Weights, Head]:
        w = self.take.weights
        return {name: w[name] for name in self.problem.weights}, (w["w_out"], w["b_out"])


class Blocks(Autograd):
    """Version 4: the weights stay on the device, and the mini-batch is copied there."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, "cuda v4", "cuda", Place("CPU", "GPU", "GPU", "yes", "yes"))
        self.layer, self.head = self.layer.cuda(), self.head.cuda()
        self.parameters = [*self.layer.parameters(), *self.head.parameters()]

    def step(self, x: Tensor, y: Tensor) -> None:
        super().step(x.cuda(), y.cuda())
        torch.cuda.synchronize()


def cuda_rungs(problem: Problem) -> tuple[list[Rung], list[str]]:
    """Those that can run here; and why the others cannot."""
    made: list[Rung] = []
    why_not = "numba simulates a device, which is slow" if simulated() else why_no_numba()
    missing = [] if why_not is None else [f"cuda v1, v2 and v3 are left out: {why_not.rstrip('.')}."]
    if why_not is None:
        made += [OnDevice(problem, version) for version in PLACES]
    why_not = "Triton interprets, which is slow" if interpreted() else why_no_triton(torch.device("cuda"))
    if why_not is None:
        return [*made, Blocks(problem)], missing
    return made, [*missing, f"cuda v4 is left out: {why_not.rstrip('.')}."]
