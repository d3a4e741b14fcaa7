"""Any mesh is one process: loss, every gradient and every state, against the bare equations under autograd."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from plait.ladder.compare import TOLERANCE, relative
from rank_jobs import (
    Done,
    How,
    Net,
    Part,
    Spoken,
    Stepped,
    Team,
    exact,
    language_model,
    part_of,
    slope,
    speak,
    tokens_of,
)
from reference import Formula


# --- one process -----------------------------------------------------------------------------------------------------
# The equations as one writes them in torch. a = W x + b, u = R h + c, all gates in one.
def lstm(a: Tensor, u: Tensor, state: list[Tensor], _) -> tuple[Tensor, ...]:
    (_, c), (i, f, g, o) = state, (a + u).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(a: Tensor, u: Tensor, state: list[Tensor], _) -> tuple[Tensor, ...]:
    (h,), (a_r, a_z, a_n), (u_r, u_z, u_n) = state, a.chunk(3), u.chunk(3)
    z, n = torch.sigmoid(a_z + u_z), torch.tanh(a_n + torch.sigmoid(a_r + u_r) * u_n)
    return ((1 - z) * n + z * h,)


def implicit_gru(a: Tensor, u: Tensor, state: list[Tensor], _) -> tuple[Tensor, ...]:
    (h,), (a_r, a_z, a_n), (u_r, u_z, u_n) = state, a.chunk(3), u.chunk(3)
    z, n = torch.sigmoid(a_z + u_z), torch.tanh(a_n + torch.sigmoid(a_r + u_r) * u_n)
    return ((h + (1 - z) * n) / (2 - z),)


def mgu(a: Tensor, u: Tensor, state: list[Tensor], _) -> tuple[Tensor, ...]:
    (h,), (a_f, a_n), (u_f, u_n) = state, a.chunk(2), u.chunk(2)
    f = torch.sigmoid(a_f + u_f)
    return ((1 - f) * h + f * torch.tanh(a_n + f * u_n),)


def peephole(a: Tensor, u: Tensor, state: list[Tensor], params: list[Tensor]) -> tuple[Tensor, ...]:
    (_, c), (p_i, p_f, p_o), (i, f, g, o) = state, params, (a + u).chunk(4)
    new = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * torch.tanh(g)
    return torch.sigmoid(o + p_o * new) * torch.tanh(new), new


FORMULAS = {
    "rnn": lambda a, u, state, _: (torch.tanh(a + u),),
    "rnn_relu": lambda a, u, state, _: (torch.relu(a + u),),
    **{f.__name__: f for f in (lstm, gru, implicit_gru, mgu, peephole)},
}


@cache
def alone(net: Net) -> list[Stepped]:
    """One process in float64, sequence by sequence. The states are one list for each layer: (B, .) each."""
    drawn = net.build().double()
    layers = [Formula(layer, FORMULAS[part.cell]) for layer, part in zip(drawn.rnn, net.parts, strict=True)]
    states: list[tuple[Tensor, ...] | None] = [None] * len(layers)
    found = []
    for x, y, lengths in net.draw():
        for module in (drawn, *layers):
            module.zero_grad()
        h = drawn.first(x.double() if net.first == "linear" else x)
        for k, layer in enumerate(layers):
            layer.batch_first = False
            h, after = layer(h, states[k] if net.carry else None, list(lengths))
            states[k] = tuple(s.detach() for s in (after if isinstance(after, tuple) else (after,)))
        real = torch.arange(len(x))[:, None] < torch.tensor(lengths)
        loss = cross_entropy(drawn.head(h)[real], y[real])
        loss.backward()
        own = {name: p.grad for name, p in drawn.named_parameters() if not name.startswith("rnn.")}
        own |= {f"rnn.{k}.{name}": p.grad for k, layer in enumerate(layers) for name, p in layer.named_parameters()}
        gradients = {name: g.numpy().copy() for name, g in own.items() if name not in net.frozen}
        each = [[s[n].numpy() for s in some] for some in states for n in range(len(some[0]))]
        found.append(Stepped(loss.item(), gradients, each))
    return found


# --- several ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(4)
    yield team
    team.close()


def off_by(found: np.ndarray, expected: np.ndarray) -> float:
    return relative(torch.from_numpy(found), torch.from_numpy(expected))


def assert_same(net: Net, how: How, done: list[Done | None]) -> None:
    """Every gradient is there once for each data rank, in the same bits, and is that of one process; states as well."""
    off: dict[str, float] = {}
    ranks = [d for d in done if d is not None]
    assert [d.place for d in ranks] == [(r, s) for r in range(how.data) for s in range(how.stages)]
    for k, expected in enumerate(alone(net)):
        assert len({d.steps[k].loss for d in ranks}) == 1
        off[f"loss of step {k}"] = abs(ranks[0].steps[k].loss / expected.loss - 1)
        seen: dict[str, tuple[int, np.ndarray]] = {}
        for d in ranks:
            step, (rank, stage) = d.steps[k], d.place
            assert sorted(step.gradients) == sorted(d.owned)  # and none on what others hold
            off |= {f"state {n} of step {k}": o for n, o in enumerate(states_off(net, how, d, k, expected))}
            if how.way == "server" and rank:
                continue  # the first one has the sum
            for name, g in step.gradients.items():
                owner, before = seen.setdefault(name, (stage, g))
                np.testing.assert_array_equal(g, before, name)
                assert owner == stage or (net.tied and name == "first.weight"), f"{name} is on two stages"
        assert seen.keys() == expected.gradients.keys()
        off |= {f"{name} in step {k}": off_by(g, expected.gradients[name]) for name, (_, g) in seen.items()}
    worst = max(off, key=lambda name: off[name])
    assert off[worst] <= TOLERANCE[getattr(torch, net.dtype)], (worst, off[worst])


def states_off(net: Net, how: How, done: Done, k: int, expected: Stepped) -> Iterator[float]:
    """Layers with states of the same widths have them in one tensor."""
    mine = part_of(len(net.batches[k]), done.place[0], how.data)
    found = done.steps[k].states
    if mine.start == mine.stop:
        return
    layers = [expected.states[l] for l in done.layers]
    wanted = [
        np.stack([layer[n][mine] for layer in run])
        for _, some in groupby(layers, lambda layer: [s.shape[1] for s in layer])
        for run in [list(some)]
        for n in range(len(run[0]))
    ]
    yield from (off_by(a, b) for a, b in zip(found, wanted, strict=True))


def check(team: Team, net: Net, how: How) -> list[Done | None]:
    done: list[Done | None] = team.ask(exact, net, how)
    assert_same(net, how, done)
    return done


L4 = Net((Part("lstm", layers=4),))
G3 = Net((Part("gru", layers=3),))
MESHES = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (1, 4), (2, 2)]
every_mesh = pytest.mark.parametrize(("data", "stages"), MESHES, ids=[f"{d}x{s}" for d, s in MESHES])
both_layouts = pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])


@both_layouts
@every_mesh
def test_every_mesh(team: Team, data: int, stages: int, ragged: bool) -> None:
    check(team, replace(L4, ragged=ragged), How(data, stages))


@pytest.mark.parametrize("cell", FORMULAS)
def test_every_cell(team: Team, cell: str) -> None:
    check(team, Net((Part(cell, layers=3),)), How(2, 2, split=(1, 2)))


@pytest.mark.parametrize("cell", ["lstm", "gru", "mgu"])
def test_in_single_precision(team: Team, cell: str) -> None:
    check(team, Net((Part(cell, layers=3),), dtype="float32"), How(2, 2, split=(2, 1)))


@pytest.mark.parametrize("way", ["shared", "network", "server"])
@pytest.mark.parametrize(("data", "stages"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_every_way_of_data_ranks(team: Team, data: int, stages: int, way: str) -> None:
    check(team, G3, How(data, stages, way))


PLANS = {
    **{f"{c} chunks": How(1, 3, chunks=c, split=(1, 1, 1)) for c in (1, 2, 5, 50)},
    **{f"{e} of 4 decoded early": How(1, 2, chunks=4, early=e, split=(2, 1)) for e in range(6)},
    **{f"{m} micro-batches": How(1, 2, chunks=3, micro=m, split=(1, 2)) for m in (2, 3, 9)},
    "micro-batches, decoded early": How(1, 3, chunks=3, micro=2, early=4, split=(1, 1, 1)),
    "micro-batches on data ranks": How(2, 2, chunks=2, micro=2, early=1, split=(1, 2)),
    "steps that cost": How(1, 2, chunks=3, step_cost=7.5, split=(1, 2)),
}


@both_layouts
@pytest.mark.parametrize("name", PLANS)
def test_every_plan(team: Team, name: str, ragged: bool) -> None:
    check(team, replace(G3, ragged=ragged), PLANS[name])


OF_L0, OF_L1 = (
    tuple(f"rnn.0.{name}_l{n}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")) for n in range(2)
)
NETWORKS = {
    "fewer sequences than data ranks": (replace(G3, batches=((5, 2), (3, 7))), How(4)),
    "a sequence for two data ranks": (replace(G3, batches=((5,), (3,))), How(2, 2)),
    "no sequence, dense": (replace(G3, batches=((5,), (3,)), ragged=False), How(3)),
    "one step": (replace(L4, batches=((1, 1, 1), (1, 1, 1))), How(2, 2)),
    "nothing carried": (replace(L4, carry=False), How(2, 2)),
    "a projection": (Net((Part("lstm", 6, 3, proj=2),)), How(2, 2)),
    "a projection without bias": (Net((Part("lstm", 6, 3, proj=2, bias=False),)), How(1, 3)),
    "no bias": (Net((Part("gru", layers=2, bias=False), Part("rnn", bias=False))), How(2, 2)),
    "other widths on each stage": (Net((Part("lstm", 3), Part("lstm", 6), Part("lstm", 4))), How(1, 3)),
    "other widths in a stage": (Net((Part("lstm", 3), Part("lstm", 6), Part("lstm", 4))), How(1, 2, split=(1, 2))),
    "other cells in a stage": (
        Net((Part("gru"), Part("lstm"), Part("mgu", 3), Part("peephole", 3))),
        How(2, 2, split=(3, 1)),
    ),
    "tied": (Net((Part("lstm", layers=2),), tied=True), How(1, 2)),
    "tied, with a stage between": (Net((Part("gru", 4, 3),), tied=True), How(1, 3)),
    "tied on data ranks": (Net((Part("gru", 4, 2),), tied=True), How(2, 2)),
    "tied on data ranks by a server": (Net((Part("gru", 4, 2),), tied=True), How(2, 2, "server")),
    "tied, one stage": (Net((Part("gru", 4, 2),), tied=True), How(2)),
    "numbers in, batch first": (Net((Part("gru", layers=2),), first="linear", batch_first=True), How(2, 2)),
    "batch first, dense": (replace(L4, batch_first=True, ragged=False), How(2, 2)),
    "the first rows are not trained": (replace(G3, frozen=("first.weight",)), How(2, 2)),
    "some weights are not trained": (replace(G3, frozen=(*OF_L1, "head.bias")), How(2, 2)),
    "nothing of a stage is trained": (replace(G3, frozen=("first.weight", *OF_L0)), How(2, 2, split=(1, 2))),
    "an engine for each stage": (
        Net((Part("lstm", engine="numpy"), Part("gru", engine="torch"), Part("lstm", engine="fused"))),
        How(1, 3, chunks=2, split=(1, 1, 1)),
    ),
    "several engines in a stage": (
        Net((Part("lstm", engine="torch"), Part("lstm", engine="numpy"), Part("mgu", engine="torch:steps"))),
        How(2, 2, split=(2, 1)),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_network(team: Team, name: str) -> None:
    check(team, *NETWORKS[name])


# --- the language model ----------------------------------------------------------------------------------------------
def spoken(tied: bool, softmax: str, lengths: list[int], ranks: int) -> list[Spoken]:
    """One process: plain autograd on the whole model, and torch's own losses."""
    model, states, found = language_model(tied, softmax), [None] * ranks, []
    for seed in range(2):
        model.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for r in range(ranks):
            inputs, targets, layout = tokens_of(lengths[part_of(len(lengths), r, ranks)], 10 * seed + r)
            h, after = model(inputs, layout, states[r])
            states[r] = tuple(s.detach() for s in after)
            if softmax == "adaptive":
                total = total + model.softmax.softmax(h, targets).loss * layout.N
            else:
                logits = linear(h, model.softmax.matrix, model.softmax.bias)
                total = total + cross_entropy(logits, targets, reduction="sum")
        loss = total / sum(lengths)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
        found.append(Spoken(loss.item(), norm, {name: p.grad.numpy().copy() for name, p in model.named_parameters()}))
    return found


