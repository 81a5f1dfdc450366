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
_PYTHON = re.compile(r"python[\d.]*|\$\{?\w*PYTHON\w*\}?", re.IGNORECASE)
_SHELL = re.compile(r"(ba|da|z|k)?sh|su|sg|runuser")
_COMMAND_FLAG = re.compile(r"-[a-z]*c")
_DEEPEST = 3
"""Shells within shells."""
_MOST_WORDS, _MOST_JOINED = 200, 8
"""Words of a starter, and of one that hands a line to a shell, behind which its command is looked for."""
_NAMED = ("-J", "--job-name", "--comment", "--name", "--hostname", "--tag", "-t", "-a", "--with", "--package", "-l")
"""Flags of starters whose value is a name."""
_TWO_VALUES = ("--mca", "-mca", "--gmca", "--prtemca", "-genv", "-env")
_NO_LAUNCHER = re.compile(
    r"install|uninstall|echo|printf|which|type|hash|cp|mv|rm|ls|man|cat|tail|head|less|grep|pgrep|pkill|ps"
    r"|pytest|\S+\.(?:py|sh)"
)
"""Words behind a starter after which a launcher's name is an argument, whatever flags are between."""


class _Starter(NamedTuple):
    """A command that starts another one."""

    operands: int = 0
    """Words of its own before that, flags and their values left out."""
    subcommands: tuple[str, ...] = ()
    """One of which must come first."""
    joins: bool = False
    """What follows is one line for another shell."""
    flags: bool = True
    """Whether a flag may have a value behind it; where not, flags only change what the operand means."""


_CONTAINER = _Starter(1, ("run", "exec", "start"))
_ENVIRONMENT = _Starter(0, ("run",))
_STARTERS: Mapping[str, _Starter] = {
    **dict.fromkeys(
        ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "ibrun", "jsrun", "aprun", "lrun", "exec", "time",
         "env", "nohup", "sudo", "doas", "numactl", "setsid", "nice", "ionice", "stdbuf", "unbuffer", "strace",
         "xargs", "shifter", "uvx"),
        _Starter(),
    ),
    **dict.fromkeys(("timeout", "flock", "ch-run"), _Starter(1)),
    **dict.fromkeys(("taskset", "chrt"), _Starter(1, flags=False)),
    **dict.fromkeys(("docker", "podman", "nerdctl", "singularity", "apptainer", "enroot", "sarus"), _CONTAINER),
    **dict.fromkeys(("conda", "mamba", "micromamba", "uv", "poetry", "pdm", "pixi", "pipenv", "hatch", "rye"),
                    _ENVIRONMENT),
    **dict.fromkeys(("kubectl", "oc"), _Starter(1, ("exec",))),
    **dict.fromkeys(("nsys", "ncu", "rocprof"), _Starter(0, ("profile", "launch"))),
    "ssh": _Starter(1, joins=True),
    "pdsh": _Starter(0, joins=True),
    "clush": _Starter(0, joins=True),
    "eval": _Starter(0, joins=True),
}  # fmt: skip
_STARTER_OF_NO_NAME = _Starter()
"""`$PREFIX torchrun ...`: nothing, or something that starts what follows."""


def launcher_lines(text: str, name: str) -> Iterator[Finding]:
    """Launcher lines with a flag that is unknown, lacks its value or has a wrong one. A subcommand of nvrun is to
    `split` a program, whose flags are its own."""
    for number, line, words in simple_commands(text):
        for launcher, flags in _launchers(words):
            for wrong in _wrong(flags, launcher):
                yield Finding(
                    code="launcher-refuses",
                    severity=Severity.ERROR if launcher == "nvrun" else Severity.WARNING,  # another torch has others
                    subject=launcher,
                    message=f"{launcher} will not start: {wrong}",
                    remedy=f"{launcher} --help lists its flags",
                    evidence=(f"{name}:{number}: {line}",),
                )


def _launchers(words: Sequence[str], depth: int = 0) -> Iterator[tuple[str, Sequence[str]]]:
    """torchrun or nvrun, and what it is given, where the command is one, starts one, or gives one to a shell."""
    places, seen = [0] if words else [], {0}
    while places:
        at = places.pop(0)
        base, rest = words[at].rpartition("/")[2], words[at:]
        starter = _STARTER_OF_NO_NAME if base.startswith("$") else _STARTERS.get(base)
        found: list[tuple[str, Sequence[str]]] = []
        if base in _LAUNCHERS:
            found = [(base, rest[1:])]
        elif _PYTHON.fullmatch(base):
            found = list(_of_python(rest))
        elif _SHELL.fullmatch(base):
            lines = (line for flag, line in pairwise(rest) if _COMMAND_FLAG.fullmatch(flag))
            found = list(_of_line(next(lines, ""), depth))
        elif starter and starter.joins:
            for place in islice(_places(rest, starter), _MOST_JOINED):
                found = found or list(_of_line(" ".join(rest[place : place + _MOST_WORDS]), depth))
        elif starter:
            new = [at + place for place in _places(rest, starter) if at + place not in seen]
            places, seen = [*new, *places], seen | {*new}
        if found:
            yield from found
            return


def _of_python(words: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """`python -u -m torch.distributed.run ...`; behind a script a `-m` is the script's own."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in ("-X", "-W") else 1
    if at + 1 < len(words) and words[at] == "-m" and words[at + 1] in _MODULES:
        yield _MODULES[words[at + 1]], words[at + 2 :]


def _of_line(line: str, depth: int) -> Iterator[tuple[str, Sequence[str]]]:
    if depth < _DEEPEST:
        for each in simple_commands(line):
            yield from _launchers(each.words, depth + 1)


def _places(words: Sequence[str], starter: _Starter) -> Iterator[int]:
    """Where the command may stand that a starter starts. A word right behind a flag may be its value or not."""
    subcommands, sure, unsure, at = starter.subcommands, 0, 0, 1
    while at < min(len(words), _MOST_WORDS) and sure <= starter.operands:
        word, flag = words[at], words[at - 1]
        behind_flag = starter.flags and at > 1 and flag.startswith("-") and "=" not in flag and flag != "--"
        if word.startswith("-"):
            at += 2 if word in _TWO_VALUES else 0
        elif subcommands:
            if word in subcommands:
                subcommands, sure, unsure = (), 0, 0
            elif not behind_flag:
                return
        elif not re.match(r"\$|\w+=", word):
            if _NO_LAUNCHER.fullmatch(word):
                return
            if sure <= starter.operands <= sure + unsure and not (behind_flag and flag in _NAMED):
                yield at
            sure, unsure = (sure, unsure + 1) if behind_flag else (sure + 1, unsure)
        at += 1


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
