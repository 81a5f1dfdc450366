"""`nvrun completion SHELL`: to be sourced by the shell; `--names KIND` is what the script asks for meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvrun.commands import Said
from nvrun.completion import completion
from nvrun.config import Invocation
from nvrun.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    if kind := invocation.flags.get("--names"):
        return Said("".join(f"{name}\n" for name in _names(kind, environ)))
    shell = invocation.torchrun.program
    if shell not in SHELLS:
        raise UsageError(f"nvrun completion: expected one of {', '.join(SHELLS)}, got {shell or 'nothing'}")
    return Said(completion(shell))


def _names(kind: str, environ: Mapping[str, str]) -> Iterable[str]:
    if kind == "presets":
        from nvrun import job, presets
        from nvrun.tune.known import TUNED

        return ["auto", TUNED, *presets.names(job.preset_folders(environ))]
    if kind == "hooks":
        from nvrun.hooks.load import listing

        return [each.name for each in listing(environ)]
    if kind == "codes":
        from nvrun.commands import explain

        return sorted(explain.codes(environ))
    if kind == "runs":
        from nvrun import runs

        return [each.id for each in runs.known(environ)]
    raise UsageError(f"--names: expected one of presets, hooks, codes, runs, got {kind!r}")
