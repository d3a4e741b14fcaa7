"""A training step in turns, phase by phase: plait's task, the same with torch's layer, and a torch script."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...data.text_batches import Streams
from ...errors import PlaitError, between
from ...layers import restore, state_of, states_of
from ...tasks.corpus import Corpus
from ...tasks.language import Language
from ...tasks.settings import LanguageSettings
from ...training.crew import clip
from ..core.cases import parse_cell
from ..core.report import Report
from ..core.turns import Laps, take_turns
from . import Options

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
        self.laps = Laps(PHASES)

    @abstractmethod
    def forward(self) -> Callable[[], Tensor]:
        """Runs the layers; what is returned then computes the loss."""

    def __call__(self) -> None:
        for _ in range(self.count):
            with self.laps.step() as mark:
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


def measure(options: Options) -> Report:
    count, cell = options.count, parse_cell(options.cell)
    between("count", count, 1, 10**6)
    given = options.some("data", "cell", "hidden", "layers", "steps", "softmax", "seed")
    settings = LanguageSettings(batch=str(options.batch), **given)
    task = Language(settings, Corpus.read(settings))
    trainers = contenders(task, count)
    seconds = take_turns(trainers, options.repeats, least=0)
    rows = [
        {
            "what": name,
            "tokens/s": count * options.batch * options.steps / seconds.median(name),
            "ms/step": seconds.median(name) / count * 1e3,
            **seconds.faster("plait", than=name).row("plait is faster"),
            **trainer.laps.shares(),
        }
        for name, trainer in trainers.items()
    ]
    return Report(
        f"How many tokens a second? {task.corpus.name}, {len(task.vocabulary):,} words, {cell} {options.layers} x "
        f"{options.hidden}, batch {options.batch}, {options.steps} steps",
        [
            ("what", "tokens/s", "ms/step", "plait is faster", "low", "high"),
            ("what", *(f"{phase} %" for phase in PHASES)),
        ],
        rows,
        [
            "%: shares of a step. layers, softmax: their forward pass, with the embedding, and with the loss.",
            "plait takes the softmax's derivative together with its loss.",
        ],
    )


def contenders(task: Language, count: int) -> dict[str, Trainer]:
    """The task; the task with torch's layer; the script."""
    s, tokens = task.settings, len(task.corpus.parts["train"].ids)
    if tokens < int(s.batch) * (2 * s.steps + 1):
        expected = f"expected enough for {s.batch} x {s.steps} twice"
        raise PlaitError(f"{s.data} has {tokens:,} tokens to train on: {expected}.")
    swapped = copy.copy(task)
    swapped.model = restore(copy.deepcopy(task.model))
    plain = Plain(copy.deepcopy(swapped.model.rnn), len(task.vocabulary), s)
    return {
        "plait": Ours(task, count),
        f"plait, but nn.{s.cell.upper()}": Ours(swapped, count),
        "a torch script": Script(plain, task, count),
    }
