"""Labelled sequences: parts that keep the shares of the classes, the scale, what is missing, what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait import PlaitError
from plait.data.sequences import RawSequences, Scale, Sequences, Source, check_labels, check_rows, stratified


def found(*lengths: int, width: int = 2, labels: list[str] | None = None) -> RawSequences:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, width)) for n in lengths]
    return RawSequences(rows, labels, [f"sequence {k + 1}" for k in range(len(rows))])


def source(train: RawSequences, test: RawSequences | None = None, width: int = 2) -> Source:
    parts = {"train": train} | ({} if test is None else {"test": test})
    return Source("x", [f"c{d}" for d in range(width)], parts)


# --- parts -----------------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0, 0.95), st.integers(0, 5))
def test_a_part_has_its_share_of_each_class(counts: list[int], share: float, seed: int) -> None:
    labels = [f"c{k}" for k, n in enumerate(counts) for _ in range(n)]
    stay, taken = stratified(labels, share, seed)
    assert sorted([*stay, *taken]) == list(range(len(labels)))
    most = sum(n - 1 for n in counts)
    assert len(taken) == min(round(share * len(labels)), most)
    for k, n in enumerate(counts):
        inside = sum(labels[i] == f"c{k}" for i in taken)
        assert inside <= n - 1
        if len(taken) < most and share * n <= n - 1:  # nobody had to give more because another class has one alone
            assert abs(inside - share * n) < 1 or min(counts) * (1 - share) < 1
    again = stratified(labels, share, seed)
    assert [a.tolist() for a in again] == [stay.tolist(), taken.tolist()]


def test_many_classes_of_one_do_not_make_a_part_smaller() -> None:
    labels = ["a"] * 30 + list("bcdefgh")
    assert len(stratified(labels, 0.5, 0)[1]) == 18


@pytest.mark.parametrize(("total", "classes", "expected"), [(6726, 51, 673), (1286, 6, 129)])
def test_a_tenth_is_that_of_the_paper(total: int, classes: int, expected: int) -> None:
    """The third paper has 6053 / 673 and 1157 / 129 clips of HMDB51."""
    labels = [str(k * k % classes) + str(k % classes) for k in range(total)]
    stay, taken = stratified(labels, 0.1, 0)
    assert (len(stay), len(taken)) == (total - expected, expected)
    other = stratified(labels, 0.1, 1)[1]
    assert len(other) == expected
    assert not np.array_equal(other, taken)


# --- the scale -------------------------------------------------------------------------------------------------------
def test_the_scale_is_that_of_the_training_part() -> None:
    rows = [np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[5.0, 5.0]])]
    scale = Scale.fit(rows)
    assert scale.mean.tolist() == [3.0, 5.0]
    assert scale.std == pytest.approx([np.sqrt(8 / 3), 1.0])
    all_rows = np.concatenate([scale.apply(r) for r in rows])
    assert all_rows.dtype == np.float32
    assert all_rows[:, 0].std() == pytest.approx(1, rel=1e-6)
    assert not all_rows[:, 1].any()


def test_numbers_in_float32_that_never_change_are_only_moved() -> None:
    """Their mean is not exactly they: rounding must not be taken for a spread."""
    scale = Scale.fit([np.full((1000, 2), 0.1, np.float32) for _ in range(100)])
    assert scale.std.tolist() == [1, 1]


def test_a_number_that_is_far_too_large_is_named() -> None:
    scale = Scale.fit([np.array([[1.0], [2.0]])])
    some = RawSequences([np.array([[1.0]]), np.array([[1e60]])], None, ["sequence 1", "sequence 2"])
    with pytest.raises(PlaitError, match="sequence 2 has a number that is too far from those of the training part"):
        Sequences.of(some, scale, [])


def test_large_numbers_lose_nothing_before_they_are_scaled() -> None:
    """Seconds since 1970: in float32 they would all be the same."""
    rows = 1.7e9 + np.arange(100.0)[:, None]
    scaled = Scale.fit([rows]).apply(rows)
    assert len(np.unique(scaled)) == 100


# --- what is missing -------------------------------------------------------------------------------------------------
def test_gaps_are_named_or_filled() -> None:
    rows = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, 3.0], [6.0, np.nan]])
    data = source(RawSequences([rows], ["a"], ["sequence 1"]))
    with pytest.raises(PlaitError, match=r"x, sequence 1, step 1, column 'c0': the number is missing \(NaN\); use --m"):
        check_rows(data, data.parts["train"], "error")
    filled = check_rows(data, data.parts["train"], "interpolate").rows[0]
    assert filled.tolist() == [[2, 1], [2, 2], [4, 3], [6, 3]]
    assert np.isnan(rows).sum() == 4  # the user's own are as they were
    with pytest.raises(PlaitError, match="did you mean 'interpolate'"):
        check_rows(data, data.parts["train"], "interpol")


def test_a_column_without_any_number_gets_the_mean() -> None:
    whole, empty = np.array([[1.0, 4.0], [3.0, 8.0]]), np.array([[2.0, np.nan], [2.0, np.nan]])
    data = source(RawSequences([whole, empty], ["a", "b"], ["1", "2"]))
    rows = check_rows(data, data.parts["train"], "interpolate").rows
    scale = Scale.fit(rows)
    assert scale.mean.tolist() == [2.0, 6.0]
    assert scale.apply(rows[1])[:, 1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "x has no sequences"),
        ([np.zeros((0, 2))], "x, name 0: it has no steps; expected one or more: leave it out"),
        ([np.zeros((3, 2)), np.zeros((3, 1))], "x, name 1: it has 1 columns, and the others have 2"),
        ([np.array([[0, np.inf]])], "x, name 0, step 1, column 'c1': inf is too large"),
        ([np.array([[0, -1e200]])], "x, name 0, step 1, column 'c1': -1e[+]200 is too large"),
        ([np.array([[0, np.inf]], np.float32)], "x, name 0, step 1, column 'c1': inf is too large"),
    ],
)
def test_rows_that_are_refused(rows: list[np.ndarray], says: str) -> None:
    data = source(RawSequences(rows, None, [f"name {k}" for k in range(len(rows))]))
    with pytest.raises(PlaitError, match=says):
        check_rows(data, data.parts["train"], "interpolate")


# --- classes ---------------------------------------------------------------------------------------------------------
def test_classes_are_in_order() -> None:
    labels = ["10", "b", "9", "a", "9"]
    assert check_labels(source(found(1, 1, 1, 1, 1, labels=labels))) == ["9", "10", "a", "b"]


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        (None, None, "x has no labels in its train part"),
        ([], None, "x: all 0 sequences to train on are not there; expected two classes"),
        (["a", ""], None, "x, sequence 2: it has no label"),
        (["a", "a"], None, "x: all 2 sequences to train on are of class 'a'; expected two classes"),
        (
            ["a", "b"],
            ["a", "c"],
            "x: class 'c' is in the test part, and not in the training part; add .* or .* --classes",
        ),
    ],
)
def test_labels_that_are_refused(train: list[str] | None, test: list[str] | None, says: str) -> None:
    data = source(
        found(*[2] * (2 if train is None else len(train)), labels=train),
        None if test is None else found(2, 2, labels=test),
    )
    with pytest.raises(PlaitError, match=says):
        check_labels(data)


def test_a_test_part_alone_is_refused() -> None:
    data = Source("x", ["a", "b"], {"test": found(2, 2, labels=["a", "b"])})
    with pytest.raises(PlaitError, match="x has no sequences to train on"):
        check_labels(data)


def test_columns_of_other_data() -> None:
    a = source(found(2, labels=["u"]))
    b = Source("y", ["c1", "c0"], {"train": a.parts["train"]})
    rows = b.in_order(a.columns, "x").parts["train"].rows[0]
    assert np.array_equal(rows, a.parts["train"].rows[0][:, ::-1])
    unnamed = Source("y", ["1", "2"], {"train": a.parts["train"]}).in_order(a.columns, "x")
    assert np.array_equal(unnamed.parts["train"].rows[0], a.parts["train"].rows[0])
    with pytest.raises(PlaitError, match="y has a column 'z', and x has none: expected the same columns"):
        Source("y", ["c0", "z"], b.parts).in_order(a.columns, "x")
    with pytest.raises(PlaitError, match=r"y has 1 columns, and x has 2 \(c0, c1\)"):
        Source("y", ["c0"], b.parts).in_order(a.columns, "x")


def test_some_classes_only() -> None:
    data = source(found(1, 2, 3, 4, labels=["a", "b", "c", "a"]))
    chosen = data.only(["a", "c"]).parts["train"]
    assert (chosen.labels, [len(r) for r in chosen.rows]) == (["a", "c", "a"], [1, 3, 4])
    with pytest.raises(PlaitError, match="class 'd' is not known"):
        data.only(["a", "d"])


# --- batches ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lengths", [(3, 3, 3, 3), (5, 1, 3, 3)])
def test_a_batch_has_the_rows_of_its_sequences(lengths: tuple[int, ...]) -> None:
    some = found(*lengths, labels=list("abab"))
    scale = Scale(np.zeros(2), np.ones(2))
    sequences = Sequences.of(some, scale, ["a", "b"])
    assert sequences.labels.tolist() == [0, 1, 0, 1]
    rows, layout = sequences.batch(torch.tensor([2, 0, 1]))
    assert layout.is_dense == (len(set(lengths)) == 1)
    for place, k in enumerate((2, 0, 1)):
        mine = rows[layout.sequence == place]
        assert torch.equal(mine, torch.from_numpy(some.rows[k]).float())
    chosen = sequences.where(torch.tensor([3, 1]))
    assert torch.equal(chosen.rows, torch.cat([torch.from_numpy(some.rows[k]).float() for k in (3, 1)]))
    assert (chosen.lengths.tolist(), list(chosen.names)) == ([lengths[3], lengths[1]], ["sequence 4", "sequence 2"])
