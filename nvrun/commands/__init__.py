"""nvrun's subcommands beside running a job: a module each with `run`. They compute text; `cli` prints it."""

from __future__ import annotations

from typing import NamedTuple


class Said(NamedTuple):
    """What a command has to say."""

    text: str
    """For standard output."""
    exit_code: int = 0


COMMANDS: dict[str, str] = {
    "check": "look at the hosts and judge them, without running anything",
    "plan": "what would run: ranks, bindings, variables",
    "facts": "what the hosts are like, as JSON or in short",
    "hosts": "which hosts, which mode, and why",
    "env": "NCCL's variables: what holds on each host and who set it",
    "lint": "mistakes in variables and job scripts",
    "presets": "NCCL presets that there are, and what they set",
    "topo": "GPUs, NICs and NUMA nodes as a tree",
    "explain": "a finding's code: what was read, why it matters, how to mend it",
    "diagnose": "the cause in any logs of a failed job",
    "nccl": "what NCCL chose in a run, and what that costs",
    "runs": "runs of this user, the newest first",
    "stop": "end a run on all its hosts",
    "clean": "remove what ended runs left on hosts",
    "completion": "shell completion: bash, zsh or fish",
}
"""Name -> one line of help. A module `nvrun.commands.<name>` exists for each."""
