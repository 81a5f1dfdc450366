"""Lint of how a Slurm job script starts ranks: srun starts a launcher once a task, and the launcher starts ranks. Pure.

Nothing is run: a number that only running the script would tell is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nvrun.model import Finding, Severity
from nvrun.nccl.shell import simple_commands

_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$")
_TEXT = re.compile(r"^\s*(?:export\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s\"'`;]+)", re.MULTILINE)
_USE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PER_NODE = re.compile(r"(?<!\S)--ntasks-per-node[= ]\s*(\S+)")
_TASKS = re.compile(r"(?<!\S)(?:--ntasks[= ]|-n)\s*(\S+)")
_NODES = re.compile(r"(?<!\S)(?:--nodes[= ]|-N)\s*(\S+)")
_ABOUT = re.compile(r"srun|\$")
_SRUN = re.compile(r"\bsrun\b")
_LAUNCHER = re.compile(
    r"(?P<srun>.*?)\b(?:torchrun|torch\.distributed\.(?:run|launch)|nvrun)\b(?P<launcher>.*)", re.DOTALL
)
_LONGEST, _LONGEST_VALUE = 1 << 13, 1000
"""Characters of a command, and of a variable, as somebody may write them by hand; what is beyond is not read."""
_RANKS = re.compile(r"(?<!\S)--nproc[-_]per[-_]node[= ]\s*[\"']?([\w${}]+)")


def tasks_times_ranks(text: str, name: str) -> Iterator[Finding]:
    """torchrun started by srun in several tasks of a node, each of which starts several ranks."""
    texts = _texts(text)
    asked = " ".join(match[1] for line in text.splitlines() if (match := _DIRECTIVE.match(line)))
    for number, line, _ in simple_commands(text, _ABOUT):
        expanded = _expanded(line[:_LONGEST], texts)
        srun = _SRUN.search(expanded)
        match = _LAUNCHER.match(expanded, srun.end()) if srun else None
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
                evidence=(f"{name}:{number}: {line}",),
            )


def _texts(text: str) -> dict[str, str]:
    """Variables that the script sets to plain text, with those within them."""
    texts = _short({match[1]: match[2].strip("\"'") for match in _TEXT.finditer(text)})
    for _ in range(3):
        texts = _short({name: _expanded(value, texts) for name, value in texts.items()})
    return texts


def _short(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in texts.items() if len(value) <= _LONGEST_VALUE}


def _expanded(line: str, texts: Mapping[str, str]) -> str:
    return _USE.sub(lambda match: texts.get(match[1] or match[2], match[0]), line)


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
