"""What users give to a layer, checked and brought into one form."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..engines.lengths import padded_layout
from ..errors import PlaitError
from ..layout import Layout, Padding, check_lengths, dense_layout
from ..solvers import Solver, parse
from .tensor_kinds import is_recording

State = Any  # a tensor (L*D, B, P), for LSTM the pair of h (L*D, B, P) and c (L*D, B, H)


class Given(NamedTuple):
    """A call in the form that engines take: rows (T, B, I) or (N, I), or padded as the layout says."""

    x: Tensor
    states: Sequence[Tensor] | None  # per state (L*D, B, .), in the order of the layout
    layout: Layout
    form: str  # of the input: dense, batch first, one (sequence), packed, padded, gathered
    input: Any
    permutation: Tensor | None = None  # (B,): the numbers of the sequences, longest first, if they were sorted
    padding: Padding | None = None  # where the rows are in a padded input whose rows were gathered

    def converted(self, dtype: torch.dtype) -> "Given":
        return self._replace(x=self.x.to(dtype), states=converted(self.states, dtype))

    def results(self, rows: Tensor, last: Sequence[Tensor]) -> tuple[Any, State]:
        """The outputs and the last states in the form of the input."""
        form = self.form
        if form == "batch first":
            rows = rows.transpose(0, 1)
        elif form == "one":
            rows, last = rows.squeeze(1), [s.squeeze(1) for s in last]
        elif form == "packed":
            _, batch_sizes, permutation, inverse = self.input
            last = [permuted(s, inverse) for s in last]
            return PackedSequence(rows, batch_sizes, permutation, inverse), state_of(last)
        elif self.padding is not None:
            rows, last = self.padding.scattered(rows), self.padding.unsorted(last)
        return rows, last[0] if len(last) == 1 else tuple(last)


def uniform(layer: Any, input: Any, hx: State | None, lengths: Any, takes_padded: bool) -> Given:
    """Checks the arguments of a layer. takes_padded: the engine gathers the rows of a padded batch itself."""
    if isinstance(input, PackedSequence):
        if lengths is not None:
            raise PlaitError("lengths were given with a PackedSequence, which has its own: leave lengths out.")
        return of_packed(layer, input, hx)
    states = None if hx is None else states_of(hx)
    if lengths is not None:
        return of_lengths(layer, input, states, lengths, takes_padded)
    dims = input.dim()
    if dims != 3 and dims != 2:
        raise ValueError(f"{type(layer).__name__}: Expected input to be 2D or 3D, got {dims}D instead")
    x = input if dims == 3 else input.unsqueeze(1)
    form = "one" if dims == 2 else "batch first" if layer.batch_first else "dense"
    if form == "batch first":
        x = x.transpose(0, 1)
    if states is not None:
        if any(s.dim() != dims for s in states):
            found = ", ".join(f"{s.dim()}-D" for s in states)
            raise RuntimeError(f"For a {dims}-D input, hx should also be {dims}-D, but got {found}")
        states = states if dims == 3 else tuple(s.unsqueeze(1) for s in states)
    T, B, I = x.shape
    if layer.input_size != I or input.dtype is not layer._flat_weights[0].dtype or states is not None:
        check_arguments(layer, x, states, None, B)
    is_symbolic = torch.compiler.is_compiling() or type(T) is not int or type(B) is not int
    layout = Layout(T, B) if is_symbolic else dense_layout(T, B)
    return Given(x.contiguous(), states, layout, form, input)


def of_packed(layer: Any, input: PackedSequence, hx: State | None) -> Given:
    rows, batch_sizes, permutation, _ = input
    states = None if hx is None else tuple(permuted(s, permutation) for s in states_of(hx))
    layout = Layout.ragged(batch_sizes, batch_of(permutation, states))
    check_arguments(layer, rows, states, batch_sizes, layout.B)
    if not torch.compiler.is_compiling():
        layout.check_rows(rows, layer.input_size)
    return Given(rows, states, layout, "packed", input, permutation)


def of_lengths(layer: Any, input: Tensor, states: Sequence[Tensor] | None, lengths: Any, takes_padded: bool) -> Given:
    """A padded batch: each sequence runs to its own end, and the output is zero beyond it."""
    if input.dim() != 3:
        raise PlaitError(f"lengths need a batch: expected a 3-D input, found {input.dim()}-D; add a batch axis.")
    check_recorded(lengths)
    T, B = input.shape[:2][:: -1 if layer.batch_first else 1]
    if B == 0:
        check_lengths(lengths, T, B)
        return uniform(layer, input, states, None, takes_padded)
    check_arguments(layer, input, states, None, B)
    if takes_padded:
        return Given(input.contiguous(), states, padded_layout(lengths, T, B, layer.batch_first), "padded", input)
    layout, padding = gathering(layer, input, lengths)
    mine = None if states is None else padding.sorted(states)
    return Given(padding.gathered(input), mine, layout, "gathered", input, layout.permutation, padding)


def gathering(layer: Any, input: Tensor, lengths: Any) -> tuple[Layout, Padding]:
    """The layout of a padded input, for engines that take rows only."""
    a, b = input.shape[:2]
    T, B = (b, a) if layer.batch_first else (a, b)
    find = torch.compiler.disable(laid_out) if torch.compiler.is_compiling() else laid_out
    layout, *index = find(lengths, T, B, layer.batch_first)
    places, order, inverse = (t.to(input.device) for t in index)
    return layout, Padding((a, b), places, order, inverse)


# --- checks ----------------------------------------------------------------------------------------------------------
def check_ids(ids: Any) -> Tensor:
    try:
        found = torch.as_tensor(ids, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    if found.dim() != 1 or found.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise PlaitError(f"ids {ids!r:.60}: expected whole numbers, one for each sequence of the batch.")
    return found


def check_solver(solver: Solver | str) -> Solver:
    """A name is read as --solver reads it: shooting, shooting:tolerance=1e-4."""
    if isinstance(solver, str):
        return parse(solver)
    if not isinstance(solver, Solver):
        raise PlaitError(f"solver {solver!r}: expected a solver such as plait.Shooting(), or its name.")
    return solver


def check_arguments(layer: Any, input: Tensor, hx: Sequence[Tensor] | None, batch_sizes: Tensor | None, B: int) -> None:
    """With torch's own checks and messages, where torch has them."""
    layer.check_input(input, batch_sizes)
    if hx is None:
        return
    count, names = layer.num_layers * (2 if layer.bidirectional else 1), layer._plait_cell.states
    if len(hx) != len(names):
        raise RuntimeError(f"hx: expected {len(names)} tensors ({', '.join(names)}), got {len(hx)}")
    for k, s in enumerate(hx):
        width = layer.proj_size or layer.hidden_size if k == 0 else layer.hidden_size
        layer.check_hidden_size(s, (count, B, width))
        if (s.dtype, s.device) != (input.dtype, input.device):
            found = f"{input.dtype} on {input.device}, {s.dtype} on {s.device}"
            raise RuntimeError(f"Input and hidden tensors are not alike: {found}")


