"""Layers and batches, as --shapes and --cells name them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ... import cells
from ...errors import PlaitError, unknown

CELLS = ("lstm", "gru", "rnn")  # those that torch.nn has, too


@dataclass(frozen=True)
class Case:
    """One layer, or several on top of one another, and a dense batch for it."""

    cell: str
    B: int
    T: int
    I: int
    H: int
    layers: int = 1

    @property
    def shape(self) -> str:
        return f"{self.B},{self.T},{self.I},{self.H},{self.layers}"

    @property
    def gates(self) -> int:  # G*H
        return len(cells.get(self.cell).gates) * self.H

    def work(self, input_gradient: bool = False) -> int:
        """Multiplications and additions of a step's matrix products.

        Those with W are two, and a third where the gradient of the input is wanted; those with R are three.
        """
        first = (3 if input_gradient else 2) * self.I + 3 * self.H
        return 2 * self.T * self.B * self.gates * (first + (self.layers - 1) * 6 * self.H)


def parse_cell(name: str) -> str:
    if name not in CELLS:
        raise unknown("cell", name, CELLS)
    return name


def parse_cells(text: str) -> list[str]:
    return [parse_cell(name) for name in text.split(",")]


def parse_shapes(text: str, cells: Sequence[str]) -> list[Case]:
    """Every shape with every cell."""
    cases = []
    for shape in text.split() or [text]:
        if not re.fullmatch(r"[1-9][0-9]{0,4}(,[1-9][0-9]{0,4}){4}", shape):
            expected = "expected B,T,I,H,layers, each 1 to 99999, such as 32,128,64,64,1"
            raise PlaitError(f"shape '{shape}': {expected}; between two shapes a space.")
        cases += [Case(cell, *map(int, shape.split(","))) for cell in cells]
    return cases


def check_one_layer(cases: Sequence[Case], what: str) -> None:
    for case in cases:
        if case.layers > 1:
            raise PlaitError(f"shape '{case.shape}': {what} of one layer: let it end with ,1.")
