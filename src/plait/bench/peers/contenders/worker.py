"""A process with one contender. It reads orders, a line of JSON each, and answers each with one line.

{"do": "load", "network": FILE, "weights": FILE}  one step -> {"loss", "seconds"}, the weights after it are in FILE
{"do": "run", "warm": N, "steps": N}              -> {"loss", "seconds"}: those of the steps, not of the warm ones
{"do": "profile", "steps": N}                     -> {"seconds": {part: seconds}}
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

from .network import Contender, Network


class Worker:
    def __init__(self, module: str, variant: str) -> None:
        self.module, self.variant = module, variant
        self.contender: Contender | None = None

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        match order:
            case {"do": "load", "network": network, "weights": weights}:
                return self.load(Path(network), Path(weights))
            case {"do": "run", "warm": int(warm), "steps": int(steps)}:
                return self.run(warm, steps)
            case {"do": "profile", "steps": int(steps)}:
                return {"seconds": self.loaded().profile(steps)}
        raise ValueError(f"order {order} is not known")

    def load(self, network: Path, weights: Path) -> dict[str, Any]:
        start = time.perf_counter()
        self.contender = None  # its memory goes first
        prepare = import_module(f".with_{self.module}", __package__).prepare
        self.contender = prepare(Network.load(network), self.variant)
        loss = self.loaded().run(1)
        seconds = time.perf_counter() - start
        found: dict[str, Any] = dict(self.loaded().weights())
        np.savez(weights, **found)
        return {"loss": loss, "seconds": seconds}

    def run(self, warm: int, steps: int) -> dict[str, Any]:
        contender = self.loaded()
        if warm:
            contender.run(warm)
        start = time.perf_counter()
        loss = contender.run(steps)
        return {"loss": loss, "seconds": time.perf_counter() - start}

    def loaded(self) -> Contender:
        if self.contender is None:
            raise ValueError("no network is loaded")
        return self.contender


def serve(worker: Worker, orders: TextIO, answers: TextIO) -> None:
    for line in orders:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as e:  # whatever a library raises, the other side names it
            answer = {"error": f"{type(e).__name__}: {e}".partition("\n")[0]}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    serve(Worker(*sys.argv[1:3]), sys.stdin, answers)


if __name__ == "__main__":
    main()
