"""Schedules as they are drawn, and their simulation against a clock that ticks."""

import dataclasses
import inspect
import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait import PlaitError
from plait.ranks import schedule as module
from plait.ranks.schedule import Line, Op, Schedule, Span, Timeline, balance, data, simulate, split, wavefront

many = settings(max_examples=150, deadline=None)


def one(op: Op) -> float:
    return 1


def table(seconds: Mapping[str, float]) -> Callable[[Op], float]:
    """The cost of each kind, or of a kind at one place, such as 0F."""
    return lambda op: seconds.get(f"{op.place}{op.kind}", seconds.get(op.kind, 1))


def drawing(schedule: Schedule, cost: Callable[[Op], float] = one) -> str:
    """One row for each place, one column for each second; 0F2 is place 0, forward, chunk 2."""
    timeline = simulate(schedule, cost)
    several = any(span.op.micro for span in timeline.spans)
    rows = []
    for place in range(timeline.places):
        cells: list[str] = []
        for op, start, end in timeline.spans:
            if op.place == place:
                name = str(op) if several else f"{op.place}{op.kind}{op.chunk}"
                cells += ["."] * (int(start) - len(cells)) + [name] + ["="] * int(end - start - 1)
        rows.append(" ".join(cell.center(5 if several else 3) for cell in cells).rstrip())
    return "\n".join(rows)


# --- as drawn


@pytest.mark.parametrize(("function", "made"), [(wavefront, wavefront((3,), 2)), (data, data(2, 2))])
def test_the_drawing_in_the_docstring(function: Callable[..., Schedule], made: Schedule) -> None:
    assert textwrap.indent(drawing(made), "    ") in inspect.getdoc(function)


def test_a_wavefront() -> None:
    assert "\n" + drawing(wavefront((3,), 2)) == (
        """
0F0 0F1 0F2  .   .   .  0I2 0W2 0I1 0W1 0I0 0W0
 .  1F0 1F1 1F2 1D2 1I2 1D1 1I1 1D0 1I0 1V2 1V1 1V0 1W2 1W1 1W0"""
    )


def test_some_chunks_are_decoded_early() -> None:
    assert "\n" + drawing(wavefront((3,), 2, early=1)) == (
        """
0F0 0F1 0F2  .   .   .   .  0I2 0W2 0I1 0I0 0W1 0W0
 .  1F0 1D0 1F1 1F2 1D2 1I2 1D1 1I1 1I0 1V0 1V2 1V1 1W2 1W1 1W0"""
    )
    assert "1F0 1D0 1F1 1F2 1D2 1I2 1D1 1I1 1I0 1V0 1V2 1V1 1W2 1W1 1W0" in inspect.getdoc(wavefront)


def test_all_chunks_are_decoded_early() -> None:
    assert "\n" + drawing(wavefront((3,), 2, early=3)) == (
        """
0F0 0F1 0F2  .   .   .   .   .  0I2 0I1 0I0 0W2 0W1 0W0
 .  1F0 1D0 1F1 1D1 1F2 1D2 1I2 1I1 1I0 1V0 1V1 1V2 1W2 1W1 1W0"""
    )
    assert wavefront((3,), 2, early=99) == wavefront((3,), 2, early=3)


def test_waits_are_filled() -> None:
    """Stage 0 is slow forward and stage 1 is slow backward: each has something to do while it waits."""
    assert "\n" + drawing(wavefront((3,), 2, early=3), table({"0F": 3, "1I": 2})) == (
        """
0F0  =   =  0F1  =   =  0F2  =   =   .   .   .   .  0I2 0W2 0I1 0W1 0I0 0W0
 .   .   .  1F0 1D0 1V0 1F1 1D1 1V1 1F2 1D2 1I2  =  1I1  =  1I0  =  1V2 1W2 1W1 1W0"""
    )


