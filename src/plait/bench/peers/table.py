"""Who is compared, what each needs, and how what is missing is named or installed."""

import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from ...errors import PlaitError
from ...kernels.launch.cache import folder
from .contenders.network import GATES

COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Peer:
    module: str  # contenders/with_MODULE.py
    variant: str = ""
    needs: str | None = None  # a package to import
    own: str | None = None  # what pip installs in an environment of its own
    compiler: bool = False  # a C++ compiler is called
    cells: tuple[str, ...] = tuple(GATES)  # those that were written

    @property
    def home(self) -> Path:
        """The environment of its own."""
        return folder() / "peers" / self.module

    @property
    def python(self) -> str:
        """What runs it."""
        if self.own is None or find_spec(self.module) is not None:
            return sys.executable
        return str(self.home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))

    def missing(self) -> str | None:
        """What to do before it can run here; None if it can."""
        if self.own is not None:
            if find_spec(self.module) is None and not (self.home / DONE).exists():
                return f"--install makes an environment for it ({self.own})"
        elif self.needs is not None and find_spec(self.needs) is None:
            return "pip install 'plait[peers]'"
        if self.compiler and not any(map(which, COMPILERS)):
            return "install a C++ compiler, such as g++"
        return None

    def install(self) -> None:
        """Makes the environment of its own. It counts as made when all is in it."""
        if self.own is None or self.missing() is None:
            return
        make = [sys.executable, "-m", "venv", "--clear", str(self.home)]
        for command in (make, [self.python, "-m", "pip", "install", "--quiet", self.own]):
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if ended.returncode:
                said = (ended.stderr or ended.stdout).strip().splitlines() or ["nothing"]
                raise PlaitError(f"{self.own} was not installed in {self.home}: {said[-1]}; leave --install out.")
        (self.home / DONE).touch()


DONE = "plait-installed"  # in the environment
PEERS = {
    "plait": Peer("plait"),
    "numpy": Peer("numpy"),
    "torch": Peer("torch"),
    "torch.compile": Peer("torch", "compile", compiler=True),
    "jax": Peer("jax", needs="jax"),
    "pytensor": Peer("pytensor", own="pytensor>=3"),
    "halide-paper": Peer("halide", "paper", "halide", compiler=True, cells=("rnn",)),
    "halide-jit": Peer("halide", "paper-jit", "halide", cells=("rnn",)),
    "halide-adams": Peer("halide", "adams", "halide", compiler=True, cells=("rnn",)),
    "halide-tiled": Peer("halide", "tiled", "halide", compiler=True, cells=("rnn",)),
}
