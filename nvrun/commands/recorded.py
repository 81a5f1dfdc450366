"""Hosts from a file: facts by `--from FILE`, a pasted topology by `--topo FILE|-`."""

from __future__ import annotations

import sys

import msgspec

from nvrun import facts, topology
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.textfile import read_bytes, read_text

LARGEST = 1 << 30
"""Bytes of a file of facts: those of a big host are 1 MiB."""


def read_facts(path: str) -> tuple[HostFacts, ...]:
    """Recorded facts of one host or of several. UsageError where the file holds something else."""
    try:
        known = facts.from_json(read_bytes(path, largest=LARGEST))
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: expected the output of nvrun facts --json: {error}") from None
    if not known:
        raise UsageError(f"{path}: expected facts of at least one host")
    return known


LONGEST = 16 << 20
"""Characters of a topology; NCCL's XML of a host with 16 GPUs has some ten thousand."""


def read_topology(source: str) -> tuple[str, topology.Topology]:
    """What to call it, and the topology in a file, or on standard input for `-`: a matrix of nvidia-smi topo -m, or
    NCCL's XML. UsageError where it is neither."""
    if source != "-":
        return source, topology.from_text(read_text(source), source)
    name = "standard input"
    try:
        text = sys.stdin.read(LONGEST + 1)
    except UnicodeDecodeError:
        raise UsageError(f"{name}: not UTF-8 text") from None
    if len(text) > LONGEST:
        raise UsageError(f"{name}: longer than {LONGEST >> 20} MiB")
    return name, topology.from_text(text, name)
