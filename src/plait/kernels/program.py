"""A program: what a launch does, made ready once for all calls with the same shapes.

A kernel reads one block of 64-bit words: the launch, the walks, the products (records/). layer.py writes them here.
"""

from collections.abc import Sequence
from struct import pack, unpack
from typing import NamedTuple

from . import compiler, records, threads
from .addresses import FIRST, SIZES, STARTS, WORKSPACE, OfLayer, Table, Where
from .areas import Areas, aligned
from .launched import Launched
from .parts import Part
from .records import copy as COPY
from .records import launch as LAUNCH
from .records import product as PRODUCT
from .records import walk as WALK
from .target import Form

CHUNK_BYTES = 1 << 18  # bytes of rows of a product that stay in the second cache
FEW_BYTES = 3 << 18  # bytes of rows that are not cut into chunks: to read all panels again would cost more
FEW_TILES = 4  # tiles of rows that a thread takes at a time, at least: then it reads the panels less often
LINE = 8  # words of a line of the cache
SET, WAYS = 4096, 8  # of the first cache: bytes from a line of a set to the next, and how many lines a set has
# Of a sum over all rows: columns of the two factors that are packed at once, at most. They stay in the second cache.
MOST_COLUMNS, MOST_ROWS = 256, 224


class Left(NamedTuple):
    """A product, or a sum of rows, that torch computes: wx before the walk, a gradient after it."""

    direction: int
    name: str  # wx, d_x, or the weight whose gradient it is
    run: int = 0  # of w_hh and b_hh: which run of d_rh (target.py), and which rows of the gradient it gives
    first: int = 0
    end: int = 0


class Side(NamedTuple):
    """A factor of a sum over all rows, and its place for the result."""

    a: Where
    columns: int
    c: Where
    in_parts: bool  # its rows are


