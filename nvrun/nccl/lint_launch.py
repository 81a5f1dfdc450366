"""Lint of a shell script's lines that start torchrun or nvrun: flags that they would refuse. Pure.

Nothing is run: a value that only running the script would tell is not judged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
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
_SHELL = re.compile(r"(?:.*/)?(ba|da|z|k)?sh")
_NAMED = ("-J", "--job-name", "--name", "--tag", "-t", "-a")
"""Flags of starters whose value is a name."""
_OTHER = re.compile(r"install|uninstall|add|remove|pull|push|build|echo|printf|which|cp|mv|rm|ls|man|\S+\.py")
"""Words behind a starter after which a launcher's name is an argument."""
_ASSIGNMENT = re.compile(r"\w+=")
_BACKTICKS = re.compile(r"`[^`]*`")
_OPERATORS = set("();<>|&")
_PRINTED = re.compile(r"(?:.*[{;&]\s*)?cat\s*(?:>&\d\s*)?<<-?\s*[\\\"']?(?P<end>\w+)[\"']?\s*(?:\d?>&\d\s*)?")
"""A here-document that is shown, and neither run nor written to a file."""
_QUOTED_LINES = 200
"""Lines after which a quote is taken for a stray one."""


def launcher_lines(text: str, name: str) -> Iterator[Finding]:
    """Launcher lines with a flag that is unknown, lacks its value or has a wrong one. A subcommand of nvrun is to
    `split` a program, whose flags are its own."""
    for number, line in _whole(_without_shown(commands(text))):
        for words in _run(line):
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


def _without_shown(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Without the text that `cat <<END` shows, as a usage message."""
    end = ""
    for number, line in lines:
        if end:
            end = "" if line.strip() == end else end
        elif shown := _PRINTED.fullmatch(line.rstrip()):
            end = shown["end"]
        else:
            yield number, line


def _whole(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Lines over which a quote goes on as one; where it never closes, each by itself."""
    left = list(lines)
    at = 0
    while at < len(left):
        number, line = left[at]
        for more in range(1, _QUOTED_LINES if _words(line) is None else 1):
            together = "\n".join(each for _, each in left[at : at + more + 1])
            if at + more >= len(left):
                break
            if _words(together) is not None:
                line, at = together, at + more
                break
        yield number, line
        at += 1


def _words(line: str) -> list[str] | None:
    """The words and operators of a line; None where its quotes do not close."""
    lexer = shlex.shlex(_BACKTICKS.sub("$", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return list(lexer)
    except ValueError:
        return None


def _run(line: str) -> Iterator[list[str]]:
    """The words of each simple command of a line, also of those that it gives to `bash -c`; none where its quotes do
    not close on it."""
    words: list[str] = []
    for word in [*(_words(line) or ()), ";"]:
        if set(word) <= _OPERATORS:
            yield words
            words = []
            continue
        program = next((each for each in reversed(words) if not each.startswith("-")), "")
        if _SHELL.fullmatch(program) and re.fullmatch("-[a-z]*c", words[-1]):
            for _, inner in commands(word):
                yield from _run(inner)
        words.append(word)


def _launcher(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """torchrun or nvrun, and what it is given; "" where the command is another one."""
    words = list(dropwhile(_ASSIGNMENT.match, words))
    for at, word in enumerate(words):
        base = word.rpartition("/")[2]
        if at == 0 and base not in ("torchrun", "nvrun") and not _STARTERS.fullmatch(word):
            break
        if _OTHER.fullmatch(word):
            break
        if base in ("torchrun", "nvrun") and (at == 0 or words[at - 1] not in _NAMED):
            return base, words[at + 1 :]
        if word == "-m" and (module := "".join(words[at + 1 : at + 2])) in _MODULES:
            return _MODULES[module], words[at + 2 :]
    return "", ()


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
