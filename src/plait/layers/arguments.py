"""What users give to a layer, checked and brought into one form."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from ..errors import PlaitError
from ..layout import Layout
from ..solvers import Solver
from .autograd import no_trace
from .readable import is_recording

State = Any  # a tensor (L*D, B, P), for LSTM the pair of h (L*D, B, P) and c (L*D, B, H)


def check_no_proxy(layer: Any, input: Any) -> None:
    if isinstance(input, Proxy):
        raise no_trace("torch.fx", layer._plait_cell)


def check_ids(ids: Any) -> Tensor:
    try:
        found = torch.as_tensor(ids, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    if found.dim() != 1 or found.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise PlaitError(f"ids {ids!r:.60}: expected whole numbers, one for each sequence of the batch.")
    return found


def check_solver(solver: Solver) -> Solver:
    if not isinstance(solver, Solver):
        raise PlaitError(f"solver {solver!r}: expected a solver such as plait.Serial().")
    return solver


def check_arguments(
    layer: Any, input: Tensor, hx: tuple[Tensor, ...] | None, batch_sizes: Tensor | None, B: int
) -> None:
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


def laid_out(lengths: Any, T: int, B: int, batch_first: bool) -> tuple[Layout, Tensor]:
    """The layout of a user's lengths, and where its rows are in the padded input. torch.compile must not trace this: it
    would turn NumPy's functions into torch's.
    """
    layout = Layout.of_lengths(lengths, T, B)
    return layout, layout.places(T, batch_first)


def batch_of(permutation: Tensor | None, hx: tuple[Tensor, ...] | None) -> int | None:
    """How many sequences a packing has, if a shape tells it."""
    if permutation is not None:
        return permutation.shape[0]
    return hx[0].shape[1] if hx and hx[0].dim() == 3 else None


def permuted(s: Tensor, permutation: Tensor | None) -> Tensor:
    return s if permutation is None else s.index_select(1, permutation)


def state_of(finals: tuple[Tensor, ...]) -> State:
    return finals if len(finals) > 1 else finals[0]


def states_of(hx: State) -> tuple[Tensor, ...]:
    return tuple(hx) if isinstance(hx, tuple | list) else (hx,)


def converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, PackedSequence):
        return value.to(dtype)
    if isinstance(value, tuple | list):
        return tuple(converted(v, dtype) for v in value)
    return None if value is None else value.to(dtype)
