"""What can be set about training. A setting is written once: command line, config.json and --resume read it here."""

import math
import re
from collections.abc import Iterable
from dataclasses import Field, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import PlaitError, between, unknown

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}  # torch.optim's names
MOST_THREADS = 4096
SCHEDULES = ("constant", "cosine", "step", "plateau", "decay")


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise PlaitError(f"seed {seed}: must be at least 0 and below 2**63.")


def set_threads(threads: int | None) -> int:
    import torch  # not above: --help does without it

    if threads is not None:
        between("threads", threads, 1, MOST_THREADS)
        torch.set_num_threads(threads)
    return torch.get_num_threads()


@dataclass(frozen=True)
class TrainSettings:
    epochs: int = option(300, "How often every training sequence is seen, at most.")
    batch: str = option("32", "Sequences per step: 1 (stochastic), a number (mini-batch), or full.")
    optimizer: str = option("adam", "sgd, adam or adamw.")
    lr: float = option(0.002, "Learning rate.")
    lr_batch: int | None = option(
        None, "The batch that --lr is for: for another batch, --lr is multiplied by the square root of their ratio."
    )
    warmup: int = option(0, "Steps in which the learning rate rises to its full value.")
    momentum: float = option(0.0, "Momentum, for sgd.")
    weight_decay: float = option(0.0, "Weight decay.")
    clip: float = option(1.0, "Largest norm of the gradient; 0 turns clipping off.")
    schedule: str = option("constant", "Learning rate over the epochs: constant, cosine, step, plateau or decay.")
    decay: float = option(0.5, "Factor of the learning rate after every epoch, for schedule decay.")
    decay_after: int = option(4, "Epochs at the full learning rate, for schedule decay.")
    patience: int = option(40, "Stop after that many epochs without a better validation; 0 never stops early.")
    save_every: float = option(10.0, "Seconds between checkpoints; 0 writes one after every step.")
    seed: int = option(0, "Seed of everything random.")

    # of a class and of those derived from it: the least and the most of a number, and the words that are known
    LIMITS: ClassVar[dict[str, tuple[float, float]]] = {
        **dict.fromkeys(("epochs", "lr_batch", "decay_after"), (1, 10**9)),
        **dict.fromkeys(("warmup", "patience"), (0, 10**9)),
        **dict.fromkeys(("clip", "save_every"), (0, 1e9)),
        **{"lr": (1e-12, 1e6), "momentum": (0, 1), "weight_decay": (0, 1e6)},
    }
    CHOICES: ClassVar[dict[str, Iterable[str]]] = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES}

    def __post_init__(self) -> None:
        for f in self.options():
            value, kind = getattr(self, f.name), f.type
            fits = isinstance(value, (float | int) if kind is float else kind)  # type: ignore[arg-type]
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise PlaitError(f"{f.name} {value!r}: expected {getattr(kind, '__name__', kind)}.")
        for kind in reversed(type(self).__mro__):
            for name, limits in vars(kind).get("LIMITS", {}).items():
                if getattr(self, name) is not None:
                    between(name, getattr(self, name), *limits)
            for name, known in vars(kind).get("CHOICES", {}).items():
                if getattr(self, name) not in known:
                    raise unknown(name.replace("_", "-"), getattr(self, name), known)
        check_seed(self.seed)
        if not 0 < self.decay <= 1:
            raise PlaitError(f"decay {self.decay}: must be above 0 and at most 1.")
        self.only_with("decay", self.schedule == "decay", "schedule decay")
        self.only_with("decay_after", self.schedule == "decay", "schedule decay")
        self.batch_size(1)
        if self.lr_batch is not None and self.batch == "full":
            raise PlaitError("lr_batch with batch 'full': give the batch as a number, or leave lr_batch out.")
        self.only_with("momentum", self.optimizer == "sgd", f"sgd, not with {self.optimizer}")

    def only_with(self, name: str, fits: bool, what: str) -> None:
        """Refuses a setting that has no effect without another one."""
        default = next(f.default for f in self.options() if f.name == name)
        if not fits and getattr(self, name) != default:
            raise PlaitError(f"{name} {getattr(self, name)} goes with {what}: leave it out.")

    def batch_size(self, size: int) -> int:
        if self.batch == "full":
            return size
        if not re.fullmatch("0*[1-9][0-9]*", self.batch):
            raise PlaitError(f"batch '{self.batch}': must be a whole number of at least 1, or 'full'.")
        if len(self.batch) > 9:
            raise PlaitError(f"batch {self.batch}: must be at most 999999999, or 'full'.")
        return min(int(self.batch), size)

    @property
    def scaled_lr(self) -> float:
        """A larger batch has less noise in its gradient, and allows larger steps."""
        return self.lr * math.sqrt(int(self.batch) / self.lr_batch) if self.lr_batch else self.lr

    def make_optimizer(self, model: "nn.Module") -> "Optimizer":
        from torch import optim

        extra = {"momentum": self.momentum} if self.optimizer == "sgd" else {}
        optimizer: Optimizer = getattr(optim, OPTIMIZERS[self.optimizer])(
            model.parameters(), lr=self.scaled_lr, weight_decay=self.weight_decay, fused=True, **extra
        )
        return optimizer

    def make_schedule(self, optimizer: "Optimizer") -> Any:
        from torch.optim import lr_scheduler as schedules

        if self.schedule == "cosine":
            return schedules.CosineAnnealingLR(optimizer, T_max=self.epochs)
        if self.schedule == "step":
            return schedules.StepLR(optimizer, step_size=max(1, self.epochs // 3), gamma=0.1)
        if self.schedule == "plateau":
            return schedules.ReduceLROnPlateau(optimizer, patience=10)
        if self.schedule == "decay":
            return schedules.LambdaLR(optimizer, lambda done: self.decay ** max(0, done + 1 - self.decay_after))
        return schedules.ConstantLR(optimizer, factor=1.0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def free(self) -> set[str]:
        """What may change when a run is resumed."""
        return {"save_every", "patience", *(["epochs"] if self.schedule in ("constant", "plateau", "decay") else [])}

    def fixed(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in self.free()}

    @classmethod
    def options(cls) -> tuple[Field[Any], ...]:
        return fields(cls)
