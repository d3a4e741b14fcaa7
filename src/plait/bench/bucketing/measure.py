"""Training steps on the batches of each scheme, in turns: the second paper's network, by one process."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import PlaitError, between
from ...ladder.compare import worst
from ...tasks.corpus import Corpus
from ...tasks.settings import LanguageSettings
from ...training.crew import Alone, Wishes
from ..core import Report, Row, Seconds, take_turns, tracked
from ..core.pictures import COLORS, Panel, draw, factor, whiskers
from ..core.texts import Scheme, Text
from ..questions import BucketingOptions

STATIC = (8, 16, 24, 32, 60)  # and the longest
BEST = (5, 10, 16)
COLUMNS = ("layers", "batches", "padding %", "s/epoch", "tokens/s", "faster", "low", "high", "ideal %")


def step(scheme: Scheme, optimizer: torch.optim.Optimizer, indices: Tensor) -> None:
    """As training/loop.py takes it."""
    crew = Alone()
    crew.step(scheme, indices, lambda: Wishes(False, False))
    crew.clip(list(scheme.model.parameters()), 5.0)
    crew.update(optimizer)


def schemes(base: Text, count: int) -> dict[str, Scheme]:
    longest = int(base.corpus.parts["train"].lengths.max())
    static = ",".join(map(str, (*(n for n in STATIC if n < longest), longest)))
    made = {"none": Scheme(base, "none", True, count)}
    for how in (static, "greedy", *(f"optimal:{K}" for K in BEST)):
        scheme = Scheme(base, how, True, count)
        name = "static" if how == static else how.partition(":")[0]
        made[f"{name} {len(scheme.order.boundaries or ())}"] = scheme
    made["ragged"] = Scheme(base, "none", False, count)
    made["ragged, pool:50"] = Scheme(base, "pool:50", False, count)
    return made


def by_turns(every: dict[str, Scheme], repeats: int) -> Seconds:
    """Seconds for each scheme's batches, once per repeat.

    The schemes take turns batch by batch, for the machine may be slower by the time that a scheme is done.
    """
    some = next(iter(every.values()))
    turns, optimizer = {}, some.settings.make_optimizer(some.model)  # it is the same for all
    for scheme in every.values():
        step(scheme, optimizer, scheme.chosen[0])  # warm
    for k in range(max(len(scheme.chosen) for scheme in every.values())):
        for name, scheme in every.items():
            if k < len(scheme.chosen):
                turns[f"{k} {name}"] = partial(step, scheme, optimizer, scheme.chosen[k])
    found = take_turns(turns, repeats, warm=False, least=0)
    sums = Seconds({name: [0.0] * repeats for name in every})
    for turn, seconds in found.items():
        name = turn.partition(" ")[2]
        sums[name] = [a + b for a, b in zip(sums[name], seconds, strict=True)]
    return sums


def compare(every: dict[str, Scheme], seconds: Seconds, ideal: float) -> list[Row]:
    """ideal: how many times faster no padding at all would be."""
    epochs = Seconds({name: [t * scheme.scale for t in seconds[name]] for name, scheme in every.items()})
    rows = []
    for name, scheme in every.items():
        faster = epochs.faster(name, than="none")
        row: Row = {"batches": name}
        row["padding %"] = scheme.padding * 100
        row["s/epoch"] = epochs.median(name)
        row["tokens/s"] = scheme.tokens / seconds.median(name)
        rows.append({**row, **faster.row("faster"), "ideal %": faster.median / ideal * 100})
    return rows


def measure(options: BucketingOptions) -> Report:
    between("sentences", options.sentences, options.batch, 10**9)
    depths = options.layers.split(",")
    if not all(re.fullmatch("[1-9][0-9]{0,2}|1000", depth) for depth in depths):
        raise PlaitError(f"layers '{options.layers}': expected numbers from 1 to 1000, such as 8,2.")
    given: dict[str, Any] = options.some("data", "hidden", "embedding", "engine", "seed")
    given |= {"softmax": "full", "by": "sentences", "batch": str(options.batch)}
    given |= {"optimizer": "sgd", "lr": 1e-3}
    settings = [LanguageSettings(layers=int(depth), **given) for depth in depths]
    corpus = Corpus.read(settings[0])
    rows, deviations = list[Row](), list[float]()
    for s in tracked(settings):
        every = schemes(Text(s, corpus), options.sentences // options.batch)
        padded, ragged = every["none"], every["ragged"]
        ideal = 1 / (1 - padded.padding)
        seconds = by_turns(every, options.repeats)
        rows += [{"layers": s.layers, **row} for row in compare(every, seconds, ideal)]
        for scheme in (padded, ragged):
            scheme.batches = [scheme.made(next(ragged.order.batches(0)))]
        deviations.append(worst(*(list(scheme.reference.values()) for scheme in (padded, ragged))))
    draw(options.picture, rows, panels(rows, corpus.name, ideal))
    return Report(
        f"What does padding cost? {corpus.name}, LSTM of {options.hidden}, embedding {options.embedding}, "
        f"batch {options.batch}",
        [COLUMNS],
        rows,
        [
            f"Of each epoch {len(padded.chosen)} batches were run; s/epoch is for all of them.",
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
