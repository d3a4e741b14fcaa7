"""Solvers that cut time: they give what an exact walk gives, say how far they are off, and know when they are wrong."""

import copy
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.some_cells import PeepholeLSTM
from torch import Tensor, nn

import plait
from plait import PlaitError, solvers
from plait.bench.time import nets as time_nets
from plait.engines.fused import FusedEngine
from plait.errors import PlaitWarning
from plait.solvers import EXACT
from plait.solvers.warm_start import StateTable

BOUNDS = {torch.float64: 1e-8, torch.float32: 1e-5}
CELLS = ["rnn", "rnn_relu", "lstm", "gru", "implicit_gru", PeepholeLSTM]
STEPS = (1, 2, 7, 33, 200)


def covers(cell: object, T: int, one: int) -> bool:
    """Every length for two cells, and one length for every cell: a solver does not know which cell it walks."""
    return one == T or cell in ("implicit_gru", PeepholeLSTM)


def results(layer: nn.Module, x: Tensor, hx=None, lengths=None, ids=None, seed: int = 1) -> list[Tensor]:
    """Outputs, last states, and gradients of the input, the initial states and all weights."""
    y, state = layer(x, hx, lengths, ids)
    states = plait.layers.states_of(state)
    generator = torch.Generator().manual_seed(seed)
    loss = sum((t * torch.randn(t.shape, generator=generator, dtype=t.dtype)).sum() for t in (y, *states))
    given = () if hx is None else plait.layers.states_of(hx)
    return [y.detach(), *(s.detach() for s in states), *torch.autograd.grad(loss, [x, *given, *layer.parameters()])]


def worst(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in zip(found, expected, strict=True)
    )


