"""The scripts of the reports, written anew from what they time, with torch's layers and with plait's."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ... import layers
from ...errors import PlaitError, between
from ...ladder.compare import worst
from ...tasks.memory import check_layer
from ..core import malloc
from ..core.options import chosen
from ..core.report import Report, tracked
from ..core.steps import Step, packing
from ..core.turns import Row, Seconds, enough, take_turns
from . import Options
from .reports import AMD_MS, GRU_MS, PACKED, REPORTS

LEAST = 0.05  # seconds of a block of steps
LONG, FEW = 2.0, 5  # if a step takes so many seconds, so many repeats have to do
SMALL = (10, 100, 500)  # L, with --quick
FURTHEST = 1e-4  # relative: beyond it, the two do not compute the same
TIMES = ("L", "timed", "malloc", "padded", "packed", "plait", "lengths=", "deviation")
SHARES = ("L", "timed", "malloc", "report %", "torch %", "plait %", "faster", "low", "high")
OTHERS = ("report", "timed", "malloc", "report ms", "torch ms", "plait ms", "faster", "low", "high")
DEVIATIONS = ("report", "timed", "malloc", "B,T,I,H,layers", "deviation")
ORDER = ("forward", "backward", "step")
Phases = dict[str, Seconds]  # forward, backward, step


class Script(Step):
    """A step of a report's script, with a clock between forward and backward. A call is a block of steps."""

    def __init__(self, layer: nn.Module, x: Tensor, forward: Callable[[], Tensor] | None = None) -> None:
        super().__init__(layer, x, torch.empty(0), forward)
        self.steps, self.seconds = 1, {name: list[float]() for name in ORDER}

    def backward(self, y: Tensor) -> None:
        y.square().mean().backward()

    def step(self) -> tuple[float, float]:
        self.clear()
        start = perf_counter()
        y = self.forward()
        middle = perf_counter()
        self.backward(y)
        return middle - start, perf_counter() - middle

    def __call__(self) -> None:
        found = [self.step() for _ in range(self.steps)]
        forward, backward = (sum(some) / self.steps for some in zip(*found, strict=True))
        for name, seconds in zip(ORDER, (forward, backward, forward + backward), strict=True):
            self.seconds[name].append(seconds)


def race(contenders: Mapping[str, Script], repeats: int) -> Phases:
    """In turns, a block of each. All of them have run before."""
    for contender in contenders.values():
        if sum(contender.step()) >= LONG:
            repeats = FEW
        else:
            contender.steps = enough(contender.step, LEAST, perf_counter)
    take_turns(contenders, repeats, warm=False, least=0)
    return {phase: Seconds({name: c.seconds[phase] for name, c in contenders.items()}) for phase in ORDER}


def checked(found: Script, expected: Script, what: str) -> float:
    """How far outputs and gradients are apart."""
    deviation = worst(found.results(), expected.results())
    if not deviation <= FURTHEST:
        raise PlaitError(f"{what}: plait's results are {deviation:.1e} off torch's: its times would mean nothing.")
    return deviation


def about(seconds: Seconds, deviation: float) -> Row:
    """What all rows have; the quartiles are for the JSON file."""
    found: Row = {"deviation": deviation, "repeats": len(seconds["plait"])}
    for name in seconds:
        t = seconds.spread(name)
        found[f"{name} quartiles"] = [t.low * 1e3, t.high * 1e3]
    return found


# --- pytorch#149194 --------------------------------------------------------------------------------------------------
def packed_contenders(L: int, B: int, I: int, H: int) -> dict[str, Script]:
    check_layer(B, L, I, H, 4 * H, 2, of=4)  # torch's packed one keeps several tensors for each step
    theirs = nn.LSTM(I, H, num_layers=2)
    ours = layers.accelerate(copy.deepcopy(theirs))
    x, lengths = torch.randn(L, B, I), torch.linspace(1, L, B).round().long()
    return {
        "padded": Script(theirs, x),
        "packed": Script(theirs, x, packing(theirs, x, lengths)),
        "plait": Script(ours, x, packing(ours, x, lengths)),
        "lengths=": Script(ours, x, lambda: ours(x, lengths=lengths)[0]),
    }


