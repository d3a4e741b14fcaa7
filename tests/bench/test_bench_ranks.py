"""`plait bench ranks`: what it counts, by hand, and a small run of all of it. Its figures are looked at elsewhere."""

import copy
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from plait.bench.core.texts import Text
from plait.bench.questions import RanksOptions
from plait.bench.ranks.contender import Contender
from plait.bench.ranks.measure import TABLES, closing
from plait.bench.ranks.parts import Share, data_simulated, shares
from plait.bench.ranks.scaling import karp_flatt, variants
from plait.bench.ranks.text import beginning, made_up
from plait.bench.ranks.training import curve_rows, smoothed
from plait.ranks import launch
from plait.ranks.schedule import Op, wavefront
from plait.training.crew import Alone

TINY = ("--layers", "2", "--hidden", "8", "--embedding", "4", "--batch", "4", "--steps", "5", "--ranks", "2")


# --- all of it -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_small_run_has_every_table(rows_of, book: str) -> None:
    rows, out = rows_of("ranks", "--quick", "--data", book, *TINY, "--repeats", "5", "--picture", "gantt.png")
    assert Path("gantt.png").read_bytes().startswith(b"\x89PNG")
    for columns in TABLES:
        assert any(row.keys() >= set(columns) for row in rows), columns
        assert any(line.startswith(columns[0]) for line in out.splitlines()), columns

    found = {(row["strong scaling"], row["text"]): row for row in rows if "strong scaling" in row}
    names = ["1 rank", "2 ranks, no exchange", "data=2", "data=2:network", "data=2:server", "2 threads", "layers=2"]
    assert list(found) == [(name, text) for text in ("streams", "sentences") for name in names]
    for (name, _), row in found.items():
        assert 0 < row["low"] <= row["speed-up"] <= row["high"]
        workers = row["ranks"] * row["threads"]
        assert row["efficiency"] == row["speed-up"] / workers
        assert row["Karp-Flatt"] == karp_flatt(row["speed-up"], workers)
        if name != "2 ranks, no exchange":
            assert row["deviation"] < 1e-5
    assert found["2 ranks, no exchange", "streams"]["of limit %"] == 100

    sent = {
        (row["time of"], row["rank"]): row["MB sent"] * 2**20
        for row in rows
        if row.get("text") == "streams" and "time of" in row
    }
    assert sent["layers=2", 0] == sent["layers=2", 1] == 4 * 5 * 8 * 4  # a batch of rows, each way
    words = 17 + 2
    weights = words * 4 + 4 * 8 * (4 + 8 + 2) + 4 * 8 * (8 + 8 + 2) + words * 8 + words
    assert sent["data=2:server", 0] == sent["data=2:server", 1] == weights * 4
    steps = [row for row in rows if "time of" in row]
    for row in steps:
        assert min(row["compute"], row["exposed"], row["hidden"]) >= 0
        assert row["compute"] + row["exposed"] + row["wait"] < 20 * row["step ms"]
    assert {row["mesh"] for row in rows if "mesh" in row} == {*names[:1], *names[2:5], names[6], "layers=2:micro=2"}
    assert [row["global batch"] for row in rows if "global batch" in row] == [4, 16, 16, 64, 64]
    (curve,) = (row["curve"] for row in rows if row.get("training") == "layers=2")
    (same,) = (row["curve"] for row in rows if row.get("training") == "1 rank")
    assert [loss for _, loss in curve] == pytest.approx([loss for _, loss in same], rel=1e-4)
    assert "Largest deviation of loss and gradients from one rank (relative): data=2 " in out
    assert "training: the set loss is " in out


# --- by hand ---------------------------------------------------------------------------------------------------------
def test_karp_flatt() -> None:
    assert karp_flatt(2.0, 4) == pytest.approx(1 / 3)  # a third of the work on one rank: 1/3 + 2/3 / 4 = 1/2
    assert karp_flatt(4.0, 4) == 0
    assert karp_flatt(1.0, 4) == 1
    assert karp_flatt(1.6, 2) == pytest.approx(0.25)
    assert karp_flatt(1.0, 1) is None


