"""Which CUDA device there is; if there is none, what is missing: a package, the driver, the toolchain, the device."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from ...errors import PlaitError

OLDEST = (7, 5)  # what the compilers of both packages still know


class TorchDevice:
    """A CUDA device as torch sees it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.name = device, torch.cuda.get_device_name(device)

    def free(self) -> int:
        """Bytes."""
        reserved = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + reserved

    def seconds(self, run: Callable[[], object], repeats: int) -> float:
        """The median time of a call."""
        times: list[float] = []
        with torch.cuda.device(self.device):
            for _ in range(repeats):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                run()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) / 1e3)
        return sorted(times)[repeats // 2]


def too_large(needed: int, free: int | None, where: str) -> PlaitError:
    known = "" if free is None else f", {free / 2**20:,.0f} MiB are free"
    return PlaitError(
        f"a layer of this batch needs {needed / 2**20:,.0f} MiB on {where}{known}: take fewer or shorter sequences."
    )


@contextmanager
def enough_memory(
    needed: int, device: torch.device, found: Callable[[torch.device], TorchDevice] = TorchDevice
) -> Iterator[None]:
    """If the device's memory is not enough, the error says how much was needed, in bytes."""
    try:
        yield
    except torch.OutOfMemoryError:
        there = found(device)
        raise too_large(needed, there.free(), there.name) from None


def interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def why_too_old(capability: tuple[int, int]) -> str | None:
    if tuple(capability) >= OLDEST:
        return None
    found, oldest = ("{}.{}".format(*some) for some in (capability, OLDEST))
    return f"this device has compute capability {found}, plait's kernels need {oldest} or newer: use engine='torch'."


def why_no_triton(device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'plait[triton]'; CUDA builds of torch bring it along."
    if interpreted():
        return None
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            return "this torch was built without CUDA: install a build with CUDA."
        return "torch sees no CUDA device here."
    if device.type != "cuda":
        return f"the layer is on {device}: move it and its input to a CUDA device."
    return why_too_old(torch.cuda.get_device_capability(device))
