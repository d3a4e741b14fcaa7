"""A contender in a process of its own: a client's program, plain or accelerated. Each line that it reads is an order.

Its arguments: module, case, plain or plait, float32 or float64.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

answers = os.fdopen(os.dup(1), "w")  # what a client prints goes to stderr
os.dup2(2, 1)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from alone import Alone  # noqa: E402
from program import is_plaits, recurrent  # noqa: E402
from torch import nn  # noqa: E402

import plait  # noqa: E402

KINDS = ("LSTM", "GRU", "RNN")


class Contender:
    def __init__(self, module: str, case: str, contender: str, dtype: str) -> None:
        torch.set_num_threads(1)
        torch.set_default_dtype(getattr(torch, dtype))
        self.seed()
        self.swapped: list[nn.Module] = []
        accelerate = self.accelerate if contender == "plait" else lambda model: model
        self.program = import_module(module).build(case, accelerate)
        self.calls: dict[str, Callable[[], Any]] = {"training": self.program.train, "inference": self.program.infer}

    def seed(self) -> None:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)

    def accelerate(self, model: nn.Module) -> nn.Module:
        plait.accelerate(model)
        self.swapped += [layer for layer in recurrent(model) if is_plaits(layer)]
        return model

    def about(self, package: str) -> dict[str, Any]:
        layers = recurrent(self.program.model)
        used = [layer for layer in layers if any(layer is swapped for swapped in self.swapped)]
        kinds = {kind for kind in KINDS for layer in layers if kind in type(layer).__name__.upper()}
        return {"version": version(package), "layers": len(layers), "swapped": len(used), "kinds": sorted(kinds)}

    def results(self, steps: int) -> dict[str, Any]:
        """Outputs of the untrained model, losses of so many training steps, and outputs of the trained model."""
        self.seed()
        before = self.program.infer().double().flatten().tolist()
        losses = [float(self.program.train()) for _ in range(steps)]
        return {"before": before, "losses": losses, "after": self.program.infer().double().flatten().tolist()}

    def alone(self) -> dict[str, Any]:
        """From now on "training layers" and "inference layers" can be run."""
        for what in ("training", "inference"):
            self.calls[f"{what} layers"] = found = Alone(self.program.model, self.calls[what])
            found()
        return {}

    def run(self, what: str, threads: int, calls: int, cpu: bool) -> dict[str, Any]:
        """-> seconds of a call. The first one, which does not count, wakes the threads."""
        torch.set_num_threads(threads)
        call, clock = self.calls[what], time.process_time if cpu else time.perf_counter
        call()
        start = clock()
        for _ in range(calls):
            call()
        return {"seconds": (clock() - start) / calls}


def main() -> None:
    contender = Contender(*sys.argv[1:])
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(contender, order.pop("do"))(**order)), file=answers, flush=True)


if __name__ == "__main__":
    main()