class Problem:
    def __init__(self, cell, T: int, *, ragged=False, dtype=torch.float64, layers=2, both=True, seed=0, **options):
        torch.manual_seed(seed)
        self.B, D = 3, 1 + both
        self.layer = plait.layer(cell, 5, 9, layers, bidirectional=both, dtype=dtype, **options)
        self.x = torch.randn(T, self.B, 5, dtype=dtype, requires_grad=True)
        count = len(plait.layers.states_of(self.layer(self.x)[1]))
        hx = tuple(torch.randn(layers * D, self.B, 9, dtype=dtype, requires_grad=True) for _ in range(count))
        self.hx = hx if count > 1 else hx[0]
        self.lengths = [max(1, T // 2), T, max(1, T - 3)] if ragged else None
        self.exact = self.with_solver(plait.Serial())

    def with_solver(self, solver: solvers.Solver, **more) -> list[Tensor]:
        self.layer.solver = solver
        return results(self.layer, self.x, self.hx, self.lengths, **more)


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize(("T", "cell"), [(T, cell) for T in STEPS for cell in CELLS if covers(cell, T, 33)])
def test_shooting_is_exact_within_its_tolerance(cell, T, ragged) -> None:
    """With warm-ups that are too short, so that the repairs do the work; also from the states of the last visit."""
    problem = Problem(cell, T, ragged=ragged)
    for warmup in (0, 3):
        solver = plait.Shooting(chunks=4, tolerance=1e-9, warmup=warmup, fallback=False)
        for ids in (None, [3, 1, 2], [3, 1, 2]):
            assert worst(problem.with_solver(solver, ids=ids), problem.exact) < 1e-8
    solve = problem.layer.last_solve
    assert (solve.forward.split, solve.backward.split) == (T > 1, T > 1)
    assert solve.forward.converged
    assert solve.backward.converged


GRIDS = [(1, 1, 2, "F"), (200, 1, 4, "F"), (7, 2, 2, "F"), (14, 3, 2, "FCF"), (26, 2, 4, "FCF"), (19, 2, 4, "F")]


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize(
    ("T", "levels", "c", "relax", "cell"),
    [(*grid, cell) for grid in GRIDS for cell in CELLS if covers(cell, grid[0], 7)],
)
def test_multigrid_with_enough_iterations_is_exact(cell, ragged, T, levels, c, relax) -> None:
    problem = Problem(cell, T, ragged=ragged)
    count = T // c + 1
    solver = plait.Multigrid(levels, c, count, count, relax=relax, fallback=False)
    for ids in (None, [3, 1, 2], [3, 1, 2]):
        assert worst(problem.with_solver(solver, ids=ids), problem.exact) < 1e-8
    assert problem.layer.last_solve.forward.split == (levels > 1)


@pytest.mark.parametrize("engine", ["fused", "torch:steps", "numpy", "python"])
@pytest.mark.parametrize(
    "solver", [plait.Shooting(4, 1e-9, 2, False), plait.Multigrid(2, 4, 6, 6, fallback=False)], ids=str
)
def test_any_engine(engine, solver) -> None:
    problem = Problem("lstm", 20, layers=1, ragged=True, engine=engine)
    assert worst(problem.with_solver(solver), problem.exact) < 1e-8


@pytest.mark.parametrize(
    "solver", [plait.Shooting(4, 1e-6, 8, False), plait.Multigrid(2, 4, 6, 6, fallback=False)], ids=str
)
@pytest.mark.parametrize("cell", ["lstm", "implicit_gru"])
def test_float32(cell, solver) -> None:
    problem = Problem(cell, 21, dtype=torch.float32, ragged=True)
    assert worst(problem.with_solver(solver), problem.exact) < BOUNDS[torch.float32]


def test_three_levels_converge_as_the_published_method_does() -> None:
    """3 levels, coarsening 2, 20 iterations, 24 steps: within 1e-6; and each iteration brings it nearer."""
    problem = Problem("implicit_gru", 24, layers=1, both=False)
    errors = [
        worst(problem.with_solver(plait.Multigrid(3, 2, n, n, fallback=False)), problem.exact) for n in (1, 2, 4, 20)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1e-3
    assert errors[-1] < 1e-6


def test_a_solver_says_how_it_fared() -> None:
    problem = Problem("implicit_gru", 64, layers=1, both=False)
    problem.with_solver(plait.Multigrid(2, 4, 2, 1, fallback=False))
    there, back = problem.layer.last_solve
    assert (there.iterations, back.iterations) == (2, 1)
    assert 1e-6 < there.residual < 1
    assert not there.converged
    assert there.work > 2
    problem.with_solver(plait.Multigrid(2, 4, tolerance=1e-3, fallback=False))
    assert problem.layer.last_solve.forward.converged
    problem.with_solver(plait.Serial())
    problem.layer.solver = plait.Shooting(4)
    with torch.no_grad():
        y, _ = problem.layer(problem.x, problem.hx)
    assert torch.equal(y, problem.exact[0])  # without gradients it is one exact walk
    assert not problem.layer.last_solve.forward.split


def test_retained_graphs_and_second_derivatives() -> None:
    problem = Problem("gru", 40, layers=1)
    problem.layer.solver = plait.Shooting(4, warmup=8, fallback=False)
    y, _ = problem.layer(problem.x)
    first = torch.autograd.grad(y.square().sum(), problem.x, retain_graph=True)[0]
    second = torch.autograd.grad(y.square().sum(), problem.x, retain_graph=True)[0]
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)
    (g,) = torch.autograd.grad(y.square().sum(), problem.x, create_graph=True)
    assert torch.autograd.grad(g.square().sum(), problem.x)[0].isfinite().all()


def test_dropout_accelerate_and_compile(dynamo) -> None:
    model = nn.Sequential(nn.GRU(5, 9, 2, dropout=0.5))
    plait.accelerate(model, solver=plait.Shooting(4, fallback=False))
    x = torch.randn(40, 2, 5)
    found = plait.compare(model, lambda: model(x)[0].square().sum())
    assert 0 < found.gradient < 0.01
    with dynamo.config.patch(allow_rnn=True):
        y, _ = torch.compile(model, backend="eager")(x)
    y.sum().backward()
    assert model[0].last_solve.backward.split
    plait.restore(model)
    assert type(model[0]) is nn.GRU
    assert not {"solver", "_plait_warm_starts"} & model[0].__dict__.keys()


# --- networks that remember
@pytest.fixture(scope="module")
def recall() -> time_nets.Net:
    """It says again what it was told 20 steps ago."""
    return copy.deepcopy(time_nets.trained(time_nets.recall, 20, 32, steps=1200, seed=0))


@pytest.fixture(scope="module")
def latch() -> time_nets.Net:
    """It says what it was told at the last trigger: a start from zeros is wrong until the next one."""
    return copy.deepcopy(time_nets.trained(time_nets.latch, 60, 32, steps=700, seed=0))


def error(net: time_nets.Net, T: int, seed: int = 3, **options) -> float:
    x, y = net.data(T, 1, net.delay, torch.Generator().manual_seed(seed))
    return net.off(x, y, **options)


def test_memory_is_measured(recall, latch) -> None:
    generator = torch.Generator().manual_seed(0)
    fresh = plait.fading_memory(plait.ImplicitGRU(16, 32), recall.data(1024, 2, 20, generator)[0])
    trained = plait.fading_memory(recall.rnn, recall.data(1024, 2, 20, generator)[0])
    held = plait.fading_memory(latch.rnn, latch.data(1024, 2, 60, generator)[0])
    assert fresh.perturbation < 25 < trained.perturbation < 200
    assert held.zero_start > held.perturbation  # it latches: a perturbation decays long before a wrong start is
    assert "a perturbation decays below 1 % after" in str(trained)
    both = plait.fading_memory(plait.GRU(16, 8, 2, bidirectional=True, batch_first=True), torch.randn(2, 64, 16))
    assert len(both.layers) == 4
    with pytest.raises(PlaitError, match="give longer ones"):
        plait.fading_memory(recall.rnn, torch.randn(3, 1, 16))


@pytest.mark.parametrize("solver", [plait.Shooting(), plait.Shooting(4), plait.Shooting(4, warmup=16)], ids=str)
def test_shooting_on_networks_that_remember(recall, latch, solver) -> None:
    for net in (recall, latch):
        net.rnn.solver = solver
        solvers.load_state(net.rnn, {})  # it knows nothing
        T = 8192 if solver.chunks == "auto" else 2048
        for step in range(6):
            x, y = net.data(T, 1, net.delay, torch.Generator().manual_seed(step % 2))
            assert error(net, T, step % 2, ids=torch.tensor([step % 2])) < 0.01
            net.mean_loss(x, y, ids=torch.tensor([step % 2])).backward()  # it learns
        assert solvers.share(net.rnn) > 0


def test_multigrid_names_its_divergence_and_is_exact_then(recall) -> None:
    net, recall.rnn.solver = recall, plait.Multigrid(fallback=False)
    solvers.load_state(net.rnn, {})  # it knows nothing
    assert error(net, 512) > 0.5
    net.rnn.solver = plait.Multigrid()
    x, y = net.data(512, 1, net.delay, torch.Generator().manual_seed(3))
    with pytest.warns(PlaitWarning, match=r"solver multigrid: does not converge on this network .* plait.Shooting\(\)"):
        net.mean_loss(x, y).backward()
    assert not net.rnn.last_solve.forward.split
    assert error(net, 512) == 0


def test_a_network_that_does_not_forget_is_walked_serially() -> None:
    """A unit that only adds up: what went in at the first step is there at the last."""
    torch.manual_seed(0)
    layer = plait.RNN(4, 8, nonlinearity="relu", solver=plait.Shooting(4))
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.eye(8))
        layer.bias_hh_l0.zero_()
    x, model = torch.rand(2048, 1, 4), nn.ModuleList([layer])

    def steps() -> None:
        for _ in range(5):
            assert plait.compare(model, lambda: layer(x)[0].square().mean()).gradient < 0.01
            layer(x)[0].square().mean().backward()

    with pytest.warns(PlaitWarning, match=r"this network does not forget within .* walked serially"):
        steps()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        layer(x)
    assert not layer.last_solve.forward.split


def test_auto_leaves_alone_what_does_not_pay() -> None:
    layer = plait.GRU(4, 8, solver=plait.Shooting())
    threads = "1 thread" if torch.get_num_threads() == 1 else f"{torch.get_num_threads()} threads"
    with pytest.warns(PlaitWarning, match=f"a batch of 100 keeps {threads} busy by itself"):
        layer(torch.randn(2000, 100, 4))
    layer = plait.GRU(4, 8, solver=plait.Shooting())
    with pytest.warns(PlaitWarning, match="sequences of 100 steps are too short to be cut"):
        layer(torch.randn(100, 1, 4))


def test_checks_say_the_error_and_tighten(recall) -> None:
    net = recall
    x, y = net.data(512, 1, net.delay, torch.Generator().manual_seed(3))
    net.rnn.solver = plait.Multigrid(3, 4, 2, 1, fallback=False, check_every=2)
    net.mean_loss(x, y).backward()
    with pytest.warns(PlaitWarning, match=r"layer 0: given .* off an exact walk's, after 2 calls"):
        net.mean_loss(x, y).backward()
    net.rnn.solver = plait.Shooting(4, check_every=1)
    with pytest.warns(PlaitWarning, match=r"is 0\.\d\d% off"):
        net.mean_loss(x, y).backward()


# --- what a checkpoint has
def test_what_a_solver_has_learnt_goes_into_a_checkpoint(recall) -> None:
    def train(rnn: nn.Module, steps: range) -> None:
        for step in steps:
            x, _ = recall.data(1024, 2, 20, torch.Generator().manual_seed(step % 3))
            rnn.zero_grad()
            rnn(x, ids=[2 * (step % 3), 2 * (step % 3) + 1])[0].square().mean().backward()
            with torch.no_grad():
                for p in rnn.parameters():
                    p -= 0.01 * p.grad

    layer = copy.deepcopy(recall.rnn)
    layer.solver = plait.Shooting(4)
    train(layer, range(4))
    other = plait.ImplicitGRU(16, 32, solver=plait.Shooting(4))
    other.load_state_dict(layer.state_dict())
    saved = {k: t.clone() for k, t in solvers.state(layer).items()}
    assert any(".states." in name for name in saved)
    train(layer, range(4, 8))
    solvers.load_state(other, saved)
    train(other, range(4, 8))
    for a, b in zip(layer.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    forgetful = plait.ImplicitGRU(16, 32, solver=plait.Shooting(4))
    forgetful.load_state_dict(layer.state_dict())
    with pytest.raises(ValueError, match="which the model lacks"):
        solvers.load_state(forgetful, {"gone/0.0.number.cold": torch.tensor(3)})


def test_stored_states_have_a_bound(monkeypatch) -> None:
    monkeypatch.setattr(
        "plait.solvers.warm_start.MOST_STORED", 10 * 3 * 8 * 4
    )  # ten sequences, three boundaries, 8 units
    layer = plait.GRU(4, 8, solver=plait.Shooting(4, fallback=False))
    for first in (0, 4, 8, 0):
        layer(torch.randn(40, 4, 4), ids=range(first, first + 4))[0].sum().backward()
    store = layer._plait_warm_starts.of(0, 0).table
    assert len(store.slots) == 10
    assert {*range(4), *range(8, 12)} <= store.slots.keys()  # those of the last visits
    assert sorted(store.slots.values()) == list(range(10))


# --- what is wrong
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("multigrid:coarsening=1", "coarsening=1: expected a whole number from 2"),
        ("multigrid:levels=0", "levels=0: expected a whole number from 1"),
        ("multigrid:relax=FF", "relax=FF: expected F or FCF"),
        ("multigrid:tolerance=x", "tolerance=x: expected a number, or None"),
        ("multigrid:depth=3", "option 'depth' is not known; it has levels, coarsening"),
        ("shooting:tolerance=0", r"tolerance=0.0: expected a number above 0 and below 1 \(for exact gradients use"),
        ("shooting:tolerance=nan", "tolerance=nan: expected a number above 0"),
        ("shooting:chunks=0", "chunks=0: expected a whole number from 1"),
        ("shooting:chunks=2.5", "chunks=2.5: expected a whole number, or auto"),
        ("shooting:fallback=maybe", "fallback=maybe: expected yes or no"),
        ("serial:levels=3", "option 'levels' is not known; it has no options"),
        ("shooting:chunks=4,chunks=5", "chunks is given twice; give it once"),
        ("parareal", "solver 'parareal': expected one of serial, shooting, multigrid"),
    ],
)
def test_options_that_make_no_sense(text, sentence) -> None:
    with pytest.raises(PlaitError, match=sentence):
        solvers.parse(text)


