"""Which of several exits is the cause of the others, and how it is told."""

import pytest

from plait.ranks.exits import WorkerExit, cause, last_line, says_itself, sentence
from plait.ranks.heartbeat import LOST

KILLED, REFUSED, CRASHED, LEFT, STOPPED, FINE = (
    WorkerExit(1, -9),
    WorkerExit(2, 2, "no."),
    WorkerExit(3, 1),
    WorkerExit(0, LOST),
    WorkerExit(4, 130),
    WorkerExit(5, 0),
)


@pytest.mark.parametrize(
    ("exits", "expected"),
    [
        ([FINE, STOPPED], None),
        ([FINE, CRASHED], CRASHED),
        ([LEFT, KILLED], KILLED),
        ([LEFT, CRASHED], CRASHED),
        ([CRASHED, KILLED], KILLED),
        ([CRASHED, REFUSED], CRASHED),
        ([REFUSED, CRASHED], REFUSED),
        ([STOPPED, LEFT], LEFT),
    ],
)
def test_the_cause(exits: list[WorkerExit], expected: WorkerExit | None) -> None:
    assert cause(exits) == expected


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (KILLED, "rank 1 on a was killed (SIGKILL)"),
        (WorkerExit(1, -6, last_line="bad free"), "rank 1 on a was killed (SIGABRT): bad free"),
        (WorkerExit(1, -15, last_line="rank 1 is here"), "rank 1 on a was killed (SIGTERM)"),
        (WorkerExit(1, -40), "rank 1 on a was killed (signal 40)"),
        (REFUSED, "rank 2 on a: no"),
        (WorkerExit(1, 2, last_line="plait: the data is not there."), "rank 1 on a: the data is not there"),
        (CRASHED, "rank 3 on a ended with code 1"),
        (WorkerExit(1, 1, last_line="KeyError: 'x'"), "rank 1 on a ended with code 1: KeyError: 'x'"),
        (LEFT, "rank 7 on b does not answer any more"),
    ],
)
def test_its_sentence(ended: WorkerExit, expected: str) -> None:
    assert sentence(ended, "a", "rank 7 on b does not answer any more.") == expected


def test_a_sentence_of_the_first_rank_is_not_repeated() -> None:
    assert says_itself([WorkerExit(0, 2)])
    assert says_itself([REFUSED, WorkerExit(0, 2)])
    assert not says_itself([REFUSED, LEFT])
    assert not says_itself([KILLED, WorkerExit(0, 2)])
    assert not says_itself([FINE])


def test_the_last_line() -> None:
    log = "[rank1]:[W1117 02:42:31.01 socket.cpp:469] [c10d] it broke\n"
    assert last_line(f"one\n[rank1]: Traceback\n[rank1]: KeyError: 'x'\n{log}\n  \n") == "KeyError: 'x'"
    assert last_line(log) == ""
    assert last_line("") == ""
