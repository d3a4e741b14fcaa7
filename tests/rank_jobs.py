"""What ranks do in tests of plait.ranks: real processes, forked from one that has torch imported already.

A `Team` is ranks that meet once, as under torchrun, and then do one job after the other. `commands` is the command
`plait` in several processes, as torchrun would start it.
"""

import errno
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import matplotlib.figure  # noqa: F401  # here and below: what a command imports when it needs it
import numpy as np
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import plait
import plait.cli.train_ranks
import plait.tasks.forecast
import plait.tasks.language
import plait.training.loop
from jobs import free_port
from plait.cells import CELLS
from plait.errors import PlaitError
from plait.layout import Layout
from plait.ranks import data as of_data
from plait.ranks.collectives import new_group
from plait.ranks.cut import Cut
from plait.ranks.data import Reducer
from plait.ranks.layers import Pass
from plait.ranks.measure import choose
from plait.ranks.mesh import Mesh, ParallelStep, even_cut
from plait.ranks.shape import Shape
from plait.ranks.stack import Stack
from plait.tasks.language_model import LanguageModel
from plait.tasks.settings import LanguageSettings
from plait.training.network import AnyHead, Network
from some_cells import MGU, PeepholeLSTM

PATIENCE = 100  # seconds until a job counts as hung
ALL = {**CELLS, "mgu": MGU, "peephole": PeepholeLSTM}
VOCABULARY = 7


# --- the team --------------------------------------------------------------------------------------------------------
class Team:
    """Ranks that have met, and wait for what to do."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.start()

    def start(self) -> None:
        context, port = forkserver(), free_port()
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(self.ranks):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, self.ranks, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def ask(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """What the job returns on each rank. An error on one of them is an error here; then other processes follow."""
        for pipe in self.pipes:
            pipe.send((job.__name__, args))
        end = time.monotonic() + PATIENCE
        texts, values = [], []
        for rank, pipe in enumerate(self.pipes):
            try:
                text, value = pipe.recv() if pipe.poll(max(0.0, end - time.monotonic())) else ("it hangs", None)
            except EOFError:
                text, value = "it is gone", None
            values.append(value)
            texts += [f"rank {rank}: {text}"] if text else []
        if texts:
            self.close()
            self.start()
        assert not texts, f"{job.__name__}{args}\n" + "\n".join(texts)
        return values

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(1)
            if process.is_alive():
                process.kill()
                process.join()


def forkserver() -> Any:
    """It imports this module once, with one thread, and torch does not print a page for each lost peer."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rank_jobs"])
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="FATAL", PYTHONPATH=path):
        ensure_running()
    return context


def serve(rank: int, ranks: int, port: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:  # the test has ended
            os._exit(0)
        try:
            pipe.send(("", globals()[name](*args)))
        except Exception:
            pipe.send((traceback.format_exc(), None))


# --- commands --------------------------------------------------------------------------------------------------------
class Said(NamedTuple):
    code: int
    out: str
    err: str


def commands(
    lines: Sequence[str],
    folders: Sequence[Path],
    *,
    stop: tuple[int, int] | None = None,
    other: dict[str, Any] | None = None,
) -> list[Said]:
    """`plait LINE` in one process for each line, each in its folder; the ranks of one job if there are several.

    stop: (rank, step): that rank gets a Ctrl-C in that step, counted from 1
    other: what the last rank has in place of what a name of plait stands for
    """
    context, port = forkserver(), free_port()
    processes = []
    for rank, (line, folder) in enumerate(zip(lines, folders, strict=True)):
        env = {}
        if len(lines) > 1:
            env |= {"RANK": str(rank), "WORLD_SIZE": str(len(lines))}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        when = stop[1] if stop is not None and stop[0] == rank else None
        names = tuple(str(folder / f".{word}{rank}-{port}") for word in ("out", "err"))
        changes = (other or {}) if rank == len(lines) - 1 else {}
        process = context.Process(target=command, args=(line.split(), str(folder), env, names, when, changes))
        process.start()
        processes.append((process, names))
    end = time.monotonic() + PATIENCE
    for process, _ in processes:
        process.join(max(0.0, end - time.monotonic()))
    hung = [rank for rank, (process, _) in enumerate(processes) if process.is_alive()]
    for rank in hung:
        processes[rank][0].kill()
        processes[rank][0].join()
    found = []
    for process, names in processes:
        texts = [Path(name).read_text() for name in names]
        for name in names:
            Path(name).unlink()
        found.append(Said(process.exitcode, *texts))
    assert not hung, (hung, found)
    return found


def command(
    argv: list[str],
    folder: str,
    environment: dict[str, str],
    names: Sequence[str],
    when: int | None,
    changes: dict[str, Any],
) -> None:
    from plait.__main__ import main
    from plait.training.crew import Alone

    os.chdir(folder)
    for handle, name in zip((1, 2), names, strict=True):
        file = os.open(name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, handle)
        os.close(file)
    os.environ.update(environment, COLUMNS="80")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if when is not None:
        for crew in (Alone, plait.cli.train_ranks.MeshCrew):
            crew.step = stopping(crew.step, when)  # type: ignore[method-assign]
    for name, value in changes.items():
        mock.patch(name, value).start()
    sys.argv = ["plait", *argv]
    torch.set_num_threads(1)
    main()


def stopping(step: Callable[..., Any], when: int) -> Callable[..., Any]:
    steps = iter(range(1, 1_000_000))

    def then(*args: Any) -> Any:
        if next(steps) == when:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*args)

    return then


