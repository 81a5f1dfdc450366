"""Readings in children: what blocks or dies costs its own reading only."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from functools import partial
from pathlib import Path

import psutil

from nvrun.agent.probe.child import Call, UnreadError, ask


def refuse() -> None:
    raise UnreadError("not on this host")


def missing_file() -> str:
    return Path("/nonexistent/file").read_text()


def open_files() -> list[str]:
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.append(str(fd.readlink()))
    return found


def slow() -> str:
    time.sleep(0.1)
    return "done"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_call_answers_for_itself() -> None:
    answers = ask(
        {
            "number": Call(lambda: 7, 5),
            "large": Call(lambda: "x" * 3_000_000, 5),
            "refused": Call(refuse, 5),
            "file": Call(missing_file, 5),
            "fault": Call(lambda: dict[str, int]()["key"], 5),
            "dead": Call(die, 5),
        }
    )
    assert answers["number"].value == 7
    assert answers["number"].error is None
    assert len(answers["large"].value) == 3_000_000
    assert answers["refused"].error == "not on this host"
    assert answers["file"].error == "/nonexistent/file: No such file or directory"
    assert answers["fault"].error == "KeyError: 'key'"
    assert answers["dead"].error == "the reading process died (signal 9)"


def test_a_call_that_hangs_costs_its_deadline_and_nothing_else() -> None:
    started = time.monotonic()
    answers = ask({"hung": Call(lambda: time.sleep(60), 0.3), "slow": Call(slow, 5)})
    assert answers["hung"].error == "no answer in 0.3 s"
    assert answers["slow"].value == "done"
    assert time.monotonic() - started < 2


def test_calls_of_one_child_are_made_in_turn_and_what_hangs_is_named() -> None:
    own, behind = Call(lambda: 1, 0.5, "disk"), Call(lambda: 2, 0.5, "disk")
    answers = ask({"first": own, "hung": Call(lambda: time.sleep(60), 0.5, "disk"), "behind": behind, "other": own})
    assert answers["first"].value == 1
    assert answers["hung"].error == "no answer in 0.5 s"
    assert answers["behind"].error == answers["other"].error == "not read, behind hung: no answer in 0.5 s"
    answers = ask({"first": own, "dead": Call(die, 5, "disk"), "behind": behind})
    assert (answers["first"].value, answers["dead"].error) == (1, "the reading process died (signal 9)")
    assert answers["behind"].error == "not read, behind dead: the reading process died (signal 9)"


def test_calls_run_side_by_side() -> None:
    started = time.monotonic()
    ask({str(number): Call(lambda: time.sleep(0.4), 5) for number in range(10)})
    assert time.monotonic() - started < 2


def test_where_descriptors_are_short_some_are_read_and_the_others_say_why() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[3], limits[1]))
    try:
        answers = ask({str(number): Call(partial(int, number), 5) for number in range(4)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [answer.value for answer in answers.values() if answer.error is None] == [0, 1]
    assert {answer.error for answer in answers.values()} == {None, "Too many open files"}
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == before


def test_a_child_that_can_be_killed_leaves_no_zombie() -> None:
    ask({"hung": Call(lambda: time.sleep(60), 0.05)})
    assert psutil.STATUS_ZOMBIE not in [child.status() for child in psutil.Process().children()]


def test_a_child_holds_none_of_the_parents_descriptors() -> None:
    """Else one that is left behind would keep the connection to the launcher open."""
    read, write = os.pipe()
    held = ask({"open": Call(open_files, 5)})
    pipe = str(Path(f"/proc/self/fd/{write}").readlink())
    os.close(read)
    os.close(write)
    assert held["open"].value.count("/dev/null") == 3
    assert pipe not in held["open"].value
