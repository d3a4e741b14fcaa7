"""Halide's part of the RNN: sums of matrix products with something done to each number, their schedules, and two ways
to compile them. As in the fourth paper, a pipeline is called for each step of time.

Schedules: "paper", tiles of 64 rows and 16 columns, columns vectorised, rows of tiles in parallel; "tiled", tiles that
stay in registers and panels of B that stay in cache, as a matrix product is written in Halide today; "adams", what the
autoscheduler Adams2019 finds.
"""

import ctypes
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import halide as hl
import numpy as np

from .network import Array

VECTOR = 16  # numbers of float32 at once, the paper's
HALIDE_BUFFER, FLOAT = "QPPQBBHiPP", 2  # of HalideRuntime.h


class Call(NamedTuple):
    """out = finish(sum of A B over the terms, column, row, *more)"""

    name: str
    out: Array
    terms: list[tuple[Array, Array]]  # A may be transposed
    finish: Callable[..., Any]
    more: list[Array]

    def arrays(self) -> list[Array]:
        """As they lie in memory."""
        factors = [matrix for a, b in self.terms for matrix in (a if a.flags.c_contiguous else a.T, b)]
        return [*factors, *self.more, self.out]


class Product:
    """What calls of one name compute, with columns as the inner dimension."""

    def __init__(self, call: Call) -> None:
        self.name, (self.rows, self.columns) = call.name, call.out.shape
        self.n, self.m = n, m = hl.Var("n"), hl.Var("m")
        self.inputs = [bound(hl.ImageParam(hl.Float(32), 2), array) for array in call.arrays()[:-1]]
        self.sum, self.out = hl.Func(f"{call.name}_sum"), hl.Func(call.name)
        self.sum[n, m] = hl.f32(0)
        self.panels = []  # with the depths of the terms
        for k, (rows, columns) in enumerate(call.terms):
            a, b = self.inputs[2 * k : 2 * k + 2]
            r, panel = hl.RDom([(0, len(columns))]), hl.Func(f"{call.name}_panel{k}")
            panel[n, m] = b[n, m]  # B itself, unless a schedule copies it
            self.sum[n, m] += (a[r, m] if rows.flags.c_contiguous else a[m, r]) * panel[n, r]
            self.panels.append((panel, r.x))
        self.out[n, m] = call.finish(self.sum[n, m], n, m, *self.inputs[2 * len(call.terms) :])
        bound(self.out.output_buffer(), call.out)
        self.pipeline = hl.Pipeline(self.out)

    def tile(self, high: int, vectors: int) -> int:
        """Tiles of so many rows and vectors, where the matrix has them -> numbers in a vector"""
        width = next(w for w in (VECTOR, 8, 4, 2, 1) if w <= self.columns)
        wide = width * (vectors if self.columns >= width * vectors else 1)
        self.ni, self.mi = hl.Var("ni"), hl.Var("mi")
        self.out.tile(self.n, self.m, self.ni, self.mi, wide, min(high, self.rows)).vectorize(self.ni, width)
        return width

    def paper(self) -> None:
        n, m, width = self.n, self.m, self.tile(64, 1)
        self.out.parallel(m)
        self.sum.compute_at(self.out, n).vectorize(n, width)
        for k, (_, r) in enumerate(self.panels):
            self.sum.update(k).reorder(n, r, m).vectorize(n, width)

    def tiled(self) -> None:
        n, m, width = self.n, self.m, self.tile(6, 2)
        self.out.reorder(self.ni, self.mi, m, n).unroll(self.ni).unroll(self.mi).parallel(n)
        self.sum.compute_at(self.out, m).vectorize(n, width).unroll(n).unroll(m)
        for k, (panel, r) in enumerate(self.panels):
            self.sum.update(k).reorder(n, m, r).vectorize(n, width).unroll(n).unroll(m)
            panel.compute_at(self.out, n).vectorize(n, width)

    def adams(self) -> None:
        threads = {"parallelism": os.environ["HL_NUM_THREADS"]}
        self.pipeline.apply_autoscheduler(hl.get_host_target(), hl.AutoschedulerParams("Adams2019", threads))


def bound(matrix: Any, array: Array) -> Any:
    """Gives it the array's shape."""
    for at, extent in enumerate(array.shape[::-1]):
        matrix.dim(at).set_bounds(0, extent)
        matrix.dim(at).set_estimate(0, extent)
    return matrix


class Functions:
    """Compiled, by name, and how an array is passed to them."""

    def __init__(self, calls: Sequence[Call], schedule: str, jit: bool) -> None:
        target = hl.get_host_target()
        if schedule == "adams":
            hl.load_plugin(str(Path(hl.__file__).parent / "lib64" / "libautoschedule_adams2019.so"))
        products = [Product(call) for call in {call.name: call for call in calls}.values()]
        for product in products:
            getattr(product, schedule)()
        self.passed: Any = described
        if not jit:
            self.functions = ahead_of_time(products, target)
            return
        self.passed = hl.Buffer
        self.functions = {p.name: p.pipeline.compile_to_callable(p.inputs, target) for p in products}

    def bound(self, call: Call) -> tuple[Any, list[Any]]:
        return self.functions[call.name], [self.passed(array) for array in call.arrays()]


def ahead_of_time(products: list[Product], target: Any) -> dict[str, Any]:
    """An object each, the first with Halide's runtime, linked to one library."""
    folder = Path(tempfile.mkdtemp(dir=".")).absolute()
    objects = [str(folder / f"{p.name}.o") for p in products]
    for p, to in zip(products, objects, strict=True):
        p.pipeline.compile_to_object(to, p.inputs, p.name, target)
        target = target.with_feature(hl.TargetFeature.NoRuntime)
    compiler, library = shutil.which("c++") or shutil.which("g++") or "clang++", str(folder / "rnn.so")
    subprocess.run([compiler, "-shared", "-o", library, *objects, "-lpthread", "-ldl"], check=True)
    functions = {p.name: ctypes.CDLL(library)[p.name] for p in products}
    for function in functions.values():
        function.restype = checked
    return functions


def checked(code: int) -> None:
    if code:
        raise RuntimeError(f"Halide's function ended with code {code}")


def described(values: Array) -> Any:
    """A halide_buffer_t and its halide_dimension_t: how a compiled function takes an array, which must live on."""
    sides = zip(values.shape[::-1], values.strides[::-1], strict=True)
    dims = np.array([(0, n, stride // 4, 0) for n, stride in sides], np.int32).tobytes()
    made = ctypes.create_string_buffer(struct.calcsize(HALIDE_BUFFER) + len(dims))
    behind = ctypes.addressof(made) + struct.calcsize(HALIDE_BUFFER)
    head = struct.pack(HALIDE_BUFFER, 0, 0, values.ctypes.data, 0, FLOAT, 32, 1, values.ndim, behind, 0)
    made.raw = head + dims
    return made
