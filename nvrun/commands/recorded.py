"""Facts of hosts from a file: `--from FILE`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from nvrun import facts
from nvrun.errors import UsageError
from nvrun.facts import HostFacts


def read_facts(path: str) -> tuple[HostFacts, ...]:
    """Recorded facts of one host or of several. UsageError where the file holds something else."""
    try:
        known = facts.from_json(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: expected the output of nvrun facts --json: {error}") from None
    if not known:
        raise UsageError(f"{path}: expected facts of at least one host")
    return known
