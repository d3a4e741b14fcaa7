"""A call of the compiled code, made ready once for all calls with the same shapes.

What the kernel is told is one block of 64-bit integers: the launch, the walks, the products. Most of it is the same
each time; what differs are the addresses of tensors. plait_start (recurrence.py) copies the block into the call's own
memory and fills those in.
"""

import struct
from array import array
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from . import compiler, job, threads
from .target import Form

CHUNK_BYTES = 1 << 18  # of the second cache, for the rows of a product
MOST_COLUMNS = 16  # blocks of columns of an outer product that are packed at once

# The tensors of a call, then those of each direction.
WORKSPACE, KEPT, X, ROWS, D_X, BOUNDS = range(6)
GIVEN, LAST = 6, 6 + job.MOST_STATES  # per state: what the walk starts from, or 0; where it arrives
FIRST = LAST + job.MOST_STATES
W_IH, W_HH, B_IH, B_HH, W_HR, BEFORE, D_PROJECTED, D_W = range(8)
PER_DIRECTION = D_W + 5
Matrix = tuple[int, int]  # the number of a tensor, numbers before the matrix in it


# Memory for the time of a call is kept for the next one, if it is little: fresh pages cost more than small kernels.
SPARE = 1 << 20  # bytes
_spare: list[Tensor] = []


