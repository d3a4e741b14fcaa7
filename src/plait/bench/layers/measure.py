"""The layers in turns, on shapes that are given or drawn at random."""

import math
from collections.abc import Sequence
from random import Random
from statistics import median

import torch

from ... import cells, engines
from ...errors import PlaitError
from ...kernels.emit.target import host
from ...ladder.compare import deviation, outputs_and_gradients
from ..core import Report, Row, malloc, take_turns, tracked
from ..core.memory import extra_memory, pages
from ..core.peak import Peak
from ..core.steps import Case, check_memory, contenders, parse_shapes
from ..phases import measure as phases
from ..questions import LayersOptions
from . import low_precision, targets

SHAPES = (
    "32,12,1,32,1 48,24,7,24,3 1,128,64,64,1 32,128,64,64,1 128,30,8,128,2 100,128,9,100,2 64,128,128,256,1 "
    "100,128,1000,100,1 20,35,200,200,2 20,35,650,650,2 1,1000,128,512,1 1000,10,1000,1000,1"
)
QUICK = "32,12,1,32,1 32,128,64,64,1 128,30,8,128,2 20,35,200,200,2"
MOST = {"B": 512, "T": 512, "I": 1024, "H": 1024}  # of a random shape
MOST_WORK = 1e11  # operations of a random shape's step: about 2 s
AGAIN = 3  # times as many repeats for what seems slower
PRINTED = 10  # of the random shapes
TIMES = ("shape", "cell", "torch ms", "plait ms", "faster", "low", "high")
SHARES = ("shape", "cell", "GFLOP/s", "plait %", "torch %", "peak ms", "reach")
REST = ("shape", "cell", "torch MB", "plait MB", "deviation", "where")
PAGES = ("shape", "cell", "torch faults", "plait faults", "torch sys", "plait sys")
WORST = ("shape", "cell", "reach", *phases.PHASES)


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


def compare(case: Case, options: LayersOptions, repeats: int) -> Row:
    pair = contenders(case, options.engine, options.input_gradient)
    seconds = take_turns(pair, repeats)
    faster = seconds.faster("plait", than="torch")
    row: Row = {
        "shape": case.shape,
        "cell": case.cell,
        "engine": engines.choose(options.engine, cells.get(case.cell), torch.float32, torch.device("cpu")),
        "malloc": options.malloc,
        "repeats": repeats,
        **seconds.ms(),
        **faster.row("faster"),
        "slower": faster.high < 1,
        "GFLOP/s": case.work(options.input_gradient) / seconds.median("plait") / 1e9,
    }
    for name, step in pair.items():
        row[f"{name} faults"], row[f"{name} sys"] = pages(step, repeats)
    for name, step in pair.items():
        row[f"{name} MB"] = extra_memory(step)
    theirs, ours = (outputs_and_gradients(step.layer, step.x, None) for step in pair.values())
    row["deviation"], row["where"] = deviation(ours, theirs)
    return row


def search(cases: Sequence[Case], options: LayersOptions, peak: Peak) -> tuple[list[Row], list[str]]:
    """The rows, worst first. What seems slower is measured again: of many shapes, some seem so by chance."""
    again = AGAIN * options.repeats
    rows = [compare(case, options, options.repeats) for case in peak.between(tracked(cases))]
    doubted = [k for k, row in enumerate(rows) if row["faster"] < 1]
    for k in peak.between(tracked(doubted)):
        rows[k] = compare(cases[k], options, again)
    typical = median(row["faster"] for row in rows)
    return sorted(rows, key=lambda row: row["faster"]), [
        f"{len(rows)} shapes at random, half of them {typical:.3g} times faster or more; the worst are printed.",
        f"{len(doubted)} seemed slower and were measured again, with {again} repeats.",
        f"Wx to d_b: phases of the {PRINTED} that reach least, in % of their sum.",
    ]


def add_phases(rows: Sequence[Row], repeats: int) -> None:
    """Of those that reach least of the target, as columns and as rows of `bench phases`."""
    worst = sorted(rows, key=lambda row: row["reach"])[:PRINTED]
    for row in tracked([row for row in worst if row["engine"] == "fused"]):
        some = phases.split(Case(row["cell"], *map(int, row["shape"].split(","))), repeats)
        row |= {found["phase"]: found["share %"] for found in some if found["phase"] in phases.PHASES}
        row["phases"] = some


def measured(cases: Sequence[Case], options: LayersOptions) -> tuple[list[Row], list[str]]:
    """-> the rows, and what is to be said about them"""
    torch.manual_seed(options.seed)
    peak, more = Peak(), list[str]()
    if options.random is None:
        rows = [compare(case, options, options.repeats) for case in peak.between(tracked(cases))]
    else:
        rows, more = search(cases, options, peak)
    rows = [targets.judged(row, peak.best, host().vector_bits // 32) for row in rows]
    if options.random is not None:
        add_phases(rows, options.repeats)
    return rows, [*more, str(peak), targets.verdict(rows)]


def measure(options: LayersOptions) -> Report:
    names, at_random = options.cells.split(","), options.random is not None
    run = malloc.runner(options.malloc)
    if options.random is None:
        usual = QUICK if options.quick else SHAPES
        cases = parse_shapes(usual if options.shapes is None else options.shapes, names)
    elif options.shapes is not None:
        raise PlaitError("--shapes and --random were both given: leave one of them out.")
    else:
        cases = draw(options.random, names, options.seed)
    for case in cases:  # before anything is compiled or measured
        check_memory(case)
    if options.precision == "bf16":
        return low_precision.report(cases, options, run)
    rows, more = run(measured, cases, options)
    gradients = "of parameters and input" if options.input_gradient else "of the parameters"
    return Report(
        f"How much faster is a training step (forward, backward, gradients {gradients}) than torch.nn's?",
        [TIMES, SHARES, *([WORST] if at_random else []), REST, PAGES],
        rows,
        [
            "shape: B,T,I,H,layers. faster: torch's time over plait's, the median and the quartiles of the pairs.",
            "%: of the peak. peak ms: what the arithmetic takes there. reach: of the target (bench/layers/targets.py).",
            *more,
            "MB: the peak of a step beyond what was there before it.",
            f"faults, sys: pages that a step touches first, and ms of system time; {malloc.ABOUT[options.malloc]}.",
            *verdict(rows),
        ],
        PRINTED if at_random else None,
    )


def verdict(rows: Sequence[Row]) -> list[str]:
    """Which are slower beyond the spread, and which deviates most."""
    slower = [f"{row['cell']} {row['shape']}" for row in rows if row["slower"]]
    worst = max(rows, key=lambda row: row["deviation"])
    return [
        f"slower beyond the spread (high < 1): {len(slower)} of {len(rows)}" + "".join(f"; {name}" for name in slower),
        f"largest deviation from torch {worst['deviation']:.1e}: {worst['where']} of {worst['cell']} {worst['shape']}",
    ]