def test_a_filler_is_not_interrupted() -> None:
    assert "\n" + drawing(wavefront((2,), 2, early=2), table({"0F": 3, "V": 4})) == (
        """
0F0  =   =  0F1  =   =   .   .   .   .   .   .  0I1 0I0 0W1 0W0
 .   .   .  1F0 1D0 1V0  =   =   =  1F1 1D1 1I1 1I0 1V1  =   =   =  1W1 1W0"""
    )


def test_two_micro_batches() -> None:
    assert "\n" + drawing(wavefront((2, 1), 2, early=3)) == (
        """
0F0.0 0F0.1 0F1.0   .     .     .     .     .   0I0.1 0I0.0 0I1.0 0W0.1 0W0.0 0W1.0
  .   1F0.0 1D0.0 1F0.1 1D0.1 1F1.0 1D1.0 1I0.1 1I0.0 1I1.0 1V0.0 1V0.1 1V1.0 1W0.1 1W0.0 1W1.0"""
    )


def test_ranks_sum_as_soon_as_all_have_it() -> None:
    """Rank 1 is the slower one. Rank 0 waits for its gradients, and sums its share of each group when they come."""
    assert "\n" + drawing(data(2, 3), table({"1I": 2, "F": 2})) == (
        """
0F0  =  0I2 0I1 0R2 0I0  .  0R1  .   .  0R0 0U0
1F0  =  1I2  =  1R2 1I1  =  1R1 1I0  =  1R0 1U0"""
    )


def test_what_is_needed() -> None:
    """Each with the letters of the drawing: the stage, the kind, the chunk."""
    found = wavefront((2,), 3).needs

    def needs(name: str) -> str:
        ops = found[Op(name[1], int(name[0]), 0, int(name[2]))]
        return " ".join(f"{op.place}{op.kind}{op.chunk}" for op in ops)

    assert [needs(name) for name in ("0F0", "0F1", "1F0", "2F1")] == ["", "0F0", "0F0", "1F1 2F0"]
    assert [needs(name) for name in ("2I1", "2I0", "1I1", "0I0")] == ["2D1", "2D0 2I1", "2I1", "1I0 0I1"]
    assert [needs(name) for name in ("2D1", "2V1", "2W0", "1W0")] == ["2F1", "2D1", "2I0", "1I0"]
    assert len(found) == 2 * (3 * 3 + 2)


# --- by hand


def test_two_stages_by_hand() -> None:
    """The message of 1I0 comes at 17, just when stage 0 ends 0I1: it is there."""
    timeline = simulate(wavefront((2,), 2, early=2), table({"F": 2, "D": 3, "I": 2}), lambda a, b: 0.5)
    assert {f"{op.place}{op.kind}{op.chunk}": (start, end) for op, start, end in timeline.spans} == {
        "0F0": (0, 2),
        "0F1": (2, 4),
        "1F0": (2.5, 4.5),
        "1D0": (4.5, 7.5),
        "1F1": (7.5, 9.5),
        "1D1": (9.5, 12.5),
        "1I1": (12.5, 14.5),
        "1I0": (14.5, 16.5),
        "0I1": (15, 17),
        "1V0": (16.5, 17.5),
        "0I0": (17, 19),
        "1V1": (17.5, 18.5),
        "1W1": (18.5, 19.5),
        "0W1": (19, 20),
        "1W0": (19.5, 20.5),
        "0W0": (20, 21),
    }
    assert timeline.total == 21
    assert (timeline.busy(0), timeline.waiting(0)) == (10, 11)
    assert (timeline.busy(1), timeline.waiting(1)) == (18, 3)
    assert timeline.bubble == pytest.approx(14 / 42)


@pytest.mark.parametrize("stages", [1, 2, 3, 7])
@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_a_total_that_is_known(stages: int, chunks: int) -> None:
    """The last stage begins at S - 1, and has 5 K to do; its last chunk goes back at S - 1 + 3 K, and is S - 1 later at
    stage 0, which has one W left. If all is decoded early, it goes back after 2 K, and stage 0 has 2 K to do from then.
    """
    late, early = (simulate(wavefront((chunks,), stages, early=e), one).total for e in (0, chunks))
    assert late == max(stages - 1 + 5 * chunks, 2 * (stages - 1) + 3 * chunks + 1)
    assert early == stages - 1 + 4 * chunks + max(chunks, stages - 1)


