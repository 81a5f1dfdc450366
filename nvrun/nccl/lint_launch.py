"""Lint of a shell script's lines that start torchrun or nvrun: flags that they would refuse. Pure.

Nothing is run: a value that only running the script would tell is not judged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import dropwhile

from nvrun.errors import UsageError
from nvrun.model import Finding, Severity
from nvrun.nccl.lint_tasks import commands
from nvrun.options import OWN
from nvrun.torchrun import split

_MODULES = {"torch.distributed.run": "torchrun", "nvrun": "nvrun"}
_STARTERS = re.compile(
    r"(?:.*/)?(srun|mpirun|mpiexec|exec|time|timeout|env|nohup|sudo|numactl|taskset|setsid|singularity|apptainer"
    r"|docker|podman|enroot|uv|python[\d.]*)"
)
"""Commands behind whose own words a launcher may stand; behind `echo` or `which` it is a word."""
_ASSIGNMENT = re.compile(r"\w+=")
_BACKTICKS = re.compile(r"`[^`]*`")
_OPERATORS = set("();<>|&")


def launcher_lines(text: str, name: str) -> Iterator[Finding]:
    """Launcher lines with a flag that is unknown, lacks its value or has a wrong one. A subcommand of nvrun is to
    `split` a program, whose flags are its own."""
    for number, line in commands(text):
        for words in _simple(line):
            launcher, flags = _launcher(words)
            for wrong in _wrong(flags, launcher) if launcher else ():
                yield Finding(
                    code="launcher-refuses",
                    severity=Severity.ERROR if launcher == "nvrun" else Severity.WARNING,  # another torch has others
                    subject=launcher,
                    message=f"{launcher} will not start: {wrong}",
                    remedy=f"{launcher} --help lists its flags",
                    evidence=(f"{name}:{number}: {' '.join(line.split())}",),
                )


def _simple(line: str) -> Iterator[list[str]]:
    """The words of each simple command of a line; none where its quotes do not close on it."""
    lexer = shlex.shlex(_BACKTICKS.sub("$", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= _OPERATORS:
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:
        return
    yield words


def _launcher(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """torchrun or nvrun, and what it is given; "" where the command is another one."""
    words = list(dropwhile(_ASSIGNMENT.match, words))
    for at, word in enumerate(words):
        base = word.rpartition("/")[2]
        if at == 0 and base not in ("torchrun", "nvrun") and not _STARTERS.fullmatch(word):
            break
        if base in ("torchrun", "nvrun"):
            return base, words[at + 1 :]
        if word == "-m" and (module := "".join(words[at + 1 : at + 2])) in _MODULES:
            return _MODULES[module], words[at + 2 :]
    return "", ()


def _wrong(flags: Sequence[str], launcher: str) -> Iterator[str]:
    try:
        line = split(flags, OWN if launcher == "nvrun" else {})
    except UsageError as error:
        yield (
            error.message.replace("nvrun or torchrun", "torchrun 2.9 to 2.14")
            if launcher == "torchrun"
            else error.message
        )
        return
    for flag, value in line.torchrun:
        if flag.read and value is not None and not set("$`") & set(value):
            try:
                flag.read(value)
            except ValueError as error:
                yield f"{flag.spelling}: expected {error}, got {value}"
