"""Where everything of a plan is: the order of its bindings, and the memory maps of its tapes."""

from typing import NamedTuple

from ..kernels.launch.bindings import JOINT_HEAD, NOWHERE, Bindings, MemoryMap, Spot, Where
from ..kernels.launch.key import Key
from ..kernels.records import words
from .tape import Room

RAGGED = ("starts", "T", "padded", "places", "sources", "inverse", "before.0", "before.1")
OF_WALK = ("rows", "d_projected", "wx", "gates", "extra", "raw", "d_gates", "d_extra")
PER_STATE = ("states", "old", "initial", "source")
IN_TAPE = ("gates", "extra", "raw", "wx", "history", *PER_STATE[:3])
PANELS = ("r_panels", "w_panels", "p_panels")  # of R, of W, of the projection


class PlanMap:
    """A call lists its bindings in this order: what every call has; the sizes of a ragged batch; the initial and the
    last states; the tensors of the layers, or each matrix of a walk; the weights, their panels, and their gradients.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.rooms = [(self.room(reverse, 1, 0), self.room(reverse, 0, key.B)) for reverse in key.reverse]
        self.N = None if key.ragged else key.T * key.B
        self.tapes = [MemoryMap(self.N) for _ in key.reverse]
        for tape, (per_row, fixed) in zip(self.tapes, self.rooms, strict=True):
            for layer in range(key.layers):
                tape.add(f"{layer}", per_row.total, fixed.total)
        for layer in range(key.layers - 1):
            self.tapes[0].add(f"rows.{layer}", self.words(key.wide))
        for layer in range(key.layers if key.ours else 0):  # d_gates and d_extra of a step in another stretch
            (_, gates), (_, extra), *_ = self.rooms[0][0].shapes
            self.tapes[0].add(f"joint.{layer}", 0, JOINT_HEAD + key.B * (gates + extra))
        self.bindings = Bindings(self.names())
        self.numbers = self.bindings.numbers

    def room(self, reverse: bool, N: int, B: int) -> Room:
        """Of a direction, for so many rows and sequences: a place in it grows with both in proportion."""
        key = self.key
        return Room(key.cell, key.dt, N, B, key.H, key.P, key.projected, reverse, key.rounded)

    def words(self, operands: int) -> int:
        return words(operands, self.key.rounded)

    def names(self) -> list[str]:
        key, layers, S = self.key, range(self.key.layers), range(len(self.key.cell.states))
        found = [f"{name}.{k}" for name in ("given", "last") for k in S]
        if key.ragged:
            found = [*RAGGED, *(f"{name}.{k}" for name in ("bounds", "chunk") for k in layers), *found]
        if key.walk:
            found += [*OF_WALK, *(f"{name}.{k}" for name in PER_STATE for k in S)]
            found += [f"d_params.{k}" for k in range(len(key.cell.params))]
        else:
            found += [f"{name}.{d}" for d in range(key.D) for name in ("x", "rows")] + ["d_x", "scratch"]
            found += [f"{name}.{d}" for name in ("tape", "d_tape") for d in range(key.D)]
        each = [f"{layer}.{d}" for layer in layers for d in range(key.D)]
        weights = [f"{one}.{name}" for one in each for name in key.names]
        panels = [f"{one}.{name}{more}" for one in each for name in PANELS for more in ("", " ready")]
        return found + weights + (panels if key.pinned else []) + [f"d_{name}" for name in weights]

    def in_tape(self, layer: int, d: int, name: str, k: int = 0, *, binding: str = "tape") -> Spot:
        """A matrix of the tape of a direction."""
        per_row, fixed = (room.matrices[name, k] for room in self.rooms[d])
        start = self.tapes[d].spot(self.numbers[f"{binding}.{d}"], f"{layer}", fixed)
        if self.N is None:
            return Spot(start.binding, start.numbers, start.per_row + per_row)
        return start.after(self.N * per_row)

    def rows(self, layer: int) -> Spot:
        """Those that a layer gives to the next. They are in the tape of the first direction."""
        return self.tapes[0].spot(self.numbers["tape.0"], f"rows.{layer}")


class Places(NamedTuple):
    """Where the matrices of one layer are, in one pass."""

    map: PlanMap
    layer: int
    scratch: MemoryMap  # of what exists only during the pass
    back: bool

    def find(self, where: Where) -> Spot:
        d, name, numbers, k = where
        key, at = self.map.key, self.map.numbers
        if key.walk:
            found = Spot(next((at[n] for n in (name, f"{name}.{k}", self.own(name, d, k)) if n in at), NOWHERE.binding))
        elif name in ("given", "last"):
            found = self.in_scratch(f"{name}.{k}") or Spot(at[f"{name}.{k}"])
            numbers += (self.layer * key.D + d) * key.B * key.widths[k]
        elif name in ("x", "rows", "d_x"):
            found = self.rows(name, d)
            numbers += d * key.P if name == "rows" else 0
        elif name == "joint":
            found = self.map.tapes[0].spot(at["tape.0"], f"joint.{self.layer}")
        elif name in ("before", "d_projected", "d_params") or (name == "wx" and key.rounded):
            found = self.in_scratch(f"{name}.{d}.{k}") or NOWHERE
        elif name.removeprefix("d_") in IN_TAPE:
            binding = "d_tape" if name.startswith("d_") else "tape"
            found = self.map.in_tape(self.layer, d, name.removeprefix("d_"), k, binding=binding)
        else:
            found = Spot(at.get(self.own(name, d, k), NOWHERE.binding))
        return found.after(numbers) if found != NOWHERE else NOWHERE

    def own(self, name: str, d: int, k: int) -> str:
        """The name of a binding that belongs to one direction: a weight, its gradient, its panels."""
        gradient, name = ("d_", name.removeprefix("d_")) if name.startswith("d_") else ("", name)
        name = f"param.{k}" if name == "params" else name.replace("f_panels", "r_panels")
        return f"{gradient}{self.layer}.{d}.{name}"

    def in_scratch(self, name: str) -> Spot | None:
        has = name in self.scratch.starts
        return self.scratch.spot(self.map.numbers["scratch"], name) if has else None

    def rows(self, name: str, d: int = 0) -> Spot:
        """x, d_x and the rows: the caller's, those copied from or to the caller's, or those between two layers."""
        layer, key = self.layer, self.map.key
        if name == "x" and layer:
            return self.map.rows(layer - 1)
        between = layer - 1 if name == "d_x" else layer
        if not (layer == 0 if name != "rows" else layer == key.layers - 1):
            found = self.in_scratch(f"between.{between % 2}") if self.back or key.rounded else self.map.rows(layer)
            assert found is not None
            return found
        binding = name if name == "d_x" else f"{name}.{d}"
        return self.in_scratch(f"{name}.{d}") or self.in_scratch(name) or Spot(self.map.numbers[binding])