def test_a_step_lasts_from_the_first_start_to_the_last_end() -> None:
    first, second = (
        [(1.0, 3.0), (10.0, 11.0), (20.0, 22.0), (30.0, 30.5)],
        [(1.5, 2.0), (9.0, 10.5), (20.0, 24.0), (30, 31)],
    )
    both = Contender("both", task("streams", 2), None, 2)
    both.take([[{"start": a, "end": b} for a, b in step] for step in zip(first, second, strict=True)])
    assert both.steps == [2.0, 2.0, 4.0, 1.0]
    assert both.seconds == [4.0, 5.0]  # two batches, two repeats


def note(start: float, backward: float, stepped: float, clipped: float, end: float, **more: object) -> dict:
    marks = {"start": start, "backward": backward, "stepped": stepped, "clipped": clipped, "end": end}
    return {**marks, "exchanging": 0.0, **more}


def test_shares_of_data_ranks() -> None:
    """The second rank is a second late; then both add for half a second. A quarter was added on the way."""
    notes = [note(0, 5, 6.5, 7, 8, exchanging=0.25), note(0, 6, 6.5, 7, 8)]
    assert shares(notes) == [Share(6.25, 0.75, 1.0), Share(7.5, 0.5, 0.0)]
    # a server updates for 0.75 s, and sends for 0.25 s
    assert shares(notes, update=0.75) == [Share(6.0, 1.0, 1.0), Share(6.5, 0.75, 0.75)]


def test_shares_of_stages() -> None:
    """Two stages, one chunk: the message takes half a second each way."""
    F0, F1, D1, I1, I0 = Op("F", 0, 0, 0), Op("F", 1, 0, 0), Op("D", 1, 0, 0), Op("I", 1, 0, 0), Op("I", 0, 0, 0)
    W0, W1, V1 = Op("W", 0, 0, 0), Op("W", 1, 0, 0), Op("V", 1, 0, 0)
    spans = [
        [(F0, 1.0, 3.0), (I0, 8.5, 10.0), (W0, 10.0, 11.0)],
        [(F1, 3.5, 5.0), (D1, 5.0, 6.0), (I1, 6.0, 8.0), (V1, 8.0, 8.5), (W1, 8.5, 9.0)],
    ]
    notes = [note(0, 11, 11.25, 12, 13, spans=spans[0]), note(0, 9, 11.25, 12, 13, spans=spans[1])]
    needs = wavefront([1], 2).needs
    first, last = shares(notes, needs)
    assert first == Share(13 - 0.5 - 0.25 - 5.0, 0.5 + 0.25, 5.0)  # it has nothing to do from 3 to 8
    assert last == Share(13 - 0.5 - 0.25 - 5.0, 0.5 + 0.25, 3.0 + 2.0)  # from 0 to 3, and at the end


def test_a_step_of_data_ranks_from_its_parts() -> None:
    """Two groups of gradients, the upper one with three quarters of the weights."""
    alone = note(0, 6, 6, 6.5, 7, arrived=[3.0, 4.0, 6.0])
    groups = [[4, 8], [4]]
    assert data_simulated([alone, alone], groups, exchange=1.0) == 7 + 1
    late = note(0, 7, 7, 7.5, 8, arrived=[3.0, 5.0, 7.0])
    # the first rank: 2 + 2 forward and back; it goes on to 6 and then adds the upper group, and from 7.75 on the rest
    assert data_simulated([alone, late], groups, exchange=1.0) == pytest.approx(7.75 + 0.25 + 1.0)
    # a server adds all at the end, updates, and sends the weights back
    assert data_simulated([alone, late], [[4, 8, 4]], exchange=1.5) == 7 + 1.5 + 1


