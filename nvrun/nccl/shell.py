"""The text of a shell script -> its simple commands, as words. Pure.

Nothing is run and nothing expanded: `$X` stays as it is, and `$(...)` stands as `$` where it was, its commands beside
it. Redirections are no words. A here-document counts as commands where a shell reads it, or a file that may be a
script; else it is text.
"""

from __future__ import annotations

import re
from bisect import bisect, bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_DEEPEST = 20
"""Commands within commands; nobody writes more by hand."""
_LONGEST, _LONGEST_TEXT = 200, 1 << 16
"""Lines, and characters, over which a quote or `$(...)` may go; what is open for longer is taken for a stray one."""
_MOST_STRAY = 100
"""A text with more of them is no shell's; the rest is not read."""
_KEYWORDS = frozenset(("if", "then", "elif", "else", "while", "until", "do", "!", "{", "coproc"))
"""Reserved words behind which a command begins."""
_ASSIGNMENT = re.compile(r"\w+\+?=")
_PLAIN = re.compile(r"[^\s\\'\"$`<>&;|()#]+|#")
_UNQUOTED = re.compile(r"[^\"\\$`]*")
_FD = re.compile(r"\d+|\{\w+\}")
_REDIRECTION = re.compile(r"<<<|<<-?|<[&>]?|&>>?|>[>&|]?")
_DELIMITER = re.compile(r"[ \t]*[\\\"']?(\w*)[\"']?")
_READS_COMMANDS = re.compile(r"(?:.*/)?(?:(?:ba|da|z|k)?sh|sbatch|salloc|qsub|bsub|ssh)")
_READS_OTHER = re.compile(r"(?:.*/)?python[\d.]*")
_WRITES = re.compile(r"(?:.*/)?(?:cat|tee)")
_NO_SCRIPT = re.compile(r"&?\d|.*\.(?:py|md|txt|rst|log|ya?ml|json|toml|cfg|conf|ini|env|csv)|/dev/(?:null|std\w+|tty)")


class Simple(NamedTuple):
    """One simple command."""

    number: int
    """Of the line on which it begins."""
    text: str
    """As it is written, on one line."""
    words: tuple[str, ...]
    """Without assignments and reserved words before it."""


def simple_commands(text: str, depth: int = 0) -> Iterator[Simple]:
    """All of them, in the order of their ends. A line on which something opens that never closes is passed over.
    `depth`: here-documents around it."""
    reader, stray = _Reader(text), 0
    while reader.at < len(text) and stray < _MOST_STRAY:
        begin = reader.at
        try:
            reader.read(depth=depth)
        except _StrayError:
            reader.at = reader.next_line(begin)
            reader.taken()  # what was found on the way stands on lines that are read again
            stray += 1
        yield from reader.taken()


class _StrayError(Exception):
    """Something is opened that is not closed."""


@dataclass
class _Line:
    """What was read of a line so far."""

    words: list[str] = field(default_factory=list)
    """Of the command that is read."""
    word: str | None = None
    is_target: bool = False
    """The word is one of a redirection."""
    targets: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    """Words of the commands before, of a pipeline."""
    here: list[str] = field(default_factory=list)
    """Last lines of the here-documents that follow."""

    def add(self, part: str) -> None:
        self.word = (self.word or "") + part

    def end_word(self) -> None:
        if self.word is not None:
            (self.targets if self.is_target else self.words).append(self.word)
            self.word, self.is_target = None, False

    def redirect(self) -> None:
        if self.word is not None and _FD.fullmatch(self.word):
            self.word = None
        self.end_word()


