"""A and B of `--compare`: `default`, a preset, or variables -> the environment of a trial."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from nvrun import presets
from nvrun.environment import from_user, setting_of
from nvrun.errors import UsageError
from nvrun.options import assignment

_EARLY = re.compile(r"(LD_|PYTHON|OMP_|MKL_|KMP_|CUDA_VISIBLE_DEVICES$|PATH$)")
"""Read before a trial begins: when the rank's interpreter starts, when it imports torch, when it is given its GPU."""


def environment(
    text: str, *, folders: Sequence[Path], versions: Mapping[str, str | None], user: Collection[str]
) -> dict[str, str]:
    """`default`, `hopper`, `./mine.yaml` or `NCCL_ALGO=Ring NCCL_PROTO=Simple` -> variables, in their own units.

    A preset leaves alone what the user set (`user`, names) in any of the setting's names; variables given here are the
    user's own word. Raises UsageError for what is none of these, and for variables that a trial comes too late for.
    """
    if text == "default":
        return {}
    if "=" not in text:
        taken = {setting_of(name) for name in user}
        offered = presets.variables(presets.load(text, folders), versions=versions)
        found = {each.name: each.value for each in offered if setting_of(each.name) not in taken}
    else:
        found = {}
        for word in _words(text):
            try:
                name, value = assignment(word)
            except ValueError as error:
                raise UsageError(f"--compare {text}: expected {error}, got {word!r}") from None
            if value is None:
                raise UsageError(f"--compare {text}: {word} has no value")
            found[name] = from_user(name, value, "--compare").value
    early = next((name for name in found if _EARLY.match(name)), None)
    if early is not None:
        raise UsageError(
            f"--compare: {early} is read before a trial begins", hint="give it with --env to two runs of nvrun bench"
        )
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--compare {text}: expected shell words ({error})") from None
