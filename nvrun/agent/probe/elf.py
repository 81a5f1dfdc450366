"""What the dynamic loader reads of a shared object: needed libraries, search paths; and the loader's cache.

Only headers are read, so that a library of a gigabyte costs as little as a small one. 64-bit little-endian ELF.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 1, 5, 15, 29
PT_LOAD, PT_DYNAMIC = 1, 2
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CHUNK = 1 << 20
_OVERLAP = 64
"""Bytes of a chunk that the next one repeats: no version text that is looked for is longer."""


class Dynamic(NamedTuple):
    """`rpath` is searched before LD_LIBRARY_PATH, `runpath` after it; `$ORIGIN` is not replaced yet."""

    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]


def dynamic(path: str) -> Dynamic:
    """The dynamic section; raises OSError, or ValueError where the file is not such an ELF file."""
    with open(path, "rb") as file:
        segments = _segments(file)
        table = next((data for kind, *data in segments if kind == PT_DYNAMIC), None)
        if table is None:
            raise ValueError(f"{path}: no dynamic section")
        offset, _, size = table
        file.seek(offset)
        tags = list(struct.iter_unpack("<qQ", file.read(size - size % 16)))
        strings = dict(tags).get(DT_STRTAB, 0)
        base = next(
            (strings - address + start for kind, start, address, length in segments
             if kind == PT_LOAD and address <= strings < address + length), strings,
        )  # fmt: skip

        def text(tag: int) -> list[str]:
            return [_string(file, base + value) for key, value in tags if key == tag]

        def folders(tag: int) -> tuple[str, ...]:
            return tuple(folder for entry in text(tag) for folder in entry.split(":") if folder)

        return Dynamic(tuple(text(DT_NEEDED)), folders(DT_RPATH), folders(DT_RUNPATH))


def chunks(path: str, section: str) -> Iterator[bytes]:
    """A section's content piece by piece, each beginning with the end of the last; raises as `dynamic` does."""
    with open(path, "rb") as file:
        header = _header(file)
        start, entry_size, count, names = header[6], header[11], header[12], header[13]
        file.seek(start)
        table = [struct.unpack("<IIQQQQIIQQ", file.read(entry_size)[:64]) for _ in range(count)]
        for entry in table:
            if _string(file, table[names][4] + entry[0]) == section:
                file.seek(entry[4])
                left, tail = entry[5], b""
                while left > 0:
                    data = file.read(min(_CHUNK, left))
                    if not data:
                        return
                    yield tail + data
                    left, tail = left - len(data), data[-_OVERLAP:]
                return


def cached(path: str = "/etc/ld.so.cache") -> dict[str, str]:
    """Library name -> path as ldconfig found them (the first of equal names, as the loader); {} where unreadable."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return {}
    start = data.find(CACHE_MAGIC)
    if start < 0 or len(data) < start + 48:
        return {}
    count = struct.unpack_from("<I", data, start + 20)[0]
    libraries: dict[str, str] = {}
    for index in range(min(count, (len(data) - start - 48) // 24)):
        key, value = struct.unpack_from("<II", data, start + 48 + 24 * index + 4)
        libraries.setdefault(_text(data, start + key), _text(data, start + value))
    return libraries


def _text(data: bytes, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode("utf-8", "replace")


def _header(file: BinaryIO) -> tuple[int, ...]:
    data = file.read(64)
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{file.name}: not a 64-bit little-endian ELF file")
    return (0, *struct.unpack("<HHIQQQIHHHHHH", data[16:]))


def _segments(file: BinaryIO) -> list[tuple[int, int, int, int]]:
    """(type, offset, address, size in the file) of each program header."""
    header = _header(file)
    start, size, count = header[5], header[9], header[10]
    file.seek(start)
    entries = [struct.unpack("<IIQQQQQQ", file.read(size)[:56]) for _ in range(count)]
    return [(entry[0], entry[2], entry[3], entry[5]) for entry in entries]


def _string(file: BinaryIO, offset: int) -> str:
    file.seek(offset)
    return file.read(4096).partition(b"\0")[0].decode("utf-8", "replace")
