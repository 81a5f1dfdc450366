"""Input that is small to write and large to read: nvrun in a process of its own, with little memory to be had."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from tests.fuzz.surfaces import ROOT

MEMORY = 1 << 30
"""Bytes of address space that nvrun may use."""
SECONDS = 300.0


class Bomb(NamedTuple):
    """One of them."""

    name: str
    write: Callable[[IO[bytes], int], None]
    """Writes so many megabytes, where it has a size."""
    argv: tuple[str, ...]
    """`{}` stands for the file."""
    codes: tuple[int, ...]
    megabytes: int = 0
    file: str = "bomb"


def _line(file: IO[bytes], megabytes: int) -> None:
    for _ in range(megabytes):
        file.write(b"gpu01:10:11 [0] NCCL INFO " * 40_000)


def _lines(file: IO[bytes], megabytes: int) -> None:
    for number in range(megabytes):
        file.write(b"gpu01:10:%d [0] NCCL WARN something went wrong %d\n" % (number, number) * 20_000)


def _packed(file: IO[bytes], megabytes: int) -> None:
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=9) as packed:
        _line(packed, megabytes)  # type: ignore[arg-type]


def _yaml(file: IO[bytes], megabytes: int) -> None:
    levels = ["a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    levels += [
        f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]" for below, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    file.write("\n".join(levels).encode())


def _nested(file: IO[bytes], megabytes: int) -> None:
    file.write(b"hosts: " + b"[" * 500_000)


def _xml(file: IO[bytes], megabytes: int) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 10}">' for n in range(12))
    file.write(f"<!DOCTYPE system [{entities}]><system>&e11;</system>".encode())


def _deep_xml(file: IO[bytes], megabytes: int) -> None:
    file.write(b"<system>" + b"<pci>" * 1_000_000)


def _json(file: IO[bytes], megabytes: int) -> None:
    file.write(b"[" * 10_000_000)


BOMBS = (
    Bomb("a log line without end, for nccl", _line, ("nccl", "{}"), (0, 1), 1000),
    Bomb("a log line without end, for diagnose", _line, ("diagnose", "{}"), (0, 1), 1000),
    Bomb("a log that repeats itself", _lines, ("diagnose", "{}"), (0, 1), 50),
    Bomb("a log that unpacks to a thousand times its size", _packed, ("diagnose", "{}"), (0, 1), 1000, "bomb.gz"),
    Bomb("aliases of aliases, nvrun.yaml", _yaml, ("hosts", "--config", "{}"), (2,)),
    Bomb("aliases of aliases, a preset", _yaml, ("presets", "show", "{}"), (2,), file="bomb.yaml"),
    Bomb("lists in lists, nvrun.yaml", _nested, ("hosts", "--config", "{}"), (2,)),
    Bomb("entities of entities, NCCL's XML", _xml, ("topo", "--topo", "{}"), (2,)),
    Bomb("elements in elements, NCCL's XML", _deep_xml, ("topo", "--topo", "{}"), (2,)),
    Bomb("lists in lists, facts", _json, ("plan", "--from", "{}", "t.py"), (2,)),
)  # fmt: skip


def explode(bomb: Bomb, folder: Path, megabytes: int) -> tuple[float, int]:
    """Seconds and peak resident memory in bytes. AssertionError where it was not told in words."""
    path = folder / bomb.file
    with open(path, "wb") as file:
        bomb.write(file, megabytes)
    path.chmod(0o600)
    argv = [sys.executable, "-m", "nvrun", *(word.format(path) for word in bomb.argv)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    began = time.monotonic()
    done = subprocess.run(argv, cwd=folder, env={"PYTHONPATH": str(ROOT), "HOME": str(folder), "PATH": "/usr/bin:/bin"},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
                          preexec_fn=_little_memory)  # fmt: skip
    seconds = time.monotonic() - began
    assert done.returncode in bomb.codes, (done.returncode, done.stdout[-500:], done.stderr[-500:])
    assert "Traceback" not in done.stderr, done.stderr[-500:]
    assert len(done.stdout) + len(done.stderr) < 64 << 10, "what is said is bounded"
    return seconds, max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10


def _little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
