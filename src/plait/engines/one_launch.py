"""An engine whose forward pass is one launch of a kernel, and whose backward pass is another."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..kernels.cuda.form import Form
from ..layout import Layout
from .base import Derivative, Engine, Prepared, States, Weights, check_source
from .tape import Tape, adjacent, history

Tensors = Mapping[str, Tensor]


class Job(NamedTuple):
    """What a launch gets, by the names of the kernels' arguments."""

    form: Form
    read: Tensors
    both: Tensors  # read, and written
    sums: Tensors  # blocks add to them


class OneLaunch(Engine):
    @abstractmethod
    def launch(self, kind: str, p: Prepared, layout: Layout, job: Job) -> None:
        """kind: recur or recur_vjp."""

    def parts(self, B: int) -> int:
        """Sums that are computed side by side, for the gradients of the cell's own parameters."""
        return 1

    def form(self, p: Prepared, dt: float, source: bool = False, given: States = (), apart: bool = False) -> Form:
        has = tuple(d is not None for d in given)
        bias, projected = p.weights.b_hh is not None, p.weights.w_hr is not None
        return Form(p.cell, dt, p.reverse, bias, projected, source, has, apart)

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
        tape = begun(p, state0, layout, dt, wx)
        read = {"wx": wx, **numbered("source", source or ())}
        if layout.N:
            self.launch("recur", p, layout, Job(self.form(p, dt, source is not None), read, tape_tensors(tape), {}))
        return finished(tape, out), tape if keep else None

    def recur_vjp(
        self, p: Prepared, tape: Tape, d_states: States | None, d_last: States, *, spend: bool = False
    ) -> tuple[Derivative, list[Tensor]]:
        N, GH = tape.layout.N, len(p.cell.gates) * p.H
        given = d_states or [None] * len(p.cell.states)
        form = self.form(p, tape.dt, given=given, apart=tape.old is not None)
        like = tape.gates.new_empty
        d_state0 = [torch.zeros_like(tape.initial[k]) if d is None else d.clone() for k, d in enumerate(d_last)]
        d_state0 = [d.contiguous() for d in d_state0]
        d_wx = like(N, GH)
        d_rh = d_wx if form.shared else like(N, GH)
        d_projected = like(N, p.P) if form.projected else None
        parts = self.parts(tape.layout.B)
        d_params = [like(parts * p.H).zero_() for _ in p.cell.params]
        if N:
            reads = {**numbered("given", given), **tape_tensors(tape), **numbered("after", tape.states)}
            writes = {**numbered("d_state", d_state0), "d_wx": d_wx, "d_rh": d_rh}
            writes |= {} if d_projected is None else {"d_projected": d_projected}
            self.launch("recur_vjp", p, tape.layout, Job(form, reads, writes, numbered("d_param", d_params)))
        return Derivative(d_wx, [d_rh], d_projected, [d.view(parts, -1).sum(0) for d in d_params]), d_state0


def numbered(name: str, tensors: States) -> dict[str, Tensor]:
    return {f"{name}_{k}": t for k, t in enumerate(tensors) if t is not None}


def begun(p: Prepared, state0: Sequence[Tensor] | None, layout: Layout, dt: float, like: Tensor) -> Tape:
    """A tape that has nothing but the initial states."""
    room = p.room(layout, dt)
    tape = room.tape(like.new_empty(room.total), layout)
    for k, initial in enumerate(tape.initial):
        if state0 is None:
            initial.zero_()
        else:
            initial.copy_(state0[k])
    return tape


def finished(tape: Tape, out: Sequence[Tensor | None] | None) -> list[Tensor]:
    """The last states. Those of all steps go to `out`."""
    for states, target in zip(tape.states, out or (), strict=False):
        if target is not None:
            target.copy_(states)
    return [last_of(tape, k) for k in range(len(tape.states))]


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


def weight_tensors(w: Weights) -> dict[str, Tensor]:
    return {**dict(zip(w.names, w.tensors, strict=False)), **numbered("param", w.params)}


def tape_tensors(tape: Tape) -> dict[str, Tensor]:
    """past_k: the initial states, then those of all steps; in reverse the initial ones come last."""
    found = {"gates": tape.gates, "extra": tape.extra, **({} if tape.raw is None else {"raw": tape.raw})}
    for k, (initial, states) in enumerate(zip(tape.initial, tape.path, strict=True)):
        found[f"past_{k}"] = joined(states, initial) if tape.reverse else joined(initial, states)
    return found


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Two matrices as one: a view if they are next to each other."""
    return history(first, second) if adjacent(first, second) else torch.cat([first, second])
