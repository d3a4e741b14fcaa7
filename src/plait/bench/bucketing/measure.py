"""Training steps on the batches of each scheme, in turns."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...data import buckets
from ...data.sampler import Sampler
from ...data.text_batches import sentences
from ...errors import PlaitError, between
from ...ladder.compare import worst
from ...layout import Layout
from ...tasks.corpus import Corpus
from ...tasks.language_model import LanguageModel
from ...tasks.memory import check_training
from ...tasks.settings import LanguageSettings
from ...training.crew import clip
from ..core.pictures import COLORS, Panel, draw, factor, whiskers
from ..core.progress import tracked
from ..core.report import Report
from ..core.turns import Row, Seconds, take_turns
from . import Options

STATIC = (8, 16, 24, 32, 60)  # and the longest
BEST = (5, 10, 16)
POOL = 50
SPREAD = ("faster", "low", "high")
COLUMNS = ("layers", "batches", "padding %", "s/epoch", "tokens/s", *SPREAD, "ideal %")


class Scheme:
    """One way to make batches, and some of them."""

    def __init__(self, corpus: Corpus, sampler: Sampler, padded: bool, count: int) -> None:
        self.corpus, self.sampler, self.padded = corpus.parts["train"], sampler, padded
        self.before, self.lengths = corpus.before["train"], self.corpus.lengths
        every = sorted((self.slots(indices), k, indices) for k, indices in enumerate(sampler.batches(0)))
        self.epoch_slots = sum(slots for slots, _, _ in every)
        count = min(count, len(every))
        chosen = [every[(2 * k + 1) * len(every) // (2 * count)] for k in range(count)]
        self.chosen_slots = sum(slots for slots, _, _ in chosen)
        self.tokens = int(sum(self.lengths[indices].sum() for _, _, indices in chosen))
        self.batches = [self.batch(indices) for _, _, indices in chosen]

    @property
    def padding(self) -> float:
        return 1 - int(self.lengths.sum()) / self.epoch_slots

    def slots(self, indices: Tensor) -> int:
        if self.padded:
            return len(indices) * self.sampler.length_of(indices)
        return int(self.lengths[indices].sum())

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor, Layout]:
        """Tokens and targets (N,) and how they lie; the target of padding is -1."""
        positions, layout = sentences(self.corpus.starts, indices)
        tokens, targets = self.before[positions], self.corpus.ids[positions].long()
        if not self.padded:
            return tokens, targets, layout
        padded = Layout(self.sampler.length_of(indices), len(indices))
        places = layout.places(padded.T, batch_first=False)
        tokens = tokens.new_zeros(padded.N).index_copy(0, places, tokens)
        return tokens, targets.new_full((padded.N,), -1).index_copy(0, places, targets), padded


class Network:
    """The second paper's: an embedding, layers of LSTM, a softmax over the words."""

    def __init__(self, settings: LanguageSettings, V: int, tokens: int) -> None:
        check_training(settings, lambda: LanguageModel(settings, V), tokens)
        torch.manual_seed(settings.seed)
        self.model = LanguageModel(settings, V)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-3, fused=True)

    def loss(self, tokens: Tensor, targets: Tensor, layout: Layout) -> Tensor:
        result: Tensor = self.model.softmax(self.model(tokens, layout)[0], targets)
        return result

    def step(self, batch: tuple[Tensor, Tensor, Layout]) -> None:
        self.loss(*batch).backward()
        clip(self.parameters, 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradients(self, batch: tuple[Tensor, Tensor, Layout]) -> list[Tensor]:
        loss = self.loss(*batch)
        return [loss.detach(), *torch.autograd.grad(loss, self.parameters)]


def schemes(corpus: Corpus, batch: int, count: int, seed: int) -> dict[str, Scheme]:
    lengths = corpus.parts["train"].lengths
    longest = int(lengths.max())
    some = tuple(n for n in STATIC if n < longest)
    found = [("static", (*some, longest)), ("greedy", buckets.greedy(lengths, batch))]
    found += [("optimal", buckets.optimal(lengths, K)) for K in BEST]
    named = {"none": buckets.none(lengths)} | {f"{name} {len(b)}": b for name, b in found}
    made = {name: Scheme(corpus, Sampler(lengths, batch, seed, boundaries=b), True, count) for name, b in named.items()}
    made["ragged"] = Scheme(corpus, Sampler(lengths, batch, seed), False, count)
    made[f"ragged, pool:{POOL}"] = Scheme(corpus, Sampler(lengths, batch, seed, pool=POOL), False, count)
    return made


def by_turns(net: Network, every: dict[str, Scheme], repeats: int) -> Seconds:
    """Seconds for each scheme's batches, once per repeat.

    The schemes take turns batch by batch, for the machine may be slower by the time that a scheme is done.
    """
    for scheme in every.values():
        net.step(scheme.batches[0])  # warm
    turns = {}
    for k in range(max(len(scheme.batches) for scheme in every.values())):
        for name, scheme in every.items():
            if k < len(scheme.batches):
                turns[f"{k} {name}"] = partial(net.step, scheme.batches[k])
    found = take_turns(turns, repeats, warm=False, least=0)
    sums = Seconds({name: [0.0] * repeats for name in every})
    for turn, seconds in found.items():
        name = turn.partition(" ")[2]
        sums[name] = [a + b for a, b in zip(sums[name], seconds, strict=True)]
    return sums


def compare(every: dict[str, Scheme], seconds: Seconds, ideal: float) -> list[Row]:
    """ideal: how many times faster no padding at all would be."""
    scale = {name: scheme.epoch_slots / scheme.chosen_slots for name, scheme in every.items()}
    epochs = Seconds({name: [t * scale[name] for t in seconds[name]] for name in every})
    rows = []
    for name, scheme in every.items():
        faster = epochs.faster(name, than="none")
        row = {
            "batches": name,
            "padding %": scheme.padding * 100,
            "s/epoch": epochs.median(name),
            "tokens/s": scheme.tokens / seconds.median(name),
            **faster.row("faster"),
            "ideal %": faster.median / ideal * 100,
        }
        rows.append(row)
    return rows


def measure(options: Options) -> Report:
    between("batch", options.batch, 1, 10**6)
    between("sentences", options.sentences, options.batch, 10**9)
    depths = options.layers.split(",")
    if not all(re.fullmatch("[1-9][0-9]{0,2}|1000", depth) for depth in depths):
        raise PlaitError(f"layers '{options.layers}': expected numbers from 1 to 1000, such as 8,2.")
    given = options.some("data", "hidden", "embedding", "engine", "seed")
    settings = [LanguageSettings(layers=int(depth), softmax="full", **given) for depth in depths]
    corpus = Corpus.read(settings[0])
    every = schemes(corpus, options.batch, options.sentences // options.batch, options.seed)
    padded, ragged = every["none"], every["ragged"]
    ideal, first = 1 / (1 - padded.padding), next(iter(ragged.sampler.batches(0)))
    rows, deviations = list[Row](), list[float]()
    for s in tracked(settings):
        net = Network(s, len(corpus.vocabulary), options.batch * int(corpus.parts["train"].lengths.max()))
        seconds = by_turns(net, every, options.repeats)
        rows += [{"layers": s.layers, **row} for row in compare(every, seconds, ideal)]
        deviations.append(worst(net.gradients(padded.batch(first)), net.gradients(ragged.batch(first))))
    draw(options.picture, rows, panels(rows, corpus.name, ideal))
    return Report(
        f"What does padding cost? {corpus.name}, LSTM of {options.hidden}, embedding {options.embedding}, "
        f"batch {options.batch}",
        [COLUMNS],
        rows,
        [
            f"Of each epoch {len(padded.batches)} batches were run; s/epoch is for all of them.",
            "greedy, optimal, static: how many buckets. ideal %: of what no padding at all would bring.",
            f"Without padding, and nothing else changed, none would be {ideal:.3f} times as fast.",
            f"Padded and ragged, loss and gradients of one batch differ by at most {max(deviations):.1e} (relative).",
        ],
    )


def panels(rows: Sequence[Row], name: str, ideal: float) -> list[Panel]:
    """One for each number of layers."""

    def bars(axis: Any, rows: Sequence[Row], depth: int) -> None:
        mine = [row for row in rows if row["layers"] == depth][::-1]
        names, faster = [row["batches"] for row in mine], [row["faster"] for row in mine]
        colors = [COLORS[0] if name.startswith("ragged") else COLORS[1] for name in names]
        axis.barh(names, faster, xerr=whiskers(mine, "faster"), color=colors, ecolor="0.4")
        for k, row in enumerate(mine):
            axis.text(0.06, k, f"{factor(row['faster'])}, {row['padding %']:.1f} % padding", va="center", fontsize=8)
        axis.axvline(ideal, color="0.35", linestyle=":")
        axis.set_xlabel(f"speed-up over padding to the longest; dotted: no padding at all ({ideal:.2f})", fontsize=8)

    depths = dict.fromkeys(row["layers"] for row in rows)
    return [({"batches"}, f"{name}: an epoch, {depth} layers", partial(bars, depth=depth)) for depth in depths]
