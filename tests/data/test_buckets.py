"""Buckets with little padding, and batches from them in which nothing is lost: for one rank and for many."""

import itertools
import zipfile
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from plait import PlaitError
from plait.data import buckets
from plait.data.sampler import Sampler
from reference import data_file

many = settings(max_examples=200, deadline=None)
some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def treebank() -> np.ndarray:
    """Words and <eos> of each sentence."""
    with zipfile.ZipFile(data_file("ptb.zip")) as file:
        text = file.read("ptb.train.txt").decode()
    return np.array([len(line.split()) + 1 for line in text.splitlines()])


def slots(lengths: list[int] | np.ndarray, boundaries: tuple[int, ...]) -> int:
    """With padding, counted by hand."""
    return sum(min(b for b in boundaries if b >= n) for n in lengths)


def drawn(sampler: Sampler, epoch: int = 0, position: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in sampler.batches(epoch, position)]


def padded(sampler: Sampler) -> float:
    """The share of padding in an epoch's batches."""
    used = sum(sampler.length_of(batch) * len(batch) for batch in sampler.batches(0))
    return 1 - int(sampler.lengths.sum()) / used


# Boundaries


def test_four_sentences_in_pairs() -> None:
    """22 words take 30 slots in pairs as they come, and 24 in pairs of similar length."""
    lengths = [4, 8, 3, 7]
    assert sum(lengths) == 22
    assert sum(2 * max(pair) for pair in (lengths[:2], lengths[2:])) == 30
    assert buckets.greedy(lengths, 2) == buckets.optimal(lengths, 2) == (4, 8)
    sampler = Sampler(lengths, 2, boundaries=(4, 8))
    assert sorted(sorted(batch) for batch in drawn(sampler)) == [[0, 2], [1, 3]]
    assert sum(sampler.length_of(batch) * 2 for batch in sampler) == slots(lengths, (4, 8)) == 24
    assert buckets.padding(lengths, (4, 8)) == pytest.approx(2 / 24)
    assert padded(Sampler(lengths, 2, pool=2)) == pytest.approx(2 / 24)


def test_none_is_one_bucket() -> None:
    assert buckets.none([4, 8, 3]) == (8,)
    assert buckets.padding([4, 8, 3], (8,)) == pytest.approx(9 / 24)


@pytest.mark.parametrize(
    ("batch", "boundaries"), [(1, (1, 2, 5, 9)), (2, (1, 5, 9)), (3, (2, 9)), (6, (9,)), (7, (9,)), (100, (9,))]
)
def test_greedy_ends_a_bucket_when_it_fills_a_batch(batch: int, boundaries: tuple[int, ...]) -> None:
    assert buckets.greedy([5, 1, 9, 2, 1, 9], batch) == boundaries


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_lengths_may_be_of_any_kind(kind: type) -> None:
    lengths = kind([4, 8, 3, 7])
    assert buckets.static(lengths, (3, 8)) == (3, 8)
    assert buckets.bucket_of(lengths, (3, 8)).tolist() == [1, 1, 0, 1]
    assert buckets.bucket_of(lengths, (3, 8)).dtype == np.int64
    assert buckets.optimal(lengths, 9) == (3, 4, 7, 8)
    assert all(type(b) is int for b in buckets.optimal(lengths, 9))
    assert drawn(Sampler(lengths, 2, boundaries=kind([4, 8]))) == drawn(Sampler([4, 8, 3, 7], 2, boundaries=(4, 8)))


def test_a_tensor_may_be_of_floats_and_a_sampler_keeps_lengths_of_its_own() -> None:
    assert buckets.none(torch.tensor([4.0, 8.0], dtype=torch.bfloat16)) == (8,)
    assert buckets.none(np.array([4, 8], dtype=np.float16)) == (8,)
    lengths = np.array([4, 8])
    sampler = Sampler(lengths, 2)
    lengths[:] = 1
    assert sampler.length_of([0, 1]) == 8


