"""Starts the ranks of a collective test on this host and brings back what they say."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from typing import Any, Dict, List

from . import netcheck, procs
from .netserve import ephemeral_range
from .standing import Say, wait

_TAIL = 6


def hold(request: Dict[str, Any], say: Say, until: int) -> None:
    """Keeps a port free for the test's store, which can listen on it, until `until` can be read."""
    low, high = ephemeral_range()
    first = low + int.from_bytes(os.urandom(2), "big") % max(1, high - low - 64)
    holder, port = netcheck.hold_port(range(first, first + 64))
    say({"port": port})
    wait(until)
    holder.close()


def run(request: Dict[str, Any]) -> List[Dict[str, Any]]:
    """One entry a rank: `said`, the values it printed as JSON behind `mark`; `code`; `tail`, its last lines.

    A rank that has not ended after `seconds` is killed: `code` is None.
    """
    ranks = []
    for local in range(request["ranks"]):
        env = {
            **os.environ,
            **request["env"],
            "RANK": str(request["first"] + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(request["world"]),
            "MASTER_ADDR": request["address"],
            "MASTER_PORT": str(request["port"]),
        }
        ranks.append(
            subprocess.Popen(
                [request["python"], "-u", "-c", request["program"], json.dumps(request["what"])],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=_with_parent,  # this process has one thread, and the ranks must not outlive it
            )
        )
    output = _read([rank.stdout for rank in ranks], request["seconds"])
    found = []
    for rank, text in zip(ranks, output):  # noqa: B905 - Python 3.9
        code = rank.poll()
        if code is None:
            try:
                code = rank.wait(1.0)
            except subprocess.TimeoutExpired:
                rank.kill()
        lines = text.decode(errors="replace").splitlines()
        said = [json.loads(line[len(request["mark"]) :]) for line in lines if line.startswith(request["mark"])]
        others = [line for line in lines if line.strip() and not line.startswith(request["mark"])]
        found.append({"said": said, "code": code, "tail": others[-_TAIL:]})
    return found


def _with_parent() -> None:
    procs.set_pdeathsig(signal.SIGKILL)


def _read(streams: List[Any], seconds: float) -> List[bytes]:
    """All that comes until every stream has ended, for `seconds` at most."""
    parts: List[List[bytes]] = [[] for _ in streams]
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for number, stream in enumerate(streams):
            selector.register(stream, selectors.EVENT_READ, number)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                data = os.read(key.fd, 1 << 16)
                if data:
                    parts[key.data].append(data)
                else:
                    selector.unregister(key.fileobj)
    return [b"".join(part) for part in parts]
