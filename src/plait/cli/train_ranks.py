"""`plait train` with several processes: the launcher that starts them here, and what each of them does."""

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from .. import __version__, system, tasks
from ..errors import PlaitError, counted
from ..ranks.collectives import all_gather_json, all_ranks, broadcast_bytes
from ..ranks.crew import MeshCrew, announced, network_of
from ..ranks.cut import Cut
from ..ranks.group import Group, join
from ..ranks.heartbeat import LOST, Lost
from ..ranks.launch import launch
from ..ranks.measure import choose
from ..ranks.mesh import Mesh
from ..ranks.shape import Shape
from ..ranks.world import World
from ..tasks.base import NamedTask
from ..tasks.results import described
from ..tasks.runs import mesh_of, open_run
from ..training import signals
from ..training.conditions import Conditions, costs_of
from ..training.loop import train
from ..training.reporter import Reporter, reporter
from ..training.run import Run, resume_command
from ..training.settings import set_threads
from ..training.task import Task
from ..training.tensors import dumps, loads
from .output import Output
from .train import TrainArguments, changes_of, finish

PLANNED = 2  # batches that the stages of a pipeline are balanced with
SENT = Path("what the first rank has sent")


def start_workers(asked: TrainArguments, shape: Shape, output: Output) -> int:
    """Starts a process for each rank on this machine -> the exit code"""
    cores = system.cpus()
    threads = asked.threads or max(1, cores // shape.size)
    if shape.size * threads <= cores:
        output.line(
            f"{shape.size} ranks of {counted(threads, 'thread')} on {counted(cores, 'core')}: one process with "
            f"{shape.size * threads} threads has been as quick, or quicker (docs/ranks.md)"
        )
        sys.stdout.flush()
    argv = [*sys.argv[1:], *([] if asked.parallel else ["--parallel", str(shape)])]
    return launch(
        argv,
        shape.size,
        threads=threads,
        max_restarts=asked.max_restarts,
        say=lambda text: print(f"plait: {text}", file=sys.stderr, flush=True),
    )


def join_and_train(world: World, asked: TrainArguments) -> int:
    """-> the exit code of this worker"""
    group = None
    try:
        group = join(world, asked.timeout)
        code = Worker(group, asked, asked.output() if world.rank == 0 else Output.silent()).run()
        group.close()
        return code
    except Lost as e:
        if world.launcher != "plait":  # else the launcher says it, for all ranks
            print(f"plait: {e}", file=sys.stderr)
        code = LOST
    except Reported:  # the first rank has said it
        code = 2
    except Exception as e:
        if group is not None:
            group.report(str(e) if isinstance(e, PlaitError) else f"{type(e).__name__}: {e}")
            group.close(together=False)
        raise
    if group is not None:
        group.close(together=False)
    return code


class Reported(PlaitError):
    """An error that all ranks know of. The first one prints it."""


class Worker:
    def __init__(self, group: Group, asked: TrainArguments, output: Output) -> None:
        self.group, self.asked, self.output = group, asked, output
        self.is_first = group.world.rank == 0
        self.everyone = all_ranks()

    def run(self) -> int:
        asked = self.asked
        self.threads = set_threads(asked.threads)
        with self.group.guarded():
            self.agree()
            task, run, is_resumed, mesh_text, cut = self.prepare()
            shape = Shape.parse(mesh_text) if mesh_text else Shape()
            mesh = Mesh.of(shape, asked.timeout)
            self.compare(task)
            self.share(task, mesh)
            if mesh.shape.layers > 1 and cut is None:
                cut = choose(network_of(task), self.examples(task), mesh.shape, mesh)
            crew = MeshCrew(self.group, mesh, task, cut, task.settings.seed)
        parallel = {"mesh": str(mesh.shape), "cut": cut.as_dict() if cut and mesh.shape.layers > 1 else None}
        if self.is_first:
            self.describe(task, crew, mesh, cut)
            if run is None:
                conditions = Conditions(self.threads, costs_of(task.model)).as_dict()
                config = {"settings": task.settings.as_dict(), **conditions, "parallel": parallel}
                run = Run.create(asked.out, asked.task, config, task.files())
            elif run.config().get("parallel") != parallel:
                with run.locked():
                    run.write_config({**run.config(), "parallel": parallel})
        watcher = reporter(self.output.console, task.unit, task.shown) if self.is_first else Reporter()
        outcome = train(task, task.settings, run, watcher, resume=is_resumed, crew=crew)
        if run is not None:
            finish(run, task, outcome, task.evaluate(), self.output)
        return 130 if outcome.interrupted else 0

    def agree(self) -> None:
        """All ranks must have been started in the same way, with the same versions."""
        a = self.asked
        mine = {
            "plait": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "Python": ".".join(platform.python_version_tuple()[:2]),
            "code": digest_of_code(),
            "task": a.task,
            "--resume": a.resume is not None,
            "--parallel": a.parallel,
            **{f"--{name.replace('_', '-')}": value for name, value in a.options.items()},
        }
        self.same(mine, "start all ranks with the same command, and the same versions")
        self.same({"threads": self.threads}, "give --threads")

    def compare(self, task: Task) -> None:
        weights = hashlib.sha256()
        for name, t in task.model.state_dict().items():
            weights.update(f"{name} {tuple(t.shape)}".encode())
            weights.update(t.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        self.same({"data": task.digest, "weights": weights.hexdigest()}, "see that all ranks run the same code")

    def same(self, mine: dict[str, Any], todo: str) -> None:
        every = all_gather_json(mine, self.everyone)
        for rank, other in enumerate(every):
            for name, value in every[0].items():
                if other[name] != value:
                    a, b = (str(v)[:60] for v in (other[name], value))
                    host = self.group.hosts[rank]
                    raise self.error(f"rank {rank} on {host} has {name} {a}, and the first rank has {b}: {todo}.")

    def error(self, text: str) -> PlaitError:
        return PlaitError(text) if self.is_first else Reported(text)

    def share(self, task: Task, mesh: Mesh) -> None:
        try:
            task.share(mesh.data_rank, mesh.shape.data or 1)
        except PlaitError as e:  # the same on all of them
            raise self.error(str(e)) from None

    def prepare(self) -> tuple[NamedTask, Run | None, bool, str | None, Cut | None]:
        """-> the task, its run if any, whether it is resumed, the mesh, the cut"""
        a, found = self.asked, None
        if self.is_first:
            try:
                found = self.read()
                content = dumps(*found[2])
            except PlaitError as e:
                self.group.store.set("prepared", "")
                broadcast_bytes(json.dumps({"error": str(e)}).encode(), self.everyone)
                raise
            self.group.store.set("prepared", "")
            broadcast_bytes(b"{}", self.everyone)
            broadcast_bytes(content, self.everyone)
            _, meta = found[2]
        else:
            self.group.wait_for(0, "prepared")  # it may read for longer than a broadcast waits
            answer = json.loads(broadcast_bytes(b"", self.everyone))
            if "error" in answer:
                raise Reported(answer["error"])
            files, meta = loads(SENT, broadcast_bytes(b"", self.everyone))
            cls = tasks.get(a.task)
            received = Received({name: t.numpy().tobytes() for name, t in files.items()})
            task = cls.reopen(cls.kind(**meta["settings"]), received, training=True)
        conditions = Conditions.stored(meta)  # of the run, or of the first rank
        conditions.use()
        self.threads = conditions.threads
        cut = None if meta["cut"] is None else Cut.of(meta["cut"])
        if found is None:
            return task, None, meta["resumed"], meta["mesh"], cut
        return found[0], found[1], meta["resumed"], meta["mesh"], cut

    def read(self) -> tuple[NamedTask, Run | None, tuple[dict[str, torch.Tensor], dict[str, Any]]]:
        """What the first rank finds, and all that the other ranks need."""
        a, run, mesh, cut = self.asked, None, self.asked.parallel, None
        resume, changes = a.resume, changes_of(a)
        if (before := announced(self.group)) is not None:  # the workers were started again
            resume, changes = before, {}
        if resume is None:
            cls = tasks.get(a.task)
            task = cls.read(cls.kind(**a.options))
        else:
            run, task = open_run(resume, a.task, changes)
            if changes:
                with run.locked():  # not while another process trains it
                    run.write_config({**run.config(), "settings": task.settings.as_dict()})
            Conditions.stored(run.config()).use()
            signals.resume_command = resume_command(a.task, run.path)
            mesh, cut = stored_mesh(run, mesh, self.group.world.size)
        files = {
            name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in task.files().items()
        }
        meta = {
            "settings": task.settings.as_dict(),
            **Conditions.here(task.model).as_dict(),
            "resumed": run is not None,
            "mesh": mesh,
            "cut": cut,
        }
        return task, run, (files, meta)

    def examples(self, task: NamedTask) -> Sequence[Any]:
        """Some batches of one data rank, to measure with."""
        found = []
        for indices, _ in zip(task.sampler.batches(0), range(PLANNED + 1), strict=False):
            inputs, targets, layout, _ = task.rows(indices)  # type: ignore[attr-defined]
            if layout.N:
                found.append((inputs, targets, layout))
        is_dense = all(layout.batch_sizes is None for _, _, layout in found)
        return found[-1:] if is_dense else found[-PLANNED:]  # streams are all alike

    def describe(self, task: NamedTask, crew: MeshCrew, mesh: Mesh, cut: Cut | None) -> None:
        for line in described(task):
            self.output.line(line)
        shape, hosts = mesh.shape, len(set(self.group.hosts))
        size = f"{shape.size} ranks" + (f" on {hosts} hosts" if hosts > 1 else "")
        lines = [f"{size}: {shape}"]
        if (shape.data or 1) > 1:
            lines.append(f"gradients by {crew.way}")
        if cut is not None and shape.layers > 1:
            counts = " + ".join(map(str, cut.split))
            lines.append(f"layers {counts}, {cut.chunks} chunks of time")
        self.output.line("; ".join(lines))


def stored_mesh(run: Run, asked: str | None, world: int) -> tuple[str | None, Any]:
    """Of a run that is resumed; its cut, if the mesh is the same."""
    config = run.config()
    mesh = mesh_of(config, str(run.path))
    if mesh is not None and (asked is None or str(Shape.parse(asked).filled(world)) == str(mesh)):
        return str(mesh), config["parallel"].get("cut", config["parallel"].get("plan"))
    return asked, None


class Received(Run):
    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(SENT)
        self.files = files

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise PlaitError(f"the first rank has not sent {name}: start all ranks with the same version of plait.")
        return self.files[name]


def digest_of_code() -> str:
    """Two hosts may have the same version of plait, and yet other code."""
    content = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        content.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return content.hexdigest()[:12]
