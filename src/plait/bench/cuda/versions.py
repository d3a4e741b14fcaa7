"""The CUDA versions as contenders, and whether they can run here. Version 4 is engine cuda."""

import os
from functools import cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor

from ...kernels.cuda.gpu import interpreted, why_no_triton, why_too_old
from ..ladder.rungs import Autograd, Rung
from ..peers.contenders.network import Network
from ..peers.contenders.with_torch import Torch
from .launch import OneKernel

INSTALL = "pip install 'plait[cuda]' (drivers before 580: 'plait[cuda12]')"


class OnDevice(Autograd):
    """On the device, where there is one. The network's own mini-batch is there as well, others are copied."""

    def __init__(self, net: Network, engine: str | None = None) -> None:
        super().__init__(net, engine)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for module in (self.layer, self.head):
            module.to(self.device)
        self.data = tuple(t.to(self.device) for t in self.data)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = Torch.step(self, x.to(self.device), y.to(self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return loss


GPU = partial(Rung, device="GPU", threads="yes", transfers="yes")
SAMPLES = (
    GPU("cuda v1", partial(OneKernel, version=1), slow=True, threads="no", transfers="no"),
    GPU("cuda v2", partial(OneKernel, version=2), transfers="no"),
    GPU("cuda v3", partial(OneKernel, version=3)),
)
BLOCKS = GPU("cuda v4", partial(OnDevice, engine="cuda"))


def simulated() -> bool:
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@cache
def why_no_numba() -> str | None:
    """None if it can, else a sentence."""
    if find_spec("numba_cuda") is None:
        return f"numba-cuda is not installed: {INSTALL}."
    if simulated():
        return None
    from numba import cuda
    from numba.cuda.cudadrv import nvvm

    error = cuda.cuda_error() or ("" if len(cuda.gpus) else "the driver sees none")
    if error:
        said = " ".join(str(error).split()).rstrip(".")
        return f"no CUDA device can be used ({said}): set NUMBA_ENABLE_CUDASIM=1 to try without one."
    if not nvvm.is_available():
        return f"CUDA's compiler (NVVM) is missing: {INSTALL}."
    return why_too_old(cuda.get_current_device().compute_capability)


def versions(*, simulators: bool) -> tuple[list[Rung], list[str]]:
    """Those that can run here; and why the others cannot. simulators: whether they count"""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    able, missing = list[Rung](), list[str]()
    for names, rungs, slowly, why_not in (
        ("cuda v1, v2 and v3 are", SAMPLES, simulated(), why_no_numba()),
        ("cuda v4 is", (BLOCKS,), interpreted(), why_no_triton(device)),
    ):
        if slowly and not simulators:
            why_not = "there is no device, and a simulator is slow."
        able += rungs if why_not is None else ()
        missing += [] if why_not is None else [f"{names} left out: {why_not}"]
    return able, missing
