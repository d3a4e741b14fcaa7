"""The ladder's last rung: plait's layers and torch's are the same function with the same gradients."""

from dataclasses import dataclass
from zlib import crc32

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from plait import engines, layers
from plait.cells import CELLS
from plait.ladder.compare import TOLERANCE, deviation, outputs_and_gradients
from reference import ImplicitGRU, Packed

EACH = 8  # cases for each of 5 cells x 4 forms x 2 dtypes in the engine that people train with
FEWER = 4  # in the others, whose code does not depend on sizes
MANY = 300  # in the slow test
FORMS = ("tensor", "unbatched", "packed", "lengths")


@dataclass(frozen=True)
class Case:
    cell: str
    engine: str
    form: str
    dtype: torch.dtype
    T: int
    I: int
    H: int
    lengths: tuple[int, ...]
    layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool
    dropout: float
    proj_size: int
    training: bool
    with_hx: bool
    seed: int


@st.composite
def case(draw: st.DrawFn, cell: str, engine: str, form: str, dtype: torch.dtype) -> Case:
    """A tensor of one or two numbers may cancel to nearly nothing, and then no float32 arithmetic, torch's included,
    has five digits of it: float32 is drawn with more units. One unit is drawn in float64, where there are digits to
    spare.
    """
    least = 1 if dtype == torch.float64 else 5
    T, H = draw(st.integers(1, 6)), draw(st.integers(least, least + 5))
    B = 1 if form == "unbatched" else draw(st.integers(1, 5))
    ragged = form in ("packed", "lengths")
    count = draw(st.integers(1, 3))
    return Case(
        cell=cell,
        engine=engine,
        form=form,
        dtype=dtype,
        T=T,
        I=draw(st.integers(least, least + 4)),
        H=H,
        lengths=tuple(draw(st.lists(st.integers(1, T), min_size=B, max_size=B))) if ragged else (T,) * B,
        layers=count,
        bias=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.4])) if count > 1 else 0.0,
        proj_size=draw(st.sampled_from([0, *range(min(least, H - 1), H)])) if cell == "lstm" and H > 1 else 0,
        training=draw(st.booleans()),
        with_hx=draw(st.booleans()),
        seed=draw(st.integers(0, 10_000)),
    )


def pair(c: Case) -> tuple[nn.Module, nn.Module]:
    """The layer, and torch's (for the implicit GRU, its formula) with the same weights."""
    options = {"bias": c.bias, "batch_first": c.batch_first, "dropout": c.dropout, "bidirectional": c.bidirectional}
    options |= {"proj_size": c.proj_size} if c.proj_size else {}
    torch.manual_seed(c.seed)
    ours = layers.layer(c.cell, c.I, c.H, c.layers, dtype=c.dtype, engine=c.engine, **options)
    if c.cell == "rnn_relu":
        options["nonlinearity"] = "relu"
    peers = {"lstm": nn.LSTM, "gru": nn.GRU, "implicit_gru": ImplicitGRU}
    theirs = peers.get(c.cell, nn.RNN)(c.I, c.H, c.layers, dtype=c.dtype, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours.train(c.training), theirs.train(c.training)


def compare(c: Case) -> tuple[float, str]:
    """The largest relative difference, and where it is.

    torch's float32 LSTM has two forms on a CPU: oneDNN's approximates its functions (gradients that nearly vanish are
    off by up to 2e-5), torch's operators do not. Engine `torch` is the former, as torch.nn is; the others are compared
    with the latter.
    """
    ours, theirs = pair(c)
    g = torch.Generator().manual_seed(c.seed)
    B, D = len(c.lengths), 2 if c.bidirectional else 1
    lengths = torch.tensor(c.lengths)
    x = torch.randn(*((B, c.T) if c.batch_first else (c.T, B)), c.I, generator=g, dtype=c.dtype)
    widths = [c.proj_size or c.H, c.H] if c.cell == "lstm" else [c.H]
    hx = [torch.randn(c.layers * D, B, w, generator=g, dtype=c.dtype) for w in widths] if c.with_hx else None
    if c.form == "unbatched":
        x = x.squeeze(0 if c.batch_first else 1)
        hx = None if hx is None else [s.squeeze(1) for s in hx]
    their_x, their_lengths, our_lengths = x, None, None
    if c.form in ("packed", "lengths"):
        ordered = list(c.lengths) == sorted(c.lengths, reverse=True)
        packed = pack_padded_sequence(x, lengths, c.batch_first, enforce_sorted=ordered)
        if c.form == "packed":
            x = packed
        else:
            our_lengths = lengths
        their_x = packed
        if c.cell == "implicit_gru":
            their_x, their_lengths = x, list(c.lengths)
    torch.manual_seed(c.seed)
    found = outputs_and_gradients(ours, x, hx, our_lengths, seed=c.seed)
    torch.manual_seed(c.seed)
    if c.cell == "implicit_gru" and c.form == "packed":
        theirs, their_lengths = Packed(theirs), None
    if c.form == "lengths" and c.cell != "implicit_gru":
        theirs, their_x, their_lengths = Padded(theirs), x, lengths
    with torch.backends.mkldnn.flags(enabled=c.engine == "torch"):
        expected = outputs_and_gradients(theirs, their_x, hx, their_lengths, seed=c.seed)
    return deviation(found, {name.replace("d_layer.", "d_"): value for name, value in expected.items()})


class Padded(nn.Module):
    """torch's layer on a padded batch, as its users write it: pack, run, pad."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x, hx, lengths):
        T = x.shape[1 if self.layer.batch_first else 0]
        packed = pack_padded_sequence(x, lengths, self.layer.batch_first, enforce_sorted=False)
        y, state = self.layer(packed, hx)
        return nn.utils.rnn.pad_packed_sequence(y, self.layer.batch_first, total_length=T)[0], state


def run_cases(cell: str, engine: str, each: int) -> set[Case]:
    ran: list[Case] = []

    def run(c: Case) -> None:
        found, where = compare(c)
        assert found <= TOLERANCE[c.dtype], f"{where} differs by {found:.1e} (relative)"
        ran.append(c)

    for form in FORMS:
        for dtype in TOLERANCE:
            drawn = given(case(cell, engine, form, dtype))(run)
            drawn = settings(max_examples=each, deadline=None, database=None)(drawn)
            seed(crc32(f"{cell} {engine} {form} {dtype}".encode()))(drawn)()  # other cases for each, the same each time
    return set(ran)


SWITCHES = ("bias", "batch_first", "bidirectional", "training", "with_hx", "dropout", "layers")


@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:TF32 acceleration")
@pytest.mark.parametrize("engine", engines.of_the_host())
@pytest.mark.parametrize("cell", list(CELLS))
def test_layers_equal_torch(cell: str, engine: str) -> None:
    """All constructor options x all forms of input x both dtypes, drawn at random."""
    each = EACH if engine == "fused" else FEWER
    ran = run_cases(cell, engine, each)
    assert len(ran) >= 6 * each  # of 8 * each, the few that were drawn twice left out
    for switch in SWITCHES:
        assert len({getattr(c, switch) for c in ran}) >= 2, f"{switch} was never switched"
    assert len({c.lengths for c in ran if c.form == "lengths"}) >= 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:TF32 acceleration")
@pytest.mark.parametrize("engine", ["fused", "torch:steps", "numpy"])
@pytest.mark.parametrize("cell", list(CELLS))
def test_many_more_layers_equal_torch(cell: str, engine: str) -> None:
    assert len(run_cases(cell, engine, MANY)) >= 1000
