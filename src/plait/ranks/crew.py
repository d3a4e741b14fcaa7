"""Training by several processes: each runs the same loop, with its share of the batch, the layers or the steps."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .. import solvers
from ..data.text_batches import columns
from ..errors import PlaitError
from ..layout import Layout
from ..training.checkpoint import State
from ..training.crew import Crew, Stepped, Wishes, clip
from ..training.network import Network
from ..training.run import Run, resume_command
from ..training.task import Task
from ..training.tensors import dumps, loads, with_prefix
from .collectives import broadcast_bytes, gather_bytes
from .cut import Cut
from .data import Server
from .group import Group
from .mesh import Mesh, ParallelStep

SENT = Path("what another rank has sent")  # in place of a file
FAR = 0x9E3779B97F4A7C15  # seeds of two ranks are this far from each other


@runtime_checkable
class Staged(Protocol):
    """A task whose network can be cut into stages."""

    def network(self) -> Network: ...
    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor, Layout, tuple[Tensor, ...] | None]: ...
    def carry_on(self, state: Sequence[Tensor]) -> None: ...


class MeshCrew(Crew):
    def __init__(self, group: Group, mesh: Mesh, task: Task, cut: Cut | None, seed: int) -> None:
        self.group, self.mesh, self.seed, self.task = group, mesh, seed, task
        self.rank, self.is_first = group.world.rank, mesh.is_first
        self.validations = 0
        self.all = [p for p in task.model.parameters() if p.requires_grad]
        self.parallel: ParallelStep | None = None
        if mesh.shape.time > 1:
            mesh.split_time(task.model)
        if mesh.shape.layers > 1:
            assert cut is not None
            self.parallel = ParallelStep(mesh, network_of(task), cut)
            self.reducer, self.way = self.parallel.reducer, self.parallel.way
        else:
            self.reducer, self.way = mesh.reducer(self.all)
            for p in self.all:
                p.register_post_accumulate_grad_hook(self.reducer.on_gradient)

    @property
    def like_rank(self) -> int:
        return self.rank - int(self.mesh.time_rank)

    # --- a step
    def step(self, task: Task, indices: Tensor, wish: Callable[[], Wishes]) -> Stepped:
        with self.group.guarded():
            total = task.count(indices)
            value = self.passes(task, indices, total)
            wishes = wish()
            mine = 0.0 if self.mesh.time_rank else value  # all time ranks have the same
            value, stop, save = self.mesh.sum(mine, wishes.stop, wishes.save)
            return Stepped(value, total, Wishes(stop > 0, save > 0))

    def passes(self, task: Task, indices: Tensor, total: int) -> float:
        if self.parallel is not None and isinstance(task, Staged):
            inputs, targets, layout, state = task.rows(indices)
            loss, states = self.parallel.run(inputs, targets, layout, state, divisor=total)
            task.carry_on(states)
            return loss
        task.model.zero_grad()
        self.reducer.begin()
        value = 0.0
        mean, count = task.loss(indices)
        if count:
            mine = mean * (count / total)
            mine.backward()
            value = mine.item()
        self.reducer.finish()
        return value

    def clip(self, parameters: Sequence[nn.Parameter], most: float) -> float:
        if isinstance(self.reducer, Server) and self.reducer.rank:
            return 0.0  # the first rank has the sum of the gradients, and updates the weights
        if self.parallel is None:
            return clip(parameters, most)
        with self.group.guarded():
            return clip(self.parallel.parameters, most, self.parallel.norm())

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        with self.group.guarded():
            self.reducer.update(optimizer)

    # --- what the first rank does for all
    def validate(self, task: Task, state: State) -> float | None:
        """The first rank validates with the whole network, while the others wait."""
        with self.group.guarded():
            self.collect_weights(state)
        self.validations += 1
        key = f"validation/{self.validations}"
        if self.is_first:
            value = task.validate()
            self.group.store.set(key, "" if value is None else value.hex())
            return value
        text = self.group.wait_for(0, key).decode()
        return float.fromhex(text) if text else None

    def broadcast(self, read: Callable[[], bytes]) -> bytes:
        with self.group.guarded():
            return broadcast_bytes(read() if self.is_first else b"", self.mesh.everyone)

    def collect(self, state: State) -> None:
        with self.group.guarded():
            self.collect_weights(state)
            mine = {f"carried.{k}": t for k, t in self.task.carried().items()} | {"random": torch.get_rng_state()}
            mine |= {f"solver.{k}": t for k, t in solvers.state(self.task.model).items()}
            found = [loads(SENT, c)[0] for c in gather_bytes(dumps(mine, {}), self.mesh.everyone)]
        if found:
            state.random = {f"cpu@{r}": some["random"] for r, some in enumerate(found) if r}
            state.solvers = {
                f"{r}.{k}": t for r, some in enumerate(found) if r for k, t in with_prefix(some, "solver.").items()
            }
            state.carried = self.merged([with_prefix(some, "carried.") for some in found])

    def merged(self, found: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """What all ranks carry, as one process would: (layers, B, .) each."""
        shape, names = self.mesh.shape, found[0].keys()
        assert shape.data is not None
        each = shape.layers * shape.time
        stages = [[found[r * each + s * shape.time] for r in range(shape.data)] for s in range(shape.layers)]
        return {
            name: torch.cat([torch.cat([some[name] for some in stage if name in some], 1) for stage in stages])
            for name in names
        }

    def collect_weights(self, state: State) -> None:
        """Weights and optimizer of all stages, to the first rank."""
        if self.parallel is None or self.mesh.data_rank:
            return
        optimizer = state.optimizer
        index = {p: k for k, p in enumerate(self.task.model.parameters())}
        mine: dict[str, Tensor] = {}
        for p in self.parallel.parameters if self.mesh.stage else ():
            mine[f"{index[p]}."] = p.detach()
            mine |= {f"{index[p]}.{name}": t for name, t in optimizer.state.get(p, {}).items()}
        content = dumps(mine, {}) if mine else b""
        parameters = list(self.task.model.parameters())
        for other in gather_bytes(content, self.mesh.group("layers"))[1:]:
            for key, t in loads(SENT, other)[0].items():
                k, _, name = key.partition(".")
                if not name:
                    parameters[int(k)].data.copy_(t)
                elif name in optimizer.state.setdefault(parameters[int(k)], {}):
                    optimizer.state[parameters[int(k)]][name].copy_(t)
                else:
                    optimizer.state[parameters[int(k)]][name] = t

    def restore(self, state: State) -> None:
        """This rank takes its layers and streams; random numbers continue, or begin anew."""
        carried, shape = self.task.carried(), self.mesh.shape
        if carried:
            first, count = 0, None
            if self.parallel is not None:
                first, count = self.parallel.stage.begin, len(self.parallel.stage.layers)
            end = None if count is None else first + count
            assert shape.data is not None
            B = next(iter(carried.values())).shape[1]
            mine = columns(B, self.mesh.data_rank, shape.data)
            self.task.carry({name: t[first:end, mine].contiguous() for name, t in carried.items()})
        if self.like_rank:
            if (found := state.random.get(f"cpu@{self.like_rank}")) is not None:
                torch.set_rng_state(found)
            else:
                torch.manual_seed((self.seed + self.rank // shape.time * FAR) % 2**63)

    def announce(self, run: Run) -> None:
        """Should all be restarted, they resume this run."""
        mark = None if run.begun else (run.folder / "config.json").stat().st_ino
        self.group.lasting.set("run", json.dumps({"path": str(run.path.absolute()), "mark": mark}))
        if run.begun:
            self.group.lasting.set("resume_command", resume_command(getattr(self.task, "name", ""), run.path))


def announced(group: Group) -> str | None:
    """The run of the attempt before, if it got that far."""
    if not group.lasting.check(["run"]):
        return None
    found = json.loads(group.lasting.get("run"))
    try:
        config = (Path(found["path"]) / "config.json").stat()
    except OSError:
        return None if found["mark"] else found["path"]
    return found["path"] if found["mark"] in (None, config.st_ino) else None


def network_of(task: Task) -> Network:
    if not isinstance(task, Staged):
        raise PlaitError(
            f"the network of task {getattr(task, 'name', '')} cannot be cut into stages: use data= instead of layers=."
        )
    return task.network()
