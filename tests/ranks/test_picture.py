"""What a picture of a schedule shows."""

from collections.abc import Sequence
from typing import Any

import pytest

from plait import PlaitError
from plait.ranks import picture
from plait.ranks.picture import COLORS, gantt
from plait.ranks.schedule import KINDS, Op, Span, data, server, simulate, wavefront


def spans(stages: int = 2, scale: float = 1e-3, begin: float = 0) -> list[Span]:
    found = simulate(wavefront((3,), stages), lambda op: scale).spans
    return [Span(op, begin + start, begin + end) for op, start, end in found]


@pytest.fixture
def figure(monkeypatch):
    """The figure of a picture, laid out."""

    def make(rows: dict[str, Sequence[Span]], names: Sequence[str] | None = None) -> Any:
        drawn: list[Any] = []
        monkeypatch.setattr(picture, "png", lambda figure: drawn.append(figure) or b"")
        assert gantt(rows, names) == b""
        drawn[0].canvas.draw()
        return drawn[0]

    return make


def bars(axes: Any) -> set[tuple[str, int, int, int]]:
    """Colour, place, start and end in ms of each."""
    from matplotlib.colors import to_hex

    found = set()
    for collection in axes.collections:
        for path in collection.get_paths():
            box = path.get_extents()
            color = to_hex(collection.get_facecolor()[0])
            found.add((color, round((box.y0 + box.y1) / 2), round(box.x0), round(box.x1)))
    return found


def test_a_picture_is_a_png() -> None:
    assert gantt({"simulated": spans()}).startswith(b"\x89PNG")


def test_every_op_has_its_bar(figure) -> None:
    """From 0 on, whenever it was measured, and nothing else but grey under each row."""
    (axes,) = figure({"measured": spans(begin=100)}).axes
    expected = {(COLORS[op.kind], op.place, round(1e3 * a), round(1e3 * b)) for op, a, b in spans()}
    assert len(expected) == 24
    found = bars(axes)
    grey = {bar for bar in found if bar[0] not in COLORS.values()}
    assert found - grey == expected
    assert {bar[1:] for bar in grey} == {(0, 0, 16), (1, 0, 16)}


def test_panels_can_be_compared(figure) -> None:
    """The same scale of time, and in each title how long it takes and how much of it is idle."""
    drawn = figure({"simulated": spans(), "measured": spans(scale=2e-3, begin=7)})
    first, second = drawn.axes
    assert first.get_xlim() == second.get_xlim() == (0, pytest.approx(1.01 * 32))
    assert first.get_title(loc="left") == "simulated: 16 ms, 25% idle"
    assert second.get_title(loc="left") == "measured: 32 ms, 25% idle"
    assert second.get_xlabel() == "ms"
    assert [label.get_text() for label in first.get_yticklabels()] == ["rank 0", "rank 1"]
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the first place is on top


def test_the_legend_has_what_is_drawn(figure) -> None:
    def words(rows: dict[str, Sequence[Span]]) -> list[str]:
        return [text.get_text() for text in figure(rows).legends[0].get_texts()]

    ranks = simulate(data(2, 2), lambda op: 1).spans
    assert words({"": spans()}) == [KINDS[kind] for kind in "FDIWV"]
    assert words({"": ranks}) == ["forward", "back", "sum over ranks", "update"]
    assert words({"a": ranks, "b": simulate(server(2), lambda op: 1).spans})[-1] == "get weights"
    assert COLORS.keys() == KINDS.keys()
    assert len(set(COLORS.values())) == len(KINDS)


def test_numbers_stand_where_there_is_room(figure) -> None:
    def numbers(found: Sequence[Span]) -> list[str]:
        return sorted(text.get_text() for text in figure({"": found}).axes[0].texts)

    assert numbers(spans()) == sorted(str(span.op.chunk) for span in spans())
    two = simulate(wavefront((1, 1), 1), lambda op: 1).spans
    assert numbers(two) == sorted(f"{span.op.micro}.0" for span in two)
    assert numbers([Span(Op("F", 0, 0, 3), 0, 1), Span(Op("F", 0, 0, 4), 1, 1.001)]) == ["3"]
    assert numbers(simulate(server(2), lambda op: 1).spans) == []  # one of each kind: nothing to tell apart


def test_many_places(figure) -> None:
    drawn = figure({"": spans(stages=100)})
    (axes,) = drawn.axes
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == [f"rank {place}" for place in range(0, 100, 5)]
    assert not axes.texts
    assert drawn.get_size_inches()[1] < 12


def test_places_have_names(figure) -> None:
    (axes,) = figure({"": spans()}, ["layers 0 to 5", "layers 6, 7"]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layers 0 to 5", "layers 6, 7"]


@pytest.mark.parametrize(
    ("rows", "names", "sentence"),
    [
        ({}, None, "a picture of nothing: expected at least one timeline"),
        ({"measured": []}, None, "a timeline without spans"),
        ({"measured": spans()}, ["one"], "1 names for 2 places: give one for each"),
    ],
)
def test_bad_pictures_get_a_sentence(rows: Any, names: Any, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        gantt(rows, names)
