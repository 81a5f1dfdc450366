"""A job that hangs: when every host's ranks are silent they are looked at, and what is seen is said once."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

import msgspec

from nvrun.errors import NvrunError
from nvrun.fleet.crew import Crew
from nvrun.fleet.session import Body
from nvrun.hang import judge
from nvrun.model import Finding, RankEnd, Severity
from nvrun.options import Options
from nvrun.plan import HostPlan, Plan, as_mapping
from nvrun.rundir import RunFolder

STACKS = "stacks.txt"
"""In the run's folder: every rank's stacks when it hung."""
_SHARE = 0.1
"""Of the time of silence, how long the ranks are looked at: a minute after ten."""
_ANSWER_SECONDS = 60.0
"""Beyond the look itself: py-spy's start (20 s), two questions to NCCL's RAS (10 s each), a slow link."""
_RAS_ADDRESS = "localhost:28028"
"""NCCL's own default (user guide, RAS), where nothing else was set."""


class Watch:
    """Told of silence and of words; `turn` does what is due. Times are of time.monotonic()."""

    def __init__(self, crew: Crew, plan: Plan, options: Options, folder: RunFolder, ends: Collection[RankEnd]) -> None:
        self._crew, self._plan, self._folder, self._ends = crew, plan, folder, ends
        self._after = min(options.hang_after, options.hang_timeout)
        self._timeout = options.hang_timeout
        self._seconds = max(1, round(self._after * _SHARE))
        self._since: dict[int, float] = {}
        """Host -> since when its ranks write nothing."""
        self._numbers = itertools.count(1)
        self._answer = ""
        """What the answers to the look that is under way are called; empty where none is."""
        self._answers: dict[int, Body] = {}
        self._deadline = 0.0
        self._next = 0.0
        self._said: set[str] = set()
        self.finding: Finding | None = None

    def message(self, host: int, body: Body) -> None:
        """One of the agents': `silent`, `speaks`, or an answer."""
        kind = body["t"]
        if self._crew.ending:
            return
        if kind == "silent":
            self._since[host] = time.monotonic() - self._after
        elif kind == "speaks":
            self._since.pop(host, None)
            self._over(f"{self._crew.names[host]}'s ranks have gone on")
        elif kind == self._answer:
            self._answers[host] = body

    def turn(self, running: Collection[int]) -> None:
        """Asks, judges or ends the job. `running`: hosts whose ranks are not known to have ended."""
        now = time.monotonic()
        if not running or not all(host in self._since for host in running):
            self._answer = ""
            return
        if not self._answer:
            if now >= self._next:
                self._ask(running, now)
        elif set(running) <= set(self._answers) or now > self._deadline:
            self._answer = ""
            silent = now - max(self._since[host] for host in running)
            self._judge(running, silent)
            # Next when the time is up that the user gave the job, or when it has been silent for as long again.
            left = self._timeout - silent
            self._next = now + (max(0.0, left - self._seconds) if 0 < left < math.inf else self._after)

    def _ask(self, running: Collection[int], now: float) -> None:
        self._answer, self._answers = f"stacks-{next(self._numbers)}", {}
        self._deadline = now + self._seconds + _ANSWER_SECONDS
        first = min(running)
        for host in running:
            request = {"seconds": self._seconds, "ras": self._ras(self._plan.hosts[host]) if host == first else None}
            self._crew.send({"t": "stacks", "request": request, "answer": self._answer}, to=[host])

    def _ras(self, host: HostPlan) -> str | None:
        """One process answers for all of the job. None where no rank has a GPU."""
        if not any(rank.binding and rank.binding.gpu for rank in host.ranks):
            return None
        return as_mapping(host.ranks[0].env).get("NCCL_RAS_ADDR", _RAS_ADDRESS)

    def _judge(self, running: Collection[int], silent: float) -> None:
        seen, ras = self._seen(running)
        elsewhere = len(seen) < self._plan.world_size
        said = judge.judge(seen, ras, silent=silent, elsewhere=elsewhere, nodes=dict(self._nodes()))
        if isinstance(said, judge.Moves):
            self._over(said.why)
        elif isinstance(said, judge.Unknown):
            self._unknown(said, silent)
        else:
            self._hangs(said.finding, seen, silent)

    def _seen(self, running: Collection[int]) -> tuple[list[judge.Seen], tuple[str, ...]]:
        seen: dict[int, judge.Seen] = {}
        ras: tuple[str, ...] = ()
        last = max((end.attempt for end in self._ends), default=0)
        for end in self._ends:
            if end.attempt == last:
                seen[end.rank] = judge.Seen(rank=end.rank, host=end.host)
        for host in running:
            answer = self._host_look(host)
            ras = ras or answer.ras
            for rank, look in answer.ranks.items():
                seen[rank] = judge.Seen(rank=rank, host=self._crew.names[host], look=look)
        return [seen[rank] for rank in sorted(seen)], ras

    def _host_look(self, host: int) -> judge.HostLook:
        """What a host saw. Where its answer did not come, or is not understood, nothing is known of its ranks."""
        body = self._answers.get(host, {"result": None, "trouble": "it did not answer in time"})
        trouble = body["trouble"]
        if not trouble:
            try:
                return msgspec.convert(body["result"], judge.HostLook, str_keys=True)
            except msgspec.ValidationError as error:
                trouble = f"its answer is not understood: {error}"
        look = judge.Look(
            pid=0, samples=0, threads=(), own_cpu=0.0, below_cpu=0.0, starved=0.0, faults=0.0, io=None, trouble=trouble
        )
        return judge.HostLook(ranks={rank.rank: look for rank in self._plan.hosts[host].ranks})

    def _nodes(self) -> Iterable[tuple[str, str]]:
        for host, hello in self._crew.hello.items():
            name = self._crew.names[host]
            yield name, name
            yield hello["hostname"], name
            for _, address in hello["addresses"]:
                if not address.startswith("127.") and address != "::1":
                    yield address, name

    # -- what is said -----------------------------------------------------------------------------------------------

    def _hangs(self, finding: Finding, seen: list[judge.Seen], silent: float) -> None:
        if self.finding is None or self.finding.severity < Severity.ERROR:
            with suppress(NvrunError):  # a full disk: the finding holds the stacks that matter
                self._folder.write(STACKS, judge.all_stacks(seen).encode(errors="replace"))
            self._say(finding.message)
            for line in finding.evidence:
                self._say(f"  {line}")
            self._say(f"  {finding.remedy}")
            self._say(f"  all stacks: {self._folder.path / STACKS}")
            self.finding = finding
        if silent >= self._timeout:
            message = f"ended: no output for {silent:.0f} s and no rank moves (--hang-timeout {self._timeout:g})"
            self._crew.end("hang", 124, message)

    def _unknown(self, unknown: judge.Unknown, silent: float) -> None:
        words = "; ".join(f"{host}: {why}" if host else why for host, why in unknown.reasons[:4])
        words += f" and {len(unknown.reasons) - 4} more hosts" if len(unknown.reasons) > 4 else ""
        if words in self._said:
            return
        self._said.add(words)
        message = f"no output for {silent:.0f} s; whether the job hangs is not judged: {words}"
        self._say(message)
        if self.finding is None:
            self.finding = Finding(code=judge.NOT_JUDGED, severity=Severity.INFO, message=message)

    def _over(self, why: str) -> None:
        self._answer = ""
        if self.finding and self.finding.severity >= Severity.ERROR:
            self._say(f"it goes on: {why}")
            message = f"for a while: {self.finding.message}; it went on"
            self.finding = msgspec.structs.replace(self.finding, severity=Severity.INFO, message=message, remedy="")

    def _say(self, line: str) -> None:
        self._crew.say(f"nvrun: {line}")
