"""What of a rank's output reaches the terminal, and what happens when nobody reads."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nvrun import console
from nvrun.fleet.session import Console as Line

HARMLESS = re.compile(rb"(?:\x1b\[[0-9;]*m|[^\x00-\x08\x0a-\x1f\x7f])*")


def line(text: bytes, *, rank: int | None = 0, stderr: bool = False, progress: bool = False) -> Line:
    return Line(host=0, rank=rank, stderr=stderr, progress=progress, text=text)


class Reader:
    """Two pipes in place of stdout and stderr."""

    def __init__(self) -> None:
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        self.ends = (out, err)

    def read(self) -> tuple[bytes, bytes]:
        """All that was written, after the writer's close."""
        for end in self.ends:
            os.close(end)
        return read_all(self.out), read_all(self.err)


def read_all(fd: int) -> bytes:
    return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    os.close(reader.out)
    os.close(reader.err)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"loss 0.5\tlr 1e-3", b"loss 0.5\tlr 1e-3"),
        ("größer als 5 µm".encode(), "größer als 5 µm".encode()),
        (b"\x1b[31mred\x1b[0m", b"\x1b[31mred\x1b[0m\x1b[0m"),
        (b"\x1b[2J\x1b[1;1Hgone", b"gone"),
        (b"\x1b]0;title\x07text", b"text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", b"link"),
        (b"\x1bP+q544e\x1b\\", b""),
        (b"\x1b[6n\x1b[c\x1bc", b""),
        ("\u009b2Jtext".encode(), b"2Jtext"),
        (b"bell\x07 backspace\x08\x08 \x7f", b"bell backspace "),
        (b"forged\na:0: line", b"forgeda:0: line"),
    ],
)
def test_only_colour_passes(text: bytes, shown: bytes) -> None:
    assert console.plain(text) == shown


@given(
    st.binary() | st.lists(st.sampled_from([b"\x1b", b"[", b"]", b"3", b";", b"m", b"J", b"\x07", b"\\"])).map(b"".join)
)
@example(b"\x1b\x1b[2J")
@example(b"\x1b[31\x07m")
def test_nothing_else_can_pass(text: bytes) -> None:
    assert HARMLESS.fullmatch(console.plain(text))


def test_each_line_says_whose_it_is(reader: Reader) -> None:
    writer = console.Writer(["a"], *reader.ends, terminal=False)
    writer.offer(line(b"one"))
    writer.offer(line(b"two", rank=3, stderr=True))
    writer.offer(line(b"three", rank=None))
    writer.say("nvrun: a rank's last words: \x1b[2Jdone")
    writer.close()
    assert reader.read() == (b"a:0: one\na:torchrun: three\n", b"a:3: two\nnvrun: a rank's last words: done\n")


def test_a_bar_is_replaced_by_its_next_state_and_kept_above_other_lines(reader: Reader) -> None:
    writer = console.Writer(["a"], *reader.ends, terminal=True)
    for text in (b"10%", b"20%"):
        writer.offer(line(text, progress=True))
    writer.offer(line(b"a line", rank=1))
    writer.offer(line(b"30%", progress=True))
    writer.close()
    out, _ = reader.read()
    assert out == b"a:0: 10%\r\x1b[Ka:0: 20%\na:1: a line\na:0: 30%"


def test_a_bar_in_a_file_is_seldom_written(reader: Reader) -> None:
    writer = console.Writer(["a"], *reader.ends, terminal=False)
    for percent in range(100):
        writer.offer(line(b"%d%%" % percent, progress=True))
    writer.offer(line(b"100%"))
    writer.close()
    assert reader.read()[0] == b"a:0: 0%\na:0: 100%\n"
    assert writer.dropped == {}


def test_what_nobody_reads_is_dropped_and_counted(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PATIENCE", 0.3)
    monkeypatch.setattr(console, "QUEUE_BYTES", 1 << 20)
    writer = console.Writer(["a"], *reader.ends, terminal=False)
    started = time.monotonic()
    text = b"x" * 1000
    for _ in range(5000):
        writer.offer(line(text))
    assert time.monotonic() - started < 2.0, "offer waited for the reader"
    writer.flush()
    dropped = writer.dropped["a"]
    assert 5000 * 1000 - (1 << 16) <= dropped <= 5000 * 1000, "more than the pipe holds is said to be shown"
    writer.close()


def test_a_closed_stdout_does_not_silence_stderr(reader: Reader) -> None:
    os.close(reader.out)
    reader.out = os.open(os.devnull, os.O_RDONLY)
    writer = console.Writer(["a"], *reader.ends, terminal=False)
    writer.offer(line(b"to nobody"))
    writer.say("nvrun: the result")
    writer.close()
    assert reader.read()[1] == b"nvrun: the result\n"
