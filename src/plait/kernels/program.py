"""A call of the compiled code, made ready once for all calls with the same shapes.

What the kernel is told is one block of 64-bit words: the launch, the walks, the products (records/). Most of it is the
same each time; what differs are addresses. plait_start (recurrence.py) copies the block into the call's own memory and
fills those in.
"""

from array import array
from collections.abc import Sequence
from itertools import chain

from . import compiler, pool, records, threads
from .addresses import BOUNDS, WORKSPACE, Table, Where
from .records import launch as LAUNCH
from .records import product as PRODUCT
from .records import walk as WALK
from .target import Form

CHUNK_BYTES = 1 << 18  # of the second cache, for the rows of a product
MOST_BLOCKS = 16  # blocks of columns of an outer product that are packed at once


class Program:
    """Written by layer.py: walks, products, `finish`; then run any number of times."""

    def __init__(self, form: Form, count: int, walks: int, table: Table, *, back: bool) -> None:
        self.form, self.count, self.table, self.back = form, count, table, back
        self.shared, self.leaves = compiler.walk(), compiler.leaves(form)
        self.walks = [LAUNCH.LAUNCH_SIZE + d * WALK.WALK_SIZE for d in range(walks)]
        self.words: list[int] = [0] * (LAUNCH.LAUNCH_SIZE + walks * WALK.WALK_SIZE)
        self.products: list[int] = []
        self.whole = 0  # the number of the first product of a whole sequence
        self.slots: list[tuple[int, int, int]] = []  # word, number of the address, bytes beyond it
        self.inner: list[tuple[int, int]] = []  # word, how far from the block's beginning what it points to is
        self.reserved: list[tuple[int, int]] = []  # word, numbers before it in the workspace
        self.workspace = 0  # numbers, beside the block itself
        self.complete = True  # nothing is left to torch
        self.bytes = 0  # of the workspace with the block

    # --- writing it
    def set(self, at: int, **fields: int) -> None:
        """Words of the walk, or of the product, that begins there; named as in its record."""
        record = WALK if at in self.walks else PRODUCT
        for name, value in fields.items():
            self.words[at + getattr(record, name)] = value

    def point(self, word: int, where: Where) -> None:
        number, before = self.table.find(where)
        self.slots.append((word, number, (before + where.numbers) * self.form.target.size))

    def bounds(self, word: int) -> None:
        self.slots.append((word, BOUNDS, 0))

    def reserve(self, word: int, numbers: int) -> None:
        """Memory for the time of the call."""
        self.reserved.append((word, self.workspace))
        self.workspace += -(-numbers // 64) * 64

    def product(
        self, factor: Where, *, each: int, columns: int, depth: int, row: int, transposed: bool, owner: int | None
    ) -> int:
        """With a factor of `row` numbers a row. owner: the walk that it is part of; None for a whole sequence."""
        at, target = len(self.words), self.form.target
        self.words += [0] * PRODUCT.PRODUCT_SIZE
        self.products.append(at)
        self.set(
            at,
            SIZE=target.size,
            WIDTH=target.width,
            TILE_ROWS=target.rows,
            LANES=target.lanes if target.vectors > 1 else 0,
            ROW_CHUNK=target.chunk,
            TILE=self.leaves["plait_product"],
            TILE_ON=self.leaves["plait_product_on"],
            MULTIPLY_ROWS=self.shared["plait_rows"],
            EACH=each,
            COLUMNS=columns,
            DEPTH=depth,
            FACTOR_ROW=row * target.size,
            TRANSPOSED=transposed,
            PACK=self.leaves["plait_pack_transposed" if transposed else "plait_pack_columns"],
        )
        self.inner.append((at + PRODUCT.OWNER, 8 * (at if owner is None else owner)))
        self.point(at + PRODUCT.FACTOR, factor)
        if owner is None:
            self.set(at, STORE=self.leaves["plait_store"], ADD=self.leaves["plait_add"])
        else:
            self.whole = len(self.products)
        return at

    def panels(self, at: int, kept: Where | None, *, ready: bool) -> None:
        """Where a product's panels are: in memory of their own, that outlives the call, or in the workspace."""
        words, width = self.words, self.form.target.width
        if kept is not None:
            self.point(at + PRODUCT.PANELS, kept)
            self.set(at, READY=ready)
        else:
            blocks = -(-words[at + PRODUCT.COLUMNS] // width) * words[at + PRODUCT.EACH]
            self.reserve(at + PRODUCT.PANELS, blocks * (words[at + PRODUCT.DEPTH] + 1) * width)

    def run_of(self, at: int, row: int, columns: int, where: Where | None = None) -> None:
        """A further run of A, of `row` numbers a row. Without a place, the span says where it is."""
        k = self.words[at + PRODUCT.RUNS]
        self.set(at, RUNS=k + 1)
        word = at + PRODUCT.RUN + k * PRODUCT.PER_RUN
        self.words[word + 1], self.words[word + 2] = row * self.form.target.size, columns
        if where is not None:
            self.point(word, where)

    def multiply(
        self, a: Where, b: Where, c: Where, shape: tuple[int, int, int], *, transposed: bool, round: int
    ) -> int:
        """C = A B, or C += A B in a later round, of contiguous matrices; B as (N, K) if transposed."""
        M, N, K = shape
        target = self.form.target
        row = K if transposed else N
        at = self.product(b, each=1, columns=N, depth=K, row=row, transposed=transposed, owner=None)
        self.run_of(at, K, K, a)
        chunk = min(CHUNK_BYTES // (K * target.size), -(-M // (4 * self.count)))
        chunk = max(target.rows, chunk // target.rows * target.rows)
        self.set(at, M=M, C_ROW=N * target.size, CHUNK=chunk, ROUND=round)
        self.point(at + PRODUCT.C, c)
        return at

    def outer(
        self, a: Where, b: Where, c: Where, shape: tuple[int, int, int], *, stride: int, sums: Where | None
    ) -> None:
        """C = A' B and the sums of A's rows. A has `stride` numbers a row."""
        M, N, K = shape
        target = self.form.target
        at = self.product(b, each=1, columns=N, depth=K, row=N, transposed=False, owner=None)
        self.run_of(at, 1, K, a)
        blocks = -(-N // target.width)
        columns = min(blocks, MOST_BLOCKS)
        chunk = -(-M // max(1, -(-2 * self.count // -(-blocks // columns))))
        self.set(
            at,
            OUTER=1,
            M=M,
            C_ROW=N * target.size,
            CHUNK=-(-chunk // target.width) * target.width,
            BLOCKS=columns,
            STEP=stride * target.size,
            SUM=self.leaves["plait_sums"],
        )
        self.point(at + PRODUCT.C, c)
        if sums is not None:
            self.point(at + PRODUCT.SUMS, sums)
        if not self.words[LAUNCH.WORKSPACE_SIZE]:
            size = MOST_BLOCKS * (records.PIECE + 1) * target.width
            self.words[LAUNCH.WORKSPACE_SIZE] = size * target.size
            self.reserve(LAUNCH.WORKSPACE, self.count * size)

    def unite(self, direction: int) -> None:
        """The last product is computed by the walk, step by step."""
        self.set(self.products[-1], UNITED=1)
        self.inner.append((self.walks[direction] + WALK.WITHIN, 8 * self.products[-1]))

    def finish(self, bounds: Sequence[int], by_units: bool) -> None:
        words = self.words
        words[LAUNCH.WALKS], words[LAUNCH.PRODUCTS], words[LAUNCH.WHOLE] = (
            len(self.walks),
            len(self.products),
            self.whole,
        )
        words[LAUNCH.SLICES], words[LAUNCH.BY_UNITS] = len(bounds) - 1, by_units
        words[LAUNCH.ROUNDS] = 1 + max(words[at + PRODUCT.ROUND] for at in self.products)
        words[LAUNCH.TEAM], words[LAUNCH.YIELD] = threads.team_size(), threads.sched_yield()
        words[LAUNCH.BACK], words[LAUNCH.MULTIPLY] = self.back, self.shared["plait_multiply"]
        self.inner += [(LAUNCH.FIRST_WALK, 8 * self.walks[0]), (LAUNCH.FIRST_PRODUCT, 8 * self.products[0])]
        self.inner.append((LAUNCH.BOUNDS, 8 * len(words)))
        words += bounds
        head = -(-len(words) * 8 // self.form.target.size // 64) * 64  # the block comes first in the workspace
        for word, before in self.reserved:
            self.slots.append((word, WORKSPACE, (head + before) * self.form.target.size))
        self.bytes = (self.workspace + head) * self.form.target.size
        table = chain(*self.slots, *self.inner)
        lead = (self.shared["plait_run"], self.count, len(words), len(self.slots), len(self.inner))
        self.memory = array("q", [*lead, *words, *table])
        self.address = self.memory.buffer_info()[0]

    # --- running it
    def run(self, addresses: Sequence[int]) -> None:
        """With the addresses that the table asks for, but for the workspace."""
        workspace = pool.workspace(self.bytes)
        memory = workspace.address
        words = array("q", [memory, *addresses])
        threads.run(self.address, words.buffer_info()[0], memory, self.count)
        pool.put(workspace)