@pytest.mark.parametrize("stages", [1, 2, 3, 7])
@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_the_bubble_of_a_pipeline(stages: int, chunks: int) -> None:
    """With nothing but F and I it is the share that is known for all pipelines: (S - 1) / (S - 1 + K)."""
    timeline = simulate(wavefront((chunks,), stages), table({"D": 0, "V": 0, "W": 0}))
    assert timeline.total == 2 * (stages - 1 + chunks)
    assert timeline.bubble == pytest.approx((stages - 1) / (stages - 1 + chunks))


def test_hundreds_of_stages() -> None:
    """It takes a second; looking at all ops again after each of them would take many minutes."""
    assert simulate(wavefront((32,), 256), one).total == 255 + 3 * 32 + 255 + 1


def test_to_sum_early_pays_where_messages_are_slow() -> None:
    early = data(2, 2)
    late = dataclasses.replace(early, eager=False)

    def link(a: Op, b: Op) -> float:  # the group that is ready first is large
        return 3 if (a.kind, a.chunk) == ("R", 1) else 0

    assert simulate(early, one, link).total == 7  # 0R1 ends at 3, its message comes at 6
    assert simulate(late, one, link).total == 8


@many
@given(ranks=st.integers(1, 4), groups=st.integers(1, 4), numbers=st.data())
def test_to_sum_early_does_not_pay_where_messages_take_no_time(ranks: int, groups: int, numbers: st.DataObject) -> None:
    """A rank that sums before its own backward pass is done lets the others wait for it."""
    early = data(ranks, groups)
    costs = {op: numbers.draw(st.integers(0, 5)) for line in early.lines for ops in line for op in ops}
    late = dataclasses.replace(early, eager=False)
    assert simulate(late, costs.__getitem__).total <= simulate(early, costs.__getitem__).total


# --- any schedule


@st.composite
def some_schedules(draw: st.DrawFn) -> Schedule:
    """Ops in some order, each at a place and in one of its two queues, with needs among those before it."""
    count, places = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    ops = [Op("F", draw(st.integers(0, places - 1)), 0, k) for k in range(count)]
    used = sorted({op.place for op in ops})
    ops = [op._replace(place=used.index(op.place)) for op in ops]
    needs = {op: tuple(draw(st.lists(st.sampled_from(ops[:k]), max_size=3))) for k, op in enumerate(ops) if k}
    lines: list[tuple[list[Op], list[Op]]] = [([], []) for _ in used]
    for op in ops:
        lines[op.place][draw(st.integers(0, 1))].append(op)
    return Schedule(tuple(Line(tuple(main), tuple(fill)) for main, fill in lines), needs, draw(st.booleans()))


any_schedule = st.one_of(
    some_schedules(),
    st.builds(wavefront, st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 9)),
    st.builds(data, st.integers(1, 4), st.integers(1, 3)),
)


def with_costs(
    schedule: Schedule, numbers: st.DataObject, least: int
) -> tuple[dict[Op, int], dict[tuple[Op, Op], int]]:
    costs = {op: numbers.draw(st.integers(least, 4)) for line in schedule.lines for ops in line for op in ops}
    links = {(a, b): numbers.draw(st.integers(0, 4)) for b, needed in schedule.needs.items() for a in needed}
    return costs, links


def by_ticks(schedule: Schedule, costs: dict[Op, int], links: dict[tuple[Op, Op], int]) -> set[Span]:
    """Second by second, each place that is free looks at everything again. Every op takes a second or more."""
    spans: dict[Op, Span] = {}
    left = [[list(line.main), list(line.fill)] for line in schedule.lines]
    free = [0] * len(left)
    for now in range(sum(costs.values()) + sum(links.values()) + 1):

        def is_there(a: Op, b: Op, now: int = now) -> bool:
            return a in spans and spans[a].end + (links[a, b] if a.place != b.place else 0) <= now

        for place, (main, fill) in enumerate(left):
            for queue in (fill, main) if schedule.eager else (main, fill):
                if (
                    free[place] <= now
                    and queue
                    and all(is_there(a, queue[0]) for a in schedule.needs.get(queue[0], ()))
                ):
                    op = queue.pop(0)
                    free[place] = now + costs[op]
                    spans[op] = Span(op, now, free[place])
    return set(spans.values())


