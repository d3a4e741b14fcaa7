"""bfloat16: training steps and forward passes in plait, beside plait's float32 and all that torch has."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...kernels.emit.target import bf16_by
from ...ladder.compare import relative
from ..core import Row
from ..core.peak import Peak
from ..core.progress import tracked
from ..core.report import Report
from ..core.steps import Case, Step, contenders
from ..core.turns import Seconds, take_turns
from ..questions import LayersOptions

TORCH = ("torch float32", "torch autocast", "torch bfloat16")
OURS = ("plait float32", "plait bf16")
TABLES = [
    ("shape", "cell", *(f"{name} ms" for name in (*TORCH, *OURS)), "own", "torch", "low", "high"),
    ("shape", "cell", *(f"forward {name} ms" for name in (*TORCH, *OURS)), "forward own", "forward torch"),
    ("shape", "cell", "GFLOP/s", "bf16 peak", "peak %", "deviation", "torch deviation"),
]


def steps_of(case: Case, options: LayersOptions) -> dict[str, Step]:
    """With the same weights and data."""
    plain, ours = contenders(case, options.engine, options.input_gradient).values()
    x, d_y, torchs = plain.x, plain.d_y, plain.layer
    low, rounding = copy.deepcopy(torchs).bfloat16(), copy.deepcopy(ours.layer)
    rounding.precision = "bf16"  # type: ignore[assignment]

    def under_autocast() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torchs(x)[0].float()

    half = x.detach().bfloat16().requires_grad_(x.requires_grad)
    every = (
        plain,
        Step(torchs, x, d_y, under_autocast),
        Step(low, half, d_y.bfloat16()),
        ours,
        Step(rounding, x, d_y),
    )
    return dict(zip((*TORCH, *OURS), every, strict=True))


def without_gradients(step: Step) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            step.forward()

    return run


def compare(case: Case, options: LayersOptions, peak: Peak) -> Row:
    steps = steps_of(case, options)
    seconds = take_turns(steps, options.repeats)
    forward = take_turns({name: without_gradients(step) for name, step in steps.items()}, options.repeats)
    best, best_forward = fastest(seconds), fastest(forward)
    rate = case.work(options.input_gradient) / seconds.median("plait bf16") / 1e9
    exact, off = steps["plait float32"].results(), {}
    for name in ("plait bf16", "torch autocast"):
        off[name] = max(relative(a.float(), b) for a, b in zip(steps[name].results(), exact, strict=True))
    return {
        "shape": case.shape,
        "cell": case.cell,
        **seconds.ms(),
        "own": seconds.faster("plait bf16", than="plait float32").median,
        **seconds.faster("plait bf16", than=best).row("torch"),
        **{f"forward {name}": value for name, value in forward.ms().items()},
        "forward own": forward.faster("plait bf16", than="plait float32").median,
        "forward torch": forward.faster("plait bf16", than=best_forward).median,
        "fastest of torch": best,
        "GFLOP/s": rate,
        "bf16 peak": peak.best,
        "peak %": rate / peak.best * 100,
        "deviation": off["plait bf16"],
        "torch deviation": off["torch autocast"],
    }


def fastest(seconds: Seconds) -> str:
    return min(TORCH, key=seconds.median)


def measured(cases: Sequence[Case], options: LayersOptions) -> list[Row]:
    torch.manual_seed(options.seed)
    peak = Peak(rounded=True)
    return [compare(case, options, peak) for case in peak.between(tracked(cases))]


def report(cases: Sequence[Case], options: LayersOptions, run: Callable[..., Any]) -> Report:
    rows: list[Row] = run(measured, cases, options)
    slower = [f"{row['cell']} {row['shape']}" for row in rows if row["high"] < 1]
    return Report(
        "How much faster is a training step in bfloat16 than in float32, and than torch's fastest?",
        TABLES,
        rows,
        [
            f"shape: B,T,I,H,layers. Multiplied here by {bf16_by()}.",
            "own: plait's float32 over its bf16. torch: the fastest of torch's three over it, with quartiles.",
            "forward: without gradients. peak %: of what the tile reaches with bfloat16 numbers from the first cache.",
            "deviation: of outputs and gradients from plait's float32; of torch's autocast beside it.",
            f"slower than the fastest of torch's beyond the spread: {len(slower)} of {len(rows)}"
            + "".join(f"; {name}" for name in slower),
        ],
    )
