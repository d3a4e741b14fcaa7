"""Layouts, against sequences that are looked at one by one."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from plait import PlaitError
from plait.layout import Layout, Pieces

lengths_of = st.lists(st.integers(1, 9), min_size=1, max_size=7)


@st.composite
def layouts(draw) -> tuple[Layout, list[int]]:
    """Dense, or ragged, and the lengths of its sequences, longest first."""
    if draw(st.booleans()):
        T, B = draw(st.integers(1, 9)), draw(st.integers(1, 5))
        return Layout(T, B), [T] * B
    lengths = draw(lengths_of)
    return Layout.of_lengths(lengths), sorted(lengths, reverse=True)


def rows_of(lengths: list[int]) -> list[tuple[int, int]]:
    """The step and the sequence of each row; the lengths are longest first."""
    return [(t, b) for t in range(max(lengths)) for b, n in enumerate(lengths) if t < n]


def test_a_dense_layout() -> None:
    layout = Layout(4, 3)
    assert set(vars(layout)) == {"T", "B", "N", "is_dense", "batch_sizes", "cache"}  # one is made with every call
    assert (layout.N, layout.is_dense, layout.batch_sizes) == (12, True, None)
    assert (layout.sizes, layout.starts, layout.lengths.tolist()) == ([3] * 4, [0, 3, 6, 9], [4] * 3)
    assert layout.permutation is layout.inverse is None
    assert layout.packed_sequence(torch.zeros(12, 2)).batch_sizes.tolist() == [3] * 4
    assert Layout(0, 3).N == 0
    assert Layout(0, 3).lengths.tolist() == [0] * 3


def test_a_ragged_layout() -> None:
    layout = Layout.ragged(torch.tensor([3, 2, 2, 1]))
    assert (layout.T, layout.B, layout.N) == (4, 3, 8)
    assert layout.starts == [0, 3, 5, 7]
    assert layout.bounds.tolist() == [0, 3, 5, 7, 8]
    assert layout.lengths.tolist() == [4, 3, 1]
    assert list(layout.order(reverse=True)) == [3, 2, 1, 0]
    assert not layout.is_dense
    assert Layout.ragged(torch.tensor([2, 2])).is_dense


def test_sizes_that_are_no_whole_numbers() -> None:
    for sizes in (torch.tensor([2.0, 1.0]), torch.tensor([2 + 0j]), torch.tensor([[2, 1]])):
        with pytest.raises(PlaitError, match="expected one whole number for each step"):
            Layout.ragged(sizes)


@given(lengths_of, st.integers(0, 3), st.booleans())
def test_rows_are_those_of_torch(lengths: list[int], more: int, batch_first: bool) -> None:
    """As torch packs a padded batch, which may have steps that no sequence has."""
    T, B = max(lengths) + more, len(lengths)
    layout = Layout.of_lengths(lengths, T, B)
    x = torch.arange(T * B).view(B, T, 1) if batch_first else torch.arange(T * B).view(T, B, 1)
    expected = pack_padded_sequence(x, torch.tensor(lengths), batch_first, enforce_sorted=False)
    found = layout.packed_sequence(x.flatten(0, 1)[layout.places(T, batch_first)])
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert (max(lengths), B, sum(lengths)) == (layout.T, layout.B, layout.N)
    ordered = layout.permutation.tolist()
    assert layout.lengths.tolist() == [lengths[b] for b in ordered]
    rows = [(t, ordered[b]) for t, b in rows_of(layout.lengths.tolist())]
    assert [*zip(layout.step.tolist(), layout.sequence.tolist(), strict=True)] == rows


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda n: np.array(n, np.int32)])
def test_lengths_of_any_kind(kind) -> None:
    layout = Layout.of_lengths(kind([2, 5, 5]))
    assert layout.sizes == [3, 3, 2, 2, 2]
    assert layout.permutation.tolist() == [1, 2, 0]
    assert layout.inverse.tolist() == [2, 0, 1]


def test_no_sequences() -> None:
    for lengths in ([], np.zeros(0, np.int64), torch.zeros(0, dtype=torch.int64)):
        for T in (None, 6):
            layout = Layout.of_lengths(lengths, T, 0)
            assert (layout.T, layout.B, layout.is_dense) == (T or 0, 0, True)
    assert Layout(6, 0).shares(3) == [0, 0]
    assert Layout(6, 0).pieces(2).layout.T == 2


@pytest.mark.parametrize(
    ("lengths", "T", "B", "sentence"),
    [
        ([3, 0], None, None, "length 0 of sequence 1: expected at least 1"),
        ([3, -2], 5, 2, "length -2 of sequence 1: expected 1 to 5, the number of steps"),
        ([2, 6], 5, None, "length 6 of sequence 1: expected 1 to 5"),
        ([3, 3], None, 3, r"lengths of shape \(2,\): expected \(3,\)"),
        (torch.tensor([[3, 3]]), None, None, r"lengths of shape \(1, 2\): expected one axis"),
        ([3.0], None, None, "lengths of type torch.float32: expected whole numbers"),
        ([True], None, None, "lengths of type torch.bool"),
        ([[1], [1, 2]], None, None, "expected whole numbers, one for each"),
        ([1], 0, 1, "lengths of an input that has no steps"),
    ],
)
def test_wrong_lengths_get_a_sentence(lengths, T: int | None, B: int | None, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        Layout.of_lengths(lengths, T, B)


# --- chunks ----------------------------------------------------------------------------------------------------------
@given(layouts(), st.data())
def test_a_cut_has_the_rows_of_its_steps(pair: tuple[Layout, list[int]], data) -> None:
    layout, lengths = pair
    t0 = data.draw(st.integers(0, layout.T - 1))
    t1 = data.draw(st.integers(t0 + 1, layout.T))
    chunk, rows = layout.cut(t0, t1), rows_of(lengths)
    inside = [k for k, (t, _) in enumerate(rows) if t0 <= t < t1]
    assert [*range(layout.N)][layout.rows(t0, t1)] == inside
    own = [*zip(chunk.step.tolist(), chunk.sequence.tolist(), strict=True)]
    assert [(t0 + t, b) for t, b in own] == [rows[k] for k in inside]
    assert (t1 - t0, layout.sizes[t0], len(inside)) == (chunk.T, chunk.B, chunk.N)
    assert (chunk.sizes, chunk.is_dense) == (layout.sizes[t0:t1], len(inside) == chunk.T * chunk.B)
    assert (chunk.batch_sizes is None) == (layout.batch_sizes is None)


def test_a_layout_remembers_its_parts() -> None:
    """With what engines have worked out for them."""
    layout = Layout.of_lengths([5, 3, 3])
    assert layout.cut(1, 4) is layout.cut(1, 4)
    assert [layout.cut(t0, t1).sizes for t0, t1 in ((1, 4), (1, 5), (2, 4))] == [[3, 3, 1], [3, 3, 1, 1], [3, 1]]
    for whole in (layout, Layout(5, 3)):
        assert whole.pieces(2) is whole.pieces(2)
        assert [whole.pieces(c).layout.T for c in (1, 2)] == [1, 2]


@given(st.integers(0, 9), st.integers(1, 12))
def test_chunks_follow_each_other(T: int, steps: int) -> None:
    cuts = Layout(T, 2).cuts(steps)
    assert [t for t0, t1 in cuts for t in range(t0, t1)] == [*range(T)]
    assert {t1 - t0 for t0, t1 in cuts[:-1]} <= {steps}
    assert all(0 < t1 - t0 <= steps for t0, t1 in cuts)


def test_what_cannot_be_cut() -> None:
    assert Layout(0, 2).cut(0, 0).B == 2
    for layout in (Layout(4, 3), Layout.ragged(torch.tensor([3, 2, 2, 1]))):
        for t0, t1 in ((1, 1), (2, 1), (-1, 2), (3, 5), (4, 4), (0, 0)):
            with pytest.raises(PlaitError, match=f"steps {t0} to {t1} of 4: expected at least one step"):
                layout.cut(t0, t1)
        with pytest.raises(PlaitError, match="chunks of 0 steps: expected at least 1"):
            layout.cuts(0)
        with pytest.raises(PlaitError, match="pieces of 0 steps: expected at least 1"):
            layout.pieces(0)


def walk(x: Tensor, state: Tensor, w: Tensor, layout: Layout, reverse: bool) -> tuple[Tensor, Tensor]:
    """A toy recurrence: rows (N, H), states (B, H) -> the states of all rows, and the last of each sequence."""
    rows: list[Tensor] = [x[:0]] * layout.T
    for t in layout.order(reverse):
        new = torch.tanh(x[layout.rows(t, t + 1)] + state[: layout.sizes[t]] @ w)
        state = torch.cat([new, state[layout.sizes[t] :]])
        rows[t] = new
    return torch.cat(rows), state


@pytest.mark.parametrize("reverse", [False, True])
@given(layouts(), st.data())
def test_a_walk_in_chunks_is_the_whole_walk(reverse: bool, pair: tuple[Layout, list[int]], data) -> None:
    """States enter and leave as the class says, and their gradients, each chunk's by itself, in the backward pass."""
    layout, lengths = pair
    generator = torch.Generator().manual_seed(0)
    shapes = (layout.N, 2), (layout.B, 2), (2, 2), (layout.N, 2), (layout.B, 2)
    x, first, w, d_rows, d_last = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    for t in (x, first, w):
        t.requires_grad_()
    rows, last = walk(x, first, w, layout, reverse)
    whole = torch.autograd.grad([rows, last], [x, first, w], [d_rows, d_last])
    for b, n in enumerate(lengths):  # the whole walk, one sequence by itself
        mine = torch.tensor([k for k, (_, c) in enumerate(rows_of(lengths)) if c == b])
        alone, end = walk(x[mine], first[b : b + 1], w, Layout(n, 1), reverse)
        torch.testing.assert_close((alone, end), (rows[mine], last[b : b + 1]))

    inner = data.draw(st.sets(st.integers(1, max(1, layout.T - 1)))) if layout.T > 1 else set()
    cuts = [*pairwise([0, *sorted(inner), layout.T])]
    running, found, steps = first.detach().clone(), torch.empty_like(rows), []
    for t0, t1 in reversed(cuts) if reverse else cuts:
        chunk, mine = layout.cut(t0, t1), layout.rows(t0, t1)
        given = x[mine].detach().requires_grad_(), running[: chunk.B].clone().requires_grad_()
        out = walk(*given, w, chunk, reverse)
        found[mine], running[: chunk.B] = out[0].detach(), out[1].detach()
        steps.append((chunk, mine, given, out))
    torch.testing.assert_close((found, running), (rows.detach(), last.detach()))

    d, d_x, d_w = d_last.clone(), torch.empty_like(x), torch.zeros_like(w)
    for chunk, mine, given, out in reversed(steps):
        d_x[mine], d[: chunk.B], more = torch.autograd.grad(out, [*given, w], [d_rows[mine], d[: chunk.B].clone()])
        d_w += more
    torch.testing.assert_close((d_x, d, d_w), whole)