class _Reader:
    def __init__(self, text: str) -> None:
        self.at = 0
        self._text = text
        self._found: list[Simple] = []
        self._ends = [place + len(line) for place, line in _lines(text)]
        """Of lines."""
        self._last = {line.strip(): place for place, line in _lines(text)}
        """Line -> where it stands last."""

    def taken(self) -> list[Simple]:
        found, self._found = self._found, []
        return found

    def next_line(self, at: int) -> int:
        return self._text.find("\n", at) + 1 or len(self._text)

    def read(self, end: str = "", depth: int = 0) -> None:
        """One line of commands with all that belongs to it; with `end` all up to that."""
        line, first, limit = _Line(), self.at, self._limit() if end else len(self._text)
        while self.at < limit:
            character = self._text[self.at]
            if not line.words and line.word is None:
                first = self.at
            if character == end:
                self._end_command(line, first)
                self.at += 1
                return
            if character == "\n":
                self._end_command(line, first)
                self.at += 1
                for each in line.here:
                    self._here(each, _is_read(line.before, line.targets), depth)
                if not end:
                    return
                line = _Line()
            elif character in ";&|()" and not self._text.startswith("&>", self.at):
                self._end_command(line, first)
                self.at += 1
            elif character == "#" and line.word is None:
                self.at = max(self._text.find("\n", self.at), 0) or len(self._text)
            else:
                self._part(line, character, depth)
        if end:
            raise _StrayError
        self._end_command(line, first)

    def _part(self, line: _Line, character: str, depth: int) -> None:
        """A part of a word, what parts words, or a redirection."""
        text, at = self._text, self.at
        if character == "\\":
            self.at += 2
            if text[at + 1 : at + 2] != "\n":
                line.add(text[at + 1 : at + 2])
        elif character in "'\"$`" or text.startswith(("<(", ">("), at):
            line.add(self._expansion(depth))
        elif character in "<>&":
            line.redirect()
            operator = _REDIRECTION.match(text, at)
            assert operator
            self.at = operator.end()
            if operator[0] in ("<<", "<<-"):
                delimiter = _DELIMITER.match(text, self.at)
                assert delimiter
                self.at = delimiter.end()
                line.here.append(delimiter[1])
            else:
                line.is_target = True
        elif plain := _PLAIN.match(text, at):
            line.add(plain[0])
            self.at = plain.end()
        else:
            line.end_word()
            self.at += 1

    def _end_command(self, line: _Line, first: int) -> None:
        line.end_word()
        line.is_target = False
        if words := _command(line.words):
            text = self._text[first : self.at].replace("\\\n", " ")
            self._found.append(Simple(self._number(first), " ".join(text.split()), words))
        line.before += line.words
        line.words = []

    def _expansion(self, depth: int) -> str:
        """A quoted part, `$X` as it is, or `$` for commands whose output stands there."""
        if depth >= _DEEPEST:
            raise _StrayError
        text, at = self._text, self.at
        if text[at] == "'" or text.startswith("$'", at):
            begin = text.index("'", at) + 1
            self.at = self._find("'", begin) + 1
            return text[begin : self.at - 1]
        if text[at] == '"':
            self.at += 1
            return self._quoted(depth)
        if text.startswith("$((", at):
            self.at = self._find("))", at) + 2
        elif text.startswith("${", at):
            self.at = self._find("}", at) + 1
            return text[at : self.at]
        elif text.startswith(("$(", "<(", ">("), at):
            self.at += 2
            self.read(")", depth + 1)
        elif text[at] == "`":
            self.at += 1
            self.read("`", depth + 1)
        else:
            self.at += 1
        return "$"

    def _quoted(self, depth: int) -> str:
        limit, parts = self._limit(), []
        while self.at < limit:
            plain = _UNQUOTED.match(self._text, self.at)
            assert plain
            parts.append(plain[0])
            self.at = plain.end()
            character, following = self._text[self.at : self.at + 1], self._text[self.at + 1 : self.at + 2]
            if character == '"':
                self.at += 1
                return "".join(parts)
            if character == "\\":
                parts.append("" if following == "\n" else following if following in '"\\$`' else "\\" + following)
                self.at += 2
            elif character == "$" and following in "'\"":
                parts.append("$")
                self.at += 1
            elif character:
                parts.append(self._expansion(depth + 1))
        raise _StrayError

    def _limit(self) -> int:
        """Where what is opened here must be closed."""
        last = bisect(self._ends, self.at) + _LONGEST
        return min(self._ends[last] if last < len(self._ends) else len(self._text), self.at + _LONGEST_TEXT)

    def _find(self, what: str, begin: int) -> int:
        found = self._text.find(what, begin, self._limit())
        if found < 0:
            raise _StrayError
        return found

    def _here(self, end: str, is_read: bool, depth: int) -> None:
        """Past a here-document, whose commands are taken where it `is_read` by a shell."""
        if self._last.get(end, -1) < self.at:
            return  # none, as in ((1 << n))
        begin = self.at
        after = next(place for place, line in _lines(self._text, begin) if line.strip() == end)
        self.at = self.next_line(after)
        if is_read and depth < _DEEPEST:
            before = self._number(begin) - 1
            inner = simple_commands(self._text[begin:after], depth + 1)
            self._found += [each._replace(number=each.number + before) for each in inner]

    def _number(self, at: int) -> int:
        return bisect_left(self._ends, at) + 1


def _lines(text: str, at: int = 0) -> Iterator[tuple[int, str]]:
    """Each with its place, from `at` on."""
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield at, text[at:end]
        at = end + 1


def _command(words: Sequence[str]) -> tuple[str, ...]:
    at = 0
    while at < len(words) and (words[at] in _KEYWORDS or _ASSIGNMENT.match(words[at])):
        at += 1
    return tuple(words[at:])


def _is_read(words: Sequence[str], targets: Sequence[str]) -> bool:
    """Whether the here-document of a line is for a shell, now or later."""
    if any(map(_READS_OTHER.fullmatch, words)):
        return False
    if any(map(_READS_COMMANDS.fullmatch, words)):
        return True
    files = [*targets, *(words[-1:] if "tee" in words else ())]
    return any(map(_WRITES.fullmatch, words)) and any(not _NO_SCRIPT.fullmatch(each) for each in files)
