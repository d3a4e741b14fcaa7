"""The shape of a mesh: what `--parallel` takes, and what it says to the rest."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlaitError
from plait.ranks.shape import WAYS, Shape

counts = st.integers(1, 100_000)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """What a command line can say, where it means something."""
    data, layers = draw(st.one_of(st.none(), counts)), draw(counts)
    if data is None and layers == 1:
        data = 1
    way = draw(st.sampled_from(WAYS)) if data is not None and (data > 1 or layers == 1) else "auto"
    if layers == 1:
        return Shape(data, way=way)
    return Shape(data, layers, 1, way, draw(counts), draw(st.one_of(st.none(), counts)))


@given(shapes())
def test_what_it_prints_is_read_as_the_same_mesh(shape: Shape) -> None:
    again = Shape.parse(str(shape))
    assert str(again) == str(shape)
    assert again.size == shape.size
    assert again.filled(shape.size) == shape.filled(shape.size)


@given(st.lists(st.sampled_from(["data", "layers", "time", "micro", "auto", *"=:,= 012x"]), max_size=9).map("".join))
def test_anything_else_is_refused_in_a_sentence(text: str) -> None:
    said = ""
    try:
        Shape.parse(text)
    except PlaitError as e:
        said = str(e)
    assert not said or (said.startswith("--parallel") and said.endswith("."))


READ = {
    "data=2": Shape(2),
    "data=2:server": Shape(2, way="server"),
    "layers=3": Shape(None, 3),
    "data=2,layers=2": Shape(2, 2),
    "layers=2,data=3": Shape(3, 2),
    "data=02, layers=2 : micro=2 ": Shape(2, 2, micro=2),
    "layers=4:micro=2:chunks=7": Shape(None, 4, micro=2, chunks=7),
    "layers=4:chunks=auto": Shape(None, 4),
    "data=2:network,layers=4:micro=2,time=1": Shape(2, 4, way="network", micro=2),
    "time=2": Shape(None, 1, 2),
}


@pytest.mark.parametrize("text", READ)
def test_what_can_be_said(text: str) -> None:
    assert Shape.parse(text) == READ[text]


REFUSED = {
    "": "--parallel: axis '' is not known: Expected one of data, layers, time.",
    "two": "--parallel: axis 'two' is not known: Expected one of data, layers, time.",
    "dta=2": "--parallel: axis 'dta' is not known: did you mean 'data'? Expected one of data, layers, time.",
    "data=2,": "--parallel: axis '' is not known: Expected one of data, layers, time.",
    "data=2,layers=2,data=2": "--parallel data=2,layers=2,data=2: data is given twice; give it once.",
    "data": "--parallel data=: expected a whole number from 1 to 100000.",
    "data=0": "--parallel data=0: expected a whole number from 1 to 100000.",
    "layers=-1": "--parallel layers=-1: expected a whole number from 1 to 100000.",
    "data=two": "--parallel data=two: expected a whole number from 1 to 100000.",
    "data=2.0": "--parallel data=2.0: expected a whole number from 1 to 100000.",
    "data=\u0663": "--parallel data=\u0663: expected a whole number from 1 to 100000.",
    "data=100001": "--parallel data=100001: expected a whole number from 1 to 100000.",
    "data=" + 30 * "9": f"--parallel data={30 * '9'}: expected a whole number from 1 to 100000.",
    "layers=2,time=2": "--parallel layers=2,time=2: the stages of a pipeline take the steps one after another; use one",
    "data=2:servr": "--parallel: data ranks by 'servr' is not known: did you mean 'server'? Expected one of auto, ne",
    "data=2:micro=2": "--parallel data: option 'micro' is not known; expected auto, shared, network, server.",
    "layers=2:micro=0": "--parallel layers: micro=0: expected a whole number from 1 to 100000.",
    "layers=2:chunks=few": "--parallel layers: chunks=few: expected a whole number from 1 to 100000.",
    "layers=2:server": "--parallel layers: option 'server' is not known; expected micro=N and chunks=N.",
    "time=1:micro=2": "--parallel time: option 'micro' is not known; expected no options.",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_makes_no_sense(text: str) -> None:
    with pytest.raises(PlaitError) as e:
        Shape.parse(text)
    assert str(e.value).startswith(REFUSED[text])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"data": 0}, "a mesh with data=0: expected a whole number from 1 to 100000."),
        ({"layers": 0}, "a mesh with layers=0: expected a whole number from 1 to 100000."),
        ({"layers": None}, "a mesh with layers=None: expected a whole number from 1 to 100000."),
        ({"micro": -1}, "a mesh with micro=-1: expected a whole number from 1 to 100000."),
        ({"chunks": 1.5}, "a mesh with chunks=1.5: expected a whole number from 1 to 100000."),
        ({"way": "post"}, "a mesh with data ranks by 'post' is not known: Expected one of auto, network, server"),
        ({"time": 0}, "a mesh with time=0: expected a whole number from 1 to 100000."),
        ({"layers": 2, "time": 3}, "--parallel layers=2,time=3: the stages of a pipeline take the steps one after"),
    ],
    ids=str,
)
def test_from_python(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlaitError) as e:
        Shape(**given)
    assert str(e.value).startswith(sentence)


def test_data_ranks_fill_the_world() -> None:
    assert Shape().filled(3) == Shape(3)
    assert Shape(layers=2, micro=3).filled(6) == Shape(3, 2, micro=3)
    assert Shape(2, 2).filled(4) == Shape(2, 2)


@pytest.mark.parametrize(
    ("shape", "world", "sentence"),
    [
        (Shape(4), 2, "--parallel data=4 needs 4 ranks, and 2 were started: start 4 ranks."),
        (Shape(2), 3, "--parallel data=2 needs 2 ranks, and 3 were started: start 2 ranks."),
        (Shape(2, 2), 8, "--parallel data=2,layers=2 needs 4 ranks, and 8 were started: start 4 ranks."),
        (Shape(None, 3), 4, "--parallel layers=3 needs 3 ranks, and 4 were started: start 3 ranks."),
        (Shape(None, 3), 2, "--parallel layers=3 needs 3 ranks, and 2 were started: start 3 ranks."),
        (Shape(1), 2, "--parallel data=1 needs 1 ranks, and 2 were started: start one process."),
    ],
    ids=str,
)
def test_a_mesh_that_is_not_the_world(shape: Shape, world: int, sentence: str) -> None:
    with pytest.raises(PlaitError) as e:
        shape.filled(world)
    assert str(e.value) == sentence


def test_it_is_read_before_torch_is_imported() -> None:
    code = "import plait.ranks.shape, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
