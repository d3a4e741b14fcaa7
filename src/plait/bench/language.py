"""How many tokens a second does a language model train on, beside a script with torch's layers?

plait's task; the same with torch.nn's layer in it; and the model as a PyTorch script has it: nn.LSTM, nn.Linear and
cross_entropy. All with the same optimizer, clipping and data.
"""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..data.text_batches import Streams
from ..errors import PlaitError, between
from ..layers import restore, state_of, states_of
from ..tasks.corpus import Corpus
from ..tasks.language import Language
from ..tasks.settings import LanguageSettings
from ..training.crew import clip
from .options import CellName, Repeats, Seed, Text
from .report import Report, check, interleaved, ratio, timing
from .steps import parse_cell

LR, CLIP = 20.0, 0.25  # Zaremba's 1 and 5, for the mean over 20 steps instead of the sum
PHASES = ("layers", "softmax", "backward", "clipping", "optimizer")


class Plain(nn.Module):
    """As most scripts have it."""

    def __init__(self, rnn: nn.Module, V: int, s: LanguageSettings) -> None:
        super().__init__()
        self.embedding, self.rnn, self.decoder = nn.Embedding(V, s.width), rnn, nn.Linear(s.hidden, V)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -s.init, s.init)


class Trainer(ABC):
    """A model, its optimizer, and steps through the same text."""

    clip: Callable[..., Any]

    def __init__(self, model: nn.Module, count: int) -> None:
        self.model, self.count, self.at, self.parameters = model, count, 0, list(model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=LR, fused=True)
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @abstractmethod
    def forward(self) -> Callable[[], Tensor]:
        """Runs the layers; what is returned then computes the loss."""

    def __call__(self) -> None:
        for _ in range(self.count):
            marks = [time.perf_counter()]

            def mark(marks: list[float] = marks) -> None:
                marks.append(time.perf_counter())

            loss_of = self.forward()
            mark()
            loss = loss_of()
            mark()
            self.optimizer.zero_grad()
            loss.backward()
            mark()
            self.clip(self.parameters, CLIP)
            mark()
            self.optimizer.step()
            mark()
            for name, a, b in zip(PHASES, marks, marks[1:], strict=False):
                self.seconds[name] += b - a
            self.at += 1


class Ours(Trainer):
    clip = staticmethod(clip)

    def __init__(self, task: Language, count: int) -> None:
        super().__init__(task.model, count)
        self.task, self.state = task, None

    def forward(self) -> Callable[[], Tensor]:
        streams = self.task.sampler
        assert isinstance(streams, Streams)
        positions, layout = streams.batch(torch.tensor(self.at % (len(streams) - 1)))
        ids = self.task.corpus.parts["train"].ids[positions].long()
        h, state = self.task.model(self.task.before["train"][positions], layout, self.state)
        self.state = detached(state)
        return lambda: self.task.model.softmax(h, ids)


class Script(Trainer):
    clip = staticmethod(nn.utils.clip_grad_norm_)

    def __init__(self, model: Plain, task: Language, count: int) -> None:
        super().__init__(model, count)
        s = task.settings
        B = int(s.batch)
        ids = task.corpus.parts["train"].ids.long()
        self.data = ids[: len(ids) // B * B].view(B, -1).t().contiguous()  # (n, B)
        self.steps, self.state = s.steps, None

    def forward(self) -> Callable[[], Tensor]:
        begin = self.at * self.steps % (len(self.data) - self.steps)
        x, y = self.data[begin : begin + self.steps], self.data[begin + 1 : begin + self.steps + 1]
        model: Any = self.model
        h, state = model.rnn(model.embedding(x), self.state)
        self.state = detached(state)
        return lambda: nn.functional.cross_entropy(model.decoder(h).flatten(0, 1), y.flatten())


def detached(state: Any) -> Any:
    return state_of(tuple(s.detach() for s in states_of(state)))


def measure(
    data: Text = None,
    cell: CellName = "lstm",
    hidden: Annotated[int, "Units in a layer."] = 200,
    layers: Annotated[int, "Layers."] = 2,
    batch: Annotated[int, "Streams."] = 20,
    steps: Annotated[int, "Steps that a gradient goes back through."] = 20,
    softmax: Annotated[str, "full or adaptive; of plait's task."] = "full",
    count: Annotated[int, "Training steps in one measurement."] = 20,
    repeats: Repeats = 7,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    between("count", count, 1, 10**6)
    parse_cell(cell)
    settings = LanguageSettings(
        data=data, cell=cell, hidden=hidden, layers=layers, batch=str(batch), steps=steps, softmax=softmax, seed=seed
    )
    task = Language(settings, Corpus.read(settings))
    tokens = len(task.corpus.parts["train"].ids)
    if tokens < batch * (2 * steps + 1):
        raise PlaitError(f"{data} has {tokens:,} tokens to train on: expected enough for {batch} x {steps} twice.")
    swapped = copy.copy(task)
    swapped.model = restore(copy.deepcopy(task.model))
    plain = Plain(copy.deepcopy(swapped.model.rnn), len(task.vocabulary), settings)
    trainers = {
        "plait": Ours(task, count),
        f"plait, but nn.{cell.upper()}": Ours(swapped, count),
        "a torch script": Script(plain, task, count),
    }
    seconds = interleaved(trainers, repeats, least=0)
    rows = []
    for name, trainer in trainers.items():
        faster = ratio(seconds[name], seconds["plait"])
        took, whole = timing(seconds[name]), sum(trainer.seconds.values())
        rows.append(
            {
                "what": name,
                "tokens/s": count * batch * steps / took.median,
                "ms/step": took.median / count * 1e3,
                "plait is faster": faster.median,
                "low": faster.low,
                "high": faster.high,
            }
            | {f"{phase} %": seconds / whole * 100 for phase, seconds in trainer.seconds.items()}
        )
    return Report(
        f"How many tokens a second? {task.corpus.name}, {len(task.vocabulary):,} words, {cell} {layers} x {hidden}, "
        f"batch {batch}, {steps} steps",
        [
            ("what", "tokens/s", "ms/step", "plait is faster", "low", "high"),
            ("what", *(f"{phase} %" for phase in PHASES)),
        ],
        rows,
        [
            "%: shares of a step. layers, softmax: their forward, with the embedding, and with the loss.",
            "plait takes the softmax's derivative together with its loss.",
        ],
    )
