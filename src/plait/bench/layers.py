"""How much faster is a training step of plait's layers than of torch.nn's?"""

import math
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Annotated, Any

import torch

from .. import cells, engines
from ..errors import PlaitError, between
from ..kernels.target import host
from ..ladder.compare import deviation, outputs_and_gradients
from . import allocators, phases, targets
from .options import ABOUT_SHAPES, CellNames, Engine, Repeats, Seed
from .peak import Peak
from .report import Report, check, tracked
from .steps import Case, contenders, extra_memory, pages, parse_cells, parse_shapes, race

SHAPES = (
    "32,12,1,32,1 48,24,7,24,3 1,128,64,64,1 32,128,64,64,1 128,30,8,128,2 100,128,9,100,2 64,128,128,256,1 "
    "100,128,1000,100,1 20,35,200,200,2 20,35,650,650,2 1,1000,128,512,1 1000,10,1000,1000,1"
)
MOST = {"B": 512, "T": 512, "I": 1024, "H": 1024}  # of a random shape
MOST_WORK = 1e11  # the same: about 2 s
AGAIN = 3  # times as many repeats for what seems slower
PRINTED = 10  # of the random shapes
TIMES = ("shape", "cell", "torch ms", "plait ms", "faster", "low", "high")
SHARES = ("shape", "cell", "GFLOP/s", "plait %", "torch %", "peak ms", "reach")
REST = ("shape", "cell", "torch MB", "plait MB", "deviation", "where")
PAGES = ("shape", "cell", "torch faults", "plait faults", "torch sys", "plait sys")
SPLIT = {"walk back": "back"}  # phases with shorter names
WORST = ("shape", "cell", "reach", *(SPLIT.get(name, name) for name in phases.PHASES))
Row = dict[str, Any]


def draw(count: int, names: Sequence[str], seed: int) -> list[Case]:
    """Cells and shapes at random: as many between 1 and 2 as between 100 and 200."""
    random = Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        cell = random.choice(names)
        sizes = {name: round(math.exp(random.uniform(0, math.log(most)))) for name, most in MOST.items()}
        case = Case(cell, **sizes)
        if case.work() <= MOST_WORK:
            cases.append(case)
    return cases


def compare(case: Case, engine: str, repeats: int, input_gradient: bool) -> Row:
    pair = contenders(case, engine, input_gradient)
    theirs, ours, faster = race(pair, repeats)
    faults, system = zip(*(pages(pair[name], repeats) for name in ("torch", "plait")), strict=True)
    memory = {name: extra_memory(step) for name, step in pair.items()}
    found, expected = (outputs_and_gradients(pair[name].layer, pair[name].x, None) for name in ("plait", "torch"))
    largest, where = deviation(found, expected)
    return {
        "shape": case.shape,
        "cell": case.cell,
        "engine": engines.choose(engine, cells.get(case.cell), torch.float32, torch.device("cpu")),
        "repeats": repeats,
        "torch ms": theirs.median * 1e3,
        "plait ms": ours.median * 1e3,
        "faster": faster.median,
        "low": faster.low,
        "high": faster.high,
        "slower": faster.high < 1,
        "GFLOP/s": case.work(input_gradient) / ours.median / 1e9,
        "torch MB": memory["torch"],
        "plait MB": memory["plait"],
        "deviation": largest,
        "where": where,
        "torch faults": faults[0],
        "plait faults": faults[1],
        "torch sys": system[0],
        "plait sys": system[1],
    }


def search(
    cases: Sequence[Case], engine: str, repeats: int, input_gradient: bool, peak: Peak
) -> tuple[list[Row], list[str]]:
    """The rows, worst first. What seems slower is measured again, for of many shapes some seem so by chance."""
    rows = [compare(case, engine, repeats, input_gradient) for case in peak.between(tracked(cases))]
    doubted = [k for k, row in enumerate(rows) if row["faster"] < 1]
    for k in peak.between(tracked(doubted)):
        rows[k] = compare(cases[k], engine, AGAIN * repeats, input_gradient)
    typical = median(row["faster"] for row in rows)
    return sorted(rows, key=lambda row: row["faster"]), [
        f"{len(rows)} shapes at random, half of them {typical:.3g} times faster or more; the worst are printed.",
        f"{len(doubted)} seemed slower and were measured again, with {AGAIN * repeats} repeats.",
    ]


