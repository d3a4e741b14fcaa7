"""The import hook by which other libraries learn of plait's layers: it is there as long as there are such layers."""

import copy
import gc
import pickle
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn

import plait
from plait.layers import import_hook


@pytest.fixture(autouse=True)
def awaited(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that nobody imports, and no layers of other tests."""
    gc.collect()
    monkeypatch.setattr(import_hook, "_layers", {})
    monkeypatch.setitem(import_hook.AWAITED, "a_neighbour_to_be", lambda module: None)
    import_hook.set_up()
    assert not import_hook.is_there()
    before = [*sys.meta_path]
    yield
    gc.collect()
    assert sys.meta_path == before


def in_a_block() -> nn.Module:
    with plait.everywhere():
        return nn.LSTM(3, 4)


def unpickled() -> nn.Module:
    return pickle.loads(pickle.dumps(plait.ImplicitGRU(3, 4)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: plait.GRU(3, 4),
        lambda: plait.LSTMCell(3, 4),
        lambda: plait.accelerate(nn.Sequential(nn.LSTM(3, 4))),
        lambda: copy.deepcopy(plait.RNN(3, 4)),
        in_a_block,
        unpickled,
    ],
)
def test_it_is_there_as_long_as_a_layer_is(make: Any) -> None:
    model = make()
    assert import_hook.is_there()
    assert sys.meta_path.count(import_hook.FINDER) == 1
    del model
    gc.collect()
    assert not import_hook.is_there()


def test_restore_takes_it_away() -> None:
    model, other = plait.accelerate(nn.Sequential(nn.LSTM(3, 4), nn.GRU(3, 4))), plait.accelerate(nn.LSTMCell(3, 4))
    plait.restore(model)
    assert import_hook.is_there()
    plait.restore(other)
    assert not import_hook.is_there()


def test_neither_import_nor_a_block_leaves_a_trace() -> None:
    code = """
import sys, torch
before = [*sys.meta_path]
import plait, plait.layers
with plait.everywhere():
    pass
with plait.everywhere():
    layer = torch.nn.LSTM(3, 4)
assert len(sys.meta_path) == len(before) + 1
del layer
assert sys.meta_path == before
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_goes_when_all_were_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_neighbour_that_comes.py").write_text("name = 'it'")
    monkeypatch.syspath_prepend(tmp_path)
    told = list[ModuleType]()
    monkeypatch.setattr(import_hook, "AWAITED", {"a_neighbour_that_comes": told.append})
    layer = plait.GRU(3, 4)
    assert import_hook.is_there()
    module = import_module("a_neighbour_that_comes")
    assert told == [module]
    assert module.name == "it"
    assert not import_hook.is_there()
    other = plait.accelerate(nn.GRU(3, 4))
    assert not import_hook.is_there()
    del layer, other, sys.modules["a_neighbour_that_comes"]


def test_what_was_imported_before_is_told_by_the_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[ModuleType]()
    monkeypatch.setattr(import_hook, "AWAITED", {"json": told.append})
    layers = [plait.GRU(3, 4), plait.GRU(3, 4)]
    assert told == [sys.modules["json"]]
    assert not import_hook.is_there()
    del layers


def test_an_import_under_way_asks_all_other_finders() -> None:
    layer = plait.GRU(3, 4)
    going = iter(sys.meta_path)
    assert next(going) is import_hook.FINDER  # at this moment the layer is dropped
    others = [finder for finder in sys.meta_path if finder is not import_hook.FINDER]
    del layer
    assert [*going] == others


def test_threads_that_make_and_drop_layers_while_others_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"some_module_{k}" for k in range(400)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    interval, failures = sys.getswitchinterval(), list[BaseException]()

    def guarded(work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as e:
            failures.append(e)

    def make() -> None:
        for _ in range(100):
            with plait.everywhere():
                layer = nn.GRUCell(1, 1)
            del layer

    def importing(mine: list[str]) -> None:
        for name in mine:
            import_module(name)

    work = [(make,)] * 4 + [(importing, names[k::2]) for k in range(2)]
    threads = [threading.Thread(target=guarded, args=some) for some in work]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        for name in names:
            sys.modules.pop(name, None)
    assert not failures
    assert not import_hook.is_there()
