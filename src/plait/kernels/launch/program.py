"""A program: what a launch does, made once for all calls with the same key.

A kernel reads one block of 64-bit words: the launch, its walks, products and copies (records.py). layer.py writes them
here. From call to call only the bindings differ: addresses, and for ragged batches the numbers of steps and rows.
plait_start (loops/walk.py) copies the block into the workspace of the call and writes the bindings into its slots.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from struct import pack, unpack
from typing import NamedTuple

from ..emit.target import Form
from ..records import LINE, PIECE, Copy, Head, Launch, Product, Walk
from . import compiler, threads
from .bindings import WORKSPACE, Bindings, N, Spot, Where, aligned
from .parts import Part
from .workspace import Workspace

CHUNK_BYTES = 1 << 18  # bytes of rows of a product that stay in the second cache
FEW_BYTES = 3 << 18  # below this, rows are not cut into chunks: reading all panels again would cost more
FEW_TILES = 4  # tiles of rows that a thread takes at a time, at least: then it reads the panels less often
SET, WAYS = 4096, 8  # of the first cache: bytes from a line of a set to the next, and how many lines a set has
# Of a sum over all rows: columns of the two factors that are packed at once, at most. They stay in the second cache.
MOST_COLUMNS, MOST_ROWS = 256, 224


class ByTorch(NamedTuple):
    """A product, or a sum of rows, that torch computes: wx before the walk, a gradient after it."""

    direction: int
    name: str  # wx, d_x, or the weight whose gradient it is
    run: int = 0  # of w_hh and b_hh: which run of d_rh (emit/target.py), and which rows of the gradient it gives
    first: int = 0
    end: int = 0


class Side(NamedTuple):
    """A factor of a sum over all rows, and its place for the result."""

    a: Where
    columns: int
    c: Where
    in_parts: bool  # its rows are


class Block:
    """Words that can run any number of times, on `count` threads."""

    count: int
    head: int  # bytes of the words in the workspace
    bytes: int  # of the workspace
    words: list[int]
    slots: list[tuple[int, int, int, int]]  # word, binding, bytes after it, bytes for each row of the call
    inner: list[tuple[int, int]]  # word, bytes from the beginning of the block to what it points to

    def seal(self) -> None:
        head = [0] * Head.SIZE
        head[Head.KERNEL], head[Head.THREADS] = compiler.shared()["plait_run"], self.count
        head[Head.WORDS], head[Head.N] = len(self.words), N
        head[Head.SLOTS], head[Head.INNER] = len(self.slots), len(self.inner)
        self.memory = array("q", [*head, *self.words, *chain(*self.slots), *chain(*self.inner)])
        self.address = self.memory.buffer_info()[0]


class Chain(Block):
    """Programs that one launch runs, one after the other, with the same bindings and the same number of threads."""

    def __init__(self, programs: Sequence[Block]) -> None:
        self.count, self.words, self.slots, self.inner = programs[0].count, [], [], []
        self.head = heads = sum(p.head for p in programs)
        for k, p in enumerate(programs):
            first = len(self.words)
            self.words += p.words
            for word, number, after, per_row in p.slots:
                moved = heads - p.head if number == WORKSPACE else 0  # all use the same memory behind the blocks
                self.slots.append((first + word, number, after + moved, per_row))
            self.inner += [(first + word, 8 * first + to) for word, to in p.inner]
            if k < len(programs) - 1:
                self.inner.append((first + Launch.NEXT, 8 * len(self.words)))
        self.bytes = heads + max(p.bytes - p.head for p in programs)
        self.seal()


class Program(Block):
    """One layer: layer.py writes walks, products and copies, then calls `finish`."""

    def __init__(
        self,
        form: Form,
        bindings: Bindings,
        find: Callable[[Where], Spot],
        *,
        layer: int,
        count: int,
        walks: int,
        parts: int,
        back: bool,
    ) -> None:
        self.form, self.bindings, self.find, self.layer, self.count = form, bindings, find, layer, count
        self.parts, self.back, self.ragged = parts, back, "starts" in bindings.numbers
        self.shared, self.functions = compiler.shared(), compiler.functions(form)
        self.walks = [Launch.SIZE + d * Walk.SIZE for d in range(walks)]
        self.words = [0] * (Launch.SIZE + walks * Walk.SIZE)
        self.products: list[int] = []
        self.copies: list[tuple[bool, Spot, Spot, Spot, Spot | int, int]] = []  # after?, then the words of a Copy
        self.whole = 0  # the number of the first product over a whole sequence
        self.slots, self.inner = [], []
        self.workspace = Workspace(count, walks, parts, form.target.size)
        self.partial: dict[Where, tuple[int, int]] = {}  # sums over parts: numbers, and the word of the first part
        self.by_torch: list[ByTorch] = []

    # --- writing it
    def set(self, at: int, **fields: int) -> None:
        """Writes words of the walk or the product that begins there. Their names are those of its record."""
        record = Walk if at in self.walks else Product
        for name, value in fields.items():
            self.words[at + getattr(record, name)] = value

    def bind(self, word: int, spot: Spot) -> None:
        size = self.form.target.size
        self.slots.append((word, spot.binding, spot.numbers * size, spot.per_row * size))

    def point(self, word: int, where: Where) -> None:
        self.bind(word, self.find(where))

    def size(self, word: int, name: str, value: int) -> None:
        """It stays the same, or is bound at each call of a ragged batch."""
        if self.ragged:
            self.bind(word, Spot(self.bindings.numbers[name]))
        else:
            self.words[word] = value

    def reserve(self, word: int, numbers: int, part: Part | None = None) -> None:
        """Memory for the time of the call; the word will be its address. part: whose thread alone uses it"""
        self.workspace.reserve(word, numbers, 0 if part is None or self.parts == 1 else 1 + self.walk_of(part))

    def new_product(self) -> int:
        """Where its record begins."""
        self.products.append(len(self.words))
        self.words += [0] * Product.SIZE
        return self.products[-1]

    def product(
        self, factor: Where, *, each: int, columns: int, depth: int, row: int, transposed: bool, owner: int | None
    ) -> int:
        """row: numbers per row of the factor. owner: the walk that it is part of; None for a whole sequence."""
        at, target = self.new_product(), self.form.target
        self.set(
            at,
            NUMBER=target.size,
            WIDTH=target.width,
            TILE_ROWS=target.rows,
            MOST_ROWS=target.rows,
            LANES=target.lanes if target.vectors > 1 else 0,
            ROW_CHUNK=target.chunk,
            TILE=self.functions["plait_product"],
            TILE_ON=self.functions["plait_product_on"],
            MULTIPLY_ROWS=self.shared["plait_rows"],
            EACH=each,
            COLUMNS=columns,
            DEPTH=depth,
            FACTOR_ROW=row * target.size,
            TRANSPOSED=transposed,
            PACK=self.functions["plait_pack_transposed" if transposed else "plait_pack_columns"],
        )
        self.inner.append((at + Product.OWNER, 8 * (at if owner is None else owner)))
        self.point(at + Product.FACTOR, factor)
        if owner is None:
            self.set(at, STORE=self.functions["plait_store"], ADD=self.functions["plait_add"])
        else:
            self.whole = len(self.products)
        return at

    def panels(self, at: int, pinned: str | None, *, direction: int, same: int | None = None) -> None:
        """Where the panels of a product are: in memory that outlives the call, or in the workspace.

        pinned: the name of those that outlive it; whether they are packed already is bound at each call.
        same: those of another product, which packs them
        """
        words, width = self.words, self.form.target.width
        if pinned is not None:
            self.point(at + Product.PANELS, Where(direction, pinned))
            self.point(at + Product.READY, Where(direction, f"{pinned} ready"))
        elif same is not None:
            self.workspace.again(at + Product.PANELS, same + Product.PANELS)
            self.set(at, READY=1)
        else:
            blocks = -(-words[at + Product.COLUMNS] // width) * words[at + Product.EACH]
            self.reserve(at + Product.PANELS, blocks * (words[at + Product.DEPTH] + 1) * width)

    def run_of(self, at: int, row: int, columns: int, where: Where | None = None) -> None:
        """Adds a run of A, of `row` numbers per row. Without a place, the span says where it is.

        If rows are whole pages apart, all of a column are in one set of the first cache. A tile of more rows than that
        set has lines would find none of them there.
        """
        k, target = self.words[at + Product.RUNS], self.form.target
        self.set(at, RUNS=k + 1)
        if row * target.size % SET == 0:
            self.set(at, MOST_ROWS=min(target.rows, WAYS))
        at += k * Product.RUN_SIZE
        self.words[at + Product.RUN_ROW], self.words[at + Product.RUN_COLUMNS] = row * target.size, columns
        if where is not None:
            self.point(at + Product.RUN, where)

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
        self.size(at + Product.M, "N", M)
        self.size(
            at + Product.CHUNK, f"chunk.{self.layer}", rows_at_once(target.rows, self.threads_each, M, K * target.size)
        )
        self.point(at + Product.C, c)
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
        self.size(at + Product.DEPTH, "N", K)
        for k, side in enumerate(sides):
            self.run_of(at, side.columns, side.columns, side.a)
            self.words[at + Product.SIDE_SKIP + k] = part.skipped(side.in_parts) * side.columns * target.size
            self.result(at + Product.C + k, side.c, columns * side.columns, part)
        for k, total in enumerate(sums):
            self.result(at + Product.SUMS + k, total, columns, part)
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
            PACK_SIDE=self.functions["plait_pack_side"],
            WRITE=self.functions["plait_write"],
            ONE=bits_of(target.double, 1),
        )
        most, some = -(-blocks // groups), -(-tiles // chunks)
        panels = most * (PIECE + 1) * target.width
        packed = some * (PIECE * target.rows + target.width)
        size = LINE * 8 + panels + packed + (some + 1) * most * target.rows * target.width
        self.workspace.reserve_sums(size)

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
        last = 1 + max((self.words[at + Product.ROUND] for at in self.products), default=0)
        for where, (numbers, word) in self.partial.items():
            at = self.new_product()
            self.set(at, NUMBER=self.form.target.size, TOTAL=self.parts, M=numbers, ROUND=last, OF_WALK=-1)
            self.set(at, ADD_BIAS=self.functions["plait_add_bias"])
            self.point(at + Product.C, where)
            self.workspace.again(at + Product.PARTIAL, word)

    def copy(self, to: Spot, origin: Spot, index: str, rows: str | int, width: int, *, after: bool = False) -> None:
        """Rows of `width` numbers that are copied before the walks, or after all else. index: the binding that says for
        each row of `to` which one of `origin` it is; rows: how many, or the binding that says so
        """
        numbers = self.bindings.numbers
        count = rows if isinstance(rows, int) else Spot(numbers[rows])
        self.copies.append((after, to, origin, Spot(numbers[index]), count, width * self.form.target.size))

    def add_copies(self) -> None:
        self.copies.sort(key=lambda copy: copy[0])
        self.words[Launch.COPIES_AFTER] = after = sum(copy[0] for copy in self.copies)
        self.words[Launch.COPIES] = len(self.copies) - after
        self.inner.append((Launch.FIRST_COPY, 8 * len(self.words)))
        for _, to, origin, index, rows, width in self.copies:
            at = len(self.words)
            self.words += [0] * Copy.SIZE
            self.words[at + Copy.ROW] = width
            for word, spot in ((Copy.TO, to), (Copy.FROM, origin), (Copy.INDEX, index), (Copy.ROWS, rows)):
                if isinstance(spot, int):
                    self.words[at + word] = spot
                else:
                    self.bind(at + word, spot)

    def unite(self, walk: int) -> None:
        """Lets the walk compute the last product, step by step."""
        self.set(self.products[-1], UNITED=1)
        self.inner.append((walk + Walk.WITHIN, 8 * self.products[-1]))

    def finish(self, bounds: Sequence[int], by_units: bool) -> None:
        """bounds: of the slices of the batch. For a ragged one only their number counts: it binds them at each call."""
        assert self.parts == 1 or not (by_units or self.by_torch), "only a launch that computes all can be in parts"
        self.add_totals()
        self.add_copies()
        words = self.words
        words[Launch.WALKS], words[Launch.PRODUCTS] = len(self.walks), len(self.products)
        words[Launch.WHOLE] = self.whole
        words[Launch.SLICES], words[Launch.BY_UNITS] = len(bounds) - 1, by_units
        words[Launch.ROUNDS] = 1 + max(words[at + Product.ROUND] for at in self.products)
        words[Launch.TEAM], words[Launch.WHO] = threads.team_size(), threads.thread_number()
        words[Launch.YIELD] = threads.sched_yield()
        words[Launch.BACK], words[Launch.MULTIPLY] = self.back, self.shared["plait_multiply"]
        self.inner += [(Launch.FIRST_WALK, 8 * self.walks[0]), (Launch.FIRST_PRODUCT, 8 * self.products[0])]
        if self.ragged:
            self.size(Launch.SLICE_BOUNDS, f"bounds.{self.layer}", 0)
        else:
            self.inner.append((Launch.SLICE_BOUNDS, 8 * len(words)))
            words += bounds
        self.inner.append((Launch.CLAIMS, 8 * len(words)))
        words[Launch.OWN] = own = len(self.walks) if self.parts > 1 else 0
        words += [0] * (len(self.walks) * (len(bounds) - 1) + words[Launch.ROUNDS] * own)
        words[Launch.THREADS] = self.count
        self.inner.append((Launch.WORKSPACE_CLAIMS, 8 * len(words)))
        words += [0] * self.count
        words += [0] * (-len(words) % LINE)
        self.lay_out()
        self.seal()

    def lay_out(self) -> None:
        """The block comes first in the workspace, then the areas."""
        words, workspace, size = self.words, self.workspace, self.form.target.size
        self.head = aligned(-(-len(words) * 8 // size)) * size
        places, threads_at = workspace.lay_out(self.head)
        self.slots += [(word, WORKSPACE, at, 0) for word, at in places]
        for at in self.products:
            if words[at + Product.TOTAL]:
                words[at + Product.PARTIAL_SIZE] = len(self.walks) // self.parts * workspace.of_walk
        words[Launch.WORKSPACE_SIZE] = workspace.of_thread
        self.slots.append((Launch.WORKSPACE, WORKSPACE, threads_at, 0))
        self.bytes = threads_at + self.count * workspace.of_thread


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
