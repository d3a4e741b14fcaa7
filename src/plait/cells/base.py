"""What a cell is: its equations, written once, for anything that has + - * / and a few functions."""

import re
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from keyword import iskeyword
from typing import Any, ClassVar
from unicodedata import normalize

from ..errors import PlaitError

# The functions of a step, beside + - * / and comparisons -> how many arguments each takes.
FUNCTIONS = {
    "sigmoid": 1,
    "tanh": 1,
    "relu": 1,
    "exp": 1,
    "log": 1,
    "sqrt": 1,
    "abs": 1,
    "softplus": 1,
    "maximum": 2,
    "minimum": 2,
    "where": 3,
}
NAMES = (*FUNCTIONS, "full", "inf", "nan")  # what a text that was traced may use


WORDS = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"  # between two words of a class's name
Ops = Any  # for one kind of number (ops.py): FUNCTIONS; full(x, number), shaped as x; like(x), for the precision of x


class Cell:
    """One recurrent cell: a class with `gates`, `states` and `step`, which is used as it is and never instantiated.

        class MGU(plait.Cell):
            gates, states = ("f", "n"), ("h",)

            def step(wx, rh, state, ops):
                (h,) = state
                f = ops.sigmoid(wx[0] + rh[0])
                n = ops.tanh(wx[1] + f * rh[1])
                return h + f * (n - h)

    `step(wx, rh, state, [params,] [dt,] ops)` has no self. `wx = W x + b` and `rh = R h + c` arrive computed, one value
    per gate, and stay apart. The first state is h, the one that is multiplied by R and that is the layer's output.
    `params` are vectors with one number for each unit, which are trained with the layer. `dt` is the length of a step,
    1 but on coarse grids in time; a cell without it takes the same step at any length. `ops` has the functions.

    `step` returns the new states, in a tuple; a single one may come without. Everything else is derived from it: the
    derivative, what has to be kept for it (trace.py), and kernels. A cell that declares `saved` chooses by itself what
    is kept: its `step` returns two tuples, the new states and the values that belong to those names.
    """

    name: ClassVar[str]  # if it is not given: the name of the class in snake case
    gates: ClassVar[tuple[str, ...]] = ()  # in torch's order
    states: ClassVar[tuple[str, ...]] = ()
    params: ClassVar[tuple[str, ...]] = ()
    saved: ClassVar[tuple[str, ...] | None] = None
    mode: ClassVar[str | None] = None  # what torch.nn.RNNBase calls it, if torch has whole layers of it
    step: ClassVar[Callable[..., Any]]
    optional: ClassVar[tuple[str, ...]]  # which of params and dt its step takes

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = re.sub(WORDS, "_", cls.__name__).lower()  # ImplicitGRU -> implicit_gru
        given = vars(cls).get("step")
        if callable(given) and not isinstance(given, staticmethod):
            cls.step = staticmethod(given)
        if "mode" not in vars(cls):
            cls.mode = None  # a class that is derived from another may have another step
        check_names(cls)
        cls.optional = check_step(cls)

    def __init__(self) -> None:
        raise PlaitError(f"{type(self).__name__}() makes an object of a cell: a cell is a class, leave out the ().")

    @classmethod
    def run(
        cls, wx: Sequence[Any], rh: Sequence[Any], state: Sequence[Any], params: Sequence[Any], dt: float, ops: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
        """One call of step -> new states, saved (None if not declared)"""
        more = [value for name, value in (("params", params), ("dt", dt)) if name in cls.optional]
        return results(cls, cls.step(wx, rh, state, *more, ops))

    @classmethod
    def advance(
        cls, wx: Sequence[Any], rh: Sequence[Any], state: Sequence[Any], params: Sequence[Any], dt: float, ops: Ops
    ) -> tuple[Any, ...]:
        return cls.run(wx, rh, state, params, dt, ops.like(wx[0]))[0]


def labels(cell: type[Cell], group: str) -> list[str]:
    """How the texts that are traced from a cell (trace.py) call a group of its values."""
    patterns: dict[str, tuple[str, Iterable[str]]] = {
        "wx": ("wx_{}", cell.gates),
        "rh": ("rh_{}", cell.gates),
        "old": ("{}", cell.states),
        "new": ("{}_new", cell.states),
        "d_new": ("d_{}_new", cell.states),
        "params": ("{}", cell.params),
    }
    pattern, names = patterns[group]
    return [pattern.format(name) for name in names]


# Names that a layer's parameters have already: weight_ih_l0 and so on.
OF_LAYERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def check_names(cell: type[Cell]) -> None:
    what = f"cell {cell.__name__}"
    if not (isinstance(cell.name, str) and cell.name.isidentifier()):
        raise PlaitError(f"{what}: name {cell.name!r} is not a name such as 'mgu': letters, digits and _ only.")
    groups = ("gates", "states", "params") if cell.saved is None else ("gates", "states", "params", "saved")
    for group in groups:
        names = getattr(cell, group)
        if not isinstance(names, tuple):
            example = names if isinstance(names, str) and names.isidentifier() else "a"
            raise PlaitError(f"{what}: {group} is {names!r}, expected a tuple of names such as ({example!r},).")
        for name in names:
            if not (isinstance(name, str) and name.isidentifier()) or iskeyword(name):
                raise PlaitError(f"{what}: {group} has {name!r}, which is not a name: letters, digits and _ only.")
            if [normalize("NFKC", n) for n in names].count(normalize("NFKC", name)) > 1:
                raise PlaitError(f"{what}: {group} has '{name}' twice: each needs a name of its own.")
    for group, example in (("gates", "('f', 'n')"), ("states", "('h',)")):
        if not getattr(cell, group):
            raise PlaitError(f"{what} has no {group}: name them, as in {group} = {example}.")
    taken = dict.fromkeys(NAMES, "a function or number of the texts")
    taken |= dict.fromkeys(OF_LAYERS, "a weight of every layer")
    for group in ("wx", "rh", "old", "new", "d_new", "params"):
        for name in labels(cell, group):
            if name in taken:
                found = name.removesuffix("_new") if group in ("new", "d_new") else name
                raise PlaitError(f"{what}: '{found}' clashes with {taken[name]}: choose another name.")
            taken[name] = f"'{name}', which stands for one of its {GROUPS[group]}"
    for name in cell.saved or ():
        if name in taken and name not in (*labels(cell, "wx"), *labels(cell, "rh")):  # those may be saved as they are
            raise PlaitError(f"{what}: saved '{name}' clashes with {taken[name]}: choose another name.")


GROUPS = {
    "wx": "W x + b",
    "rh": "R h + c",
    "old": "states",
    "new": "new states",
    "d_new": "gradients",
    "params": "params",
}
SIGNATURE = "step(wx, rh, state, [params,] [dt,] ops)"


def check_step(cell: type[Cell]) -> tuple[str, ...]:
    """-> which of the optional arguments it takes"""
    what = f"cell {cell.__name__}"
    step = getattr(cell, "step", None)
    if not callable(step):
        raise PlaitError(f"{what} has no step: write one as {SIGNATURE}.")
    arguments = signature(step).parameters
    names = tuple(arguments)
    optional = tuple(name for name in ("params", "dt") if name in names)
    plain = all(a.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for a in arguments.values())
    if names != ("wx", "rh", "state", *optional, "ops") or not plain:
        hint = "leave out self" if "self" in names else "the arguments in [] may be left out, the names stay"
        raise PlaitError(
            f"{what}: found step({', '.join(map(str, arguments.values()))}), expected {SIGNATURE}: {hint}."
        )
    if cell.params and "params" not in names:
        listed = ", ".join(cell.params)
        raise PlaitError(f"{what} has params {listed}, but its step does not take them: write {SIGNATURE}.")
    if "params" in names and not cell.params:
        raise PlaitError(f"{what}: step takes params, but the cell has none: name them, as in params = ('p',).")
    return optional


def results(cell: type[Cell], returned: Any) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """-> new states, saved"""
    what, several = f"cell {cell.__name__}: step", (tuple, list)
    new, saved = returned, None
    if cell.saved is not None:
        if not isinstance(returned, several) or len(returned) != 2 or not isinstance(returned[1], several):
            raise PlaitError(f"{what} must return two tuples, the new states and what is saved, for it declares saved.")
        new, saved = returned[0], tuple(returned[1])
        if len(saved) != len(cell.saved):
            expected = f"{len(cell.saved)} ({', '.join(cell.saved)})"
            raise PlaitError(f"{what} saves {len(saved)} values, expected {expected}: saved must name each.")
    new = tuple(new) if isinstance(new, several) else (new,)
    if any(isinstance(value, several) for value in new):
        raise PlaitError(
            f"{what} returns tuples within a tuple: return the new states alone, or declare what is saved beside them."
        )
    if len(new) != len(cell.states):
        expected = f"{len(cell.states)} ({', '.join(cell.states)})"
        raise PlaitError(f"{what} returns {len(new)} new states, expected {expected}: return one for each.")
    return new, saved


def geometric(f: Any, dt: float) -> tuple[Any, Any]:
    """f**dt and 1 + f + ... + f**(dt-1), from + and * alone, so that both can be traced."""
    if dt < 1 or dt % 1:
        raise PlaitError(f"dt {dt}: this cell's step can be lengthened by whole numbers only (1, 2, 3, ...).")
    if dt == 1:
        return f, 1.0
    if dt % 2:
        power, total = geometric(f, dt - 1)
        return power * f, total + power
    power, total = geometric(f, dt // 2)
    return power * power, total * (1.0 + power)
