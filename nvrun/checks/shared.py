"""Folders that are to be one on all hosts, and ssh between hosts, as the hosts tried them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nvrun.checks.blame import Edge, blame
from nvrun.checks.code import ERROR, declare
from nvrun.checks.compare import listed
from nvrun.hosts.nodeset import fold
from nvrun.model import Finding, Frozen

NOT_SHARED = declare(
    "path-not-shared",
    ERROR,
    "a folder that is to be one on all hosts is another one on some",
    read="a token that one host leaves in the folder and the others look for; it is removed at once",
    why="checkpoints, data or logs of one host are not seen by the others",
    remedy="mount the shared file system there: findmnt PATH on both hosts shows what is mounted",
    source="findmnt(8); nfs(5)",
)
NO_TOKEN = declare(
    "path-not-writable",
    ERROR,
    "nothing can be written to a folder that is to be shared",
    read="a token that a host leaves in the folder",
    why="checkpoints and logs cannot be written, and nothing tells whether the folder is shared",
    remedy="df -h PATH; df -i PATH; ls -ld PATH there: full, read-only, or another user's?",
    source="open(2)",
)
SSH = declare(
    "ssh-between-hosts",
    ERROR,
    "ssh from one host to another fails",
    read="ssh -o BatchMode=yes HOST true on each host, with --check-ssh-mesh",
    why="frameworks that start their own workers by ssh or mpirun hang or fail there",
    remedy="the user's key and known_hosts on that host: ssh -v HOST there shows which is missing",
    source="ssh(1), ssh_config(5): BatchMode",
)

_ABSENT = "No such file or directory"
"""path-missing has told that already (`paths_there`)."""


class Token(Frozen, frozen=True, kw_only=True):
    """One host's token in one folder."""

    path: str
    writer: str
    trouble: str = ""
    """Why the writer could not leave it."""
    seen: Mapping[str, bool] = {}
    """Other host -> whether it saw it."""
    troubles: Mapping[str, str] = {}
    """Other host -> why it could not look."""


def folders(tokens: Mapping[str, tuple[Token, ...]]) -> Iterator[Finding]:
    """Folder -> its tokens, of one host and, where hosts did not see it, of a second one that can tell who is right."""
    for path, left in tokens.items():
        for token in left:
            if token.trouble and token.trouble != _ABSENT:
                yield NO_TOKEN.found(
                    f"nothing can be written to {path}: {token.trouble}", host=token.writer, subject=path
                )
            for host, why in token.troubles.items():
                if why != _ABSENT:
                    yield NOT_SHARED.found(f"cannot look into {path}: {why}", host=host, subject=path)
        yield from _apart(path, [token for token in left if not token.trouble])


def _apart(path: str, left: list[Token]) -> Iterator[Finding]:
    if not left:
        return
    blind = [host for host, seen in left[0].seen.items() if not seen]
    if not blind:
        return
    remedy = NOT_SHARED.remedy.replace("PATH", path)
    if len(left) > 1 and len(blind) == len(left[0].seen) > 1:
        first, second = left[0], left[1]
        with_second = [host for host, seen in second.seen.items() if seen]
        if with_second and first.writer not in with_second:  # the first writer stands alone
            yield NOT_SHARED.found(
                f"{path} is not the folder that the others share", host=first.writer, subject=path, remedy=remedy
            )
            blind = [host for host in blind if host != second.writer and host not in with_second]
        elif not with_second:
            yield NOT_SHARED.found(f"{path} is another folder on every host", subject=path, remedy=remedy)
            return
    for host in blind:
        yield NOT_SHARED.found(
            f"{path} is not the folder that {left[0].writer} has", host=host, subject=path, remedy=remedy
        )


def ssh_mesh(answers: Mapping[Edge, str]) -> Iterator[Finding]:
    """From a host to another -> "" or ssh's last words."""
    for found in blame(answers):
        target = found.targets[0]
        what = {
            "in": "no other host can log in here",
            "out": "cannot log in to " + ("any other host" if len(found.edges) > 1 else target),
            "both": "no ssh from it or to it",
            "all": "no host can log in to any other",
            "pair": f"{fold(found.sources)} cannot log in to {listed(found.targets)}",
        }[found.kind]
        yield SSH.found(f"{what}: {found.answer}", host=found.host, subject="ssh", observed=found.answer)
