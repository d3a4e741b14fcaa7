"""How a sequence is solved over time. Autograd calls a solver, and the solver calls an engine."""

from collections.abc import Mapping

from torch import Tensor, nn

from ..errors import PlaitError
from .base import EXACT, NotFinite, Solve, Solver, Solves
from .comparison import Comparison, compare, exactly
from .forgetting import Memory, memory
from .multigrid import Multigrid
from .past import Past, Pasts, Visit
from .serial import Serial
from .shooting import Shooting

SOLVERS: dict[str, type[Solver]] = {"serial": Serial, "shooting": Shooting, "multigrid": Multigrid}


def find(text: str, key: int = 0) -> Solver:
    """The solver of a layer, by its key; or a new one with the same options, if that does not exist any more."""
    found = Solver.known.get(key)
    return found if found is not None and found.text == text else parse(text)


def parse(text: str) -> Solver:
    """The solver of a text such as name:option=value,option=value."""
    name, _, rest = text.partition(":")
    if name not in SOLVERS:
        raise PlaitError(f"solver '{name}': expected one of {', '.join(SOLVERS)}.")
    options: dict[str, str] = {}
    for part in rest.split(","):
        option, _, value = part.partition("=")
        if option in options:
            raise PlaitError(f"solver {text}: {option} is given twice; give it once.")
        options |= {option: value} if part else {}
    return SOLVERS[name].of(options)


def share(model: nn.Module) -> float | None:
    """Of the calls that were trained on, how many were cut in time, in both passes; None if no layer has a solver that
    cuts.
    """
    pasts = [m.__dict__["_plait_pasts"] for m in model.modules() if m.__dict__.get("_plait_pasts") is not None]
    numbers = [past.numbers for some in pasts for past in some.found.values()]
    calls = sum(n.get("calls", 0) for n in numbers)
    return sum(n.get("cut", 0) for n in numbers) / calls if calls else None


def state(model: nn.Module) -> dict[str, Tensor]:
    """What the solvers of a model's layers have learnt, for a checkpoint: a run that goes on takes the same steps."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        pasts = module.__dict__.get("_plait_pasts")
        if pasts is not None:
            found |= {f"{name}/{key}": t for key, t in pasts.tensors()}
    return found


def load_state(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Takes that from a checkpoint, in place of what they had learnt so far. ValueError: it is of another model."""
    modules = dict(model.named_modules())
    for module in modules.values():
        module.__dict__.pop("_plait_pasts", None)
    found: dict[str, dict[str, Tensor]] = {}
    for key, t in tensors.items():
        name, _, rest = key.rpartition("/")
        found.setdefault(name, {})[rest] = t
    for name, some in found.items():
        if not hasattr(modules.get(name), "_plait_cell"):
            raise ValueError(f"it has the solver's numbers of a layer '{name}', which the model lacks")
        modules[name].__dict__["_plait_pasts"] = pasts = Pasts(modules[name].solver.text)
        pasts.load(some)


__all__ = [
    "EXACT",
    "SOLVERS",
    "Comparison",
    "Memory",
    "Multigrid",
    "NotFinite",
    "Past",
    "Pasts",
    "Serial",
    "Shooting",
    "Solve",
    "Solver",
    "Solves",
    "Visit",
]
__all__ += ["compare", "exactly", "find", "load_state", "memory", "parse", "share", "state"]
