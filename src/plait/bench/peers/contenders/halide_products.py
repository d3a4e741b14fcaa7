"""Halide's part of the RNN: sums of matrix products with something done to each number, their schedules, and two ways
to compile them. As in the fourth paper, a pipeline is called for each step of time.

Schedules: "paper", tiles of 64 rows and 16 columns, columns vectorised, rows of tiles in parallel; "tiled", tiles that
stay in registers and panels of B that stay in cache, as a matrix product is written in Halide today; "adams", what the
autoscheduler Adams2019 finds.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import halide as hl

from .network import Array

VECTOR = 16  # numbers of float32 at once, the paper's
PAPER = (64, 1)  # rows of a tile, and vectors in a row of it
TILED = (6, 2)
Term = tuple[Any, Any, bool]  # A, B and whether A is stored as (rows of B, rows of C)


class Product:
    """out = finish(sum of A B over the terms), with columns as the inner dimension."""

    def __init__(
        self, name: str, rows: int, columns: int, terms: Sequence[Term], finish: Callable[..., Any], *more: Any
    ) -> None:
        self.name, self.rows, self.columns = name, rows, columns
        self.n, self.m = hl.Var("n"), hl.Var("m")
        n, m = self.n, self.m
        self.inputs = [*(matrix for a, b, _ in terms for matrix in (a, b)), *more]
        self.sum, self.out = hl.Func(f"{name}_sum"), hl.Func(name)
        self.sum[n, m] = hl.f32(0)
        self.depths, self.panels = [], []
        for k, (a, b, transposed) in enumerate(terms):
            r, panel = hl.RDom([(0, b.dim(1).extent())]), hl.Func(f"{name}_panel{k}")
            panel[n, m] = b[n, m]  # B itself, unless a schedule copies it
            self.sum[n, m] += (a[m, r] if transposed else a[r, m]) * panel[n, r]
            self.depths.append(r)
            self.panels.append(panel)
        self.out[n, m] = finish(self.sum[n, m], n, m)
        for at, extent in enumerate((columns, rows)):
            self.out.output_buffer().dim(at).set_bounds(0, extent)

    def by_hand(self, tile: tuple[int, int], registers: bool) -> None:
        n, m, ni, mi = self.n, self.m, hl.Var("ni"), hl.Var("mi")
        width = next(w for w in (VECTOR, 8, 4, 2, 1) if w <= self.columns)
        wide = width * (tile[1] if self.columns >= width * tile[1] else 1)
        high = min(tile[0], self.rows)
        self.out.tile(n, m, ni, mi, wide, high).vectorize(ni, width)
        self.sum.compute_at(self.out, n if not registers else m).vectorize(n, width)
        if not registers:
            self.out.parallel(m)
            for k, r in enumerate(self.depths):
                self.sum.update(k).reorder(n, r.x, m).vectorize(n, width)
            return
        self.out.reorder(ni, mi, m, n).unroll(ni).unroll(mi).parallel(n)
        self.sum.unroll(n).unroll(m)
        for k, (r, panel) in enumerate(zip(self.depths, self.panels, strict=True)):
            self.sum.update(k).reorder(n, m, r.x).vectorize(n, width).unroll(n).unroll(m)
            panel.compute_at(self.out, n).vectorize(n, width)

    def scheduled(self, schedule: str, target: Any) -> Any:
        """-> the pipeline"""
        pipeline = hl.Pipeline(self.out)
        if schedule == "adams":
            self.out.set_estimates([(0, self.columns), (0, self.rows)])
            threads = {"parallelism": os.environ["HL_NUM_THREADS"]}
            pipeline.apply_autoscheduler(target, hl.AutoschedulerParams("Adams2019", threads))
        else:
            self.by_hand(*((PAPER, False) if schedule == "paper" else (TILED, True)))
        return pipeline


def matrix(rows: int, columns: int) -> Any:
    """An input of that shape."""
    made = hl.ImageParam(hl.Float(32), 2)
    for at, extent in enumerate((columns, rows)):
        made.dim(at).set_bounds(0, extent)
        made.dim(at).set_estimate(0, extent)
    return made


# --- compiled --------------------------------------------------------------------------------------------------------
class Dimension(ctypes.Structure):
    """halide_dimension_t"""

    _fields_ = tuple((name, ctypes.c_int32) for name in ("min", "extent", "stride", "flags"))


class Buffer(ctypes.Structure):
    """halide_buffer_t"""

    _fields_ = (
        ("device", ctypes.c_uint64),
        ("interface", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("dimensions", ctypes.c_int32),
        ("dim", ctypes.POINTER(Dimension)),
        ("padding", ctypes.c_void_p),
    )


FLOAT = 2  # halide_type_float


def described(values: Array) -> Any:
    """A pointer to what a function compiled ahead of time takes for an array. The array must live on."""
    dims = (Dimension * values.ndim)(
        *(Dimension(0, n, stride // 4) for n, stride in zip(values.shape[::-1], values.strides[::-1], strict=True))
    )
    return ctypes.pointer(Buffer(0, None, values.ctypes.data, 0, FLOAT, 32, 1, values.ndim, dims, None))


def checked(function: Any) -> Callable[..., None]:
    def call(*buffers: Any) -> None:
        if code := function(*buffers):
            raise RuntimeError(f"Halide's function ended with code {code}")

    return call


class Compiled:
    """Functions by name, and how an array is passed to them."""

    def __init__(self, products: Sequence[Product], schedule: str, jit: bool) -> None:
        target = hl.get_host_target()
        if schedule == "adams":
            hl.load_plugin(str(Path(hl.__file__).parent / "lib64" / "libautoschedule_adams2019.so"))
        made = {p.name: (p.scheduled(schedule, target), p.inputs) for p in products}
        self.functions = just_in_time(made, target) if jit else ahead_of_time(made, target)
        self.passed = hl.Buffer if jit else described


def just_in_time(made: dict[str, Any], target: Any) -> dict[str, Callable[..., Any]]:
    return {name: pipeline.compile_to_callable(inputs, target) for name, (pipeline, inputs) in made.items()}


def ahead_of_time(made: dict[str, Any], target: Any) -> dict[str, Callable[..., Any]]:
    """An object each, the first with Halide's runtime, linked to one library."""
    folder = Path(tempfile.mkdtemp(dir=".")).absolute()
    for k, (name, (pipeline, inputs)) in enumerate(made.items()):
        with_runtime = target if k == 0 else target.with_feature(hl.TargetFeature.NoRuntime)
        pipeline.compile_to_object(str(folder / f"{name}.o"), inputs, name, with_runtime)
    compiler = shutil.which("c++") or shutil.which("g++") or "clang++"
    library = folder / "rnn.so"
    objects = [str(folder / f"{name}.o") for name in made]
    subprocess.run([compiler, "-shared", "-o", str(library), *objects, "-lpthread", "-ldl"], check=True)
    loaded = ctypes.CDLL(str(library))
    return {name: checked(getattr(loaded, name)) for name in made}
