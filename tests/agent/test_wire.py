"""Frames: small whatever they carry, whole whatever stands between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.agent import wire

hosts = st.integers(0, 0xFFFF)
payloads = st.binary(max_size=3000) | st.lists(st.sampled_from([b"\x1b", b"\n", b"\0", b"\x02", b"n", b"x" * 400])).map(
    b"".join
)
messages = st.tuples(hosts, st.sampled_from([wire.MESSAGE, wire.STDOUT, wire.STDERR]), payloads)
noise = st.lists(st.sampled_from([b"Welcome!", b"srun: warning", b"", b"\x1b[1m", b"x" * 1500]))


def read(data: bytes, cuts: Iterable[int] = (), limit: int = 1 << 20) -> tuple[list[tuple[int, bytes, bytes]], bytes]:
    """All that a reader yields when the bytes arrive in pieces, and what it took for noise."""
    reader = wire.Reader(limit)
    ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found: list[tuple[int, bytes, bytes]] = []
    begin = 0
    for end in ends:
        found += reader.feed(data[begin:end])
        begin = end
    return found, reader.noise


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 1 << 16), max_size=8))
def test_round_trip_in_any_pieces(sent: Sequence[tuple[int, bytes, bytes]], cuts: Sequence[int]) -> None:
    frames = [frame for host, stream, payload in sent for frame in wire.frames(host, stream, payload)]
    for frame in frames:
        assert len(frame) <= wire.FRAME_BYTES
        assert frame.count(b"\n") == 1
        assert not set(frame[1:-1]) & {0, 2}
    assert read(b"".join(frames), cuts) == (list(sent), b"")


@given(st.dictionaries(hosts, payloads, min_size=1, max_size=3), st.data())
def test_hosts_frames_may_be_mixed(sent: dict[int, bytes], data: st.DataObject) -> None:
    """srun merges the output of its tasks line by line."""
    left = {host: list(wire.frames(host, wire.MESSAGE, payload)) for host, payload in sent.items()}
    mixed = b""
    while any(left.values()):
        host = data.draw(st.sampled_from([host for host, frames in left.items() if frames]))
        mixed += left[host].pop(0)
    found, _ = read(mixed)
    assert {host: payload for host, _, payload in found} == sent


@given(payloads, noise)
def test_noise_is_kept_apart(payload: bytes, lines: Sequence[bytes]) -> None:
    banner = b"".join(line + b"\n" for line in lines)
    data = banner + b"".join(frame + banner for frame in wire.frames(7, wire.MESSAGE, payload))
    found, kept = read(data)
    assert found == [(7, wire.MESSAGE, payload)]
    assert len(kept) <= 16384
    for line in lines:
        assert line in kept


@pytest.mark.parametrize(
    "line", [b"\x02", b"\x020001j", b"\x02zzzzj.{}", b"\x020001j?{}", b"\x02" + b"A" * 5000, b"\x02-001j.x"]
)
def test_half_a_frame_is_noise(line: bytes) -> None:
    found, kept = read(line + b"\n" + wire.message(1, {"t": "beat"}))
    assert [payload for _, _, payload in found] == [b'{"t":"beat"}']
    assert line[-20:] in kept


def test_a_line_without_end_costs_no_memory() -> None:
    reader = wire.Reader()
    for _ in range(200):
        assert list(reader.feed(b"\x02" + b"A" * 10_000)) == []
    assert len(reader.noise) <= 16384
    assert len(reader._rest) <= wire.FRAME_BYTES


def test_a_message_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 4096 bytes"):
        read(b"".join(wire.frames(1, wire.MESSAGE, b"x" * 10_000)), limit=4096)


def test_a_file_comes_in_pieces_and_has_no_limit() -> None:
    content = bytes(range(256)) * 100
    found, _ = read(b"".join(wire.frames(1, wire.FILE, content)), limit=4096)
    assert len(found) > 1
    assert b"".join(payload for _, _, payload in found) == content