def test_seconds_to_a_set_loss() -> None:
    a, b = [5.0, 3.0, 1.0], [5.0, 2.0, -1.0]
    rows = curve_rows({"a": (a, [1.0, 1.0, 1.0]), "b": (b, [0.5, 0.5, 1.5])})
    assert [(row["set loss"], row["steps to it"], row["s to it"]) for row in rows] == [(3.0, 3, 3.0), (3.0, 3, 2.5)]
    assert rows[1]["curve"] == [[0.5, 5.0], [1.0, 3.5], [2.5, 2.0]]  # means of all losses up to there
    assert smoothed([6.0, 4.0, 2.0, 0.0, 8.0, 1.0]) == [6.0, 5.0, 4.0, 3.0, 4.0, 3.0]


def test_the_papers_table() -> None:
    common = {"text": "streams", "busiest/mean": 1.25}
    rows = [
        {"time of": "layers=2", "rank": 0, "MB sent": 1.0, **common},
        {"time of": "layers=2", "rank": 1, "MB sent": 2.0, **common},
        {"time of": "layers=2", "rank": 1, "MB sent": 9.0, **common, "text": "sentences"},
        {"training": "layers=2", "s to it": 3.5},
    ]
    assert closing(rows) == [{"the paper's table": "layers=2", "MB sent": 2.0, "busiest/mean": 1.25, "s to it": 3.5}]


# --- the text --------------------------------------------------------------------------------------------------------
def test_a_text_made_up_is_like_penn_treebank() -> None:
    text = made_up(1000, 3000, 0)
    train = text.parts["train"]
    lengths = train.lengths.numpy() - 1  # without the end
    assert 20 < lengths.mean() < 22
    assert 9 < lengths.std() < 11
    assert lengths.max() == 82
    assert (train.ids[train.starts[1:] - 1] == text.end).all()
    assert int((train.ids == text.end).sum()) == 3000
    counts = np.sort(np.bincount(train.ids))[::-1]
    assert counts[1] > 3 * counts[10] > 9 * counts[100]  # Zipf's law, but for favourites
    assert torch.equal(train.ids, made_up(1000, 3000, 0).parts["train"].ids)
    assert not torch.equal(train.ids[:100], made_up(1000, 3000, 1).parts["train"].ids[:100])
    some = beginning(text, 100)
    assert [len(encoded.lengths) for encoded in some.parts.values()] == [100, 5, 5]
    assert torch.equal(some.parts["train"].lengths, train.lengths[:100])


ORDER = RanksOptions(layers=2, hidden=8, steps=5, batch=7, ranks=3)


def task(by: str, size: int = 2) -> Text:
    cut = {"steps": 5} if by == "streams" else {"buckets": "none"}
    return Text(ORDER.settings(by=by, batch="7", **cut), made_up(50, 100, 0), size)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("by", ["streams", "sentences"])
def test_ranks_have_a_batch_together(by: str, ranks: int) -> None:
    text = task(by)
    for indices in text.chosen:
        whole = text.rows(indices)
        parts = []
        for rank in range(ranks):
            mine = copy.copy(text)
            mine.share(rank, ranks)
            assert mine.count(indices) == text.count(indices) == whole[2].N
            parts.append(mine.rows(indices))
        assert sum(part[2].N for part in parts) == whole[2].N
        assert sorted(torch.cat([part[1] for part in parts]).tolist()) == sorted(whole[1].tolist())


def test_orders_go_there_and_back_as_json() -> None:
    order = RanksOptions()
    assert RanksOptions(**json.loads(json.dumps(asdict(order)))) == order
    assert (order.layers, order.hidden, order.embedding, order.steps) == (8, 400, 200, 35)
    assert variants(order) == [(20, 400), (40, 400), (80, 400), (20, 100), (20, 200), (20, 600)]
    assert variants(RanksOptions(quick=True, hidden=30)) == [(20, 30), (40, 30), (20, 15)]