class Program(Launched):
    """layer.py writes it: walks, products, `finish`. Then it can run any number of times."""

    def __init__(self, form: Form, count: int, walks: int, table: Table, *, back: bool, parts: int = 1) -> None:
        self.form, self.count, self.table, self.back, self.parts = form, count, table, back, parts
        self.shared, self.leaves = compiler.shared(), compiler.leaves(form)
        self.walks = [LAUNCH.LAUNCH_SIZE + d * WALK.WALK_SIZE for d in range(walks)]
        self.words = [0] * (LAUNCH.LAUNCH_SIZE + walks * WALK.WALK_SIZE)
        self.products: list[int] = []
        self.whole = 0  # the number of the first product of a whole sequence
        self.slots, self.inner = [], []
        self.areas = Areas(count, walks, parts, form.target.size)
        self.partial: dict[Where, tuple[int, int]] = {}  # sums over parts: numbers, and the word of the first part
        self.left: list[Left] = []  # what torch has to compute

    # --- writing it
    def set(self, at: int, **fields: int) -> None:
        """Writes words of the walk or the product that begins there. Their names are those of its record."""
        record = WALK if at in self.walks else PRODUCT
        for name, value in fields.items():
            self.words[at + getattr(record, name)] = value

    def point(self, word: int, where: Where) -> None:
        number, before = self.table.find(where)
        self.slots.append((word, number, (before + where.numbers) * self.form.target.size))

    def size(self, word: int, name: str, value: int) -> None:
        """One of SIZES: it stays the same, or comes with each call."""
        if self.table.ragged:
            self.slots.append((word, FIRST + SIZES.index(name), 0))
        else:
            self.words[word] = value

    def point_to_starts(self, word: int) -> None:
        self.slots.append((word, STARTS, 0))

    def reserve(self, word: int, numbers: int, part: Part | None = None) -> None:
        """Memory for the time of the call; the word will be its address. part: whose thread alone uses it"""
        self.areas.reserve(word, numbers, 0 if part is None or self.parts == 1 else 1 + self.walk_of(part))

    def new_product(self) -> int:
        """Where its record begins."""
        self.products.append(len(self.words))
        self.words += [0] * PRODUCT.PRODUCT_SIZE
        return self.products[-1]

    def product(
        self, factor: Where, *, each: int, columns: int, depth: int, row: int, transposed: bool, owner: int | None
    ) -> int:
        """row: numbers per row of the factor. owner: the walk that it is part of; None for a whole sequence."""
        at, target = self.new_product(), self.form.target
        self.set(
            at,
            SIZE=target.size,
            WIDTH=target.width,
            TILE_ROWS=target.rows,
            MOST_ROWS=target.rows,
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

    def panels(self, at: int, lasting: Where | None, *, ready: bool, same: int | None = None) -> None:
        """Where the panels of a product are: in memory that outlives the call, or in the workspace. same: those of
        another product, which packs them
        """
        words, width = self.words, self.form.target.width
        if lasting is not None:
            self.point(at + PRODUCT.PANELS, lasting)
            self.set(at, READY=ready or same is not None)
        elif same is not None:
            self.areas.again(at + PRODUCT.PANELS, same + PRODUCT.PANELS)
            self.set(at, READY=1)
        else:
            blocks = -(-words[at + PRODUCT.COLUMNS] // width) * words[at + PRODUCT.EACH]
            self.reserve(at + PRODUCT.PANELS, blocks * (words[at + PRODUCT.DEPTH] + 1) * width)

    def run_of(self, at: int, row: int, columns: int, where: Where | None = None) -> None:
        """Adds a run of A, of `row` numbers per row. Without a place, the span says where it is.

        If rows are whole pages apart, all of a column are in one set of the first cache. A tile of more rows than that
        set has lines would find none of them there.
        """
        k, target = self.words[at + PRODUCT.RUNS], self.form.target
        self.set(at, RUNS=k + 1)
        if row * target.size % SET == 0:
            self.set(at, MOST_ROWS=min(target.rows, WAYS))
        at += k * PRODUCT.PER_RUN
        self.words[at + PRODUCT.RUN_ROW], self.words[at + PRODUCT.RUN_COLUMNS] = row * target.size, columns
        if where is not None:
            self.point(at + PRODUCT.RUN, where)

    def multiply(
        self,
        a: Where,
        b: Where,
        c: Where,
        shape: tuple[int, int, int],
        *,
        transposed: bool,
        round: int,
        part: Part,
        in_parts: bool = False,
    ) -> int:
        """C = A B, or C += A B in later rounds. If transposed, B is stored as (N, K). in_parts: the rows of C are"""
        M, N, K = shape
        target = self.form.target
        row = K if transposed else N
        at = self.product(b, each=1, columns=N, depth=K, row=row, transposed=transposed, owner=None)
        self.run_of(at, K, K, a)
        c_row = N * target.size
        self.set(at, C_ROW=c_row, C_SKIP=part.skipped(in_parts) * c_row, STEP=part.B)
        self.set(at, ROUND=round, OF_WALK=self.walk_of(part))
        self.size(at + PRODUCT.M, "N", M)
        self.size(at + PRODUCT.CHUNK, "chunk", rows_at_once(target.rows, self.threads_each, M, K * target.size))
        self.point(at + PRODUCT.C, c)
        return at

    def outer(
        self,
        b: Where,
        columns: int,
        stride: int,
        K: int,
        sides: Sequence[Side],
        sums: Sequence[Where],
        part: Part,
        round: int,
    ) -> None:
        """C = B' A for each side, and the sums of the K rows of B, each of `stride` numbers. The results of parts are
        added up in the last round.
        """
        target = self.form.target
        at = self.product(b, each=1, columns=columns, depth=0, row=stride, transposed=False, owner=None)
        self.size(at + PRODUCT.DEPTH, "N", K)
        for k, side in enumerate(sides):
            self.run_of(at, side.columns, side.columns, side.a)
            self.words[at + PRODUCT.SIDE_SKIP + k] = part.skipped(side.in_parts) * side.columns * target.size
            self.result(at + PRODUCT.C + k, side.c, columns * side.columns, part)
        for k, total in enumerate(sums):
            self.result(at + PRODUCT.SUMS + k, total, columns, part)
        blocks, tiles = -(-columns // target.width), sum(-(-side.columns // target.rows) for side in sides)
        groups, count = -(-columns // MOST_COLUMNS), self.threads_each
        groups = min(blocks, -(-groups // count) * count)
        chunks = min(max(1, tiles), max(-(-tiles * target.rows // MOST_ROWS), -(-count // groups)))
        self.set(
            at,
            OF_WALK=self.walk_of(part),
            ROUND=round,
            STEP=part.B,
            OUTER=1,
            M=tiles,
            GROUPS=groups,
            CHUNKS=chunks,
            PACK_SIDE=self.leaves["plait_pack_side"],
            WRITE=self.leaves["plait_write"],
            ONE=bits_of(target.double, 1),
        )
        most, some = -(-blocks // groups), -(-tiles // chunks)
        panels = most * (records.PIECE + 1) * target.width
        packed = some * (records.PIECE * target.rows + target.width)
        size = LINE * 8 + panels + packed + (some + 1) * most * target.rows * target.width
        self.areas.reserve_sums(size)

    @property
    def threads_each(self) -> int:
        """How many threads compute a product of a whole sequence."""
        return self.count if self.parts == 1 else 1

    def walk_of(self, part: Part) -> int:
        """The number of its walk, whose thread computes its products; -1 if there is one part: then all threads do."""
        return part.number * (len(self.walks) // self.parts) + part.direction if self.parts > 1 else -1

    def result(self, word: int, where: Where, numbers: int, part: Part) -> None:
        """A place for that many numbers. If there are several parts, each has its own in the workspace."""
        if self.parts == 1:
            self.point(word, where)
        else:
            self.reserve(word, numbers, part)
            self.partial.setdefault(where, (numbers, word))

    def add_totals(self) -> None:
        """Sums over parts, in a round of their own after all others."""
        last = 1 + max((self.words[at + PRODUCT.ROUND] for at in self.products), default=0)
        for where, (numbers, word) in self.partial.items():
            at = self.new_product()
            self.set(at, SIZE=self.form.target.size, TOTAL=self.parts, M=numbers, ROUND=last, OF_WALK=-1)
            self.set(at, ADD_BIAS=self.leaves["plait_add_bias"])
            self.point(at + PRODUCT.C, where)
            self.areas.again(at + PRODUCT.PARTIAL, word)

    def copies(self, before: int, after: int) -> None:
        """Rows that are copied before the walks and after all else (records/copy.py). All about a copy comes with each
        call, after the other addresses.
        """
        assert isinstance(self.table, OfLayer)  # no other call has copies
        first = len(self.words)
        self.words += [0] * COPY.COPY_SIZE * (before + after)
        for k in range(before + after):
            for word in range(COPY.GIVEN):
                self.slots.append((first + k * COPY.COPY_SIZE + word, self.table.end + k * COPY.GIVEN + word, 0))
        self.words[LAUNCH.COPIES], self.words[LAUNCH.COPIES_AFTER] = before, after
        self.inner.append((LAUNCH.FIRST_COPY, 8 * first))

    def mark(self, where: Where) -> None:
        """The launch writes the number of parts there: twice, if numbers are short."""
        self.point(LAUNCH.MARK, where)
        self.words[LAUNCH.MARK_VALUE] = bits_of(self.form.target.double, self.parts)

    def unite(self, walk: int) -> None:
        """Lets the walk compute the last product, step by step."""
        self.set(self.products[-1], UNITED=1)
        self.inner.append((walk + WALK.WITHIN, 8 * self.products[-1]))

    def finish(self, bounds: Sequence[int], by_units: bool) -> None:
        assert self.parts == 1 or not (by_units or self.left), "only what a launch computes by slices can be in parts"
        self.add_totals()
        words = self.words
        words[LAUNCH.WALKS], words[LAUNCH.PRODUCTS] = len(self.walks), len(self.products)
        words[LAUNCH.WHOLE] = self.whole
        words[LAUNCH.SLICES], words[LAUNCH.BY_UNITS] = len(bounds) - 1, by_units
        words[LAUNCH.ROUNDS] = 1 + max(words[at + PRODUCT.ROUND] for at in self.products)
        words[LAUNCH.TEAM], words[LAUNCH.WHO] = threads.team_size(), threads.thread_number()
        words[LAUNCH.YIELD] = threads.sched_yield()
        words[LAUNCH.BACK], words[LAUNCH.MULTIPLY] = self.back, self.shared["plait_multiply"]
        self.inner += [(LAUNCH.FIRST_WALK, 8 * self.walks[0]), (LAUNCH.FIRST_PRODUCT, 8 * self.products[0])]
        if self.table.ragged:
            self.size(LAUNCH.SLICE_BOUNDS, "bounds", 0)
        else:
            self.inner.append((LAUNCH.SLICE_BOUNDS, 8 * len(words)))
            words += bounds
        self.inner.append((LAUNCH.CLAIMS, 8 * len(words)))
        words[LAUNCH.OWN] = own = len(self.walks) if self.parts > 1 else 0
        words += [0] * (len(self.walks) * (len(bounds) - 1) + words[LAUNCH.ROUNDS] * own)
        words[LAUNCH.THREADS] = self.count
        self.inner.append((LAUNCH.WORKSPACE_CLAIMS, 8 * len(words)))
        words += [0] * self.count
        words += [0] * (-len(words) % LINE)
        self.lay_out()
        self.seal()

    def lay_out(self) -> None:
        """The block comes first in the workspace, then the areas."""
        words, areas, size = self.words, self.areas, self.form.target.size
        self.head = aligned(-(-len(words) * 8 // size)) * size
        places, threads_at = areas.lay_out(self.head)
        self.slots += [(word, WORKSPACE, at) for word, at in places]
        for at in self.products:
            if words[at + PRODUCT.TOTAL]:
                words[at + PRODUCT.PARTIAL_SIZE] = len(self.walks) // self.parts * areas.of_walk
        words[LAUNCH.WORKSPACE_SIZE] = areas.of_thread
        self.slots.append((LAUNCH.WORKSPACE, WORKSPACE, threads_at))
        self.bytes = threads_at + self.count * areas.of_thread


def bits_of(double: bool, number: int) -> int:
    """A word that is that number, or twice that number if numbers are short."""
    word: int = unpack("=q", pack("=d", number) if double else pack("=2f", number, number))[0]
    return word


def rows_at_once(tile: int, threads: int, M: int, row: int) -> int:
    """How many of M rows, of `row` bytes each, are multiplied with a panel at a time. Each time all panels are read
    once. The rows stay in cache. Threads share the work evenly if there are some pieces for each. tile: its rows
    """
    share = -(-M // threads)
    if threads > 1:
        share = max(-(-share // 4), min(share, FEW_TILES * tile))
    if share * row <= FEW_BYTES:
        return max(tile, share)
    return max(1, CHUNK_BYTES // (row * tile)) * tile