# --- networks --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Part:
    """Some layers of one module."""

    cell: str
    hidden: int = 5
    layers: int = 1
    engine: str = "fused"
    proj: int = 0
    bias: bool = True


@dataclass(frozen=True)
class Net:
    """A network, and batches for it."""

    parts: tuple[Part, ...]
    batches: tuple[tuple[int, ...], ...] = ((6, 2, 7, 1, 4), (7, 3, 3, 5, 6))  # the lengths of their sequences
    ragged: bool = True  # otherwise all sequences of a batch are as long as the first of them
    carry: bool = True
    dtype: str = "float64"
    batch_first: bool = False
    tied: bool = False
    first: str = "embedding"
    frozen: tuple[str, ...] = ()  # parameters that are not trained

    def build(self) -> Stack:
        torch.manual_seed(0)
        width = self.parts[-1].proj or self.parts[-1].hidden
        embedding = width if self.tied else 4
        first = {"embedding": nn.Embedding(VOCABULARY, embedding), "linear": nn.Linear(3, embedding)}[self.first]
        rnn, width = [], embedding
        for part in self.parts:
            options = {"bias": part.bias, "batch_first": self.batch_first, "engine": part.engine}
            options |= {"proj_size": part.proj} if part.proj else {}
            rnn.append(plait.layer(ALL[part.cell], width, part.hidden, part.layers, **options))
            width = part.proj or part.hidden
        head = nn.Linear(width, VOCABULARY)
        if self.tied:
            head.weight = first.weight
        model = Stack(first, rnn, head).to(getattr(torch, self.dtype))
        for name in self.frozen:
            model.get_parameter(name).requires_grad_(False)
        return model

    def draw(self) -> "list[Batch]":
        """The batches, time first, with numbers in the padding too."""
        generator = torch.Generator().manual_seed(1)
        found = []
        for lengths in self.batches:
            lengths = lengths if self.ragged else lengths[:1] * len(lengths)
            T, B = max(lengths), len(lengths)
            if self.first == "linear":
                x = torch.randn(T, B, 3, generator=generator, dtype=torch.float64).to(getattr(torch, self.dtype))
            else:
                x = torch.randint(VOCABULARY, (T, B), generator=generator)
            found.append(Batch(x, torch.randint(VOCABULARY, (T, B), generator=generator), lengths))
        return found


class Batch(NamedTuple):
    x: Tensor  # (T, B, ...)
    y: Tensor  # (T, B)
    lengths: tuple[int, ...]

    def part(self, rank: int, ranks: int) -> "Batch":
        mine = part_of(len(self.lengths), rank, ranks)
        return Batch(self.x[:, mine], self.y[:, mine], self.lengths[mine])