@pytest.mark.parametrize(
    "solver",
    [
        plait.Shooting(),
        plait.Shooting(4, 0.02, 8, False),
        plait.Multigrid(),
        plait.Multigrid(2, 8, relax="F", tolerance=0.1, start="coarse"),
    ],
    ids=str,
)
def test_a_text_makes_the_same_solver(solver) -> None:
    assert solvers.parse(solver.text) == solver
    assert copy.deepcopy(solver) == solver


def test_input_that_makes_no_sense() -> None:
    layer = plait.GRU(4, 8, engine="numpy", solver=plait.Multigrid(3, 4))
    with pytest.raises(PlaitError, match=r"3 levels of coarsening 4 need at least 16 steps, .* have 10: use at most 2"):
        layer(torch.randn(10, 1, 4))
    for solver in (plait.Shooting(4), plait.Shooting(4, fallback=False), plait.Multigrid(2, fallback=False)):
        layer.solver = solver
        with pytest.raises(PlaitError, match="the states are not finite"):
            layer(torch.full((40, 1, 4), float("nan")))
    with pytest.raises(PlaitError, match="3 ids for a batch of 2"):
        layer(torch.randn(40, 2, 4), ids=[1, 2, 3])
    with pytest.raises(PlaitError, match=r"ids .*: expected whole numbers"):
        layer(torch.randn(40, 2, 4), ids=["a", "b"])


