"""Gradients of data ranks: they are added, whichever way, and what cannot be done is said."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from plait.ranks.data import groups_of, why_not_shared
from rank_jobs import Sum, Team, added, deserted, lent, updated, without_memory

WAYS = {"shared": "shared memory", "network": "the network", "server": "a server"}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(4)
    yield team
    team.close()


def expected(s: Sum, step: int) -> list[np.ndarray]:
    """In the order of ranks."""
    sums = []
    for k, p in enumerate(s.parameters()):
        some = [s.gradient(rank, step, k) for rank in range(s.ranks)]
        sums.append(sum([g for g in some if g is not None], torch.zeros_like(p)).detach().numpy())
    return sums


def assert_sums(s: Sum, found: list[list[list[np.ndarray]]]) -> None:
    """found: per rank and step"""
    for step in range(3):
        for rank in range(1 if s.way == "server" else s.ranks):
            for a, b in zip(found[rank][step], expected(s, step), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12 if s.dtype == "float64" else 1e-5, atol=1e-12)
            for a, b in zip(found[rank][step], found[0][step], strict=True):
                np.testing.assert_array_equal(a, b)


@every_way
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_they_are_added(team: Team, ranks: int, way: str) -> None:
    """Also where some ranks have no gradient of a parameter, and nobody has one of another."""
    absent = ((0, 1), (1, 1), (1, 3), *((rank, 4) for rank in range(ranks)))
    for s in (Sum(ranks, way), Sum(ranks, way, dtype="float32", absent=absent), Sum(ranks, way, shapes=((1,),))):
        done = [d for d in team.ask(added, s) if d is not None]
        assert [how for how, _, _ in done] == [WAYS[way]] * ranks
        assert_sums(s, [found for _, _, found in done])
        assert all(sent > 0 for _, sent, _ in (done[1:] if way == "server" else done)) or s.shapes == ((1,),)


@pytest.mark.parametrize("group", [1, 100, 200])
def test_in_groups_of_any_size(team: Team, group: int) -> None:
    s = Sum(3, "shared", group=group)
    assert_sums(s, [d[2] for d in team.ask(added, s) if d is not None])


@every_way
def test_gradients_that_are_lent_begin_at_zero(team: Team, way: str) -> None:
    s = Sum(3, way)
    assert_sums(s, [d for d in team.ask(lent, s) if d is not None])


def test_a_rank_by_itself(team: Team) -> None:
    s = Sum(1)
    ((how, sent, found),) = (d for d in team.ask(added, s) if d is not None)
    assert (how, sent) == ("one rank", 0)
    assert_sums(s, [found])


@every_way
def test_weights_are_the_same_on_all_ranks_after_an_update(team: Team, way: str) -> None:
    s = Sum(3, way)
    parameters = s.parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.5)
    for step in range(2):
        for p, g in zip(parameters, expected(s, step), strict=True):
            p.grad = torch.from_numpy(g)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    found = [d for d in team.ask(updated, s) if d is not None]
    assert len(found) == 3
    for weights in found:
        for a, b, p in zip(weights, found[0], parameters, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, p.detach().numpy(), rtol=1e-12)


# --- several hosts, and what is not there ----------------------------------------------------------------------------
def test_two_hosts_add_in_memory_first(team: Team) -> None:
    s = Sum(4, hosts=("a", "b", "a", "b"))
    done = [d for d in team.ask(added, s) if d is not None]
    assert {how for how, _, _ in done} == {"shared memory and the network"}
    assert_sums(s, [found for _, _, found in done])


UNEVEN = ("a", "a", "b"), "the hosts have different numbers of data ranks"
APART = ("a", "b", "c"), "every data rank is on a host of its own"


@pytest.mark.parametrize(("hosts", "why"), [UNEVEN, APART], ids=["uneven", "apart"])
def test_hosts_that_cannot_share_memory(team: Team, hosts: tuple[str, ...], why: str) -> None:
    s = Sum(3, hosts=hosts)
    done = [d for d in team.ask(added, s) if d is not None]
    assert [how for how, _, _ in done] == [f"the network: {why}"] * 3
    assert_sums(s, [found for _, _, found in done])
    asked = team.ask(without_memory, replace(s, way="shared"), ())[:3]
    assert asked == [(f"data ranks by shared memory: {why}; use data=3:network.", False)] * 3


@pytest.mark.parametrize("hosts", [None, ("a", "a", "b", "b")], ids=["one host", "two hosts, the second is full"])
def test_memory_that_is_not_free(team: Team, hosts: tuple[str, ...] | None) -> None:
    """The network is taken, on all hosts, with the reason; who insists on memory is refused."""
    s = Sum(4, hosts=hosts, shapes=((1 << 18,),))
    full = (0, 1, 2, 3) if hosts is None else (2, 3)
    why = f"{8 if hosts is None else 4} MB of shared memory are not free (No space left on device)"
    assert team.ask(without_memory, s, full) == [(f"the network: {why}", False)] * 4
    sentence = f"data ranks by shared memory: {why}; use data=4:network."
    assert team.ask(without_memory, replace(s, way="shared"), full) == [(sentence, False)] * 4
    assert team.ask(without_memory, replace(s, way="network"), full) == [("the network", False)] * 4


def test_another_processor_or_another_type_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    assert why_not_shared(some) is None
    assert why_not_shared([*some, nn.Parameter(torch.ones(2).double())]) == MIXED
    assert why_not_shared([nn.Parameter(torch.ones(2, device="meta"))]) == MIXED
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert why_not_shared(some) == "shared memory between ranks is for x86-64, this is aarch64"


MIXED = "the parameters are not all of one type on the CPU"


def test_a_rank_that_does_not_come() -> None:
    """It is late: after the timeout. It is gone: long before."""
    pair = Team(2)
    try:
        first, _ = pair.ask(deserted, Sum(2, "shared"), "late")
        assert first.startswith("Timed out waiting")
        with pytest.raises(AssertionError, match="rank 1: it is gone") as e:
            pair.ask(deserted, Sum(2, "shared"), "dead")
        assert "rank 0" not in str(e.value)  # it was told why, and did not wait until the timeout
    finally:
        pair.close()


# --- groups ----------------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 300))
def test_groups_are_all_parameters_in_their_order(sizes: list[int], least: int) -> None:
    groups = groups_of(sizes, least)
    assert [k for a, b in groups for k in range(a, b)] == list(range(len(sizes)))
    for a, b in groups[:-1]:
        assert sum(sizes[a:b]) >= least > sum(sizes[a : b - 1])
