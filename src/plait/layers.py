"""torch.nn's recurrent layers with another forward: the same arguments, parameters and results, and `lengths=`."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence

from . import autograd, cells, engines, opaque
from .autograd import Call, is_autocast, no_jvp, no_vmap, without_autocast
from .cells import Cell
from .engines.torch import NATIVE
from .errors import PlaitError
from .layout import Layout

State = Any  # a tensor (L*D, B, P), for LSTM the pair of h (L*D, B, P) and c (L*D, B, H)


class Recurrent(nn.RNNBase):
    """What the layers share. Parameters are read at each call, so parametrizations and functional_call are seen."""

    engine = "auto"  # what a layer has that was swapped in place; a constructor's choice stands on the instance

    def __init__(self, *args: Any, engine: str = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine = engines.check(engine)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.engine == "auto" else f", engine={self.engine!r}")

    def forward(
        self, input: Tensor | PackedSequence, hx: State | None = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Any, State]:
        if lengths is not None:
            return self._plait_lengths(input, hx, lengths)
        cell = cell_of(self)
        weight: Tensor = cast(Tensor, self._flat_weights[0])  # to getattr it would evaluate a parametrization
        engine = engines.choose(self.engine, cell, weight.dtype, weight.device)
        if engine == "torch" and cell.name in NATIVE:
            return self._plait_native(input, hx)
        if is_autocast(weight.device):
            with without_autocast(weight.device):
                return self._plait_engine(engine, converted(input, weight.dtype), converted(hx, weight.dtype))
        return self._plait_engine(engine, input, hx)

    def _plait_native(self, input: Tensor | PackedSequence, hx: State | None) -> tuple[Any, State]:
        if isinstance(input, Tensor) and input.dim() == 3 and input.shape[1 if self.batch_first else 0] == 0:
            return self._plait_engine("torch", input, hx)  # torch refuses zero steps
        if isinstance(input, PackedSequence):
            check_packed(self, input)
        try:
            result: tuple[Any, State] = super().forward(input, hx)
        except RuntimeError as e:  # torch has no rule for its own layers; the reason is the same as ours
            if "Batching rule not implemented" in str(e):
                raise no_vmap("torch") from e
            if "forward AD" in str(e):
                raise no_jvp("torch") from e
            raise
        return result

    def _plait_lengths(self, input: Any, hx: State | None, lengths: Any) -> tuple[Tensor, State]:
        """Every sequence runs to its own end; the output is zero beyond it."""
        if isinstance(input, PackedSequence):
            raise PlaitError("lengths were given with a PackedSequence, which has its own: leave lengths out.")
        if input.dim() != 3:
            raise PlaitError(f"lengths need a batch: expected a 3-D input, found {input.dim()}-D; add a batch axis.")
        T, B = input.shape[:2][:: -1 if self.batch_first else 1]
        lay_out = torch.compiler.disable(laid_out) if torch.compiler.is_compiling() else laid_out
        layout, rows = lay_out(lengths, T, B, self.batch_first)
        if B == 0:
            return self.forward(input, hx)
        rows = rows.to(input.device)
        y, state = self.forward(layout.packed(input.flatten(0, 1).index_select(0, rows)), hx)
        padded = y.data.new_zeros(T * B, y.data.shape[1]).index_copy_(0, rows, y.data)
        return padded.unflatten(0, input.shape[:2]), state

    def _plait_engine(self, engine: str, input: Tensor | PackedSequence, hx: State | None) -> tuple[Any, State]:
        if isinstance(input, PackedSequence):
            rows, batch_sizes, permutation, inverse = input
            hx = None if hx is None else tuple(permuted(s, permutation) for s in states_of(hx))
            layout = Layout.ragged(batch_sizes)
            check_arguments(self, rows, hx, batch_sizes, layout.B)
            y, finals = self._plait_stack(engine, rows, hx, layout)
            finals = tuple(permuted(s, inverse) for s in finals)
            return PackedSequence(y, batch_sizes, permutation, inverse), state_of(finals)
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        batched = input.dim() == 3
        if hx is not None:
            hx = states_of(hx)
            if any(s.dim() != input.dim() for s in hx):
                found = ", ".join(f"{s.dim()}-D" for s in hx)
                raise RuntimeError(f"For a {input.dim()}-D input, hx should also be {input.dim()}-D, but got {found}")
        if batched:
            x = input.transpose(0, 1) if self.batch_first else input  # (T, B, I)
        else:
            x = input.unsqueeze(1)
            hx = None if hx is None else tuple(s.unsqueeze(1) for s in hx)
        T, B = x.shape[:2]
        check_arguments(self, x, hx, None, B)
        y, finals = self._plait_stack(engine, x.contiguous(), hx, Layout(T, B))
        if not batched:
            return y.squeeze(1), state_of(tuple(s.squeeze(1) for s in finals))
        return y.transpose(0, 1) if self.batch_first else y, state_of(finals)

    def _plait_stack(
        self, engine: str, x: Tensor, hx: tuple[Tensor, ...] | None, layout: Layout
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Rows (N, I) or (T, B, I) through all layers -> as many (., D*P), last states (L*D, B, .)"""
        cell, D = cell_of(self), 2 if self.bidirectional else 1
        call = Call(cell, engine, layout, D, self.bias, hx is not None)
        apply = opaque.apply if torch.compiler.is_compiling() else autograd.apply
        finals: list[list[Tensor]] = []
        own: dict[str, Any] = self._parameters  # a parametrized one is not there
        for layer in range(self.num_layers):
            mine = slice(layer * D, (layer + 1) * D)
            tensors = [] if hx is None else [s if self.num_layers == 1 else s[mine] for s in hx]
            for name in chain(*self._all_weights[mine]):
                tensors.append(own[name] if name in own else getattr(self, name))
            x, *last = apply(call, x, tensors)
            finals.append(last)
            if self.dropout and layer < self.num_layers - 1:
                x = nn.functional.dropout(x, self.dropout, self.training)
        return x, tuple(finals[0] if len(finals) == 1 else [torch.cat(some) for some in zip(*finals, strict=True)])


