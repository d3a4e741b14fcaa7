"""The mesh: data x layers x time ranks of torch.distributed, and steps of training on it."""

import os
import socket
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import PlaitError
from ..layers import Recurrent
from ..layout import Layout
from ..training.network import AnyHead, Loss, Network
from .collectives import all_gather_json, all_ranks, new_group
from .cut import Cut
from .data import Reducer, make_reducer
from .layers import Result, Stage
from .schedule import split
from .shape import AXES, Shape
from .stack import Stack
from .time import check_cuts, split_time


def backend(device: str) -> str:
    return "nccl" if device == "cuda" else "gloo"


class Mesh:
    """Where this process is among all that train one network.

        mesh = plait.ranks.Mesh(data=2, layers=2)  # under torchrun, mpiexec or srun, with four processes
        step = mesh.parallelise(model, loss)  # model: a plait.ranks.Stack
        loss = step(x, y, lengths)  # both passes; leaves .grad on the parameters that this rank holds

    data: ranks with different shares of a batch; None: as many as there are. layers: ranks that share the layers out.
    time: ranks that share the steps out; see split_time
    way, micro, chunks: as in `--parallel data=2:server,layers=2:micro=2:chunks=7`
    ranks: which processes, if not all; the others make a mesh too, each of itself if there is nothing else
    """

    def __init__(
        self,
        data: int | None = None,
        layers: int = 1,
        time: int = 1,
        *,
        way: str = "auto",
        micro: int = 1,
        chunks: int | None = None,
        timeout: float = 60.0,
        ranks: Sequence[int] | None = None,
    ) -> None:
        if not dist.is_initialized():
            from .group import join
            from .world import find

            world = find(os.environ)
            if world is None:
                raise PlaitError("a mesh needs several processes: start this program with torchrun, mpiexec or srun.")
            join(world, timeout)
        everyone = list(range(dist.get_world_size())) if ranks is None else sorted(ranks)
        self.shape = Shape(data, layers, time, way, micro, chunks).filled(len(everyone))
        self.timeout, self.ranks = timeout, everyone
        grid = torch.tensor(everyone).reshape(self.shape.data or 1, layers, time)
        places = (grid == dist.get_rank()).nonzero().tolist()
        if not places:
            raise PlaitError(f"rank {dist.get_rank()} is not in this mesh: its ranks are {everyone}.")
        self.data_rank, self.stage, self.time_rank = d, l, t = places[0]
        # DeviceMesh would involve ranks outside of the mesh, and has no timeout
        groups = [new_group(line.tolist(), timeout) for line in (grid[:, l, t], grid[d, :, t], grid[d, l])]
        self.device_mesh = DeviceMesh.from_group(groups, "cpu", grid, mesh_dim_names=AXES)
        self.everyone = all_ranks() if ranks is None else new_group(everyone, timeout)
        self.is_first = dist.get_rank() == everyone[0]

    @classmethod
    def of(cls, shape: Shape, timeout: float) -> "Mesh":
        s = shape
        return cls(s.data, s.layers, s.time, way=s.way, micro=s.micro, chunks=s.chunks, timeout=timeout)

    def group(self, axis: str) -> dist.ProcessGroup:
        return self.device_mesh.get_group(axis)

    def hosts(self, axis: str) -> list[str]:
        return [row["host"] for row in all_gather_json({"host": socket.gethostname()}, self.group(axis))]

    def reducer(self, parameters: Sequence[nn.Parameter]) -> tuple[Reducer, str]:
        return make_reducer(parameters, self.group("data"), self.shape.way, self.hosts("data"), self.timeout)

    def split_time(self, model: nn.Module) -> None:
        """From now on the layers of a model share the steps of their sequences out among the time ranks.

            mesh = plait.ranks.Mesh(time=2)
            mesh.split_time(model)  # its layers have a solver that cuts time, such as plait.Shooting()
            loss = criterion(model(x), y)  # all ranks alike: each has the whole input, output and loss
            loss.backward()  # and the whole gradient

        Give all time ranks the same batches, weights and random numbers.
        """
        for module in model.modules():
            if isinstance(module, Recurrent):
                check_cuts(self.shape.time, module.solver)
        split_time(model, self.group("time"))

    def sum(self, *numbers: float) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total, group=self.everyone)
        return total.tolist()

    def parallelise(self, model: Stack, loss: Loss, cut: Cut | None = None) -> "ParallelStep":
        """A step of training for a model on this mesh. All ranks take the weights of the first one.

        loss(outputs, targets): the mean over the rows that it is given, such as torch.nn.functional.cross_entropy
        cut: which stage has how many layers, and chunks; without it an even split, and four chunks a stage
        """
        if not isinstance(model, Stack):
            raise PlaitError(
                f"parallelise needs a plait.ranks.Stack(first, rnn, head), found {type(model).__name__}; for any other "
                "model use torch's DistributedDataParallel on plait.accelerate(model)."
            )
        if self.shape.way == "server":
            raise PlaitError(
                "a server holds the optimizer, and in a loop of your own every rank has one: leave way='server' out, "
                "or train with plait train --parallel data=2:server."
            )
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, self.ranks[0], group=self.everyone)
        head = AnyHead(model.head, lambda h, target: loss(model.head(h), target))
        network = Network.of(model.first, list(model.rnn), head)
        return ParallelStep(self, network, cut or even_cut(self.shape, len(network.layers)))


