"""The layer for torch.compile, make_fx and fake tensors: it and its derivative are two ops, called as they are."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from .. import cells, engines, solvers
from ..engines import Prepared
from ..errors import PlaitError
from ..layout import Layout
from .autograd import in_functorch, is_recorded, no_trace
from .call import Call
from .tensor_kinds import are_mapped


def text_of(call: Call) -> str:
    """All about a call but its tensors and sizes: an op takes no objects."""
    flags = int(call.bias), int(call.stateful), int(call.rounded)
    options = call.engine, call.directions, *flags, call.solver.text, call.solver.key
    return " ".join(map(str, (*options, cells.key(call.cell))))


def call_of(x: Tensor, tensors: Sequence[Tensor], layout: Layout, text: str) -> Call:
    engine, directions, bias, stateful, rounded, solver, key, name = text.split(" ", 7)
    if directions not in ("1", "2"):
        raise PlaitError(f"directions {directions}: expected 1 or 2.")
    cell = cells.by_key(name)
    chosen = engines.choose(engine, cell, x.dtype, x.device)
    call = Call(cell, chosen, layout, int(directions), bias == "1", stateful == "1", 0, rounded=rounded == "1")
    call.solver, w = solvers.find(solver, int(key)), call.weights(tensors)[0]
    call.H, call.projection = w.w_ih.shape[0] // len(cell.gates), 0 if w.w_hr is None else w.w_hr.shape[0]
    return call


def layout_of(x: Tensor, batch_sizes: Tensor | None, B: int) -> Layout:
    layout = Layout(x.shape[0], B) if batch_sizes is None else Layout.ragged(batch_sizes)
    if layout.B != B:
        raise PlaitError(f"B {B}: expected {layout.B}, the first of batch_sizes.")
    return layout


@custom_op("plait::layer", mutates_args=())
def layer_op(
    x: Tensor, tensors: Sequence[Tensor], batch_sizes: Tensor | None, B: int, text: str, keep: bool
) -> list[Tensor]:
    """-> rows, last states, what is kept"""
    call = call_of(x, tensors, layout_of(x, batch_sizes, B), text)
    rows, finals, kept = call.run_layers(x, tensors, keep)
    return [rows, *finals, *kept]


@layer_op.register_fake
def _(x, tensors, batch_sizes, B, text, keep):  # type: ignore[no-untyped-def]
    call = call_of(x, tensors, Layout(0, B), text)
    if "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export():  # ONNX has no such op
        raise no_trace("torch.onnx.export", call.cell)
    N = x.shape[0] if batch_sizes is not None else x.shape[0] * B
    prepared = [Prepared(call.cell, w, d == 1) for d, w in enumerate(call.weights(tensors))]
    kept = engines.get(call.engine).blank(prepared, N, B, x, rounded=call.rounded) if keep else []
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
    text: str,
) -> list[Tensor]:
    """-> d_x, d_ of the tensors"""
    call = call_of(x, tensors, layout_of(x, batch_sizes, B), text)
    needs = [True] * (1 + len(tensors))
    return call.run_layer_vjp(x, tensors, kept, (d_rows, *d_finals), needs, False)  # type: ignore[return-value]


@layer_vjp_op.register_fake
def _(x, tensors, *rest):  # type: ignore[no-untyped-def]
    return [t.new_empty(t.shape) for t in (x, *tensors)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, tensors, batch_sizes, ctx.B, ctx.text, _ = inputs
    ctx.outputs = 1 + len(cells.by_key(ctx.text.split(" ", 7)[-1]).states)
    ctx.tensors, ctx.shapes = len(tensors), [o.shape for o in output[: ctx.outputs]]
    ctx.ragged = batch_sizes is not None
    ctx.save_for_backward(x, *tensors, *output[ctx.outputs :], *([batch_sizes] if ctx.ragged else []))


def _backward(ctx: Any, d_outputs: list[Tensor | None]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    batch_sizes = rest.pop() if ctx.ragged else None
    tensors, kept = rest[: ctx.tensors], rest[ctx.tensors :]
    d = [x.new_zeros(shape) if g is None else g for g, shape in zip(d_outputs, ctx.shapes, strict=False)]
    if torch.is_grad_enabled() or are_mapped(d):  # the derivative is differentiated, or many are taken at once
        call = call_of(x, tensors, layout_of(x, batch_sizes, ctx.B), ctx.text)
        d_x, *d_tensors = call.vjp_on_operators(x, tensors, (), d, [True] * (1 + len(tensors)))
        return d_x, d_tensors, None, None, None, None
    if not kept:  # make_fx recorded it where no derivative was in view
        kept = torch.ops.plait.layer(x, tensors, batch_sizes, ctx.B, ctx.text, True)[ctx.outputs :]
    d_x, *d_tensors = torch.ops.plait.layer_vjp(x, tensors, kept, d[0], d[1:], batch_sizes, ctx.B, ctx.text)
    return d_x, d_tensors, None, None, None, None


layer_op.register_autograd(_backward, setup_context=_setup)


def apply(call: Call, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As autograd.apply, for code that is being compiled, and for tensors that a kernel cannot read (tensor_kinds.py).

    Within torch.func, torch's operators run step by step: an op has no derivative there.
    """
    if in_functorch() and not torch.compiler.is_compiling():
        return call.differentiable(x, tensors)
    layout, keep = call.layout, is_recorded(x, tensors)
    out = torch.ops.plait.layer(x, tensors, layout.batch_sizes, layout.B, text_of(call), keep)
    return tuple(out[: 1 + len(call.cell.states)])
