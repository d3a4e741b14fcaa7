"""torch.nn's recurrent cells with another forward: the same arguments, parameters and results."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import Proxy

from .. import cells, engines
from ..cells import Cell
from ..errors import PlaitError
from ..layout import Layout, dense_layout
from . import autograd, custom_op
from .arguments import State, converted, state_of, states_of
from .autograd import no_trace, without_autocast
from .call import SERIAL, Call
from .one_step import LastStep, last_step
from .pinned import Block
from .precision import Precision, check_possible, check_precision, in_own_precision, is_ordinary, precision_of
from .swappable import Swappable
from .tensor_kinds import are_plain, are_readable

NAMES = "weight_ih", "weight_hh", "bias_ih", "bias_hh"


class StepCell(Swappable, nn.RNNCellBase):
    """What the cells share. Parameters are read at each call, so parametrizations and functional_call work."""

    _plait_block: Block | None = None  # of `plait.packed` (pinned.py), if the cell is in one
    _plait_step: LastStep | None = None  # if the last call was without gradients

    def __init__(self, *args: Any, engine: str = "auto", precision: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine, self.precision = engines.check_name(engine), check_precision(precision)

    def extra_repr(self) -> str:
        found = super().extra_repr() + ("" if self.engine == "auto" else f", engine={self.engine!r}")
        return found + ("" if self.precision is None else f", precision={self.precision!r}")

    def forward(self, input: Any, hx: State | None = None) -> State:
        """As torch.nn's: the new state.

        input: (B, I), or (I,) without a batch
        hx: the old state, (B, H) or (H,), for an LSTM the pair of h and c; zeros if it is left out
        """
        weights = self._plait_weights()
        step = None if torch.compiler.is_compiling() else self._plait_step  # once: another thread may drop it
        if step is not None:
            found = step.again(self._plait_block, self._plait_settings(), input, hx, weights)
            if found is not None:
                return state_of(found)
        cell, weight = self._plait_cell, weights[0]
        if isinstance(input, Proxy):
            raise no_trace("torch.fx", cell)
        engine = self._plait_engine(weight.dtype, weight.device)
        # torch's operators have all rules of vmap and forward derivatives
        is_transformed = autograd.in_functorch() or forward_ad._current_level >= 0
        if engine == "torch" or (self.engine == "auto" and is_transformed and not torch.compiler.is_compiling()):
            if self.precision == "bf16":
                check_possible(self, "torch", weight.dtype, weight.device.type)
            state: State = in_own_precision(self.precision, weight, super().forward, input, hx)
            return state
        if is_ordinary(self.precision, weight):
            return self._plait_run(cell, engine, input, hx, weights)
        chosen = precision_of(self, engine, input, hx, weight)
        with without_autocast(weight.device):
            given = chosen.inside(input, hx, weight.dtype)
            new = self._plait_run(cell, engine, *given, weights, chosen)
            return chosen.outside(states_of(new)[0], new)[1]

    @classmethod
    def _plait_knows(cls, engine: str) -> bool:
        return not engine.startswith("cuda")

    def _plait_engine(self, dtype: torch.dtype, device: torch.device) -> str:
        if not self._plait_knows(self.engine):
            raise PlaitError(f"{self.engine} runs layers, {self._get_name()} is a cell: use engine='auto' or 'torch'.")
        return super()._plait_engine(dtype, device)

    def _plait_weights(self) -> list[Any]:
        names = NAMES if self.bias else NAMES[:2]
        try:
            return [*map(self._parameters.__getitem__, names)]
        except KeyError:  # a parametrized one is not there: it is evaluated here, once in a call
            return [getattr(self, name) for name in names]

    def _plait_settings(self) -> tuple[Any, ...]:
        """What may change between two calls besides tensors."""
        return self.engine, self.precision, self._plait_cell

    def _plait_fits(self, input: Tensor, states: Sequence[Tensor] | None, weight: Tensor) -> bool:
        """Whether the arguments are as they should be."""
        shape = input.shape[:-1]
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            return False
        if states is not None and len(states) != len(self._plait_cell.states):
            return False
        kind, width = (weight.dtype, weight.device), (*shape, self.hidden_size)
        if any(tuple(s.shape) != width or (s.dtype, s.device) != kind for s in states or ()):
            return False
        return (input.dtype, input.device) == kind

    def _plait_run(
        self,
        cell: type[Cell],
        engine: str,
        input: Tensor,
        hx: State | None,
        weights: Sequence[Tensor],
        precision: Precision | None = None,
    ) -> State:
        """By one of plait's engines."""
        states = None if hx is None else states_of(hx)
        if not self._plait_fits(input, states, weights[0]):
            return super().forward(input, hx)  # torch says what is wrong
        is_batched, compiling = input.dim() == 2, torch.compiler.is_compiling()
        x, given = (input, states or ()) if is_batched else (input[None], [s[None] for s in states or ()])
        if precision is not None and weights[0].dtype is not precision.type:
            x, given, weights = (converted(some, precision.type) for some in (x, tuple(given), tuple(weights)))
        tensors, B = [*given, *weights], x.shape[0]
        opaque = compiling or not (are_plain((x, *tensors)) or are_readable((x, *tensors)))
        is_step = not opaque and engine == "fused" and B > 0
        call = Call(
            cell,
            engine,
            Layout(1, B) if compiling or type(B) is not int else dense_layout(1, B),
            1,
            self.bias,
            states is not None,
            self.hidden_size,
            solver=SERIAL,  # said, because dynamo cannot trace an object that is a default
            block=self._plait_block,
            step=is_step,
            rounded=precision is not None and precision.rounded,
        )
        dynamo = "torch._dynamo" in sys.modules
        apply = custom_op.apply if opaque else autograd.undisturbed() if dynamo else autograd.apply
        if is_step:
            outputs: Sequence[Tensor] = apply(call, x, tensors)
        else:  # as a layer of one step
            rows, _, *rest = apply(call, x[None], [*[s[None] for s in given], *weights])
            outputs = [rows[0], *[s[0] for s in rest]]
        if not is_batched:
            outputs = [s[0] for s in outputs]
        if is_step and not torch.is_grad_enabled() and call.rounded == (self.precision == "bf16"):
            found = last_step(call, self._plait_settings(), (input, *(states or ())), outputs, weights)
            self.__dict__["_plait_step"] = found
        return state_of(outputs)


