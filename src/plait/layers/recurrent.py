"""torch.nn's recurrent layers with another forward: the same arguments, parameters and results, and `lengths=`."""

from collections.abc import Sequence
from contextvars import ContextVar
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .. import engines
from ..cells import Cell
from ..cells.trace import why_untraceable
from ..engines.padding import Padding
from ..errors import PlaitError
from ..kernels.pool import PLAIN
from ..layout import Layout, check_lengths
from ..solvers import EXACT, Pasts, Serial, Solve, Solver, Solves, Visit
from . import autograd, custom_op, on_device
from .arguments import (
    State,
    batch_of,
    check_arguments,
    check_ids,
    check_no_proxy,
    check_packed,
    check_recorded,
    check_solver,
    converted,
    laid_out,
    permuted,
    state_of,
    states_of,
)
from .autograd import is_autocast, no_jvp, no_vmap, without_autocast
from .call import SERIAL, Call
from .readable import are_readable
from .ready import Ready, all_learn
from .stack import Stack

MOST_TOGETHER = 1 << 22  # numbers of gates and weights of a stack that is one function
IDS: ContextVar[Tensor | None] = ContextVar("ids", default=None)  # of the call that is under way


class Recurrent(nn.RNNBase):
    """What the layers share. Parameters are read at each call, so parametrizations and functional_call work."""

    _plait_cell: type[Cell]
    engine = "auto"  # of a layer that `accelerate` has swapped in place; a constructor sets it on the instance
    solver: Solver = SERIAL
    _plait_held = None  # the block of `plait.packed` (held.py), if the layer is in one
    _plait_pasts: Pasts | None = None  # what the solver has learnt of this layer
    _plait_visits: Sequence[Visit | None] = ()  # of the last call
    _plait_ready: Ready | None = None  # for a call like the last one
    _plait_time: Any = None  # the ranks that share the steps out (ranks/time.py), if there are several

    def __init__(self, *args: Any, engine: str = "auto", solver: Solver = SERIAL, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine, self.solver = engines.check_name(engine), check_solver(solver)

    def extra_repr(self) -> str:
        engine = "" if self.engine == "auto" else f", engine={self.engine!r}"
        return super().extra_repr() + engine + ("" if self.solver == SERIAL else f", solver={self.solver}")

    @property
    def last_solve(self) -> Solves:
        """How the solver fared in the last call, over all layers and directions."""
        visits = [v for v in self._plait_visits if v is not None]
        there, back = ([s for v in visits if (s := getattr(v, name)) is not None] for name in ("forward", "backward"))
        exact = None if visits else EXACT
        return Solves(Solve.together(there) if there else EXACT, Solve.together(back) if back else exact)

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        ids: Tensor | Sequence[int] | None = None,
    ) -> tuple[Any, State]:
        """As torch.nn's: the outputs of all steps, and the last states.

        input: (T, B, I), or (B, T, I) with batch_first, or (T, I) without a batch, or a PackedSequence
        hx: the initial states, zeros if they are left out
        lengths: (B,), if the sequences of a padded batch have different lengths. Each runs to its own end. The outputs
        beyond it are zero, and the last states are those at its end.
        ids: (B,), whole numbers that say which sequences these are, for a solver that stores states of them
        """
        if hx is None and lengths is None and ids is None and not torch.compiler.is_compiling():
            ready = self._plait_ready
            if ready is not None and ready.fits(self, input):
                x, weights = cast(Tensor, input), self._plait_weights(2 if self.bidirectional else 1)
                if all_learn(x, weights) and are_readable(chain(*weights)):  # the sizes are the same
                    x = (x.transpose(0, 1) if self.batch_first else x).contiguous()
                    y, *last = autograd.apply(ready, x, [*chain(*weights)])
                    return y.transpose(0, 1) if self.batch_first else y, state_of(tuple(last))
                return self._plait_engine("fused", input, hx)
        check_no_proxy(self, input)
        if ids is not None:
            token = IDS.set(check_ids(ids))  # other threads may call this layer with others
            try:
                return self.forward(input, hx, lengths)
            finally:
                IDS.reset(token)
        if lengths is not None:
            return self._plait_lengths(input, hx, lengths)
        cell = self._plait_cell
        weight: Tensor = cast(Tensor, self._flat_weights[0])  # getattr would evaluate a parametrization
        engine = engines.choose(self.engine, cell, weight.dtype, weight.device)
        if weight.device.type == "cuda" or engine == "cuda":
            engine = on_device.engine_for(self, engine, input, weight)
        if engine == "torch" and cell.mode is not None and self.solver == SERIAL:
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
        except RuntimeError as e:  # torch's own layers have no rule for it, either: say it in our words
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
        check_recorded(lengths)
        T, B = input.shape[:2][:: -1 if self.batch_first else 1]
        if B == 0:
            check_lengths(lengths, T, B)
            return self.forward(input, hx)
        states = None if hx is None else states_of(hx)
        if self._plait_takes_padded(input, states or ()):  # then all of it is one function
            padding = Padding(lengths, T, B, self.batch_first)
            check_arguments(self, input, states, None, B)
            y, finals = self._plait_stack("fused", input, states, padding.layout, padding=padding)
            return y, state_of(finals)
        find = torch.compiler.disable(laid_out) if torch.compiler.is_compiling() else laid_out
        layout, rows = find(lengths, T, B, self.batch_first)
        rows = rows.to(input.device)
        y, state = self.forward(layout.packed_sequence(input.flatten(0, 1).index_select(0, rows)), hx)
        padded = y.data.new_zeros(T * B, y.data.shape[1]).index_copy_(0, rows, y.data)
        return padded.unflatten(0, input.shape[:2]), state

    def _plait_engine(self, engine: str, input: Tensor | PackedSequence, hx: State | None) -> tuple[Any, State]:
        if isinstance(input, PackedSequence):
            rows, batch_sizes, permutation, inverse = input
            hx = None if hx is None else tuple(permuted(s, permutation) for s in states_of(hx))
            layout = Layout.ragged(batch_sizes, batch_of(permutation, hx))
            check_arguments(self, rows, hx, batch_sizes, layout.B)
            y, finals = self._plait_stack(engine, rows, hx, layout, permutation)
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
        self,
        engine: str,
        x: Tensor,
        hx: tuple[Tensor, ...] | None,
        layout: Layout,
        permutation: Tensor | None = None,
        padding: Padding | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Rows (N, I) or (T, B, I) through all layers -> as many (., D*P), last states (L*D, B, .)

        padding: of x and of the result, if x is padded and `_plait_takes_padded` was asked
        """
        D, held = 2 if self.bidirectional else 1, self._plait_held
        part = None
        if self._plait_time is not None and self.solver.sweeps and torch.is_grad_enabled():
            part = self._plait_time.part(layout)
        if part is not None:
            x, layout = part.take(x), part.layout
            hx = None if hx is None else tuple(s[:, : layout.B].contiguous() for s in part.shared(hx))
        L, solver = self.num_layers, self.solver
        call = Call(self._plait_cell, engine, layout, D, self.bias, hx is not None, solver, held)
        visits = self._plait_visit(D, layout.B, permutation, part) if solver.sweeps else None
        calls = [call] * L
        if padding is not None:
            calls = [call._replace(padding=padding.of_layer(k, L)) for k in range(L)]
        if held is not None or visits is not None:
            mine = [() if visits is None else visits[k * D : (k + 1) * D] for k in range(L)]
            calls = [calls[k]._replace(number=k, visits=mine[k]) for k in range(L)]
        weights = self._plait_weights(D)
        dropout = self.dropout if self.training else 0.0
        states, finals = hx or (), []
        compiling = torch.compiler.is_compiling()
        readable = compiling or are_readable((x, *states, *chain(*weights)))
        if not readable and visits is not None:
            raise PlaitError(f"solver {solver} needs numbers, not fake tensors or make_fx: use plait.Serial() there.")
        opaque = (compiling or not readable) and why_untraceable(call.cell) is None and visits is None
        is_one = padding is not None or (
            not opaque and visits is None and self._plait_is_one(engine, x, layout.N, weights)
        )
        if is_one:
            is_special = any(o is not None for o in (padding, hx, held, layout.batch_sizes))
            if engine == "fused" and not is_special:
                self.__dict__["_plait_ready"] = Ready(self, x, calls, dropout)
            x, *last = autograd.apply(Stack(calls, dropout), x, [*states, *chain(*weights)])
            return x, tuple(last)
        for k in range(L):
            tensors = [s[k * D : (k + 1) * D] for s in states]
            tensors += weights[k] if part is None else part.shared(weights[k])
            x, *last = custom_op.apply(call, x, tensors) if opaque else autograd.apply(Stack([calls[k]]), x, tensors)
            finals.append(last)
            if dropout and k < L - 1:
                x = nn.functional.dropout(x, dropout) if part is None else part.dropout(x, dropout)
        if part is not None:
            x, finals = part.give(x), [part.last(last, D) for last in finals]
        return x, tuple(finals[0] if L == 1 else [torch.cat(some) for some in zip(*finals, strict=True)])

    def _plait_takes_padded(self, input: Tensor, states: Sequence[Tensor]) -> bool:
        """Whether the function of the layers takes a padded input as it is."""
        if torch.compiler.is_compiling() or type(input) not in PLAIN or not input.is_cpu or autograd.in_functorch():
            return False
        weight = cast(Tensor, self._flat_weights[0])
        if engines.choose(self.engine, self._plait_cell, weight.dtype, weight.device) != "fused":
            return False
        if type(self.solver) is not Serial or self._plait_time is not None or is_autocast(weight.device):
            return False
        own = [self._parameters.get(name) for names in self._all_weights for name in names]
        if not are_readable((input, *states, *own)):
            return False
        if self.num_layers == 1:
            return True
        if any(weight is None for weight in own):
            return False  # a parametrization is evaluated once in a call
        weights, N = self._plait_weights(2 if self.bidirectional else 1), input.shape[0] * input.shape[1]
        return self._plait_is_one("fused", input, N, weights)

    def _plait_weights(self, D: int) -> list[list[Tensor]]:
        """Per layer, those of all its directions."""
        own: dict[str, Any] = self._parameters  # a parametrized one is not there
        found = [[own[n] if n in own else getattr(self, n) for n in names] for names in self._all_weights]
        return found if D == 1 else [found[k] + found[k + 1] for k in range(0, len(found), 2)]

    def _plait_is_one(self, engine: str, x: Tensor, N: int, weights: Sequence[Sequence[Tensor]]) -> bool:
        """Whether all layers are one function. It keeps all tapes until its way back ends, where one function for each
        layer frees its own: so it is for small stacks. Layers below the first that learns need no tape at all.
        """
        if len(weights) == 1:
            return True
        gates = N * self.hidden_size * len(self._plait_cell.gates) * len(self._all_weights)
        if engine != "fused" or gates + sum(w.numel() for w in chain(*weights)) > MOST_TOGETHER:
            return False
        return all_learn(x, weights)

    def _plait_visit(self, D: int, B: int, permutation: Tensor | None, part: Any) -> tuple[Visit, ...]:
        """One for each layer and direction."""
        pasts = self._plait_pasts
        if pasts is None or pasts.solver != self.solver.text:
            pasts = self.__dict__["_plait_pasts"] = Pasts(self.solver.text)
        ids = IDS.get()
        if ids is not None:
            whole = B if part is None else part.whole.B
            if len(ids) != whole:
                raise PlaitError(f"{len(ids)} ids for a batch of {whole}: expected one for each sequence.")
            ids = (ids if permutation is None else ids[permutation])[:B]
        links = [None if part is None else part.link(d == 1) for d in range(D)]
        visits = [
            Visit(pasts.past(layer, d), ids, links[d], f"layer {layer}" + ", reverse" * d)
            for layer in range(self.num_layers)
            for d in range(D)
        ]
        self.__dict__["_plait_visits"] = visits
        return tuple(visits)
