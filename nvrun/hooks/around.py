"""Hooks around a running job: before-parts in order, after-parts in reverse order whatever happened between.

    with around(crew, job, say) as hooked:
        hooked.before(hooks, plan)    # Ended where one fails; what had begun is unwound all the same
        ...
        hooked.plan, hooked.facts = plan, facts
        ...
        hooked.looked_at, hooked.result = looked_at, result
        hooked.after()                # while the hosts still answer; where this was not reached, at the end

What they found is then in `hooked.findings`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nvrun.checks.grown import LOOKED_AT, growth
from nvrun.facts import SECTIONS, HostFacts
from nvrun.fleet.crew import FACTS_SECONDS, Crew, Ended
from nvrun.fleet.session import Body
from nvrun.hooks.model import Completed, Hook, HookFailed
from nvrun.job import Job
from nvrun.meanings import means
from nvrun.model import Finding, RunResult, Severity
from nvrun.plan import HostPlan, Plan, as_mapping
from nvrun.prepare import facts_requests

FAILED = means(
    "hook-failed",
    "a hook raised an exception, or its command failed",
    read="the hook's own before-part or after-part",
    why="before the job: it does not start; after it: how the job ended is not changed",
    remedy="nvrun hooks show NAME; --hook none runs without hooks",
    source="hooks/README.md",
)
WARNED = means(
    "hook-warning",
    "a hook has something to say",
    read="what the hook looked at",
    why="as its message says; how the job ended is not changed",
    remedy="nvrun hooks show NAME",
    source="hooks/README.md",
)

_ANSWER_SECONDS = 5.0
"""What a host's answer may take beyond the command's own deadline."""

_Begun = Generator[None, None, None]


class Hooked:
    """A job with its hooks: to them a `hooks.model.Job`, whose words say what each method does."""

    def __init__(self, crew: Crew, job: Job, say: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self.facts: Mapping[int, HostFacts] = {}
        self.looked_at: Collection[int] = ()
        """Nodes of which nvrun itself has told, after a failure, what changed there."""
        self.result: RunResult | None = None
        self._plan: Plan | None = None
        self._crew, self._job, self._say = crew, job, say
        self._begun: list[tuple[Hook, _Begun]] = []
        self._commands = 0

    # -- what hooks use -----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plan = plan

    def on_hosts(
        self,
        argv: Sequence[str],
        *,
        hosts: Collection[str] | None = None,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        program: bytes | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Completed]:
        self._commands += 1
        answer = f"ran {self._commands}"
        bodies = {}
        for host in self.plan.hosts:
            if hosts is None or host.host.name in hosts:
                request = {"argv": list(argv), "stdin": stdin, "timeout": timeout, "cwd": host.cwd,
                           "set": {**as_mapping(host.env), **self._told(host), **(env or {})},
                           "defaults": as_mapping(host.defaults),
                           "program": base64.b64encode(program).decode() if program is not None else None}  # fmt: skip
                bodies[host.node] = {"t": "run", "answer": answer, "run": self.plan.id, "request": request}
        answers = self._crew.answers(bodies, answer, timeout + _ANSWER_SECONDS)
        return {self._name(node): _completed(self._name(node), answers.get(node)) for node in bodies}

    def look(self) -> dict[int, HostFacts]:
        return self._read_again(facts_requests(self._job, self.plan), SECTIONS)

    def changes(self) -> list[Finding]:
        requests = facts_requests(self._job, self.plan)
        wanted = {node: {**requests[node], "sections": LOOKED_AT} for node in self.facts if node not in self.looked_at}
        now = self._read_again(wanted, LOOKED_AT)
        return [finding for node in now for finding in growth(self.facts[node], now[node])]

    def _read_again(self, requests: Mapping[int, Body], sections: Sequence[str]) -> dict[int, HostFacts]:
        found = self._crew.facts_again(requests, FACTS_SECONDS)
        for node, facts in found.items():
            if facts.missing.keys() >= set(sections):
                self.warn(f"facts of {self._name(node)} could not be read", host=self._name(node))
        return found

    def say(self, line: str) -> None:
        self._say(f"nvrun: {line}")

    def warn(self, message: str, *, host: str | None = None, code: str = WARNED) -> None:
        self.find(Finding(code=code, severity=Severity.WARNING, message=message, host=host))

    def find(self, finding: Finding) -> None:
        self.findings.append(finding)

    # -- what the pipeline uses ---------------------------------------------------------------------------------------

    def before(self, hooks: Sequence[Hook], plan: Plan) -> None:
        """Runs the before-parts in order. The first that fails ends the run: Ended."""
        self.plan = plan
        for hook in hooks:
            if hook.around is None:
                continue
            try:
                part = hook.around(self, hook.settings)
                if part is not None and next(part, _DONE) is not _DONE:
                    self._begun.append((hook, part))
            except Ended:
                raise
            except Exception as error:  # noqa: BLE001 - a hook's own code: whatever it raises, the run does not start
                message = f"hook {hook.name}, before the job: {_reason(error)}"
                self.find(Finding(code=FAILED, severity=Severity.FATAL, message=message, subject=hook.name))
                self._crew.end("preflight", HookFailed.exit_code)
                raise Ended from None

    def after(self) -> None:
        """Runs the after-parts of what had begun, the last first. Nothing that one does stops another."""
        while self._begun:
            hook, part = self._begun.pop()
            try:
                if next(part, _DONE) is not _DONE:
                    self.warn(f"hook {hook.name} yields more than once; what follows its second yield did not run")
            except Exception as error:  # noqa: BLE001 - never hides how the job ended
                self.warn(f"hook {hook.name}, after the job: {_reason(error)}", code=FAILED)

    def _name(self, node: int) -> str:
        return self._crew.names[node]

    def _told(self, host: HostPlan) -> dict[str, str]:
        told = {
            "NVRUN_RUN_ID": self.plan.run_id,
            "NVRUN_HOST": host.host.name,
            "NVRUN_NODE_RANK": str(host.node),
            "NVRUN_NODE_COUNT": str(len(self.plan.hosts)),
            "NVRUN_RANKS": str(len(host.ranks)),
            "NVRUN_FOLDER": host.folder,
            "NVRUN_PYTHON": host.argv[0],
        }
        if self.result:
            told |= {"NVRUN_EXIT_CODE": str(self.result.exit_code), "NVRUN_ENDED_BY": self.result.ended_by}
        return told


_DONE = object()


def _completed(host: str, body: Mapping[str, Any] | None) -> Completed:
    if body is None:
        return Completed(host=host, trouble="no answer from there")
    if body["trouble"]:
        return Completed(host=host, trouble=str(body["trouble"]))
    return Completed(host=host, **body["result"])


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, HookFailed) else f"{type(error).__name__}: {error}"


@contextmanager
def around(crew: Crew, job: Job, say: Callable[[str], None]) -> Iterator[Hooked]:
    """The job for its hooks; at the end, however it came, the after-parts have run."""
    hooked = Hooked(crew, job, say)
    try:
        yield hooked
    finally:
        hooked.after()