class RNNCell(StepCell, nn.RNNCell):
    """torch.nn.RNNCell, run by one of plait's engines. Arguments, parameters and results are the same.

        cell = plait.RNNCell(
            input_size, hidden_size, bias=True, nonlinearity="tanh", device=None, dtype=None, engine="auto",
            precision=None,
        )
        h = cell(x, hx=None)

    `engine` and `precision` are those of plait.LSTMCell.
    """

    @property
    def _plait_cell(self) -> type[Cell]:  # type: ignore[override]
        found = cells.BY_MODE.get(f"RNN_{self.nonlinearity}".upper())
        if found is None:
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return found


class LSTMCell(StepCell, nn.LSTMCell):
    """torch.nn.LSTMCell, run by one of plait's engines. Arguments, parameters and results are the same.

        cell = plait.LSTMCell(
            input_size, hidden_size, bias=True, device=None, dtype=None, engine="auto", precision=None
        )
        h, c = cell(x, hx=None)

    `engine` is what runs it: `plait engines` lists them. Forward and backward are one launch each. Inside
    `plait.packed` the weights are packed once. `precision` is that of plait.LSTM.
    """

    _plait_cell = cells.LSTM


class GRUCell(StepCell, nn.GRUCell):
    """torch.nn.GRUCell, run by one of plait's engines. Arguments, parameters and results are the same.

        cell = plait.GRUCell(input_size, hidden_size, bias=True, device=None, dtype=None, engine="auto", precision=None)
        h = cell(x, hx=None)

    `engine` and `precision` are those of plait.LSTMCell.
    """

    _plait_cell = cells.GRU
