"""torchrun's failure banner (ChildFailedError): which rank it saw fail first, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FIELD = re.compile(r"\b(time|host|rank|exitcode|error_file|traceback)\s+: (.*)")
_AGENT = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)")


@dataclass(frozen=True, slots=True)
class Failure:
    """One entry of the banner."""

    status: int
    rank: int | None = None
    host: str | None = None
    time: str = ""
    pid: int | None = None
    root: bool = False
    """It stands under `Root Cause (first observed failure)`."""
    lines: tuple[str, ...] = ()


@dataclass(slots=True)
class BannerReader:
    """Fed line by line; `failures` grows as entries are complete."""

    failures: list[Failure] = field(default_factory=list)
    _open: bool = False
    _root: bool = False
    _fields: dict[str, str] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)

    @property
    def reading(self) -> bool:
        """A banner has begun and not ended."""
        return self._open

    def feed(self, line: str) -> bool:
        """True where the line belongs to a banner (and says nothing else)."""
        if not self._open:
            if "Failures:" in line or "Root Cause (first observed failure)" in line:
                self._open, self._root = True, "Root Cause" in line
                return True
            if "(exitcode" in line and (found := _AGENT.search(line)):
                self.failures.append(Failure(int(found["code"]), pid=int(found["pid"]), lines=(line,)))
                return True
            return False
        if "Root Cause (first observed failure)" in line:
            self._finish()
            self._root = True
            return True
        if "=====" in line:
            self._finish()
            self._open = self._root = False
            return True
        found = _FIELD.search(line)
        if found is None:
            return False
        name, value = found[1], found[2].strip()
        if name == "time":
            self._finish()
        self._fields[name] = value
        self._lines.append(line)
        return name != "traceback" or value.startswith(("Signal", "To enable", "<N/A>"))

    def end(self) -> list[Failure]:
        """All failures, the one that torchrun saw first at the front."""
        self._finish()
        named = {failure.pid for failure in self.failures if failure.rank is not None}
        kept = [f for f in self.failures if f.rank is not None or f.pid not in named]
        return sorted(kept, key=lambda failure: not failure.root)

    def _finish(self) -> None:
        fields, lines = dict(self._fields), tuple(self._lines)
        self._fields.clear()
        self._lines.clear()
        status = re.match(r"(-?\d+)(?: \(pid: (\d+)\))?", fields.get("exitcode", ""))
        if status is None or len(self.failures) >= 4096:
            return
        rank = re.match(r"\d+", fields.get("rank", ""))
        self.failures.append(
            Failure(
                status=int(status[1]),
                rank=int(rank[0]) if rank else None,
                host=fields.get("host") or None,
                time=fields.get("time", ""),
                pid=int(status[2]) if status[2] else None,
                root=self._root,
                lines=lines,
            )
        )
