"""The text of a shell script -> those of its simple commands that matter, as words. Pure.

Nothing is run and nothing expanded: `$X` stays as it is, and `$(...)` stands as `$` where it was, its commands beside
it. A here-document counts as commands where a shell reads it, or a file that may be a script; else it is text. Not
known are commands within double quotes, and parentheses that are nested more than twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_SUBSTITUTION = r"[$<>]\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`"
_PART = (
    r"[^\s\\'\"`$<>&;|()#]+|(?<=[^\s;&|()])\#|\\.|'[^']*'|\$'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\""
    rf"|\$\{{[^{{}}\n]*\}}|{_SUBSTITUTION}|\$"
)
"""Of a word. What opens and never closes is none. Each alternative either ends at its first characters or is found at
most once not to close, so the time is linear."""
_PARTS = re.compile(_PART, re.DOTALL)
_SUBSTITUTIONS = re.compile(_SUBSTITUTION)
_COMMANDS = re.compile(rf"\#[^\n]*|(?P<command>(?:{_PART}|[^\S\n]+|&>|[<>]+[&|]?)+)", re.DOTALL)
_WORDS = re.compile(
    rf"(?P<redirection>(?:\d+|\{{\w+\}})?(?:&>>?|<<<|<<-?|>>|>\||[<>]&|<>|[<>])[^\S\n]*)?(?P<word>(?:{_PART})+)",
    re.DOTALL,
)
_OPEN = ("'", '"', "`")
"""One of these right behind a command is never closed: where its word ends is not known."""
_ESCAPED = re.compile(r"\\([\\\"$`])")
_BEFORE = re.compile(r"if|then|elif|else|while|until|do|!|\{|coproc|\w+\+?=.*", re.DOTALL)
"""Reserved words behind which a command begins, and assignments."""
_HERE = re.compile(r"(?<!<)<<-?[ \t]*[\\\"']?([A-Za-z_]\w*)")
_OF_PYTHON = re.compile(r"(?:^|[\s/])python[\d.]*\s")
_OF_A_SHELL = re.compile(r"(?:^|[\s/|])(?:(?:ba|da|z|k)?sh|sbatch|salloc|qsub|bsub|ssh)(?=\s|$)")
_WRITTEN = re.compile(r"(?:>|\btee(?:[ \t]+-a)?[ \t])[ \t]*([^\s<>&|;]+)")
_SCRIPT = re.compile(r"[\"']?(?!/dev/)(?:.*/)?[^./]*?(?:\.(?:sh|bash|sbatch|slurm|job|pbs))?[\"']?")


class Simple(NamedTuple):
    """One simple command."""

    number: int
    """Of the line on which it begins, from 1."""
    text: str
    """As it is written, on one line."""
    words: tuple[str, ...]
    """Without redirections, and without assignments and reserved words before it."""


def simple_commands(text: str, about: re.Pattern[str]) -> Iterator[Simple]:
    """Those in whose text `about` finds something."""
    yield from _simple(_without_shown(text), about, 1)


def _simple(text: str, about: re.Pattern[str], number: int) -> Iterator[Simple]:
    """`number`: of the text's first line."""
    counted = 0
    for found in _COMMANDS.finditer(text):
        raw = found["command"] or ""
        if not about.search(raw) or text[found.end() : found.end() + 1] in _OPEN:
            continue
        number, counted = number + text.count("\n", counted, found.start()), found.start()
        for inner in _SUBSTITUTIONS.finditer(raw):
            within = inner[0].lstrip("$<>")[1:-1]
            yield from _simple(within, about, number + raw.count("\n", 0, inner.start()))
        joined = raw.replace("\\\n", "")
        words = [_plain(each["word"]) for each in _WORDS.finditer(joined) if not each["redirection"]]
        begin = next((at for at, word in enumerate(words) if not _BEFORE.fullmatch(word)), len(words))
        yield Simple(number, " ".join(joined.split()), tuple(words[begin:]))


def _plain(word: str) -> str:
    return _PARTS.sub(lambda part: _unquoted(part[0]), word)


def _unquoted(part: str) -> str:
    if part[0] == "'":
        return part[1:-1]
    if part[0] == '"':
        return _ESCAPED.sub(r"\1", part[1:-1])
    if part[0] == "\\":
        return part[1:]
    if part.startswith("$'"):
        return part[2:-1]
    return "$" if part[0] == "`" or part[1:2] == "(" else part


def _without_shown(text: str) -> str:
    """With empty lines where a here-document stands that no shell reads."""
    if "<<" not in text:
        return text
    lines = text.split("\n")
    last = {line.strip(): at for at, line in enumerate(lines)}
    end = ""
    for at, line in enumerate(lines):
        if end:
            end, lines[at] = "" if line.strip() == end else end, ""
        elif (here := _HERE.search(line)) and last.get(here[1], -1) > at and not _is_read(line):
            end = here[1]
    return "\n".join(lines)


def _is_read(line: str) -> bool:
    """Whether the here-document that follows the line is for a shell, now or later."""
    if _OF_PYTHON.search(line):
        return False
    return bool(_OF_A_SHELL.search(line)) or any(map(_SCRIPT.fullmatch, _WRITTEN.findall(line)))
