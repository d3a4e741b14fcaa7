"""CUDA, versions 1 to 3: tensors of the host, and a thread for each sample at most. Version 4 is in cuda_blocks.py."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..cells import Cell
from ..cells.trace import why_untraceable
from ..kernels.cuda.gpu import why_no_numba
from ..kernels.cuda.launches import Arrays, Launch, Moved, kernel
from ..layout import Layout
from .base import OfDirection, Prepared, States
from .one_launch import Job, OneLaunch, Tensors, begun, finished, tape_tensors, weight_tensors
from .tape import Tape


class SamplesEngine(OneLaunch):
    """`moved` counts the bytes that were copied to the device and back."""

    version: int

    def __init__(self) -> None:
        self.moved = Moved()

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"{self.name} takes tensors of the host, the layer is on {device}: use engine='cuda' there."
        if dtype not in (torch.float32, torch.float64):
            return f"{self.name} runs float32 and float64, the layer is {dtype}: convert it first."
        return why_untraceable(cell) or why_no_numba()

    def launch(self, kind: str, p: Prepared, layout: Layout, job: Job, I: int = 0) -> None:
        ready = kernel(job.form, kind, str(p.weights.w_hh.dtype)[6:])

        def used(tensors: Tensors) -> Arrays:
            return {k: t.detach().contiguous().numpy() for k, t in tensors.items() if k in ready.arrays}

        read = {"starts": layout.bounds.numpy(), **used(weight_tensors(p.weights))}
        work = {"wx": np.empty((layout.N, p.weights.w_ih.shape[0]), ready.dtype)} if kind == "forward" else {}
        sizes = (layout.T, layout.B, layout.N, I, p.H, p.P)
        launch = Launch(sizes, {**read, **used(job.read)}, used(job.both), work, sums=used(job.sums))
        ready.run(launch, self.version, self.moved)

    # The products of all steps are in the same launches.
    def direction(
        self,
        p: Prepared,
        x: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        *,
        dt: float,
        keep: bool,
        out: Sequence[Tensor | None],
    ) -> tuple[list[Tensor], Tape | None]:
        tape = begun(p, state0, layout, dt, x)
        if layout.N:
            self.launch("forward", p, layout, Job(self.form(p, dt), {"x": x}, tape_tensors(tape), {}), x.shape[1])
        return finished(tape, out), tape if keep else None

    def direction_vjp(
        self,
        p: Prepared,
        x: Tensor,
        tape: Tape,
        d_states: States,
        d_last: States,
        *,
        needs_x: bool,
        wanted: Sequence[bool],
        spend: bool,
    ) -> OfDirection:
        names, d_x = p.weights.names, torch.zeros_like(x, memory_format=torch.contiguous_format)
        own = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in p.weights.tensors[: len(names)]]
        sums = {f"d_{name}": t for name, t in zip(names, own, strict=True)}
        more: dict[str, Tensors] = {"read": {"x": x}, "both": {"d_x": d_x}, "sums": sums}
        derivative, d_state0 = self.way_back("backward", p, tape, d_states, d_last, **more, I=x.shape[1])
        found = [t if w else None for t, w in zip([*own, *derivative.d_params], wanted, strict=True)]
        return OfDirection(d_x if needs_x else None, d_state0, found, derivative)


class Version1(SamplesEngine):
    name, version, positioned = "cuda:v1", 1, False
    about = "numba-cuda: the sequential code on the device, one thread for the batch"


class Version2(SamplesEngine):
    name, version = "cuda:v2", 2
    about = "numba-cuda: a thread for each sample, every array copied there and back"


class Version3(SamplesEngine):
    name, version = "cuda:v3", 3
    about = "numba-cuda: a thread for each sample, only results copied back"