# --- layers of all kinds, and calls in any order
def test_projections_batch_first_packed_and_one_sequence() -> None:
    torch.manual_seed(0)
    options = {"batch_first": True, "proj_size": 4, "bias": False, "dtype": torch.float64}
    layer = plait.LSTM(5, 9, 2, bidirectional=True, **options)
    x = torch.randn(3, 22, 5, dtype=torch.float64, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 22, 13]), batch_first=True, enforce_sorted=False)
    alone = torch.randn(22, 5, dtype=torch.float64, requires_grad=True)

    def passes() -> list[Tensor]:
        y, (h, c) = layer(packed)
        one, _ = layer(alone)
        loss = y.data.square().sum() + h.sum() + c.square().sum() + one.square().sum()
        return [y.data.detach(), *torch.autograd.grad(loss, [x, alone, *layer.parameters()], retain_graph=True)]

    exact = passes()
    for solver in (plait.Shooting(4, 1e-9, 3, False), plait.Multigrid(2, 4, 7, 7, fallback=False)):
        layer.solver = solver
        assert worst(passes(), exact) < 1e-8


def test_calls_that_are_nested_and_weights_that_stand_still() -> None:
    """Two calls go there before the first comes back; some weights need no gradient; the loss is of the last state."""
    problem = Problem("lstm", 40, layers=1)
    layer, (a, b) = problem.layer, (problem.x, problem.x.detach().flip(0).requires_grad_())
    layer.weight_ih_l0.requires_grad_(False)

    def passes() -> list[Tensor]:
        first, second = layer(a)[1][0], layer(b)[1][0]
        return [
            *torch.autograd.grad(second.square().sum(), b),
            *torch.autograd.grad(first.square().sum(), [a, layer.weight_hh_l0]),
        ]

    layer.solver = plait.Serial()
    exact = passes()
    layer.solver = plait.Shooting(4, 1e-9, 3, False)
    assert worst(passes(), exact) < 1e-8


