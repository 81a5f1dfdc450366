"""Who may take part in a gathering: two real sides over loopback, and strangers between them."""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from nvrun.gather import proof
from nvrun.gather.meeting import CARD_BYTES, Event, First, Other, Side
from nvrun.gather.step import Step

KEY, OTHER_KEY = proof.Shared("secret", b"k" * 32), proof.Shared("secret", b"x" * 32)


@pytest.fixture
def steps() -> tuple[Step, Step]:
    """Both ends of a step of two nodes, with ports that no other test run here uses."""
    job = os.getpid()
    names = ("127.0.0.1", "127.0.0.1")
    first, other = (Step(job_id=job, step_id=0, node=node, names=names) for node in (0, 1))
    return first, other


@pytest.fixture
def first(steps: tuple[Step, Step]) -> Iterator[First]:
    """The real first node."""
    side = First(steps[0], [KEY])
    yield side
    side.close()


def event(side: Side, seconds: float = 5) -> Event:
    return side.events.get(timeout=seconds)


def silent(side: Side, seconds: float = 0.3) -> bool:
    try:
        side.events.get(timeout=seconds)
    except queue.Empty:
        return True
    return False


def works(first: First, step: Step, ways: tuple[proof.Way, ...] = (KEY,)) -> None:
    """The real other node gets through, and the answer to it."""
    other = Other(step, ways, b'"card"')
    try:
        assert event(first) == Event(1, "card", b'"card"')
        first.answer(b'"answer"')
        assert event(other) == Event(0, "answer", b'"answer"')
    finally:
        other.close()


def test_a_card_an_answer_and_ends_cross(steps: tuple[Step, Step]) -> None:
    first, other = First(steps[0], [KEY]), Other(steps[1], [KEY], b"card")
    assert event(first) == Event(1, "card", b"card")
    first.answer(b"answer")
    assert event(other) == Event(0, "answer", b"answer")
    other.tell(b"my end")
    assert event(first) == Event(1, "end", b"my end")
    first.tell(b"your end")
    assert event(other) == Event(0, "end", b"your end")
    other.close()
    assert event(first) == Event(1, "gone")
    first.close()


def test_the_other_node_may_be_there_before_the_first(steps: tuple[Step, Step]) -> None:
    other = Other(steps[1], [KEY], b"card")
    told = event(other)
    assert (told.kind, told.data) == ("cannot", b"Connection refused")
    first = First(steps[0], [KEY])
    assert event(first).kind == "card"
    first.close()
    other.close()


@pytest.mark.parametrize("held", [1, 8])
def test_taken_ports_are_passed_over(steps: tuple[Step, Step], held: int) -> None:
    with ExitStack() as stack:
        for port in steps[0].ports[:held]:
            stack.enter_context(socket.create_server(("", port)))
        first = First(steps[0], [KEY])
        stack.callback(first.close)
        assert first.port == steps[0].ports[held]


def test_no_port_at_all(steps: tuple[Step, Step]) -> None:
    with ExitStack() as stack:
        for port in steps[0].ports:
            stack.enter_context(socket.create_server(("", port)))
        with pytest.raises(OSError, match="in use"):
            First(steps[0], [KEY])


def test_a_wrong_secret_is_refused_and_changes_nothing(first: First, steps: tuple[Step, Step]) -> None:
    stranger = Other(steps[1], [OTHER_KEY], b"forged")
    told = event(stranger)
    assert told.kind == "cannot"
    assert b"the proof by secret was refused" in told.data
    stranger.close()
    assert silent(first)
    works(first, steps[1])


def test_a_first_node_with_a_wrong_secret_gets_no_card(steps: tuple[Step, Step]) -> None:
    """Somebody else took the port first: the other node goes on to where the real one listens."""
    stranger = First(steps[0], [OTHER_KEY])
    first = First(steps[0], [KEY])
    assert (stranger.port, first.port) == tuple(steps[0].ports[:2])
    works(first, steps[1])
    assert silent(stranger)
    stranger.close()
    first.close()


def test_nodes_of_another_step_are_passed_over(steps: tuple[Step, Step]) -> None:
    """Steps whose numbers lead to the same ports."""
    elsewhere = Step(job_id=steps[0].job_id + 25 * 200, step_id=0, node=0, names=steps[0].names)
    assert elsewhere.ports == steps[0].ports
    neighbour, first = First(elsewhere, [KEY]), First(steps[0], [KEY])
    works(first, steps[1])
    assert silent(neighbour)
    neighbour.close()
    first.close()


def claim(**changes: object) -> Callable[[str, Step], bytes]:
    """A claim as the real node would make it, with changes."""

    def make(nonce: str, step: Step) -> bytes:
        own, _ = proof.texts(step.key, step.node, nonce, "n" * 32)
        fields = {"node": step.node, "nonce": "n" * 32, "way": "secret", "proof": KEY.prove(own)} | changes
        body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
        return struct.pack("!I", len(body)) + body

    return make


