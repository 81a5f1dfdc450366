"""Lint of how a Slurm job script starts ranks: srun starts a launcher once a task, and the launcher starts ranks. Pure.

Nothing is run: a number that only running the script would tell is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nvrun.model import Finding, Severity

_CONTINUED = re.compile(r"\\\n")
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$")
_TEXT = re.compile(r"^\s*(?:export\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s\"'`;]+)", re.MULTILINE)
_USE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PER_NODE = re.compile(r"(?<!\S)--ntasks-per-node[= ]\s*(\S+)")
_TASKS = re.compile(r"(?<!\S)(?:--ntasks[= ]|-n)\s*(\S+)")
_NODES = re.compile(r"(?<!\S)(?:--nodes[= ]|-N)\s*(\S+)")
_LAUNCHER = re.compile(
    r"\bsrun\b(?P<srun>.*?)\b(?:torchrun|torch\.distributed\.(?:run|launch)|nvrun)\b(?P<launcher>.*)", re.DOTALL
)
_RANKS = re.compile(r"(?<!\S)--nproc[-_]per[-_]node[= ]\s*[\"']?([\w${}]+)")


def tasks_times_ranks(text: str, name: str) -> Iterator[Finding]:
    """torchrun started by srun in several tasks of a node, each of which starts several ranks."""
    texts = {match[1]: match[2].strip("\"'") for match in _TEXT.finditer(text)}
    asked = " ".join(match[1] for line in text.splitlines() if (match := _DIRECTIVE.match(line)))
    for number, line in commands(text):
        match = _LAUNCHER.search(_expanded(line, texts))
        if match is None or not (ranks := _RANKS.search(match["launcher"])) or not _several(ranks[1]):
            continue
        tasks = _tasks_per_node(match["srun"], asked)
        if tasks > 1:
            yield Finding(
                code="slurm-tasks-times-ranks",
                severity=Severity.ERROR,
                subject="--ntasks-per-node",
                message=f"srun starts {tasks} launchers on each node, and each starts {ranks[1]} ranks there",
                observed=f"{tasks} tasks a node",
                expected="1 task a node",
                remedy="#SBATCH --ntasks-per-node=1, with --cpus-per-task for all cores of the node",
                evidence=(f"{name}:{number}: {' '.join(line.split())}",),
            )


def commands(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each command line, continued lines joined, comments left out."""
    number = 1
    for line in _CONTINUED.sub("\\\\\r", text).split("\n"):
        if not line.lstrip().startswith("#"):
            yield number, line.replace("\\\r", " ")
        number += 1 + line.count("\\\r")


def _expanded(line: str, texts: Mapping[str, str]) -> str:
    """The line with the variables that the script sets to plain text, and those within them."""
    for _ in range(3):
        line = _USE.sub(lambda match: texts.get(match[1] or match[2], match[0]), line)
    return line


def _several(ranks: str) -> bool:
    return int(ranks) > 1 if ranks.isdigit() else ranks in ("gpu", "auto") or "GPU" in ranks


def _tasks_per_node(srun: str, asked: str) -> int:
    """Tasks that a step has on each node: srun's own flags before those of the job; 1 where that is not known."""
    for flags in (srun, asked):
        if match := _PER_NODE.search(flags):
            return int(match[1]) if match[1].isdigit() else 1
        if match := _TASKS.search(flags):
            nodes = _NODES.search(flags) or _NODES.search(asked)
            known = match[1].isdigit() and nodes is not None and nodes[1].isdigit() and int(nodes[1]) > 0
            return -(-int(match[1]) // int(nodes[1])) if known and nodes else 1
    return 1
