"""How two nvruns of the same user prove to each other who they are, without a secret ever crossing.

munge, bound to the user's id, where its daemon answers (every node of a Slurm cluster with auth/munge has one); else
NVRUN_SECRET; else a file of the user's alone in the home folder that the nodes share. With the two latter the proof is
an HMAC-SHA256 over what both sides contributed to.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from nvrun import xdg

SECRET = "NVRUN_SECRET"
SHORTEST = 16
"""Characters of NVRUN_SECRET: a shorter one can be guessed from one recorded proof."""
_MUNGE_SECONDS = 5.0
_FILE_BYTES = 32


class Way(Protocol):
    """One way to prove."""

    @property
    def name(self) -> str:
        """`munge`, `secret` or `file`."""

    def prove(self, text: str) -> str:
        """A proof that this user said `text`."""

    def holds(self, text: str, proof: str) -> bool:
        """Whether `proof` is one for `text`, by this very user."""


class Ways(NamedTuple):
    """What can be used here, the best first, and why the others cannot."""

    ways: tuple[Way, ...]
    missing: tuple[str, ...]


class Shared(NamedTuple):
    """A key that both sides have."""

    name: str
    key: bytes

    def prove(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def holds(self, text: str, proof: str) -> bool:
        return hmac.compare_digest(self.prove(text).encode(), proof.encode(errors="replace"))


class Munge(NamedTuple):
    """munge's credentials: made for this user's eyes, and telling who made them."""

    uid: int
    name: str = "munge"

    def prove(self, text: str) -> str:
        return _run(["munge", f"--restrict-uid={self.uid}"], text) or ""

    def holds(self, text: str, proof: str) -> bool:
        told = _run(["unmunge", "--keys=UID"], proof)  # fails for a forged, an expired and a replayed one
        head, _, payload = (told or "").partition("\n\n")
        uid = re.fullmatch(r"UID:.*\(([0-9]+)\)", head.strip())
        return uid is not None and int(uid[1]) == self.uid and hmac.compare_digest(payload, text)


def ways(environ: Mapping[str, str]) -> Ways:
    """Makes the file where there is none yet."""
    found: list[Way] = []
    missing: list[str] = []
    uid = os.geteuid()
    if not shutil.which("munge") or not shutil.which("unmunge"):
        missing.append("munge is not installed")
    elif not Munge(uid).prove("?"):
        missing.append("munge does not answer")
    else:
        found.append(Munge(uid))
    secret = environ.get(SECRET, "")
    if len(secret) >= SHORTEST:
        found.append(Shared("secret", secret.encode()))
    else:
        missing.append(f"{SECRET} has fewer than {SHORTEST} characters" if secret else f"{SECRET} is not set")
    path = secret_file(environ)
    try:
        found.append(Shared("file", _file_key(path)))
    except OSError as error:
        missing.append(f"{path}: {error.strerror or error}")
    return Ways(tuple(found), tuple(missing))


def secret_file(environ: Mapping[str, str]) -> Path:
    return xdg.state(environ) / "secret"


def _file_key(path: Path) -> bytes:
    """The file's key, or a new one: nodes that make it at once agree on the first. OSError where it is not safe."""
    for tries_left in (1, 0):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                status = os.fstat(file.fileno())
                key = file.read(_FILE_BYTES + 1)
            break
        except FileNotFoundError:
            if not tries_left:
                raise
            _make(path)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError("others can read it, or it is not yours (chmod 600)")
    if len(key) != _FILE_BYTES:
        raise OSError(f"expected {_FILE_BYTES} bytes; remove it, and a new one is made")
    return key


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent)  # 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_FILE_BYTES))
        os.link(part, path)  # whole or not at all, and only for the first
    except FileExistsError:
        return
    finally:
        Path(part).unlink()


def _run(argv: list[str], text: str) -> str | None:
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_MUNGE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeError):
        return None
    return done.stdout if done.returncode == 0 else None


def nonce() -> str:
    return secrets.token_hex(16)


def texts(step: str, node: int, first_nonce: str, other_nonce: str) -> Iterator[str]:
    """What the other node proves, then what the first one proves: each holds for one meeting and one side only."""
    for side in ("other", "first"):
        yield f"nvrun gathering 1\n{side}\nstep {step}\nnode {node}\n{first_nonce}\n{other_nonce}\n"
