"""What does padding cost, and how much of that do buckets and ragged batches save? Takes some minutes.

Every scheme trains the same network on batches of its own epoch. A few batches stand for all of them: taken evenly from
the epoch's batches in the order of their size, and counted by the slots that they have.
"""

import re
import time
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from ..data import buckets
from ..data.sampler import Sampler
from ..data.text_batches import sentences
from ..errors import PlaitError, between
from ..ladder.compare import worst
from ..layout import Layout
from ..tasks.corpus import Corpus
from ..tasks.language_model import LanguageModel
from ..tasks.memory import check_training
from ..tasks.pictures import check_picture, png
from ..tasks.settings import LanguageSettings
from ..training.crew import clip
from ..training.files import write_whole
from .options import Engine, Repeats, Seed, Text
from .report import Report, check, ratio, timing, tracked

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

    def step(self, batch: tuple[Tensor, Tensor, Layout]) -> float:
        """Seconds of a training step."""
        start = time.perf_counter()
        self.loss(*batch).backward()
        clip(self.parameters, 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start

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


def by_turns(net: Network, every: dict[str, Scheme], repeats: int) -> dict[str, list[float]]:
    """Seconds for each scheme's batches, once per repeat. The schemes take turns batch by batch, there and back: a
    scheme takes so long that the machine may be faster or slower for the next one.
    """
    seconds = {name: [0.0] * repeats for name in every}
    for scheme in every.values():
        net.step(scheme.batches[0])
    names, turn = list(every), 0
    for repeat in range(repeats):
        for k in range(max(len(scheme.batches) for scheme in every.values())):
            for name in names[:: 1 - 2 * (turn % 2)]:
                if k < len(every[name].batches):
                    seconds[name][repeat] += net.step(every[name].batches[k])
            turn += 1
    return seconds


def measure(
    data: Text = None,
    layers: Annotated[str, "Layers, with commas."] = "8,2",
    hidden: Annotated[int, "Units in a layer."] = 400,
    embedding: Annotated[int, "Numbers that stand for a word."] = 200,
    batch: Annotated[int, "Sentences in a batch."] = 20,
    sentences: Annotated[int, "Sentences that are trained on in one measurement."] = 160,
    engine: Engine = "auto",
    picture: Annotated[str | None, "Draw it there, as a PNG file.", "FILE"] = None,
    repeats: Repeats = 5,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    between("batch", batch, 1, 10**6)
    between("sentences", sentences, batch, 10**9)
    depths = layers.split(",")
    if not all(re.fullmatch("[1-9][0-9]{0,2}|1000", depth) for depth in depths):
        raise PlaitError(f"layers '{layers}': expected numbers from 1 to 1000, such as 8,2.")
    place = check_picture(picture) if picture else None
    network: dict[str, Any] = {
        "hidden": hidden,
        "embedding": embedding,
        "engine": engine,
        "seed": seed,
        "softmax": "full",
    }
    settings = [LanguageSettings(data=data, layers=int(depth), **network) for depth in depths]
    corpus = Corpus.read(settings[0])
    every = schemes(corpus, batch, sentences // batch, seed)
    rows, deviations = [], []
    for s in tracked(settings):
        net = Network(s, len(corpus.vocabulary), batch * int(corpus.parts["train"].lengths.max()))
        seconds = by_turns(net, every, repeats)
        epochs = {
            name: [t * scheme.epoch_slots / scheme.chosen_slots for t in seconds[name]]
            for name, scheme in every.items()
        }
        ideal = 1 / (1 - every["none"].padding)
        for name, scheme in every.items():
            faster, took = ratio(epochs["none"], epochs[name]), timing(epochs[name])
            rows.append(
                {
                    "layers": s.layers,
                    "batches": name,
                    "padding %": scheme.padding * 100,
                    "s/epoch": took.median,
                    "tokens/s": scheme.tokens / timing(seconds[name]).median,
                    "faster": faster.median,
                    "low": faster.low,
                    "high": faster.high,
                    "ideal %": faster.median / ideal * 100,
                }
            )
        deviations.append(deviation(net, every))
    if place:
        write_whole(place, drawing(corpus.name, rows, ideal))
    return Report(
        f"What does padding cost? {corpus.name}, LSTM of {hidden}, embedding {embedding}, batch {batch}",
        [COLUMNS],
        rows,
        [
            f"Of each epoch {len(every['none'].batches)} batches were run; s/epoch is for all of them.",
            "greedy, optimal, static: how many buckets. ideal %: of what no padding at all would bring.",
            f"Without padding, and nothing else changed, none would be {ideal:.3f} times as fast.",
            f"Padded and ragged, loss and gradients of one batch differ by at most {max(deviations):.1e} (relative).",
        ],
    )


def deviation(net: Network, every: dict[str, Scheme]) -> float:
    """Of the loss and each gradient of a batch, padded, from the same batch without padding."""
    padded, ragged = every["none"], every["ragged"]
    indices = next(iter(ragged.sampler.batches(0)))
    return worst(net.gradients(padded.batch(indices)), net.gradients(ragged.batch(indices)))


def drawing(name: str, rows: Sequence[dict[str, Any]], ideal: float) -> bytes:
    from matplotlib.figure import Figure

    depths = list(dict.fromkeys(row["layers"] for row in rows))
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes: Any = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    for ax, depth in zip(axes, depths, strict=True):
        mine = [row for row in rows if row["layers"] == depth][::-1]
        colors = ["tab:blue" if row["batches"].startswith("ragged") else "tab:orange" for row in mine]
        spread = [[row["faster"] - row["low"] for row in mine], [row["high"] - row["faster"] for row in mine]]
        ax.barh(
            [row["batches"] for row in mine], [row["faster"] for row in mine], xerr=spread, color=colors, ecolor="0.4"
        )
        for k, row in enumerate(mine):
            ax.text(0.06, k, f"{row['faster']:.2f}x, {row['padding %']:.1f} % padding", va="center", fontsize=8)
        ax.axvline(ideal, color="0.35", linestyle=":")
        ax.set_title(f"{depth} layers", loc="left", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_xlabel(f"times as fast as padding everything to the longest; dotted: no padding at all ({ideal:.2f})")
    axes[0].xaxis.set_label_coords(0.0, -0.1)
    axes[0].xaxis.label.set_ha("left")
    figure.suptitle(f"{name}: a training epoch", x=0.01, ha="left", fontsize=11)
    return png(figure)