SPOKEN = [How(1, 3, split=(1, 1, 1), early=2), How(2, 2, split=(2, 1), micro=2)]


@pytest.mark.parametrize(("tied", "softmax"), [(False, "full"), (True, "full"), (False, "adaptive")])
@pytest.mark.parametrize("how", SPOKEN, ids=["1x3", "2x2"])
def test_the_language_model_in_parts(team: Team, tied: bool, softmax: str, how: How) -> None:
    lengths = [7, 2, 5, 4]
    done = [d for d in team.ask(speak, tied, softmax, lengths, how) if d is not None]
    assert len(done) == how.size
    for k, expected in enumerate(spoken(tied, softmax, lengths, how.data)):
        assert sum(d[k].loss for d in done) == pytest.approx(expected.loss, rel=1e-10)
        seen: dict[str, np.ndarray] = {}
        for d in done:
            assert d[k].norm == pytest.approx(expected.norm, rel=1e-10)
            for name, g in d[k].gradients.items():
                np.testing.assert_array_equal(g, seen.setdefault(name, g), name)
        assert seen.keys() == expected.gradients.keys()
        assert max(off_by(g, expected.gradients[name]) for name, g in seen.items()) <= 1e-10


@pytest.mark.parametrize("how", SPOKEN, ids=["1x3", "2x2"])
def test_dropout_in_a_pipeline(team: Team, how: How) -> None:
    """With the same masks, the gradients say how the loss changes."""
    found = [f for f in team.ask(slope, how, 1e-6) if f is not None]
    assert len(set(found)) == 1
    by_gradients, by_going_there, loss = found[0]
    assert by_gradients == pytest.approx(by_going_there, rel=1e-6)
    assert abs(by_gradients) > 0.01
    assert 1.0 < loss < 5.0