CELL_OF_MODE = {"RNN_TANH": "rnn", "RNN_RELU": "rnn_relu", "LSTM": "lstm", "GRU": "gru"}


class RNN(Recurrent, nn.RNN):
    """torch.nn.RNN, run by one of plait's engines."""


class LSTM(Recurrent, nn.LSTM):
    """torch.nn.LSTM, run by one of plait's engines."""


class GRU(Recurrent, nn.GRU):
    """torch.nn.GRU, run by one of plait's engines."""


class ImplicitGRU(Recurrent):
    """A GRU that takes an implicit step: h' = (h + (1 - z) n) / (1 + (1 - z)).

    Arguments and parameters are torch.nn.GRU's.
    """

    def __init__(self, *args: Any, engine: str = "auto", **kwargs: Any) -> None:
        if "proj_size" in kwargs:
            raise ValueError("proj_size argument is only supported for LSTM, not ImplicitGRU")
        super().__init__("GRU", *args, engine=engine, **kwargs)


def make(cell: str, *args: Any, **options: Any) -> Recurrent:
    """The layer of the cell of that name."""
    cells.get(cell)
    if cell == "rnn_relu":
        return RNN(*args, nonlinearity="relu", **options)
    return {"rnn": RNN, "lstm": LSTM, "gru": GRU, "implicit_gru": ImplicitGRU}[cell](*args, **options)


TWINS: dict[type[nn.Module], type[nn.Module]] = {nn.RNN: RNN, nn.LSTM: LSTM, nn.GRU: GRU}
Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, engine: str = "auto") -> Model:
    """Gives every torch.nn.RNN, LSTM and GRU in the model plait's forward, in place, and returns the model.

    Parameters, hooks, parametrizations, flags and devices stay as they are. Subclasses of your own are left alone. The
    engine is set for layers that were plait's before, too.
    """
    engines.check(engine)
    for module in model.modules():
        _swap(module, TWINS)
        if isinstance(module, Recurrent):
            module.engine = engine
    return model


def restore(model: Model) -> Model:
    """Undoes `accelerate`, also for layers made as plait.LSTM and so on. (ImplicitGRU, which torch lacks, stays.)"""
    for module in model.modules():
        if _swap(module, {ours: theirs for theirs, ours in TWINS.items()}):
            module.__dict__.pop("engine", None)
    return model


def _swap(module: nn.Module, twins: dict[type[nn.Module], type[nn.Module]]) -> bool:
    cls = type(module)
    if cls in twins:
        module.__class__ = twins[cls]
        return True
    if is_parametrized(module) and cls.__bases__[0] in twins:  # torch made a class for this one module: make its like
        body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        twin = twins[cls.__bases__[0]]
        module.__class__ = type(f"Parametrized{twin.__name__}", (twin,), body)
        return True
    return False


def cell_of(layer: nn.RNNBase) -> type[Cell]:
    return cells.CELLS["implicit_gru" if isinstance(layer, ImplicitGRU) else CELL_OF_MODE[layer.mode]]


def check_arguments(
    layer: nn.RNNBase, input: Tensor, hx: tuple[Tensor, ...] | None, batch_sizes: Tensor | None, B: int
) -> None:
    """With torch's own checks and torch's own words, as far as it has them."""
    layer.check_input(input, batch_sizes)
    if hx is None:
        return
    count, names = layer.num_layers * (2 if layer.bidirectional else 1), cell_of(layer).states
    if len(hx) != len(names):
        raise RuntimeError(f"hx: expected {len(names)} tensors ({', '.join(names)}), got {len(hx)}")
    for s, width in zip(hx, (layer.proj_size or layer.hidden_size, layer.hidden_size), strict=False):
        layer.check_hidden_size(s, (count, B, width))
        if (s.dtype, s.device) != (input.dtype, input.device):
            found = f"{input.dtype} on {input.device}, {s.dtype} on {s.device}"
            raise RuntimeError(f"Input and hidden tensors are not alike: {found}")


def check_packed(layer: nn.RNNBase, input: PackedSequence) -> None:
    """torch's own layers take sizes of 0, and more rows than the sizes add up to."""
    if not torch.compiler.is_compiling():
        Layout.ragged(input.batch_sizes).check_rows(input.data, layer.input_size)


def laid_out(lengths: Any, T: int, B: int, batch_first: bool) -> tuple[Layout, Tensor]:
    """Of a user's lengths, and where the rows stand in the padded input. Dynamo would make torch's operators of NumPy's
    here, so it must not look into it.
    """
    layout = Layout.of_lengths(lengths, T, B)
    return layout, layout.places(T, batch_first)


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
