"""What the monitor of a host does: samples of the host and its ranks, into a file that stays short.

samples.jsonl       first line: what does not change; then one JSON object a sample, as nvrun.monitor.samples has it
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import time
from typing import Any, Dict, Optional

from . import exposition, readings

BYTES = 2 << 20
"""Beyond this every second sample is dropped and from then on half as many are taken: a file of any run is this long at
most and spans all of it."""
_BEGIN_SECONDS = 0.2
"""From the first rank to the first sample: its siblings begin within this."""
_JUST_NOW_SECONDS = 2.0


class Log:
    """The file: a header, then samples, thinned out where it grows too long."""

    def __init__(self, path: str, header: Dict[str, Any], limit: int = BYTES) -> None:
        self.thinned = 0
        """How often every second sample was dropped."""
        self._path, self._limit = path, limit
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self._bytes = os.write(self._file, _line(header))

    def write(self, sample: Dict[str, Any]) -> None:
        data = _line(sample)
        self._bytes += os.write(self._file, data)
        if self._bytes > self._limit:
            self._thin()

    def _thin(self) -> None:
        with open(self._path, "rb") as file:
            header, *samples = file.read().splitlines(keepends=True)
        kept = [header, *samples[::2]]
        part = self._path + ".part"
        new = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self._bytes = os.write(new, b"".join(kept))
        os.rename(part, self._path)
        os.close(self._file)
        self._file = new
        self.thinned += 1


class Monitor:
    """Takes samples of this host and of the ranks it is told of."""

    def __init__(self) -> None:
        self.gpus = readings.Gpus()
        self.ranks: Dict[int, int] = {}
        self._rdma = readings.RdmaPorts()
        self._carriers = readings.Carriers()

    def take(self, whole: bool = True) -> Dict[str, Any]:
        """One sample; what could not be read is absent or, for the GPUs, has its reason. `whole`: also what is dear to
        read."""
        gpus, trouble = self.gpus.read(links=whole)
        sample: Dict[str, Any] = {
            "at": time.time(),
            **readings.host(),
            "interfaces": self._interfaces(),
            "rdma": self._rdma.read(),
            "ranks": {str(rank): found for rank, pid in self.ranks.items() if (found := readings.rank(pid))},
        }
        sample.update({"gpus": gpus} if gpus is not None else {"gpus_unread": trouble})
        used = resource.getrusage(resource.RUSAGE_SELF)
        sample["spent_s"] = round(used.ru_utime + used.ru_stime, 4)
        return sample

    def _interfaces(self) -> Dict[str, Dict[str, int]]:
        found = readings.interfaces()
        for name, times in self._carriers.read().items():
            if name in found:
                found[name]["carrier_down_count"] = times
        return found


class Recorder:
    """Samples of one run on this host, into its file and, where wanted, into Prometheus' folder."""

    def __init__(self, path: str, request: Dict[str, Any]) -> None:
        self._path, self._request = path, request
        self._monitor = Monitor()
        self._log: Optional[Log] = None
        self._textfile: Optional[exposition.Textfile] = None
        self._taken = 0.0
        self._count = 0
        self._begun = math.inf

    @property
    def due(self) -> float:
        """When to take the next one (monotonic)."""
        if self._log is None:
            return self._begun + _BEGIN_SECONDS
        every: float = self._request["every"]
        return self._taken + every * (1 << self._log.thinned)

    def hear(self, line: bytes) -> None:
        """`+RANK PID`: it runs; `-RANK 0`: it has ended; `!0 0`: take a sample now."""
        rank, pid = map(int, line[1:].split())
        if line[:1] == b"+":
            self._monitor.ranks[rank] = pid
            self._begun = min(self._begun, time.monotonic())
        elif line[:1] == b"-":
            self._monitor.ranks.pop(rank, None)
        else:
            self.take(whole=True)

    def take(self, whole: bool = False) -> None:
        sample = self._monitor.take(whole or self._count % readings.LINKS_EVERY == 0)
        self._count += 1
        self._taken = time.monotonic()
        known = self._monitor.gpus.known
        if self._log is None:
            run, host, every = (self._request[name] for name in ("run", "host", "every"))
            header = {"version": 1, "run": run, "host": host, "every": every, "cpus": os.cpu_count(), "gpus": known}
            self._log = Log(self._path, header)
            if self._request["textfile"]:
                self._textfile = exposition.Textfile(self._request["textfile"], run)
        with contextlib.suppress(OSError):  # a full disk costs this sample
            self._log.write(sample)
        if self._textfile:
            self._textfile.write(known, sample)

    def end(self) -> None:
        """The last sample, where there is none of just now."""
        if time.monotonic() - self._taken > _JUST_NOW_SECONDS:
            self.take(whole=True)
        if self._textfile:
            self._textfile.remove()


def follow(inbox: int, path: str, request: Dict[str, Any]) -> None:
    """Samples until `inbox` ends."""
    recorder = Recorder(path, request)
    rest = b""
    while True:
        wait = None if math.isinf(recorder.due) else max(0.0, recorder.due - time.monotonic())
        if not select.select([inbox], [], [], wait)[0]:
            recorder.take()
            continue
        data = os.read(inbox, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            recorder.hear(line)
    recorder.end()


def _line(body: Dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"
