"""Layers one after the other as one function, with dropout between them: one way there, one way back.

A small step costs more Python than arithmetic, and most of that is autograd's: so a small stack pays it once.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import engines
from ..engines.fused_walk import WITHOUT_TAPE
from ..engines.small import Sizes, SmallStack, mask
from ..kernels import threads
from .call import Call, differentiable, run, run_vjp


class Kept(NamedTuple):
    """What a stack keeps for its derivative."""

    masks: Sequence[Tensor]  # per gap between two layers; none without dropout
    inputs: Sequence[Tensor]  # of all layers but the first
    tapes: Sequence[Sequence[Tensor]]  # per layer, as many for each

    def flat(self) -> list[Tensor]:
        return [*self.masks, *self.inputs, *[t for some in self.tapes for t in some]]


class Stack:
    """All about the layers but their tensors. Those are the initial states of all layers, if any, and the weights."""

    __slots__ = ("S", "calls", "dropout", "found", "small")

    def __init__(self, calls: Sequence[Call], dropout: float = 0.0) -> None:
        self.calls = calls  # per layer
        self.dropout = dropout if len(calls) > 1 else 0.0  # between layers: the share of the numbers that become zero
        self.S = len(calls[0].cell.states) if calls[0].stateful else 0  # the number of initial states
        self.small: SmallStack | None = None  # what runs it with a tape, if the engine has one for it
        self.found = False  # that is known

    def stack(self, x: Tensor, tensors: Sequence[Tensor]) -> "Stack":
        return self

    def masks(self, kept: Sequence[Tensor]) -> Sequence[Tensor]:
        return kept[: len(self.calls) - 1 if self.dropout else 0]

    def kept(self, flat: Sequence[Tensor]) -> Kept:
        """The inverse of Kept.flat."""
        gaps, masks = len(self.calls) - 1, self.masks(flat)
        first = len(masks) + gaps
        each = (len(flat) - first) // (gaps + 1)
        tapes = [flat[first + k * each : first + (k + 1) * each] for k in range(gaps + 1)]
        return Kept(masks, flat[len(masks) : first], tapes)

    def split(self, values: Sequence[Any]) -> tuple[Sequence[Any], list[Sequence[Any]]]:
        """Of the tensors, or of a value for each of them: those of the states; per layer those of the weights."""
        S, L = self.S, len(self.calls)
        each = (len(values) - S) // L
        return values[:S], [values[S + k * each : S + (k + 1) * each] for k in range(L)]

    def layers(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Per layer its tensors, as a call has them."""
        if len(self.calls) == 1:
            return [tensors]
        states, weights = self.split(tensors)
        return [[*self.part(states, k), *weights[k]] for k in range(len(self.calls))]

    def part(self, states: Sequence[Any], k: int) -> list[Any]:
        """The part of layer k of states (L*D, B, .) that may be None."""
        D = self.calls[0].directions
        return [None if s is None else s[k * D : (k + 1) * D] for s in states]

    def shapes(self, x: Tensor, tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """The shapes of the rows and of the last states."""
        call, L = self.calls[-1], len(self.calls)
        rows, *states = call.shapes(x, self.layers(tensors)[-1])
        return [rows, *((L * D, B, width) for D, B, width in states)]

    def filled(self, x: Tensor, tensors: Sequence[Tensor], d_outputs: Sequence[Tensor | None]) -> list[Tensor]:
        """With zeros for the outputs that have no gradient."""
        shapes = self.shapes(x, tensors)
        return [x.new_zeros(shape) if d is None else d for d, shape in zip(d_outputs, shapes, strict=True)]

    def run(
        self, x: Tensor, tensors: Sequence[Tensor], *, keep: bool = True, masks: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """-> rows (., directions*P), last states (L*D, B, .), what is kept. masks: those of an earlier run, if any"""
        small = self.small if self.found and keep else self.find_small(x, tensors, keep)
        if keep:
            self.small, self.found = small, True
        if small is not None:
            return self.run_small(small, x, tensors, keep, masks)
        if len(self.calls) == 1:
            return run(self.calls[0], x, tensors, keep=keep)
        drawn, inputs, finals, tapes = list(masks), [x], [], []
        for k, (call, mine) in enumerate(zip(self.calls, self.layers(tensors), strict=True)):
            if k:
                if self.dropout:
                    if k > len(drawn):
                        drawn.append(mask(torch.ones_like(x), self.dropout))
                    x.mul_(drawn[k - 1])
                inputs.append(x)
            x, last, tape = run(call, x, mine, keep=keep)
            finals.append(last)
            tapes.append(tape)
        kept = Kept(drawn, inputs[1:], tapes).flat() if keep else []
        return x, [torch.cat(some) for some in zip(*finals, strict=True)], kept

    def find_small(self, x: Tensor, tensors: Sequence[Tensor], keep: bool) -> SmallStack | None:
        """What runs these layers in one go, if there is such a thing for them."""
        call, layout = self.calls[0], self.calls[0].layout
        if call.engine != "fused" or call.held is not None or layout.batch_sizes is not None:
            return None
        cell, D, S, weights = call.cell, call.directions, self.S, tensors[self.S :]
        if cell.params or len(weights) != len(self.calls) * D * (4 if call.bias else 2) or x.dim() != 3 or not layout.N:
            return None
        H = weights[1].shape[-1] if weights[1].dim() else 0
        if not all(call.solver.is_exact(H, layout, call.visits, keep) for call in self.calls):
            return None
        T, B, I = x.shape
        flags = call.bias, call.stateful, self.dropout > 0, x.requires_grad
        engine: Any = engines.get("fused")
        sizes = Sizes(cell, weights[0].dtype, T, B, I, D, *flags, threads.threads())
        small: SmallStack | None = engine.small(sizes, weights)
        if small is None or not small.fits((x, *tensors), tensors[:S]) or not (keep or small.bytes <= WITHOUT_TAPE):
            return None
        return small

    def run_small(
        self, small: SmallStack, x: Tensor, tensors: Sequence[Tensor], keep: bool, masks: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        given, S = [plain(t) for t in tensors], self.S
        if self.dropout and not masks:
            masks = small.masks(x, self.dropout)
        rows, finals, memory = small.forward(plain(x), given[:S], given[S:], masks)
        for call in self.calls:
            call.solver.was_exact(call.visits)
        return rows, finals, [*masks, memory] if keep else []

    def run_vjp(
        self,
        x: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        needs: Sequence[bool],
        *,
        spend: bool = False,
    ) -> list[Tensor | None]:
        """-> d_x and d_ of all tensors in order, None for those not needed. `spend`: the tapes may be overwritten."""
        if self.small is not None:
            given, masks, S = [plain(t) for t in tensors], self.masks(kept), self.S
            of = plain(x), given[:S], given[S:], masks, plain(kept[-1])
            d_rows, *d_finals = [None if d is None else d.resolve_neg() for d in (d_rows, *d_finals)]
            found = self.small.backward(*of, d_rows, d_finals, needs, spend=spend)
            for call in self.calls:
                call.solver.was_exact_back(call.visits)
            return found
        if len(self.calls) == 1:
            return run_vjp(self.calls[0], x, tensors, kept, d_rows, d_finals, needs, spend=spend)
        masks, inputs, tapes = self.kept(kept)
        needed_states, needed = self.split(needs[1:])
        S, L = len(needed_states), len(self.calls)
        d_states: list[list[Any]] = []
        d_weights: list[Sequence[Tensor | None]] = [[None] * len(some) for some in needed]
        layers = self.layers(tensors)
        for k in range(L - 1, -1, -1):
            if not (needs[0] or any(needed_states) or any(map(any, needed[: k + 1]))):
                break
            below = bool(k) and (any(needed_states) or any(map(any, needed[:k])))
            d_rows, *rest = run_vjp(
                self.calls[k],
                inputs[k - 1] if k else x,
                layers[k],
                tapes[k],
                d_rows,
                self.part(d_finals, k),
                [needs[0] or below, *needed_states, *needed[k]],
                spend=spend,
            )
            d_states.append(rest[:S])
            d_weights[k] = rest[S:]
            if k and d_rows is not None and self.dropout:
                d_rows.mul_(masks[k - 1])
        by_state = zip(*d_states[::-1], strict=True)
        together = [torch.cat(some) if n else None for n, some in zip(needed_states, by_state, strict=True)]
        return [d_rows if needs[0] else None, *together, *[d for some in d_weights for d in some]]

    def differentiable(self, x: Tensor, tensors: Sequence[Tensor], masks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The same on torch's operators: autograd can differentiate it any number of times."""
        if len(self.calls) == 1:
            return differentiable(self.calls[0], x, tensors)
        finals = []
        for k, (call, mine) in enumerate(zip(self.calls, self.layers(tensors), strict=True)):
            x, *last = differentiable(call, x * masks[k - 1] if k and masks else x, mine)
            finals.append(last)
        return x, *(torch.cat(some) for some in zip(*finals, strict=True))

    def vjp_on_operators(
        self,
        x: Tensor,
        tensors: Sequence[Tensor],
        masks: Sequence[Tensor],
        d_outputs: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """As run_vjp, by autograd: it can be differentiated, and takes gradients that a kernel cannot read."""
        given, chosen = [x, *tensors], [k for k, needed in enumerate(needs) if needed]

        def outputs_of(*some: Tensor) -> tuple[Tensor, ...]:
            every = list(given)
            for k, t in zip(chosen, some, strict=True):
                every[k] = t
            return self.differentiable(every[0], every[1:], masks)

        pull = torch.func.vjp(outputs_of, *[given[k] for k in chosen])[1]
        found = iter(pull(tuple(d_outputs)))
        return [next(found) if needed else None for needed in needs]


def plain(t: Tensor) -> Tensor:
    """Contiguous, and not negated lazily, such as z.conj().imag is: as a kernel reads it."""
    return t.contiguous().resolve_neg()
