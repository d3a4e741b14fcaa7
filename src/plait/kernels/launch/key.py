"""All that a call depends on but its tensors: what runs it is made once for a key, and found by it."""

from typing import NamedTuple

import torch

from ...cells import Cell
from ...errors import counted


class Key(NamedTuple):
    cell: type[Cell]
    dtype: torch.dtype
    ragged: bool  # then T is 0: the numbers of steps and rows are bound at each call, as addresses are
    T: int
    B: int
    I: int
    H: int
    P: int  # width of h: H without a projection
    layers: int
    reverse: tuple[bool, ...]  # per direction
    bias: bool
    projected: bool
    stateful: bool  # initial states are given; else they are zero
    threads: int
    dropout: bool = False  # the rows from layer to layer are multiplied by masks
    learns_x: bool = True  # the gradient of x will be wanted. If not, how long it would take does not matter
    pinned: bool = False  # the weights stand still: their panels have memory that outlives the call
    padded: bool = False  # input and output are padded, the rows are ragged
    slabs: bool = False  # the rows of the tapes may be in slabs (slabs.py)
    walk: bool = False  # one direction from given W x, where each matrix of the tape is bound by itself
    sourced: bool = False  # something is added to each new state, or to its gradient, from outside
    dt: float = 1
    whole: int = 0  # sequences of the batch that this is a chunk of, if those are more than B
    step: bool = False  # of a cell: x (B, I), states (B, .), and the rows are h
    rounded: bool = False  # operands of products are rounded to bfloat16
    ours: tuple[tuple[bool, bool], ...] = ()  # per layer: whether the launch computes W x, and d_x, if that is known

    @property
    def D(self) -> int:
        return len(self.reverse)

    @property
    def wide(self) -> int:
        """The numbers of a row of the output."""
        return self.D * self.P

    @property
    def widths(self) -> list[int]:
        """Of the states: h has P, the others H."""
        return [self.P, *[self.H] * (len(self.cell.states) - 1)]

    @property
    def names(self) -> list[str]:
        """The tensors of a direction, in torch's order."""
        biases = ["b_ih", "b_hh"] if self.bias else []
        projection = ["w_hr"] if self.projected else []
        return ["w_ih", "w_hh", *biases, *projection, *[f"param.{k}" for k in range(len(self.cell.params))]]

    def shapes(self, layer: int) -> list[tuple[int, ...]]:
        """Those of the tensors of a direction."""
        GH = len(self.cell.gates) * self.H
        found: dict[str, tuple[int, ...]] = {
            "w_ih": (GH, self.inputs(layer)),
            "w_hh": (GH, self.P),
            "w_hr": (self.P, self.H),
        }
        return [found.get(name, (GH,) if name[0] == "b" else (self.H,)) for name in self.names]

    def inputs(self, layer: int) -> int:
        return self.wide if layer else self.I

    def __str__(self) -> str:
        rows = "ragged" if self.ragged else f"T {self.T}"
        if self.padded:
            rows += ", padded"
        flags = [n for n in ("stateful", "dropout", "pinned", "walk", "sourced", "step", "rounded") if getattr(self, n)]
        sizes = f"{rows}, B {self.B}, I {self.I}, H {self.H}" + (f", P {self.P}" if self.projected else "")
        counts = ((self.layers, "layer"), (self.D, "direction"), (self.threads, "thread"))
        more = [counted(n, name) for n, name in counts]
        return ", ".join([f"{self.cell.name}: {sizes}", *more, str(self.dtype)[6:], *flags])
