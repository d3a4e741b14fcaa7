"""What the picture of a pipeline shows."""

from collections.abc import Mapping
from typing import Any

import pytest

from plait.bench.ranks import gantt as module
from plait.bench.ranks.gantt import COLORS, gantt
from plait.ranks.schedule import KINDS, Op, Span, Timeline, simulate, wavefront


def timeline(scale: float = 1e-3, begin: float = 0) -> Timeline:
    """Two stages, three chunks."""
    found = simulate(wavefront((3,), 2), lambda op: scale).spans
    return Timeline(tuple(Span(op, begin + start, begin + end) for op, start, end in found))


@pytest.fixture
def figure(monkeypatch):
    """The figure of a picture, laid out."""

    def make(timelines: Mapping[str, Timeline]) -> Any:
        drawn: list[Any] = []
        monkeypatch.setattr(module, "png", lambda figure: drawn.append(figure) or b"")
        assert gantt(timelines) == b""
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
    assert gantt({"simulated": timeline()}).startswith(b"\x89PNG")


def test_every_op_has_its_bar(figure) -> None:
    """From 0 on, whenever it was measured, and nothing else but grey under each row."""
    (axes,) = figure({"measured": timeline(begin=100)}).axes
    expected = {(COLORS[op.kind], op.place, round(1e3 * a), round(1e3 * b)) for op, a, b in timeline().spans}
    assert len(expected) == 24
    found = bars(axes)
    grey = {bar for bar in found if bar[0] not in COLORS.values()}
    assert found - grey == expected
    assert {bar[1:] for bar in grey} == {(0, 0, 16), (1, 0, 16)}


def test_panels_can_be_compared(figure) -> None:
    """The same scale of time, in each title how long it takes and how much of it is idle, and one legend."""
    drawn = figure({"simulated": timeline(), "measured": timeline(scale=2e-3, begin=7)})
    first, second = drawn.axes
    assert first.get_xlim() == second.get_xlim() == (0, pytest.approx(1.01 * 32))
    assert first.get_title(loc="left") == "simulated: 16 ms, 25% idle"
    assert second.get_title(loc="left") == "measured: 32 ms, 25% idle"
    assert second.get_xlabel() == "ms"
    assert [label.get_text() for label in first.get_yticklabels()] == ["rank 0", "rank 1"]
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the first place is on top
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [KINDS[kind] for kind in "FDIWV"]
    assert len(set(COLORS.values())) == 5


def test_numbers_stand_where_there_is_room(figure) -> None:
    def numbers(found: Timeline) -> list[str]:
        return sorted(text.get_text() for text in figure({"": found}).axes[0].texts)

    assert numbers(timeline()) == sorted(str(span.op.chunk) for span in timeline().spans)
    two = simulate(wavefront((1, 1), 1), lambda op: 1)
    assert numbers(two) == sorted(f"{span.op.micro}.0" for span in two.spans)
    assert numbers(Timeline((Span(Op("F", 0, 0, 3), 0, 1), Span(Op("F", 0, 0, 4), 1, 1.001)))) == ["3"]