class ParallelStep:
    def __init__(self, mesh: Mesh, network: Network, cut: Cut) -> None:
        self.mesh, self.network = mesh, network
        self.stage = Stage(network, cut, mesh.group("layers"))
        self.tied = Tied(self.stage, mesh)
        self.reducer, self.way = mesh.reducer(self.stage.parameters)
        self.states: list[Tensor] | None = None

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self.stage.parameters

    def __call__(self, x: Tensor, y: Tensor, lengths: Any = None, *, carry: bool = False) -> float:
        """The mean loss over all rows of all data ranks; .grad of this rank's parameters is its derivative.

        x, y: (T, B, ...), or (B, T, ...) if the layers are batch_first: this data rank's share of the batch. All stages
        are given the same. lengths: (B,), if the sequences have different lengths
        carry: the layers start from the states in which the last call left them, not from zeros
        """
        batch_first = self.network.layers[0].module.batch_first
        T, B = x.shape[:2][:: -1 if batch_first else 1]
        if y.shape[:2] != x.shape[:2]:
            raise PlaitError(f"targets of shape {tuple(y.shape)} for an input of shape {tuple(x.shape)}: not alike.")
        if lengths is None:
            layout, places = Layout(T, B), None
        else:
            layout = Layout.of_lengths(lengths, T, B)
            places = layout.places(T, batch_first)
        rows = [rows_of(t, places, batch_first) for t in (x, y)]
        state = None
        if carry and self.states:
            if self.states[0].shape[1] != B:
                raise PlaitError(f"carry with {B} sequences: the call before had {self.states[0].shape[1]}.")
            state = [s if layout.permutation is None else s[:, layout.permutation] for s in self.states]
        loss, states = self.run(rows[0], rows[1], layout, state)
        self.states = [s if layout.inverse is None else s[:, layout.inverse] for s in states]
        return self.mesh.sum(loss)[0]

    def run(
        self, inputs: Tensor, targets: Tensor, layout: Layout, state: Sequence[Tensor] | None, divisor: float = 0
    ) -> Result:
        """divisor: rows of all data ranks, if known -> the loss that this rank has"""
        if not divisor:
            count = torch.tensor(float(layout.N), dtype=torch.float64)
            dist.all_reduce(count, group=self.mesh.group("data"))
            divisor = max(1.0, float(count))
        self.reducer.begin()
        self.reducer.lend()
        result = self.stage.run(inputs, targets, layout, state, divisor)
        self.tied.add()
        self.reducer.finish()
        return result

    def norm(self) -> Tensor:
        tied = self.tied.parameters if self.stage.number else []  # they count once
        mine = [p.grad for p in self.parameters if p.grad is not None and not any(p is q for q in tied)]
        square = nn.utils.get_total_norm(mine).double().square()
        dist.all_reduce(square, group=self.mesh.group("layers"))
        return square.sqrt().to(self.stage.layers[0].parameters()[0].dtype)


class Tied:
    """Parameters that first and last stage share: their gradients are added."""

    def __init__(self, stage: Stage, mesh: Mesh) -> None:
        stages = stage.network.stages(stage.cut.split)
        both = {id(p) for p in stages[0]} & {id(p) for p in stages[-1]} if len(stages) > 1 else set()
        every = [id(p) for stage in stages for p in stage if id(p) not in both]
        if len(set(every)) < len(every) or any(id(p) in both for some in stages[1:-1] for p in some):
            raise PlaitError(
                "a parameter belongs to several stages: only the first and the last may share one; use the module "
                "once, or data ranks."
            )
        self.parameters = [p for p in stage.parameters if id(p) in both]
        self.group: dist.ProcessGroup | None = None
        if both:
            ends, me = [stage.peer(0), stage.peer(stage.count - 1)], dist.get_rank()
            self.group = new_group(ends if me in ends else [me], mesh.timeout)

    def add(self) -> None:
        for p in self.parameters:
            assert p.grad is not None
            dist.all_reduce(p.grad, group=self.group)


def even_cut(shape: Shape, layers: int) -> Cut:
    return Cut(split([1.0] * layers, shape.layers), shape.chunks or 4 * shape.layers, shape.micro)


def rows_of(padded: Tensor, places: Tensor | None, batch_first: bool) -> Tensor:  # (T, B, ...) -> (N, ...)
    if places is not None:
        return padded.flatten(0, 1)[places]
    return (padded.transpose(0, 1) if batch_first else padded).flatten(0, 1)
