"""Words that were surely not meant as the program: one clear line before anything is made or reached."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.job import Job
from nvrun.torchrun import nearest

_INTERPRETER = re.compile(r"python[0-9.]*")
_HOST = re.compile(r"[\w@:\[\]-]+")
"""A host as in --hosts; a program of such a name, without a folder and a suffix, is rare."""


def check_words(invocation: Invocation, commands: Sequence[str]) -> None:
    """The program as the user typed it, for a run (`commands`: all there are) or a command that takes one. UsageError
    where it is another launcher, a host list, or a command behind flags; not for a file that is here."""
    args = invocation.torchrun
    program, rest = args.program, args.arguments
    if program is None or args.module or args.no_python or program.startswith("./"):
        return
    if "/" not in program and Path(program).exists():
        return
    name = program.rpartition("/")[2]
    if name == "torchrun":
        raise UsageError("nvrun takes torchrun's place: leave the word torchrun out", hint=_line(rest))
    if _INTERPRETER.fullmatch(name):
        raise UsageError(
            f"nvrun starts Python itself: leave the word {name} out", hint=f"{_line(rest)} (--python PATH chooses it)"
        )
    if "/" in program or invocation.separated:
        return
    if program in commands:
        raise UsageError(f"{program} is a command, which comes before its flags: nvrun {program} [flags]",
                         hint=f"nvrun -- {program} runs a program of that name")  # fmt: skip
    if re.search(r"[,\[]", program):
        raise UsageError(f"{program}: no such file here; did you mean --hosts {program}?")
    if invocation.source("hosts") == "--hosts" and _HOST.fullmatch(program):
        script = next((at for at, word in enumerate(rest) if not _HOST.fullmatch(word)), len(rest))
        hosts = ",".join([invocation.options.hosts or "", program, *rest[:script]])
        if script < len(rest) and not rest[script].startswith("-"):
            raise UsageError(f"{program}: no such file here; hosts are separated by commas: --hosts {hosts}")


def check_script(job: Job) -> None:
    """The script, where it would run on this machine alone and must be here. UsageError where it is not. A user who
    waives findings hears of it from the checks."""
    options = job.options
    if job.fleet or job.script is None or options.in_ or options.setup or options.waive or options.force:
        return
    path = Path(job.cwd, job.script)
    try:
        if path.exists() or not Path(job.cwd).is_dir():
            return
        beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError:
        return  # the checks say what is wrong with it
    near = nearest(path.name, beside)
    meant = f"; did you mean {job.script.removesuffix(path.name)}{near}?" if near else ""
    if job.script.isalpha():  # a script has a suffix
        raise UsageError(
            f"{job.script} is no command, and no file in {job.cwd}{meant}", hint="nvrun --help lists all commands"
        )
    raise UsageError(f"{job.script}: no such file{'' if job.script.startswith('/') else f' in {job.cwd}'}{meant}")


def _line(arguments: Sequence[str]) -> str:
    return f"nvrun {shlex.join(arguments)}".rstrip()
