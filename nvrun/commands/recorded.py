"""Facts of hosts from a file: `--from FILE`."""

from __future__ import annotations

import msgspec

from nvrun import facts
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.textfile import read_bytes

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
