"""A small program for tests of plait.ranks: joins, adds up numbers with the other ranks, and does what it is told.

python -m rank_worker FOLDER [steps=N] [timeout=S] [fail=RANK:HOW[:ATTEMPT]] ...
It leaves FOLDER/ATTEMPT.RANK with its process id as soon as it has joined.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from plait.errors import PlaitError
from plait.ranks.group import Group, Lost, join
from plait.ranks.heartbeat import LOST
from plait.ranks.world import World, find


class Program:
    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self.folder, self.options = folder, options
        self.stop = False
        self.attempt = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.ask)

    def ask(self, number: int, frame: object) -> None:
        self.stop = "stubborn" not in self.options

    def run(self) -> int:
        world = find(os.environ)
        assert world is not None
        self.attempt = world.attempt
        if self.told("late", world.rank):  # it does not come at all
            time.sleep(100)
        if self.told("early", world.rank):
            raise PlaitError("the data is not there: give --data.")
        group = join(world, float(self.options.get("timeout", "30")))
        try:
            code = self.work(group)
            group.close()
            return code
        except PlaitError as e:
            if not isinstance(e, Lost):
                group.report(str(e))
            group.close(together=False)
            if isinstance(e, Lost):
                if world.launcher != "plait":
                    print(f"plait: {e}", file=sys.stderr)
                return LOST
            raise

    def work(self, group: Group) -> int:
        world = group.world
        self.introduce(group, world)
        for step in range(int(self.options.get("steps", "1000000"))):
            if step == 5:
                self.misbehave(world)
            numbers = torch.tensor([1.0, float(self.stop)])
            with group.guarded():
                dist.all_reduce(numbers)
            assert numbers[0] == world.size
            if numbers[1] > 0:
                if world.rank == 0:
                    time.sleep(0.5)  # it saves
                    print("saved", flush=True)
                return 130
            time.sleep(0.01)
        if world.rank == 0:
            print(f"done, attempt {world.attempt}", flush=True)
        return 0

    def introduce(self, group: Group, world: World) -> None:
        known = group.lasting.check(["run"])
        if world.rank == 0:
            terminal = "a terminal" if sys.stdout.isatty() else "no terminal"
            print(f"{world.size} ranks, {'goes on' if known else 'begins'}, {terminal}", flush=True)
            group.lasting.set("run", "here")
            group.lasting.set("resume_command", "plait train language --resume here")
            group.store.set("words", "for all")
        assert group.wait_for(0, "words") == b"for all"
        print(f"rank {world.rank} is here", file=sys.stderr if world.rank else sys.stdout, flush=True)
        dist.barrier()
        name = self.folder / f"{world.attempt}.{world.rank}"
        new = name.with_name(f"{name.name}.new")
        new.write_text(str(os.getpid()))
        new.rename(name)

    def told(self, how: str, rank: int) -> bool:
        """Whether an option fail=RANK:HOW:ATTEMPT is meant for this process."""
        wanted = [w.split(":") for w in self.options.get("fail", "").split(",") if w]
        return any(int(w[0]) == rank and w[1] == how and (len(w) < 3 or int(w[2]) == self.attempt) for w in wanted)

    def misbehave(self, world: World) -> None:
        if self.told("refuse", world.rank):
            raise PlaitError("the batch is too small: give a larger --batch.")
        if self.told("crash", world.rank):
            raise ZeroDivisionError("no reason")
        if self.told("kill", world.rank):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.told("doze", world.rank):
            time.sleep(10)
        if self.told("freeze", world.rank):
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> int:
    program = Program(Path(sys.argv[1]), dict(word.split("=") for word in sys.argv[2:]))
    try:
        return program.run()
    except PlaitError as e:
        print(f"plait: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
