"""The scripts of the reports, written anew from what they time."""

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
from .. import about
from ..core import Report, Row, Seconds, malloc, take_turns, tracked
from ..core.steps import Step, packing
from ..core.turns import enough
from ..options import chosen
from ..questions import PublicOptions
from .reports import OTHER, PACKED

LEAST = 0.05  # seconds of a block of steps
LONG, FEW = 2.0, 5  # if a step takes so many seconds, so many repeats have to do
SMALL = ["10", "100", "500"]  # L, with --quick
FURTHEST = 1e-4  # relative: beyond it, the two do not compute the same
TIMES = ("L", "timed", "malloc", "padded", "packed", "plait", "lengths=", "deviation")
SHARES = ("L", "timed", "malloc", "report %", "torch %", "plait %", "faster", "low", "high")
OTHERS = ("report", "timed", "malloc", "report ms", "torch ms", "plait ms", "faster", "low", "high")
DEVIATIONS = ("report", "timed", "malloc", "B,T,I,H,layers", "deviation")
ORDER = ("forward", "backward", "step")


class Script(Step):
    """A block of steps of a report's script, with a clock between forward and backward."""

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


Scripts = dict[str, Script]


def packed(L: int, B: int, I: int, H: int) -> Scripts:
    """pytorch#149194"""
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


def pair(theirs: nn.LSTM | nn.GRU, x: Tensor, states: Tensor | None) -> Scripts:
    state: Any = None if states is None else tuple(states)
    (B, T, I), H = x.shape, theirs.hidden_size
    check_layer(B, T, I, H, theirs.all_weights[0][1].shape[0], theirs.num_layers, of=2)
    ours = layers.accelerate(copy.deepcopy(theirs))
    return {
        "torch": Script(theirs, x, lambda: theirs(x, state)[0]),
        "plait": Script(ours, x, lambda: ours(x, state)[0]),
    }


SCRIPTS: dict[str, Callable[[], Scripts]] = {
    # TorchRL's benchmark wants the gradient of the input, too
    "4154": lambda: pair(nn.GRU(32, 128, batch_first=True), torch.randn(64, 32, 32, requires_grad=True), None),
    "81634": lambda: pair(nn.LSTM(256, 256, 2, batch_first=True), torch.rand(8, 2000, 256), torch.rand(2, 2, 8, 256)),
}


def checked(scripts: Scripts, expected: str, what: str) -> float:
    """How far outputs and gradients of plait's are apart from torch's."""
    right = scripts[expected].results()
    ours = [script for name, script in scripts.items() if name in ("plait", "lengths=")]
    deviation = max(worst(script.results(), right) for script in ours)
    if not deviation <= FURTHEST:
        raise PlaitError(f"{what}: plait's results are {deviation:.1e} off torch's: not the same network.")
    return deviation


def race(scripts: Scripts, repeats: int) -> dict[str, Seconds]:
    """By phase. In turns, a block of each. All of them have run before."""
    for script in scripts.values():
        if sum(script.step()) >= LONG:
            repeats = FEW
        else:
            script.steps = enough(script.step, LEAST, perf_counter)
    take_turns(scripts, repeats, warm=False, least=0)
    return {phase: Seconds({name: s.seconds[phase] for name, s in scripts.items()}) for phase in ORDER}


def rows_of(asked: int | str, sizes: Sequence[int], repeats: int) -> Iterator[Row]:
    """What a report timed; the quartiles are for the JSON file. asked: an L of 149194, or another report"""
    if isinstance(asked, int):
        scripts, theirs, what = packed(asked, *sizes), "packed", f"L {asked}"
        told: Mapping[str, float | None] = dict(zip(ORDER, PACKED[asked], strict=False))
    else:
        scripts, theirs, what, told = SCRIPTS[asked](), "torch", f"#{asked}", OTHER[asked]
    deviation = checked(scripts, theirs, what)
    (B, T, I), layer = scripts[theirs].x.shape, scripts[theirs].layer
    for timed, seconds in race(scripts, repeats).items():
        if timed not in told:
            continue
        row: Row = {"timed": timed, "deviation": deviation, "repeats": len(seconds["plait"])}
        row |= seconds.faster("plait", than=theirs).row("faster")
        for name in seconds:
            t = seconds.spread(name)
            row[f"{name} quartiles"] = [t.low * 1e3, t.high * 1e3]
        if isinstance(asked, int):
            row |= {"L": asked, **seconds.ms(""), "report %": told[timed]}
            for column, name in (("torch %", "packed"), ("plait %", "plait")):
                row[column] = 100 * seconds.faster("padded", than=name).median
        else:
            row["report"] = what
            row["report ms"] = "not given" if told[timed] is None else told[timed]
            row["B,T,I,H,layers"] = f"{B},{T},{I},{layer.hidden_size},{layer.num_layers}"
            row |= seconds.ms()
        yield row


def measured(cases: Sequence[int | str], sizes: Sequence[int], repeats: int, seed: int) -> list[Row]:
    torch.manual_seed(seed)
    return [row for case in tracked(cases) for row in rows_of(case, sizes, repeats)]


def measure(options: PublicOptions) -> Report:
    names = chosen(options.reports, ["149194", *OTHER], "report")
    lengths = chosen(options.lengths, [str(L) for L in PACKED], "length")
    if options.quick and options.lengths is None:
        lengths = SMALL
    every = ["default"] if options.quick else list(malloc.ABOUT)
    mallocs = every if options.malloc == "both" else [options.malloc]
    cases = [*(map(int, lengths) if "149194" in names else ()), *(name for name in names if name in OTHER)]
    asked = (cases, parse_sizes(options.sizes), options.repeats, options.seed)
    runners = {name: malloc.runner(name) for name in mallocs}
    rows = [{**row, "malloc": name} for name, run in runners.items() for row in run(measured, *asked)]
    rows.sort(key=lambda row: (row.get("report", ""), row.get("L", 0), ORDER.index(row["timed"])))
    remarks = [
        f"L: 2 layers, B,I,H = {options.sizes}, ms. padded, packed: torch's. plait: the same script with its layers.",
        "lengths=: padded, with that option. %: of torch's padded. faster: torch's packed over plait's.",
    ]
    return Report(
        about("public"),
        [TIMES, SHARES, OTHERS, DEVIATIONS],
        rows,
        [
            *(remarks if "149194" in names else ()),
            f"Where a step takes {LONG:g} s or more, {FEW} repeats.",
            "The reports are of other machines: docs/public.md says which, what was timed, and what is not known.",
        ],
    )


def parse_sizes(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() for p in parts):
        raise PlaitError(f"sizes '{text}': expected batch, inputs and units, such as 32,64,64.")
    for name, value in zip(("batch", "inputs", "units"), map(int, parts), strict=True):
        between(name, value, 1, 10**5)
    return [int(p) for p in parts]