@many
@given(schedule=any_schedule, numbers=st.data())
def test_the_simulation_is_that_of_a_clock_that_ticks(schedule: Schedule, numbers: st.DataObject) -> None:
    costs, links = with_costs(schedule, numbers, least=1)
    timeline = simulate(schedule, costs.__getitem__, lambda a, b: links[a, b])
    assert set(timeline.spans) == by_ticks(schedule, costs, links)
    assert [span.start for span in timeline.spans] == sorted(span.start for span in timeline.spans)


@many
@given(schedule=any_schedule, numbers=st.data())
def test_what_holds_for_every_run(schedule: Schedule, numbers: st.DataObject) -> None:
    """Also if some ops take no time at all."""
    costs, links = with_costs(schedule, numbers, least=0)
    timeline = simulate(schedule, costs.__getitem__, lambda a, b: links[a, b])
    when = {span.op: span for span in timeline.spans}
    assert len(timeline.spans) == len(when)
    assert when.keys() == costs.keys()
    for b, needed in schedule.needs.items():
        assert all(when[a].end + (links[a, b] if a.place != b.place else 0) <= when[b].start for a in needed)
    for place, line in enumerate(schedule.lines):
        here = [span for span in timeline.spans if span.op.place == place]
        assert [span.op for span in here if span.op in line.main] == list(line.main)
        assert [span.op for span in here if span.op in line.fill] == list(line.fill)
        assert all(a.end <= b.start for a, b in itertools.pairwise(here))
        assert all(span.end - span.start == costs[span.op] for span in here)
        assert timeline.busy(place) == sum(costs[op] for ops in line for op in ops) <= timeline.total
        assert timeline.waiting(place) == timeline.total - timeline.busy(place)
    assert timeline.total >= critical_path(schedule, costs, links)
    assert 0 <= timeline.bubble < 1


def critical_path(schedule: Schedule, costs: dict[Op, int], links: dict[tuple[Op, Op], int]) -> int:
    """The longest chain of ops that wait for one another, with any number of places at work."""
    ends: dict[Op, int] = {}

    def end(b: Op) -> int:
        if b not in ends:
            come = [end(a) + (links[a, b] if a.place != b.place else 0) for a in schedule.needs.get(b, ())]
            ends[b] = costs[b] + max(come, default=0)
        return ends[b]

    return max(map(end, costs))


@many
@given(stages=st.integers(1, 4), chunks=st.integers(1, 4), numbers=st.data())
def test_fillers_do_not_change_the_rest(stages: int, chunks: int, numbers: st.DataObject) -> None:
    """If they take no time, everything else runs just as it would without them."""
    whole = wavefront((chunks,), stages)
    bare = Schedule(
        tuple(Line(line.main) for line in whole.lines),
        {op: needed for op, needed in whole.needs.items() if op.kind not in "WV"},
    )
    costs = {op: numbers.draw(st.integers(1, 5)) for line in whole.lines for ops in line for op in ops}
    costs |= {op: 0 for op in costs if op.kind in "WV"}
    with_them, without = (simulate(s, costs.__getitem__) for s in (whole, bare))
    assert [span for span in with_them.spans if span.op.kind not in "WV"] == list(without.spans)


# --- schedules and times that are none


def line(*names: str) -> tuple[Op, ...]:
    return tuple(Op(name[1], int(name[0]), 0, int(name[2])) for name in names)


