"""A training step in turns, phase by phase.

plait's task; the same with torch.nn's layer in it; and a PyTorch script. All have the same optimizer and data.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...data.text_batches import Streams
from ...errors import PlaitError
from ...layers import restore, state_of, states_of
from ...tasks.corpus import Corpus
from ...tasks.language import Language
from ...tasks.settings import LanguageSettings
from ...training.crew import clip
from ..core import Laps, Report, Row, take_turns
from ..questions import LanguageOptions

LR, CLIP = 20.0, 0.25  # Zaremba's 1 and 5, for the mean over 20 steps instead of the sum
PHASES = ("layers", "softmax", "backward", "clipping", "optimizer")


class Trainer:
    """plait's task, its optimizer, and steps through the text."""

    clip: Callable[..., Any] = staticmethod(clip)

    def __init__(self, task: Language, model: nn.Module, count: int) -> None:
        self.task, self.model, self.count, self.parameters = task, model, count, list(model.parameters())
        self.at, self.state = 0, None
        self.optimizer = torch.optim.SGD(self.parameters, lr=LR, fused=True)
        self.laps = Laps(PHASES)

    def forward(self) -> tuple[Any, Callable[[], Tensor]]:
        """Runs the layers -> their last state, and what then computes the loss."""
        streams, model = self.task.sampler, self.task.model
        assert isinstance(streams, Streams)
        positions, layout = streams.batch(torch.tensor(self.at % (len(streams) - 1)))
        ids = self.task.corpus.parts["train"].ids[positions].long()
        h, state = model(self.task.before["train"][positions], layout, self.state)
        return state, lambda: model.softmax(h, ids)

    def __call__(self) -> None:
        for _ in range(self.count):
            self.laps.walk(self.step)
            self.at += 1

    def step(self) -> Iterator[None]:
        """Phase by phase."""
        state, loss_of = self.forward()
        self.state = state_of(tuple(s.detach() for s in states_of(state)))
        yield
        loss = loss_of()
        yield
        self.optimizer.zero_grad()
        loss.backward()
        yield
        self.clip(self.parameters, CLIP)
        yield
        self.optimizer.step()
        yield


class Script(Trainer):
    """As most scripts have it: one long text for each sequence of the batch, and torch's own layers."""

    clip = staticmethod(nn.utils.clip_grad_norm_)

    def __init__(self, task: Language, rnn: nn.Module, count: int) -> None:
        s, V = task.settings, len(task.vocabulary)
        model = nn.ModuleDict({"rnn": rnn})
        model["embedding"] = nn.Embedding(V, s.width)
        model["decoder"] = nn.Linear(s.hidden, V)
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -s.init, s.init)
        super().__init__(task, model, count)
        ids, B = task.corpus.parts["train"].ids.long(), int(s.batch)
        self.data = ids[: len(ids) // B * B].view(B, -1).t().contiguous()  # (n, B)

    def forward(self) -> tuple[Any, Callable[[], Tensor]]:
        steps, model = self.task.settings.steps, cast(Any, self.model)
        begin = self.at * steps % (len(self.data) - steps)
        x, y = self.data[begin : begin + steps], self.data[begin + 1 : begin + steps + 1]
        h, state = model.rnn(model.embedding(x), self.state)
        return state, lambda: nn.functional.cross_entropy(model.decoder(h).flatten(0, 1), y.flatten())


def measure(options: LanguageOptions) -> Report:
    count, cell = options.count, options.cell
    given = options.some("data", "cell", "hidden", "layers", "steps", "softmax", "seed")
    settings = LanguageSettings(batch=str(options.batch), **given)
    task = Language(settings, Corpus.read(settings))
    trainers = contenders(task, count)
    seconds = take_turns(trainers, options.repeats, least=0)
    rows = []
    for name, trainer in trainers.items():
        t = seconds.median(name) / count  # of a step
        row: Row = {"what": name}
        row["tokens/s"] = options.batch * options.steps / t
        row["ms/step"] = t * 1e3
        row |= seconds.faster("plait", than=name).row("plait is faster")
        rows.append(row | trainer.laps.shares())
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
    s, tokens = task.settings, len(task.corpus.parts["train"].ids)
    if tokens < int(s.batch) * (2 * s.steps + 1):
        expected = f"expected enough for {s.batch} x {s.steps} twice"
        raise PlaitError(f"{s.data} has {tokens:,} tokens to train on: {expected}.")
    swapped = copy.copy(task)
    swapped.model = restore(copy.deepcopy(task.model))
    return {
        "plait": Trainer(task, task.model, count),
        f"plait, but nn.{s.cell.upper()}": Trainer(swapped, swapped.model, count),
        "a torch script": Script(task, copy.deepcopy(swapped.model.rnn), count),
    }