def test_stored_states_of_another_type_or_length_are_not_used() -> None:
    layer = plait.GRU(4, 8, solver=plait.Shooting(4, 1e-5, 4, False))
    for kind, T in ((torch.float32, 40), (torch.float64, 40), (torch.float64, 52), (torch.float64, 40)):
        layer.to(kind)
        x = torch.randn(T, 2, 4, dtype=kind)
        model = nn.ModuleList([layer])
        assert plait.compare(model, lambda x=x: layer(x, ids=[1, 2])[0].square().sum()).gradient < 1e-4
        layer(x, ids=[1, 2])[0].sum().backward()
    assert [len(t) for t in layer._plait_warm_starts.of(0, 0).table.tables] == [2]


def test_compare_leaves_everything_as_it_was() -> None:
    layer = plait.GRU(4, 8, dropout=0.0, solver=plait.Shooting(4, fallback=False))
    model, x, random = nn.ModuleList([layer]), torch.randn(40, 2, 4), torch.get_rng_state()
    plait.compare(model, lambda: layer(x, ids=[1, 2])[0].square().sum())
    assert not solvers.state(layer)
    assert all(p.grad is None for p in layer.parameters())
    assert layer.solver == plait.Shooting(4, fallback=False)
    assert torch.equal(torch.get_rng_state(), random)


