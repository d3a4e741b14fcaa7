"""The layer for torch.compile, make_fx and fake tensors: it and its derivative are two ops, called as they are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from .. import cells, engines, solvers
from ..engines import Prepared
from ..errors import PlaitError
from ..layout import Layout
from .autograd import in_functorch, is_recorded
from .call import Call
from .tensor_kinds import are_mapped


def call_of(
    x: Tensor,
    tensors: Sequence[Tensor],
    batch_sizes: Tensor | None,
    B: int,
    cell: str,
    engine: str,
    directions: int,
    bias: bool,
    stateful: bool,
    solver: str,
    key: int,
) -> Call:
    c = cells.by_key(cell)
    layout = Layout(x.shape[0], B) if batch_sizes is None else Layout.ragged(batch_sizes)
    if directions not in (1, 2):
        raise PlaitError(f"directions {directions}: expected 1 or 2.")
    if layout.B != B:
        raise PlaitError(f"B {B}: expected {layout.B}, the first of batch_sizes.")
    chosen = engines.choose(engine, c, x.dtype, x.device)
    call = Call(c, chosen, layout, directions, bias, stateful, 0, solver=solvers.find(solver, key))
    w = call.weights(tensors)[0]
    return replace(call, H=w.w_ih.shape[0] // len(c.gates), projection=0 if w.w_hr is None else w.w_hr.shape[0])


@custom_op("plait::layer", mutates_args=())
def layer_op(
    x: Tensor,
    tensors: Sequence[Tensor],
    batch_sizes: Tensor | None,
    B: int,
    cell: str,
    engine: str,
    directions: int,
    bias: bool,
    stateful: bool,
    solver: str,
    key: int,
    keep: bool,
) -> list[Tensor]:
    """-> rows, last states, what is kept"""
    call = call_of(x, tensors, batch_sizes, B, cell, engine, directions, bias, stateful, solver, key)
    rows, finals, kept = call.run_layers(x, tensors, keep)
    return [rows, *finals, *kept]


@layer_op.register_fake
def _(x, tensors, batch_sizes, B, cell, engine, directions, bias, stateful, solver, key, keep):  # type: ignore[no-untyped-def]
    c = cells.by_key(cell)
    call = Call(c, engines.choose(engine, c, x.dtype, x.device), Layout(0, B), directions, bias, stateful, 0)
    N = x.shape[0] if batch_sizes is not None else x.shape[0] * B
    prepared = [Prepared(c, w, d == 1) for d, w in enumerate(call.weights(tensors))]
    kept = engines.get(call.engine).blank(prepared, N, B, x) if keep else []
    call.H, call.projection = prepared[0].H, prepared[0].P
    return [*(x.new_empty(shape) for shape in call.shapes(x)), *kept]


@custom_op("plait::layer_vjp", mutates_args=())
def layer_vjp_op(
    x: Tensor,
    tensors: Sequence[Tensor],
    kept: Sequence[Tensor],
    d_rows: Tensor,
    d_finals: Sequence[Tensor],
    batch_sizes: Tensor | None,
    B: int,
    cell: str,
    engine: str,
    directions: int,
    bias: bool,
    stateful: bool,
    solver: str,
    key: int,
) -> list[Tensor]:
    """-> d_x, d_ of the tensors"""
    call = call_of(x, tensors, batch_sizes, B, cell, engine, directions, bias, stateful, solver, key)
    needs = [True] * (1 + len(tensors))
    return call.run_layer_vjp(x, tensors, kept, d_rows, d_finals, needs, False)  # type: ignore[return-value]


@layer_vjp_op.register_fake
def _(x, tensors, *rest):  # type: ignore[no-untyped-def]
    return [t.new_empty(t.shape) for t in (x, *tensors)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, tensors, batch_sizes, B, cell, *options, _keep = inputs
    states = len(cells.by_key(cell).states)
    ctx.options, ctx.tensors, ctx.states = (B, cell, *options), len(tensors), states
    ctx.shapes = [o.shape for o in output[: states + 1]]
    sizes = [] if batch_sizes is None else [batch_sizes]
    ctx.ragged = bool(sizes)
    ctx.save_for_backward(x, *tensors, *output[states + 1 :], *sizes)


def _backward(ctx: Any, d_outputs: list[Tensor | None]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    batch_sizes = rest.pop() if ctx.ragged else None
    tensors, kept = rest[: ctx.tensors], rest[ctx.tensors :]
    d = [
        x.new_zeros(shape) if g is None else g for g, shape in zip(d_outputs[: ctx.states + 1], ctx.shapes, strict=True)
    ]
    if torch.is_grad_enabled() or are_mapped(d):  # the derivative is differentiated, or many are taken at once
        call = call_of(x, tensors, batch_sizes, *ctx.options)
        d_x, *d_tensors = call.vjp_on_operators(x, tensors, (), d, [True] * (1 + len(tensors)))
        return d_x, d_tensors, *[None] * 10
    if not kept:  # make_fx recorded it where no derivative was in view
        kept = torch.ops.plait.layer(x, tensors, batch_sizes, *ctx.options, True)[1 + ctx.states :]
    grads = torch.ops.plait.layer_vjp(x, tensors, kept, d[0], d[1:], batch_sizes, *ctx.options)
    return grads[0], grads[1:], *[None] * 10


layer_op.register_autograd(_backward, setup_context=_setup)


def apply(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As autograd.apply, for code that is being compiled, and for tensors that a kernel cannot read (tensor_kinds.py).

    Within torch.func, torch's operators run step by step: an op has no derivative there.
    """
    if in_functorch() and not torch.compiler.is_compiling():
        return call.differentiable(x, tensors)
    options = call.layout.B, cells.key(call.cell), call.engine, call.directions, call.bias, call.stateful
    keep = is_recorded(x, tensors)
    out = torch.ops.plait.layer(x, tensors, call.layout.batch_sizes, *options, call.solver.text, call.solver.key, keep)
    return tuple(out[: 1 + len(call.cell.states)])
