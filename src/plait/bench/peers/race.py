"""A contender's process, as seen from the bench: it is asked, and checked against float64."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import PlaitError
from ...ranks.launch import KEEP
from . import contenders
from .contenders.network import WEIGHTS, Network, Weights
from .contenders.with_torch import modules
from .table import Peer

WORKER = Path(contenders.__file__).with_name("worker.py")
ROOT = Path(contenders.__file__).parents[4]  # where plait is imported from
PATIENCE = 300.0  # seconds until an answer; torch.compile and PyTensor need a minute of it
SAME_LOSS = 1e-5  # relative, after one step of float32
SAME_CHANGE = 1e-3  # of a weight in that step
WARM = 4  # steps of a block for each one before it, which does not count: others' threads fall asleep
THREADS = [f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "HL")]  # HL: Halide
THREADS.append("NPROC")  # XLA's
Right = tuple[float, Weights]  # loss, and the weights after a step


class Failed(PlaitError):
    """A contender cannot be measured, and why."""


class Process:
    """A contender in a process of its own, and how many of its steps make a block."""

    def __init__(self, peer: Peer, threads: int, folder: Path) -> None:
        self.said, self.changed = folder / f"{peer.module}-{peer.variant}.txt", folder / "weights.npz"
        self.steps, self.ready, self.off = 1, 0.0, 0.0
        with self.said.open("w") as errors:
            self.process = subprocess.Popen(
                [peer.python, "-P", str(WORKER), peer.module, peer.variant],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(peer, threads, folder),
                cwd=folder,
                text=True,
            )

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        until, timer = monotonic() + PATIENCE, Timer(PATIENCE, self.process.kill)
        timer.start()
        try:
            print(json.dumps(order), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        timer.cancel()
        if not line:
            if monotonic() >= until:
                raise Failed(f"no answer in {PATIENCE:.0f} s")
            said = self.said.read_text(errors="replace").strip().splitlines()
            raise Failed(said[-1] if said else f"ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def load(self, drawn: Sequence[Any], net: Network, right: Right) -> None:
        """The network, and a step of it that must be the right one. drawn: what net was made from"""
        self.steps = 1
        answer = self.ask(do="load", network=drawn, weights=str(self.changed))
        with np.load(self.changed) as file:
            self.off = compare(net, answer["loss"], dict(file), right)
        self.ready = answer["seconds"]  # import, compile, step

    def fill(self, seconds: float) -> None:
        """Sets how many steps make a block that long."""
        while (found := self.block()) * self.steps < seconds / 4:
            self.steps *= 4
        self.steps = max(1, round(seconds / found))

    def block(self) -> float:
        """-> seconds of a step"""
        warm = 0 if self.steps == 1 else -(-self.steps // WARM)  # a step that is a block is a long one
        answer = self.ask(do="run", warm=warm, steps=self.steps)
        if not np.isfinite(answer["loss"]):
            raise Failed(f"its loss became {answer['loss']}")
        return float(answer["seconds"]) / self.steps

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def environment(peer: Peer, threads: int, folder: Path) -> dict[str, str]:
    env = dict(os.environ)
    env |= dict.fromkeys(THREADS, str(threads))
    env |= KEEP if platform.libc_ver()[0] == "glibc" else {}
    env["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    env["PYTENSOR_FLAGS"] = f"base_compiledir={folder / 'pytensor'}"
    paths = [] if peer.own else [str(ROOT), env.get("PYTHONPATH", "")]  # one of its own has all that it needs
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def expected(net: Network) -> Right:
    """By torch's autograd in float64."""
    layer, head = (module.double() for module in modules(net.cell, net.weights))
    parameters = [*layer.parameters(), *head.parameters()]
    out, _ = layer(torch.from_numpy(net.x).double())
    loss = nn.functional.mse_loss(head(out[-1]), torch.from_numpy(net.y).double())
    gradients = torch.autograd.grad(loss, parameters)
    moved = [(p.detach() - net.rate * d).numpy() for p, d in zip(parameters, gradients, strict=True)]
    return float(loss.detach()), dict(zip(WEIGHTS, moved, strict=True))


def deviations(net: Network, loss: float, weights: Weights, right: Right) -> dict[str, float]:
    """Of the loss, and of each weight's change in one step, relative to its largest change."""
    found = {"loss": abs(loss - right[0]) / right[0]}
    for name, before in net.weights.items():
        there, here = right[1][name] - before, weights[name].astype(np.float64) - before
        found[name] = float(np.abs(here - there).max() / np.abs(there).max())
    return found


def compare(net: Network, loss: float, weights: Weights, right: Right) -> float:
    """-> the largest deviation of a weight's change; Failed if it is not the same network or step."""
    found = deviations(net, loss, weights, right)
    for name, off in found.items():
        what, most = (f"loss {loss:.7g}", SAME_LOSS) if name == "loss" else (f"change of {name}", SAME_CHANGE)
        if not off <= most:
            raise Failed(f"refused: its {what} is off by {off:.1e}, at most {most:.0e} is the same")
    return max(off for name, off in found.items() if name != "loss")