def check_packed(layer: nn.RNNBase, input: PackedSequence) -> None:
    """torch's own layers do not check it: they accept sizes of 0, and more rows than the sum of the sizes."""
    if not torch.compiler.is_compiling():
        Layout.ragged(input.batch_sizes).check_rows(input.data, layer.input_size)


def check_recorded(lengths: Any) -> None:
    """A graph of make_fx has the lengths of the call that was recorded: a tensor would be no argument of it."""
    given = lengths if isinstance(lengths, list | tuple) else [lengths]
    if is_recording() and any(isinstance(n, Tensor) for n in given):
        raise PlaitError("make_fx records lengths as constants, and found a tensor: give numbers if that is meant.")


# --- forms -----------------------------------------------------------------------------------------------------------
def laid_out(lengths: Any, T: int, B: int, batch_first: bool) -> tuple[Layout, Tensor, Tensor, Tensor]:
    """The layout of a user's lengths, where its rows are in the padded input, and the order of its sequences.
    torch.compile must not trace this: it would turn NumPy's functions into torch's.
    """
    layout = Layout.of_lengths(lengths, T, B)
    assert layout.permutation is not None
    assert layout.inverse is not None
    return layout, layout.places(T, batch_first), layout.permutation, layout.inverse


def batch_of(permutation: Tensor | None, hx: Sequence[Tensor] | None) -> int | None:
    """How many sequences a packing has, if a shape tells it."""
    if permutation is not None:
        return permutation.shape[0]
    return hx[0].shape[1] if hx and hx[0].dim() == 3 else None


def permuted(s: Tensor, permutation: Tensor | None) -> Tensor:
    return s if permutation is None else s.index_select(1, permutation)


def state_of(finals: Sequence[Tensor]) -> State:
    return tuple(finals) if len(finals) > 1 else finals[0]


def states_of(hx: State) -> tuple[Tensor, ...]:
    return tuple(hx) if isinstance(hx, tuple | list) else (hx,)


def converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, PackedSequence):
        return value.to(dtype)
    if isinstance(value, tuple | list):
        return tuple(converted(v, dtype) for v in value)
    return None if value is None else value.to(dtype)