def with_phases(rows: Sequence[Row], repeats: int) -> list[Row]:
    """The phases of those that reach least of the target: their shares in %, and their rows as of `bench phases`."""
    found, worst = list(rows), sorted(range(len(rows)), key=lambda k: rows[k]["reach"])[:PRINTED]
    for k in tracked([k for k in worst if rows[k]["engine"] == "fused"]):
        case = Case(rows[k]["cell"], *map(int, rows[k]["shape"].split(",")))
        some = phases.split(case, repeats)
        shares = {SPLIT.get(row["phase"], row["phase"]): row["share %"] for row in some[: len(phases.PHASES)]}
        found[k] = {**rows[k], **shares, "phases": some}
    return found


def measured(
    cases: Sequence[Case], at_random: bool, engine: str, repeats: int, input_gradient: bool, seed: int
) -> tuple[list[Row], list[str]]:
    """-> the rows, and what is to be said about them"""
    torch.manual_seed(seed)
    peak, more = Peak(cases[0].cell), list[str]()
    if at_random:
        rows, more = search(cases, engine, repeats, input_gradient, peak)
    else:
        rows = [compare(case, engine, repeats, input_gradient) for case in peak.between(tracked(cases))]
    rows = [targets.judged(row, peak.best, host().vector_bits // 32) for row in rows]
    if at_random:
        rows = with_phases(rows, repeats)
        more.append(f"project to bias: the phases of the {PRINTED} that reach least, in % of their sum.")
    return rows, [*more, str(peak), targets.verdict(rows)]


def measure(
    shapes: Annotated[str | None, f"{ABOUT_SHAPES}  (default: twelve from small to large)"] = None,
    cells: CellNames = "lstm,gru,rnn",
    random: Annotated[int | None, "Measure this many random shapes, and print the worst.", "N"] = None,
    engine: Engine = "auto",
    input_gradient: Annotated[bool, "The gradient of the input, too."] = False,
    malloc: Annotated[str, "default, or tuned: glibc is told to keep its memory."] = "default",
    repeats: Repeats = 9,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    names = parse_cells(cells)
    engines.check_name(engine)
    run = allocators.get(malloc)
    if random is None:
        cases = parse_shapes(SHAPES if shapes is None else shapes, names)
    elif shapes is not None:
        raise PlaitError("--shapes and --random were both given: leave one of them out.")
    else:
        between("random", random, 1, 10_000)
        cases = draw(random, names, seed)
    rows, more = run(measured, cases, random is not None, engine, repeats, input_gradient, seed)
    rows = [{**row, "malloc": malloc} for row in rows]
    gradients = "of parameters and input" if input_gradient else "of the parameters"
    return Report(
        f"How much faster is a training step (forward, backward, gradients {gradients}) than torch.nn's?",
        [TIMES, SHARES, *([] if random is None else [WORST]), REST, PAGES],
        rows,
        [
            "shape: B,T,I,H,layers. faster: torch's time over plait's, the median and the quartiles of the pairs.",
            "%: of the peak. peak ms: what the arithmetic takes there. reach: of the target (bench/targets.py).",
            *more,
            "MB: the peak of a step beyond what was there before it.",
            f"faults, sys: pages that a step touches first, and ms of system time; {allocators.ABOUT[malloc]}.",
            *verdict(rows),
        ],
        None if random is None else PRINTED,
    )


def verdict(rows: Sequence[Row]) -> list[str]:
    """Which are slower beyond the spread, that is with an upper quartile below 1, and which deviates most."""
    slower = [f"{row['cell']} {row['shape']}" for row in rows if row["slower"]]
    worst = max(rows, key=lambda row: row["deviation"])
    return [
        f"slower beyond the spread (high < 1): {len(slower)} of {len(rows)}" + "".join(f"; {name}" for name in slower),
        f"largest deviation from torch {worst['deviation']:.1e}: {worst['where']} of {worst['cell']} {worst['shape']}",
    ]
