"""The text that `bench ranks` trains on, or one that is made up."""

import numpy as np
import torch

from ...data.text import EOS, PARTS, UNK, Encoded, Vocabulary
from ...tasks.corpus import Corpus
from ...tasks.settings import LanguageSettings
from ..questions import RanksOptions

WORDS, SENTENCES = (10_000, 1_000), (42_000, 1_500)  # of a text made up; then with --quick
# Sentences of Penn Treebank have 21 words on average, give or take 10, and never more than 82.
SHAPE, SCALE, LONGEST = 4.2, 5.0, 82
FOLLOWS = 0.4  # how often a word is followed by its favourite: something that a network can learn


def read(order: RanksOptions) -> Corpus:
    if order.data is None:
        return made_up(WORDS[order.quick], SENTENCES[order.quick], order.seed)
    corpus = Corpus.read(LanguageSettings(data=order.data))
    return beginning(corpus, SENTENCES[True]) if order.quick else corpus


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
