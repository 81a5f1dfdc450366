"""A run's folder -> one archive that can be sent to somebody: secrets masked, links not followed, bounded in size.

Each file is opened folder by folder from the run's own, and is never a link: nothing from outside comes along, whoever
changes the folder meanwhile.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from nvrun.agent.folder import TOKEN
from nvrun.errors import UsageError
from nvrun.mask import Mask, secret_values, secrets
from nvrun.records import to_json

END = 4 << 20
"""Bytes of a text that are kept of its beginning, and as many of its end."""
WHOLE = 64 << 20
"""Bytes, unpacked, of a file that makes sense only as a whole (JSON, a trace, a dump); a longer one is left out."""
ALL = 512 << 20
"""Bytes of all files together, as they go in; what is over that, the largest files, is left out."""
_TREE = 16 << 20
"""Bytes of JSON up to which it is masked by its structure; a longer one as text."""
LIST = "bundle.json"
_RECORDS = ("plan.json", "request.json", "facts.json")
"""Where variables stand with their names."""
_MADE_ANEW = ("report.html", "report-with-")
"""Pages that `nvrun report` makes of the rest, with megabytes of a library in them."""
_GZIP = b"\x1f\x8b"


class Packed(NamedTuple):
    """What an archive holds."""

    path: Path
    bytes: int
    """The archive's own size."""
    files: tuple[str, ...]
    notes: tuple[str, ...]
    """`FILE: what of it is not there, and why`."""


class _Read(NamedTuple):
    data: bytes | None
    """None for what is left out."""
    changed: float
    note: str = ""
    packed: bool = False
    """A .gz, whose content `data` is."""


def pack(folder: Path, archive: Path, *, more: Mapping[str, bytes], environ: Mapping[str, str]) -> Packed:
    """Writes `archive` (tar, gzip, mode 0600), whole or not at all. `more`: further files, by name. Values of variables
    that look secret in the run's records or in `environ` are masked wherever they stand. Raises UsageError where it
    cannot be written."""
    if archive.exists() and not archive.is_file():  # the archive would take its place: /dev/stdout's too
        raise UsageError(f"{archive}: no regular file", hint="--output FILE names another place")
    part = archive.with_name(f".{archive.name}.part")
    try:
        with suppress(FileNotFoundError):
            part.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(part, flags, 0o600), "wb") as file, _opened(folder) as root:
            names, notes = _fill(file, root, archive, more, environ)
        part.rename(archive)
        size = archive.stat().st_size
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise UsageError(f"{archive}: {error.strerror}", hint="--output FILE names another place") from None
    return Packed(archive, size, tuple(names), tuple(notes))


def _fill(
    file: BinaryIO, root: int, archive: Path, more: Mapping[str, bytes], environ: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    mask = Mask({*_secrets(root), *secret_values(environ)})
    top = archive.name.removesuffix(".tar.gz")
    names: list[str] = []
    notes: list[str] = []
    left = ALL
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:

        def add(name: str, data: bytes, changed: float) -> None:
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(changed), 0o600
            tar.addfile(entry, io.BytesIO(data))
            names.append(name)

        for name in _names(root, archive, notes):
            try:
                read = _read(root, name, left)
            except OSError as error:
                notes.append(f"{name}: not read: {error.strerror}")
                continue
            if read.note:
                notes.append(f"{name}: {read.note}")
            if read.data is not None:
                left -= len(read.data)
                add(name, _masked(name, read, mask), read.changed)
        now = os.fstat(root).st_mtime
        for name, data in more.items():
            add(name, _masked(name, _Read(data, now), mask), now)
        add(LIST, to_json({"files": names, "notes": notes}) + b"\n", now)
    return names, notes


# -- what is read ------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path | str, *, within: int | None = None, flags: int = os.O_DIRECTORY) -> Iterator[int]:
    follow = os.O_NOFOLLOW if within is not None else 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | follow | flags, dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _file(root: int, name: str) -> Iterator[BinaryIO]:
    """A regular file below `root`; OSError for anything else, and for a link on the way."""
    first, slash, rest = name.partition("/")
    if slash:
        with _opened(first, within=root) as inner, _file(inner, rest) as file:
            yield file
        return
    with _opened(first, within=root, flags=0) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "no regular file")
        with open(fd, "rb", closefd=False) as file:
            yield file