# --- pieces ----------------------------------------------------------------------------------------------------------
def check_pieces(pieces: Pieces, lengths: list[int], c: int) -> None:
    """lengths: longest first."""
    rows = rows_of(lengths)
    every = [(p, b, min(c, n - p * c)) for p in range(max(lengths)) for b, n in enumerate(lengths) if p * c < n]
    every.sort(key=lambda piece: -piece[2])  # stable: piece after piece
    assert [*zip(pieces.piece.tolist(), pieces.sequence.tolist(), strict=True)] == [(p, b) for p, b, _ in every]
    layout = pieces.layout
    assert layout.lengths.tolist() == [n for _, _, n in every]
    assert layout.permutation is None
    found = [*zip(layout.step.tolist(), layout.sequence.tolist(), strict=True)]
    expected = [rows.index((every[k][0] * c + t, every[k][1])) for t, k in found]
    assert pieces.rows.tolist() == expected
    assert sorted(expected) == [*range(len(rows))]
    full = len({n for _, _, n in every}) == 1
    assert (layout.batch_sizes is None, layout.is_dense) == (full, full)


@given(layouts(), st.integers(1, 11))
def test_pieces_are_sequences_of_their_own(pair: tuple[Layout, list[int]], c: int) -> None:
    layout, lengths = pair
    pieces = layout.pieces(c)
    check_pieces(pieces, lengths, c)
    if c >= layout.T:
        assert pieces.rows.tolist() == [*range(layout.N)]
        assert pieces.layout.sizes == layout.sizes