def fresh(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cpu")


def place(direction: int, tensor: int) -> int:
    """The number of a direction's tensor."""
    return FIRST + direction * PER_DIRECTION + tensor


class Program:
    """Written by layer.py: walks, products, `finish`; then run any number of times."""

    def __init__(self, form: Form, count: int, *, back: bool) -> None:
        self.form, self.count, self.back = form, count, back
        self.shared, self.leaves = compiler.walk(), compiler.leaves(form)
        self.walks: list[int] = []
        self.gemms: list[int] = []
        self.words: list[int] = [0] * job.LAUNCH_SIZE
        self.slots: list[tuple[int, int, int]] = []  # word, number of the tensor, bytes from its beginning
        self.inner: list[tuple[int, int]] = []  # word, how far from the block's beginning what it points to is
        self.reserved: list[tuple[int, int]] = []  # word, numbers before it in the workspace
        self.workspace = 0  # numbers, beside the block itself
        self.kept = 0  # numbers that each direction keeps
        self.complete = True  # nothing is left to torch
        self.bytes = 0  # of the workspace with the block
        self.packed = ""  # how the addresses are packed

    # --- writing it
    def block(self, size: int) -> int:
        start = len(self.words)
        self.words += [0] * size
        return start

    def point(self, word: int, tensor: int, numbers: int = 0) -> None:
        self.slots.append((word, tensor, numbers * self.form.target.size))

    def reserve(self, word: int, numbers: int) -> None:
        """Memory for the time of the call."""
        self.reserved.append((word, self.workspace))
        self.workspace += -(-numbers // 64) * 64

    def common(self, at: int) -> None:
        """What a walk and a product both have."""
        target, leaves = self.form.target, self.leaves
        for field, value in (
            (job.SIZE, target.size),
            (job.WIDTH, target.width),
            (job.TILE_ROWS, target.rows),
            (job.LANES, target.lanes if target.vectors > 1 else 0),
            (job.ROW_CHUNK, target.chunk),
            (job.PRODUCT, leaves["plait_product"]),
            (job.PRODUCT_ON, leaves["plait_product_on"]),
            (job.ROWS_TIMES, self.shared["plait_rows"]),
        ):
            self.words[at + field] = value

    def walk(self, T: int, B: int, H: int, P: int, reverse: bool) -> int:
        """One direction."""
        at, form, leaves, back = self.block(job.WALK_SIZE), self.form, self.leaves, self.back
        self.walks.append(at)
        self.common(at)
        width = form.target.width
        for field, value in (
            (job.T, T),
            (job.B, B),
            (job.H, H),
            (job.P, P),
            (job.REVERSE, reverse),
            (job.GATE_COUNT, form.G),
            (job.STATE_COUNT, form.S),
            (job.EXTRA_COUNT, form.E),
            (job.SHARED, form.shared),
            (job.PACK, leaves["plait_pack_columns" if back else "plait_pack_transposed"]),
            (job.POINTWISE, leaves["plait_backward" if back else "plait_forward"]),
            (job.ENDING, leaves["plait_finish"]),
            (job.TOUCH, leaves["plait_touch"]),
        ):
            self.words[at + field] = value
        size = -(-P // width) * (form.G * H + 1) if back else -(-H // width) * form.G * (P + 1)
        self.reserve(at + job.PANELS, size * width)
        if form.target.apart:
            of_H, of_P = -(-H // width), -(-P // width)
            columns = max(of_P, of_H if form.projected else 0) if back else max(of_H * form.G, of_P)
            self.reserve(at + job.APART, B * form.target.rows * columns * width)
        if form.projected:
            self.words[at + job.PROJECT] = leaves["plait_d_projected" if back else "plait_projected"]
            size = -(-H // width) * (P + 1) if back else -(-P // width) * (H + 1)
            self.reserve(at + job.PROJECTION_PANELS, size * width)
        return at

    def multiply(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        shape: tuple[int, int, int],
        *,
        transposed: bool,
        bias: int | None = None,
        phase: int = 0,
    ) -> None:
        """C = A B + bias, or C += A B in a later phase, of contiguous matrices; B as (N, K) if transposed."""
        M, N, K = shape
        target = self.form.target
        at = self.gemm(a, b, c, shape)
        chunk = min(CHUNK_BYTES // (K * target.size), -(-M // (4 * self.count)))
        for field, value in (
            (job.CHUNK, max(target.rows, chunk // target.rows * target.rows)),
            (job.PHASE, phase),
            (job.A_ROW, K * target.size),
            (job.FACTOR_ROW, (K if transposed else N) * target.size),
            (job.TRANSPOSED, transposed),
            (job.PACK, self.leaves["plait_pack_transposed" if transposed else "plait_pack_columns"]),
        ):
            self.words[at + field] = value
        self.reserve(at + job.PANELS, -(-N // target.width) * (K + 1) * target.width)
        if bias is not None:
            self.point(at + job.BIAS, bias)

    def outer(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        shape: tuple[int, int, int],
        *,
        stride: int,
        sums: Matrix | None = None,
    ) -> None:
        """C = A' B and the sums of A's rows. A has `stride` numbers a row."""
        M, N, _ = shape
        target = self.form.target
        at = self.gemm(a, b, c, shape)
        blocks = -(-N // target.width)
        columns = min(blocks, MOST_COLUMNS)
        chunk = -(-M // max(1, -(-2 * self.count // -(-blocks // columns))))
        for field, value in (
            (job.OUTER, 1),
            (job.CHUNK, -(-chunk // target.width) * target.width),
            (job.COLUMNS, columns),
            (job.A_ROW, target.size),
            (job.A_STEP, stride * target.size),
            (job.FACTOR_ROW, N * target.size),
            (job.PACK, self.leaves["plait_pack_columns"]),
            (job.SUM, self.leaves["plait_sums"]),
        ):
            self.words[at + field] = value
        if sums is not None:
            self.point(at + job.SUMS, *sums)
        if not self.words[job.WORKSPACE_SIZE]:
            size = MOST_COLUMNS * (job.PIECE + 1) * target.width
            self.words[job.WORKSPACE_SIZE] = size * target.size
            self.reserve(job.WORKSPACE, self.count * size)

    def unite(self, direction: int) -> None:
        """The last product is computed by the walk, step by step."""
        self.words[self.gemms[-1] + job.UNITED] = 1
        self.inner.append((self.walks[direction] + job.WITHIN, 8 * self.gemms[-1]))

    def gemm(self, a: Matrix, b: Matrix, c: Matrix, shape: tuple[int, int, int]) -> int:
        at, (M, N, K) = self.block(job.WALK_SIZE), shape
        self.gemms.append(at)
        self.common(at)
        for field, value in (
            (job.M, M),
            (job.N, N),
            (job.K, K),
            (job.C_ROW, N * self.form.target.size),
            (job.STORE, self.leaves["plait_store"]),
            (job.ADD, self.leaves["plait_add"]),
        ):
            self.words[at + field] = value
        for field, of in ((job.A, a), (job.FACTOR, b), (job.C, c)):
            self.point(at + field, *of)
        return at

    def finish(self, bounds: Sequence[int], by_units: bool) -> None:
        """The walks were written before the products."""
        self.words[job.WALKS], self.words[job.GEMM_COUNT] = len(self.walks), len(self.gemms)
        self.words[job.SLICES], self.words[job.BY_UNITS] = len(bounds) - 1, by_units
        self.inner.append((job.FIRST, 8 * self.walks[0]))
        if self.gemms:
            self.inner.append((job.GEMMS, 8 * self.gemms[0]))
            self.words[job.GEMM_PHASES] = 1 + max(self.words[at + job.PHASE] for at in self.gemms)
        start = self.block(len(bounds))
        self.words[start:] = bounds
        self.inner.append((job.BOUNDS, 8 * start))
        head = -(-len(self.words) * 8 // self.form.target.size // 64) * 64  # the block comes first in the workspace
        for word, before in self.reserved:
            self.point(word, WORKSPACE, head + before)
        self.bytes = (self.workspace + head) * self.form.target.size
        self.packed = f"{FIRST + PER_DIRECTION * len(self.walks)}q"
        self.words[job.TEAM], self.words[job.YIELD] = threads.team_size(), threads.sched_yield()
        table = chain(*self.slots, *self.inner)
        self.words[job.BACK], self.words[job.MULTIPLY] = self.back, self.shared["plait_gemms"]
        lead = (self.shared["plait_walk"], self.count, len(self.words), len(self.slots), len(self.inner))
        self.memory = array("q", [*lead, *self.words, *table])
        self.address = self.memory.buffer_info()[0]

    # --- running it
    def run(self, tensors: Sequence[Tensor | None]) -> None:
        """With the tensors in the order in which they are numbered above, but for the workspace."""
        try:
            workspace = _spare.pop() if self.bytes <= SPARE else fresh(self.bytes)
        except IndexError:  # none is there yet, or another Python thread has it
            workspace = fresh(SPARE)
        memory = workspace.data_ptr()
        addresses = struct.pack(self.packed, memory, *[0 if t is None else t.data_ptr() for t in tensors])
        threads.run(self.address, addresses, memory, self.count)
        if self.bytes <= SPARE:
            _spare.append(workspace)
