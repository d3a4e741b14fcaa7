"""Regress: a sequence in, some numbers out. For plait.sklearn; there is no such command."""

import hashlib

import torch
from torch import Tensor, nn

from ..data.sampler import Sampler
from ..data.sequences import Sequences
from ..training.task import Task
from .memory import check_training
from .pooled import Pooled, judge
from .settings import PooledSettings


class Regress(Task):
    model: Pooled
    sampler: Sampler

    def __init__(
        self, settings: PooledSettings, sequences: Sequences, targets: Tensor, train: Tensor, valid: Tensor
    ) -> None:
        """targets (n, K): on a scale on which their spread is about 1. train, valid: the numbers of those sequences."""
        s, D, K = settings, sequences.rows.shape[1], targets.shape[1]
        self.sequences, self.targets, self.train, self.valid = sequences, targets, train, valid
        batch = s.batch_size(len(self.train))
        longest = int(sequences.lengths.max())
        check_training(s, lambda: Pooled(s, D, K), batch * longest * (1 + s.bidirectional))
        torch.manual_seed(s.seed)
        self.model, self.sampler = Pooled(s, D, K), Sampler(len(self.train), batch, s.seed)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.sequences.rows.numpy().data).hexdigest()

    def count(self, indices: Tensor) -> int:
        return len(indices)

    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        mine = self.train[indices]
        predicted = self.model(*self.sequences.batch(mine), ids=mine)
        return nn.functional.mse_loss(predicted, self.targets[mine]), len(mine)

    def validate(self) -> float | None:
        if not len(self.valid):
            return None
        found = judge(self.model, self.sequences.where(self.valid))
        return nn.functional.mse_loss(found, self.targets[self.valid]).item()
