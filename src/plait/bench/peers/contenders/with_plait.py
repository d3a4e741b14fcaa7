"""plait: its layer in engine `fused`. The rest is what any user of torch has: nn.Linear, mse_loss, autograd, SGD."""

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import plait
from plait.kernels.launch import threads

from .network import Network
from .with_torch import Torch, use_threads


class Plait(Torch):
    def __init__(self, net: Network, engine: str = "fused") -> None:
        super().__init__(net)
        plait.accelerate(self.layer, engine)

    def profile(self, steps: int) -> dict[str, float]:
        """Seconds of a step by part. The rest of the layer's call and of the backward pass is Python, autograd, and the
        head's backward pass."""
        spent = dict.fromkeys(("kernels", "layer, rest", "head and loss", "back, rest", "optimizer"), 0.0)
        run, clock = threads.run, time.perf_counter

        def timed(part: str, call: Callable[..., Any], *args: Any) -> Any:
            kernels, start = spent["kernels"], clock()
            result = call(*args)
            spent[part] += clock() - start - (spent["kernels"] - kernels if part != "kernels" else 0)
            return result

        x, y = self.data
        with patch.object(threads, "run", lambda *args: timed("kernels", run, *args)):
            for _ in range(steps):
                timed("optimizer", self.optimizer.zero_grad)
                out, _ = timed("layer, rest", self.layer, x)
                loss = timed("head and loss", self.on_top, out, y)
                timed("back, rest", loss.backward)
                timed("optimizer", self.optimizer.step)
        return {part: seconds / steps for part, seconds in spent.items()}


def prepare(net: Network, variant: str) -> Plait:
    use_threads()
    return Plait(net)