def part_of(B: int, rank: int, ranks: int) -> slice:
    """The sequences of a data rank."""
    return slice(B * rank // ranks, B * (rank + 1) // ranks)


@dataclass(frozen=True)
class How:
    """A mesh, and the cut of its stages."""

    data: int = 1
    stages: int = 1
    way: str = "auto"
    split: tuple[int, ...] | None = None  # None: as parallelise does it
    chunks: int = 3
    micro: int = 1
    early: int = 0
    step_cost: float = 0.0
    jitter: int | None = None  # seed of waits between any two things that a stage does

    @property
    def cut(self) -> Cut | None:
        return None if self.split is None else Cut(self.split, self.chunks, self.micro, self.early, self.step_cost)

    @property
    def size(self) -> int:
        return self.data * self.stages


@cache
def mesh_of(data: int, stages: int, way: str) -> Mesh | None:
    """Of the first ranks; None on the others, each of which makes a mesh of itself."""
    members, me = range(data * stages), int(os.environ["RANK"])
    if not dist.is_initialized():
        Mesh()  # all of them meet
    if me in members:
        return Mesh(data, stages, way=way, ranks=members, timeout=20)
    Mesh(ranks=[me])
    return None


def parallelised(net: Net, how: How) -> tuple[Stack, ParallelStep] | None:
    mesh, model = mesh_of(how.data, how.stages, how.way), net.build()
    if mesh is None:
        if net.tied and how.stages > 1:
            new_group([dist.get_rank()], 60)  # the others make one as well
        return None
    if how.way == "server":  # not for a loop of one's own
        head = AnyHead(model.head, lambda h, target: cross_entropy(model.head(h), target))
        network = Network.of(model.first, list(model.rnn), head)
        return model, ParallelStep(mesh, network, how.cut or even_cut(mesh.shape, len(network.layers)))
    return model, mesh.parallelise(model, cross_entropy, how.cut)


# --- jobs ------------------------------------------------------------------------------------------------------------
class Stepped(NamedTuple):
    loss: float
    gradients: dict[str, np.ndarray]  # of the parameters that have one
    states: list[Any]


class Done(NamedTuple):
    place: tuple[int, int]  # data rank, stage
    layers: range  # of its stage
    owned: list[str]  # what it would give to an optimizer
    steps: list[Stepped]


def exact(net: Net, how: How) -> Done | None:
    """Both passes over all batches, without an update."""
    made = parallelised(net, how)
    if made is None:
        return None
    model, step = made
    names = {p: name for name, p in model.named_parameters()}
    found = []
    before = Pass.execute
    if how.jitter is not None:
        Pass.execute = late(Pass.execute, random.Random(10 * how.jitter + dist.get_rank()))
    try:
        for batch in net.draw():
            x, y, lengths = batch.part(step.mesh.data_rank, how.data)
            if net.batch_first:
                x, y = x.transpose(0, 1).contiguous(), y.transpose(0, 1).contiguous()
            loss = step(x, y, lengths if net.ragged else None, carry=net.carry)
            gradients = {name: p.grad.numpy().copy() for p, name in names.items() if p.grad is not None}
            found.append(Stepped(loss, gradients, [s.numpy().copy() for s in step.states or ()]))
    finally:
        Pass.execute = before
    place, begin = (step.mesh.data_rank, step.mesh.stage), step.stage.begin
    layers = range(begin, begin + len(step.stage.layers))
    return Done(place, layers, [names[p] for p in step.parameters], found)


def late(execute: Callable[..., None], rng: random.Random) -> Callable[..., None]:
    def then(*args: Any) -> None:
        execute(*args)
        time.sleep(rng.choice((0, 0, 0.001, 0.003)))

    return then


# --- gradients of data ranks
@dataclass(frozen=True)
class Sum:
    """Gradients to be added: of parameters with these shapes, in some steps."""

    ranks: int
    way: str = "auto"
    shapes: tuple[tuple[int, ...], ...] = ((3, 5), (7,), (2, 2, 2), (1,), (40,))
    dtype: str = "float64"
    group: int = 1 << 20  # bytes of gradients that are added together
    hosts: tuple[str, ...] | None = None  # None: all on this one
    absent: tuple[tuple[int, int], ...] = ()  # (rank, parameter): it has no gradient there

    def gradient(self, rank: int, step: int, k: int) -> Tensor | None:
        if (rank, k) in self.absent:
            return None
        generator = torch.Generator().manual_seed(1000 * step + 10 * k + rank)
        return torch.randn(self.shapes[k], generator=generator, dtype=getattr(torch, self.dtype))

    def parameters(self) -> list[nn.Parameter]:
        return [nn.Parameter(torch.ones(shape, dtype=getattr(torch, self.dtype))) for shape in self.shapes]


def reducer_of(s: Sum, parameters: list[nn.Parameter], timeout: float = 20) -> tuple[Reducer, str] | None:
    mesh = mesh_of(s.ranks, 1, "auto")
    if mesh is None:
        return None
    return of_data.make_reducer(parameters, mesh.group("data"), s.way, s.hosts or ["here"] * s.ranks, timeout)


def added(s: Sum) -> tuple[str, int, list[list[np.ndarray]]] | None:
    """-> how, bytes that were sent, and the sums of three steps. The gradients come in another order on each rank."""
    parameters, rank = s.parameters(), int(os.environ["RANK"])
    with mock.patch.object(of_data, "GROUP", s.group):
        made = reducer_of(s, parameters)
        if made is None:
            return None
        reducer, how = made
        found = []
        for step in range(3):
            for k, p in enumerate(parameters):
                p.grad = s.gradient(rank, step, k)
            reducer.begin()
            order = [p for p in parameters if p.grad is not None]
            random.Random(4 * step + rank).shuffle(order)
            for p in order[: len(order) - step]:  # those that are not announced are found at the end
                reducer.on_gradient(p)
            reducer.finish()
            found.append([p.grad.numpy().copy() for p in parameters])
    return how, reducer.sent, found


def lent(s: Sum) -> list[list[np.ndarray]] | None:
    """The sums where code adds to a gradient that it is lent, as a pipeline does."""
    parameters, rank = s.parameters(), int(os.environ["RANK"])
    made = reducer_of(s, parameters)
    if made is None:
        return None
    found = []
    for step in range(3):
        made[0].begin()
        made[0].lend()
        for k, p in enumerate(parameters):
            p.grad += s.gradient(rank, step, k)
        made[0].finish()
        found.append([p.grad.numpy().copy() for p in parameters])
    return found


def updated(s: Sum) -> list[np.ndarray] | None:
    """The weights after two steps of momentum, with gradients that are scaled down, as clipping does it."""
    parameters, rank = s.parameters(), int(os.environ["RANK"])
    made = reducer_of(s, parameters)
    if made is None:
        return None
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.5)
    for step in range(2):
        for k, p in enumerate(parameters):
            p.grad = s.gradient(rank, step, k)
        made[0].begin()
        made[0].finish()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        made[0].update(optimizer)
    return [p.detach().numpy().copy() for p in parameters]


