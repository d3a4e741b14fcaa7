"""torch.nn's recurrent layers with another forward: the same arguments, parameters and results, and `lengths=`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from .. import engines
from ..cells import Cell
from ..cells.trace import why_untraceable
from ..engines.plan import Plan
from ..errors import PlaitError
from ..solvers import EXACT, Serial, Solve, Solver, Solves, Visit, WarmStarts
from . import autograd, cuda_choice, custom_op
from .arguments import (
    Given,
    State,
    check_ids,
    check_packed,
    check_solver,
    of_lengths,
    states_of,
    uniform,
)
from .autograd import in_functorch, is_recorded, no_jvp, no_trace, no_vmap, without_autocast
from .call import SERIAL, Call
from .one_step import LastStep, last_step
from .pinned import Block, is_in_a_block
from .precision import Precision, check_precision, in_own_precision, is_ordinary, precision_of
from .recompute import check_checkpoint, steps_of
from .swappable import Swappable
from .tensor_kinds import are_plain, are_readable

MOST_TOGETHER = 1 << 22  # numbers of gates and weights of a stack that is one function


class Recurrent(Swappable, nn.RNNBase):
    """What the layers share. Parameters are read at each call, so parametrizations and functional_call work."""

    # Of a layer that `accelerate` has swapped in place; a constructor sets them on the instance
    solver: Solver = SERIAL
    checkpoint: int | str | None = None
    _plait_block: Block | None = None  # of `plait.packed` (pinned.py), if the layer is in one
    _plait_warm_starts: WarmStarts | None = None  # what the solver has learnt of this layer
    _plait_visits: Sequence[Visit | None] = ()  # of the last call
    _plait_step: LastStep | None = None  # if the last call was one step without gradients
    _plait_time: Any = None  # the ranks that share the steps out (ranks/time.py), if there are several

    def __init__(
        self,
        *args: Any,
        engine: str = "auto",
        solver: Solver | str = SERIAL,
        precision: str | None = None,
        checkpoint: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.engine, self.solver = engines.check_name(engine), check_solver(solver)
        self.precision, self.checkpoint = check_precision(precision), check_checkpoint(checkpoint)
        self._plait_check_checkpoint(self.engine)

    def extra_repr(self) -> str:
        found = super().extra_repr() + ("" if self.engine == "auto" else f", engine={self.engine!r}")
        found += "" if self.solver == SERIAL else f", solver={self.solver}"
        wishes = (name for name in ("precision", "checkpoint") if getattr(self, name) is not None)
        return found + "".join(f", {name}={getattr(self, name)!r}" for name in wishes)

    @property
    def last_solve(self) -> Solves:
        """How the solver fared in the last call, over all layers and directions."""
        visits = [v for v in self._plait_visits if v is not None and self.solver.sweeps]
        there, back = ([s for v in visits if (s := getattr(v, name)) is not None] for name in ("forward", "backward"))
        exact = None if visits else EXACT
        return Solves(Solve.worst(there) if there else EXACT, Solve.worst(back) if back else exact)

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
        if not torch.compiler.is_compiling() and self._plait_step is not None and lengths is None and ids is None:
            found = self._plait_again(input, hx)
            if found is not None:
                return found
        cell, weight = self._plait_cell, cast(Tensor, self._flat_weights[0])  # getattr would evaluate a parametrization
        if isinstance(input, Proxy):
            raise no_trace("torch.fx", cell)
        numbers = None if ids is None else check_ids(ids)
        engine = self._plait_engine(weight.dtype, weight.device)
        if engine == "cuda" or not weight.is_cpu:
            engine = cuda_choice.engine_for(self, engine, input, weight)
        if self.checkpoint is not None and torch.is_grad_enabled():
            self._plait_check_checkpoint(engine)
        if engine == "torch" and cell.mode is not None and self.solver == SERIAL and self.precision != "bf16":
            result: tuple[Any, State] = in_own_precision(self.precision, weight, self._plait_native, input, hx, lengths)
            return result
        is_plain = self.precision is None and weight.dtype is torch.float32 and weight.is_cpu
        if (is_plain and not torch.is_autocast_enabled("cpu")) or is_ordinary(self.precision, weight):
            return self._plait_run(cell, engine, input, hx, lengths, numbers)
        chosen = precision_of(self, engine, input, hx, weight)
        with without_autocast(weight.device):
            given = chosen.inside(input, hx, weight.dtype)
            return chosen.outside(*self._plait_run(cell, engine, *given, lengths, numbers, chosen))

    def _plait_native(self, input: Any, hx: State | None, lengths: Any = None) -> tuple[Any, State]:
        """torch's own layer."""
        if lengths is not None:
            given = of_lengths(self, input, None if hx is None else states_of(hx), lengths, False)
            if given.padding is not None:  # else the batch is empty
                y, state = self._plait_native(given.layout.packed_sequence(given.x), hx)
                return given.padding.scattered(y.data), state
        if isinstance(input, Tensor) and input.dim() == 3 and input.shape[1 if self.batch_first else 0] == 0:
            return self._plait_run(self._plait_cell, "torch", input, hx)  # torch refuses zero steps
        if isinstance(input, PackedSequence):
            check_packed(self, input)
        try:
            result: tuple[Any, State] = super().forward(input, hx)
        except RuntimeError as e:  # torch's own layers have no rule for it, either: say it in our words
            if "Batching rule not implemented" in str(e):
                raise no_vmap("torch", self._plait_cell) from e
            if "forward AD" in str(e):
                raise no_jvp("torch") from e
            raise
        return result

    def _plait_run(
        self,
        cell: type[Cell],
        engine: str,
        input: Any,
        hx: State | None,
        lengths: Any = None,
        ids: Tensor | None = None,
        precision: Precision | None = None,
    ) -> tuple[Any, State]:
        """By one of plait's engines: the arguments made uniform, a plan found, its results in the user's form."""
        given, call, tensors, is_one = self._plait_given(cell, engine, input, hx, lengths, precision)
        if not is_one:
            rows, last = self._plait_each(call, given, tensors[call.S :], ids)
            return given.results(rows, last)
        apply = autograd.undisturbed() if "torch._dynamo" in sys.modules else autograd.apply
        rows, *last = apply(call, given.x, tensors)
        is_dense = given.form == "dense"
        y, state = (rows, last[0] if len(last) == 1 else tuple(last)) if is_dense else given.results(rows, last)
        is_alike = call.rounded == (self.precision == "bf16") and call.layout.T == 1
        if is_alike and given.form in ("dense", "batch first", "one") and not torch.is_grad_enabled():
            mine, weights = (input, *(() if hx is None else states_of(hx))), tensors[call.S :]
            self.__dict__["_plait_step"] = last_step(
                call, self._plait_settings(), mine, (y, *states_of(state)), weights
            )
        return y, state

    def _plait_settings(self) -> tuple[Any, ...]:
        """What may change between two calls besides tensors."""
        return self.engine, self.solver, self.precision, self.mode, self.batch_first, self.training and self.dropout

    def _plait_again(self, input: Any, hx: State | None) -> tuple[Any, State] | None:
        """One step like the last one (one_step.py)."""
        try:
            weights: list[Any] = [*map(self._parameters.__getitem__, self._flat_weights_names)]
        except KeyError:  # a parametrized one: it is evaluated later, once in a call
            return None
        step = self._plait_step
        found = None if step is None else step.again(self._plait_block, self._plait_settings(), input, hx, weights)
        if found is None:
            return None
        y, *last = found
        return y, last[0] if len(last) == 1 else tuple(last)

    def _plait_given(
        self,
        cell: type[Cell],
        engine: str,
        input: Any,
        hx: State | None,
        lengths: Any,
        precision: Precision | None = None,
    ) -> tuple[Given, Call, list[Tensor], bool]:
        """The arguments in one form, a call of all layers as one function, its tensors, and whether they are one."""
        try:
            weights: list[Any] = [*map(self._parameters.__getitem__, self._flat_weights_names)]
        except KeyError:  # a parametrized one is not there: it is evaluated here, once in a call
            weights = [getattr(self, name) for name in self._flat_weights_names]
        takes_padded = lengths is not None and self._plait_takes_padded(engine, input, hx, weights)
        given = uniform(self, input, hx, lengths, takes_padded)
        if precision is not None and weights[0].dtype is not precision.type:
            given, weights = given.converted(precision.type), [w.to(precision.type) for w in weights]
        tensors = [*(given.states or ()), *weights]
        call = Call(
            cell,
            engine,
            given.layout,
            2 if self.bidirectional else 1,
            self.bias,
            given.states is not None,
            self.hidden_size,
            self.proj_size,
            self.num_layers,
            dropout=self.dropout if self.training and self.num_layers > 1 else 0.0,
            solver=self.solver,
            block=self._plait_block,
            rounded=precision is not None and precision.rounded,
        )
        is_one = takes_padded or self._plait_is_one(engine, given.x, tensors, weights)
        if self.checkpoint is not None and given.layout.N and (in_functorch() or is_recorded(given.x, tensors)):
            if torch.compiler.is_compiling() or not are_readable((given.x, *tensors)):
                todo = "put torch.compiler.disable around the layer, or leave checkpoint out"
                raise PlaitError(f"checkpoint={self.checkpoint!r}: no operator of a recorded graph recomputes: {todo}.")
            call.steps, call.apart = steps_of(call, check_checkpoint(self.checkpoint)), not is_one
        return given, call, tensors, is_one or call.steps > 0

    def _plait_check_checkpoint(self, engine: str) -> None:
        """Raises if nobody would recompute."""
        if self.checkpoint is None:
            return
        what = f"checkpoint={self.checkpoint!r}"
        if engine not in ("auto", "fused"):
            raise PlaitError(f"{what}: engine '{engine}' keeps all steps: use engine='fused', or leave checkpoint out.")
        if type(self.solver) is not Serial:
            why = "its pieces run side by side, and all their steps are kept"
            raise PlaitError(f"{what}: with solver {self.solver} {why}: use plait.Serial(), or leave checkpoint out.")

    def _plait_each(
        self, call: Call, given: Given, weights: Sequence[Tensor], ids: Tensor | None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """One function for each layer: rows (N, I) or (T, B, I) -> as many (., D*P), last states (L*D, B, .)"""
        x, states, L, D = given.x, given.states or (), self.num_layers, 2 if self.bidirectional else 1
        solver, shared = self.solver, None
        if self._plait_time is not None and solver.sweeps and torch.is_grad_enabled():
            shared = self._plait_time.share(given.layout)
        if shared is not None:
            x, states = shared.take(x), [s[:, : shared.layout.B].contiguous() for s in shared.shared(states)]
            given = given._replace(layout=shared.layout)
        call = replace(call, layout=given.layout, layers=1, dropout=0.0)
        visits = self._plait_visit(D, given, ids, shared) if solver.sweeps else ()
        opaque = torch.compiler.is_compiling() or not are_readable((x, *states, *weights))
        if opaque and visits and not torch.compiler.is_compiling():
            raise PlaitError(f"solver {solver} needs numbers, not fake tensors or make_fx: use plait.Serial() there.")
        opaque = opaque and why_untraceable(call.cell) is None and not visits
        dynamo = "torch._dynamo" in sys.modules
        dropout, each, finals = self.dropout if self.training else 0.0, len(weights) // L, []
        for k in range(L):
            own = weights[k * each : (k + 1) * each]
            tensors = [*[s[k * D : (k + 1) * D] for s in states], *(own if shared is None else shared.shared(own))]
            mine = replace(call, number=k, visits=visits[k * D : (k + 1) * D])
            apply = custom_op.apply if opaque else autograd.undisturbed() if dynamo else autograd.apply
            x, *last = apply(mine, x, tensors)
            finals.append(last)
            if dropout and k < L - 1:
                x = nn.functional.dropout(x, dropout) if shared is None else shared.dropout(x, dropout)
        if shared is not None:
            x, finals = shared.give(x), [shared.last(last, D) for last in finals]
        return x, finals[0] if L == 1 else [torch.cat(some) for some in zip(*finals, strict=True)]

    def _plait_takes_padded(self, engine: str, input: Any, hx: State | None, weights: Sequence[Tensor]) -> bool:
        """Whether the function of the layers takes a padded input as it is."""
        if engine != "fused" or torch.compiler.is_compiling() or not isinstance(input, Tensor) or input.dim() != 3:
            return False
        if type(self.solver) is not Serial or self._plait_time is not None:
            return False
        states = () if hx is None else states_of(hx)
        tensors = (*states, *weights)
        return are_plain((input, *tensors)) and self._plait_is_one(engine, input, tensors, weights)

    def _plait_is_one(self, engine: str, x: Tensor, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
        """Whether all layers are one function. It keeps all tapes until its backward pass ends, where one function for
        each layer frees its own: so it is for small stacks. Layers below the first that learns need no tape at all.
        """
        if torch.compiler.is_compiling() or type(self.solver) is not Serial:
            return False
        if not (are_plain((x, *tensors)) or are_readable((x, *tensors))):
            return False
        L = self.num_layers
        if L == 1:
            return True
        rows = x.numel() // max(1, x.shape[-1])
        gates = rows * self.hidden_size * len(self._plait_cell.gates) * len(self._all_weights)
        if engine != "fused" or not rows or gates + sum(map(Tensor.numel, weights)) > MOST_TOGETHER:
            return False
        return not torch.is_grad_enabled() or is_recorded(x, weights[: len(weights) // L])

    def _plait_visit(self, D: int, given: Given, ids: Tensor | None, shared: Any) -> tuple[Visit, ...]:
        """One for each layer and direction."""
        warm_starts = self._plait_warm_starts
        if warm_starts is None or warm_starts.solver != self.solver.text:
            warm_starts = self.__dict__["_plait_warm_starts"] = WarmStarts(self.solver.text)
        B, permutation = given.layout.B, given.permutation
        if ids is not None:
            whole = B if shared is None else shared.whole.B
            if len(ids) != whole:
                raise PlaitError(f"{len(ids)} ids for a batch of {whole}: expected one for each sequence.")
            ids = (ids if permutation is None else ids[permutation])[:B]
        links = [None if shared is None else shared.link(d == 1) for d in range(D)]
        visits = [
            Visit(warm_starts.of(layer, d), ids, links[d], f"layer {layer}" + ", reverse" * d)
            for layer in range(self.num_layers)
            for d in range(D)
        ]
        self.__dict__["_plait_visits"] = visits
        return tuple(visits)

    def plan(self, input: Any, hx: State | None = None, lengths: Any = None) -> Plan:
        """What runs such a call in training, to be read: `print(layer.plan(x))`. Only engine `fused` has plans."""
        weight, cell = cast(Tensor, self._flat_weights[0]), self._plait_cell
        engine = self._plait_engine(weight.dtype, weight.device)
        chosen = None if is_ordinary(self.precision, weight) else precision_of(self, engine, input, hx, weight)
        given, call, tensors, is_one = self._plait_given(cell, engine, input, hx, lengths, chosen)
        found = call.find_plan(given.x, True, is_in_a_block(self)) if is_one and not call.steps else None
        if found is None:
            why = "the stack is large, so each of its layers is a plan of its own"
            why = why if self.solver == SERIAL else f"solver {self.solver} is asked, layer by layer"
            why = why if engine == "fused" else f"engine {engine} has no plans, only 'fused' has"
            why = f"with checkpoint={self.checkpoint!r} each stretch is a plan of its own" if call.steps else why
            raise PlaitError(f"this call is not one plan: {why}.")
        needs = tuple(t.requires_grad for t in (given.x, *tensors))
        for wanted in (None, needs):
            found.make(given.layout, found.key.wide, wanted)
        return found
