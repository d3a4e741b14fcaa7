"""The kind of model that a mesh can cut into stages."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


class Stack(nn.Module):
    """An embedding, recurrent layers and a head: the kind of network that a mesh can cut into stages.

    first: makes rows of numbers from the input, each row by itself (an Embedding, a Linear, a Sequential of them)
    rnn: a layer of plait, of any depth, or several of them
    head: reads the outputs of the last layer, each row by itself
    """

    def __init__(self, first: nn.Module, rnn: nn.Module | Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.first, self.head = first, head
        self.rnn = nn.ModuleList(rnn if isinstance(rnn, Sequence) else [rnn])

    def forward(self, x: Tensor, lengths: Any = None) -> Any:
        """Input (T, B, ...), or (B, T, ...) if the layers are so, to what the head gives for each step."""
        y = self.first(x)
        for layer in self.rnn:
            y, _ = layer(y, lengths=lengths)
        return self.head(y)
