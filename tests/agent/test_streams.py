"""Output of a rank: all of it in the file, whole lines on the console."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.agent.streams import LINE_BYTES, PROGRESS_SECONDS, Lines, Stream


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(*pieces: bytes) -> tuple[list[tuple[bytes, bool]], int]:
    """The lines of a stream that comes in these pieces at one moment, and the bytes cut."""
    lines = Lines(Clock())
    found = [line for piece in pieces for line in lines.feed(piece)]
    return [*found, *lines.end()], lines.cut_bytes


def test_lines_are_whole() -> None:
    assert shown(b"one\ntw", b"o\n\nthree") == ([(b"one", False), (b"two", False), (b"", False), (b"three", False)], 0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"a\rb\rc\n", b"c"),
        (b"windows\r\n", b"windows"),
        (b"\r 50%\r100%\r\n", b"100%"),
        (b"100%\r   \r\n", b"100%"),
        (b"\r\r\n", b""),
    ],
)
def test_of_a_bar_its_last_state_stays(text: bytes, line: bytes) -> None:
    assert Lines(Clock()).feed(text).__next__() == (line, False)


def test_a_bar_is_shown_now_and_then() -> None:
    clock = Clock()
    lines = Lines(clock)
    assert list(lines.feed(b"\r 1%")) == [(b" 1%", True)]
    assert list(lines.feed(b"\r 2%")) == []
    clock.now += PROGRESS_SECONDS
    assert list(lines.feed(b"\r 3%")) == [(b" 3%", True)]
    assert list(lines.feed(b"\r100%\n")) == [(b"100%", False)]


def test_a_line_that_never_ends_is_cut_and_counted() -> None:
    found, cut = shown(*[b"y" * 100_000] * 40, b"tail\nnext\n")
    assert found == [(b"y" * LINE_BYTES, False), (b"next", False)]
    assert cut == 4_000_000 + 4 - LINE_BYTES


def test_a_long_line_in_one_piece_is_cut_the_same() -> None:
    assert shown(b"y" * 200_000 + b"\n") == ([(b"y" * LINE_BYTES, False)], 200_000 - LINE_BYTES)


@pytest.mark.parametrize("piece", [b"\r" + b"#" * 500, b"\r" + b"x" * 300_000])
def test_without_a_newline_little_is_kept(piece: bytes) -> None:
    lines = Lines(Clock())
    for _ in range(300):
        list(lines.feed(piece))
        assert len(lines._rest) <= LINE_BYTES


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=50)),
    st.lists(st.integers(0, 2000)),
)
def test_pieces_do_not_matter(texts: Sequence[str], cuts: Sequence[int]) -> None:
    data = b"".join(text.encode() + b"\n" for text in texts)
    ends = sorted(cut % (len(data) + 1) for cut in cuts)
    pieces = [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]
    found, cut = shown(*pieces)
    assert [line for line, _ in found] == [text.encode() if text.encode().strip() else b"" for text in texts]
    assert cut == 0


# ----------------------------------------------------------------------------------------------------------- the file


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(str(tmp_path / "rank0.out"), lambda line, progress: None)
    yield stream
    stream.close()


def test_the_file_has_every_byte(stream: Stream) -> None:
    data = bytes(range(256)) * 1000
    for _ in range(3):
        os.write(stream.write_end, data)
        stream.drain()
    stream.close_write_end()
    assert not stream.pump()
    assert Path(stream.path).read_bytes() == data * 3
    assert stream.lost_bytes == 0


def test_tail_is_readable(stream: Stream) -> None:
    os.write(stream.write_end, b"x" * 10_000 + b"\n" + b"".join(b"line %d\n" % i for i in range(30)) + b"\xff 1%\r 2%")
    stream.drain()
    assert stream.tail(3) == ["line 28", "line 29", " 2%"]
    stream.close_write_end()


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: as if the disk were full."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def test_what_the_disk_does_not_take_is_counted(stream: Stream) -> None:
    os.write(stream.write_end, b"z" * 50_000)
    stream.close_write_end()
    with file_limit(10_000):
        stream.drain()
    assert (stream.lost_bytes, stream.trouble) == (40_000, "EFBIG")
    assert stream.tail() == ["z" * 4096], "what was said at last, though the file has none of it"


def test_a_file_that_cannot_be_made_costs_its_bytes_only(tmp_path: Path) -> None:
    """A restarted rank on a full disk, or in a folder that the user has removed."""
    copy = tmp_path / "stdout.log"
    stream = Stream(str(tmp_path / "gone" / "rank0.1.out"), lambda line, progress: None, str(copy))
    os.write(stream.write_end, b"epoch 7\n")
    stream.drain()
    assert (stream.lost_bytes, stream.trouble) == (8, "ENOENT")
    assert copy.read_bytes() == b"epoch 7\n"
    assert stream.tail() == ["epoch 7"]
    stream.close_write_end()
    stream.close()


def test_the_tail_of_a_file_that_is_gone(stream: Stream) -> None:
    os.write(stream.write_end, b"Traceback\n")
    stream.drain()
    Path(stream.path).unlink()
    assert stream.tail() == ["Traceback"]
    stream.close_write_end()


def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "rank0.out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"rank0\.out"):
        Stream(str(tmp_path / "rank0.out"), lambda line, progress: None)
    assert not (tmp_path / "elsewhere").exists()
