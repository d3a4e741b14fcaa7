"""Classes that others derive from torch's layers: one that plait can swap, and one that computes by itself."""

from typing import Any

from torch import nn


class Doubled(nn.LSTM):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.factor = 2

    def forward(self, x, hx=None):
        y, state = super().forward(x, hx)
        return self.factor * y, state


class OwnLoop(nn.LSTM):
    def forward(self, x, hx=None):
        return x, hx