@given(pair=layouts(), of=st.integers(1, 4), data=st.data())
def test_a_part_has_every_kth_sequence(pair: tuple[Layout, list[int]], of: int, data: st.DataObject) -> None:
    """Its rows are those of these sequences, step after step."""
    (layout, lengths), of = pair, min(of, pair[0].B)
    k = data.draw(st.integers(0, of - 1))
    part, rows = layout.every(k, of)
    every = rows_of(lengths)
    mine = [every[row] for row in rows.tolist()]
    assert mine == [(t, b) for t, b in every if b % of == k]
    assert part.lengths.tolist() == lengths[k::of]
    assert len(rows) == part.N
    assert (part.batch_sizes is None) == (layout.batch_sizes is None)


def test_pieces_of_a_dense_layout_lie_piece_after_piece() -> None:
    K, c, B = 3, 4, 2
    pieces = Layout(K * c, B).pieces(c)
    x = torch.arange(K * c * B).view(K, c, B)
    assert (pieces.layout.T, pieces.layout.B, pieces.layout.batch_sizes) == (c, K * B, None)
    assert torch.equal(pieces.rows.view(c, K, B), x.transpose(0, 1))
    assert torch.equal(pieces.piece * B + pieces.sequence, torch.arange(K * B))
    empty = Layout(0, 2).pieces(3)
    assert (empty.layout.T, empty.layout.B, empty.rows.numel(), empty.sequence.tolist()) == (0, 2, 0, [0, 1])