def test_a_check_that_fails_halves_the_tolerance(monkeypatch) -> None:
    monkeypatch.setattr("plait.solvers.pieces.error", lambda *_: 0.5)
    layer = plait.GRU(4, 8, solver=plait.Shooting(4, check_every=1))
    with pytest.warns(PlaitWarning, match="more than 1% is too much, so it works with half the tolerance"):
        layer(torch.randn(400, 1, 4))[0].sum().backward()
    assert layer._plait_warm_starts.of(0, 0).numbers["halved"] == 1


def test_warm_ups_of_no_steps_and_cells_that_cannot_be_cut() -> None:
    layer = plait.GRU(4, 8, solver=plait.Shooting(warmup=0))
    x = torch.randn(33_000, 1, 4)
    assert plait.compare(nn.ModuleList([layer]), lambda: layer(x)[0].square().mean()).gradient < 0.01

    class Sorted(plait.Cell):
        gates, states = ("a",), ("h",)

        def step(wx, rh, state, ops):
            return (wx[0] + rh[0]).sort(-1).values

    with pytest.warns(UserWarning, match="cannot be traced"):
        layer = plait.layer(Sorted, 4, 8, solver=plait.Shooting(4))
    with pytest.raises(PlaitError, match=r"solver shooting:chunks=4: .* Use plait.Serial\(\) for it"):
        layer(x)


@pytest.mark.parametrize("scale", [1e-25, 1e15])
def test_losses_that_are_tiny_or_huge(scale: float) -> None:
    """Squares of such gradients do not fit into float32."""
    torch.manual_seed(0)
    layer = plait.GRU(4, 16, solver=plait.Shooting(4, 1e-4, 1, False))
    x, model = torch.randn(120, 2, 4), nn.ModuleList([layer])
    assert plait.compare(model, lambda: scale * layer(x)[0].square().sum()).gradient < 1e-3


