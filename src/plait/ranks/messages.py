"""Messages between the stages of a pipeline."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from .schedule import Op

Work = Any  # of torch.distributed: a message under way


class Message(NamedTuple):
    op: Op  # which needs it
    source: int  # stage
    tag: int
    rows: Tensor


class Messenger:
    def __init__(self, group: dist.ProcessGroup | None, messages: Iterator[Message]) -> None:
        self.group = group
        self.coming = {message.op: message for message in messages}
        self.there = {op: threading.Event() for op in self.coming}
        self.error: Exception | None = None
        self.sent: list[tuple[Work, Tensor]] = []  # a tensor must stay as it is until it has left
        works = [dist.irecv(m.rows, self.rank(m.source), group=group, tag=m.tag) for m in self.coming.values()]
        if works:
            threading.Thread(target=self.listen, args=(works,), name="plait mail", daemon=True).start()

    def rank(self, stage: int) -> int:
        assert self.group is not None
        return dist.get_global_rank(self.group, stage)

    def listen(self, works: Sequence[Work]) -> None:
        """A work of gloo is never done until somebody waits for it."""
        try:
            for work, event in zip(works, self.there.values(), strict=True):
                work.wait()
                event.set()
        except Exception as e:
            self.error = e
            for event in self.there.values():
                event.set()

    def has(self, op: Op) -> bool:
        return op not in self.there or self.there[op].is_set()

    def wait(self, op: Op) -> None:
        self.there[op].wait()

    def take(self, op: Op) -> Tensor:
        if self.error is not None:
            raise self.error
        return self.coming.pop(op).rows

    def send(self, rows: Tensor, to: int, tag: int) -> None:
        self.sent.append((dist.isend(rows, self.rank(to), group=self.group, tag=tag), rows))

    def close(self) -> None:
        for work, _ in self.sent:
            work.wait()
