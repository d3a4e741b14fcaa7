"""Language models on some batches of a text."""

from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from ...data.sampler import Sampler
from ...data.text_batches import grouped, sentences
from ...layout import Layout
from ...tasks.corpus import Corpus
from ...tasks.language import Language
from ...tasks.language_model import LanguageModel
from ...tasks.settings import LanguageSettings

Rows = tuple[Tensor, Tensor, Layout, tuple[Tensor, ...] | None]  # tokens, targets, how they lie, states


class Text(Language):
    """The language task, and those of its batches that are measured."""

    learns = False  # whether a step changes the weights

    def __init__(
        self, settings: LanguageSettings, corpus: Corpus, size: int = 1, model: LanguageModel | None = None
    ) -> None:
        super().__init__(settings, corpus)
        self.model = model or self.model
        self.chosen = list(islice(self.sampler.batches(0), size))

    @cached_property
    def reference(self) -> dict[str, Tensor]:
        """Loss and gradients of its first batch, by one process."""
        loss, _ = self.loss(self.chosen[0])
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, parameters)
        return {"loss": loss.detach(), **dict(zip(names, gradients, strict=True))}


class Scheme(Text):
    """The sentences of a task in batches that are made in one way. Ranks do not share them out.

    Some stand for all of an epoch, taken evenly from them in the order of their size. Their rows are made beforehand.
    how: as --buckets has it. padded: to what the batch's bucket is for, else ragged
    """

    def __init__(self, base: Text, how: str, padded: bool, count: int) -> None:
        self.__dict__ |= vars(base)
        self.train, self.padded = self.corpus.parts["train"], padded
        batch = self.settings.batch_size(len(self.train.lengths))
        self.order: Sampler = grouped(how, self.train.lengths, batch, self.settings.seed)
        every = sorted((self.slots(indices), k, indices) for k, indices in enumerate(self.order.batches(0)))
        count = min(count, len(every))
        some = [every[(2 * k + 1) * len(every) // (2 * count)] for k in range(count)]
        self.epoch_slots, chosen_slots = (sum(slots for slots, _, _ in these) for these in (every, some))
        self.scale = self.epoch_slots / chosen_slots  # the epoch's time over that of some batches
        self.tokens = int(sum(self.train.lengths[indices].sum() for _, _, indices in some))
        self.batches = [self.made(indices) for _, _, indices in some]
        self.chosen = list(torch.arange(count))

    @property
    def padding(self) -> float:
        return 1 - int(self.train.lengths.sum()) / self.epoch_slots

    def slots(self, indices: Tensor) -> int:
        if self.padded:
            return len(indices) * self.order.length_of(indices)
        return int(self.train.lengths[indices].sum())

    def made(self, indices: Tensor) -> tuple[Tensor, Tensor, Layout]:
        """Tokens and targets (N,) and how they lie; the target of padding is -1."""
        positions, layout = sentences(self.train.starts, indices)
        tokens, targets = self.pairs("train", (positions, layout))
        if not self.padded:
            return tokens, targets, layout
        padded = Layout(self.order.length_of(indices), len(indices))
        places = layout.places(padded.T, batch_first=False)
        tokens = tokens.new_zeros(padded.N).index_copy(0, places, tokens)
        return tokens, targets.new_full((padded.N,), -1).index_copy(0, places, targets), padded

    def count(self, indices: Tensor) -> int:
        return int((self.batches[int(indices)][1] >= 0).sum())

    def rows(self, indices: Tensor) -> Rows:
        tokens, targets, found = self.batches[int(indices)]
        return tokens, targets, Layout(found.T, found.B, found.batch_sizes), None  # engines keep data in a used layout