def packed_rows(L: int, sizes: Sequence[int], repeats: int) -> Iterator[Row]:
    contenders = packed_contenders(L, *sizes)
    deviation = max(checked(contenders[name], contenders["packed"], f"L {L}") for name in ("plait", "lengths="))
    phases = race(contenders, repeats)
    for timed, told in zip(("forward", "backward"), PACKED[L], strict=True):
        seconds = phases[timed]
        yield {
            "L": L,
            "timed": timed,
            **seconds.ms(""),
            "report %": told,
            "torch %": 100 * seconds.faster("padded", than="packed").median,
            "plait %": 100 * seconds.faster("padded", than="plait").median,
            **seconds.faster("plait", than="packed").row("faster"),
            **about(seconds, deviation),
        }


# --- the others ------------------------------------------------------------------------------------------------------
def gru_contenders() -> tuple[str, dict[str, Script]]:
    """pytorch/rl#4154. TorchRL's layers are batch first; its own benchmark wants the gradient of the input, too."""
    return pair(nn.GRU(32, 128, batch_first=True), torch.randn(64, 32, 32, requires_grad=True), None)


def amd_contenders() -> tuple[str, dict[str, Script]]:
    """pytorch#81634"""
    state = torch.rand(2, 8, 256), torch.rand(2, 8, 256)
    return pair(nn.LSTM(256, 256, 2, batch_first=True), torch.rand(8, 2000, 256), state)


def pair(theirs: nn.LSTM | nn.GRU, x: Tensor, state: Any) -> tuple[str, dict[str, Script]]:
    (B, T, I), H = x.shape, theirs.hidden_size
    check_layer(B, T, I, H, theirs.all_weights[0][1].shape[0], theirs.num_layers, of=2)
    ours = layers.accelerate(copy.deepcopy(theirs))
    return f"{B},{T},{I},{H},{theirs.num_layers}", {
        "torch": Script(theirs, x, lambda: theirs(x, state)[0]),
        "plait": Script(ours, x, lambda: ours(x, state)[0]),
    }


Other = tuple[Callable[[], tuple[str, dict[str, Script]]], dict[str, float | None]]
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
            "report": f"#{report}",
            "timed": timed,
            "report ms": "not given" if ms is None else ms,
            **phases[timed].ms(),
            **phases[timed].faster("plait", than="torch").row("faster"),
            "B,T,I,H,layers": shape,
            **about(phases[timed], deviation),
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


def measure(options: Options) -> Report:
    names, known = chosen(options.reports, list(REPORTS), "report"), [str(L) for L in PACKED]
    lengths = SMALL if options.quick and options.lengths is None else chosen(options.lengths, known, "length")
    every = ["default"] if options.quick else list(malloc.ABOUT)
    mallocs = every if options.malloc == "both" else chosen(options.malloc, list(malloc.ABOUT), "malloc")
    asked = (names, [int(L) for L in lengths], parse_sizes(options.sizes), options.repeats, options.seed)
    runners = {name: malloc.runner(name) for name in mallocs}
    rows = [{**row, "malloc": name} for name, run in runners.items() for row in run(measured, *asked)]
    rows.sort(key=lambda row: (row.get("report", ""), row.get("L", 0), ORDER.index(row["timed"])))
    remarks = [
        f"L: 2 layers, B,I,H = {options.sizes}, ms. padded, packed: torch's. plait: the same script with its layers.",
        "lengths=: padded, with that option. %: of torch's padded. faster: torch's packed over plait's.",
    ]
    return Report(
        "What do public reports of slow recurrent layers measure here?",
        [TIMES, SHARES, OTHERS, DEVIATIONS],
        rows,
        [
            *(remarks if "149194" in names else ()),
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
