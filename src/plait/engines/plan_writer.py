"""Writes the segments of a plan, for batches of about one size and for the gradients that are wanted."""

from collections.abc import Sequence
from typing import NamedTuple

from ..kernels.launch.bindings import MemoryMap, Spot, Where
from ..kernels.launch.choices import Choices, Sized
from ..kernels.launch.layer import Layer, Wanted
from ..kernels.launch.program import ByTorch, Chain, Program
from ..layout import Layout
from .plan_map import Places, PlanMap
from .segments import Copy, Launch, Mask, Product, Segment
from .torch_products import TorchProducts


class Variant(NamedTuple):
    """Segments for all batches about which the same was decided, forward or for the gradients that are wanted."""

    segments: Sequence[Segment]
    scratch: MemoryMap  # of what exists only during the pass
    gathers: bool  # a launch copies the rows of the padded batch
    choices: Sequence[Choices]  # per layer
    packs: Sequence[Sequence[str]]  # per layer and direction: the panels of pinned weights that it packs (packed.py)
    torch: TorchProducts


class Writer:
    def __init__(self, map: PlanMap, layers: Sequence[Sized], choices: Sequence[Choices], stride: int) -> None:
        """stride: numbers from one row of the output, or of its gradient, to the next"""
        self.map, self.key, self.layers, self.choices, self.stride = map, map.key, layers, choices, stride
        self.form, self.at = layers[0].form, map.numbers
        self.segments: list[Segment] = []
        self.blocks: list[tuple[int, Program]] = []  # one launch, if nothing has to happen between them
        self.scratch = MemoryMap(map.N)
        self.torch = TorchProducts(map, self.form, self.scratch)

    # --- forward
    def forward(self) -> Variant:
        key, layers = self.key, self.layers
        by_torch = [not (key.walk or s.folded or c.is_ours) for s, c in zip(layers, self.choices, strict=True)]
        gathers = key.padded and not any(by_torch)
        if key.rounded:
            self.between_layers()
        self.operands(gathers)
        for d in range(key.D if key.rounded and not key.walk else 0):
            if not all(s.folded for s in layers):
                self.scratch.add(f"wx.{d}.0", self.form.G * key.H)
        if gathers:
            self.scratch.add("rows", key.wide)
            for k, width in enumerate(key.widths):
                self.scratch.add(f"last.{k}", 0, key.layers * key.D * key.B * width)
        elif key.padded:
            self.segments.append(Copy("x", self.of_directions("x")))
        for k, choices in enumerate(self.choices):
            is_last = k == key.layers - 1
            program = self.layer(k, back=False).forward(choices, stride=self.stride if is_last else key.wide)
            self.products(k, program)
            self.copy_operands(k, program, gathers)
            if gathers:
                self.copy_results(k, program)
            self.finish(k, program)
            if key.dropout and not is_last:
                self.launch()
                between = Places(self.map, k, self.scratch, back=False).rows("rows")
                self.segments.append(Mask(between, self.at["scratch"], k, key.wide))
        self.launch()
        if key.padded and not gathers:
            self.segments += [Copy("rows", out=True), Copy("states")]
        packs = list[str]()
        for layer, choices in zip(layers, self.choices, strict=True):
            packs += [("f" if layer.folded else "r") + "w" * choices.is_ours] * key.D
        return Variant(self.segments, self.scratch, gathers, self.choices, packs, self.torch)

    def copy_results(self, k: int, program: Program) -> None:
        """Rows of a padded batch, out of the last layer; the last states in the user's order."""
        key, places = self.key, Places(self.map, k, self.scratch, back=False)
        if k == key.layers - 1:
            program.copy(Spot(self.at["rows.0"]), places.rows("rows"), "sources", "padded", key.wide, after=True)
        for s, width in enumerate(key.widths):
            rows = key.D * key.B
            to, origin = Spot(self.at[f"last.{s}"], k * rows * width), places.find(Where(0, "last", 0, s))
            program.copy(to, origin, "inverse", rows, width, after=True)

    # --- backward
    def backward(self, needs: tuple[bool, ...]) -> Variant:
        """needs: of x, of each state, of each weight"""
        key, form = self.key, self.form
        wanted = self.wanted(needs)
        theirs = [self.is_left(k, some) for k, some in enumerate(wanted) if some is not None]
        gathers = key.padded and not any(theirs)
        self.between_layers()
        self.operands(gathers)
        if gathers:
            for name, width, is_there in (
                ("rows", key.wide, self.stride),
                ("d_x", key.I, needs[0]),
            ):
                if is_there:
                    self.scratch.add(name, width)
        for d in range(key.D):
            if key.ragged and any(some is not None and some.weights[d][1] for some in wanted):
                self.scratch.add(f"before.{d}.0", self.map.words(key.P))
            if key.projected and not key.walk:
                self.scratch.add(f"d_projected.{d}.0", self.map.words(key.P))
            for k in range(0 if key.walk else form.K):
                self.scratch.add(f"d_params.{d}.{k}", 0, key.B * key.H)
        if key.padded and not gathers:
            self.segments += [Copy("x", self.of_directions("x")), Copy("rows", self.of_directions("rows"))]
        for k in range(key.layers - 1, -1, -1):
            if (some := wanted[k]) is not None:
                self.layer_back(k, some, gathers)
        self.launch()
        if key.padded and not gathers:
            self.segments.append(Copy("d_x", out=True))
        if key.padded and any(some is not None and some.states for some in wanted):
            self.segments.append(Copy("states"))
        packs = list[str]()
        for some, choices in zip(wanted, self.choices, strict=True):
            packs += ["" if some is None else "r" + "w" * (some.x and choices.is_ours)] * key.D
        return Variant(self.segments, self.scratch, gathers, self.choices, packs, self.torch)

    def wanted(self, needs: tuple[bool, ...]) -> list[Wanted | None]:
        """Per layer; None if neither it nor one below it learns."""
        key, D, L = self.key, self.key.D, self.key.layers
        each = len(key.names)
        states, weights = True in needs[1 : len(needs) - L * D * each], needs[len(needs) - L * D * each :]
        groups = [weights[k : k + each] for k in range(0, len(weights), each)]
        below = [needs[0] or states or any(map(any, groups[: k * D])) for k in range(L + 1)]
        return [
            Wanted(below[k] if k else needs[0], states, groups[k * D : (k + 1) * D]) if below[k + 1] else None
            for k in range(L)
        ]

    def is_left(self, k: int, wanted: Wanted) -> bool:
        """Whether torch computes a product of that layer, so that it has to see rows."""
        key, choices = self.key, self.choices[k]
        first = 4 if key.bias else 2
        over_rows = any(any(some[:first]) for some in wanted.weights) and not choices.over_rows
        projection = key.projected and any(some[first] for some in wanted.weights)
        return (wanted.x and not choices.is_ours) or over_rows or projection

    def layer_back(self, k: int, wanted: Wanted, gathers: bool) -> None:
        key, places = self.key, Places(self.map, k, self.scratch, back=True)
        stride = self.stride if k == key.layers - 1 else key.wide
        if gathers and k == key.layers - 1 and stride:
            stride = key.wide
        program = self.layer(k, back=True).backward(self.choices[k], wanted, stride=stride)
        for d, reverse in enumerate(key.reverse):
            if key.ragged and wanted.weights[d][1]:
                history = self.map.in_tape(k, d, "states" if reverse else "initial")
                words = self.map.words(key.P)
                program.copy(places.find(Where(d, "before")), history, f"before.{int(reverse)}", "N", words)
        if k == 0:
            self.copy_operands(k, program, gathers)
        if gathers and k == 0 and wanted.x:
            program.copy(Spot(self.at["d_x"]), places.rows("d_x"), "sources", "padded", key.I, after=True)
        if gathers and k == key.layers - 1 and self.stride:
            program.copy(places.rows("rows"), Spot(self.at["rows.0"]), "places", "N", key.wide)
        self.finish(k, program)
        for d, some in enumerate(wanted.weights):
            own = some[len(key.names) - self.form.K :] if self.form.K else ()
            program.by_torch += [ByTorch(d, "params", j) for j, n in enumerate(own) if n and not key.walk]
        self.products(k, program)
        if key.dropout and k and wanted.x:
            self.launch()
            self.segments.append(Mask(places.rows("d_x"), self.at["scratch"], k - 1, key.wide))

    # --- both
    def between_layers(self) -> None:
        """Room for rows between two layers, or their gradients: a layer reads one matrix and writes the other."""
        for k in range(2 if self.key.layers > 1 else 0):
            self.scratch.add(f"between.{k}", self.key.wide)

    def operands(self, gathers: bool) -> None:
        """Room for x as the first layer multiplies it: gathered from a padded batch, or rounded."""
        key = self.key
        if key.walk or not (gathers or key.rounded):
            return
        for name in ("x.0", "x.1") if self.is_x_twice else ("x",):
            self.scratch.add(name, self.map.words(key.I))

    @property
    def is_x_twice(self) -> bool:
        """In a chunk of steps, each direction begins with a row of its own."""
        return self.key.rounded and self.key.whole > 0 and self.key.D > 1

    def copy_operands(self, k: int, program: Program, gathers: bool) -> None:
        """x of a layer, gathered or rounded, or both."""
        key, places = self.key, Places(self.map, k, self.scratch, program.back)
        rows: str | int = "N" if key.ragged else key.T * key.B
        if key.walk or not (gathers or key.rounded):
            return
        if k == 0:
            for d in range(2 if self.is_x_twice else 1):
                origin, index = Spot(self.at[f"x.{d}"]), "places" if gathers else ""
                program.copy(places.rows("x", d), origin, index, rows, key.I, rounded=key.rounded)
        elif key.rounded:
            between = self.scratch.spot(self.at["scratch"], f"between.{(k - 1) % 2}")
            program.copy(places.rows("x"), between, "", rows, key.wide, rounded=True)

    def of_directions(self, name: str) -> list[int]:
        return [self.at[f"{name}.{d}"] for d in range(self.key.D)]

    def layer(self, k: int, *, back: bool) -> Layer:
        return Layer(self.layers[k], self.map.bindings, Places(self.map, k, self.scratch, back).find)

    def finish(self, k: int, program: Program) -> None:
        layer, choices = self.layers[k], self.choices[k]
        program.finish(layer.slices(Layout(self.key.T, self.key.B), choices.threads), choices.shared)
        if self.blocks and self.blocks[-1][1].count != program.count:
            self.launch()
        self.blocks.append((k, program))

    def launch(self) -> None:
        """The programs so far, as one launch."""
        if self.blocks:
            numbers, programs = zip(*self.blocks, strict=True)
            self.segments.append(Launch(Chain(programs), numbers))
            self.blocks = []

    def products(self, k: int, program: Program) -> None:
        """Those by torch: W x before the launch, gradients after it."""
        if program.by_torch:
            self.launch()
            compute = self.torch.gradient if program.back else self.torch.project
            self.segments += [Product(k, what, compute) for what in program.by_torch]
