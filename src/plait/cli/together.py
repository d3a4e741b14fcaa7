"""`plait train` with several processes: the launcher that starts them here, and what each of them does."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from .. import __version__, tasks
from ..errors import PlaitError
from ..kernels import costs
from ..ranks.crew import Together, announced, network_of
from ..ranks.group import Group, join
from ..ranks.heartbeat import LOST, Lost
from ..ranks.launch import launch
from ..ranks.measure import choose
from ..ranks.mesh import Mesh
from ..ranks.plan import Plan
from ..ranks.shape import Shape
from ..ranks.talk import all_ranks, tell_all, told
from ..ranks.world import World
from ..tasks.base import NamedTask
from ..training import signals
from ..training.loop import train
from ..training.reporter import Silent, reporter
from ..training.run import Run, go_on
from ..training.task import Task
from ..training.tensors import packed, unpacked
from .options import set_threads
from .output import Output
from .runs import open_run
from .train import Asked, changes_of, costs_of, describe, finish, mesh_of

PLANNED = 2  # batches that the stages of a pipeline are balanced with
SENT = Path("what the first rank has sent")


def start_workers(asked: Asked, shape: Shape, output: Output) -> int:
    """Starts a process for each rank, on this machine -> the exit code."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = asked.threads or max(1, cores // shape.size)
    if shape.size * threads <= cores:
        output.line(
            f"{shape.size} ranks of {threads} thread{'s' * (threads > 1)} on {cores} cores: one process with "
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


def join_and_train(world: World, asked: Asked) -> int:
    """What a worker does -> its exit code."""
    group = None
    try:
        group = join(world, asked.timeout)
        code = Worker(group, asked, Output(asked.json) if world.rank == 0 else Output.silent()).run()
        group.close()
        return code
    except Lost as e:
        if world.launcher != "plait":  # else the launcher says it, for all ranks
            print(f"plait: {e}", file=sys.stderr)
        code = LOST
    except Known:  # the first rank has said it
        code = 2
    except PlaitError as e:
        if group is not None:
            group.tell(str(e))
            group.close(together=False)
        raise
    except Exception as e:
        if group is not None:
            group.tell(f"{type(e).__name__}: {e}")
            group.close(together=False)
        raise
    if group is not None:
        group.close(together=False)
    return code


class Known(PlaitError):
    """An error that all ranks have found, or have heard of. The first one tells it to the user."""


class Worker:
    def __init__(self, group: Group, asked: Asked, output: Output) -> None:
        self.group, self.asked, self.output = group, asked, output
        self.is_first = group.world.rank == 0
        self.everyone = all_ranks()

    def run(self) -> int:
        asked = self.asked
        self.threads = set_threads(asked.threads)
        with self.group.talking():
            self.agree()
            task, run, is_resumed, mesh_text, plan = self.prepare()
            shape = Shape.parse(mesh_text) if mesh_text else Shape()
            mesh = Mesh.of(shape, asked.timeout)
            self.compare(task)
            self.share(task, mesh)
            if mesh.shape.layers > 1 and plan is None:
                plan = choose(network_of(task), self.examples(task), mesh.shape, mesh)
            crew = Together(self.group, mesh, task, plan, task.settings.seed)
        parallel = {"mesh": str(mesh.shape), "plan": plan.as_dict() if plan and mesh.shape.layers > 1 else None}
        if self.is_first:
            self.describe(task, crew, mesh, plan)
            if run is None:
                config = {"settings": task.settings.as_dict(), "threads": self.threads, "parallel": parallel}
                config |= costs_of(task)
                run = Run.create(asked.out, asked.task, config, task.files())
            elif run.config().get("parallel") != parallel:
                with run.locked():
                    run.write_config({**run.config(), "parallel": parallel})
        watcher = reporter(self.output.console, task.unit, task.shown) if self.is_first else Silent()
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
        """All ranks must have the same data and the same weights."""
        weights = hashlib.sha256()
        for name, t in task.model.state_dict().items():
            weights.update(f"{name} {tuple(t.shape)}".encode())
            weights.update(t.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        self.same({"data": task.digest, "weights": weights.hexdigest()}, "see that all ranks run the same code")

    def same(self, mine: dict[str, Any], todo: str) -> None:
        every = tell_all(mine, self.everyone)
        for rank, other in enumerate(every):
            for name, value in every[0].items():
                if other[name] != value:
                    a, b = (str(v)[:60] for v in (other[name], value))
                    host = self.group.hosts[rank]
                    raise self.error(f"rank {rank} on {host} has {name} {a}, and the first rank has {b}: {todo}.")

    def error(self, text: str) -> PlaitError:
        """What all ranks raise."""
        return PlaitError(text) if self.is_first else Known(text)

    def share(self, task: Task, mesh: Mesh) -> None:
        """This rank's part of each batch."""
        try:
            task.share(mesh.data_rank, mesh.shape.data or 1)
        except PlaitError as e:  # the same on all of them
            raise self.error(str(e)) from None

    def prepare(self) -> tuple[NamedTask, Run | None, bool, str | None, Plan | None]:
        """The first rank reads the data, or the run; the others are sent what they need.

        -> the task, the run if it is there already, whether it goes on with it, the mesh, and the plan of its stages
        """
        a, found = self.asked, None
        if self.is_first:
            try:
                found = self.read()
                content = packed(*found[2])
            except PlaitError as e:
                self.group.store.set("prepared", "")
                told(json.dumps({"error": str(e)}).encode(), self.everyone)
                raise
            self.group.store.set("prepared", "")
            told(b"{}", self.everyone)
            told(content, self.everyone)
            _, meta = found[2]
        else:
            self.group.wait_for(0, "prepared")  # it may read for longer than a broadcast waits
            answer = json.loads(told(b"", self.everyone))
            if "error" in answer:
                raise Known(answer["error"])
            files, meta = unpacked(SENT, told(b"", self.everyone))
            cls = tasks.get(a.task)
            received = Received({name: t.numpy().tobytes() for name, t in files.items()})
            task = cls.reopen(cls.kind(**meta["settings"]), received, training=True)
        self.threads = set_threads(meta["threads"])  # of the run, if it goes on
        if "costs" in meta:
            costs.use(meta["costs"])  # of the run, or of the first rank
        plan = None if meta["plan"] is None else Plan.of(meta["plan"])
        if found is None:
            return task, None, meta["resumed"], meta["mesh"], plan
        return found[0], found[1], meta["resumed"], meta["mesh"], plan

    def read(self) -> tuple[NamedTask, Run | None, tuple[dict[str, torch.Tensor], dict[str, Any]]]:
        """What the first rank finds: the task, the run to go on with, and all that the other ranks need."""
        a, run, mesh, plan = self.asked, None, self.asked.parallel, None
        resume, changes = a.resume, changes_of(a)
        if (before := announced(self.group)) is not None:  # the workers were started again
            resume, changes = before, {}
        if resume is None:
            cls = tasks.get(a.task)
            task = cls.read(cls.kind(**a.options))
        else:
            run, task = open_run(resume, a.task, changes)
            signals.go_on = go_on(a.task, run.path)
            mesh, plan = kept(run, mesh, self.group.world.size)
        files = {
            name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in task.files().items()
        }
        meta = {
            "settings": task.settings.as_dict(),
            "threads": torch.get_num_threads(),
            **costs_of(task),
            "resumed": run is not None,
            "mesh": mesh,
            "plan": plan,
        }
        return task, run, (files, meta)

    def examples(self, task: NamedTask) -> Sequence[Any]:
        """Some batches, as one rank of the data axis has them, to measure with."""
        found = []
        for indices, _ in zip(task.sampler.batches(0), range(PLANNED + 1), strict=False):
            inputs, targets, layout, _ = task.rows(indices)  # type: ignore[attr-defined]
            if layout.N:
                found.append((inputs, targets, layout))
        is_dense = all(layout.batch_sizes is None for _, _, layout in found)
        return found[-1:] if is_dense else found[-PLANNED:]  # streams are all alike

    def describe(self, task: NamedTask, crew: Together, mesh: Mesh, plan: Plan | None) -> None:
        describe(task, self.output)
        shape, hosts = mesh.shape, len(set(self.group.hosts))
        size = f"{shape.size} ranks" + (f" on {hosts} hosts" if hosts > 1 else "")
        lines = [f"{size}: {shape}"]
        if (shape.data or 1) > 1:
            lines.append(f"gradients by {crew.way}")
        if plan is not None and shape.layers > 1:
            counts = " + ".join(map(str, plan.split))
            lines.append(f"layers {counts}, {plan.chunks} chunks of time")
        self.output.line("; ".join(lines))


def kept(run: Run, asked: str | None, world: int) -> tuple[str | None, Any]:
    """The mesh of a run that goes on, and the plan of its stages, if the mesh is still the same."""
    config = run.config()
    mesh = mesh_of(config, str(run.path))
    if mesh is not None and (asked is None or str(Shape.parse(asked).filled(world)) == str(mesh)):
        return str(mesh), config["parallel"].get("plan")
    return asked, None


class Received(Run):
    """The data of a run that another rank has."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(SENT)
        self.files = files

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise PlaitError(f"the first rank has not sent {name}: start all ranks with the same version of plait.")
        return self.files[name]


def digest_of_code() -> str:
    """Of plait's own files: two hosts may have the same version of it, and yet other code."""
    content = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        content.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return content.hexdigest()[:12]
