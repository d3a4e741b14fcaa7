"""What a plan runs, one after the other: a launch, a product by torch, a mask, a copy by torch."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..errors import counted
from ..kernels import pool
from ..kernels.launch.bindings import WORKSPACE, Spot
from ..kernels.launch.program import ByTorch, Chain
from ..layout import Layout


class Frame:
    """The tensors of one pass, and their bindings."""

    x: Tensor  # the input
    rows: Tensor  # the output, or its gradient
    d_x: Tensor | None
    states: list[Tensor]  # the last ones, or in the backward pass d_ of the initial ones
    tapes: Sequence[Tensor]  # per direction
    d_tapes: Sequence[Tensor]
    scratch: Tensor | None  # what exists only during the pass
    weights: Sequence[Tensor]
    gradients: list[Tensor | None]  # of the weights
    masks: Sequence[Tensor]
    firsts: Sequence[int]  # per direction: the first row of x
    layout: Layout
    N: int
    values: list[int]

    def matrix(self, tensor: Tensor, spot: Spot, rows: int, columns: int) -> Tensor:
        start = tensor.storage_offset() + spot.numbers + self.N * spot.per_row
        return tensor.as_strided((rows, columns), (columns, 1), start)


class Segment(ABC):
    @abstractmethod
    def run(self, frame: Frame) -> None: ...


class Launch(Segment):
    """Machine code, on torch's threads: one layer or several."""

    def __init__(self, chain: Chain, layers: Sequence[int]) -> None:
        self.chain, self.layers = chain, layers

    def run(self, frame: Frame) -> None:
        self.start(array("q", frame.values), self.chain.bytes)

    def start(self, values: "array[int]", size: int, inside: Sequence[tuple[int, int]] = ()) -> None:
        """size: of the workspace. inside: bindings that lie in it, and where"""
        workspace = pool.workspace(size)
        values[WORKSPACE] = address = workspace.address
        for number, at in inside:
            values[number] = address + at
        self.chain.run(values, address)
        pool.put(workspace)

    def __str__(self) -> str:
        layers = f"layer {self.layers[0]}" if len(self.layers) == 1 else f"layers {', '.join(map(str, self.layers))}"
        return f"launch   {layers}: {counted(self.chain.count, 'thread')}, {self.chain.bytes} bytes of workspace"


class Product(Segment):
    """A product over whole sequences that torch.mm computes faster, or a sum that follows from a launch's results."""

    def __init__(self, layer: int, what: ByTorch, compute: Callable[[Frame, int, ByTorch], None]) -> None:
        self.layer, self.what, self.compute = layer, what, compute

    def run(self, frame: Frame) -> None:
        self.compute(frame, self.layer, self.what)

    def __str__(self) -> str:
        return f"product  layer {self.layer}, direction {self.what.direction}: {self.what.name} by torch"


class Mask(Segment):
    """Dropout between two layers: on the rows, or on their gradients. They are in the first tape, or in the scratch."""

    def __init__(self, spot: Spot, scratch: int, number: int, width: int) -> None:
        self.spot, self.is_scratch, self.number, self.width = spot, spot.binding == scratch, number, width

    def run(self, frame: Frame) -> None:
        tensor = frame.scratch if self.is_scratch else frame.tapes[0]
        assert tensor is not None
        rows = frame.matrix(tensor, self.spot, frame.N, self.width)
        rows.mul_(frame.masks[self.number].view(frame.N, self.width))

    def __str__(self) -> str:
        return f"mask     rows from layer {self.number} to {self.number + 1}"


class Copy(Segment):
    """Rows of a padded batch, where torch has to see them. Where it has not, the launch copies them itself."""

    def __init__(self, name: str, bindings: Sequence[int] = (), *, out: bool = False) -> None:
        """name: of the frame's tensor; bindings: which get its address. out: from rows to a padded tensor"""
        self.name, self.bindings, self.out = name, bindings, out

    def run(self, frame: Frame) -> None:
        tensor, padding = getattr(frame, self.name), frame.layout.padding
        if tensor is None or padding is None:
            return
        if self.name == "states":
            frame.states = padding.unsorted(tensor)
        elif self.out:
            setattr(frame, self.name, padding.scattered(tensor))
        elif tensor.dim() == 3:
            rows = padding.gathered(tensor)
            setattr(frame, self.name, rows)
            for binding in self.bindings:
                frame.values[binding] = rows.data_ptr()

    def __str__(self) -> str:
        if self.name == "states":
            return "copy     states in the order of the caller, by torch"
        return f"copy     {'scatter' if self.out else 'gather'} {self.name} by torch"


def drawn_masks(like: Tensor, N: int, width: int, count: int, dropout: float) -> Iterator[Tensor]:
    """What torch.nn.functional.dropout multiplies the rows between two layers with, one after another."""
    for _ in range(count):
        yield torch.nn.functional.dropout(like.new_ones(N, width), dropout)
