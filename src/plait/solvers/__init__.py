"""How a sequence is solved over time. Autograd calls a solver, and the solver calls an engine."""

from collections.abc import Mapping

from torch import Tensor, nn

from ..errors import PlaitError
from .base import NotFinite, Problem, Solver
from .comparison import Comparison, compare, exactly
from .fading import FadingMemory, fading_memory
from .multigrid import Multigrid
from .serial import Serial
from .shooting import Shooting
from .solve import EXACT, Solve, Solves
from .warm_start import Visit, WarmStart, WarmStarts

SOLVERS: dict[str, type[Solver]] = {"serial": Serial, "shooting": Shooting, "multigrid": Multigrid}


def find(text: str, key: int = 0) -> Solver:
    """The solver with this key; or an equal one, if it does not exist any more."""
    found = Solver.known.get(key)
    return found if found is not None and found.text == text else parse(text)


def parse(text: str) -> Solver:
    name, _, rest = text.partition(":")
    if name not in SOLVERS:
        raise PlaitError(f"solver '{name}': expected one of {', '.join(SOLVERS)}.")
    options: dict[str, str] = {}
    for word in rest.split(","):
        option, _, value = word.partition("=")
        if option in options:
            raise PlaitError(f"solver {text}: {option} is given twice; give it once.")
        options |= {option: value} if word else {}
    return SOLVERS[name].of(options)


def share(model: nn.Module) -> float | None:
    """The share of training calls that were cut in time; None without such a solver."""
    warm_starts = [
        m.__dict__["_plait_warm_starts"] for m in model.modules() if m.__dict__.get("_plait_warm_starts") is not None
    ]
    numbers = [warm_start.numbers for some in warm_starts for warm_start in some.found.values()]
    calls = sum(n.get("calls", 0) for n in numbers)
    return sum(n.get("cut", 0) for n in numbers) / calls if calls else None


def state(model: nn.Module) -> dict[str, Tensor]:
    """What the solvers of a model's layers have learnt, for a checkpoint."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        warm_starts = module.__dict__.get("_plait_warm_starts")
        if warm_starts is not None:
            found |= {f"{name}/{key}": t for key, t in warm_starts.tensors()}
    return found


def load_state(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """ValueError: the tensors are those of another model."""
    modules = dict(model.named_modules())
    for module in modules.values():
        module.__dict__.pop("_plait_warm_starts", None)
    found: dict[str, dict[str, Tensor]] = {}
    for key, t in tensors.items():
        name, _, rest = key.rpartition("/")
        found.setdefault(name, {})[rest] = t
    for name, some in found.items():
        if not hasattr(modules.get(name), "_plait_cell"):
            raise ValueError(f"it has the solver's numbers of a layer '{name}', which the model lacks")
        modules[name].__dict__["_plait_warm_starts"] = warm_starts = WarmStarts(modules[name].solver.text)
        warm_starts.load(some)


__all__ = ["EXACT", "SOLVERS", "Comparison", "FadingMemory", "Multigrid", "NotFinite", "Problem", "Serial", "Shooting"]
__all__ += ["Solve", "Solver", "Solves", "Visit", "WarmStart", "WarmStarts"]
__all__ += ["compare", "exactly", "fading_memory", "find", "load_state", "parse", "share", "state"]
