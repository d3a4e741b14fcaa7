"""What is drawn, and how it can be read."""

import math

import pytest

from plait.data import series
from plait.tasks import pictures
from plait.tasks.forecast import Forecast
from plait.tasks.settings import ForecastSettings


@pytest.mark.parametrize(
    "rows", [[(6.1234567, 6.2)], [(900, 177)], [(1e300, 1e200)], [(300 / k + 60, 200 / k + 90) for k in range(1, 14)]]
)
def test_a_perplexity_picture_has_a_few_round_ticks(rows: list[tuple[float, float]], monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(pictures, "png", lambda figure: drawn.append(figure) or b"")
    history = [{"epoch": k, "loss": math.log(a), "validation": math.log(b)} for k, (a, b) in enumerate(rows, 1)]
    pictures.perplexity_picture("name", history, rows[-1][1])
    drawn[0].canvas.draw()
    (axes,) = drawn[0].axes
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        at = [t for t in axis.get_majorticklocs() if limits[0] <= t <= limits[1]]
        shown = [label.get_text() for label in axis.get_ticklabels() if label.get_text()]
        assert 1 <= len(at) <= 9
        assert len(set(shown)) == len(shown)
        assert all(len(text) <= 10 for text in shown)
        assert [t for t in axis.get_minorticklocs() if limits[0] <= t <= limits[1]] == []
    assert all(t == int(t) for t in axes.get_xticks())


def test_a_forecast_picture_shows_the_forecast_that_is_hard_to_beat(monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(pictures, "png", lambda figure: drawn.append(figure) or b"")
    task = Forecast(ForecastSettings(hidden=4), series.airline())
    metrics = task.evaluate()
    task.pictures(metrics, [])
    lines = {line.get_label(): line.get_ydata() for line in drawn[0].axes[0].lines}
    assert list(lines) == ["history", "truth", "seasonal naive", "seasonal naive + drift", "lstm, 12 steps at a time"]
    found = series.errors(lines["seasonal naive + drift"][1:], task.data.values[-24:])
    assert found == metrics["seasonal naive + drift"]
