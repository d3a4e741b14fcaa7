"""The ranks of one job: they meet in a store, make torch's group, watch each other, and leave together."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from ..errors import PlaitError
from . import store as stores
from .heartbeat import Heartbeat, Lost
from .store import PAUSE, PrefixStore, Store, TCPStore, Unanswered
from .world import World

__all__ = ["Group", "Lost", "join"]

START = 60.0  # seconds for all ranks to come: one may have a slow disk to import torch from
WATCH = 2.0  # seconds of silence, after a connection broke, until a rank counts as lost
LOOK = 0.1  # seconds between two looks at the store
WORDS = (  # of torch and gloo, when a connection broke or nobody answered
    "gloo/transport",
    "gloo/rendezvous",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "caused pair closure",  # another wait on the same connection has timed out before
    "Socket closed",
    "connectFullMesh failed",
)


def join(world: World, timeout: float = 60.0, backend: str = "gloo", patience: float | None = None) -> "Group":
    """Waits for all ranks, and makes torch's default group of them.

    timeout: seconds for every single thing that they do together
    patience: seconds until all must be there; None: 60, or the timeout if that is longer
    """
    patience = max(timeout, START) if patience is None else patience
    end = time.monotonic() + patience
    store = meet(world, patience)
    pulse = connect(world, patience)
    heartbeat = Heartbeat(
        stores.prefixed(pulse, world.secret, world.attempt),
        world.rank,
        os.getppid() if world.launcher == "plait" else None,
    )
    group = Group(world, store, heartbeat, timeout)
    try:
        group.introduce(end, patience)
        name = stores.interface(world.address)
        if backend == "gloo" and name is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        with group.guarded():
            dist.init_process_group(
                backend,
                store=PrefixStore("group", group.store),
                rank=world.rank,
                world_size=world.size,
                timeout=timedelta(seconds=timeout),
            )
    except BaseException:
        heartbeat.end()
        raise
    return group


def meet(world: World, patience: float) -> TCPStore:
    if world.rank == 0 and world.hosts_store:
        return stores.host(world.address, world.port, patience)
    return connect(world, patience)


def connect(world: World, patience: float) -> TCPStore:
    try:
        return stores.reach(world.address, world.port, patience, is_up=world.launcher == "plait")
    except Unanswered as e:
        at, here = f"{world.address}:{world.port}", f"rank {world.rank} on {socket.gethostname()}"
        if world.launcher == "plait":
            raise Lost(f"{here} cannot reach its launcher at {at} ({e}): start again.") from None
        raise PlaitError(
            f"{here} cannot reach the first rank at {at} ({e}): see that rank 0 runs, that MASTER_ADDR and MASTER_PORT "
            "are the same for all ranks, and that no firewall is between them."
        ) from None


def broken(error: BaseException) -> bool:
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)
    )


class Group:
    """All ranks, seen from this one: torch's default group."""

    def __init__(self, world: World, store: TCPStore, heartbeat: Heartbeat, timeout: float) -> None:
        self.world, self.heartbeat, self.timeout = world, heartbeat, timeout
        self.store = stores.prefixed(store, world.secret, world.attempt)
        self.lasting = stores.prefixed(store, world.secret, None)  # kept over restarts
        self.hosts: list[str] = []  # of each rank
        self.pids: list[int] = []

    # --- coming
    def introduce(self, end: float, patience: float) -> None:
        rank, size = self.world.rank, self.world.size
        if self.store.add(f"joined/{rank}", 1) > 1:
            raise PlaitError(
                f"rank {rank} is there twice: another job meets at {self.world.address}:{self.world.port}; "
                "set MASTER_PORT to another port for one of them."
            )
        self.store.set(f"about/{rank}", json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        missing = list(range(size))
        while missing := [r for r in missing if not self.store.check([f"about/{r}"])]:
            if time.monotonic() > end:
                names = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
                raise PlaitError(
                    f"rank{'s' if len(missing) > 1 else ''} {names} of {size} did not join within {patience:g} s: "
                    f"see what became of {'them' if len(missing) > 1 else 'it'}, and start all ranks again."
                )
            time.sleep(PAUSE)
        found = [json.loads(self.store.get(f"about/{r}")) for r in range(size)]
        self.hosts, self.pids = [str(a["host"]) for a in found], [int(a["pid"]) for a in found]

    # --- talking
    @contextmanager
    def guarded(self) -> Iterator[None]:
        """If contact is lost in this block, Lost says with whom."""
        try:
            yield
        except RuntimeError as e:
            if not broken(e):
                raise
            raise self.diagnose(e) from e

    def wait_for(self, rank: int, key: str) -> bytes:
        """The value of a key that a rank will set, as long as its heart beats."""
        beat, since = -1, time.monotonic()

        def look(store: Store) -> tuple[bool, bytes | None, int]:
            left = store.check([f"left/{rank}"])  # before the key: it is set before a rank leaves
            return left, store.get(key) if store.check([key]) else None, int(store.get(f"beat/{rank}"))

        while True:
            try:
                left, value, now = self.heartbeat.ask(look, self.timeout)
                if value is not None:
                    return value
                if left:
                    told = self.read(f"error/{rank}") or "it has left."
                    raise Lost(f"rank {rank} on {self.hosts[rank]}: {told}")
                if now != beat:
                    beat, since = now, time.monotonic()
                elif time.monotonic() - since > self.timeout:
                    raise self.lost([rank])
            except Unanswered:
                raise self.store_gone() from None
            time.sleep(LOOK)

    # --- losing
    def diagnose(self, error: BaseException) -> Lost:
        """Who is to blame: it neither beats, nor says that it leaves."""
        try:
            self.note("left")
            silent = self.silent()
            for rank in range(self.world.size):
                if rank != self.world.rank and (told := self.read(f"error/{rank}")):
                    return Lost(f"rank {rank} on {self.hosts[rank]}: {told}")
            if silent:
                return self.lost(silent)
            words = str(error).splitlines()[0].rpartition("] ")[2]
            sentence = (
                f"the ranks lost contact, although all of them run ({words}): one was slower than the timeout of "
                f"{self.timeout:g} s, or the network between them failed."
            )
            found = self.heartbeat.ask(lambda store: store.compare_set("lost", "", sentence), WATCH)
            return Lost(found.decode())  # what another rank has found out may say more
        except Unanswered:
            return self.store_gone()

    def silent(self) -> list[int]:
        """The ranks that did nothing for a while, not even leave."""
        ranks = [r for r in range(self.world.size) if r != self.world.rank]
        before: dict[int, bytes] = {}

        def look(store: Store) -> list[int]:
            beats = store.multi_get([f"beat/{r}" for r in ranks])
            alive = [r for r, beat in zip(ranks, beats, strict=True) if before.setdefault(r, beat) != beat]
            return [r for r in ranks if r not in alive and not store.check([f"left/{r}"])]

        end = time.monotonic() + WATCH
        while (ranks := self.heartbeat.ask(look, WATCH)) and time.monotonic() < end:
            time.sleep(LOOK)
        return ranks

    def lost(self, ranks: list[int]) -> Lost:
        names = [f"rank {r} on {self.hosts[r]} (process {self.pids[r]})" for r in ranks]
        if len(names) == 1:
            sentence = f"{names[0]} does not answer any more: it was killed, stopped, or its link was cut."
        else:
            most = [*names[:3], f"{len(names) - 3} more"] if len(names) > 4 else names
            listed = f"{', '.join(most[:-1])} and {most[-1]}"
            sentence = f"{listed} do not answer any more: they were killed, stopped, or their links were cut."
        self.heartbeat.ask(lambda store: store.set("lost", sentence), WATCH)
        return Lost(sentence)

    def store_gone(self) -> Lost:
        world = self.world
        who = f"the first rank at {world.address}" if world.hosts_store else f"the launcher at {world.address}"
        if world.hosts_store and self.hosts:
            who += f" ({self.hosts[0]}, process {self.pids[0]})"
        return Lost(f"{who} does not answer any more: it was killed, stopped, or its link was cut.")

    # --- leaving
    def report(self, sentence: str) -> None:
        """Why this rank ends, for the launcher and for the other ranks."""
        try:
            self.heartbeat.ask(lambda store: store.set(f"error/{self.world.rank}", sentence), WATCH)
            self.note("left")
        except Unanswered:
            pass  # nobody is left to hear it

    def note(self, what: str) -> None:
        self.heartbeat.ask(lambda store: store.set(f"{what}/{self.world.rank}", "1"), WATCH)

    def read(self, key: str) -> str | None:
        value: bytes | None = self.heartbeat.ask(lambda store: store.get(key) if store.check([key]) else None, WATCH)
        return None if value is None else value.decode()

    def close(self, together: bool = True) -> None:
        """together: not before all ranks are here; else at once, as after an error"""
        try:
            if together:
                self.leave_together()
        finally:
            self.heartbeat.end()
            if dist.is_initialized():
                dist.destroy_process_group()

    def leave_together(self) -> None:
        try:
            self.note("done")
            self.wait_for_all("done")
            self.note("left")
        except Unanswered:
            raise self.store_gone() from None
        if self.world.rank == 0:
            self.wait_for_all("left")

    def wait_for_all(self, what: str) -> None:
        for r in range(self.world.size):
            self.wait_for(r, f"{what}/{r}")
