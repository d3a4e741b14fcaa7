"""Several processes and machines: a mesh of data x layers x time ranks on torch.distributed.

mesh = plait.ranks.Mesh(data=2, layers=2)  # under torchrun, mpiexec or srun
step = mesh.parallelise(plait.ranks.Stack(embedding, rnn, head), loss)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cut import Cut
    from .group import Lost
    from .mesh import Mesh
    from .stack import Stack

HOMES = {"Lost": "group", "Mesh": "mesh", "Cut": "cut", "Stack": "stack"}  # name -> the module that has it
__all__ = ["Cut", "Lost", "Mesh", "Stack"]


def __getattr__(name: str) -> Any:
    """Lazily: world.py and shape.py are read before torch is there."""
    if name in HOMES:
        value = globals()[name] = getattr(import_module(f".{HOMES[name]}", __name__), name)
        return value
    raise AttributeError(f"module 'plait.ranks' has no attribute '{name}'")
