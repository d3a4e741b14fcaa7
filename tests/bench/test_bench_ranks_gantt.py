"""What the picture of a pipeline shows."""

from collections.abc import Sequence
from typing import Any

import pytest

from plait.bench.core import pictures
from plait.bench.ranks.gantt import COLORS, gantt
from plait.ranks.schedule import KINDS, Op, Span, Timeline, simulate, wavefront

PANELS = [({"wavefront"}, "A step", gantt)]


def row(title: str, line: Timeline) -> dict:
    return {"wavefront": title, "ms": line.total * 1e3, "idle %": line.bubble * 100, "spans": line.spans}


def timeline(scale: float = 1e-3, begin: float = 0) -> Timeline:
    """Two stages, three chunks."""
    found = simulate(wavefront((3,), 2), lambda op: scale).spans
    return Timeline(tuple(Span(op, begin + start, begin + end) for op, start, end in found))


@pytest.fixture
def axes(monkeypatch):
    """The one panel of a picture, laid out."""

    def make(rows: Sequence[dict]) -> Any:
        figures: list[Any] = []
        monkeypatch.setattr(pictures, "png", lambda figure: figures.append(figure) or b"")
        assert pictures.drawn(rows, PANELS) == b""
        figures[0].canvas.draw()
        (found,) = figures[0].axes
        return found

    return make


def bars(axes: Any) -> set[tuple[str, int, int, int]]:
    """Colour, line, start and end in ms of each."""
    from matplotlib.colors import to_hex

    found = set()
    for collection in axes.collections:
        for path in collection.get_paths():
            box = path.get_extents()
            color = to_hex(collection.get_facecolor()[0])
            found.add((color, round((box.y0 + box.y1) / 2), round(box.x0), round(box.x1)))
    return found


def test_a_picture_is_a_png() -> None:
    assert pictures.drawn([row("simulated", timeline())], PANELS).startswith(b"\x89PNG")


def test_every_op_has_its_bar(axes) -> None:
    """From 0 on, whenever it was measured, and nothing else but grey under each line."""
    found = bars(axes([row("measured", timeline(begin=100))]))
    expected = {(COLORS[op.kind], op.place, round(1e3 * a), round(1e3 * b)) for op, a, b in timeline().spans}
    assert len(expected) == 24
    grey = {bar for bar in found if bar[0] not in COLORS.values()}
    assert found - grey == expected
    assert {bar[1:] for bar in grey} == {(0, 0, 16), (1, 0, 16)}


def test_two_steps_can_be_compared(axes) -> None:
    """The same scale of time, below it how long each takes and how much of it is idle, and one legend."""
    found = axes([row("measured", timeline(scale=2e-3, begin=7)), row("simulated", timeline())])
    assert found.get_xlim() == (0, pytest.approx(1.01 * 32))
    assert found.get_xlabel() == "ms: measured 32, 25 % idle; simulated 16, 25 % idle"
    names = ["measured, rank 0", "measured, rank 1", "simulated, rank 0", "simulated, rank 1"]
    assert [label.get_text() for label in found.get_yticklabels()] == names
    assert found.get_ylim()[0] > found.get_ylim()[1]  # the first line is on top
    lasts = {line: max(end for _, y, _, end in bars(found) if y == line) for line in range(4)}
    assert lasts == {0: 32, 1: 32, 2: 16, 3: 16}
    assert [text.get_text() for text in found.get_legend().get_texts()] == [KINDS[kind] for kind in "FDIWV"]
    assert len(set(COLORS.values())) == 5


def test_numbers_stand_where_there_is_room(axes) -> None:
    def numbers(found: Timeline) -> list[str]:
        return sorted(text.get_text() for text in axes([row("", found)]).texts)

    assert numbers(timeline()) == sorted(str(span.op.chunk) for span in timeline().spans)
    two = simulate(wavefront((1, 1), 1), lambda op: 1)
    assert numbers(two) == sorted(f"{span.op.micro}.0" for span in two.spans)
    assert numbers(Timeline((Span(Op("F", 0, 0, 3), 0, 1), Span(Op("F", 0, 0, 4), 1, 1.001)))) == ["3"]
