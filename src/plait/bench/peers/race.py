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
from torch import nn

from ...errors import PlaitError
from ..core.malloc import KEEP
from ..core.turns import Seconds, take_turns
from . import contenders
from .contenders.network import WEIGHTS, Network, Weights
from .contenders.with_torch import modules
from .table import Peer

WORKER = Path(contenders.__file__).with_name("worker.py")
ROOT = Path(contenders.__file__).parents[4]  # where plait is imported from
PATIENCE = 300.0  # seconds until an answer; torch.compile and PyTensor need a minute of it
SAME_LOSS = 1e-5  # relative, after one step of float32
SAME_CHANGE = 1e-3  # of a weight in that step
WARM = 4  # for every so many steps of a block, one before it that does not count: others' threads go to sleep meanwhile
THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "HL")  # Halide's is HL_NUM_THREADS; XLA takes NPROC


class Failed(PlaitError):
    """A contender cannot be measured, and why."""


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
            self.answers.put("")  # for the next question
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


# --- the same step ---------------------------------------------------------------------------------------------------
def expected(net: Network) -> tuple[float, Weights]:
    """The loss and the weights after one step, by torch's autograd in float64."""
    layer, head = (module.double() for module in modules(net.cell, net.weights))
    parameters = [*layer.parameters(), *head.parameters()]
    out, _ = layer(torch.from_numpy(net.x).double())
    loss = nn.functional.mse_loss(head(out[-1]), torch.from_numpy(net.y).double())
    gradients = torch.autograd.grad(loss, parameters)
    moved = [(p.detach() - net.rate * d).numpy() for p, d in zip(parameters, gradients, strict=True)]
    return float(loss.detach()), dict(zip(WEIGHTS, moved, strict=True))


def deviations(net: Network, loss: float, weights: Weights, right: tuple[float, Weights]) -> dict[str, float]:
    """Of the loss, relative; of each weight's change in one step, the largest, of the largest change of that tensor."""
    found = {"loss": abs(loss - right[0]) / right[0]}
    for name, before in net.weights.items():
        there, here = right[1][name] - before, weights[name].astype(np.float64) - before
        found[name] = float(np.abs(here - there).max() / np.abs(there).max())
    return found


def compare(net: Network, loss: float, weights: Weights, right: tuple[float, Weights]) -> float:
    """-> the largest deviation of a weight's change; Failed if it is not the same network or step."""
    found = deviations(net, loss, weights, right)
    off = found.pop("loss")
    if not off <= SAME_LOSS:
        raise Failed(f"refused: its loss {loss:.7g} is off by {off:.1e}, at most {SAME_LOSS:.0e} is the same")
    for name, off in found.items():
        if not off <= SAME_CHANGE:
            raise Failed(f"refused: its change of {name} is off by {off:.1e}, at most {SAME_CHANGE:.0e} is the same")
    return max(found.values())


# --- turns -----------------------------------------------------------------------------------------------------------
@dataclass
class Runner:
    """A contender that is ready, and how many of its steps make a block."""

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


def race(runners: Mapping[str, Runner], repeats: int) -> tuple[Seconds, dict[str, Failed]]:
    """Seconds of a step, once per repeat; and who failed on the way, and why. One works at a time, the others wait."""
    now, failed = 0.0, dict[str, Failed]()

    def turn(name: str) -> None:
        nonlocal now
        try:
            now += 0.0 if name in failed else runners[name].block()
        except Failed as e:
            failed[name] = e

    calls = {name: partial(turn, name) for name in runners}
    seconds = take_turns(calls, repeats, warm=False, least=0, clock=lambda: now)
    return Seconds({name: values for name, values in seconds.items() if name not in failed}), failed
