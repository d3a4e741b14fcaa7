"""Threads and costs: what the order of sums depends on, and with it the last bits of a run."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from .. import engines
from ..errors import PlaitWarning
from ..kernels.emit.target import Form, bf16_by
from ..kernels.launch import costs
from ..kernels.launch.schedule import DEFAULT
from .settings import set_threads

if TYPE_CHECKING:
    from ..engines.fused import FusedEngine


@dataclass(frozen=True)
class Conditions:
    threads: int
    costs: Mapping[str, Any] | None = None  # of the fused engine; not in runs of earlier versions
    bf16: str | None = None  # of a run in bfloat16: what multiplies (emit/target.py)

    @classmethod
    def here(cls, model: nn.Module) -> "Conditions":
        """Those that a run with this model begins with."""
        return cls(torch.get_num_threads(), costs_of(model), bf16_of(model))

    @classmethod
    def stored(cls, config: Mapping[str, Any]) -> "Conditions":
        return cls(config["threads"], config.get("costs"), config.get("bf16"))

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"threads": self.threads}
        found |= {} if self.costs is None else {"costs": dict(self.costs)}
        return found | ({} if self.bf16 is None else {"bf16": self.bf16})

    def check_cpu(self) -> None:
        """Says so if this CPU multiplies bfloat16 numbers in another way than the one that the run began on."""
        here = bf16_by()
        if self.bf16 not in (None, here):
            sentence = f"this run multiplied bfloat16 numbers by {self.bf16}, this CPU does by {here}"
            warnings.warn(f"{sentence}: the last bits of its results will differ.", PlaitWarning, stacklevel=3)

    def use(self) -> None:
        """From now on, in this process."""
        self.check_cpu()
        set_threads(self.threads)
        if self.costs is not None:
            costs.use(self.costs)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within this block. Plans remember the costs that they were made with."""
        self.check_cpu()
        before = torch.get_num_threads()
        is_other = self.costs is not None and not costs.are_used(self.costs)
        plans = cast("FusedEngine", engines.get("fused")).plans if is_other else {}
        set_threads(self.threads)
        try:
            with costs.held(self.costs) if is_other else nullcontext():
                plans.clear()
                yield
        finally:
            plans.clear()
            torch.set_num_threads(before)


def bf16_of(model: nn.Module) -> str | None:
    layers = (m for m in model.modules() if hasattr(m, "_plait_cell"))
    return bf16_by() if any(m.precision == "bf16" for m in layers) else None


def costs_of(model: nn.Module) -> dict[str, Any] | None:
    """None if no layer of the model runs on the fused engine."""
    for module in model.modules():
        cell, weight = getattr(module, "_plait_cell", None), next(module.parameters(), None)
        if cell is None or weight is None:
            continue
        if engines.choose(str(module.engine), cell, weight.dtype, weight.device) == "fused":
            form = Form(cell, 1, DEFAULT.target(weight.dtype == torch.float64))
            return costs.of_this_process(form)._asdict()
    return None