def without_memory(s: Sum, full: tuple[int, ...]) -> tuple[str, bool] | None:
    """What is said if these ranks find no shared memory, and whether a file is left."""
    made: list[str] = []
    original = tempfile.mkstemp

    def mkstemp(**options: Any) -> tuple[int, str]:
        found = original(**options)
        made.append(found[1])
        return found

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fallocate = refuse if int(os.environ["RANK"]) in full else os.posix_fallocate
    with mock.patch.object(tempfile, "mkstemp", mkstemp), mock.patch.object(os, "posix_fallocate", fallocate):
        try:
            found = reducer_of(s, s.parameters())
        except PlaitError as e:
            found = None, str(e)
    return None if found is None else (found[1], any(Path(name).exists() for name in made))


KEPT: list[Any] = []


def deserted(s: Sum, how: str) -> str | None:
    """What the first rank says if the second one does not come to the end of a step."""
    parameters, rank = s.parameters(), int(os.environ["RANK"])
    made = reducer_of(s, parameters, timeout=0.5 if how == "late" else 60)
    if made is None:
        return None
    KEPT.append(made)  # if it were cleared away, this rank would count as gone
    made[0].begin()
    if rank == 1:
        if how == "dead":
            os._exit(1)
        return None
    try:
        made[0].finish()
    except RuntimeError as e:
        if how == "dead" and "Connection closed by peer" not in str(e):
            raise
        return str(e)
    return "nothing"


