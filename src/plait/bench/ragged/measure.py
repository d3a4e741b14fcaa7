"""Batches of sentences in turns: padded, packed and dense."""

import copy
from itertools import product

import torch
from torch import Tensor

from ... import cells, layers
from ...data import text
from ...errors import PlaitError
from ...ladder.compare import worst
from ...layout import Layout
from ...tasks.memory import check_layer
from ..core import Report, Row, take_turns, tracked
from ..core.steps import TORCH, Step, packing
from ..questions import RaggedOptions

TIMES = ("draw", "cell", "real %", "padded", "packed", "plait", "rows", "dense")
RATIOS = ("draw", "cell", "faster", "low", "high", "of dense", "rows, of dense")


class Draw:
    """Sentences drawn from a text, and the ways to run a layer over them."""

    def __init__(self, cell: str, lengths: Tensor, H: int) -> None:
        T, B, self.N = int(lengths.max()), len(lengths), int(lengths.sum())
        check_layer(B, T, H, H, len(cells.get(cell).gates) * H, of=2)
        theirs = TORCH[cell](H, H)
        ours = layers.accelerate(copy.deepcopy(theirs), "fused")
        x = torch.randn(T, B, H, requires_grad=True)  # as an embedding is: its gradient is wanted, too
        alive = torch.arange(T).unsqueeze(1) < lengths
        d_y = torch.randn(T, B, H) * alive.unsqueeze(2)
        rows = Layout.of_lengths(lengths).packed_sequence(torch.randn(self.N, H, requires_grad=True))
        dense = torch.randn(max(1, round(self.N / B)), B, H, requires_grad=True)
        self.real, self.dense_N = self.N / (T * B), dense.shape[0] * B
        self.steps = {
            "padded": Step(theirs, x, d_y),
            "packed": Step(theirs, x, d_y, packing(theirs, x, lengths)),
            "plait": Step(ours, x, d_y, lambda: ours(x, lengths=lengths)[0]),
            "rows": Step(ours, rows.data, torch.randn(self.N, H), lambda: ours(rows)[0].data),
            "dense": Step(ours, dense, torch.randn_like(dense)),
        }


def compare(draw: Draw, repeats: int) -> Row:
    seconds = take_turns(draw.steps, repeats)
    better = min(("padded", "packed"), key=seconds.median)
    steps = draw.dense_N / draw.N  # a dense batch has about as many steps
    row: Row = {"real %": 100 * draw.real, **seconds.ms("")}
    row |= seconds.faster("plait", than=better).row("faster")
    for column, name in (("of dense", "plait"), ("rows, of dense", "rows")):
        row[column] = seconds.faster("dense", than=name).median * steps
    return {**row, "deviation": worst(draw.steps["plait"].results(), draw.steps["packed"].results())}


def measure(options: RaggedOptions) -> Report:
    data, batch, hidden = options.data, options.batch, options.hidden
    names = options.cells.split(",")
    if data is None:
        raise PlaitError("ragged batches need sentences: give a text file, a folder or a zip with --data.")
    texts = text.read(data)
    every = torch.tensor([len(words) for words in text.sentences(texts.parts["train"])])
    if len(every) < batch:
        raise PlaitError(f"{data} has {len(every)} sentences to train on: expected at least a batch, {batch}.")
    rows = []
    seeds = range(options.seed, options.seed + options.draws)
    for seed, cell in tracked([*product(seeds, names)]):
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
        draw = Draw(cell, every[order[:batch]], hidden)
        rows.append({"draw": seed, "cell": cell, **compare(draw, options.repeats)})
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
