"""What plait can tell of itself on this machine, and how it is printed: engines, equations, check, bench."""

import dataclasses
from typing import Any

import torch

from .. import cells, engines, system
from ..bench import measure
from ..bench.core.report import show
from ..cells.load import load
from ..cells.trace import trace
from ..errors import between, counted
from ..kernels.emit.target import FORCED, host
from ..kernels.launch.threads import openmp, why_alone
from ..ladder.rungs import ladder
from ..training.settings import set_threads
from .output import Output


def list_engines(output: Output) -> None:
    device, rows = torch.device("cpu"), []
    for name in engines.names():
        engine = engines.get(name)
        reasons = {engine.why_not(cell, torch.float32, device) for cell in cells.CELLS.values()} - {None}
        rows.append({"engine": name, "about": engine.about, "why_not": " ".join(sorted(map(str, reasons))) or None})
    took = engines.choose("auto", cells.get("lstm"), torch.float32, device)
    width = max(len(row["engine"] or "") for row in rows)
    for row in rows:
        output.line(
            f"{row['engine']:<{width}}  {row['about']}" + (f"; not here: {row['why_not']}" if row["why_not"] else "")
        )
    output.line(f"{'auto':<{width}}  takes {took} here (float32, CPU, {counted(torch.get_num_threads(), 'thread')})")
    runtime = openmp()
    output.line(f"{'threads':<{width}}  {f'of {runtime.path}, as torch' if runtime else why_alone()}")
    count = system.cpus()
    if count < torch.get_num_threads():
        output.line(f"{'CPUs':<{width}}  {count} for this process (affinity, control group): fused uses no more")
    cpu = host()
    why = f"as {FORCED} says" if cpu.forced else "the widest"
    has = ", ".join(map(str, cpu.widths))
    output.line(f"{'vectors':<{width}}  of {cpu.vector_bits} bits, {why}; {cpu.name} has {has}")
    how = "by avx512_bf16" if cpu.has_dot else "in float32 code: this CPU has no avx512_bf16"
    output.line(f"{'bf16':<{width}}  {how}")
    vectors = {"bits": cpu.vector_bits, "forced": cpu.forced is not None, "widths": cpu.widths, "cpu": cpu.name}
    vectors["bf16"] = cpu.has_dot
    output.result({"engines": rows, "auto": took, "openmp": runtime.path if runtime else None, "vectors": vectors})


def equations(cell: str, dt: float, output: Output) -> None:
    c = load(cell)
    between("dt", dt, 1e-6, 1e6)
    traced = trace(c, dt)
    output.line("\n".join(line.strip() for line in (c.__doc__ or "").strip().splitlines()))
    output.line()
    output.line(traced.step)
    output.line(traced.vjp.rstrip())
    output.result({"cell": cell, "dt": dt, "saved": traced.saved, "step": traced.step, "vjp": traced.vjp})


def climb(seed: int, output: Output, threads: int | None) -> int:
    """plait check: every rung of the ladder. 0 if all hold, else 1."""
    set_threads(threads)
    rows = []
    for rung in ladder(seed):
        output.line(str(rung))
        rows.append({**dataclasses.asdict(rung), "holds": rung.holds})
    held, failed = (sum(row["holds"] is value for row in rows) for value in (True, False))
    output.line(f"{held} of {held + failed} hold")
    output.result({"seed": seed, "rungs": rows})
    return 1 if failed else 0


def bench(name: str, output: Output, threads: int | None, **options: Any) -> None:
    set_threads(threads)
    show(measure(name, **options), output)
