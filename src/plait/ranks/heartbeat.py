"""The heartbeat: a thread of every rank that counts up in the store, so that the others see that its process runs.

It has a connection of its own, and answers questions about the store with it. Who asks waits for as long as it likes
to, never without end, whatever has become of the store.
"""

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from ..errors import PlaitError
from .store import Store, Unanswered, settle

T = TypeVar("T")
BEAT = 0.5  # seconds
LOST = 75  # exit code of a rank that lost contact (EX_TEMPFAIL)


class Lost(PlaitError):
    """A rank does not answer. `exit_code`: this process is not to blame."""

    exit_code = LOST


class Heartbeat:
    """parent: the process that this one must not outlive, if there is one"""

    def __init__(self, store: Store, rank: int, parent: int | None) -> None:
        self.store, self.key, self.parent = store, f"beat/{rank}", parent
        self.questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.broken: Exception | None = None
        self.pending: Future[Any] | None = None  # an answer that nobody waits for any more
        self.store.add(self.key, 1)  # so that it is there when the others look for it
        self.thread = threading.Thread(target=self.run, name="plait heartbeat", daemon=True)
        self.thread.start()
        atexit.register(self.end)  # a thread inside torch would abort an exiting process

    def run(self) -> None:
        due = time.monotonic() + BEAT
        while True:
            try:
                question = self.questions.get(timeout=max(due - time.monotonic(), 0))
            except queue.Empty:
                self.beat()
                due = time.monotonic() + BEAT
            else:
                if question is None:
                    return
                question()

    def beat(self) -> None:
        if self.parent is not None and os.getppid() != self.parent:
            os._exit(LOST)  # the launcher is gone, and the store with it
        if self.broken is None:
            try:
                self.store.add(self.key, 1)
            except RuntimeError as e:
                self.broken = e  # from now on every question is told so

    def ask(self, function: Callable[[Store], T], patience: float) -> T:
        """What a function finds in the store; Unanswered after `patience` seconds."""
        if self.stuck():
            raise Unanswered("no answer to an earlier question")

        def look() -> T:
            if self.broken is not None:
                raise self.broken
            return function(self.store)

        answer: Future[T] = Future()
        self.questions.put(partial(settle, answer, look))
        try:
            return answer.result(patience)
        except TimeoutError:
            self.pending = answer
            raise Unanswered(f"no answer within {patience:g} s") from None
        except RuntimeError as e:
            raise Unanswered(str(e).splitlines()[0]) from e

    def stuck(self) -> bool:
        """Whether the thread waits for a store that does not answer."""
        return self.pending is not None and not self.pending.done()

    def end(self) -> None:
        atexit.unregister(self.end)
        self.questions.put(None)
        if not self.stuck():
            self.thread.join(1.0)
