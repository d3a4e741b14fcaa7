"""The language task: a text in, the word (or the character) that comes next out. Training, evaluation, generation."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.sampler import Sampler, longest_first
from ..data.text import UNK
from ..data.text_batches import Batch, Streams, columns, grouped, sentences
from ..errors import PlaitError, between
from ..layers import packed, state_of, states_of
from ..layout import Layout
from ..training.network import Network
from ..training.run import Run
from ..training.settings import check_seed
from .base import NamedTask, Table, check_share, sizes
from .corpus import Corpus
from .language_model import LanguageModel
from .memory import build_model
from .pictures import perplexity_picture
from .settings import LanguageSettings

COLDEST = 0.001  # temperature above 0; below it, a softmax would overflow
AT_ONCE = 512  # steps that are evaluated together; of sentences, eight times as many tokens


class Language(NamedTask):
    name, unit, kind = "language", "tokens", LanguageSettings
    settings: LanguageSettings
    model: LanguageModel

    def __init__(self, settings: LanguageSettings, corpus: Corpus, *, training: bool = True) -> None:
        s = self.settings = settings
        self.corpus, self.vocabulary = corpus, corpus.vocabulary
        self.end, self.before, train = corpus.end, corpus.before, corpus.parts["train"]
        V = len(self.vocabulary)
        steps = s.steps if s.by == "streams" else int(train.lengths.max())
        tokens = min(s.batch_size(len(train.ids)) * steps, len(train.ids))
        self.model = build_model(s, lambda: LanguageModel(s, V), tokens, steps, training=training)
        self.state: tuple[Tensor, ...] | None = None
        self.sampler: Streams | Sampler
        if s.by == "streams":
            self.sampler = Streams(len(train.ids), int(s.batch), s.steps)
        else:
            batch = s.batch_size(len(train.lengths))
            self.sampler = grouped(s.buckets, train.lengths, batch, s.seed)

    @property
    def digest(self) -> str:
        return self.corpus.digest

    @classmethod
    def read(cls, settings: LanguageSettings) -> "Language":
        return cls(settings, Corpus.read(settings))

    @classmethod
    def reopen(cls, settings: LanguageSettings, run: Run, *, training: bool = False) -> "Language":
        return cls(settings, Corpus.reopen(run, Path(settings.data or "").absolute().name), training=training)

    def files(self) -> dict[str, bytes]:
        return self.corpus.files()

    def about(self) -> list[str]:
        s, parts, words = self.settings, self.corpus.parts, "words" if self.settings.level == "word" else "characters"
        counts = {part: len(found.ids) for part, found in parts.items()}
        how = f"{s.by}, {s.batch} x {s.steps}" if s.by == "streams" else f"sentences, {s.batch} a batch, {s.buckets}"
        softmax = "adaptive softmax" if self.model.adaptive else "softmax"
        if s.softmax == "auto":
            softmax += " (auto)"
        return [
            f"{self.corpus.name}: {sizes(counts)}; {len(self.vocabulary):,} different {words}",
            how,
            f"{s.cell}, {s.layers} x {s.hidden} units, {softmax}",
        ]

    # --- training
    def share(self, rank: int, ranks: int) -> None:
        train = self.corpus.parts["train"]
        check_share(self.settings.batch_size(len(train.ids if self.settings.by == "streams" else train.lengths)), ranks)
        super().share(rank, ranks)

    def count(self, indices: Tensor) -> int:
        if isinstance(self.sampler, Streams):
            return self.sampler.count(indices)
        return int(self.corpus.parts["train"].lengths[indices].sum())

    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        tokens, targets, layout, state = self.rows(indices)
        if not layout.N:
            return torch.zeros(()), 0
        mean, state = self.nll(tokens, targets, layout, state)
        self.carry_on(state)
        return mean, layout.N

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor, Layout, tuple[Tensor, ...] | None]:
        """This rank's share of a batch: tokens, targets, layout, states from before."""
        state = None
        if isinstance(self.sampler, Streams):
            batch = self.sampler.batch(indices, columns(int(self.settings.batch), self.rank, self.ranks))
            if self.state is not None and int(indices) != 0:
                state = tuple(s[:, : batch[1].B].contiguous() for s in self.state)
        else:
            mine = self.sampler.share(indices, self.rank, self.ranks)
            batch = sentences(self.corpus.parts["train"].starts, mine)
        return *self.pairs("train", batch), batch[1], state

    def pairs(self, part: str, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.before[part][batch[0]], self.corpus.parts[part].ids[batch[0]].long()

    def carry_on(self, state: Sequence[Tensor]) -> None:
        self.state = tuple(s.detach() for s in state) if isinstance(self.sampler, Streams) else None

    def nll(
        self, tokens: Tensor, targets: Tensor, layout: Layout, state: Sequence[Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        h, after = self.model(tokens, layout, None if state is None else state_of(tuple(state)))
        return self.model.softmax(h, targets), states_of(after)

    def network(self) -> Network:
        return self.model.network()

    def carried(self) -> dict[str, Tensor]:
        return {str(k): s for k, s in enumerate(self.state or ())}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        self.state = tuple(tensors[str(k)] for k in range(len(tensors))) or None

    # --- how good it is
    @torch.no_grad()
    def entropy(self, part: str) -> float:
        """The mean of -log p over all tokens of a part."""
        self.model.eval()
        total, state = 0.0, None
        with packed(self.model):
            for batch in self.passes(part):
                mean, after = self.nll(*self.pairs(part, batch), batch[1], state)
                state = after if self.settings.by == "streams" else None
                total += mean.item() * batch[1].N
        return total / len(self.corpus.parts[part].ids)

    def passes(self, part: str) -> Iterator[Batch]:
        encoded = self.corpus.parts[part]
        if self.settings.by == "streams":
            streams = Streams(len(encoded.ids), 1, AT_ONCE)
            yield from (streams.batch(k) for k in streams.batches(0))
        else:
            yield from (sentences(encoded.starts, some) for some in longest_first(encoded.lengths, 8 * AT_ONCE))

    def validate(self) -> float:
        return self.entropy("valid")

    def unigram(self, part: str) -> float:
        """The same, of a model that knows only how often each token is."""
        V, train = len(self.vocabulary), self.corpus.parts["train"].ids
        counts = torch.bincount(train, minlength=V).double() + 1
        return -(counts / counts.sum()).log()[self.corpus.parts[part].ids].mean().item()

    def evaluate(self) -> dict[str, Any]:
        names = {"validation": "valid", "test": "test"}
        result: dict[str, Any] = {}
        for name, part in names.items():
            encoded, entropies = self.corpus.parts[part], {"model": self.entropy(part), "unigram": self.unigram(part)}
            result[name] = {"tokens": len(encoded.ids), "unknown": encoded.unknown}
            for which, entropy in entropies.items():
                if not math.isfinite(entropy):
                    raise PlaitError(f"the entropy of the {name} part is {entropy}: train again with a lower --lr.")
                result[name][which] = {"entropy": entropy, "perplexity": safe_exp(entropy)}
        return result

    def table(self, metrics: dict[str, Any]) -> Table:
        rows = []
        for which, name in (("model", self.settings.cell), ("unigram", "frequencies alone")):
            found = [metrics[part][which] for part in ("validation", "test")]
            rows.append([name, *(f"{m['perplexity']:,.5g}" for m in found)])
            if self.settings.level == "char":
                rows[-1].append(f"{found[1]['entropy'] / math.log(2):.3f}")
        n, unknown = metrics["test"]["tokens"], metrics["test"]["unknown"]
        header = ["perplexity", "validation", "test", "test, bits per character"]
        way = "one stream" if self.settings.by == "streams" else "each sentence alone"
        unseen = f", {unknown:,} of them not in the vocabulary" if unknown else ""
        return Table(f"{n:,} tokens of the test{unseen}, {way}:", header[: len(rows[0])], rows)

    def pictures(self, metrics: dict[str, Any], history: Sequence[dict[str, Any]]) -> dict[str, bytes]:
        if not history:
            return {}
        return {"perplexity.png": perplexity_picture(self.corpus.name, history, metrics["test"]["model"]["perplexity"])}

    def afterwards(self, folder: Path) -> tuple[str, str]:
        return "generate", f"plait generate {shlex.quote(str(folder))} --prompt {shlex.quote(self.opening())}"

    def opening(self) -> str:
        start = self.vocabulary.decode(self.corpus.parts["train"].ids[:12]).split("\n")[0]
        return " ".join(start.split()[:2])

    def shown(self, loss: float) -> str:
        return f"perplexity {safe_exp(loss):.5g}"

    # --- writing
    def unknown(self, prompt: str) -> list[str]:
        """What of it the network cannot know."""
        words = prompt.split() if self.settings.level == "word" else list(prompt)
        return [w for w in dict.fromkeys(words) if w not in self.vocabulary.index]

    def predict(
        self, prompt: str = "", *, length: int = 100, temperature: float = 0.8, top: int = 0, seed: int = 0
    ) -> str:
        return self.generate(prompt, length=length, temperature=temperature, top=top, seed=seed)

    @torch.no_grad()
    def generate(self, prompt: str, *, length: int, temperature: float, top: int, seed: int) -> str:
        """The prompt, and what might follow. UNK is never drawn."""
        between("length", length, 1, 10**6)
        between("top", top, 0, 10**9)
        check_seed(seed)
        if not (temperature == 0 or COLDEST <= temperature <= 1000):
            limits = f"must be 0 (always the likeliest), or from {COLDEST} to 1000"
            raise PlaitError(f"temperature {temperature}: {limits}.")
        self.model.eval()
        generator = torch.Generator().manual_seed(seed)
        ids = self.vocabulary.encode(prompt).ids.tolist()
        if not prompt.endswith("\n"):
            ids = ids[:-1]  # the prompt's line goes on
        written, state = [self.end, *ids], None
        new = torch.tensor(written)
        with packed(self.model):
            for _ in range(length):
                if self.settings.by == "sentences" and self.end in new:  # each sentence is by itself
                    last = int((new == self.end).nonzero()[-1])
                    new, state = new[last:], None
                h, state = self.model(new, Layout(len(new), 1), state)
                logits = self.model.softmax.logits(h[-1:])[0]  # (V,)
                if not logits.isfinite().all():
                    raise PlaitError("the network gives numbers that are not finite: train again with a lower --lr.")
                logits[self.vocabulary.index[UNK]] = -math.inf
                new = pick(logits, temperature, top, generator)
                written.append(int(new))
        return self.vocabulary.decode(written[1:])


def pick(logits: Tensor, temperature: float, top: int, generator: torch.Generator) -> Tensor:  # (V,) -> (1,)
    if temperature == 0:
        return logits.argmax(0, keepdim=True)
    if 0 < top < len(logits):
        logits = logits.where(logits >= logits.topk(top).values[-1], -math.inf)
    return ((logits - logits.max()) / temperature).softmax(0).multinomial(1, generator=generator)


def safe_exp(entropy: float) -> float:
    return math.exp(min(entropy, 700.0))
