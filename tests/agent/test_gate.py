"""Who comes to the gate: shims are greeted, and nobody else can end the supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrun.agent.gate import Gate, Rank, Starts
from nvrun.agent.loop import Loop
from nvrun.plan import SHIM


class Opened:
    """A gate with its loop, and whom it has greeted."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.greeted: list[Rank] = []
        self.name = f"nvrun-test-{uuid.uuid4()}"
        self.gate = Gate(self.loop, self.greeted.append)
        self.gate.open(self.name)

    def come(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(5)
        sock.connect("\0" + self.name)
        return sock

    def turn(self, seconds: float = 0.2) -> None:
        """What the loop does in that time."""
        self.loop.later(seconds, self.loop.stop)
        self.loop.run()
        self.loop._running = True


@pytest.fixture
def opened() -> Iterator[Opened]:
    opened = Opened()
    yield opened
    for rank in opened.greeted:
        os.close(rank.pidfd)
        if rank.sock:
            rank.sock.close()
    opened.gate.close()
    signal.set_wakeup_fd(-1)


def hello(pid: int, attempt: int = 1, local_rank: int = 3) -> bytes:
    env = {"RANK": "5", "LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": str(attempt),
           "TORCHELASTIC_ERROR_FILE": f"/logs/attempt_{attempt}/{local_rank}/error.json"}  # fmt: skip
    return json.dumps({"pid": pid, "env": env}).encode() + b"\n"


def test_a_shim_gets_its_source_and_is_greeted(opened: Opened) -> None:
    with opened.come() as sock:
        opened.turn()
        with sock.makefile("rb") as source:
            assert b"def receive_plan" in source.read(int(source.read(8), 16))
        sock.sendall(hello(os.getpid()))
        opened.turn()
    (rank,) = opened.greeted
    assert (rank.pid, rank.rank, rank.attempt) == (os.getpid(), 5, 1)
    assert rank.local_rank == 3, "under --virtual-local-rank LOCAL_RANK is 0 for all"


def test_a_start_is_told_by_attempts_and_local_ranks(opened: Opened) -> None:
    """Local rank 0 has failed before local rank 1 greets: the start, and the failure, are the same one's. Where nodes
    come or go all start anew and the attempt stays."""
    starts = Starts()
    for attempt, local_rank in (0, 0), (0, 1), (1, 1), (1, 0), (1, 0), (1, 1):
        with opened.come() as sock:
            sock.sendall(hello(os.getpid(), attempt, local_rank))
            opened.turn(0.05)
    assert [starts.add(rank) for rank in opened.greeted] == [True, False, True, False, True, False]
    assert [starts.is_of_last(rank) for rank in opened.greeted] == [False] * 4 + [True] * 2


def test_who_leaves_at_once_changes_nothing(opened: Opened) -> None:
    opened.come().close()
    opened.turn()
    assert opened.greeted == []


@pytest.mark.parametrize("words", [b"GET / HTTP/1.0\n", b"[]\n", b"{}\n", b"\xff\n", hello(-1), b""], ids=repr)
def test_a_stranger_is_sent_away(opened: Opened, words: bytes) -> None:
    with opened.come() as sock:
        sock.sendall(words)
        sock.shutdown(socket.SHUT_WR)
        opened.turn()
        while sock.recv(1 << 16):  # the source, then the end
            pass
    assert opened.greeted == []


def test_a_rank_that_is_gone_already_is_none(opened: Opened) -> None:
    """torchrun ended it between its hello and now, and took its status: there is no pidfd to be had."""
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with opened.come() as sock:
        sock.sendall(hello(ended.pid))
        opened.turn()
    assert opened.greeted == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: becomes another user")
def test_a_shim_runs_nothing_of_another_user(tmp_path: Path) -> None:
    """Whoever takes the socket's name when the supervisor is gone gives the rank no code."""
    name, mark = f"nvrun-test-{uuid.uuid4()}", tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')".encode()
    listener = f"""
import os, socket
os.setuid({{}})
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0{name}")
listener.listen()
print("up", flush=True)
sock, _ = listener.accept()
sock.sendall({b"%08x" % len(code) + code!r})
sock.recv(1)
"""
    for uid, ran in ((4711, False), (0, True)):
        with subprocess.Popen([sys.executable, "-c", listener.format(uid)], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"up\n"
            done = subprocess.run([sys.executable, "-I", "-S", "-c", SHIM.format(socket=name)], check=False)
            other.kill()
        assert (done.returncode == 126, mark.exists()) == (not ran, ran)
