"""What do public reports of slow recurrent layers measure on this machine, with torch's layers and with plait's?

The scripts of the reports are written anew here, from what they time. Each network is torch's, and a copy of it whose
layers are plait's.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .. import layers
from ..errors import PlaitError, between, unknown
from ..ladder.compare import worst
from ..tasks.memory import check_layer
from . import allocators
from .options import Repeats, Seed
from .peers_table import chosen
from .public_reports import AMD_MS, GRU_MS, PACKED, REPORTS
from .report import Report, check, enough, interleaved, ratio, timing, tracked

LEAST = 0.05  # seconds of a block of steps
LONG, FEW = 2.0, 5  # if a step takes so many seconds, so many repeats have to do
SMALL = (10, 100, 500)  # L, with --quick
FURTHEST = 1e-4  # relative: beyond it, the two do not compute the same
TIMES = ("L", "timed", "malloc", "padded", "packed", "plait", "lengths=", "deviation")
SHARES = ("L", "timed", "malloc", "report %", "torch %", "plait %", "faster", "low", "high")
OTHERS = ("report", "timed", "malloc", "report ms", "torch ms", "plait ms", "faster", "low", "high")
DEVIATIONS = ("report", "timed", "malloc", "B,T,I,H,layers", "deviation")
ORDER = ("forward", "backward", "step")
Row = dict[str, Any]
Phases = dict[str, dict[str, list[float]]]  # forward, backward, step -> contender -> seconds


@dataclass
class Contender:
    """A step of a script, with a clock between forward and backward. A call is a block of them."""

    layer: nn.Module
    x: Tensor
    forward: Callable[[], Tensor]
    steps: int = 1
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ORDER})

    def step(self) -> tuple[float, float]:
        self.layer.zero_grad(set_to_none=True)
        self.x.grad = None
        start = perf_counter()
        y = self.forward()
        middle = perf_counter()
        loss(y).backward()
        return middle - start, perf_counter() - middle

    def __call__(self) -> None:
        found = [self.step() for _ in range(self.steps)]
        forward, backward = (sum(some) / self.steps for some in zip(*found, strict=True))
        for name, seconds in zip(ORDER, (forward, backward, forward + backward), strict=True):
            self.seconds[name].append(seconds)

    def results(self) -> list[Tensor]:
        y = self.forward()
        wanted = [*self.layer.parameters(), *([self.x] if self.x.requires_grad else [])]
        return [y.detach(), *torch.autograd.grad(loss(y), wanted)]


def loss(y: Tensor) -> Tensor:
    return y.square().mean()


def race(contenders: Mapping[str, Contender], repeats: int) -> Phases:
    """In turns, a block of each. All of them have run before."""
    for contender in contenders.values():
        if sum(contender.step()) >= LONG:
            repeats = FEW
        else:
            contender.steps = enough(contender.step, LEAST, perf_counter)
    interleaved(contenders, repeats, warm=False, least=0)
    return {phase: {name: c.seconds[phase] for name, c in contenders.items()} for phase in ORDER}


def checked(found: Contender, expected: Contender, what: str) -> float:
    """How far outputs and gradients are apart."""
    deviation = worst(found.results(), expected.results())
    if not deviation <= FURTHEST:
        raise PlaitError(f"{what}: plait's results are {deviation:.1e} off torch's: its times would mean nothing.")
    return deviation


def compared(theirs: Sequence[float], ours: Sequence[float]) -> Row:
    faster = ratio(theirs, ours)
    return {"faster": faster.median, "low": faster.low, "high": faster.high}


def times(seconds: Mapping[str, Sequence[float]], suffix: str = "") -> Row:
    """Medians in ms, and the quartiles for the JSON file."""
    found: Row = {}
    for name, values in seconds.items():
        t = timing(values)
        found |= {f"{name}{suffix}": t.median * 1e3, f"{name} quartiles": [t.low * 1e3, t.high * 1e3]}
    return found


# --- pytorch#149194 --------------------------------------------------------------------------------------------------
def packed_contenders(L: int, B: int, I: int, H: int) -> dict[str, Contender]:
    check_layer(B, L, I, H, 4 * H, 2, of=4)  # torch's packed one keeps several tensors for each step
    theirs = nn.LSTM(I, H, num_layers=2)
    ours = layers.accelerate(copy.deepcopy(theirs))
    x, lengths = torch.randn(L, B, I), torch.linspace(1, L, B).round().long()

    def packing(layer: nn.Module) -> Callable[[], Tensor]:
        def forward() -> Tensor:
            packed: PackedSequence = layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0]
            return pad_packed_sequence(packed)[0]

        return forward

    return {
        "padded": Contender(theirs, x, lambda: theirs(x)[0]),
        "packed": Contender(theirs, x, packing(theirs)),
        "plait": Contender(ours, x, packing(ours)),  # the same script
        "lengths=": Contender(ours, x, lambda: ours(x, lengths=lengths)[0]),
    }


def packed_rows(L: int, sizes: Sequence[int], repeats: int) -> Iterator[Row]:
    contenders = packed_contenders(L, *sizes)
    deviation = max(checked(contenders[name], contenders["packed"], f"L {L}") for name in ("plait", "lengths="))
    phases = race(contenders, repeats)
    for timed, told in zip(("forward", "backward"), PACKED[L], strict=True):
        seconds = phases[timed]
        share = {name: 100 * ratio(seconds[name], seconds["padded"]).median for name in ("packed", "plait")}
        yield {
            **{"L": L, "timed": timed, **times(seconds), "deviation": deviation, "repeats": len(seconds["plait"])},
            **{"report %": told, "torch %": share["packed"], "plait %": share["plait"]},
            **compared(seconds["packed"], seconds["plait"]),
        }


# --- the others ------------------------------------------------------------------------------------------------------
def gru_contenders() -> tuple[str, dict[str, Contender]]:
    """pytorch/rl#4154. TorchRL's layers are batch first; its own benchmark wants the gradient of the input, too."""
    return pair(nn.GRU(32, 128, batch_first=True), torch.randn(64, 32, 32, requires_grad=True), None)