@many
@given(lengths=some_lengths, K=st.integers(1, 9))
def test_optimal_is_the_best_of_all(lengths: list[int], K: int) -> None:
    values = sorted(set(lengths))[:9]
    lengths = [n for n in lengths if n in values]
    inner = (cut for k in range(K) for cut in itertools.combinations(values[:-1], min(k, len(values) - 1)))
    best = min(slots(lengths, (*cut, values[-1])) for cut in inner)
    found = buckets.optimal(lengths, K)
    assert len(found) == min(K, len(values))
    assert slots(lengths, found) == best
    assert buckets.padding(lengths, found) == pytest.approx(1 - sum(lengths) / best)


@pytest.mark.parametrize(
    ("lengths", "K", "boundaries"),
    [
        ([18, 23, 26, 29], 2, (23, 29)),
        ([3, 9, 16, 19, 21, 28], 3, (9, 21, 28)),
        ([4, 17, 20, 20, 28, 28, 28], 2, (20, 28)),  # a line leaves the hull
        ([1, 2, 11, 18, 18, 18, 22, 26, *[27] * 9, 28, 28], 4, (2, 18, 27, 28)),  # two lines leave it at once
        ([3, 8, 8, 12, 12, 15, 17, 17, *[21] * 5, 25, 29, 29], 2, (21, 29)),
    ],
)
def test_optimal_by_example(lengths: list[int], K: int, boundaries: tuple[int, ...]) -> None:
    """Where a hull that is not kept as it should be gives more padding."""
    assert buckets.optimal(lengths, K) == boundaries
    assert slots(lengths, boundaries) == least_slots(np.array(lengths), K)


def least_slots(lengths: np.ndarray, K: int) -> int:
    """The recurrence as it stands, over every i for every j."""
    values, counts = np.unique(lengths, return_counts=True)
    before = np.concatenate(([0], np.cumsum(counts)))  # sequences before each distinct length
    f = values * before[1:]
    for _ in range(K - 1):
        rows = ((f[:j] + n * (before[j + 1] - before[1 : j + 1]), f[j]) for j, n in enumerate(values))
        f = np.array([row.min(initial=whole) for row, whole in rows])
    return int(f[-1])


@pytest.mark.parametrize("K", [1, 2, 5, 6, 10, 16, 79])
def test_optimal_on_the_treebank(treebank: np.ndarray, K: int) -> None:
    assert slots(treebank, buckets.optimal(treebank, K)) == least_slots(treebank, K)


@pytest.mark.parametrize("kind", ["even", "skewed"])
def test_optimal_for_a_million(kind: str) -> None:
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 5001, 10**6) if kind == "even" else draw.geometric(0.002, 10**6)
    found = buckets.optimal(lengths, 16)
    assert int(np.array(found)[buckets.bucket_of(lengths, found)].sum()) == least_slots(lengths, 16)


def test_optimal_does_not_overflow() -> None:
    lengths = [1, *[2**30] * 500, *[2**30 + 1] * 3, *[2**31 - 1] * 500]
    assert buckets.optimal(lengths, 3) == (1, 2**30 + 1, 2**31 - 1)
    assert buckets.optimal(lengths, 2) == (2**30 + 1, 2**31 - 1)


def test_padding_of_the_treebank(treebank: np.ndarray) -> None:
    assert (len(treebank), treebank.sum(), treebank.max()) == (42_068, 929_589, 83)
    shares = [100 * buckets.padding(treebank, buckets.optimal(treebank, K)) for K in (1, 5, 6, 10, 16)]
    assert shares == pytest.approx([73.4, 18.6, 15.45, 8.7, 4.7], abs=0.05)
    assert buckets.none(treebank) == (83,)
    assert len(buckets.greedy(treebank, 32)) == 58
    with pytest.raises(PlaitError, match=r"89 of 42068 sequences are longer than 60 .* and 86 more.* at least 83"):
        buckets.static(treebank, (8, 16, 24, 32, 60))


