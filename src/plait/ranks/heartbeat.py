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
from typing import Any, TypeVar

from ..errors import PlaitError
from .store import Store, Unanswered

T = TypeVar("T")
BEAT = 0.5  # seconds
LOST = 75  # the exit code of a rank that lost contact with the others (EX_TEMPFAIL: it may work the next time)


class Lost(PlaitError):
    """A rank does not answer any more. `exit_code` tells the launcher that this process is not to blame."""

    exit_code = LOST


class Question:
    def __init__(self, function: Callable[[Store], Any]) -> None:
        self.function = function
        self.done = threading.Event()
        self.answer: Any = None
        self.error: Exception | None = None


class Heartbeat:
    """parent: the process that this one must not outlive, if there is one"""

    def __init__(self, store: Store, rank: int, parent: int | None) -> None:
        self.store, self.key, self.parent = store, f"beat/{rank}", parent
        self.questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self.broken: Exception | None = None
        self.pending: Question | None = None  # one that was given up
        self.store.add(self.key, 1)  # so that it is there when the others look for it
        self.thread = threading.Thread(target=self.run, name="plait heartbeat", daemon=True)
        self.thread.start()
        atexit.register(self.end)  # a thread that is inside torch while Python ends would abort the process

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
                self.settle(question)

    def beat(self) -> None:
        if self.parent is not None and os.getppid() != self.parent:
            os._exit(LOST)  # the launcher is gone, and with it the store and all who could tell us to stop
        if self.broken is None:
            try:
                self.store.add(self.key, 1)
            except RuntimeError as e:
                self.broken = e  # from now on every question is told so

    def settle(self, question: Question) -> None:
        try:
            if self.broken is not None:
                raise self.broken
            question.answer = question.function(self.store)
        except Exception as e:
            question.error = e
        question.done.set()

    def ask(self, function: Callable[[Store], T], patience: float) -> T:
        """What a function finds in the store; Unanswered if the store is gone, or takes longer than `patience`."""
        if self.stuck():
            raise Unanswered("no answer to an earlier question")
        question = Question(function)
        self.questions.put(question)
        if not question.done.wait(patience):
            self.pending = question
            raise Unanswered(f"no answer within {patience:g} s")
        if isinstance(question.error, RuntimeError):
            raise Unanswered(str(question.error).splitlines()[0]) from question.error
        if question.error is not None:
            raise question.error
        answer: T = question.answer
        return answer

    def stuck(self) -> bool:
        """Whether the thread waits for a store that does not answer, which it may do for ever."""
        return self.pending is not None and not self.pending.done.is_set()

    def end(self) -> None:
        atexit.unregister(self.end)
        self.questions.put(None)
        if not self.stuck():
            self.thread.join(1.0)