def amd_contenders() -> tuple[str, dict[str, Contender]]:
    """pytorch#81634"""
    state = torch.rand(2, 8, 256), torch.rand(2, 8, 256)
    return pair(nn.LSTM(256, 256, 2, batch_first=True), torch.rand(8, 2000, 256), state)


def pair(theirs: nn.LSTM | nn.GRU, x: Tensor, state: Any) -> tuple[str, dict[str, Contender]]:
    (B, T, I), H = x.shape, theirs.hidden_size
    check_layer(B, T, I, H, theirs.all_weights[0][1].shape[0], theirs.num_layers, of=2)
    ours = layers.accelerate(copy.deepcopy(theirs))
    return f"{B},{T},{I},{H},{theirs.num_layers}", {
        "torch": Contender(theirs, x, lambda: theirs(x, state)[0]),
        "plait": Contender(ours, x, lambda: ours(x, state)[0]),
    }


Other = tuple[Callable[[], tuple[str, dict[str, Contender]]], dict[str, float | None]]
OTHER: dict[str, Other] = {  # report -> its network, and its ms by what is timed
    "4154": (gru_contenders, {"step": GRU_MS}),
    "81634": (amd_contenders, {"forward": AMD_MS, "step": None}),
}


def other_rows(report: str, repeats: int) -> Iterator[Row]:
    make, told = OTHER[report]
    shape, contenders = make()
    deviation = checked(contenders["plait"], contenders["torch"], REPORTS[report].where)
    phases = race(contenders, repeats)
    for timed, ms in told.items():
        yield {
            **{"report": f"#{report}", "timed": timed, "report ms": "not given" if ms is None else ms},
            **{**times(phases[timed], " ms"), **compared(phases[timed]["torch"], phases[timed]["plait"])},
            **{"B,T,I,H,layers": shape, "deviation": deviation, "repeats": len(phases[timed]["plait"])},
        }


def measured(
    reports: Sequence[str], lengths: Sequence[int], sizes: Sequence[int], repeats: int, seed: int
) -> list[Row]:
    torch.manual_seed(seed)
    cases: list[int | str] = [*(lengths if "149194" in reports else ()), *(name for name in reports if name in OTHER)]
    rows: list[Row] = []
    for case in tracked(cases):
        rows += packed_rows(case, sizes, repeats) if isinstance(case, int) else other_rows(case, repeats)
    return rows


def measure(
    reports: Annotated[str | None, "Of 149194, 4154 and 81634, with commas.  (default: all)"] = None,
    lengths: Annotated[str | None, "Of 149194, some of its L from 10 to 4000, with commas.  (default: all)"] = None,
    sizes: Annotated[str, "Batch, inputs and units for 149194, which does not give them."] = "32,64,64",
    malloc: Annotated[str, "default, tuned (glibc is told to keep its memory), or both."] = "both",
    quick: Annotated[bool, "Three lengths up to 500, malloc as it comes: a minute or two, not over an hour."] = False,
    repeats: Repeats = 9,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    names = chosen(reports, list(REPORTS), "report")
    some = [str(L) for L in SMALL] if quick and lengths is None else chosen(lengths, [str(L) for L in PACKED], "length")
    numbers = parse_sizes(sizes)
    if malloc not in ("both", *allocators.ABOUT):
        raise unknown("malloc", malloc, ["both", *allocators.ABOUT])
    mallocs = ("default",) if quick and malloc == "both" else tuple(allocators.ABOUT) if malloc == "both" else (malloc,)
    runners = {name: allocators.get(name) for name in mallocs}
    rows: list[Row] = []
    for name, run in runners.items():
        found = run(measured, names, [int(L) for L in some], numbers, repeats, seed)
        rows += [{**row, "malloc": name} for row in found]
    rows.sort(key=lambda row: (row.get("report", ""), row.get("L", 0), ORDER.index(row["timed"])))
    tables, remarks = [], []
    if "149194" in names:
        tables += [TIMES, SHARES]
        remarks = [
            f"L: 2 layers, B,I,H = {sizes}, ms. padded, packed: torch's. plait: the same script with its layers.",
            "lengths=: padded, with that option. %: of torch's padded. faster: torch's packed over plait's.",
        ]
    if set(names) & set(OTHER):
        tables += [OTHERS, DEVIATIONS]
    return Report(
        "What do public reports of slow recurrent layers measure here?",
        tables,
        rows,
        [
            *remarks,
            f"Where a step takes {LONG:g} s or more, {FEW} repeats.",
            *(line for name in names for line in REPORTS[name].lines),
        ],
    )


def parse_sizes(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() for p in parts):
        raise PlaitError(f"sizes '{text}': expected batch, inputs and units, such as 32,64,64.")
    for name, value in zip(("batch", "inputs", "units"), map(int, parts), strict=True):
        between(name, value, 1, 10**5)
    return [int(p) for p in parts]
