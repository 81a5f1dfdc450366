"""The run's folder as this host sees it: the launcher's own where the file system is shared, else a private one."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Callable, Iterator, List, NamedTuple, Tuple

TOKEN = ".token"
ENDS = "ends.jsonl"
"""Beside a host's logs: how each of its ranks ended, in a line each, as the launcher was told."""


class Folder(NamedTuple):
    """Where this host's logs go."""

    path: str
    shared: bool
    """True where the launcher reads the very same folder; then nothing is fetched and nothing removed."""


def prepare(run_folder: str, token: str, name: str, run_id: str, node: int) -> Folder:
    """The folder `logs/<name>` of the run where `token` proves that it is shared, else one of this host's own.

    Raises OSError with a reason in words where neither can be made.
    """
    if _reads(os.path.join(run_folder, TOKEN), token):
        path = os.path.join(run_folder, "logs", name)
        try:
            os.makedirs(path, exist_ok=True)
            return Folder(path, True)
        except OSError:
            pass  # readable but not writable here (root squash, read-only mount): a private folder serves as well
    return Folder(_private(run_id, node), False)


def place() -> str:
    """`${TMPDIR:-/tmp}/nvrun-UID`, whether it is there or not."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", "nvrun-%d" % os.getuid())


def base() -> str:
    """`place`, made if need be, refused if it is not this user's alone."""
    path = place()
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError("%s is not a folder of this user's alone (owner %d, mode %o)"
                      % (path, found.st_uid, stat.S_IMODE(found.st_mode)))  # fmt: skip
    return path


def in_base(make: Callable[[str], str]) -> str:
    """What `make` makes in `base`: again where another run of this user, at its end, took the empty folder away."""
    for _ in range(20):
        with contextlib.suppress(FileNotFoundError):
            return make(base())
    return make(base())


def _private(run_id: str, node: int) -> str:
    # The node is part of the name: hosts may share a /tmp (containers of one machine, network namespaces).
    def make(parent: str) -> str:
        path = os.path.join(parent, "%s.%d" % (run_id, node))
        os.mkdir(path, 0o700)
        return path

    return in_base(make)


def _reads(path: str, token: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    with open(fd, "rb") as file:
        return file.read(256) == token.encode()


def files(folder: Folder) -> Iterator[Tuple[str, str, str]]:
    """(path relative to the folder, absolute path, "") of each regular file; links are never followed. With a reason in
    place of "": of what cannot be looked at, a folder too."""
    hidden: List[OSError] = []
    for parent, _, names in os.walk(folder.path, onerror=hidden.append):
        for name in sorted(names):
            path = os.path.join(parent, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield os.path.relpath(path, folder.path), path, ""
            except OSError as error:
                hidden.append(error)
    for each in hidden:
        if not isinstance(each, FileNotFoundError):  # somebody removed it meanwhile
            yield os.path.relpath(each.filename, folder.path), each.filename, str(each.strerror)


def remove(folder: Folder) -> None:
    """Removes a private folder, and its parent if that is empty then."""
    if folder.shared:
        return
    import shutil  # brings tarfiles' compressors along

    shutil.rmtree(folder.path)
    with contextlib.suppress(OSError):  # another run of this user's lives there
        os.rmdir(os.path.dirname(folder.path))
