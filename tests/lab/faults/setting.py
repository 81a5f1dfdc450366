"""What is odd about a host before a job starts: each a context manager over (lab, place), for the fault matrix."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.lab import faults
from tests.lab.lab import HOMES, USER, Lab, needed_paths

OTHER_PYTHON = ("--python", "/run/lab/python")
CLOCK = "/run/lab/clock"
OWN_CLOCK = ("env", *faults.clock_variables(CLOCK))
"""Starts a command whose wall clock is set by the file."""
_HOLDER = Path(__file__).parents[2] / "fleet" / "listener.py"


def old_python() -> str | None:
    """The oldest interpreter here that the agent runs on: 3.9 where there is one."""
    found = sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python"))
    return str(found[0]) if found else next(filter(None, map(shutil.which, ("python3.9", "python3.10"))), None)


@contextlib.contextmanager
def other_python(lab: Lab, place: Path) -> Iterator[None]:
    """One path that is this interpreter on a and an older one on b."""
    old = old_python()
    assert old is not None
    path = lab.path("a", OTHER_PYTHON[1])
    path.write_text(f'#!/bin/sh\n[ "$(hostname)" = b ] && exec {old} "$@"\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    try:
        yield
    finally:
        path.unlink()


@contextlib.contextmanager
def own_clock(lab: Lab, place: Path) -> Iterator[None]:
    """The clock of `OWN_CLOCK` is right at first."""
    lab.path("launcher", CLOCK).write_text("+0")
    yield


@contextlib.contextmanager
def slow_login(lab: Lab, place: Path) -> Iterator[None]:
    """b's sshd asks a directory service for keys, which takes its time."""
    keys = ("-o", "AuthorizedKeysCommandUser=root", "-o", "AuthorizedKeysCommand=/bin/sleep 3")
    with faults.other_sshd(lab, "b", *keys):
        yield


@contextlib.contextmanager
def crowded(lab: Lab, place: Path) -> Iterator[None]:
    """Somebody holds the one place for a login that b's sshd has, and others are dropped meanwhile."""
    holder: list[str | Path] = [sys.executable, _HOLDER, "hold", "b", "22", "0.5"]
    with faults.other_sshd(lab, "b", "-o", "MaxStartups=1:100:1"), lab.popen(holder) as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield


@contextlib.contextmanager
def noise(lab: Lab, place: Path) -> Iterator[None]:
    """A banner before the login, and a .bashrc that prints to both streams on every host."""
    text = "\x1b[31mAUTHORISED USE ONLY\n" * 20
    (place / "banner").write_text(text)
    rc = lab.path("launcher", lab.home(USER)) / ".bashrc"
    before = rc.read_text() if rc.exists() else None
    rc.write_text("echo Welcome to the cluster; printf '\\002' ; echo 'quota: 97%' >&2; seq 1000\n")
    try:
        with faults.other_sshd(lab, "a", "-o", f"Banner={place}/banner"):
            yield
    finally:
        rc.unlink() if before is None else rc.write_text(before)


@contextlib.contextmanager
def no_home(lab: Lab, place: Path) -> Iterator[None]:
    """On b the folder in which homes lie is empty: the file server is away."""
    folder = str(Path(HOMES[USER]).parent)
    hide = ["mount", "-t", "tmpfs", "-o", "ro", "none", folder]
    with faults.changed(lab, ["b"], hide, ["umount", "--lazy", folder]):
        yield


@contextlib.contextmanager
def noexec(lab: Lab, place: Path) -> Iterator[None]:
    """b lets nothing in /tmp be executed, but for the checkout and its interpreter where they lie there."""
    kept = [path for path in needed_paths() if Path("/tmp") in Path(path).parents]
    script = """
        mount --bind /tmp /tmp; mount -o remount,bind,noexec /tmp
        for path; do mount --bind "$path" "$path"; mount -o remount,bind,exec "$path"; done
    """
    with faults.changed(lab, ["b"], ["sh", "-ec", script, "sh", *kept], ["umount", "--lazy", "/tmp"]):
        yield
