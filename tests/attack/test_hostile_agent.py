"""A host whose agent answers with something else: nvrun names it, exits 69, and neither crashes nor waits."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.agent import wire
from nvrun.fleet import replies

EVIL = Path(__file__).with_name("evil.py")
ROOT = Path(__file__).parents[2]

ANSWERS = [
    ("hello", "message([])"),
    ("hello", "message({'t': 'hello'})"),
    ("hello", "message({name: told for name, told in GOOD['hello'].items() if name != 'cpus'})"),
    ("hello", "message({**GOOD['hello'], 'addresses': [['eth0', '../../etc']]})"),
    ("hello", "message(b'[' * 200_000)"),
    ("hello", 'message(b\'{"t":"hello","hostname":"\\\\ud800"}\')'),
    ("pong", "message({'t': 'pong', 'time': 'noon'})"),
    ("pong", 'message(b\'{"t":"pong","time":NaN}\')'),
    ("pong", "message({'t': 'end', 'rank': -1})"),
    ("prepared", "message({'t': 'prepared', 'folder': 7, 'shared': 0, 'port': 'x'})"),
    ("prepared", "b''.join(wire.STX + b'0000j+' + b'x' * 900 + bytes([10]) for _ in range(100_000))"),
    ("prepared", "b''.join(wire.STX + b'0000e.' + b'no rank' + bytes([10]) for _ in range(3))"),
]


def nvrun(tmp_path: Path, at: str, what: str, *flags: str) -> tuple[subprocess.CompletedProcess[str], float]:
    rsh = shlex.join([sys.executable, str(EVIL), at, what])
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "nvrun", "--hosts", "evil", "--rsh", rsh, *flags, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, time.monotonic() - started


@pytest.mark.parametrize(("at", "what"), ANSWERS)
def test_what_is_no_answer_costs_that_host(tmp_path: Path, at: str, what: str) -> None:
    done, seconds = nvrun(tmp_path, at, what)
    assert done.returncode == 69, done.stderr
    assert "Traceback" not in done.stderr
    assert "evil" in done.stderr
    assert "not understood" in done.stderr
    assert seconds < 20


def test_facts_that_are_none_are_facts_that_are_missing(tmp_path: Path) -> None:
    answer = "message({'t': 'facts', 'result': {'gpus': 3}, 'trouble': ''})"
    done, seconds = nvrun(tmp_path, "facts", answer, "--lost-after", "3")
    assert done.returncode == 78, done.stderr
    assert "Traceback" not in done.stderr
    assert "checks could not judge" in done.stderr
    assert "nothing could be read of it: not understood: " in done.stderr
    assert seconds < 30


def test_what_an_agent_says_commands_no_terminal(tmp_path: Path) -> None:
    """Its reasons, names and ids, where nvrun quotes them."""
    evil = r"\u001b]0;owned\u0007\u001b[2J\u009b5n"
    answers = {
        "pong": f'message(b\'{{"t":"cannot","code":"host-no-folder","why":"x{evil}"}}\')',
        "prepared": f'message(b\'{{"t":"failed","at":"y{evil}","why":"x{evil}"}}\')',
    }
    for at, what in answers.items():
        done, _ = nvrun(tmp_path, at, what, "--check", "off", "--grace", "1")
        assert done.returncode in (70, 78), done.stderr
        assert "x" in done.stderr
        assert not set("\x1b\x07\x9b") & set(done.stderr + done.stdout), (at, done.stderr)


NESTED = st.recursive(
    st.none() | st.text(max_size=5), lambda each: st.lists(each) | st.dictionaries(st.just("t"), each)
)


@given(st.binary(max_size=200) | NESTED.map(json.dumps).map(str.encode))
def test_a_message_is_read_or_refused_in_words(payload: bytes) -> None:
    try:
        body = replies.read(payload)
    except ValueError:
        return
    assert isinstance(body["t"], str)


def test_many_unfinished_messages_have_one_limit() -> None:
    reader = wire.Reader(limit=10_000)
    flood = b"".join(wire.STX + b"%04xj+\n" % host for host in range(1000))
    with pytest.raises(ValueError, match="10000 bytes"):
        list(reader.feed(flood))


def test_finished_messages_leave_the_limit() -> None:
    reader = wire.Reader(limit=10_000)
    for _ in range(1000):
        assert list(reader.feed(wire.message(3, {"t": "listening"})))
