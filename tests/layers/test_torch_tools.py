"""torch's own tools on accelerated models: those that work, and those that ask for `plait.restore` first."""

import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import plait
from plait import PlaitError
from plait.layers.neighbours import tell_dynamo, tell_opacus
from subclasses import Doubled


class Net(nn.Module):
    def __init__(self, kind: type = nn.LSTM) -> None:
        super().__init__()
        self.rnn, self.head = kind(3, 4, 2), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def refused(tool: str) -> Any:
    return pytest.raises(PlaitError, match=rf"{tool} .*: plait.restore\(model\) first")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, Doubled])
def test_scripting_asks_for_restore(kind: type) -> None:
    net = plait.accelerate(Net(kind))
    with refused("torch.jit.script"):
        torch.jit.script(net)
    with refused("torch.jit.script"):
        torch.jit.script(net.rnn)
    if kind is not Doubled:  # torch cannot script its subclasses
        torch.jit.script(plait.restore(net))


def test_a_cell_that_torch_lacks_is_told_of_export() -> None:
    with pytest.raises(PlaitError, match=r"torch.jit.script .*: use torch.export"):
        torch.jit.script(plait.ImplicitGRU(3, 4))


@pytest.mark.parametrize("inplace", [False, True])
def test_quantizing_asks_for_restore(inplace: bool) -> None:
    net = plait.accelerate(Net())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with refused("torch.ao.quantization"):
            torch.ao.quantization.quantize_dynamic(net, inplace=inplace)
        assert not hasattr(net.rnn, "qconfig")
        quantized = torch.ao.quantization.quantize_dynamic(plait.restore(net))
    assert "quantized" in type(quantized.rnn).__module__


def test_other_layers_beside_plaits_are_quantized() -> None:
    net = plait.accelerate(Net())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})
    assert "quantized" in type(quantized.head).__module__
    assert isinstance(quantized.rnn, plait.LSTM)
    assert quantized(torch.randn(5, 2, 3)).shape == (5, 2, 1)