STRANGE: dict[str, Callable[[str, Step], bytes]] = {
    "nothing": lambda nonce, step: b"",
    "HTTP": lambda nonce, step: b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": lambda nonce, step: bytes(4096),
    "a huge length": lambda nonce, step: struct.pack("!I", 1 << 30),
    "half a message": lambda nonce, step: claim()(nonce, step)[:-5],
    "no JSON": lambda nonce, step: struct.pack("!I", 3) + b"\xff\xfe{",
    "an empty proof": claim(proof=""),
    "a proof of other letters": claim(proof="é" * 64),
    "the first node's own number": claim(node=0),
    "a node that there is not": claim(node=2),
    "a negative node": claim(node=-1),
    "a node of another type": claim(node="1"),
    "an unknown way": claim(way="none"),
    "one field too many": claim(also=1),
    "no nonce": claim(nonce=None),
    "a proof for another nonce": claim(nonce="m" * 32),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange_words_change_nothing(what: str, first: First, steps: tuple[Step, Step]) -> None:
    with socket.create_connection(("127.0.0.1", first.port)) as stranger:
        stranger.settimeout(5)
        greeting = json.loads(stranger.recv(4096)[4:])
        stranger.sendall(STRANGE[what](greeting["nonce"], steps[1]))
        with suppress(OSError):  # it may have been thrown out already
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b"", "closed without a word"
    assert silent(first, 0.1)
    works(first, steps[1])


def test_a_replayed_claim_is_refused(first: First, steps: tuple[Step, Step]) -> None:
    with socket.create_connection(("127.0.0.1", first.port)) as node:
        recorded = claim()(json.loads(node.recv(4096)[4:])["nonce"], steps[1])
        node.sendall(recorded)
        assert len(node.recv(4096)) > 4, "the real one is answered"
    with socket.create_connection(("127.0.0.1", first.port)) as stranger:
        stranger.recv(4096)
        stranger.sendall(recorded)
        stranger.settimeout(5)
        assert stranger.recv(1) == b""


def taken(stranger: socket.socket) -> int:
    """Bytes of a gigabyte that go off before the other side ends it."""
    block, sent = bytes(1 << 20), 0
    with suppress(ConnectionResetError, BrokenPipeError):
        while sent < 1 << 30:
            stranger.sendall(block)
            sent += len(block)
    return sent


def test_a_gigabyte_is_not_taken(first: First, steps: tuple[Step, Step]) -> None:
    """Neither before the proof nor, from a node gone mad, after it."""
    for proven in (False, True):
        with socket.create_connection(("127.0.0.1", first.port)) as stranger:
            stranger.settimeout(5)
            nonce = json.loads(stranger.recv(4096)[4:])["nonce"]
            if proven:
                stranger.sendall(claim()(nonce, steps[1]))
                stranger.recv(4096)
            stranger.sendall(struct.pack("!I", 1 << 30))
            assert taken(stranger) <= 4 * CARD_BYTES, "what the kernel buffers, no more"
    assert silent(first, 0.1)
    works(first, steps[1])


def test_many_silent_strangers_hold_nobody_up_for_long(first: First, steps: tuple[Step, Step]) -> None:
    with ExitStack() as stack:
        for _ in range(70):
            stack.enter_context(socket.create_connection(("127.0.0.1", first.port)))
        started = time.monotonic()
        other = Other(steps[1], [KEY], b"card")
        assert event(first, 12).kind == "card"
        assert time.monotonic() - started < 12
        other.close()


# -- ways to prove ----------------------------------------------------------------------------------------------------


def home(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), **more}


def names(found: proof.Ways) -> list[str]:
    return [way.name for way in found.ways]


def test_a_file_is_made_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no munge
    found = proof.ways(home(tmp_path))
    path = proof.secret_file(home(tmp_path))
    assert names(found) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert proof.ways(home(tmp_path)).ways == found.ways, "the same key for who comes later"
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("what", ["readable", "short", "link", "no folder"])
def test_an_unsafe_file_is_not_used(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = proof.secret_file(home(tmp_path))
    if what == "no folder":
        (tmp_path / ".local").write_text("")
    else:
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(31 if what == "short" else 32))
        path.chmod(0o640 if what == "readable" else 0o600)
        if what == "link":
            path.rename(path.with_name("real"))
            path.symlink_to("real")
    found = proof.ways(home(tmp_path))
    assert names(found) == []
    assert len(found.missing) == 3
    assert str(path) in found.missing[2]


def test_a_secret_must_be_long_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert names(proof.ways(home(tmp_path, NVRUN_SECRET="s" * 16))) == ["secret", "file"]
    assert "NVRUN_SECRET has fewer than 16 characters" in proof.ways(home(tmp_path, NVRUN_SECRET="s" * 15)).missing


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_munge_that_does_not_answer_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("munge", "unmunge"):
        (tmp_path / name).write_text("#!/bin/bash\nexit 6\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = proof.ways(home(tmp_path))
    assert names(found) == ["file"]
    assert "munge does not answer" in found.missing
