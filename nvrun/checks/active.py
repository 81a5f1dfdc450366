"""Tests between hosts by name, as `Verdict.judged` and `Skipped.code` have them, for the list and the checklist."""

from __future__ import annotations

from typing import NamedTuple

from nvrun.checks import collectives, connections, rendezvous, shared
from nvrun.checks.code import Code


class Active(NamedTuple):
    """One test that hosts make with each other."""

    name: str
    what: str
    """What holds where nothing is found."""
    codes: tuple[Code, ...]
    how: str
    """What asks for it."""


_REACHED = (
    rendezvous.DROPPED,
    rendezvous.REJECTED,
    rendezvous.NO_ROUTE,
    rendezvous.FAILED,
    rendezvous.WRONG_HOST,
)

ACTIVE = (
    Active(
        "rendezvous-reached",
        "Every host connects to the rendezvous port.",
        (*_REACHED, rendezvous.NOBODY),
        "--check quick",
    ),
    Active(
        "connections",
        "Hosts connect to each other on random ports of the ephemeral range, and bytes arrive.",
        (*_REACHED, connections.NO_ROOM, connections.STALLS, connections.SILENT),
        "--check full",
    ),
    Active(
        "path-mtu",
        "Packets of the interfaces' own size arrive whole.",
        (connections.BLACK_HOLE,),
        "--check full",
    ),
    Active(
        "latency",
        "No host is much farther away than the others.",
        (connections.OUTLIER, connections.HIGH),
        "--check full",
    ),
    Active(
        "bandwidth",
        "One TCP connection between hosts carries what the others do.",
        (connections.BANDWIDTH,),
        "--check deep",
    ),
    Active(
        "collectives",
        "GPUs compute, copy and reduce as fast as their peers and their links.",
        (collectives.GEMM, collectives.COPY, collectives.SLOW, collectives.FAILS, collectives.WRONG),
        "--check deep",
    ),
    Active(
        "folders-shared",
        "Every --require-path is one folder on all hosts.",
        (shared.NOT_SHARED, shared.NO_TOKEN),
        "--require-path",
    ),
    Active(
        "ssh-between-hosts",
        "Every host reaches the others by ssh.",
        (shared.SSH,),
        "--check-ssh-mesh",
    ),
)
