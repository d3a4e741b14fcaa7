"""Batches of a text: every token once, in its place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait import PlaitError
from plait.data import buckets
from plait.data.sampler import Sampler
from plait.data.text_batches import Streams, before, grouped, sentences


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9))
def test_streams_read_every_token_once_and_in_order(tokens: int, B: int, steps: int) -> None:
    if B > 1 and tokens < 2 * B:
        with pytest.raises(PlaitError, match=f"{tokens} tokens for {B} streams"):
            Streams(tokens, B, steps)
        return
    streams = Streams(tokens, B, steps)
    seen: list[list[int]] = [[] for _ in range(B)]
    for k in streams.batches(0):
        positions, layout = streams.batch(k)
        assert (layout.batch_sizes is None) == layout.is_dense
        assert steps >= layout.T
        for t, start in enumerate(layout.starts):  # the streams stay in their order
            for b in range(layout.sizes[t]):
                seen[b].append(int(positions[start + b]))
        assert positions.shape == (layout.N,)
    assert [p for stream in seen for p in stream] == list(range(tokens))
    assert len(streams) == len(list(streams.batches(0)))
    assert [int(k) for k in streams.batches(3, 1)] == list(range(1, len(streams)))


def test_rows_of_sentences_hold_them_and_nothing_else() -> None:
    lengths = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids, end, picked = torch.arange(100, 131), 7, torch.tensor([3, 0, 5, 2])
    ids[starts[1:] - 1] = end
    positions, layout = sentences(starts, picked)
    assert positions.shape == (layout.N,) == (int(lengths[picked].sum()),)
    assert layout.permutation.tolist() == [2, 3, 1, 0]
    for b, k in enumerate(picked.tolist()):
        mine = positions[layout.sequence == b]
        assert mine.tolist() == list(range(int(starts[k]), int(starts[k + 1])))
        given_to_it = before(ids, end)[mine]
        assert given_to_it[0] == end
        assert torch.equal(given_to_it[1:], ids[mine[:-1]])


@pytest.mark.parametrize("how", ["none", "3,6,10", "greedy", "optimal:3", "pool:4"])
def test_which_sentences_share_a_batch_depends_on_the_seed(how: str) -> None:
    lengths = [1 + k * 7 % 9 for k in range(60)]

    def drawn(seed: int) -> list[list[int]]:
        return [b.tolist() for b in grouped(how, lengths, 4, seed).batches(0)]

    assert drawn(7) == drawn(7) != drawn(8)
    options = {"pool": 4} if how == "pool:4" else {"boundaries": buckets.parse(how, lengths, 4)}
    assert drawn(7) == [b.tolist() for b in Sampler(lengths, 4, 7, **options).batches(0)]
