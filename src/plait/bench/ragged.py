"""What does a layer cost on sentences as they come, beside torch's padded and packed ones?"""

import copy
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .. import cells, layers
from ..data import text
from ..errors import PlaitError, between
from ..ladder.compare import worst
from ..layout import Layout
from ..tasks.memory import check_layer
from ..tasks.settings import WIDEST
from .options import CellNames, Repeats, Seed, Text
from .report import Report, check, interleaved, ratio, timing, tracked
from .steps import TORCH, parse_cells

TIMES = ("draw", "cell", "real %", "padded", "packed", "plait", "rows", "dense")
RATIOS = ("draw", "cell", "faster", "low", "high", "of dense", "rows, of dense")


class Draw:
    """Sentences drawn from a text, and the ways to run a layer over them, forward and back."""

    def __init__(self, cell: str, lengths: Tensor, H: int) -> None:
        self.lengths, self.T, self.B, self.N = lengths, int(lengths.max()), len(lengths), int(lengths.sum())
        check_layer(self.B, self.T, H, H, len(cells.get(cell).gates) * H, of=2)
        self.theirs = TORCH[cell](H, H)
        self.ours = layers.accelerate(copy.deepcopy(self.theirs), "fused")
        self.x = torch.randn(self.T, self.B, H, requires_grad=True)  # as an embedding is: its gradient is wanted, too
        alive = torch.arange(self.T).unsqueeze(1) < lengths
        self.d_y = torch.randn(self.T, self.B, H) * alive.unsqueeze(2)
        self.rows = Layout.of_lengths(lengths).packed_sequence(torch.randn(self.N, H, requires_grad=True))
        self.d_rows = torch.randn(self.N, H)
        steps = max(1, round(self.N / self.B))
        self.dense_x, self.dense_d_y = torch.randn(2, steps, self.B, H)
        self.dense_x.requires_grad_()
        self.dense_N = steps * self.B

    def clear(self) -> None:
        self.theirs.zero_grad(set_to_none=True)
        self.ours.zero_grad(set_to_none=True)
        self.x.grad = self.dense_x.grad = self.rows.data.grad = None

    def packing(self, layer: nn.Module) -> Tensor:
        packed: PackedSequence = layer(pack_padded_sequence(self.x, self.lengths, enforce_sorted=False))[0]
        return pad_packed_sequence(packed, total_length=self.T)[0]

    def contenders(self) -> dict[str, Callable[[], None]]:
        def step(y: Callable[[], Tensor], d_y: Tensor) -> Callable[[], None]:
            def run() -> None:
                self.clear()
                y().backward(d_y)

            return run

        return {
            "padded": step(lambda: self.theirs(self.x)[0], self.d_y),
            "packed": step(lambda: self.packing(self.theirs), self.d_y),
            "plait": step(lambda: self.ours(self.x, lengths=self.lengths)[0], self.d_y),
            "rows": step(lambda: self.ours(self.rows)[0].data, self.d_rows),
            "dense": step(lambda: self.ours(self.dense_x)[0], self.dense_d_y),
        }

    def deviation(self) -> float:
        """Of outputs and gradients, from torch's packed ones."""
        found = []
        for y, layer in (
            (self.packing(self.theirs), self.theirs),
            (self.ours(self.x, lengths=self.lengths)[0], self.ours),
        ):
            found.append([y.detach(), *torch.autograd.grad(y, [self.x, *layer.parameters()], self.d_y)])
        theirs, ours = found
        return worst(ours, theirs)


def compare(name: int, cell: str, draw: Draw, repeats: int) -> dict[str, Any]:
    seconds = interleaved(draw.contenders(), repeats)
    better = min(("padded", "packed"), key=lambda which: timing(seconds[which]).median)
    faster = ratio(seconds[better], seconds["plait"])
    dense = [t / draw.dense_N for t in seconds["dense"]]  # for a step of a sequence
    of_dense = {which: ratio([t / draw.N for t in seconds[which]], dense).median for which in ("plait", "rows")}
    return {
        "draw": name,
        "cell": cell,
        "real %": 100 * draw.N / (draw.T * draw.B),
        **{which: timing(values).median * 1e3 for which, values in seconds.items()},
        "faster": faster.median,
        "low": faster.low,
        "high": faster.high,
        "of dense": of_dense["plait"],
        "rows, of dense": of_dense["rows"],
        "deviation": draw.deviation(),
    }


def measure(
    data: Text = None,
    cells: CellNames = "lstm,gru",
    batch: Annotated[int, "Sentences in a batch."] = 32,
    hidden: Annotated[int, "Units, and inputs."] = 200,
    draws: Annotated[int, "Batches drawn, each measured by itself."] = 5,
    repeats: Repeats = 9,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    between("draws", draws, 1, 10_000)
    between("batch", batch, 1, 10**6)
    between("hidden", hidden, 1, WIDEST)
    names = parse_cells(cells)
    if data is None:
        raise PlaitError("ragged batches need sentences: give a text file, a folder or a zip with --data.")
    texts = text.read(data)
    every = torch.tensor([len(words) for words in text.sentences(texts.parts["train"])])
    if len(every) < batch:
        raise PlaitError(f"{data} has {len(every)} sentences to train on: expected at least a batch, {batch}.")
    cases = []
    for k in range(draws):
        generator = torch.Generator().manual_seed(seed + k)
        lengths = every[torch.randperm(len(every), generator=generator)[:batch]]
        cases += [(seed + k, cell, lengths) for cell in names]
    torch.manual_seed(seed)
    rows = [compare(k, cell, Draw(cell, lengths, hidden), repeats) for k, cell, lengths in tracked(cases)]
    return Report(
        f"What does a layer of {hidden} cost on {batch} sentences of {texts.name}, as they come?",
        [TIMES, RATIOS],
        rows,
        [
            "Milliseconds. padded, packed: torch.nn's. plait: a padded tensor with lengths=. rows: a PackedSequence.",
            "dense: plait's on as many steps, dense. faster: the better of torch's over plait's.",
            "of dense: the time for a real step over that for a dense one.",
            f"Outputs and gradients differ from torch's by at most {max(r['deviation'] for r in rows):.1e} (relative).",
        ],
    )
