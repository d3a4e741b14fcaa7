"""Several layers as one function, and one launch: the same numbers as one function for each layer."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

import plait
from plait import PlaitError, engines
from plait.engines.plan import Plan
from plait.kernels.launch import threads
from plait.layers import recurrent
from plait.layers.recurrent import Recurrent

KINDS = {"LSTM": 2, "GRU": 1, "RNN": 1}  # and their states
WAYS = ("one launch", "one function", "layer by layer")


def use(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if way != "one launch":
        monkeypatch.setattr(Plan, "take_slabs", lambda self: None)
        monkeypatch.setattr(engines.get("fused"), "plans", {})
    if way == "layer by layer":
        monkeypatch.setattr(Recurrent, "_plait_is_one", lambda self, *_: self.num_layers == 1)


class Case:
    def __init__(self, kind: str, stateful: bool = False, lengths=None, dtype=torch.float32, **options) -> None:
        torch.manual_seed(3)
        options = {"num_layers": 3, "engine": "fused", "dtype": dtype} | options
        self.layer = getattr(plait, kind)(5, 9, **options)
        self.x = torch.randn(6, 4, 5, dtype=dtype, requires_grad=True)
        self.lengths, self.hx = lengths, []
        if stateful:
            directions, P = 2 if self.layer.bidirectional else 1, self.layer.proj_size or 9
            shape = self.layer.num_layers * directions, 4
            self.hx = [torch.randn(*shape, n, dtype=dtype, requires_grad=True) for n in (P, 9)[: KINDS[kind]]]
        self.inputs = [self.x, *self.hx, *self.layer.parameters()]

    def run(self) -> list[Tensor]:
        torch.manual_seed(5)
        hx = (tuple(self.hx) if len(self.hx) > 1 else self.hx[0]) if self.hx else None
        y, state = self.layer(self.x, hx, lengths=self.lengths)
        return [y, *(state if isinstance(state, tuple) else (state,))]

    def results(self, of: str = "all") -> list[Tensor]:
        """The outputs, their gradients, and the next random number."""
        y, *last = self.run()
        after = torch.rand(1)
        loss = y.square().sum() + (sum(s.sin().sum() for s in last) if of == "all" else 0)
        return [y, *last, after, *torch.autograd.grad(loss, self.inputs)]


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(a, b), k


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bidirectional", "stateful", "dropout"), list(product((False, True), (False, True), (0, 0.4)))
)
def test_all_ways_give_the_same_bits(kind: str, bidirectional: bool, stateful: bool, dropout, monkeypatch) -> None:
    for lengths, bias in ((None, True), (None, False), ([6, 2, 4, 3], True)):
        found = []
        for way in WAYS:
            use(way, monkeypatch)
            case = Case(kind, stateful, lengths, bidirectional=bidirectional, dropout=dropout, bias=bias)
            found.append([*case.results(), *case.results("y")])
        for other in found[1:]:
            assert_same_bits(found[0], other)


def test_a_projection_and_a_dropout_of_everything(monkeypatch) -> None:
    for options in ({"proj_size": 3, "dropout": 0.3}, {"dropout": 1.0}):
        found = []
        for way in WAYS:
            use(way, monkeypatch)
            found.append(Case("LSTM", stateful=True, **options).results())
        for other in found[1:]:
            assert_same_bits(found[0], other)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_are_torchs(kind: str) -> None:
    case = Case(kind, stateful=True, dtype=torch.float64, bidirectional=True, dropout=0.4)
    found = case.results()
    plait.restore(case.layer)
    torch.manual_seed(5)
    y, state = case.layer(case.x, tuple(case.hx) if len(case.hx) > 1 else case.hx[0])
    last = state if isinstance(state, tuple) else (state,)
    loss = y.square().sum() + sum(s.sin().sum() for s in last)
    expected = [y, *last, torch.rand(1), *torch.autograd.grad(loss, case.inputs)]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def nodes(y: Tensor) -> int:
    """How many functions of plait the graph of y has."""
    seen, todo = set(), [y.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [n for n, _ in node.next_functions]
    return sum("Recurrence" in node.name() for node in seen)


def test_a_small_stack_is_one_function_and_one_launch_each_way(monkeypatch) -> None:
    launches = []
    run = threads.run
    monkeypatch.setattr(threads, "run", lambda *a: (launches.append(1), run(*a))[1])
    for dropout, count in ((0.0, 1), (0.4, 3)):  # torch's masks are multiplied between two launches
        launches.clear()
        y = Case("LSTM", bidirectional=True, dropout=dropout).run()[0]
        assert (nodes(y), len(launches)) == (1, count)
        y.sum().backward()
        assert len(launches) == 2 * count
    monkeypatch.setattr(recurrent, "MOST_TOGETHER", 1000)
    assert nodes(Case("LSTM").run()[0]) == 3, "a large one frees the tape of each layer by itself"


def test_each_gradient_by_itself(monkeypatch) -> None:
    for way in WAYS[:2]:
        use(way, monkeypatch)
        case = Case("GRU", stateful=True, bidirectional=True, dropout=0.4)
        y, h = case.run()
        loss = y.square().sum() + h.sin().sum()
        every = torch.autograd.grad(loss, case.inputs, retain_graph=True)
        for t, expected in zip(case.inputs, every, strict=True):
            assert torch.equal(torch.autograd.grad(loss, t, retain_graph=True)[0], expected)


def test_a_bias_that_learns_alone() -> None:
    """The launch sums it where it computes the gradient of its matrix."""
    for name in ("bias_ih_l0", "bias_hh_l1", "bias_ih_l2"):
        grads = []
        for alone in (False, True):
            case = Case("GRU", dtype=torch.float64)
            for n, p in case.layer.named_parameters():
                p.requires_grad_(not alone or n == name)
            case.run()[0].square().sum().backward()
            grads.append(getattr(case.layer, name).grad)
            assert not alone or [n for n, p in case.layer.named_parameters() if p.grad is not None] == [name]
        torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-14)


def test_frozen_layers(monkeypatch) -> None:
    """Those below the first that learns keep nothing, and the others learn as before."""
    for frozen, below in (((0,), 1), ((1,), 0), ((2,), 0), ((0, 1), 2)):
        found = []
        for way in WAYS:
            use(way, monkeypatch)
            case = Case("LSTM")
            case.x.requires_grad_(False)
            for name, p in case.layer.named_parameters():
                p.requires_grad_(not name.endswith(tuple(f"_l{k}" for k in frozen)))
            y = case.run()[0]
            assert nodes(y) == (3 - below if below or way == "layer by layer" else 1)
            y.square().sum().backward()
            found.append([p.grad for p in case.layer.parameters() if p.requires_grad])
            assert all(p.grad is None for p in case.layer.parameters() if not p.requires_grad)
        for other in found[1:]:
            assert_same_bits(found[0], other)


@pytest.mark.parametrize("lengths", [None, [6, 2, 4, 3]], ids=["dense", "ragged"])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_initial_states_that_learn_alone(kind: str, layers: int, bidirectional: bool, lengths) -> None:
    """All weights are frozen, or those of the first layer: each layer is walked back to where its states began."""
    for frozen in ("", "_l0"):
        more = {"num_layers": layers, "bidirectional": bidirectional, "dtype": torch.float64}
        case = Case(kind, stateful=True, lengths=lengths, **more)
        case.x.requires_grad_(False)
        for name, p in case.layer.named_parameters():
            p.requires_grad_(frozen not in name)
        found = []
        for engine in ("fused", "numpy"):
            case.layer.engine = engine
            y, *last = case.run()
            for loss in (y.square().sum(), sum(s.sin().sum() for s in last)):
                found.append(torch.autograd.grad(loss, case.hx, retain_graph=True))
        torch.testing.assert_close(found[:2], found[2:], rtol=1e-10, atol=1e-12)


def test_twice_differentiated_with_dropout(monkeypatch) -> None:
    found = []
    for way in WAYS:
        use(way, monkeypatch)
        case = Case("LSTM", stateful=True, dtype=torch.float64, dropout=0.4)
        y, *last = case.run()
        loss = y.square().sum() + sum(s.sin().sum() for s in last)
        first = torch.autograd.grad(loss, case.inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), case.inputs)
        found.append([*first, *second])
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-12, atol=1e-12)


def test_backward_twice_uses_the_same_masks(monkeypatch) -> None:
    for way in WAYS[:2]:
        use(way, monkeypatch)
        case = Case("LSTM", dropout=0.4)
        y = case.run()[0]
        once, again = (torch.autograd.grad(y.sum(), case.inputs, retain_graph=True) for _ in range(2))
        assert_same_bits([*once], [*again])


def test_an_upper_weight_that_was_replaced_before_backward_is_refused() -> None:
    for change, sentence in (
        (lambda t: t[:6].clone(), r"weight w_hh is \(6, 9\) .* expected \(36, 9\) in torch.float32"),
        (lambda t: t.double(), "weight w_hh is .*float64"),
    ):
        case = Case("LSTM")
        y = case.run()[0]
        case.layer.weight_hh_l2.data = change(case.layer.weight_hh_l2.data)
        with pytest.raises(PlaitError, match=sentence):
            y.sum().backward()


def test_weights_that_do_not_fit_together_are_refused() -> None:
    case = Case("LSTM")
    case.layer.weight_ih_l1 = nn.Parameter(torch.randn(36, 8))
    with pytest.raises(PlaitError, match=r"weight w_ih is \(36, 8\) .* expected \(36, 9\)"):
        case.run()


def test_the_masks_that_a_hook_gives_back_are_looked_at() -> None:
    case = Case("LSTM", dropout=0.4)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:2] if t.shape == (24, 9) else t):
        y = case.run()[0]
    with pytest.raises(PlaitError, match=r"a saved mask is \(2, 9\)"):
        y.sum().backward()
