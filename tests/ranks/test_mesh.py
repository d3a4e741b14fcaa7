"""A mesh in a program of one's own: where a rank is, a loop of training, torch's own data parallelism, and mistakes."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import plait
from plait import PlaitError
from plait.ladder.compare import relative
from plait.ranks.mesh import backend
from rank_jobs import How, Net, Part, Tagger, Team, Trained, by_torch, own_loop, places, said, tagged, unheard


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """Four processes with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun."""
    team = Team(4)
    yield team
    team.close()


# --- places ----------------------------------------------------------------------------------------------------------
def test_where_each_rank_is(team: Team) -> None:
    """Meshes of other shapes, one after the other in the same processes, on all ranks or on some of them."""
    found = team.ask(places)
    for k, (data, stages) in enumerate([(2, 2), (1, 3), (2, 1), (4, 1), (1, 2), (3, 1)]):
        size = data * stages
        sizes = {"data": data, "layers": stages, "time": 1}
        sums = [size, sum(range(size))]
        for rank in range(4):
            mine = (rank // stages, rank % stages, rank == 0, sizes, sums, data) if rank < size else None
            assert found[rank][k] == mine


def test_a_message_that_does_not_come(team: Team) -> None:
    """After the timeout of the mesh, not after torch's half hour."""
    team.ask(places)  # they have met
    assert "Timed out waiting 1000ms" in team.ask(unheard)[0]


def test_the_backend_of_a_device() -> None:
    assert (backend("cpu"), backend("cuda")) == ("gloo", "nccl")


def test_a_program_by_itself() -> None:
    with pytest.raises(PlaitError) as e:
        plait.ranks.Mesh()
    assert str(e.value) == "a mesh needs several processes: start this program with torchrun, mpiexec or srun."


# --- a loop ----------------------------------------------------------------------------------------------------------
OWN = Net((Part("lstm", 6, 3, proj=4), Part("gru", 5)), batch_first=True)


def trained(net: Net, rounds: int) -> Trained:
    """One process, with torch's own layers."""
    model = plait.restore(net.build())
    assert [type(layer) for layer in model.rnn] == [nn.LSTM, nn.GRU]
    optimizer, losses, states = torch.optim.Adam(model.parameters(), lr=0.01), [], [None, None]
    for x, y, lengths in net.draw() * rounds:
        h, real = model.first(x.transpose(0, 1)), torch.arange(len(x)) < torch.tensor(lengths)[:, None]
        for k, layer in enumerate(model.rnn):
            rows = pack_padded_sequence(h, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
            rows, after = layer(rows, states[k])
            states[k] = tuple(s.detach() for s in after) if isinstance(after, tuple) else after.detach()
            h, _ = pad_packed_sequence(rows, batch_first=True, total_length=len(x))
        loss = cross_entropy(model.head(h)[real], y.transpose(0, 1)[real])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, {name: p.detach().numpy() for name, p in model.named_parameters()})


def test_a_stack_by_itself() -> None:
    """It is a model like any other, for one process and for evaluation."""
    x, y, lengths = OWN.draw()[0]
    real = torch.arange(len(x)) < torch.tensor(lengths)[:, None]
    outputs = OWN.build()(x.transpose(0, 1), lengths)
    assert cross_entropy(outputs[real], y.transpose(0, 1)[real]).item() == pytest.approx(trained(OWN, 1).losses[0])


@pytest.mark.parametrize(("data", "stages"), [(2, 1), (1, 4), (2, 2)], ids=["2x1", "1x4", "2x2"])
def test_a_loop_of_ones_own(team: Team, data: int, stages: int) -> None:
    """Six steps of Adam with lengths and carried states end in the weights of one process."""
    expected = trained(OWN, 3)
    found = [t for t in team.ask(own_loop, OWN, How(data, stages), 3) if t is not None]
    assert len(found) == data * stages
    for rank, (losses, weights) in enumerate(found):
        assert losses == pytest.approx(expected.losses, rel=1e-9)
        for name, w in weights.items():
            assert relative(torch.from_numpy(w), torch.from_numpy(expected.weights[name])) < 1e-8, name
            np.testing.assert_array_equal(w, found[rank % stages].weights[name], name)  # on all data ranks
    names = [name for t in found[:stages] for name in t.weights]
    assert sorted(names) == sorted(expected.weights)  # each on one stage


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_model_in_torchs_own_data_parallelism(team: Team, ranks: int) -> None:
    gradients, weights = tagged(Tagger(), slice(None))
    found = [t for t in team.ask(by_torch, ranks) if t is not None]
    assert len(found) == ranks
    for theirs, after in found:
        for step, expected in zip(theirs, gradients, strict=True):
            assert len(step) == len(expected)
            for name, g in expected.items():
                assert relative(torch.from_numpy(step[f"module.{name}"]), torch.from_numpy(g)) < 1e-10, name
        for name, w in weights.items():
            assert relative(torch.from_numpy(after[f"module.{name}"]), torch.from_numpy(w)) < 1e-8, name
            np.testing.assert_array_equal(after[f"module.{name}"], found[0][1][f"module.{name}"])
        for step, first in zip(theirs, found[0][0], strict=True):
            for name, g in step.items():
                np.testing.assert_array_equal(g, first[name])


# --- mistakes --------------------------------------------------------------------------------------------------------
BECAUSE = "its reverse direction starts at the last step, which a stage has only when all chunks have come"
SAID = {
    "larger than the world": "--parallel data=4,layers=2 needs 8 ranks, and 4 were started: start 8 ranks.",
    "no divisor of the world": "--parallel layers=3 needs 3 ranks, and 4 were started: start 3 ranks.",
    "no stages": "a mesh with layers=0: expected a whole number from 1 to 100000.",
    "of others": "rank {rank} is not in this mesh: its ranks are [{next}].",
    "no stack": "parallelise needs a plait.ranks.Stack(first, rnn, head), found LSTM; for any other model use torch's "
    "DistributedDataParallel on plait.accelerate(model).",
    "torch's layer": "a stage of layers has a LSTM: expected recurrent layers of plait; call plait.accelerate(model) "
    "first.",
    "both directions": f"layers: GRU is bidirectional, and cannot be in a pipeline: {BECAUSE}; use data ranks for it.",
    "parametrized": "layers: the weights of ParametrizedLSTM are parametrized, and a pipeline needs plain ones: remove "
    "the parametrizations, or use data ranks.",
    "one layer": "layers=2: the network has 1 layer, and every stage needs one: use layers=1 or fewer.",
    "a cut for another network": "a cut for 1 + 1 layers: expected 3 in all, and at least one in each stage.",
    "a cut for another mesh": "a cut for 3 stages, and 2 ranks: expected one rank a stage.",
    "targets": "targets of shape (5, 3) for an input of shape (6, 3): not alike.",
    "lengths": "length 7 of sequence 1: expected 1 to 6, the number of steps in the input.",
    "carried": "carry with 2 sequences: the call before had 3.",
}


@pytest.mark.parametrize("kind", SAID)
def test_mistakes_get_a_sentence_on_every_rank(team: Team, kind: str) -> None:
    expected = [SAID[kind].format(rank=rank, next=(rank + 1) % 4) for rank in range(4)]
    assert team.ask(said, kind) == expected
