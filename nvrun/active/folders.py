"""Tokens in folders that are to be shared, and ssh between hosts, as a conversation with the agents."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping, Sequence

from nvrun.active import schedule
from nvrun.active.clock import Clock
from nvrun.checks.blame import Edge
from nvrun.checks.shared import Token
from nvrun.fleet.crew import Crew
from nvrun.fleet.session import Body
from nvrun.model import Host

_LOOK_SECONDS = 8.0
"""What a folder has to answer: three looks, and a file server that is slow."""
_SSH_SECONDS = 10.0
_SSH_MESH = 16
"""Up to so many hosts each logs in to all others; above it along shifts."""
_MARGIN = 5.0


def share(crew: Crew, paths: Sequence[str], cwd: str, clock: Clock) -> dict[str, tuple[Token, ...]]:
    """Folder -> its tokens. A second host leaves one where nobody saw the first host's."""
    found: dict[str, tuple[Token, ...]] = {}
    for path in paths:
        if clock.left <= 0:
            break
        full = path if path.startswith("~") else posixpath.normpath(posixpath.join(cwd, path))
        tokens = [_token(crew, full, 0)]
        if len(crew.hosts) > 2 and not any(tokens[0].seen.values()):
            tokens.append(_token(crew, full, 1))
        found[path] = tuple(tokens)
    return found


def _token(crew: Crew, path: str, writer: int) -> Token:
    request = {"path": path, "token": secrets.token_hex(8)}
    name = crew.names[writer]
    try:
        left = _ask(crew, "stand", {writer: request}, _LOOK_SECONDS)[writer]
        trouble = left["trouble"] or left["result"]["error"]
        if trouble:
            return Token(path=path, writer=name, trouble=trouble)
        others = [host for host in crew.hosts if host != writer]
        answers = _ask(crew, "test", dict.fromkeys(others, request), _LOOK_SECONDS)
    finally:
        crew.send({"t": "release", "test": "token"}, to=[writer])
    why = {
        crew.names[host]: trouble
        for host, body in answers.items()
        if (trouble := body["trouble"] or body["result"]["error"])
    }
    seen = {crew.names[host]: body["result"]["seen"] for host, body in answers.items() if crew.names[host] not in why}
    return Token(path=path, writer=name, seen=seen, troubles=why)


def log_in(crew: Crew, hosts: Sequence[Host]) -> dict[Edge, str]:
    """From a host to another -> "" or ssh's last words."""
    peers: dict[int, list[Body]] = {}
    for source, target in schedule.mesh(list(crew.hosts), _SSH_MESH):
        host = hosts[target]
        peers.setdefault(source, []).append({"name": host.name, "user": host.user, "port": host.port})
    most = max((len(theirs) for theirs in peers.values()), default=0)
    requests = {source: {"peers": theirs, "seconds": _SSH_SECONDS} for source, theirs in peers.items()}
    answers = _ask(crew, "test", requests, _SSH_SECONDS * (1 + most // 8), test="ssh")
    found: dict[Edge, str] = {}
    for source, body in answers.items():
        said: Mapping[str, str] = body["result"] or {}
        otherwise: str = body["trouble"] or "not tried"
        for peer in peers[source]:
            found[crew.names[source], peer["name"]] = said.get(peer["name"], otherwise)
    return found


def _ask(crew: Crew, kind: str, requests: Mapping[int, Body], seconds: float, test: str = "token") -> dict[int, Body]:
    bodies = {
        host: {"t": kind, "test": test, "request": request, "deadline": seconds, "answer": test}
        for host, request in requests.items()
    }
    return {host: body for host, (body, _) in crew.ask(bodies, test, seconds + _MARGIN).items()}
