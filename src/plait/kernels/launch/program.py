"""A program: what a launch does, made once for all calls with the same key.

A kernel reads one block of 64-bit words: the launch, its walks, products and copies (records.py). layer.py writes them
here. From call to call only the bindings differ: addresses, and for ragged batches the numbers of steps and rows.
plait_start (loops/walk.py) copies the block into the workspace of the call and writes the bindings into its slots.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from time import perf_counter
from typing import NamedTuple

from ..records import LINE, Copy, Head, Launch, Product, Walk
from . import compiler, threads
from .bindings import NOWHERE, WORKSPACE, Bindings, N, Spot, Where, aligned
from .choices import Sized
from .pace import Estimate, pace
from .slabs import Slab
from .workspace import Workspace

SET, WAYS = 4096, 8  # of the first cache: bytes from a line of a set to the next, and how many lines a set has

Slot = tuple[int, int, int, int]  # word, binding, bytes after it, bytes for each row of the call


class ByTorch(NamedTuple):
    """A product, or a sum of rows, that torch computes: wx before the walk, a gradient after it."""

    direction: int
    name: str  # wx, d_x, or the weight whose gradient it is
    run: int = 0  # of w_hh and b_hh: which run of d_rh (emit/target.py), and which rows of the gradient it gives
    first: int = 0
    end: int = 0


class Run(NamedTuple):
    """Some columns of A. A row of A may be in several places."""

    row: int  # numbers from row to row
    columns: int
    where: Where | None = None  # if not, the span says where it is


class Chain:
    """The words of programs that one launch runs in turn, any number of times, on `count` threads."""

    def __init__(self, programs: Sequence["Program"]) -> None:
        words, slots, inner = list[int](), list[Slot](), list[tuple[int, int]]()
        heads = sum(p.head for p in programs)
        for k, p in enumerate(programs):
            first = len(words)
            words += p.words
            for word, number, after, per_row in p.slots:
                moved = heads - p.head if number == WORKSPACE else 0  # all use the same memory behind the blocks
                slots.append((first + word, number, after + moved, per_row))
            inner += [(first + word, 8 * first + to) for word, to in p.inner]
            if k < len(programs) - 1:
                inner.append((first + Launch.NEXT, 8 * len(words)))
        self.count, self.bytes = programs[0].count, heads + max(p.bytes - p.head for p in programs)
        head = [0] * Head.SIZE
        head[Head.KERNEL] = compiler.shared()["plait_run"]
        head[Head.WORDS], head[Head.N] = len(words), N
        head[Head.SLOTS], head[Head.INNER] = len(slots), len(inner)
        self.memory = array("q", [*head, *words, *chain(*slots), *chain(*inner)])
        self.address = self.memory.buffer_info()[0]
        self.rows = programs[0].key.T * programs[0].key.B  # of a dense batch
        self.alone = Estimate(sum(p.sized.seconds(1, p.sized.I) * (2 if p.back else 1) for p in programs))

    def run(self, values: "array[int]", workspace: int) -> None:
        """values: the bindings of the call"""
        address = values.buffer_info()[0]
        if self.count == 1:
            threads.run(self.address, address, workspace, 1)
            return
        count = pace.threads(self.count, perf_counter())
        start = perf_counter()
        is_team = threads.run(self.address, address, workspace, count)
        pace.took(self.alone, self.rows or values[N], count if is_team else 1, perf_counter() - start)


class Program:
    """One layer: layer.py writes walks, products and copies, then `finish` is called."""

    def __init__(
        self, sized: Sized, bindings: Bindings, find: Callable[[Where], Spot], count: int, *, back: bool
    ) -> None:
        self.sized, self.key, self.form, self.bindings, self.find = sized, sized.key, sized.form, bindings, find
        self.count, self.back, self.target = count, back, sized.form.target
        self.threads_each = count if sized.slab_count == 1 else 1  # that compute a product of a whole sequence
        self.shared, self.functions = compiler.shared(), compiler.functions(self.form)
        self.walks = {Launch.SIZE + k * Walk.SIZE: slab for k, slab in enumerate(sized.slabs)}  # where each begins
        self.words = [0] * (Launch.SIZE + len(self.walks) * Walk.SIZE)
        self.products: list[int] = []
        self.arrays: list[tuple[int, Sequence[int]]] = []  # will be behind the records; the word of its address
        self.whole = 0  # the number of the first product over a whole sequence
        self.slots: list[Slot] = []
        self.inner: list[tuple[int, int]] = []  # word, bytes from the beginning of the words to what it points to
        self.workspace = Workspace(count, len(self.walks), sized.slab_count, self.target.size)
        self.packed: dict[tuple[str, int], int] = {}  # name of panels, direction -> the product that packs them
        self.partial: dict[Where, tuple[int, int]] = {}  # sums over slabs: numbers, and the word of the first slab
        self.by_torch: list[ByTorch] = []

    # --- writing it
    def set(self, at: int, **fields: int) -> None:
        """Writes words of the walk or the product that begins there. Their names are those of its record."""
        record = Walk if at in self.walks else Product
        for name, value in fields.items():
            self.words[at + getattr(record, name)] = value

    def bind(self, word: int, spot: Spot) -> None:
        size = self.target.size
        self.slots.append((word, spot.binding, spot.numbers * size, spot.per_row * size))

    def point(self, word: int, where: Where) -> None:
        self.bind(word, self.find(where))

    def size(self, word: int, name: str, value: int) -> None:
        """It stays the same, or is bound at each call of a ragged batch."""
        if self.key.ragged:
            self.bind(word, Spot(self.bindings.numbers[name]))
        else:
            self.words[word] = value

    def reserve(self, word: int, numbers: int, slab: Slab | None = None) -> None:
        """Memory for the time of the call; the word will be its address. slab: whose thread alone uses it"""
        self.workspace.reserve(word, numbers, 0 if slab is None else 1 + self.walk_of(slab))

    def walk_of(self, slab: Slab) -> int:
        """The number of its walk, whose thread computes its products; -1 if there is one slab: then all threads do."""
        return self.sized.slabs.index(slab) if self.sized.slab_count > 1 else -1

    def new_product(self) -> int:
        """Where its record begins."""
        self.products.append(len(self.words))
        self.words += [0] * Product.SIZE
        return self.products[-1]

    def product(self, factor: Where, runs: Sequence[Run], *, columns: int, row: int, each: int = 1) -> int:
        """With the factor, of `row` numbers per row, or forward with its transpose. each: panels per block"""
        at, target, functions = self.new_product(), self.target, self.functions
        line, depth = target.width * target.size, sum(run.columns for run in runs)
        # If rows are whole pages apart, all of a column are in one set of the first cache. A tile of more rows than
        # that set has lines would find none of them there.
        is_crowded = any(run.row * target.size % SET == 0 for run in runs)
        self.set(
            at,
            NUMBER=target.size,
            WIDTH=target.width,
            TILE_ROWS=target.rows,
            LINE=line,
            SLOT=target.rows * line,
            MOST_ROWS=min(target.rows, WAYS) if is_crowded else target.rows,
            LANES=target.lanes if target.vectors > 1 else 0,
            ROW_CHUNK=target.chunk,
            TILE=functions["plait_product"],
            TILE_ON=functions["plait_product_on"],
            MULTIPLY_ROWS=self.shared["plait_rows"],
            EACH=each,
            COLUMNS=columns,
            DEPTH=depth,
            STRIDE=(depth + 1) * line,
            FACTOR_ROW=row * target.size,
            TRANSPOSED=not self.back,
            PACK=functions["plait_pack_columns" if self.back else "plait_pack_transposed"],
            STORE=functions["plait_store"],
            ADD=functions["plait_add"],
            ADD_BIAS=functions["plait_add_bias"],
            RUNS=len(runs),
        )
        self.words[at + Product.GATE : at + Product.GATE + each] = range(each)
        self.point(at + Product.FACTOR, factor)
        for k, run in enumerate(runs):
            word = at + k * Product.RUN_SIZE
            self.words[word + Product.RUN_ROW] = run.row * target.size
            self.words[word + Product.RUN_COLUMNS] = run.columns
            if run.where is not None:
                self.point(word + Product.RUN, run.where)
        return at

    def give_to(self, walk: int, word: int, at: int) -> None:
        """Makes a product one of a walk, which finds it by that word."""
        columns, each, target = self.words[at + Product.COLUMNS], self.words[at + Product.EACH], self.target
        self.inner += [(at + Product.OWNER, 8 * walk), (walk + word, 8 * at)]
        self.whole = len(self.products)
        left = columns % target.width
        self.set(at, JOINED=left if left <= target.most_joined(each) else 0)
        if target.apart:
            blocks = -(-columns // target.width)
            self.reserve(at + Product.APART, self.key.B * target.rows * blocks * each * target.width)

    def panels(self, at: int, name: str, d: int) -> None:
        """Where the panels of a product are: in the workspace, where slabs share those that the first one packs. Pinned
        ones are in memory that outlives the call, and whether they are packed already is bound at each call.
        """
        words, first = self.words, self.packed.setdefault((name, d), at)
        if self.key.pinned:
            self.point(at + Product.PANELS, Where(d, name))
            self.point(at + Product.READY, Where(d, f"{name} ready"))
        elif first != at:
            self.workspace.again(at + Product.PANELS, first + Product.PANELS)
            self.set(at, READY=1)
        else:
            blocks = -(-words[at + Product.COLUMNS] // self.target.width)
            size = blocks * words[at + Product.EACH] * words[at + Product.STRIDE]
            self.reserve(at + Product.PANELS, size // self.target.size)

    def result(self, word: int, where: Where, numbers: int, slab: Slab) -> None:
        """A place for that many numbers. If there are several slabs, each has its own in the workspace."""
        if self.sized.slab_count == 1:
            self.point(word, where)
        else:
            self.reserve(word, numbers, slab)
            self.partial.setdefault(where, (numbers, word))

    def copy(
        self,
        to: Spot,
        origin: Spot,
        index: str,
        rows: str | int,
        width: int,
        *,
        after: bool = False,
        rounded: bool = False,
    ) -> None:
        """Rows of `width` numbers that are copied before the walks, or after all else. index: the binding that says for
        each row of `to` which one of `origin` it is, "" if it is the same; rows: how many, or the binding that says so;
        rounded: those of `to` are operands of products
        """
        at, numbers = len(self.words), self.bindings.numbers
        if not self.words[Launch.COPIES]:
            self.inner.append((Launch.FIRST_COPY, 8 * at))
        self.words[Launch.COPIES] += 1
        self.words += [0] * Copy.SIZE
        self.words[at + Copy.ROW], self.words[at + Copy.AFTER] = width * self.target.size, after
        self.words[at + Copy.TO_ROW] = (self.target.words(width) if rounded else width) * self.target.size
        if rounded:
            self.words[at + Copy.NUMBERS], self.words[at + Copy.ROUNDING] = width, self.functions["plait_round"]
        from_row = Spot(numbers[index]) if index else NOWHERE
        for word, spot in ((Copy.TO, to), (Copy.FROM, origin), (Copy.INDEX, from_row)):
            self.bind(at + word, spot)
        if isinstance(rows, int):
            self.words[at + Copy.ROWS] = rows
        else:
            self.bind(at + Copy.ROWS, Spot(numbers[rows]))

    def add_totals(self) -> None:
        """The last products: sums over slabs, in a round of their own."""
        last = 1 + max((self.words[at + Product.ROUND] for at in self.products), default=0)
        for where, (numbers, word) in self.partial.items():
            at = self.new_product()
            self.set(at, NUMBER=self.target.size, TOTAL=self.sized.slab_count, M=numbers, ROUND=last, OF_WALK=-1)
            self.set(at, ADD_BIAS=self.functions["plait_add_bias"], READY=1)
            self.point(at + Product.C, where)
            self.workspace.again(at + Product.PARTIAL, word)

    def finish(self, bounds: Sequence[int], by_units: bool) -> None:
        """bounds: of the slices of the batch. For a ragged one only their number counts: it binds them at each call."""
        has_slabs = self.sized.slab_count > 1
        assert not (has_slabs and (by_units or self.by_torch)), "only a launch that computes all can be in slabs"
        words, slices = self.words, len(bounds) - 1
        words[Launch.WALKS], words[Launch.PRODUCTS] = len(self.walks), len(self.products)
        words[Launch.WHOLE] = self.whole
        words[Launch.SLICES], words[Launch.BY_UNITS] = slices, by_units
        words[Launch.ROUNDS] = rounds = 1 + max(words[at + Product.ROUND] for at in self.products)
        words[Launch.TEAM : Launch.SYSCALL + 1] = threads.team_functions()
        words[Launch.BACK], words[Launch.MULTIPLY] = self.back, self.shared["plait_multiply"]
        words[Launch.OWN] = own = len(self.walks) if has_slabs else 0
        words[Launch.THREADS] = self.count
        self.inner += [(Launch.FIRST_WALK, 8 * Launch.SIZE), (Launch.FIRST_PRODUCT, 8 * self.products[0])]
        if self.key.ragged:
            self.size(Launch.SLICE_BOUNDS, f"bounds.{self.sized.number}", 0)
        else:
            self.arrays.append((Launch.SLICE_BOUNDS, bounds))
        self.arrays.append((Launch.CLAIMS, [0] * (len(self.walks) * slices + rounds * own)))
        self.arrays.append((Launch.WORKSPACE_CLAIMS, [0] * self.count))
        for word, values in self.arrays:
            self.inner.append((word, 8 * len(words)))
            words += values
        words += [0] * (-len(words) % LINE)
        # the words come first in the workspace, then the areas
        workspace, size = self.workspace, self.target.size
        self.head = aligned(-(-len(words) * 8 // size)) * size
        places, threads_at = workspace.lay_out(self.head)
        self.slots += [(word, WORKSPACE, at, 0) for word, at in [*places, (Launch.WORKSPACE, threads_at)]]
        for at in self.products:
            if words[at + Product.TOTAL]:
                words[at + Product.PARTIAL_SIZE] = self.key.D * workspace.of_walk
        words[Launch.WORKSPACE_SIZE] = workspace.of_thread
        self.bytes = threads_at + self.count * workspace.of_thread
