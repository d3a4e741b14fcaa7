"""Whole epochs in turns: the loop of `plait train classify`, and a torch script."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from ...data.sequences import RawSequences, Source
from ...tasks.classify import Classify, read_all
from ...tasks.dataset import Dataset
from ...tasks.settings import ClassifySettings
from ...training.loop import train
from ..core import Report, take_turns
from ..questions import ClassifyOptions

SHAPE = (2400, 128, 9, 6)  # sequences, steps, columns, classes: the third paper's part of UCI HAR
CELLS = ("implicit_gru", "gru", "lstm")
MADE_UP, SCRIPT = "made up", "a torch script, nn.GRU"


def made_up(seed: int) -> Source:
    """Noise around a wave, a different one for each class."""
    n, T, D, C = SHAPE
    rng, labels = np.random.default_rng(seed), np.arange(n) % C
    waves = np.sin(np.arange(T)[:, None] * (1 + np.arange(C)) / 20)  # (T, C)
    rows = rng.normal(size=(n, T, D)) + waves.T[labels][:, :, None]
    found = RawSequences(list(rows), [str(k) for k in labels], [f"sequence {k + 1}" for k in range(n)])
    return Source(MADE_UP, [str(d + 1) for d in range(D)], {"train": found})


class Script:
    """As an expert would write it for a CPU: time first, fused Adam, one gather for each batch."""

    def __init__(self, s: ClassifySettings, data: Dataset) -> None:
        D, C = len(data.columns), len(data.classes)
        self.rnn = nn.GRU(D, s.hidden, s.layers, dropout=s.dropout if s.layers > 1 else 0.0)
        self.dropout, self.head = nn.Dropout(s.dropout), nn.Linear(s.hidden, C)
        self.model = nn.ModuleList([self.rnn, self.dropout, self.head])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=s.lr, fused=True)
        self.batch, self.clip = s.batch_size(len(data.parts["train"])), s.clip
        self.parts = {}
        for name, part in data.parts.items():
            x = pad_sequence(part.rows.split(part.lengths.tolist()))  # (T, n, D)
            self.parts[name] = x, part.lengths, part.labels

    def logits(self, x: Tensor, lengths: Tensor) -> Tensor:
        even = bool((lengths == len(x)).all())
        _, h = self.rnn(x if even else pack_padded_sequence(x, lengths, enforce_sorted=False))
        return self.head(self.dropout(h[-1]))  # type: ignore[no-any-return]

    def __call__(self) -> None:
        """An epoch."""
        self.model.train()
        x, lengths, labels = self.parts["train"]
        for some in torch.randperm(len(labels)).split(self.batch):
            mine = lengths[some]
            logits = self.logits(x[: int(mine.max()), some], mine)
            loss = nn.functional.cross_entropy(logits, labels[some])
            self.optimizer.zero_grad()
            loss.backward()
            if self.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            loss.item()
        if "valid" in self.parts:
            self.model.eval()
            x, lengths, labels = self.parts["valid"]
            with torch.no_grad():
                nn.functional.cross_entropy(self.logits(x, lengths), labels).item()


def dataset(s: ClassifySettings) -> Dataset:
    source = made_up(s.seed) if s.data == MADE_UP else read_all(s)
    return Dataset.of(source, validation=s.validation, test=s.test, missing=s.missing, seed=s.seed)


def measure(options: ClassifyOptions) -> Report:
    given = options.some("hidden", "layers", "dropout", "seed")
    s = ClassifySettings(data=options.data or MADE_UP, batch=str(options.batch), lr=1e-3, epochs=1, patience=0, **given)
    found = dataset(s)
    contenders: dict[str, Callable[[], Any]] = {}
    for cell in CELLS:  # the loop of `plait train classify`
        mine = dataclasses.replace(s, cell=cell)
        contenders[f"plait, {cell}"] = partial(train, Classify(mine, found), mine)
    contenders[SCRIPT] = Script(s, found)
    seconds = take_turns(contenders, options.repeats, least=0)
    train_part = found.parts["train"]
    rows = []
    for name in contenders:
        each = {"samples/s": len(train_part) / seconds.median(name), "s/epoch": seconds.median(name)}
        rows.append({"what": name, **each, **seconds.faster(name, than=SCRIPT).row("faster")})
    low, high = int(train_part.lengths.min()), int(train_part.lengths.max())
    return Report(
        f"How many sequences a second? {found.name}, {len(train_part):,} to train on, {low} to {high} steps of "
        f"{len(found.columns)}, {s.layers} x {s.hidden} units, batch {s.batch}",
        [("what", "samples/s", "s/epoch", "faster", "low", "high")],
        rows,
        ["An epoch with its validation; faster: than the script, median and quartiles of the turns."],
    )