a, b, c, d = line("0F0", "0I0", "1F0", "1I0")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Schedule((Line((a, b)), Line((c, d))), {a: (d,), c: (b,)}),
            "a run would never end: .* wait for each other",
        ),
        (lambda: Schedule((Line((b, a)), Line((d, c))), {b: (c,), d: (a,)}), "a run would never end"),
        (lambda: Schedule((Line((a,), (b,)),), {a: (a,)}), "a run would never end"),
        (lambda: Schedule((Line((), (b, a)),), {b: (a,)}), "a run would never end"),
        (lambda: Schedule((Line((a, b, a)),), {}), "0F0.0 is in the schedule twice"),
        (lambda: Schedule((Line((a, b), (a,)),), {}), "0F0.0 is in the schedule twice"),
        (lambda: Schedule((Line((a,)),), {a: (b,)}), "needs of 0F0.0: 0I0.0 is in no line"),
        (lambda: Schedule((Line((a,)),), {b: (a,)}), "needs of 0I0.0: 0I0.0 is in no line"),
        (lambda: Schedule((Line((a, d)),), {}), "1I0.0 in line 0: expected place 0"),
        (lambda: Schedule((Line((Op("X", 0, 0, 0),)),), {}), "0X0.0 in line 0: .* one of F, D, I, W, V, R, U, A"),
        (lambda: Schedule((Line((a,)), Line(())), {}), "place 1 has no op"),
        (lambda: wavefront((2, 0), 2), "chunks of micro-batch 1: 0: must be a whole number of at least 1"),
        (lambda: wavefront((), 2), "micro-batches 0: must be"),
        (lambda: wavefront((2,), 0), "stages 0: must be"),
        (lambda: data(0, 2), "ranks 0: must be"),
        (lambda: data(2, 0), "groups 0: must be"),
        (lambda: data(1.5, 1), "ranks 1.5: must be a whole number"),
        (lambda: split([1, 2, 3], 5), "layers=5: the network has 3 layers, and every stage needs one: use layers=3 or"),
        (lambda: split([], 1), "number of layers 0: must be"),
        (lambda: split([1], 0), "stages 0: must be"),
        (lambda: split([1, 2], 2, last=float("nan")), "work nan of number 1"),
        (lambda: balance([1, -2.0], 2), "work -2.0 of number 1, counted from 0: expected a number that is 0 or more"),
        (lambda: balance([float("inf")], 2), "work inf of number 0"),
        (lambda: balance([], 2), "steps 0: must be"),
        (lambda: balance([1], 0), "chunks 0: must be"),
        (lambda: simulate(data(2, 1), lambda op: -1), "0F0.0 takes -1 seconds: expected a number that is 0 or more"),
        (lambda: simulate(data(2, 1), lambda op: float("nan")), "0F0.0 takes nan seconds"),
        (lambda: simulate(data(2, 1), one, lambda a, b: -1), "0I0.0 to 1R0.0 takes -1 seconds"),
        (lambda: Timeline(()), "a timeline without spans"),
    ],
)
def test_bad_schedules_get_a_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        make()


def test_a_timeline_may_begin_at_any_time() -> None:
    """As a measured one does."""
    timeline = Timeline((Span(a, 100, 101), Span(c, 101, 104)))
    assert (timeline.places, timeline.total) == (2, 4)
    assert [timeline.busy(0), timeline.busy(1)] == [1, 3]
    assert timeline.bubble == 0.5
    assert Timeline((Span(a, 100, 100),)).bubble == 0


# --- shares


def sums(work: list[float], bounds: tuple[int, ...]) -> list[float]:
    return [sum(work[a:b]) for a, b in itertools.pairwise(bounds)]


def best(work: list[float], chunks: int) -> float:
    """The largest chunk, of all cuts the least."""
    inner = itertools.combinations(range(1, len(work)), chunks - 1)
    return min(max(sums(work, (0, *cuts, len(work)))) for cuts in inner)


some_work = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.lists(st.floats(0, 1e3), min_size=1, max_size=9),
)


