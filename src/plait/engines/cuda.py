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
from .base import Gradients, Needs, Prepared, States
from .one_launch import Job, OneLaunch, Tensors, begun, finished, tape_tensors, weight_tensors


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

        read = {"starts": np.array([*layout.starts, layout.N], np.int64), **used(weight_tensors(p.weights))}
        work = {"wx": np.empty((layout.N, p.weights.w_ih.shape[0]), ready.dtype)} if kind == "forward" else {}
        sizes = (layout.T, layout.B, layout.N, I, p.H, p.P)
        launch = Launch(sizes, {**read, **used(job.read)}, used(job.both), work, sums=used(job.sums))
        ready.run(launch, self.version, self.moved)

    # --- a layer: the products of all steps are in the same launches
    def forward(
        self,
        ps: Sequence[Prepared],
        x: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        *,
        keep: bool = True,
        dt: float = 1,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        I, P = ps[0].weights.w_ih.shape[1], ps[0].P
        layout.check_rows(x, I)
        rows, finals, kept = x.new_empty(layout.N, len(ps) * P), [], []
        for d, p in enumerate(ps):
            tape = begun(p, None if state0 is None else [s[d] for s in state0], layout, dt, x)
            if layout.N:
                job = Job(self.form(p, dt), {"x": x.flatten(0, -2)}, tape_tensors(tape), {})
                self.launch("forward", p, layout, job, I)
            finals.append(finished(tape, [rows[:, d * P : (d + 1) * P]]))
            if keep and tape.memory is not None:
                kept.append(tape.memory)
        last = [torch.stack(some) for some in zip(*finals, strict=True)]
        return rows.view(*x.shape[:-1], len(ps) * P), last, kept

    def backward(
        self,
        ps: Sequence[Prepared],
        x: Tensor,
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: States,
        layout: Layout,
        *,
        needs: Needs,
        spend: bool = False,
        dt: float = 1,
    ) -> Gradients:
        I, P, S = ps[0].weights.w_ih.shape[1], ps[0].P, len(d_finals)
        layout.check_rows(x, I)
        d_flat = None if d_rows is None else d_rows.flatten(0, -2)
        total, d_state0, d_weights, derivatives = x.new_zeros(layout.N, I), [], [], []
        for d, (p, memory) in enumerate(zip(ps, kept, strict=True)):
            tape = p.room(layout, dt).tape(memory, layout)
            d_states = [None if d_flat is None else d_flat[:, d * P : (d + 1) * P], *[None] * (S - 1)]
            job, pending, initial = self.way_back(p, tape, d_states, [None if f is None else f[d] for f in d_finals])
            names, d_x = p.weights.names, torch.zeros_like(total)
            own = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in p.weights.tensors]
            sums = {f"d_{name}": t for name, t in zip(names, own, strict=False)}
            if layout.N:
                job = Job(job.form, {**job.read, "x": x.flatten(0, -2)}, {**job.both, "d_x": d_x}, {**job.sums, **sums})
                self.launch("backward", p, layout, job, I)
            derivative = pending()
            found = [*own[: len(names)], *derivative.d_params]
            total += d_x
            d_weights.append([t if wanted else None for t, wanted in zip(found, needs.weights[d], strict=True)])
            d_state0.append(initial)
            derivatives.append(derivative)
        d_initial = [torch.stack(some) for some in zip(*d_state0, strict=True)]
        return Gradients(total.view(x.shape) if needs.x else None, d_initial, d_weights, derivatives)


class Version1(SamplesEngine):
    name, version, positioned = "cuda:v1", 1, False
    about = "numba-cuda: the sequential code on the device, one thread for the batch"


class Version2(SamplesEngine):
    name, version = "cuda:v2", 2
    about = "numba-cuda: a thread for each sample, every array copied there and back"


class Version3(SamplesEngine):
    name, version = "cuda:v3", 3
    about = "numba-cuda: a thread for each sample, only results copied back"
