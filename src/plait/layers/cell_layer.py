"""Layers of any cell: one of plait's, or one of your own."""

import warnings
from typing import Any

import torch
from torch import nn

from .. import cells, engines
from ..cells import Cell
from ..cells.load import is_cell
from ..cells.ops import tensors
from ..cells.trace import trace, why_untraceable
from ..errors import PlaitError
from .recurrent import Recurrent
from .twins import TWINS


class CellLayer(Recurrent):
    """A layer of any cell, with the arguments and the parameter names of torch.nn's. Made by `plait.layer`."""

    def __init__(
        self,
        cell: type[Cell],
        *args: Any,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        # torch checks the arguments; on "meta" it allocates nothing
        super().__init__("LSTM", *args, device="meta", dtype=dtype, **options)
        self.mode, self._plait_cell = cell.name, cell
        if self.proj_size:
            check_projection(cell, self.proj_size)
        made: dict[str, Any] = {"device": torch.empty(0, device=device).device, "dtype": self.weight_ih_l0.dtype}
        rows = len(cell.gates) * self.hidden_size
        for name, p in list(self._parameters.items()):
            assert p is not None
            shape = p.shape if name.startswith("weight_hr") else (rows, *p.shape[1:])
            self.register_parameter(name, nn.Parameter(torch.empty(shape, **made)))
        for names in self._all_weights:
            for param in cell.params:
                name = param + names[0].removeprefix("weight_ih")
                self.register_parameter(name, nn.Parameter(torch.empty(self.hidden_size, **made)))
                names.append(name)
        self._flat_weights_names = [name for names in self._all_weights for name in names]
        self._init_flat_weights()
        self.reset_parameters()

    def flatten_parameters(self) -> None:
        """Does nothing: it is for cuDNN, which has no such cell."""

    def extra_repr(self) -> str:
        return f"{self._plait_cell.__name__}, {super().extra_repr()}"


def check_projection(cell: type[Cell], proj_size: int) -> None:
    why = why_untraceable(cell)
    if why is not None:
        raise PlaitError(f"proj_size {proj_size}: whether the step reads h is not known. {why} Leave proj_size out.")
    if trace(cell).reads_h:
        raise PlaitError(
            f"proj_size {proj_size}: the step of cell {cell.name} reads h itself, and a projection leaves another "
            "number of units: leave proj_size out, or let the step use h through R h alone."
        )


def check_by_torch(cell: type[Cell], weight: torch.Tensor, why: str) -> None:
    """A step that cannot be traced may still run on tensors, or it may just be wrong: one step tells."""
    H = weight.shape[0] // len(cell.gates)
    gate, vector = torch.ones(2, H, dtype=weight.dtype), torch.ones(H, dtype=weight.dtype)
    gates, state, params = [gate] * len(cell.gates), [gate] * len(cell.states), [vector] * len(cell.params)
    try:
        with torch.random.fork_rng([]), torch.no_grad():
            new = cell.advance(tuple(gates), tuple(gates), tuple(state), tuple(params), 1, tensors)
            found = [tuple(value.shape) for value in new]
    except Exception as e:
        raise PlaitError(f"{why} Engine 'torch' cannot run it either: {type(e).__name__}: {e}") from e
    if found != [(2, H)] * len(found):
        raise PlaitError(f"{why} On tensors its new states are {found}: expected {(2, H)} each, as the old ones are.")


class ImplicitGRU(CellLayer):
    """A GRU that takes an implicit step: h' = (h + (1 - z) n) / (1 + (1 - z)).

        layer = plait.ImplicitGRU(input_size, hidden_size, num_layers=1, bias=True, batch_first=False, ...)
        y, h = layer(x, hx=None, lengths=None)

    Arguments and parameters are those of plait.GRU.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        if "proj_size" in options:
            raise ValueError("proj_size argument is only supported for LSTM, not ImplicitGRU")
        super().__init__(cells.ImplicitGRU, *args, **options)

    def extra_repr(self) -> str:
        return super().extra_repr().partition(", ")[2]


def layer(cell: type[Cell] | str, input_size: int, hidden_size: int, *args: Any, **options: Any) -> Recurrent:
    """A layer of a cell: the class, or the name of one of plait's own (rnn, rnn_relu, lstm, gru, implicit_gru).

        layer = plait.layer(MGU, 64, 128, num_layers=2, bidirectional=True)
        y, h = layer(x)

    The arguments are those of torch.nn's layers, in their order: input_size, hidden_size, num_layers, bias,
    batch_first, dropout, bidirectional, proj_size, device, dtype; then engine, solver, precision and checkpoint, as
    plait.LSTM has them. The parameters have torch's names (weight_ih_l0, ...), with a block of rows for each gate. A
    vector p of the cell's own is p_l0, p_l0_reverse and so on. The state is one tensor, or a tuple if the cell has
    several.
    """
    if isinstance(cell, str):
        cell = cells.get(cell)
    if not is_cell(cell):
        raise PlaitError(
            f"cell {cell!r}: expected a class derived from plait.Cell, or one of {', '.join(cells.CELLS)}."
        )
    if cell is cells.ImplicitGRU:
        return ImplicitGRU(input_size, hidden_size, *args, **options)
    if cell.mode is not None and cells.BY_MODE.get(cell.mode) is cell:
        name, _, nonlinearity = cell.mode.partition("_")
        twin = next(twin for theirs, twin in TWINS.items() if theirs.__name__ == name)
        assert issubclass(twin, Recurrent)
        options |= {"nonlinearity": nonlinearity.lower()} if nonlinearity else {}
        return twin(input_size, hidden_size, *args, **options)
    made = CellLayer(cell, input_size, hidden_size, *args, **options)
    weight = made._parameters["weight_ih_l0"]
    assert weight is not None
    why = engines.get("fused").why_not(cell, weight.dtype, weight.device) if weight.device.type == "cpu" else None
    if why is not None and why_untraceable(cell) is not None:
        check_by_torch(cell, weight, why)
    if why is not None and made.engine == "auto":
        warnings.warn(f"{why} Engine 'auto' takes 'torch' for it, which is slower.", stacklevel=2)
    cells.key(cell)
    return made