@many
@given(work=some_work, chunks=st.integers(1, 10))
def test_no_cut_is_better(work: list[float], chunks: int) -> None:
    bounds = balance(work, chunks)
    chunks = min(chunks, len(work))
    assert len(bounds) == chunks + 1
    assert (bounds[0], bounds[-1]) == (0, len(work))
    assert all(a < b for a, b in itertools.pairwise(bounds))
    assert max(sums(work, bounds)) == pytest.approx(best(work, chunks), rel=1e-12)
    for a, b, c in zip(bounds, bounds[1:], bounds[2:], strict=False):  # each is the best between its neighbours
        assert max(sums(work, (a, b, c))) == pytest.approx(best(work[a:c], 2), rel=1e-12)


@many
@given(work=st.lists(st.integers(0, 30), min_size=4, max_size=12), chunks=st.integers(2, 6))
def test_the_unit_of_work_does_not_matter(work: list[int], chunks: int) -> None:
    assert (
        balance([w / 2**20 for w in work], chunks)
        == balance([w * 2**20 for w in work], chunks)
        == balance(work, chunks)
    )


@many
@given(T=st.integers(1, 500), chunks=st.integers(1, 40), each=st.sampled_from([1, 20, 0.1]))
def test_steps_of_equal_work_are_cut_evenly(T: int, chunks: int, each: float) -> None:
    sizes = [b - a for a, b in itertools.pairwise(balance([each] * T, chunks))]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("work", "chunks", "bounds"),
    [
        ([1] * 10, 4, (0, 2, 5, 7, 10)),
        ([8, 1, 1, 1, 1], 3, (0, 1, 3, 5)),  # the rest is even
        ([1, 1, 1, 1, 8], 3, (0, 2, 4, 5)),
        ([4, 4, 3, 2, 2, 1, 1, 1], 3, (0, 1, 3, 8)),  # ragged: fewer sequences with each step
        ([1, 5, 1, 0, 0, 3, 1, 5], 4, (0, 1, 2, 7, 8)),  # bounds that seem even, 0 2 5 7 8, have a chunk of 6
        ([0, 0, 0], 2, (0, 1, 3)),
        ([5, 5], 9, (0, 1, 2)),
    ],
)
def test_cuts_by_example(work: list[float], chunks: int, bounds: tuple[int, ...]) -> None:
    assert balance(work, chunks) == bounds


@many
@given(costs=some_work, stages=st.integers(1, 9), first=st.integers(0, 20), last=st.integers(0, 20))
def test_no_split_is_better(costs: list[float], stages: int, first: int, last: int) -> None:
    stages = min(stages, len(costs))
    counts = split(costs, stages, first, last)
    assert len(counts) == stages
    assert min(counts) >= 1
    assert sum(counts) == len(costs)
    work = [*costs]
    work[0] += first
    work[-1] += last
    bounds = (0, *itertools.accumulate(counts))
    assert max(sums(work, bounds)) == pytest.approx(best(work, stages), rel=1e-12)


@pytest.mark.parametrize(
    ("costs", "stages", "first", "last", "counts"),
    [
        ([1] * 8, 2, 0, 0, (4, 4)),
        ([1] * 8, 2, 0, 3.3, (6, 2)),  # measured: 1.60 times as fast; 5, 3 is 1.39, and 4, 4 is 1.19
        ([1] * 8, 4, 0, 3.3, (3, 2, 2, 1)),
        ([1] * 8, 2, 3, 0, (2, 6)),
        ([2, 1, 1], 2, 0, 0, (1, 2)),
        ([1] * 3, 3, 9, 9, (1, 1, 1)),
        ([1], 1, 2, 3, (1,)),
        ([1] * 1024, 1024, 0, 0, (1,) * 1024),
    ],
)
def test_splits_by_example(costs: list[float], stages: int, first: float, last: float, counts: tuple[int, ...]) -> None:
    assert split(costs, stages, first, last) == counts


def test_schedules_do_without_torch() -> None:
    """A simulation of a thousand ranks starts at once. (The package around it may need torch.)"""
    folder = str(Path(module.__file__).parent)
    code = f"""
import sys, types
sys.modules["plait.ranks"] = package = types.ModuleType("plait.ranks")
package.__path__ = [{folder!r}]
import plait.ranks.schedule
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
