"""Binding files (`--bind FILE`): where each local rank is put, in the user's own words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun.errors import UsageError
from nvrun.model import Frozen
from nvrun.topology.cpus import parse_cpulist


class Row(Frozen, frozen=True, kw_only=True):
    """One line of a binding file."""

    line: int
    cpus: tuple[int, ...]
    memory_node: int | None = None


def read_table(text: str, path: str) -> Mapping[int, Row]:
    """A binding file: `LOCAL_RANK CPULIST [MEMORY_NODE]` a line, `#` begins a comment. UsageError names the line."""
    rows: dict[int, Row] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        expected = f"{path}:{number}: expected LOCAL_RANK CPULIST [MEMORY_NODE], such as `0 0-15,64-79 0`"
        try:
            rank, cpus = int(words[0]), parse_cpulist(words[1])
            node = int(words[2]) if len(words) > 2 else None
        except (ValueError, IndexError) as error:
            raise UsageError(f"{expected}; {error}" if len(words) > 1 else expected) from None
        if len(words) > 3 or not cpus or rank < 0 or (node is not None and node < 0):
            raise UsageError(expected)
        if rank in rows:
            raise UsageError(f"{path}:{number}: local rank {rank} is already given in line {rows[rank].line}")
        rows[rank] = Row(line=number, cpus=cpus, memory_node=node)
    if not rows:
        raise UsageError(f"{path}: no line gives a local rank; expected LOCAL_RANK CPULIST [MEMORY_NODE]")
    return rows