# --- a crew and its clock --------------------------------------------------------------------------------------------
def test_what_a_step_leaves_behind() -> None:
    """Phases in their order, the gradients of the whole batch, and the weights as they were."""
    text = task("streams", 1)
    before = [p.detach().clone() for p in text.model.parameters()]
    alone = Contender("alone", text, lambda _: Alone())
    alone.run(0)
    found = alone.note
    phases = [found[name] for name in ("start", "backward", "stepped", "clipped", "end")]
    assert phases == sorted(phases)
    assert all(found["start"] <= t <= found["backward"] for t in found["arrived"])
    assert found["arrived"][0] < found["arrived"][-1]  # from the top down
    assert found["sent"] == 0
    assert alone.deviation < 1e-6
    assert all(torch.equal(p, q) for p, q in zip(text.model.parameters(), before, strict=True))
    pairs = list(zip(alone.parameters, text.model.parameters(), strict=True))
    assert all(p is not q and p.data_ptr() == q.data_ptr() and p.grad is q.grad is None for p, q in pairs)
    for (p, _), d in zip(pairs, list(text.reference.values())[1:], strict=True):
        p.grad = d.clone()
    assert alone.distance() < 1e-6
    alone.parameters[0].grad *= 1.5
    assert alone.distance() == pytest.approx(0.5)
    alone.parameters[0].grad /= 1.5
    found["loss"] *= 1.5
    assert alone.distance() == pytest.approx(0.5)


def test_what_is_not_compared() -> None:
    """A part of a step, and a part of the batch alone."""
    text = task("streams", 1)
    whole, some = (Contender("", text, lambda _: Alone()) for _ in range(2))
    some.task.share(0, 2)
    for c in (whole.part("outside"), some):
        c.run(0)
        assert c.deviation is None


def test_who_learns_has_weights_of_its_own() -> None:
    text = task("streams", 1)
    text.learns = True
    learner = Contender("learner", text, lambda _: Alone())
    learner.run(0)
    assert all(not torch.equal(p, q) for p, q in zip(learner.parameters, text.model.parameters(), strict=True))
    assert all(p.grad is None for p in learner.parameters)


# --- mistakes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--ranks", "1"], "ranks 1: must be at least 2."),
        (["--layers", "1"], "layers 1: must be at least 2."),
        (["--layers", "0"], "layers 0: must be at least 2."),
        (["--hidden", "0"], "hidden 0: must be at least 1."),
        (["--embedding", "0"], "embedding 0: must be at least 1."),
        (["--batch", "3"], "batch 3: must be at least 4."),
        (["--steps", "1"], "steps 1: must be at least 2."),
        (["--repeats", "4"], "repeats 4: must be at least 5."),
        (["--picture", "gantt.jpg"], "--picture gantt.jpg: expected the name of a PNG file"),
        (["--data", "nowhere.txt"], "nowhere.txt"),
        (["--data", "book.txt"], "batches of 80 x 35 need 2,800"),
        (["--data", "book.txt", "--quick", "--batch", "40", "--steps", "2"], "134 sentences to train on"),
    ],
)
def test_what_cannot_be_measured(refused, book: str, args: list[str], sentence: str) -> None:
    assert sentence in refused("bench", "ranks", *args)


@pytest.mark.parametrize("question", ["ranks", "time"])
def test_a_job_that_fails(refused, plait, book: str, monkeypatch, question: str) -> None:
    options = {"ranks": ("--data", book, *TINY), "time": ("--parts", "ranks")}
    args = ("bench", question, "--quick", *options[question])

    def failing(argv: list[str], count: int, *, say, **_: object) -> int:
        say("rank 1 on here was killed (SIGKILL).")
        return 1

    monkeypatch.setattr(launch, "launch", failing)
    assert refused(*args) == "plait: rank 1 on here was killed (SIGKILL).\n"
    monkeypatch.setattr(launch, "launch", lambda *_, **__: 130)
    code, out, _ = plait(*args)
    assert (code, out) == (130, "")
