"""Lint of a shell script's commands that start torchrun or nvrun: flags that they would refuse. Pure.

Nothing is run: a value that only running the script would tell is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from nvrun.errors import UsageError
from nvrun.model import Finding, Severity
from nvrun.nccl.shell import simple_commands
from nvrun.options import OWN
from nvrun.torchrun import split

_LAUNCHERS = ("torchrun", "nvrun")
_MODULES = {"torch.distributed.run": "torchrun", "nvrun": "nvrun"}
_ABOUT = re.compile(r"torchrun|torch\.distributed\.run|nvrun")
_PYTHON = re.compile(r"python[\d.]*|\$\{?\w*PYTHON\w*\}?", re.IGNORECASE)
_SHELL = re.compile(r"(ba|da|z|k)?sh|su|sg|runuser")
_COMMAND_FLAG = re.compile(r"-[a-z]*c")
_MOST = 1000
"""Commands that name a launcher; a text with more of them is no job script, and the rest is not judged."""
_DEEPEST = 3
"""Shells within shells."""
_NAMED = ("-J", "--job-name", "--comment", "--name", "--hostname", "--container-name", "--entrypoint", "--tag", "-t",
          "-n", "--with", "--package")  # fmt: skip
"""Flags of starters whose value is a name."""
_TWO_VALUES = ("--mca", "-mca", "--gmca", "--prtemca", "-genv", "-env")
_NO_COMMAND = re.compile(r"-.*|\d\S*|\w+=\S*")
"""A flag, a number or an assignment: the command that is started comes behind it."""


class _Starter(NamedTuple):
    """A command that starts another one."""

    operands: int = 0
    """Words of its own before that, flags and their values left out."""
    subcommands: tuple[str, ...] = ()
    """One of which must come first."""
    joins: bool = False
    """What follows is one line for another shell."""


_STARTERS: Mapping[str, _Starter] = {
    **dict.fromkeys(
        ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "ibrun", "jsrun", "aprun", "exec", "time", "timeout", "env",
         "nohup", "sudo", "numactl", "taskset", "chrt", "setsid", "nice", "ionice", "stdbuf", "strace", "xargs",
         "shifter", "uvx"),
        _Starter(),
    ),
    **dict.fromkeys(("docker", "podman", "singularity", "apptainer", "enroot"),
                    _Starter(1, ("run", "exec", "start"))),
    **dict.fromkeys(("conda", "mamba", "micromamba", "uv", "poetry", "pdm", "pixi", "pipenv", "hatch"),
                    _Starter(0, ("run",))),
    **dict.fromkeys(("nsys", "ncu", "rocprof"), _Starter(0, ("profile", "launch"))),
    "kubectl": _Starter(1, ("exec",)),
    "flock": _Starter(1),
    "ssh": _Starter(1, joins=True),
    **dict.fromkeys(("pdsh", "clush", "eval"), _Starter(joins=True)),
}  # fmt: skip
_STARTER_OF_NO_NAME = _Starter()
"""`$PREFIX torchrun ...`: nothing, or something that starts what follows."""


def launcher_lines(text: str, name: str) -> Iterator[Finding]:
    """Launcher lines with a flag that is unknown, lacks its value or has a wrong one. A subcommand of nvrun is to
    `split` a program, whose flags are its own."""
    for number, line, words in islice(simple_commands(text, _ABOUT), _MOST):
        for launcher, flags in _launchers(words, 0):
            for wrong in _wrong(flags, launcher):
                yield Finding(
                    code="launcher-refuses",
                    severity=Severity.ERROR if launcher == "nvrun" else Severity.WARNING,  # another torch has others
                    subject=launcher,
                    message=f"{launcher} will not start: {wrong}",
                    remedy=f"{launcher} --help lists its flags",
                    evidence=(f"{name}:{number}: {line}",),
                )


def _launchers(words: Sequence[str], depth: int) -> Iterator[tuple[str, Sequence[str]]]:
    """torchrun or nvrun, and what it is given, where the command is one, starts one, or gives one to a shell."""
    at = 0
    while at < len(words):
        base = _base(words[at])
        starter = _starter(base)
        if base in _LAUNCHERS:
            yield base, words[at + 1 :]
            return
        if _PYTHON.fullmatch(base):
            yield from _of_python(words[at:])
            return
        if _SHELL.fullmatch(base):
            given = (line for flag, line in pairwise(words[at:]) if _COMMAND_FLAG.fullmatch(flag))
            yield from _of_line(next(given, ""), depth)
            return
        at = _started(words, at, starter) if starter else len(words)
        if starter and starter.joins:
            yield from _of_line(" ".join(words[at:]), depth)
            return


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _starter(base: str) -> _Starter | None:
    return _STARTER_OF_NO_NAME if base.startswith("$") else _STARTERS.get(base)


def _started(words: Sequence[str], at: int, starter: _Starter) -> int:
    """Where the command stands that the starter at `at` starts; behind all words where it starts none that is known.

    A word right behind a flag may be its value or not: it is the command where it is one that is known."""
    subcommands, sure, seen = starter.subcommands, 0, 0
    while (at := at + 1) < len(words):
        word, before = words[at], words[at - 1]
        behind_flag = before.startswith("-") and "=" not in before and before != "--"
        if _NO_COMMAND.fullmatch(word):
            at += 2 if word in _TWO_VALUES else 0
            continue
        if subcommands:
            if word in subcommands:
                subcommands = ()
            elif not behind_flag:
                break
            continue
        if seen >= starter.operands and before not in _NAMED and (_is_known(word) or (starter.joins and " " in word)):
            return at
        seen, sure = seen + 1, sure + (not behind_flag)
        if sure > starter.operands and not word.startswith("$"):  # which may be flags, or nothing
            break
    return len(words)


def _is_known(word: str) -> bool:
    base = _base(word)
    return base in _LAUNCHERS or base in _STARTERS or bool(_PYTHON.fullmatch(base) or _SHELL.fullmatch(base))


def _of_python(words: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """`python -u -m torch.distributed.run ...`; behind a script a `-m` is the script's own."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in ("-X", "-W") else 1
    if at + 1 < len(words) and words[at] == "-m" and words[at + 1] in _MODULES:
        yield _MODULES[words[at + 1]], words[at + 2 :]


def _of_line(line: str, depth: int) -> Iterator[tuple[str, Sequence[str]]]:
    if depth < _DEEPEST:
        for each in simple_commands(line, _ABOUT):
            yield from _launchers(each.words, depth + 1)


def _wrong(flags: Sequence[str], launcher: str) -> Iterator[str]:
    if {"-h", "--help"} & set(flags[:1]):
        return
    try:
        line = split(flags, OWN if launcher == "nvrun" else {})
    except UsageError as error:
        yield error.message
        return
    for flag, value in line.torchrun:
        if flag.read and value is not None and not set("$`{}@%") & set(value):
            try:
                flag.read(value)
            except ValueError as error:
                yield f"{flag.spelling}: expected {error}, got {value}"