# --- cuts
def chosen(net: Net, how: How, chunks: int | None) -> tuple[dict[str, Any], bool, bool] | None:
    """The cut that is measured and chosen; whether random numbers go on as before; and whether gradients are left."""
    mesh, model = mesh_of(how.data, how.stages, how.way), net.build()
    if mesh is None:
        return None
    batches = []
    for x, y, lengths in net.draw():
        layout = Layout.of_lengths(lengths)
        places = layout.places(len(x), False)
        batches.append((x.flatten(0, 1)[places], y.flatten()[places], layout))
    first = nn.Sequential(model.first, nn.Dropout(0.5))
    head = AnyHead(model.head, lambda h, y: cross_entropy(model.head(h), y))
    network = Network.of(first, list(model.rnn), head)
    before = torch.get_rng_state()
    try:
        cut = choose(network, batches, Shape(how.data, how.stages, micro=how.micro, chunks=chunks), mesh)
    except PlaitError as e:
        return {"error": str(e)}, True, False
    same = torch.equal(before, torch.get_rng_state())
    return cut.as_dict(), same, any(p.grad is not None for p in model.parameters())


# --- the language model
class Spoken(NamedTuple):
    loss: float
    norm: float
    gradients: dict[str, np.ndarray]


def language_model(tied: bool, softmax: str, dropout: float = 0.0) -> LanguageModel:
    torch.manual_seed(0)
    settings = LanguageSettings(data="-", hidden=6, layers=3, init=0.5, tied=tied, softmax=softmax, dropout=dropout)
    return LanguageModel(settings, 11).double()


def tokens_of(lengths: Sequence[int], seed: int) -> tuple[Tensor, Tensor, Layout]:
    """Rows of tokens, and of what follows."""
    layout, generator = Layout.of_lengths(lengths), torch.Generator().manual_seed(seed)
    both = torch.randint(11, (2, 9, len(lengths)), generator=generator)[:, layout.step, layout.sequence]
    return both[0], both[1], layout


def speak(tied: bool, softmax: str, lengths: Sequence[int], how: How) -> list[Spoken] | None:
    """Two steps of a language model in parts: the losses of the ranks are to be added."""
    mesh, model = mesh_of(how.data, how.stages, how.way), language_model(tied, softmax)
    if mesh is None:
        if tied:
            new_group([dist.get_rank()], 60)
        return None
    assert how.cut is not None
    step, names = ParallelStep(mesh, model.network(), how.cut), {p: name for name, p in model.named_parameters()}
    mine, state, found = lengths[part_of(len(lengths), mesh.data_rank, how.data)], None, []
    for seed in range(2):
        inputs, targets, layout = tokens_of(mine, 10 * seed + mesh.data_rank)
        loss, state = step.run(inputs, targets, layout, state)
        norm = step.norm().item()
        found.append(Spoken(loss, norm, {names[p]: p.grad.numpy().copy() for p in step.parameters}))
    return found


def slope(how: How, small: float) -> tuple[float, float, float] | None:
    """With dropout: how the loss changes along a direction, by the gradients, and by going there; and the loss."""
    mesh, model = mesh_of(how.data, how.stages, how.way), language_model(False, "full", dropout=0.4)
    if mesh is None:
        return None
    assert how.cut is not None
    step = ParallelStep(mesh, model.network(), how.cut)
    inputs, targets, layout = tokens_of((9, 4, 6, 7)[part_of(4, mesh.data_rank, how.data)], mesh.data_rank)
    directions = [torch.randn(p.shape, dtype=p.dtype) for p in step.parameters]  # the same on all data ranks

    def loss(way: float) -> float:
        for p, d in zip(step.parameters, directions, strict=True):
            p.data.add_(d, alpha=way * small)
        torch.manual_seed(dist.get_rank())  # the same masks each time
        found = step.run(inputs, targets, layout, None).loss
        for p, d in zip(step.parameters, directions, strict=True):
            p.data.sub_(d, alpha=way * small)
        return mesh.sum(found)[0]

    there = (loss(1.0) - loss(-1.0)) / (2 * small)
    here = loss(0.0)
    mine = sum(float((p.grad * d).sum()) for p, d in zip(step.parameters, directions, strict=True))
    return mesh.sum(mine / how.data)[0], there, here


# --- a loop of one's own
class Trained(NamedTuple):
    losses: list[float]
    weights: dict[str, np.ndarray]  # those that a rank holds


