"""Python tracebacks in a log, also where the streams of several ranks run into each other with prefixes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

START = "Traceback (most recent call last)"
CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_EXCEPTION = re.compile(r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z_a-z]\w*)(?:: (?P<text>.*))?$")
_NOT_OF_THE_USER = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen |torch/distributed/")
_TAIL = 12
_KEPT = 200
"""Lines of one traceback that are held until it ends."""
_MOST = 256


@dataclass(frozen=True, slots=True)
class PythonError:
    """One exception that ended in a traceback."""

    name: str
    text: str
    line: str
    """The exception's own line, as written."""
    frame: str = ""
    """Deepest frame in the user's own code, `train.py:12 in step`; the deepest of all where there is none."""
    tail: tuple[str, ...] = ()
    """The traceback, shortened to a few lines, the exception last."""


@dataclass(slots=True)
class _Open:
    lines: list[str] = field(default_factory=list)
    user_frame: str = ""
    last_frame: str = ""
    strangers: int = 0


@dataclass(slots=True)
class TracebackReader:
    """Fed line by line. A chain of exceptions is told by its first one: the others were raised while handling it."""

    chains: dict[str, list[list[PythonError]]] = field(default_factory=dict)
    """Prefix of the stream (`[rank0]: `) -> chains in the order they came."""
    _open: dict[str, _Open] = field(default_factory=dict)
    _joins: set[str] = field(default_factory=set)
    quoting: bool = False
    """The line last fed is a traceback's own: a frame, or source code, whose words are not what happened."""

    @property
    def reading(self) -> bool:
        """A traceback has begun and not ended."""
        return bool(self._open)

    def feed(self, line: str) -> PythonError | None:
        """The exception that this line ends, where it does."""
        self.quoting = False
        at = line.find(START)
        if at >= 0:
            self._start(line, at)
            return None
        for prefix in self._open:
            if line.startswith(prefix):
                return self._continue(prefix, line)
        for marker in CHAIN:
            if marker in line:
                self._joins.add(line[: line.index(marker)])
        for prefix in list(self._open):
            self._open[prefix].strangers += 1
            if self._open[prefix].strangers > 1000:
                del self._open[prefix]
        return None

    def _start(self, line: str, at: int) -> None:
        # torchrun's banner repeats a traceback, indented, after `traceback : `
        prefix = line[: len(line) - len(line.lstrip())] if line[:at].endswith("traceback : ") else line[:at]
        if len(self._open) < _MOST:
            self._open[prefix] = _Open(lines=[line])

    def _continue(self, prefix: str, line: str) -> PythonError | None:
        opened = self._open[prefix]
        body = line[len(prefix) :]
        if body.startswith(" ") or not body.strip():
            self.quoting = True
            if frame := _FRAME.search(body):
                text = f"{frame['file']}:{frame['line']} in {frame['function']}"
                opened.last_frame = text
                if not _NOT_OF_THE_USER.search(frame["file"]):
                    opened.user_frame = text
            opened.lines.append(line)
            del opened.lines[1:-_KEPT]
            return None
        found = _EXCEPTION.match(body)
        if found is None or not _looks_like_exception(found["name"]):
            opened.strangers += 1
            return None
        del self._open[prefix]
        error = PythonError(
            name=found["name"].rpartition(".")[2],
            text=found["text"] or "",
            line=line,
            frame=opened.user_frame or opened.last_frame,
            tail=shortened([*opened.lines, line], _TAIL),
        )
        chains = self.chains.setdefault(prefix, [])
        if prefix in self._joins and chains:
            chains[-1].append(error)
        elif len(chains) < _MOST:
            chains.append([error])
        self._joins.discard(prefix)
        return error


def shortened(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """A traceback in at most `most` lines: the line that it starts with, whole frames from its end, and the exception.
    What is left of one begins with a whole frame; of other lines these are the last."""
    begins = max((at for at, line in enumerate(lines) if START in line), default=None)
    if begins is None:
        return _from_a_frame(lines[-most:])
    lines = lines[begins:]
    if len(lines) <= most:
        return tuple(lines)
    prefix = lines[0][: lines[0].find(START)]
    return (lines[0], f"{prefix}  ...", *_from_a_frame(lines[2 - most :]))


def _from_a_frame(lines: Sequence[str]) -> tuple[str, ...]:
    """Without what is left of a frame before them."""
    frame = next((at for at, line in enumerate(lines) if _FRAME.search(line)), None)
    if frame is None:  # lines of something else, or an exception of many
        frame = next((at for at, line in enumerate(lines) if set(line) - set(" ^~")), 0)
    return tuple(lines[frame:])


def _looks_like_exception(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last[:1].isupper() or last.endswith(("error", "exception"))