def test_padding_of_batches_of_the_treebank(treebank: np.ndarray) -> None:
    ten = buckets.optimal(treebank, 10)
    assert padded(Sampler(treebank, 32)) == pytest.approx(0.525, abs=0.005)
    assert padded(Sampler(treebank, 32, pool=50)) == pytest.approx(0.038, abs=0.002)
    assert padded(Sampler(treebank, 32, pool=100)) == pytest.approx(0.020, abs=0.002)
    assert padded(Sampler(treebank, 32, boundaries=ten)) == pytest.approx(buckets.padding(treebank, ten), abs=0.002)


def test_buckets_by_name() -> None:
    lengths = [4, 8, 3, 7]
    assert buckets.parse("none", lengths, 2) == (8,)
    assert buckets.parse("greedy", lengths, 2) == (4, 8)
    assert buckets.parse("optimal:3", lengths, 2) == buckets.optimal(lengths, 3)
    assert buckets.parse("4,6,80", lengths, 2) == (4, 6, 80)
    assert buckets.parse("8", lengths, 2) == (8,)


@pytest.mark.parametrize(
    "text", ["", "None", "optimal", "optimal:", "optimal:-1", "optimal:2.5", "8,", ",8", "8;9", "-8", "8.5", "9" * 5000]
)
def test_buckets_of_no_known_name(text: str) -> None:
    sentence = "is not known: expected none, greedy, optimal:10 .*boundaries such as 8,16,32"
    with pytest.raises(PlaitError, match=sentence):
        buckets.parse(text, [1, 2], 1)


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ([], "lengths are empty"),
        (torch.tensor([]), "lengths are empty"),
        ([3, 1, 0, -1], "lengths: number 2, counted from 0, is 0: expected whole numbers from 1"),
        ([3, -1], "number 1, counted from 0, is -1"),
        ([3, 2.5], "number 1, counted from 0, is 2.5"),
        ([3, float("nan")], "number 1, counted from 0, is nan"),
        ([3, float("inf")], "number 1, counted from 0, is inf"),
        ([3, None], "number 1, counted from 0, is None"),
        ([3, "4"], "number 1, counted from 0, is 4"),
        ([True, True], "number 0, counted from 0, is True"),
        ([3, 2**31], "number 1, counted from 0, is 2147483648: expected whole numbers from 1 to 2147483647"),
        ([3, 2**70], "number 1, counted from 0, is 1180591620717411303424"),
        (np.array([3.0, 2.0**31], dtype=np.float32), "number 1, counted from 0, is 2147483648"),
        ([[3, 4]], r"lengths have the shape \(1, 2\): expected one row"),
        ([[3], [4, 5]], "lengths are not one row of numbers"),
        (None, r"lengths have the shape \(\)"),
        (torch.tensor(3), r"lengths have the shape \(\)"),
    ],
)
def test_bad_lengths_get_a_sentence(lengths: object, sentence: str) -> None:
    calls = [
        buckets.none,
        lambda n: buckets.static(n, (8,)),
        lambda n: buckets.greedy(n, 2),
        lambda n: buckets.optimal(n, 2),
        lambda n: buckets.padding(n, (8,)),
        lambda n: buckets.bucket_of(n, (8,)),
        lambda n: buckets.parse("greedy", n, 2),
        lambda n: Sampler(n, 2),
    ]
    for call in calls:
        with pytest.raises(PlaitError, match=sentence):
            call(lengths)


