"""What the text of a CUDA kernel depends on, and what such texts are made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...cells import Cell
from ...cells.trace import trace


@dataclass(frozen=True)
class Form:
    """All that the text of a layer's kernel depends on."""

    cell: type[Cell]
    dt: float = 1
    reverse: bool = False
    bias: bool = True
    projected: bool = False
    source: bool = False  # something is added to each new state
    given: tuple[bool, ...] = ()  # per state: a gradient comes in at every step
    apart: bool = False  # the new states are in after_k, and not in past_k: the steps were linearised elsewhere

    @property
    def gates(self) -> range:
        return range(len(self.cell.gates))

    @property
    def states(self) -> range:
        return range(len(self.cell.states))

    @property
    def params(self) -> range:
        return range(len(self.cell.params))

    @property
    def saved(self) -> range:
        return range(len(trace(self.cell, self.dt).saved))

    def is_raw(self, state: int) -> bool:
        """Of a step it is h before the projection."""
        return self.projected and state == 0

    @property
    def shared(self) -> bool:
        """d_rh is d_wx, in all gates."""
        return all(trace(self.cell, self.dt).shared)


def indented(lines: Iterable[str], by: int = 1) -> str:
    return "".join(f"{'    ' * by}{line}\n" for line in lines)


def block(head: str, *bodies: Iterable[str]) -> list[str]:
    return [head, *(f"    {line}" for body in bodies for line in body)]


def each(pattern: str, count: Iterable[int]) -> list[str]:
    return [pattern.format(k=k) for k in count]


def call(results: Sequence[str], function: str, arguments: Iterable[str]) -> str:
    return f"{', '.join(results)} = {function}({', '.join(arguments)})"


def step_and_vjp(cell: type[Cell], dt: float) -> list[str]:
    """The traced texts, under these names."""
    traced = trace(cell, dt)
    named = [(traced.step, "step"), (traced.vjp, "vjp")]
    return [text.replace(f"def {cell.name}_{name}(", f"def {name}(", 1) for text, name in named]
