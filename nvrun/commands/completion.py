"""`nvrun completion SHELL`: to be sourced by the shell."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.usage import completion

SHELLS = ("bash", "zsh", "fish")


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    shell = invocation.torchrun.program
    if shell not in SHELLS:
        raise UsageError(f"nvrun completion: expected one of {', '.join(SHELLS)}, got {shell or 'nothing'}")
    return Said(completion(shell))