@pytest.mark.parametrize(
    ("boundaries", "sentence"),
    [
        ((), "boundaries are empty"),
        ((8, 4), "boundaries 8,4: expected ascending numbers, such as 4,8"),
        ((4, 4, 9), "boundaries 4,4,9: expected ascending numbers, such as 4,9"),
        ((0, 9), "boundaries: number 0, counted from 0, is 0"),
        ((2.5, 9), "boundaries: number 0, counted from 0, is 2.5"),
        ((4, 8), r"boundaries 4,8: 1 of 5 sequences are longer than 8 \(.*: number 3 of length 9\): .* at least 9"),
        ((2,), r"4 of 5 .* \(counted from 0: number 1 of length 3, .* number 3 of length 9 and 1 more\)"),
    ],
)
def test_bad_boundaries_get_a_sentence(boundaries: tuple[int, ...], sentence: str) -> None:
    lengths = [1, 3, 8, 9, 4]
    for call in (buckets.static, buckets.padding, buckets.bucket_of, lambda n, b: Sampler(n, 2, boundaries=b)):
        with pytest.raises(PlaitError, match=sentence):
            call(lengths, boundaries)


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", None, True, float("nan")])
def test_bad_numbers_get_a_sentence(number: object) -> None:
    with pytest.raises(PlaitError, match=r"buckets .* must be .*at least 1"):
        buckets.optimal([1, 2], number)
    for call in (lambda: buckets.greedy([1, 2], number), lambda: Sampler(2, number), lambda: Sampler([1, 2], number)):
        with pytest.raises(PlaitError, match=r"batch .* must be .*at least 1"):
            call()


# Batches


@st.composite
def scheme(draw: st.DrawFn) -> tuple[list[int], dict[str, object]]:
    """Lengths, and how they are put together."""
    lengths = draw(some_lengths)
    name = draw(st.sampled_from(["as they come", "none", "greedy", "optimal", "static", "pool"]))
    if name == "as they come":
        return lengths, {}
    if name == "pool":
        return lengths, {"pool": draw(st.integers(1, 6))}
    if name == "static":
        inner = draw(st.sets(st.integers(1, 60), max_size=5))
        return lengths, {"boundaries": sorted({*inner, max(lengths) + draw(st.integers(0, 3))})}
    texts = {"none": "none", "greedy": "greedy", "optimal": f"optimal:{draw(st.integers(1, 8))}"}
    return lengths, {"boundaries": buckets.parse(texts[name], lengths, draw(st.integers(1, 20)))}


