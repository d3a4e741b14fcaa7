"""What is measured becomes a cut: costs that fit, the same cut on all ranks, and cuts that are read again."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlaitError
from plait.layout import Layout
from plait.ranks.cut import Cut
from plait.ranks.measure import OpCost, PipelineCosts, best
from plait.ranks.shape import Shape
from rank_jobs import How, Net, Part, Team, chosen

Sample = tuple[int, int, bool, float]


# --- costs -----------------------------------------------------------------------------------------------------------
LAYOUTS = [Layout(6, 3), Layout(3, 3), Layout.of_lengths([9, 9, 4, 1]), Layout.of_lengths([2, 1]), Layout(1, 12)]


def samples(cost: OpCost) -> list[Sample]:
    return [(x.T, x.N, first, cost.of(x, first)) for x in LAYOUTS for first in (False, True)]


@given(*[st.floats(0, 1).map(lambda x: round(x, 3)) for _ in range(4)])
def test_known_costs_are_found_again(call: float, step: float, row: float, pack: float) -> None:
    cost = OpCost(call, step, row, pack)
    assert OpCost.fit(samples(cost)) == pytest.approx(cost, abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500), st.booleans(), st.floats(0, 1)), min_size=1))
def test_no_cost_is_below_zero(measured: list[Sample]) -> None:
    assert min(OpCost.fit(measured)) >= 0


def test_steps_and_rows_that_say_the_same_both_have_a_part() -> None:
    """All batches are four wide. What is predicted for another one of them is right all the same."""
    measured = [(T, 4 * T, first, 1.0 + 2 * T + 4 * first) for T in (1, 2, 5, 8) for first in (False, True)]
    cost = OpCost.fit(measured)
    assert min(cost.step, cost.row) > 0
    assert cost.of(Layout(20, 4), False) == pytest.approx(41)
    assert (cost.call, cost.pack) == pytest.approx((1, 4))


# --- the best cut ---------------------------------------------------------------------------------------------------
def costs(layers: list[float], decoder: float, call: float = 0.1) -> PipelineCosts:
    """layers, decoder: seconds of a row, forward and backward. call: of an op, however many rows it has"""
    each = [{kind: OpCost(call, 0.0, row, 0.0) for kind in "FIW"} for row in layers]
    return PipelineCosts(each, {kind: OpCost(call, 0.0, decoder, 0.0) for kind in "DV"}, 0.0, 0.0, 1)


LONG = [Layout(64, 10)]


def test_work_decides_which_stage_has_how_many_layers() -> None:
    assert best(costs([1.0] * 8, 0.001), LONG, Shape(1, 2), 8).split == (4, 4)
    assert best(costs([1.0] * 8, 6.0), LONG, Shape(1, 2), 8).split == (6, 2)
    assert best(costs([9.0, *[1.0] * 7], 0.001), LONG, Shape(1, 2), 8).split[0] <= 2
    assert best(costs([1.0] * 8, 0.001), LONG, Shape(1, 4), 8).split == (2, 2, 2, 2)


def test_the_cost_of_a_call_decides_how_many_chunks_there_are() -> None:
    cheap, dear = costs([1.0] * 4, 0.1, call=0.0), costs([1.0] * 4, 0.1, call=100.0)
    many, few = (best(some, LONG, Shape(1, 2), 4) for some in (cheap, dear))
    assert few.chunks < many.chunks
    assert dear.simulate(few, LONG[0]).total < dear.simulate(many, LONG[0]).total
    assert cheap.simulate(few, LONG[0]).total > cheap.simulate(many, LONG[0]).total


def test_what_was_asked_for_is_kept() -> None:
    cut = best(costs([1.0] * 4, 0.1), LONG, Shape(1, 2, micro=2, chunks=7), 4)
    assert (cut.chunks, cut.micro) == (7, 2)
    assert best(costs([1.0] * 4, 0.1), [Layout(3, 5)], Shape(1, 2), 4).chunks <= 3  # no more than there are steps


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(4)
    yield team
    team.close()


@pytest.mark.parametrize(("data", "stages", "micro", "chunks"), [(1, 3, 1, None), (2, 2, 2, 5)])
def test_all_ranks_take_the_same_plan(team: Team, data: int, stages: int, micro: int, chunks: int | None) -> None:
    """Nothing is left of what was measured: no gradients, and random numbers go on as before."""
    net = Net((Part("gru", layers=4),), dtype="float32")
    found = [f for f in team.ask(chosen, net, How(data, stages, micro=micro), chunks) if f is not None]
    assert len(found) == data * stages
    assert all(f == (found[0][0], True, False) for f in found)
    cut = Cut.of(found[0][0])
    assert (sum(cut.split), len(cut.split), cut.micro) == (4, stages, micro)
    assert chunks in (None, cut.chunks)


def test_more_stages_than_layers(team: Team) -> None:
    found = team.ask(chosen, Net((Part("gru", layers=2),)), How(1, 3), None)
    sentence = "layers=3: the network has 2 layers, and every stage needs one: use layers=2 or fewer."
    assert found == [({"error": sentence}, True, False)] * 3 + [None]


# --- cuts in a file -------------------------------------------------------------------------------------------------
cuts = st.builds(
    Cut,
    st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple),
    st.integers(1, 99),
    st.integers(1, 9),
    st.integers(0, 99),
    st.floats(0, 1000),
)


@given(cuts)
def test_a_cut_comes_back_from_json(cut: Cut) -> None:
    assert Cut.of(json.loads(json.dumps(cut.as_dict()))) == cut


GOOD = Cut((2, 1), 4).as_dict()
UNREADABLE = {
    "no cut": None,
    "a list": [1, 2],
    "a number is missing": {name: value for name, value in GOOD.items() if name != "micro"},
    "no split": {**GOOD, "split": None},
    "a word": {**GOOD, "chunks": "few"},
    "a word in the split": {**GOOD, "split": [1, "x"]},
    "no end of chunks": {**GOOD, "chunks": float("inf")},
    "no number of chunks": {**GOOD, "chunks": float("nan")},
}
NONSENSE = {
    "no layers": {**GOOD, "split": [3, 0]},
    "no chunks": {**GOOD, "chunks": 0},
    "no micro-batches": {**GOOD, "micro": 0},
    "decoded before it begins": {**GOOD, "early": -1},
    "a step that gives time": {**GOOD, "step_cost": -0.5},
    "a step that never ends": {**GOOD, "step_cost": float("nan")},
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_plan_that_cannot_be_read(name: str) -> None:
    with pytest.raises(PlaitError, match=r"^a cut into stages cannot be read \(\w+: .*\)\.$"):
        Cut.of(UNREADABLE[name])


@pytest.mark.parametrize("name", NONSENSE)
def test_a_plan_that_makes_no_sense(name: str) -> None:
    with pytest.raises(PlaitError, match=r"^a cut into stages makes no sense: Cut\(.*\)\.$"):
        Cut.of(NONSENSE[name])