def test_exporting_to_onnx_asks_for_restore(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    net, x = plait.accelerate(Net()).eval(), torch.randn(5, 2, 3)
    with pytest.raises(Exception, match=r"torch.onnx.export .*: plait.restore\(model\) first"):
        torch.onnx.export(net, (x,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    torch.onnx.export(plait.restore(net), (x,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    assert (tmp_path / "net.onnx").exists()


def test_what_onnx_records_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, for machines without onnxscript."""
    net, x = plait.accelerate(Net()).eval(), torch.randn(5, 2, 3)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with refused("torch.onnx.export"):
        torch.export.export(net, (x,))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, Doubled])
def test_one_graph_without_a_change_of_dynamos_settings(kind: type, dynamo: ModuleType) -> None:
    net, x, graphs = plait.accelerate(Net(kind)), torch.randn(5, 2, 3), []

    def backend(graph, inputs):
        assert dynamo.config.allow_rnn is False
        graphs.append(graph)
        return graph

    found = torch.compile(net, backend=backend, fullgraph=True)(x)
    assert dynamo.config.allow_rnn is False
    torch.testing.assert_close(found, net(x))
    (graph,) = graphs
    assert sum(node.target is torch.ops.plait.layer for node in graph.graph.nodes) == 2
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), [*net.parameters()]),
        torch.autograd.grad(net(x).square().sum(), [*net.parameters()]),
    )


@pytest.mark.parametrize("layer", [nn.LSTM(3, 4), plait.LSTM(3, 4, engine="torch")])
def test_torchs_own_layers_are_refused_as_ever(layer: nn.Module, dynamo: ModuleType) -> None:
    with pytest.raises(dynamo.exc.Unsupported, match="RNN"):
        torch.compile(nn.Sequential(layer), backend="eager", fullgraph=True)(torch.randn(5, 2, 3))


def test_other_modules_do_not_depend_on_dynamos_fields() -> None:
    """A stand-in for a dynamo whose fields have other names."""

    class VariableBuilder:
        tx = object()

        def wrap_module(self, value):
            return value

    tell_dynamo(type("builder", (), {"VariableBuilder": VariableBuilder}))
    for other in (nn.Linear(3, 4), nn.LSTM(3, 4), plait.LSTMCell(3, 4)):
        assert VariableBuilder().wrap_module(other) is other


ORDERS = """
import sys, torch
{first}
from torch import nn
import plait
net = plait.accelerate(nn.Sequential(nn.LSTM(3, 4)))
assert ("torch._dynamo" in sys.modules) == {is_there}, "plait imports no dynamo"
torch.compile(net, backend="eager", fullgraph=True)(torch.randn(5, 2, 3))
import torch._dynamo.variables.builder as builder, inspect
assert inspect.getsource(builder)
assert "exec_module" not in vars(builder.__spec__.loader)
"""


@pytest.mark.parametrize("first", ["", pytest.param("import torch._dynamo", marks=pytest.mark.slow)])
def test_dynamo_may_be_imported_before_or_after(first: str) -> None:
    code = ORDERS.format(first=first, is_there=bool(first))
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, Doubled])
def test_export(kind: type, strict: bool, dynamo: ModuleType) -> None:
    net, x = plait.accelerate(Net(kind)).eval(), torch.randn(5, 2, 3)
    lengths = {"x": {0: torch.export.Dim("T", min=2, max=64)}}
    program = torch.export.export(net, (x,), dynamic_shapes=lengths, strict=strict)
    longer = torch.randn(9, 2, 3)
    torch.testing.assert_close(program.module()(longer), net(longer))
    assert dynamo.config.allow_rnn is False


# --- vmap
@pytest.mark.parametrize("engine", ["fused", "numpy"])
def test_vmap_names_the_engine_that_maps_gradients(engine: str) -> None:
    layer, x = plait.accelerate(nn.LSTM(3, 4), engine=engine), torch.randn(6, 5, 2, 3)
    weights = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(weights, x):
        return functional_call(layer, weights, (x,))[0].square().sum()

    with pytest.raises(PlaitError, match=r"vmap .* or map gradients, vmap\(grad\(...\)\), with engine='torch'"):
        vmap(grad(loss), (None, 0))(weights, x)
    plait.accelerate(layer, engine="torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: a performance drop
        found = vmap(grad(loss), (None, 0))(weights, x)
    torch.testing.assert_close(found["bias_hh_l0"][3], grad(loss)(weights, x[3])["bias_hh_l0"])
    with pytest.raises(PlaitError, match=r"into the batch axis instead\.$"):
        vmap(lambda x: layer(x)[0])(x)


# --- opacus
def test_opacus_tables_have_plaits_layers_beside_torchs() -> None:
    """A stand-in: two tables of exact classes."""

    class ModuleValidator:
        VALIDATORS, FIXERS = {nn.LSTM: "no", nn.Linear: "yes"}, {nn.LSTM: "DPLSTM"}

    tell_opacus(type("validators", (), {"ModuleValidator": ModuleValidator}))
    validators, fixers = ModuleValidator.VALIDATORS, ModuleValidator.FIXERS
    assert validators == {nn.LSTM: "no", plait.LSTM: "no", nn.Linear: "yes"}
    assert fixers == {nn.LSTM: "DPLSTM", plait.LSTM: "DPLSTM"}


@pytest.mark.parametrize("make", [lambda: plait.accelerate(Net()), lambda: Net(plait.LSTM)])
def test_opacus_sees_what_it_sees_of_torch(make: Any) -> None:
    validators = pytest.importorskip("opacus.validators")
    (ours,), (theirs,) = (validators.ModuleValidator.validate(net) for net in (make(), Net()))
    assert type(ours) is type(theirs)
    fixed = validators.ModuleValidator.fix(make())
    assert "DPLSTM" in type(fixed.rnn).__name__
    assert not validators.ModuleValidator.validate(fixed)