# --- bits ------------------------------------------------------------------------------------------------------------
def assert_same_bits(a: list[Done | None], b: list[Done | None]) -> None:
    for one, other in zip(a, b, strict=True):
        for s, t in zip(one.steps if one else [], other.steps if other else [], strict=True):
            assert s.loss == t.loss
            assert s.gradients.keys() == t.gradients.keys()
            for name, g in s.gradients.items():
                np.testing.assert_array_equal(g, t.gradients[name], name)


AGAIN = {
    "data by shared memory": How(4),
    "data by the network": How(3, 1, "network"),
    "a pipeline": How(1, 4, chunks=6, early=2, split=(1, 1, 1, 1)),
    "both, with micro-batches": How(2, 2, chunks=3, micro=2, split=(1, 3)),
}


@pytest.mark.parametrize("name", AGAIN)
def test_two_runs_have_the_same_bits_whatever_is_late(team: Team, name: str) -> None:
    net = replace(L4, dtype="float32")
    done = check(team, net, AGAIN[name])
    for seed in (1, 2):
        assert_same_bits(done, team.ask(exact, net, replace(AGAIN[name], jitter=seed)))


# --- the broad sweep -------------------------------------------------------------------------------------------------
@pytest.mark.slow
@every_mesh
@both_layouts
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("cell", FORMULAS)
def test_every_cell_on_every_mesh(team: Team, cell: str, dtype: str, ragged: bool, data: int, stages: int) -> None:
    net = Net((Part(cell, layers=4),), dtype=dtype, ragged=ragged)
    check(team, net, How(data, stages))
    for way in ("network", "server") if data > 1 else ():
        check(team, net, How(data, stages, way))


