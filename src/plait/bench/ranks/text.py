"""The text that `bench ranks` trains on, or one that is made up, as a task."""

from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from ...data.text import EOS, PARTS, UNK, Encoded, Vocabulary
from ...layout import Layout
from ...tasks.corpus import Corpus
from ...tasks.language import Language
from ...tasks.language_model import LanguageModel
from ...tasks.settings import LanguageSettings
from ..bucketing.measure import Scheme

# Sentences of Penn Treebank have 21 words on average, give or take 10, and never more than 82.
SHAPE, SCALE, LONGEST = 4.2, 5.0, 82
FOLLOWS = 0.4  # how often a word is followed by its favourite: something that a network can learn


def made_up(V: int, count: int, seed: int) -> Corpus:
    """About V words, the k-th as frequent as 1 / k, in sentences as long as Penn Treebank's."""
    random = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, V - 1)
    limits = np.cumsum(frequency / frequency.sum())
    favourite = np.searchsorted(limits, random.random(V - 2))
    parts = {}
    for part in PARTS:
        size = sentences_of(part, count)
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
        starts = encoded.starts[: sentences_of(part, count) + 1]
        parts[part] = Encoded(encoded.ids[: int(starts[-1])], starts, 0)
    return Corpus(corpus.name, corpus.vocabulary, parts)


def sentences_of(part: str, count: int) -> int:
    return count if part == "train" else max(2, count // 20)


class Text(Language):
    """The language task, and those of its batches that are measured."""

    learns = False  # whether a step changes the weights

    def __init__(self, settings: LanguageSettings, corpus: Corpus, size: int, model: LanguageModel | None = None):
        super().__init__(settings, corpus)
        self.model = model or self.model
        self.by = settings.by  # how batches are made of the text
        self.chosen = list(islice(self.sampler.batches(0), size))
        self.size = len(self.chosen)

    @cached_property
    def reference(self) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradients of its first batch, by one process."""
        loss, _ = self.loss(self.chosen[0])
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        return loss.item(), dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


class Padded(Text):
    """Batches of `bench bucketing`, some of them padded. Ranks do not share them out."""

    def __init__(self, base: Text, by: str, scheme: Scheme) -> None:
        self.__dict__ |= vars(base)
        self.by, self.scheme, self.size = by, scheme, len(scheme.batches)
        self.chosen = list(torch.arange(self.size))

    def count(self, indices: Tensor) -> int:
        return int((self.scheme.batches[int(indices)][1] >= 0).sum())

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor, Layout, tuple[Tensor, ...] | None]:
        tokens, targets, found = self.scheme.batches[int(indices)]
        return tokens, targets, Layout(found.T, found.B, found.batch_sizes), None  # engines keep data in a used layout
