"""Work in children: its result or why there is none, and nobody else's child is touched."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvrun.agent import procs
from nvrun.agent.loop import Loop
from nvrun.agent.main import Agent
from nvrun.agent.standing import Standing
from nvrun.agent.tasks import Tasks
from tests.lab.lab import wait_for


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    signal.set_wakeup_fd(-1)


def answer(loop: Loop, work: Callable[[], object], deadline: float = 5.0) -> tuple[object, str]:
    """(result, why there is none) of `work` as a task."""
    found: list[tuple[object, str]] = []

    def reply(result: object, trouble: str) -> None:
        found.append((result, trouble))
        loop.stop()

    Tasks(loop, keep_closed=()).start(work, deadline, reply)
    loop.run()
    return found[0]


def test_a_result_comes_back(loop: Loop) -> None:
    assert answer(loop, lambda: {"cpus": [0, 1]}) == ({"cpus": [0, 1]}, "")


@pytest.mark.parametrize("descriptors", [0, 1, 2, 3])
def test_a_host_that_has_nothing_left_answers_with_that(loop: Loop, descriptors: int) -> None:
    """It must not end the job that runs there; and what was had is given back."""
    tasks, standing = Tasks(loop, keep_closed=()), Standing(loop, keep_closed=())
    found: list[tuple[object, str]] = []
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(descriptors + 1)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[descriptors], limits[1]))
    try:
        if descriptors < 2:
            tasks.start(lambda: 1, 5.0, lambda result, trouble: found.append((result, trouble)))
        standing.begin("port", lambda say, until: say(1), 5.0, lambda result, trouble: found.append((result, trouble)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(found) == {(None, "OSError: [Errno 24] Too many open files")}
    assert len(found) == (2 if descriptors < 2 else 1)
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == before
    assert not tasks.pids() | standing.pids()


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: {"no": {"JSON"}}, "TypeError"),
        (lambda: os._exit(3), "ended without an answer"),
    ],
    ids=["raises", "no JSON", "dies"],
)
def test_why_there_is_no_result(loop: Loop, work: Callable[[], object], why: str) -> None:
    """A result that is no JSON must not send the child, a copy of the agent, back into the agent's loop."""
    me = os.getpid()
    result, trouble = answer(loop, work)
    assert os.getpid() == me
    assert result is None
    assert why in trouble


def test_late_work_is_killed(loop: Loop) -> None:
    begun = time.monotonic()
    assert answer(loop, lambda: time.sleep(60), deadline=0.2) == (None, "no answer in 0.2 s")
    assert time.monotonic() - begun < 5.0


def test_another_childs_exit_status_is_left_to_whoever_waits_for_it(loop: Loop) -> None:
    """torchrun that dies while a task ends: its status, reaped by somebody else, would read as success."""

    def ended(pid: int) -> bool:
        found = procs.stat(pid)
        return found is not None and found.state == "Z"

    with subprocess.Popen(["sh", "-c", "exit 9"]) as other:
        wait_for(lambda: ended(other.pid), "the child ended", timeout=5)
        assert answer(loop, lambda: 1) == (1, "")
        assert other.wait() == 9


def test_torchruns_end_takes_nobody_along_who_works_for_the_launcher(loop: Loop) -> None:
    """A torchrun that dies while the facts are read: their own children are no processes of the job."""
    into, out, mark = (os.open(os.devnull, os.O_RDWR) for _ in range(3))
    agent = Agent(into, out, mark)
    wait, go = os.pipe()

    def work() -> None:
        os.read(wait, 1)
        subprocess.run(["sleep", "60"], check=False)

    agent._tasks.start(work, 60.0, lambda result, trouble: None)
    (task,) = agent._tasks.pids()
    spare = agent.spare()
    try:
        os.write(go, b"1")  # it forks after it was said who is spared
        wait_for(lambda: bool(procs.descendants(task)), "the task has a child of its own", timeout=5)
        working = {task, *procs.descendants(task)}
        assert not working & procs.leftovers("", os.getpid(), spare)
    finally:
        procs.kill({*procs.descendants(task), task}, signal.SIGKILL)
        os.waitpid(task, 0)
        for end in (wait, go):
            os.close(end)
