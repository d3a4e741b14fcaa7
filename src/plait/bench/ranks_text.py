"""The text that `bench ranks` trains on, made up if there is none, and its batches, which any number of ranks share."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.sampler import Sampler
from ..data.text import EOS, PARTS, UNK, Encoded, Vocabulary
from ..data.text_batches import Streams, columns, sentences
from ..errors import PlaitError
from ..layout import Layout
from ..tasks.corpus import Corpus
from .bucketing import Scheme

# Sentences of Penn Treebank have 21 words on average, give or take 10, and never more than 82.
SHAPE, SCALE, LONGEST = 4.2, 5.0, 82
FOLLOWS = 0.4  # how often a word is followed by its favourite: something that a network can learn


def made_up(V: int, count: int, seed: int) -> Corpus:
    """About V different words, the k-th as frequent as 1 / k, in `count` sentences as long as Penn Treebank's."""
    random = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, V - 1)
    limits = np.cumsum(frequency / frequency.sum())
    favourite = np.searchsorted(limits, random.random(V - 2))
    parts = {}
    for part, size in zip(PARTS, (count, max(2, count // 20), max(2, count // 20)), strict=True):
        lengths = random.gamma(SHAPE, SCALE, size).round().clip(1, LONGEST).astype(np.int64)
        lengths[0] = LONGEST
        words = np.searchsorted(limits, random.random(lengths.sum()))
        for t in np.flatnonzero(random.random(len(words)) < FOLLOWS):
            words[t] = favourite[words[t - 1]] if t else words[t]
        ends = np.cumsum(lengths)
        ids = np.insert(words + 2, ends, 1).astype(np.int32)  # 0 and 1 are UNK and EOS
        starts = np.concatenate([[0], ends + np.arange(1, size + 1)])
        parts[part] = Encoded(torch.from_numpy(ids), torch.from_numpy(starts), 0)
    return Corpus("a text made up", Vocabulary((UNK, EOS, *(f"w{k}" for k in range(V - 2))), "word"), parts)


def beginning(corpus: Corpus, count: int) -> Corpus:
    """The first sentences of each part, with the whole vocabulary."""
    parts = {}
    for part, encoded in corpus.parts.items():
        starts = encoded.starts[: (count if part == "train" else max(2, count // 20)) + 1]
        parts[part] = Encoded(encoded.ids[: int(starts[-1])], starts, 0)
    return Corpus(corpus.name, corpus.vocabulary, parts)


class Rows(NamedTuple):
    """What one rank has of a batch."""

    tokens: Tensor  # (N,)
    targets: Tensor  # (N,); -1 for padding
    layout: Layout
    real: int  # targets without padding
    total: int  # the same of the whole batch


class Source(ABC):
    """Some batches of a text."""

    name: str  # of how the text is cut
    size: int  # batches

    @abstractmethod
    def part(self, k: int, rank: int, ranks: int) -> Rows:
        """What a rank has of batch k; made anew each time, as in training."""

    def whole(self, k: int) -> Rows:
        return self.part(k, 0, 1)

    @property
    def tokens(self) -> int:
        """Of all batches."""
        return sum(self.whole(k).total for k in range(self.size))


class StreamBatches(Source):
    name = "streams"

    def __init__(self, corpus: Corpus, batch: int, steps: int, size: int) -> None:
        self.size, self.B, self.corpus = size, batch, corpus
        tokens = len(corpus.parts["train"].ids)
        if tokens < batch * steps * size:
            raise PlaitError(
                f"{corpus.name} has {tokens:,} words to train on, and {size} batches of {batch} x {steps} need "
                f"{batch * steps * size:,}: give a longer text, or lower --batch, --steps or --ranks."
            )
        self.streams = Streams(tokens, batch, steps)

    def part(self, k: int, rank: int, ranks: int) -> Rows:
        index = torch.tensor([k])
        positions, layout = self.streams.batch(index, columns(self.B, rank, ranks))
        targets = self.corpus.parts["train"].ids[positions].long()
        return Rows(self.corpus.before["train"][positions], targets, layout, layout.N, self.streams.count(index))


class SentenceBatches(Source):
    """Sentences as they come, without padding."""

    name = "sentences"

    def __init__(self, corpus: Corpus, batch: int, size: int, seed: int) -> None:
        self.corpus, self.lengths = corpus, corpus.parts["train"].lengths
        self.sampler = Sampler(self.lengths, batch, seed)
        self.batches = [indices for indices, _ in zip(self.sampler.batches(0), range(size), strict=False)]
        self.size = len(self.batches)

    def part(self, k: int, rank: int, ranks: int) -> Rows:
        indices = self.batches[k]
        positions, layout = sentences(self.corpus.parts["train"].starts, self.sampler.part(indices, rank, ranks))
        targets = self.corpus.parts["train"].ids[positions].long()
        return Rows(self.corpus.before["train"][positions], targets, layout, layout.N, int(self.lengths[indices].sum()))


class SchemeBatches(Source):
    """Batches of `bench bucketing`, some of them padded. They are not shared out."""

    def __init__(self, name: str, scheme: Scheme) -> None:
        self.name, self.scheme, self.size = name, scheme, len(scheme.batches)

    def part(self, k: int, rank: int, ranks: int) -> Rows:
        tokens, targets, found = self.scheme.batches[k]
        layout = Layout(found.T, found.B, found.batch_sizes)  # engines have stored nothing in it, as in training
        count = int((targets >= 0).sum())
        return Rows(tokens, targets, layout, count, count)