@many
@given(how=scheme(), batch=st.integers(1, 20), seed=st.integers(0, 2**63), epoch=st.integers(0, 1000), data=st.data())
def test_each_sequence_once(
    how: tuple[list[int], dict[str, object]], batch: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    lengths, options = how
    sampler = Sampler(lengths, batch, seed, **options)
    batches = drawn(sampler, epoch)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    assert sorted(map(len, batches))[1:] == [batch] * (len(sampler) - 1)
    assert len(batches) == len(sampler) == -(-len(lengths) // batch)
    position = data.draw(st.integers(0, len(sampler)))
    assert drawn(sampler, epoch, position) == batches[position:]
    shapes = [sampler.length_of(b) for b in batches]
    assert all(shape >= max(lengths[k] for k in b) for shape, b in zip(shapes, batches, strict=True))
    if boundaries := options.get("boundaries"):
        assert set(shapes) <= set(boundaries)
        check_buckets(lengths, boundaries, batches)


def check_buckets(lengths: list[int], boundaries: list[int], batches: list[list[int]]) -> None:
    """Of each bucket, fewer than a batch are moved up."""
    most = max(map(len, batches))
    bucket = buckets.bucket_of(lengths, boundaries)
    for number in range(len(boundaries)):
        moved = [k for b in batches for k in b if bucket[k] <= number < max(bucket[b])]
        assert len(moved) < most


def test_the_order_that_published_figures_depend_on() -> None:
    """One bucket or none: the batches are a seeded permutation cut up."""
    lengths = np.random.default_rng(0).integers(1, 50, 103)
    for seed, epoch in itertools.product((0, 7), (0, 1, 5)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        expected = [b.tolist() for b in torch.randperm(103, generator=generator).split(10)]
        one = buckets.none(lengths)
        for sampler in (Sampler(103, 10, seed), Sampler(lengths, 10, seed), Sampler(lengths, 10, seed, boundaries=one)):
            assert drawn(sampler, epoch) == expected


@pytest.mark.parametrize("options", [{"boundaries": (10, 20, 30, 40, 50)}, {"pool": 4}])
def test_batches_come_in_random_order(options: dict[str, object]) -> None:
    lengths = np.random.default_rng(0).integers(1, 51, 1000)
    sampler = Sampler(lengths, 10, **options)
    first, second = ([int(lengths[b].max()) for b in drawn(sampler, epoch)] for epoch in (0, 1))
    steps = np.diff(first)
    assert (steps > 0).any()
    assert (steps < 0).any()
    assert abs(np.corrcoef(first, range(100))[0, 1]) < 0.3  # batches do not grow along the epoch
    assert first != second
    assert drawn(sampler, 0) == drawn(Sampler(lengths, 10, **options), 0)
    assert {tuple(sorted(b)) for b in drawn(sampler, 0)} != {tuple(sorted(b)) for b in drawn(sampler, 1)}


def test_a_remainder_moves_up() -> None:
    sampler = Sampler([1, 1, 1, 5, 5, 9, 9], 2, boundaries=(1, 5, 9))
    for epoch in range(20):
        shapes = sorted(sampler.length_of(b) for b in sampler.batches(epoch))
        assert shapes == [1, 5, 9, 9]


def test_a_million_sequences_in_an_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 5001, 10**6)
    for options in ({"boundaries": buckets.optimal(lengths, 16)}, {"pool": 100}):
        order = torch.cat(list(Sampler(lengths, 32, **options).batches(0)))
        assert torch.equal(order.sort().values, torch.arange(10**6))


# Ranks


@many
@given(how=scheme(), data=st.data(), seed=st.integers(0, 9), epoch=st.integers(0, 9), known=st.booleans())
def test_ranks_share_a_batch(
    how: tuple[list[int], dict[str, object]], data: st.DataObject, seed: int, epoch: int, known: bool
) -> None:
    lengths, options = how
    ranks = data.draw(st.integers(2, 8).filter(lambda p: p <= len(lengths)) if len(lengths) > 1 else st.just(1))
    batch = data.draw(st.integers(ranks, 20))
    what, options = (lengths, options) if known else (len(lengths), {})
    samplers = [Sampler(what, batch, seed, rank=r, ranks=ranks, **options) for r in range(ranks)]
    parts = [drawn(sampler, epoch) for sampler in samplers]  # (ranks, batches, ...)
    assert {len(p) for p in parts} == {len(samplers[0])}
    steps = list(zip(*parts, strict=True))
    for step in steps:
        sizes = [len(part) for part in step]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) in (batch, len(lengths) % batch)
    together = [sorted(itertools.chain(*step)) for step in steps]
    assert sorted(itertools.chain(*together)) == list(range(len(lengths)))
    position = data.draw(st.integers(0, len(samplers[0])))
    assert all(drawn(s, epoch, position) == p[position:] for s, p in zip(samplers, parts, strict=True))
    alone = Sampler(what, batch, seed, **options)
    assert together == [sorted(b) for b in drawn(alone, epoch)]  # those of one rank, at the same positions


def test_the_longest_first_there_and_back() -> None:
    lengths = [3, 9, 1, 7, 5, 8, 2, 6, 4]
    parts = [[[lengths[k] for k in b] for b in drawn(Sampler(lengths, 9, rank=r, ranks=3))] for r in range(3)]
    assert parts == [[[9, 4, 3]], [[8, 5, 2]], [[7, 6, 1]]]


@pytest.mark.parametrize("options", [{}, {"pool": 2}, {"boundaries": (4, 9)}])
def test_each_batch_is_dealt_from_its_first_rank_on(options: dict[str, object]) -> None:
    """Three for two ranks: the longest for one, the others for the other, batch after batch."""
    lengths = [3, 9, 1, 7, 5, 8, 2, 6, 4]
    ranks = [drawn(Sampler(lengths, 3, 1, rank=r, ranks=2, **options)) for r in range(2)]
    for batch, first, second in zip(drawn(Sampler(lengths, 3, 1, **options)), *ranks, strict=True):
        longest, *others = sorted(batch, key=lambda k: -lengths[k])
        assert (first, second) == ([longest], others)


def test_property_tests_draw_the_same_each_time() -> None:
    """What is found by chance is found again; `make test-slow` draws anew."""
    assert many.derandomize
    assert many.database is None


@pytest.mark.parametrize(
    ("size", "batch", "ranks", "sizes"),
    [
        (10, 4, 2, [4, 4, 2]),
        (9, 4, 2, [4, 4, 1]),
        (11, 4, 4, [4, 4, 3]),
        (12, 4, 4, [4, 4, 4]),
        (3, 8, 3, [3]),
        (8, 8, 8, [8]),
        (9, 8, 8, [8, 1]),
        (101, 20, 2, [20, 20, 20, 20, 20, 1]),
    ],
)
def test_a_last_batch_too_small_for_the_ranks_is_left_to_some_of_them(
    size: int, batch: int, ranks: int, sizes: list[int]
) -> None:
    samplers = [Sampler(size, batch, rank=r, ranks=ranks) for r in range(ranks)]
    steps = list(zip(*map(drawn, samplers), strict=True))
    assert [sum(map(len, step)) for step in steps] == sizes
    assert len(samplers[0]) == len(sizes)
    grouped = [Sampler([*range(1, size + 1)], batch, pool=2, rank=r, ranks=ranks) for r in range(ranks)]
    assert sorted(sum(map(len, step)) for step in zip(*map(drawn, grouped), strict=True)) == sorted(sizes)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_have_as_many_tokens(treebank: np.ndarray, ranks: int) -> None:
    """The slowest rank has hardly more to do than the mean; drawn at random it has 1.10 to 1.29 times as much."""
    ten = buckets.optimal(treebank, 10)
    samplers = [Sampler(treebank, 8 * ranks, boundaries=ten, rank=r, ranks=ranks) for r in range(ranks)]
    tokens = np.array([[treebank[b].sum() for b in drawn(sampler)] for sampler in samplers])  # (ranks, batches)
    assert (tokens.max(0) / tokens.mean(0)).mean() < 1.02
    assert tokens.sum() == 929_589


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Sampler(0, 2), "number of training sequences 0: must be at least 1"),
        (lambda: Sampler(10, 2, boundaries=(8,)), "boundaries with 10 sequences of no known length: give one length"),
        (lambda: Sampler(10, 2, pool=3), "pool with 10 sequences of no known length"),
        (lambda: Sampler(10, 2).length_of([0]), "10 sequences of no known length: give one length for each"),
        (lambda: Sampler([3, 4], 2, boundaries=(8,), pool=3), "boundaries and pool exclude each other: leave one"),
        (lambda: Sampler([3, 4], 2, pool=0), "pool 0: must be at least 1"),
        (lambda: Sampler([3, 4], 2, pool=1.5), "pool 1.5: must be a whole number"),
        (lambda: Sampler(10, 2, -1), "seed -1: must be at least 0"),
        (lambda: Sampler(10, 2, 0.5), "seed 0.5: must be a whole number"),
        (lambda: Sampler(10, 2, ranks=0), "ranks 0: must be at least 1"),
        (lambda: Sampler(10, 2, rank=-1, ranks=2), "rank -1: must be at least 0"),
        (lambda: Sampler(10, 2, rank=2, ranks=2), "rank 2 of 2: must be at most 1"),
        (lambda: Sampler(10, 2, ranks=3), "batch 2 for 3 ranks: .* use fewer ranks"),
        (lambda: Sampler(2, 8, ranks=3), "2 sequences for 3 ranks: .* use fewer ranks"),
        (lambda: Sampler([3, 4], 8, ranks=3), "2 sequences for 3 ranks"),
        (lambda: drawn(Sampler(10, 2), 0, 6), "position 6: an epoch has 5 batches"),
        (lambda: drawn(Sampler(10, 2), 0, -1), "position -1: must be at least 0"),
        (lambda: drawn(Sampler(10, 2), -1), "epoch -1: must be at least 0"),
        (lambda: Sampler(10, 2).set_epoch(-1), "epoch -1: must be at least 0"),
        (lambda: Sampler(10, 2).set_epoch(0.5), "epoch 0.5: must be a whole number"),
        (lambda: Sampler(10, 2).load_state_dict({}), "state has nothing: expected epoch and position"),
        (lambda: Sampler(10, 2).load_state_dict({"epoch": 1}), "state has epoch: expected epoch and position"),
        (lambda: Sampler(10, 2).load_state_dict({"epoch": 1, "position": 6}), "position 6: an epoch has 5 batches"),
    ],
)
def test_bad_samplers_get_a_sentence(make, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        make()


# As a DataLoader's


class Numbers(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, k: int) -> int:
        return k


def loader(sampler: Sampler, workers: int = 0) -> DataLoader[int]:
    return DataLoader(Numbers(sampler.size), batch_sampler=sampler, num_workers=workers)


def sampler() -> Sampler:
    return Sampler(np.random.default_rng(0).integers(1, 30, 50), 4, seed=1, boundaries=(10, 20, 30))


def lists(batches: Iterator[Tensor]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_order_in_each_epoch_of_a_data_loader(workers: int) -> None:
    batches = loader(sampler(), workers)
    assert len(batches) == 13
    assert [lists(batches) for _ in range(3)] == [drawn(sampler(), epoch) for epoch in range(3)]
    batches.batch_sampler.set_epoch(1)
    assert lists(batches) == drawn(sampler(), 1)


def test_going_on_in_the_middle_of_an_epoch() -> None:
    before, after = sampler(), sampler()
    before.set_epoch(2)
    first = lists(itertools.islice(loader(before), 5))
    state = before.state_dict()
    assert state == {"epoch": 2, "position": 5}
    after.load_state_dict(state)
    assert first + lists(loader(after)) == drawn(sampler(), 2)
    assert lists(loader(after)) == drawn(sampler(), 3)
    assert after.state_dict() == {"epoch": 4, "position": 0}


def test_going_on_twice_in_one_epoch() -> None:
    again = sampler()
    again.load_state_dict({"epoch": 2, "position": 5})
    assert lists(itertools.islice(loader(again), 3)) == drawn(sampler(), 2)[5:8]
    assert again.state_dict() == {"epoch": 2, "position": 8}


def test_going_on_with_workers_from_what_was_trained_on() -> None:
    """They draw ahead, so the position is counted by whoever trains."""
    before, after = sampler(), sampler()
    batches = iter(loader(before, 2))
    first = [next(batches).tolist() for _ in range(3)]
    assert before.position > 3
    after.load_state_dict({"epoch": 0, "position": 3})
    assert first + lists(loader(after, 2)) == drawn(sampler(), 0)


def test_a_state_at_the_end_of_an_epoch_leads_into_the_next() -> None:
    before, after = sampler(), sampler()
    lists(itertools.islice(loader(before), 13))
    assert before.state_dict() == {"epoch": 0, "position": 13}
    after.load_state_dict(before.state_dict())
    assert lists(loader(after)) == []
    assert lists(loader(after)) == drawn(sampler(), 1)


def test_the_default_device_does_not_matter() -> None:
    expected = drawn(sampler(), 1)
    torch.set_default_device("meta")
    try:
        assert drawn(sampler(), 1) == expected
        assert sampler().length_of(expected[0]) in (10, 20, 30)
    finally:
        torch.set_default_device(None)
