"""What `plait.report` prints and returns, and what is said where nothing can be swapped."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import plait
from plait.errors import PlaitWarning
from subclasses import OwnLoop


class KerasGRU(nn.Module):
    """A loop of its own over weights of its own."""


class Loss(nn.Module):
    """As torchrl's losses have them: networks that modules() does not show."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.__dict__["actor_network"] = actor


def net() -> nn.Module:
    model = nn.Module()
    model.fast, model.own, model.cell, model.keras = nn.LSTM(3, 4), OwnLoop(3, 4), nn.LSTMCell(3, 4), KerasGRU()
    model.half = nn.GRU(3, 4, dtype=torch.float16)
    model.low = nn.GRU(3, 4, dtype=torch.bfloat16)
    model.script, model.linear = torch.jit.script(nn.GRU(3, 4)), nn.Linear(3, 4)
    return model


def test_a_row_for_each_recurrent_layer(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    before = {row.name: row for row in plait.report(model)}
    assert before["fast"][1:] == ("LSTM", None, "not swapped yet", "plait.accelerate(model)")
    plait.accelerate(model, verbose=True)
    text = capsys.readouterr().out
    rows = {row.name: row for row in plait.report(model)}
    assert text.endswith(capsys.readouterr().out)
    assert list(rows) == ["fast", "own", "cell", "keras", "half", "low", "script"]
    assert rows["fast"] == ("fast", "LSTM", "fused", "", "")
    assert rows["own"][2:] == (None, "a subclass with a forward of its own", "call super().forward in it")
    assert rows["cell"] == ("cell", "LSTMCell", "fused", "", "")
    assert rows["keras"][1:4] == ("KerasGRU", None, "not one of torch.nn's layers")
    assert rows["half"][1:3] == ("GRU", "torch")
    assert "float16" in rows["half"].why
    assert rows["low"][1:] == ("GRU", "fused", "", "")
    assert rows["script"][1:] == ("GRU", None, "scripted", "leave it to torch: plait cannot run in scripted models")


@pytest.mark.parametrize("columns", ["80", "100", "200"])
def test_the_table_fits(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    outer = nn.Module()
    outer.a_module_with_a_rather_long_name_that_goes_on_for_a_while_and_then_for_another = net()
    plait.report(outer)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["layer", "class"]
    assert max(map(len, lines)) <= min(100, int(columns))


def test_a_device_without_an_engine_is_named() -> None:
    (row,) = plait.report(plait.accelerate(nn.LSTM(3, 4, device="meta")))
    assert row.engine == "torch"
    assert "meta" in row.why
    (row,) = plait.report(plait.accelerate(nn.LSTM(3, 4, device="meta"), engine="fused"))
    assert row.engine == "fused"
    assert "meta" in row.why


@pytest.mark.parametrize("engine", ["cuda", "cuda:v4"])
def test_cells_are_left_alone_and_named_where_the_engine_runs_layers(engine: str) -> None:
    model = nn.ModuleDict({"encoder": nn.LSTM(3, 4), "decoder": nn.LSTMCell(3, 4), "ours": plait.GRUCell(3, 4)})
    assert [row.engine for row in plait.report(plait.accelerate(model, engine=engine))] == [engine, None, "fused"]
    row = plait.report(model)[1]
    assert row.why == f"a cell, and {engine} runs layers"
    assert row.todo == "accelerate it by itself, with engine='auto'"
    assert type(model["decoder"]) is nn.LSTMCell
    x = torch.randn(2, 3)
    expected = model["decoder"](x)
    torch.testing.assert_close(plait.accelerate(model["decoder"])(x), expected)
    assert isinstance(model["decoder"], plait.LSTMCell)
    assert plait.report(plait.accelerate(model, engine=engine))[1].engine == "fused"
    with pytest.warns(PlaitWarning, match=rf"the model \(GRUCell\) is a cell, and {engine} runs layers: accelerate"):
        plait.accelerate(nn.GRUCell(3, 4), engine=engine)


def test_networks_that_are_hidden_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    actor = nn.Sequential(nn.LSTM(3, 4))
    loss = Loss(actor)
    with pytest.warns(PlaitWarning, match=r"actor_network.0 .* hidden from modules\(\): accelerate its actor_network"):
        plait.accelerate(loss)
    assert type(actor[0]) is nn.LSTM
    plait.accelerate(actor)
    (row,) = plait.report(loss)
    assert row[:3] == ("actor_network.0", "LSTM", "fused")
    loss.__dict__["others"] = [actor]
    assert plait.report(loss) == [row]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plait.accelerate(loss)
    loss.__dict__["critic"] = nn.GRU(3, 4)
    with pytest.warns(
        PlaitWarning, match=r"swapped nothing: critic \(GRU\) is hidden .*: accelerate its critic itself\.$"
    ):
        plait.accelerate(loss)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            nn.Linear(3, 4),
            "Linear has no nn.RNN, nn.LSTM or nn.GRU, nor a cell of these. If it builds its network later, put `with",
        ),
        (KerasGRU(), r"the model \(KerasGRU\) is not one of torch.nn's layers"),
        (nn.Sequential(OwnLoop(3, 4), OwnLoop(3, 4)), r"0 \(OwnLoop\) is a subclass .* \(1 more: plait.report\)"),
    ],
)
def test_nothing_swapped_is_one_warning(model: nn.Module, why: str) -> None:
    with pytest.warns(PlaitWarning, match=f"plait.accelerate swapped nothing: {why}") as found:
        assert plait.accelerate(model) is model
    assert len(found) == 1
    assert found[0].filename == __file__


def test_no_warning_where_all_is_plaits() -> None:
    model = nn.Sequential(nn.LSTM(3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plait.accelerate(plait.accelerate(model))
        plait.accelerate(plait.ImplicitGRU(3, 4))


class RecurrentPPO(SimpleNamespace):
    pass


@pytest.mark.parametrize(
    ("given", "todo"),
    [
        (RecurrentPPO(env=1, policy=nn.LSTM(3, 4)), "a RecurrentPPO, expected a torch.nn.Module: pass its .policy"),
        (SimpleNamespace(loss=nn.MSELoss(), model=nn.LSTM(3, 4)), "pass its .model"),
        (SimpleNamespace(models=[nn.LSTM(3, 4)]), r"pass its .models\[0\]"),
        (SimpleNamespace(model=None), r"its .model is still None: call it after fit, or put `with plait.everywhere"),
        (None, "None, expected a torch.nn.Module: call it after fit"),
        ([nn.LSTM(3, 4)], "a list, expected a torch.nn.Module: "),
        (nn.LSTM, "the class LSTM: pass an instance"),
    ],
)
@pytest.mark.parametrize("function", [plait.accelerate, plait.restore, plait.report])
def test_what_is_no_module_gets_a_sentence(function: Any, given: Any, todo: str) -> None:
    with pytest.raises(TypeError, match=f"plait.{function.__name__} was given .*{todo}"):
        function(given)
