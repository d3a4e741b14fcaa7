"""CUDA, version 4, ours: tensors of the device, one launch for all steps (kernels/cuda/blocks.py)."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cells import Cell
from ..cells.trace import trace, why_untraceable
from ..errors import PlaitError
from ..kernels.cuda.blocks import MOST_UNITS, SAMPLES, kernel, tiles
from ..kernels.cuda.form import Form
from ..kernels.cuda.gpu import enough_memory, why_no_triton
from ..layout import Layout
from .base import Derivative, Engine, Prepared, States, Weights, check_source
from .stepwise import begin, written
from .tape import Tape, adjacent, history


class BlocksEngine(Engine):
    name, about = "cuda:v4", "Triton: one launch for all steps, a block for each 16 samples; CUDA tensors, float32"

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        if dtype != torch.float32:
            return f"{self.name} runs float32, the layer is {dtype}: use engine='torch'."
        return why_untraceable(cell) or why_no_triton(device)

    def prepare(self, cell: type[Cell], w: Weights, reverse: bool = False, **options: bool) -> Prepared:
        p = super().prepare(cell, w, reverse, **options)
        if why := why_too_wide(max(p.H, p.P)):
            raise PlaitError(f"engine {self.name}: {why}: use engine='torch', or 'auto'.")
        return p

    def recur(
        self,
        p: Prepared,
        wx: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        *,
        dt: float = 1,
        source: Sequence[Tensor] | None = None,
        keep: bool = True,
        out: Sequence[Tensor | None] | None = None,
    ) -> tuple[list[Tensor], Tape | None]:
        check_source(source, keep)
        _, tape = begin(p, wx, state0, layout, dt, None, True)
        assert tape is not None
        if layout.N:
            form = form_of(p, dt, source=source is not None)
            launch("recur", form, p, layout, {"wx": wx, **numbered("source", source or ()), **tape_tensors(tape)})
        for states, targets in zip(tape.states, written(None, out, len(tape.states)), strict=True):
            for target in targets:
                target.copy_(states)
        return [last_of(tape, k) for k in range(len(tape.states))], tape if keep else None

    def recur_vjp(
        self, p: Prepared, tape: Tape, d_states: States | None, d_last: States, *, spend: bool = False
    ) -> tuple[Derivative, list[Tensor]]:
        N, GH = tape.layout.N, len(p.cell.gates) * p.H
        given = d_states or [None] * len(p.cell.states)
        form = form_of(p, tape.dt, given=given, apart=tape.old is not None)
        like = tape.gates.new_empty
        d_state0 = [torch.zeros_like(tape.initial[k]) if d is None else d.clone() for k, d in enumerate(d_last)]
        d_state0 = [d.contiguous() for d in d_state0]
        d_wx = like(N, GH)
        d_rh = d_wx if form.shared else like(N, GH)
        d_projected = like(N, p.P) if form.projected else None
        blocks = -(-tape.layout.B // SAMPLES)  # each has a sum of its own, so that the order of sums is always the same
        d_params = [like(blocks * p.H).zero_() for _ in p.cell.params]
        if N:
            tensors = {**numbered("given", given), **tape_tensors(tape), **numbered("after", tape.states)}
            tensors |= {**numbered("d_state", d_state0), **numbered("d_param", d_params), "d_wx": d_wx, "d_rh": d_rh}
            tensors |= {} if d_projected is None else {"d_projected": d_projected}
            launch("recur_vjp", form, p, tape.layout, tensors)
        return Derivative(d_wx, [d_rh], d_projected, [d.view(blocks, -1).sum(0) for d in d_params]), d_state0

    # --- a layer: memory that is missing is missing somewhere in here
    def forward(self, ps: Sequence[Prepared], x: Tensor, *args: Any, **options: Any) -> Any:
        with enough_memory(needed(ps, x), x.device):
            return super().forward(ps, x, *args, **options)

    def backward(self, ps: Sequence[Prepared], x: Tensor, *args: Any, **options: Any) -> Any:
        with enough_memory(2 * needed(ps, x), x.device):
            return super().backward(ps, x, *args, **options)


class CudaEngine(BlocksEngine):
    name, about = "cuda", f"cuda:v4; beyond {MOST_UNITS} units torch's own layer"


def needed(ps: Sequence[Prepared], x: Tensor) -> int:
    """Bytes of a pass, of all directions: W x, what is saved of each step, states and outputs."""
    rows, cell = x.numel() // max(1, x.shape[-1]), ps[0].cell
    numbers = 2 * len(cell.gates) + trace(cell).extra + len(cell.states) + 1
    return len(ps) * rows * numbers * ps[0].H * x.element_size()


def why_too_wide(H: int) -> str | None:
    return None if H <= MOST_UNITS else f"its kernels take at most {MOST_UNITS} units, this layer has {H}"


def form_of(p: Prepared, dt: float, source: bool = False, given: States = (), apart: bool = False) -> Form:
    has = tuple(d is not None for d in given)
    bias, projected = p.weights.b_hh is not None, p.weights.w_hr is not None
    return Form(p.cell, dt, p.reverse, bias, projected, source, has, apart)


def launch(kind: str, form: Form, p: Prepared, layout: Layout, tensors: Mapping[str, Tensor]) -> None:
    """kind: recur or recur_vjp. tensors: by the names of the kernel's arguments; without the weights"""
    w, device = p.weights, p.weights.w_hh.device
    named = {**dict(zip(w._fields, w[:5], strict=False)), **numbered("param", w.params), **tensors}
    tensors = {name: t.detach().contiguous() for name, t in named.items() if t is not None}
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    sizes, cut = (layout.T, layout.B, layout.N, p.H, p.P), tiles(max(p.H, p.P), capability)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # Triton takes the current one
        kernel(form, kind).run(sizes, {**tensors, "starts": starts_of(layout, device)}, cut)


def numbered(name: str, tensors: States) -> dict[str, Tensor]:
    return {f"{name}_{k}": t for k, t in enumerate(tensors) if t is not None}


def last_of(tape: Tape, k: int) -> Tensor:
    """State k of each sequence after its last step."""
    layout = tape.layout
    if not layout.T:
        return tape.initial[k].clone()
    if tape.reverse:
        return tape.states[k][: layout.B].clone()
    if layout.is_dense:
        return tape.states[k][-layout.B :].clone()
    ends = torch.from_numpy(layout.first_rows[layout.lengths - 1] + np.arange(layout.B))
    return tape.states[k].index_select(0, ends.to(tape.states[k].device))


def tape_tensors(tape: Tape) -> dict[str, Tensor]:
    """past_k: the initial states, then those of all steps; in reverse the initial ones come last."""
    found = {"gates": tape.gates, "extra": tape.extra, **({} if tape.raw is None else {"raw": tape.raw})}
    for k, (initial, states) in enumerate(zip(tape.initial, tape.path, strict=True)):
        pair = (states, initial) if tape.reverse else (initial, states)
        found[f"past_{k}"] = history(*pair) if adjacent(*pair) else torch.cat(pair)
    return found


def starts_of(layout: Layout, device: torch.device) -> Tensor:  # (T + 1,)
    """The first row of each step, and the end, on the device."""
    key = ("starts", device)
    if key not in layout.cache:
        dense = torch.arange(layout.T + 1, device=device) * layout.B if layout.is_dense else None
        layout.cache[key] = layout.bounds.to(device) if dense is None else dense
    found: Tensor = layout.cache[key]
    return found
