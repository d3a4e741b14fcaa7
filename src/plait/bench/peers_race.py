"""The contenders' processes, as seen from the bench: they are asked, checked against float64, and take turns."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..errors import PlaitError
from . import contenders
from .allocators import KEEP
from .contenders.network import WEIGHTS, Network
from .peers_table import Peer
from .report import interleaved
from .steps import TORCH

WORKER = Path(contenders.__file__).with_name("worker.py")
ROOT = Path(contenders.__file__).parents[3]  # where plait is imported from
PATIENCE = 300.0  # seconds until an answer; torch.compile and PyTensor need a minute of it
SAME_LOSS = 1e-5  # relative, after one step of float32
SAME_CHANGE = 1e-3  # of a weight in that step: the largest difference, of the largest change of that tensor
WARM = 4  # a block of so many steps has one more before its clock starts, meanwhile others' threads go to sleep
THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "HL")  # Halide's is HL_NUM_THREADS; XLA takes NPROC
Weights = Mapping[str, NDArray[Any]]


class Failed(PlaitError):
    """A contender cannot be measured, and why."""


class Dropped(Failed):
    """The same, in the middle of a race."""

    def __init__(self, name: str, why: Failed) -> None:
        super().__init__(str(why))
        self.name = name


class Process:
    def __init__(self, peer: Peer, threads: int, folder: Path) -> None:
        env = {**os.environ, **{f"{name}_NUM_THREADS": str(threads) for name in THREADS}, "NPROC": str(threads)}
        env |= KEEP if platform.libc_ver()[0] == "glibc" else {}
        env["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
        if peer.own is not None:
            del env["PYTHONPATH"]
            env["PYTENSOR_FLAGS"] = f"base_compiledir={folder / 'pytensor'}"
        self.said = folder / f"{peer.module}-{peer.variant}.txt"
        with self.said.open("w") as errors:
            self.process = subprocess.Popen(
                [peer.python, "-P", str(WORKER), peer.module, peer.variant],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                cwd=folder,
                text=True,
            )
        self.answers: Queue[str] = Queue()
        Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")  # it has ended

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            print(json.dumps(order), file=self.process.stdin, flush=True)
            line = self.answers.get(timeout=PATIENCE)
        except BrokenPipeError:
            line = ""
        except Empty:
            self.end()
            raise Failed(f"no answer in {PATIENCE:.0f} s") from None
        if not line:
            self.answers.put("")  # for whoever asks again
            said = self.said.read_text(errors="replace").strip().splitlines()
            raise Failed(said[-1] if said else f"ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


# --- equal -----------------------------------------------------------------------------------------------------------
def expected(net: Network) -> tuple[float, Weights]:
    """The loss and the weights after one step, by torch's autograd in float64."""
    _, _, I, H, O = net.sizes
    layer, head = TORCH[net.cell](I, H).double(), nn.Linear(H, O).double()
    parameters = [*layer.parameters(), *head.parameters()]
    with torch.no_grad():
        for parameter, value in zip(parameters, net.weights.values(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    out, _ = layer(torch.from_numpy(net.x).double())
    loss = nn.functional.mse_loss(head(out[-1]), torch.from_numpy(net.y).double())
    gradients = torch.autograd.grad(loss, parameters)
    moved = [(p.detach() - net.rate * d).numpy() for p, d in zip(parameters, gradients, strict=True)]
    return float(loss.detach()), dict(zip(WEIGHTS, moved, strict=True))


def compare(net: Network, loss: float, weights: Weights, right: tuple[float, Weights]) -> float:
    """-> the largest deviation of a weight's change; Failed if it is not the same network or step."""
    off = abs(loss - right[0]) / right[0]
    if not off <= SAME_LOSS:
        raise Failed(f"refused: its loss {loss:.7g} is off by {off:.1e}, at most {SAME_LOSS:.0e} is the same")
    worst = 0.0
    for name, before in net.weights.items():
        there, here = right[1][name] - before, weights[name].astype(np.float64) - before
        off = float(np.abs(here - there).max() / np.abs(there).max())
        if not off <= SAME_CHANGE:
            raise Failed(f"refused: its change of {name} is off by {off:.1e}, at most {SAME_CHANGE:.0e} is the same")
        worst = max(worst, off)
    return worst


# --- turns -----------------------------------------------------------------------------------------------------------
@dataclass
class Runner:
    """A contender that is ready. A call is a block of steps; its clock shows the seconds of a step that it measured."""

    process: Process
    ready: float  # seconds until the first step was done: import, compile, step
    off: float
    steps: int = 1  # in a block

    def block(self) -> float:
        warm = 0 if self.steps == 1 else -(-self.steps // WARM)  # a step that is a block is a long one
        answer = self.process.ask(do="run", warm=warm, steps=self.steps)
        if not np.isfinite(answer["loss"]):
            raise Failed(f"its loss became {answer['loss']}")
        return float(answer["seconds"]) / self.steps

    def fill(self, seconds: float) -> None:
        """Sets how many steps make a block that long."""
        while (found := self.block()) * self.steps < seconds / 4:
            self.steps *= 4
        self.steps = max(1, round(seconds / found))


def load(process: Process, net: Network, folder: Path, right: tuple[float, Weights]) -> Runner:
    """The network is in the folder."""
    weights = folder / "weights.npz"
    answer = process.ask(do="load", network=str(folder / "network.npz"), weights=str(weights))
    with np.load(weights) as file:
        off = compare(net, answer["loss"], dict(file), right)
    return Runner(process, float(answer["seconds"]), off)


def race(runners: Mapping[str, Runner], repeats: int) -> dict[str, list[float]]:
    """Seconds of a step, once per repeat. One of them works at a time; the others wait for their next order."""
    now = 0.0

    def turn(name: str) -> None:
        nonlocal now
        try:
            now += runners[name].block()
        except Failed as e:
            raise Dropped(name, e) from e

    calls = {name: partial(turn, name) for name in runners}
    return interleaved(calls, repeats, warm=False, least=0, clock=lambda: now)
