"""The planned numactl commands, each tried with `true` in the job's own chain: what their ends say. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from nvrun.checks.code import FATAL, declare
from nvrun.model import Finding, Frozen

FAILS = declare(
    "numactl-fails",
    FATAL,
    "the planned numactl command does not work on the host",
    read="the command itself, run with `true` in the job's own chain",
    why="the ranks of that host would end before their first line",
    remedy="--bind none, or ask for the CPUs and memory nodes named (srun --cpus-per-task, docker --cpuset-cpus)",
    source="numactl(8), set_mempolicy(2)",
)


class Tried(Frozen, frozen=True, kw_only=True):
    """One command that was tried."""

    argv: tuple[str, ...]
    """`numactl --all --physcpubind=0-15 --preferred=0`, without the `true` behind it."""
    code: int | None
    """Exit code; None where it did not end in time."""
    stderr: str = ""


def tried(results: Mapping[str, Sequence[Tried]]) -> Iterator[Finding]:
    """Findings for host -> commands; equal failures of one host are told once."""
    for host, commands in results.items():
        failed: dict[str, Tried] = {}
        for one in commands:
            if one.code != 0:
                failed.setdefault(_words(one), one)
        for words, one in failed.items():
            command = shlex.join(one.argv)
            yield FAILS.found(f"{command}: {words}", host=host, subject="numactl", observed=str(one.code))


def _words(one: Tried) -> str:
    if one.code is None:
        return "did not end in time"
    said = [line for line in one.stderr.strip().splitlines() if line.strip()]
    # On an error numactl explains its options too; what went wrong stands in its first line.
    return said[0].strip() if said else f"ended with {one.code}"