def _names(root: int, archive: Path, notes: list[str]) -> list[str]:
    """Files below `root` by their paths from there, the smallest first: many short records say more than one long
    log. What is not packed is said in `notes`."""
    found: list[tuple[int, str]] = []
    for parent, folders, names, at in os.fwalk(".", dir_fd=root, follow_symlinks=False):
        for name in sorted([*folders, *names]):
            path = str(Path(parent, name))
            state = os.stat(name, dir_fd=at, follow_symlinks=False)
            if stat.S_ISREG(state.st_mode):
                if path == TOKEN or name in (archive.name, f".{archive.name}.part"):
                    continue
                if path.startswith(_MADE_ANEW):
                    notes.append(f"{path}: left out: nvrun report makes it anew")
                else:
                    found.append((state.st_size, path))
            elif stat.S_ISLNK(state.st_mode):
                notes.append(f"{path}: left out: a link")
            elif not stat.S_ISDIR(state.st_mode):
                notes.append(f"{path}: left out: no regular file")
    return [name for _, name in sorted(found)]


def _read(root: int, name: str, left: int) -> _Read:
    with _file(root, name) as file:
        state = os.fstat(file.fileno())
        head = file.read(END)
        text = b"\0" not in head[:4096] and not head.startswith(_GZIP)
        if text and not name.endswith(".json"):
            return _ends(file, head, state.st_size, left, state.st_mtime)
        limit = min(WHOLE, left)
        if state.st_size > limit:
            return _Read(None, state.st_mtime, _left_out(state.st_size, left))
        data = head + file.read(limit - len(head))
    if not head.startswith(_GZIP):
        return _Read(data, state.st_mtime)
    unpacked = _unpacked(data, limit)
    note = f"left out: broken, or more than {limit >> 20} MiB when unpacked" if unpacked is None else ""
    return _Read(unpacked, state.st_mtime, note, packed=True)


def _ends(file: BinaryIO, head: bytes, size: int, left: int, changed: float) -> _Read:
    """A text, or its first and last lines: what it began with and what it ended with say most."""
    if min(size, 2 * END) > left:
        return _Read(None, changed, _left_out(size, left))
    if size <= 2 * END:
        return _Read(head + file.read(2 * END - len(head)), changed)
    file.seek(size - END)
    first, last = head[: head.rfind(b"\n") + 1] or head, file.read(END)
    last = last[last.find(b"\n") + 1 :] or last
    cut = size - len(first) - len(last)
    middle = b"\n[nvrun bundle: %d bytes are left out here]\n" % cut
    return _Read(first + middle + last, changed, f"{cut} of its {size} bytes are left out in the middle")


def _left_out(size: int, left: int) -> str:
    most = "the bundle is full" if left < WHOLE else f"more than {WHOLE >> 20} MiB"
    return f"left out: {size} bytes, {most}"


def _unpacked(data: bytes, limit: int) -> bytes | None:
    """All members of a .gz; None where it is broken, or longer than `limit` bytes."""
    parts: list[bytes] = []
    total = 0
    while data:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            part = unpacker.decompress(data, limit - total + 1)
        except zlib.error:
            return None
        total += len(part)
        if total > limit or not unpacker.eof:
            return None
        parts.append(part)
        data = unpacker.unused_data
    return b"".join(parts)


# -- what is hidden ----------------------------------------------------------------------------------------------------


def _secrets(root: int) -> Iterator[str]:
    for name in _RECORDS:
        with suppress(OSError, msgspec.DecodeError), _file(root, name) as file:
            yield from secrets(msgspec.json.decode(file.read(WHOLE)))


def _masked(name: str, read: _Read, mask: Mask) -> bytes:
    data = read.data or b""
    if b"\0" in data[:4096] or data.startswith(b"\x80"):
        hidden = mask.bytes(data)
    elif name.endswith(".json") and len(data) <= _TREE:
        try:
            hidden = to_json(mask.json(msgspec.json.decode(data))) + b"\n"
        except msgspec.DecodeError:
            hidden = mask.text(data)
    else:
        hidden = mask.text(data)
    if not read.packed:
        return hidden
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(hidden) + packer.flush()
