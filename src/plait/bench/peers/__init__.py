"""How fast is the same training step in plait, NumPy, torch, torch.compile, JAX, PyTensor and Halide?

Each contender has a process of its own; they take turns, a block of steps each. docs/peers.md says how each is written.
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    only: str | None = option(None, "Which peers beside plait, with commas.  (default: all)")
    rows: str | None = option(None, "Which networks, with commas.  (default: all)")
    install: bool = option(False, "Make an environment for PyTensor, which needs an older numba, if there is none.")
    quick: bool = options.quick("Short blocks of steps, and not the largest network.")
    repeats: int = options.repeats(7)
