"""What torchrun and its ranks write: into files, on the launcher's console by the run's rule, and looked at on the way
for what the launcher wants to know."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional

from . import wire
from .followed import Followed, Noted
from .gate import Rank
from .link import Link
from .loop import READ, Loop
from .streams import Stream

TORCHRUN = 0xFFFFFFFF
"""Stands for torchrun itself where a rank is expected."""

_FOLLOW_SECONDS = 1.0
_EXIT_CODE = re.compile(rb"exitcode\s*:\s*(-?\d+)\)?\s.*?\(?pid: (\d+)\)")

_Show = Callable[[bytes, bool], None]


def _nowhere(line: bytes, progress: bool) -> None:
    """Shows nothing: the user sent this stream to torchrun's files alone (--redirects)."""


class Output:
    """All streams of one job on this host; torchrun's are there at once."""

    def __init__(
        self,
        loop: Loop,
        link: Link,
        where: str,
        request: Mapping[str, Any],
        ranks: Mapping[int, Rank],
        said: Callable[[], bool],
    ) -> None:
        """`where`: the folder of logs. `ranks`: by pid, those that ended too. `said`: whether the launcher's own report
        says more than torchrun's banner would."""
        self.codes: Dict[int, int] = {}
        """Pid -> exit code, in torchrun's words: what is left when it reaped a rank before anyone could look."""
        self._loop, self._link, self._where = loop, link, where
        self._shown = request["console"]
        self._first_lines: int = request["first_stderr"]
        self._ranks, self._said = ranks, said
        self._begun = self._ended = False
        self._held_back: List[Callable[[], None]] = []
        self._noted: Optional[Noted] = None
        self._files: Optional[Followed] = None
        self._streams: List[Stream] = []
        self.torchrun = [
            Stream(os.path.join(where, "torchrun.out"), partial(self._of_torchrun, wire.STDOUT)),
            Stream(os.path.join(where, "torchrun.err"), partial(self._of_torchrun, wire.STDERR)),
        ]

    def begin(self, message: Mapping[str, Any]) -> None:
        """The ranks are let go: what torchrun has said so far may be shown, and files are followed."""
        self._begun = True
        noted = message["noted"]
        self._noted = Noted(noted, lambda lines: self._link.send({"t": "noted", "lines": lines}))
        echoed = [(wish["files"], partial(self._echoed, wish["text"].encode())) for wish in message["echo"]]
        self._files = Followed(self._where, [*echoed, (noted["files"], self._note_of)])
        self._follow_files()
        held, self._held_back = self._held_back, []
        for show in held:
            show()

    def of_rank(self, rank: Rank, plan: Mapping[str, Any]) -> List[Stream]:
        """Standard output and error of a rank that is let go; their write ends are still to be handed over."""
        suffix = ".%d" % rank.attempt if rank.attempt else ""
        return [
            Stream(
                os.path.join(self._where, "rank%d%s.%s" % (rank.rank, suffix, ending)),
                self._noting(
                    rank.local_rank,
                    _nowhere if plan.get("hidden", 0) & bit else partial(self._of_rank, stream, rank.rank),
                ),
                os.path.join(rank.torchruns_folder, name) if plan.get("files", 0) & bit else None,
            )
            for stream, ending, name, bit in (
                (wire.STDOUT, "out", "stdout.log", 1),
                (wire.STDERR, "err", "stderr.log", 2),
            )
        ]

    def follow(self, streams: List[Stream], heard: Callable[[], None] = lambda: None) -> None:
        """Reads them as they are written, once their write ends are another process's; `heard` is told."""
        for stream in streams:
            stream.close_write_end()
            self._streams.append(stream)
            self._loop.watch(stream.read_end, READ, partial(self._pump, stream, heard))

    def end(self) -> Dict[str, Any]:
        """The last bytes of all of it; what was lost, for the word to the launcher."""
        self._ended = True
        if self._files:
            self._files.end()
        for stream in self._streams:
            if not stream.closed:
                self._loop.unwatch(stream.read_end)
                stream.drain()
                stream.close()
        if self._noted:
            self._noted.tell()
        return {"tail": self.torchrun[1].tail(),
                "dropped": self._link.dropped_bytes + sum(stream.cut_bytes for stream in self._streams),
                "lost": {stream.path: [stream.lost_bytes, stream.trouble]
                         for stream in self._streams if stream.lost_bytes}}  # fmt: skip

    def _pump(self, stream: Stream, heard: Callable[[], None]) -> None:
        heard()
        if not stream.pump():
            self._loop.unwatch(stream.read_end)
            stream.close()

    # -- lines ----------------------------------------------------------------------------------------------------

    def _of_torchrun(self, kind: bytes, line: bytes, progress: bool) -> None:
        for code, pid in _EXIT_CODE.findall(line):
            self.codes[int(pid)] = int(code)
        if self._said():
            return  # the file has it
        show = partial(self._link.console, kind, TORCHRUN, line, progress)
        if self._begun:
            show()
        else:
            self._held_back.append(show)

    def _of_rank(self, kind: bytes, rank: int, line: bytes, progress: bool) -> None:
        if self._shown != "all" and rank not in self._shown:
            if kind != wire.STDERR or self._first_lines <= 0:
                return
            self._first_lines -= 1
        self._link.console(kind, rank, line, progress)

    def _noting(self, local_rank: int, show: _Show) -> _Show:
        """`show`, after the line was looked at for what the launcher wants to know."""

        def look(line: bytes, progress: bool) -> None:
            assert self._noted is not None
            self._noted.take(local_rank, line)
            show(line, progress)

        return look

    def _follow_files(self) -> None:
        if self._files and self._noted and not self._ended:
            self._files.look()
            self._noted.tell()
            self._loop.later(_FOLLOW_SECONDS, self._follow_files)

    def _echoed(self, text: bytes, pid: int, line: bytes) -> None:
        if text in line and pid in self._ranks:
            self._of_rank(wire.STDERR, self._ranks[pid].rank, line, False)

    def _note_of(self, pid: int, line: bytes) -> None:
        if self._noted and pid in self._ranks:
            self._noted.take(self._ranks[pid].local_rank, line)