def drawn(seed: int) -> tuple[Net, How]:
    r = random.Random(seed)
    data, stages = r.choice(MESHES)
    parts, layers = [], 0
    while layers < stages or r.random() < 0.5:
        cell = r.choice(list(FORMULAS))
        engine = r.choice(("fused", "fused", "numpy", "torch", "torch:steps", "python"))
        proj = r.randint(1, 3) if cell == "lstm" and engine != "torch" and r.random() < 0.4 else 0
        parts.append(Part(cell, r.randint(4, 8), r.randint(1, 3), engine, proj, r.random() < 0.8))
        layers += parts[-1].layers
    ends = [0, *sorted(r.sample(range(1, layers), stages - 1)), layers]
    B, T = r.randint(1, 7), r.randint(1, 9)
    net = Net(
        tuple(parts),
        tuple(tuple(r.randint(1, T) for _ in range(B)) for _ in range(3)),
        ragged=r.random() < 0.7,
        carry=r.random() < 0.7,
        batch_first=r.random() < 0.3,
        tied=r.random() < 0.3,
        first="embedding",
    )
    how = How(
        data,
        stages,
        r.choice(("auto", "network", "server")),
        tuple(b - a for a, b in pairwise(ends)),
        r.randint(1, 6),
        r.randint(1, 3),
        r.randint(0, 8),
        r.choice((0.0, 2.5)),
        r.choice((None, seed)),
    )
    return net, how


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_drawn_at_random(team: Team, seed: int) -> None:
    check(team, *drawn(seed))
