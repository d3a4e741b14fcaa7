"""A process with one contender. It reads orders, a line of JSON each, and answers each with one line.

{"do": "load", "network": [...], "weights": FILE}  one step, whose weights go to FILE -> {"loss", "seconds"}
{"do": "run", "warm": N, "steps": N}  -> {"loss", "seconds"}, without the warm steps
{"do": "profile", "steps": N}  -> {"seconds": {part: seconds}}
An order that fails is answered with {"error": sentence}. At the end of its input the process ends.
"""

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy as np

if not __package__:  # started by its path: the folder is a package all the same
    __package__ = "contenders"
    sys.modules[__package__] = ModuleType(__package__)
    sys.modules[__package__].__path__ = [str(Path(__file__).parent)]

from .network import Network


class Worker:
    """A method for each order."""

    def __init__(self, module: str, variant: str) -> None:
        self.module, self.variant = module, variant
        self.contender: Any = None

    def load(self, network: list[Any], weights: str) -> dict[str, Any]:
        """network: what Network.drawn takes"""
        net = Network.drawn(*network)
        self.contender = None  # its memory goes first
        start = time.perf_counter()
        self.contender = import_module(f".with_{self.module}", __package__).prepare(net, self.variant)
        loss = self.contender.run(1)
        seconds = time.perf_counter() - start
        np.savez(weights, **self.contender.weights())
        return {"loss": loss, "seconds": seconds}

    def run(self, warm: int, steps: int) -> dict[str, Any]:
        if warm:
            self.contender.run(warm)
        start = time.perf_counter()
        loss = self.contender.run(steps)
        return {"loss": loss, "seconds": time.perf_counter() - start}

    def profile(self, steps: int) -> dict[str, Any]:
        return {"seconds": self.contender.profile(steps)}


def serve(worker: Worker, orders: TextIO, answers: TextIO) -> None:
    for line in orders:
        try:
            order = json.loads(line)
            answer = getattr(worker, order.pop("do"))(**order)
        except Exception as e:  # whatever a library raises, the other side names it
            answer = {"error": f"{type(e).__name__}: {e}".partition("\n")[0]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    serve(Worker(*sys.argv[1:]), sys.stdin, answers)