def own_loop(net: Net, how: How, rounds: int) -> Trained | None:
    """As docs/ranks.md says it. The ranks begin with different weights, and take those of the first."""
    mesh = mesh_of(how.data, how.stages, how.way)
    if mesh is None:
        return None
    model = net.build()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(dist.get_rank())
    step = mesh.parallelise(model, cross_entropy)
    optimizer = torch.optim.Adam(step.parameters, lr=0.01)
    losses = []
    for n, batch in enumerate(net.draw() * rounds):
        x, y, lengths = batch.part(mesh.data_rank, how.data)
        if net.batch_first:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        losses.append(step(x, y, lengths=lengths, carry=n > 0))
        optimizer.step()
    names = {p: name for name, p in model.named_parameters()}
    return Trained(losses, {names[p]: p.detach().numpy().copy() for p in step.parameters})


class Tagger(nn.Module):
    """A user's own, of torch's layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(10, VOCABULARY)
        self.rnn = nn.LSTM(4, 5, num_layers=2, bidirectional=True)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(x))[0])


def tagged(model: nn.Module, mine: slice) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Three steps with some of eight sequences -> the gradients of each, and the weights after them."""
    optimizer, generator, found = torch.optim.Adam(model.parameters(), 0.01), torch.Generator().manual_seed(1), []
    for _ in range(3):
        x, y = torch.randint(VOCABULARY, (2, 6, 8), generator=generator)[:, :, mine]
        optimizer.zero_grad()
        cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        found.append({name: p.grad.numpy().copy() for name, p in model.named_parameters()})
    return found, {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def by_torch(ranks: int) -> Any:
    """DistributedDataParallel around a model whose layers are plait's."""
    mesh = mesh_of(ranks, 1, "auto")
    if mesh is None:
        return None
    model = nn.parallel.DistributedDataParallel(plait.accelerate(Tagger()), process_group=mesh.everyone)
    assert isinstance(model.module.rnn, plait.LSTM)
    return tagged(model, part_of(8, mesh.data_rank, ranks))


# --- meshes
def places() -> list[Any]:
    """What meshes of several shapes say about themselves, one after the other in the same processes."""
    found = []
    for data, stages in ((2, 2), (1, 3), (2, 1), (4, 1), (1, 2), (3, 1)):
        mesh, mine = mesh_of(data, stages, "auto"), None
        if mesh is not None:
            sizes = {axis: dist.get_world_size(mesh.group(axis)) for axis in ("data", "layers", "time")}
            sums = mesh.sum(1.0, dist.get_rank())
            mine = mesh.data_rank, mesh.stage, mesh.is_first, sizes, sums, len(mesh.hosts("data"))
        found.append(mine)
    return found


def said(kind: str) -> str:
    """What a mesh that cannot be, or a call that is wrong, says."""
    mesh = mesh_of(2, 2, "auto")
    assert mesh is not None
    lstm, ends = plait.LSTM(4, 5, num_layers=3), (nn.Embedding(7, 4), nn.Linear(5, 7))
    both = {"bidirectional": True}
    models: dict[str, Callable[[], nn.Module]] = {
        "no stack": lambda: nn.LSTM(4, 5),
        "torch's layer": lambda: Stack(ends[0], nn.LSTM(4, 5), ends[1]),
        "both directions": lambda: Stack(ends[0], plait.GRU(4, 5, 2, **both), nn.Linear(10, 7)),
        "parametrized": lambda: Stack(ends[0], nn.utils.parametrizations.weight_norm(lstm, "weight_hh_l0"), ends[1]),
        "one layer": lambda: Stack(ends[0], plait.LSTM(4, 5), ends[1]),
    }
    try:
        if kind == "larger than the world":
            Mesh(4, 2)
        elif kind == "no stages":
            Mesh(layers=0)
        elif kind == "no divisor of the world":
            Mesh(layers=3)
        elif kind == "of others":
            Mesh(ranks=[(dist.get_rank() + 1) % 4])
        elif kind in models:
            mesh.parallelise(models[kind](), cross_entropy)  # type: ignore[arg-type]
        elif kind == "a cut for another network":
            mesh.parallelise(Stack(ends[0], lstm, ends[1]), cross_entropy, Cut((1, 1), 2))
        elif kind == "a cut for another mesh":
            mesh.parallelise(Stack(ends[0], lstm, ends[1]), cross_entropy, Cut((1, 1, 1), 2))
        else:
            step = mesh.parallelise(Stack(ends[0], lstm, ends[1]), cross_entropy)
            x = torch.zeros(6, 3, dtype=torch.int64)
            step(x, x)
            if kind == "targets":
                step(x, x[:5])
            elif kind == "lengths":
                step(x, x, [6, 7, 1])
            elif kind == "carried":
                step(x[:, :2], x[:, :2], carry=True)
    except PlaitError as e:
        return str(e)
    return "nothing"


def unheard() -> str | None:
    """What a rank says if a message of its mesh does not come."""
    me = dist.get_rank()
    if me > 1:
        Mesh(ranks=[me], timeout=1)
        return None
    mesh = Mesh(layers=2, ranks=[0, 1], timeout=1)
    if me == 1:
        return None
    try:
        dist.recv(torch.zeros(1), 1, group=mesh.group("layers"))
    except RuntimeError as e:
        return str(e)
    return "nothing"


# --- time over ranks -------------------------------------------------------------------------------------------------
def over_time(
    ranks: int,
    cell: str,
    T: int,
    ragged: bool,
    solver: str,
    dtype: str = "float64",
    dropout: float = 0.0,
    scale: float = 1.0,
) -> dict[str, Any] | None:
    """How far a layer on so many time ranks is from one exact walk, on each rank; and what all ranks have, as bytes."""
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
    mesh = Mesh(data=1, time=ranks, ranks=range(ranks)) if rank < ranks else Mesh(data=1, ranks=[rank])
    if rank >= ranks:
        return None
    torch.manual_seed(0)
    B, H, kind = 4, 7, getattr(torch, dtype)
    layer = plait.layer(ALL[cell], 5, H, 2, bidirectional=True, dtype=kind, dropout=dropout)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            p *= scale if "weight_hh" in name else 1.0
    x = torch.randn(T, B, 5, dtype=kind, requires_grad=True)
    hx = tuple(torch.randn(4, B, H, dtype=kind, requires_grad=True) for _ in layer._plait_cell.states)
    lengths = [max(1, T // 2), T, max(1, T - 3), max(1, T // 3)] if ragged else None
    weights = torch.randn(T, B, 2 * H, dtype=kind), torch.randn(4, B, H, dtype=kind)

    def passes() -> list[Tensor]:
        torch.manual_seed(1)
        y, after = layer(x, hx if len(hx) > 1 else hx[0], lengths, [8, 3, 5, 1])
        states = plait.layers.states_of(after)
        loss = (y * weights[0]).sum() + sum((s * weights[1]).sum() for s in states)
        return [y.detach(), *(s.detach() for s in states), *torch.autograd.grad(loss, [x, *hx, *layer.parameters()])]

    exact = passes()
    layer.solver = plait.solvers.parse(solver)
    mesh.split_time(layer)
    result: dict[str, Any] = {"errors": [], "split": []}
    for _ in range(2):  # the second time from what the first has left
        found = passes()
        errors = [
            float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in zip(found, exact, strict=True)
        ]
        result["errors"].append(max(errors))
        result["split"].append(layer.last_solve.backward.split)
    result["bytes"] = [t.numpy().tobytes() for t in found]
    return result


def odd_calls_over_time() -> dict[str, Any]:
    """On two time ranks: layers that need no gradient, a comparison, a second derivative, a walk without a solver."""
    mesh = Mesh(data=1, time=2)
    torch.manual_seed(0)
    layer = plait.layer("gru", 5, 7, 2, dtype=torch.float64, solver=plait.Shooting(4, 1e-9, 3, False))
    x = torch.randn(40, 2, 5, dtype=torch.float64)
    with torch.no_grad():
        exact, _ = layer(x)
    mesh.split_time(layer)
    found: dict[str, Any] = {"compared": plait.compare(layer, lambda: layer(x)[0].square().sum()).gradient}
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        getattr(layer, name).requires_grad_(False)  # the first layer is frozen, the second learns
    found["half frozen"] = float((layer(x)[0] - exact).abs().max())
    layer.requires_grad_(False)
    found["frozen"] = float((layer(x)[0] - exact).abs().max())
    layer.requires_grad_(True)
    (g,) = torch.autograd.grad(layer(x)[0].square().sum(), layer.weight_hh_l0, create_graph=False)
    found["gradient"] = g.numpy()
    try:
        torch.autograd.grad(layer(x)[0].square().sum(), layer.weight_hh_l0, create_graph=True)
    except PlaitError as e:
        found["second"] = str(e)
    layer.solver = plait.Serial()
    found["serial"] = float((layer(x)[0] - exact).abs().max())
    return found