# --- threads ---------------------------------------------------------------------------------------------------------
def test_shares_have_about_the_same_work() -> None:
    assert Layout(9, 7).shares(2) == [0, 3, 7]
    assert Layout(9, 7).shares(1) == [0, 7]
    assert Layout(9, 2).shares(4) == [0, 1, 2]
    assert Layout(0, 5).shares(2) == [0, 2, 5]
    assert Layout.of_lengths([3, 1, 1, 1]).shares(2) == [0, 1, 4]
    for lengths, parts in (([4, 4, 4, 4, 1, 1, 1, 1], 2), ([9, 8, 7, 6, 5, 4, 3, 2, 1], 3), ([5] * 6 + [1], 3)):
        bounds = Layout.of_lengths(lengths).shares(parts)
        assert (bounds[0], bounds[-1], len(bounds)) == (0, len(lengths), parts + 1)
        work = [sum(lengths[a:b]) for a, b in pairwise(bounds)]
        assert max(abs(some - sum(lengths) / parts) for some in work) < max(lengths), (lengths, bounds)


@given(layouts(), st.integers(1, 9))
def test_no_share_is_empty(pair: tuple[Layout, list[int]], parts: int) -> None:
    """The slices before a cut have no more than their part, and would have with the next sequence; or each has one."""
    layout, lengths = pair
    bounds, parts = layout.shares(parts), min(parts, layout.B)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, layout.B, parts + 1)
    assert all(a < b for a, b in pairwise(bounds))
    for k, (a, b) in enumerate(pairwise(bounds[:-1]), 1):
        assert sum(lengths[: b + 1]) * parts > k * layout.N
        assert b == a + 1 or sum(lengths[:b]) * parts <= k * layout.N


def test_a_long_sequence_leaves_no_thread_idle() -> None:
    assert Layout.of_lengths([10, 1]).shares(2) == [0, 1, 2]
    assert Layout.of_lengths([1, 1, 90, 1]).shares(3) == [0, 1, 2, 4]
    assert Layout.of_lengths([2, 1, 1, 1, 1]).shares(5) == [0, 1, 2, 3, 4, 5]
