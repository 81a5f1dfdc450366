"""The run's folder on the launcher: plan, request, result, and every rank's output.

nvrun-runs/20261129-151203-k3x9/      latest -> the newest of the user's programs
    plan.json  request.json  result.json
    logs/<host>/rank3.out  rank3.err  torchrun.out  torchrun.err  ends.jsonl
    attempts/0/                          the same of an attempt after which it began again on other hosts
nvrun-runs/bench/  nvrun-runs/tune/   rounds of these, with a `latest` of their own
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from nvrun import records, xdg
from nvrun.agent.folder import TOKEN
from nvrun.errors import NvrunError, UsageError
from nvrun.hosts.nodeset import fold
from nvrun.model import EndedBy, RunResult

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


def new_run_id(now: float) -> str:
    """`20261129-151203-k3x9`: UTC to the second, then four characters so that two runs of a second differ."""
    tail = "".join(secrets.choice(_ALPHABET) for _ in range(4))
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now)) + tail


def file_name(host: str) -> str:
    """A host's name as a folder's: whatever is not plain becomes `%xx`, so that no name leads out of the run folder."""
    name = re.sub(rb"[^A-Za-z0-9._-]", lambda found: b"%%%02x" % found[0][0], host.encode()).decode()
    return name if name.strip(".") else "%2e" * len(name)


class RunFolder:
    """One run's folder. Created at once."""

    def __init__(self, run_id: str, parent: Path) -> None:
        self.run_id = run_id
        self.path = parent / run_id
        self.token = secrets.token_hex(16)
        self._began = time.monotonic()
        self._open: dict[int, BinaryIO] = {}
        self.unfetched: dict[int, str] = {}
        """Host -> why a file of its could not be written here; of this attempt."""
        parent.mkdir(parents=True, exist_ok=True)
        ignore = parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        self.path.mkdir()
        self._begin()
        self._point_latest(parent)

    @property
    def seconds(self) -> float:
        """Since the folder was made. A clock that is set meanwhile changes nothing of it."""
        return time.monotonic() - self._began

    def write(self, name: str, data: bytes) -> None:
        """Writes a file whole or not at all, readable by the user alone: it may quote the environment. NvrunError where
        the disk or somebody who removed the folder does not allow it."""
        part = self.path / f".{name}.part"
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            part.rename(self.path / name)
        except OSError as error:
            raise NvrunError(
                f"{self.path / name} cannot be written: {error.strerror}", hint="--run-dir DIR names another place"
            ) from None

    def logs(self, host: str) -> Path:
        return self.path / "logs" / file_name(host)

    def begin_file(self, host: int, name: str, relative: str) -> None:
        """The next chunks of `host` (its id; `name` for the folder) belong to this file. Where it cannot be written,
        `unfetched` says why, and nothing more is taken from that host."""
        self.end_file(host)
        parts = [file_name(part) for part in PurePosixPath(relative).parts if part not in ("/", "..", ".")]
        path = self.logs(name).joinpath(*parts)
        with self._noting(host):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open[host] = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by end_file

    def append(self, host: int, data: bytes) -> None:
        """Bytes of the file that `host` announced; without one they belong nowhere and are dropped."""
        if host in self._open and host not in self.unfetched:
            with self._noting(host):
                rest = memoryview(data)
                while rest:
                    rest = rest[self._open[host].write(rest) :]

    def end_file(self, host: int) -> None:
        if host in self._open:
            self._open.pop(host).close()

    @contextmanager
    def _noting(self, host: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # a full disk, a folder that was removed: the job's own result must not be lost for it
            self.unfetched.setdefault(host, f"{error.filename or self.path}: {error.strerror}")

    @contextmanager
    def whatever_happens(self, started: float) -> Iterator[None]:
        """Where nvrun cannot go on, result.json says that and why; nobody would know how the run ended otherwise."""
        try:
            yield
        except NvrunError as error:
            by: EndedBy = "preflight" if isinstance(error, UsageError) else "internal"
            self.finish(
                RunResult(
                    run_id=self.run_id,
                    ended_by=by,
                    exit_code=error.exit_code,
                    started=started,
                    seconds=self.seconds,
                    message=error.message,
                )
            )
            raise

    def finish(self, result: RunResult) -> str:
        """Writes result.json; after this no host can prove that it shares the folder. Returns why that failed: how the
        job went does not depend on it."""
        for host in list(self._open):
            self.end_file(host)
        try:
            self.write("result.json", to_json(result))
        except NvrunError as error:
            return error.message
        (self.path / TOKEN).unlink(missing_ok=True)
        return ""

    def set_aside(self, attempt: int) -> Path:
        """Makes what an attempt left the folder of a run of its own, `attempts/N`, and begins anew. NvrunError where it
        cannot."""
        aside = self.path / "attempts" / str(attempt)
        try:
            aside.mkdir(parents=True)
            for each in list(self.path.iterdir()):
                if each.name != "attempts":
                    each.rename(aside / each.name)
            self._begin()
        except OSError as error:
            raise NvrunError(
                f"{error.filename or aside}: the next attempt has no place: {error.strerror}",
                hint="--run-dir DIR names another place",
            ) from None
        return aside

    def _begin(self) -> None:
        with open(os.open(self.path / TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.token)
        (self.path / "logs").mkdir()
        self.unfetched.clear()

    def _point_latest(self, parent: Path) -> None:
        link = parent / f".latest.{self.run_id}"
        link.symlink_to(self.run_id)
        try:
            link.rename(parent / "latest")
        except IsADirectoryError:  # somebody's own of that name
            link.unlink()


def note_hosts(folder: Path, hosts: Sequence[str], bad: Sequence[str]) -> None:
    """`good_hosts.txt`, a hostfile of those that are well; `bad_hosts.txt`, as --exclude takes it, where any is bad."""
    good = [host for host in hosts if host not in bad]
    with suppress(OSError):  # a full disk, a folder that was removed: `finish` has met it before and said so
        (folder / "good_hosts.txt").write_text("".join(f"{host}\n" for host in good))
        if bad:
            (folder / "bad_hosts.txt").write_text(f"{fold(bad)}\n")


def to_json(value: msgspec.Struct) -> bytes:
    return records.to_json(value) + b"\n"


def _refuse_strangers(folder: Path) -> None:
    """Where anybody may write (/tmp), a folder is used only if it is this user's alone; it is made here if need be.
    OSError where somebody else was there first: what lies in his folder is his to replace."""
    if not folder.parent.is_dir() or not folder.parent.stat().st_mode & stat.S_IWOTH:
        return
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(errno.EPERM, "not a folder of this user's alone", str(folder))


def _temp() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # it tries to write in each: every disk is full, or RLIMIT_FSIZE is 0
        return "/tmp"


def create(run_id: str, wanted: str | None, environ: Mapping[str, str], below: str = "") -> RunFolder:
    """The folder below `wanted`, else below ./nvrun-runs, else (not writable) below the user's state folder; in the
    folder `below` of that, where one is named."""
    if wanted:
        candidates = [Path(wanted).absolute()]
    else:
        user_temp = Path(_temp(), f"nvrun-runs-{os.getuid()}")
        candidates = [Path.cwd() / "nvrun-runs", xdg.state(environ) / "runs", user_temp]
    troubles = []
    for parent in candidates:
        try:
            if not wanted:
                _refuse_strangers(parent)
            return RunFolder(run_id, parent / below)
        except OSError as error:
            troubles.append(f"{parent}: {error.strerror}")
    raise UsageError(f"no place for the run's folder: {'; '.join(troubles)}", hint="--run-dir DIR names one")
