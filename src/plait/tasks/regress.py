"""Regress: a sequence in, some numbers out. For plait.sklearn; there is no such command."""

import hashlib

from torch import Tensor, nn

from ..data.sampler import Sampler
from ..data.sequences import Sequences
from ..training.task import Task
from .memory import build_model
from .pooled import Pooled, predict
from .settings import PooledSettings


class Regress(Task):
    model: Pooled
    sampler: Sampler

    def __init__(
        self, settings: PooledSettings, sequences: Sequences, targets: Tensor, train: Tensor, valid: Tensor
    ) -> None:
        """targets (n, K): scaled. train, valid: the numbers of those sequences"""
        s, D, K = settings, sequences.rows.shape[1], targets.shape[1]
        self.sequences, self.targets, self.train, self.valid = sequences, targets, train, valid
        batch = s.batch_size(len(self.train))
        steps = int(sequences.lengths.max())
        self.model = build_model(s, lambda: Pooled(s, D, K), batch * steps * (1 + s.bidirectional), steps)
        self.sampler = Sampler(len(self.train), batch, s.seed)

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
        found = predict(self.model, self.sequences.where(self.valid))
        return nn.functional.mse_loss(found, self.targets[self.valid]).item()