def test_a_loss_of_the_last_state_alone() -> None:
    """Its gradient dies out long before the first piece: nothing is missing there, and nothing is divided by it."""
    torch.manual_seed(0)
    layer = plait.GRU(3, 16, solver=plait.Shooting(4, warmup=8))
    model = nn.ModuleList([layer])
    for T in (604, 608, 2000):
        x = torch.randn(T, 2, 3)
        assert plait.compare(model, lambda x=x: layer(x)[1].sum()).gradient < 0.01


def test_threads_with_ids_of_their_own() -> None:
    layer = plait.GRU(4, 8, solver=plait.Shooting(4, fallback=False))

    def work(k: int) -> None:
        for _ in range(20):
            layer(torch.randn(40, 2, 4), ids=[k, k + 100])[0].sum().backward()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [None] * 4


def test_a_store_that_grows_under_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its tables are being copied to larger ones, another thread has its turn."""
    store, numbers, cat = StateTable(), torch.arange(200), torch.cat

    def slow(parts: list[Tensor], dim: int = 0) -> Tensor:
        time.sleep(0.001)
        return cat(parts, dim)

    def work(first: int) -> None:
        for i in range(first, 200, 4):
            store.put(numbers[i : i + 1], np.array([[40, 10, i]]), [torch.full((1, 3, 8), float(i))])

    monkeypatch.setattr(torch, "cat", slow)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [None] * 4
    has, steps, (states,) = store.find(numbers, np.array([[40, 10]] * 200), torch.zeros(1))
    assert has.all()
    assert (steps == numbers.numpy()).all()
    assert torch.equal(states, numbers.float().view(-1, 1, 1).expand(-1, 3, 8))


def test_a_state_that_makes_no_sense() -> None:
    model = nn.ModuleDict({"in/out": plait.GRU(4, 8, solver=plait.Shooting(4, fallback=False))})
    model["in/out"](torch.randn(40, 2, 4), ids=[1, 2])[0].sum().backward()
    saved = solvers.state(model)
    solvers.load_state(model, saved)
    assert solvers.state(model).keys() == saved.keys()
    with pytest.raises(ValueError, match="do not go together"):
        solvers.load_state(model, {k: t[:1] if k.endswith("about") else t for k, t in saved.items()})
    solvers.load_state(model, {})
    assert not solvers.state(model)
    with pytest.raises(PlaitError, match="numbers that are not finite"):
        plait.fading_memory(model["in/out"], torch.full((40, 1, 4), torch.nan))
    with pytest.raises(PlaitError, match="fallback='no': expected True or False"):
        plait.Shooting(fallback="no")


def test_what_is_not_cut_takes_the_way_of_a_serial_layer(monkeypatch) -> None:
    """A small layer's own: one launch each way, and not the engine's general one."""
    layer = plait.GRU(3, 8, engine="fused", solver=plait.Shooting())
    x, plain = torch.randn(20, 2, 3), plait.GRU(3, 8, engine="fused")
    plain.load_state_dict(layer.state_dict())
    expected = torch.autograd.grad(plain(x)[0].sum(), list(plain.parameters()))
    for name in ("forward", "backward"):
        monkeypatch.setattr(FusedEngine, name, None)
    with pytest.warns(PlaitWarning, match="too short to be cut"):
        y = layer(x)[0]
    assert layer.last_solve.forward == EXACT
    assert layer.last_solve.backward is None
    found = torch.autograd.grad(y.sum(), list(layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert layer.last_solve.backward == EXACT
    assert layer._plait_warm_starts.of(0, 0).numbers["calls"] == 1


def test_a_subclass_that_walks_in_its_own_way_is_asked() -> None:
    class Loud(plait.Shooting):
        calls = 0

        def forward(self, *args, **options):
            Loud.calls += 1
            return super().forward(*args, **options)

    layer = plait.GRU(3, 8, engine="fused", solver=Loud())
    with pytest.warns(PlaitWarning, match="too short"):
        layer(torch.randn(20, 2, 3))[0].sum().backward()
    assert Loud.calls == 1
