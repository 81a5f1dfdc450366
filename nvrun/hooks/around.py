"""Hooks around a running job: before-parts in order, after-parts in reverse order whatever happened between.

    with around(crew, job, say) as hooked:
        hooked.before(hooks, plan)    # Ended where one fails; what had begun is unwound all the same
        ...
        hooked.plan, hooked.facts = plan, facts
        ...
        hooked.result = result
        hooked.after()                # while the hosts still answer; where this was not reached, at the end

What they found is then in `hooked.findings`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from nvrun import facts as facts_module
from nvrun.facts import HostFacts
from nvrun.fleet.crew import FACTS_SECONDS, Crew, Ended
from nvrun.hooks.model import Completed, Hook, HookFailed
from nvrun.meanings import means
from nvrun.model import Finding, RunResult, Severity
from nvrun.plan import HostPlan, Plan, as_mapping
from nvrun.prepare import facts_requests

if TYPE_CHECKING:
    from nvrun.job import Job as Asked

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


class Job:
    """The job as a hook sees it."""

    def __init__(self, crew: Crew, asked: Asked, say: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self.facts: Mapping[int, HostFacts] = {}
        """Node -> what its host was like before the launch; empty in a before-part."""
        self.result: RunResult | None = None
        """How it ended; None in a before-part, and where it never got to an end."""
        self._plan: Plan | None = None
        self._crew, self._asked, self._say = crew, asked, say
        self._begun: list[tuple[Hook, _Begun]] = []
        self._commands = 0
        self._unwinding = False

    # -- what hooks use -----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """In a before-part without bindings and variables, which come with the facts."""
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
        """Host -> how the command ended there; all hosts at once, in the job's directory and environment.

        It is told NVRUN_RUN_ID, NVRUN_HOST, NVRUN_NODE_RANK, NVRUN_NODE_COUNT, NVRUN_RANKS (on that host),
        NVRUN_FOLDER (the host's log folder), NVRUN_PYTHON (the job's interpreter), and in an after-part
        NVRUN_EXIT_CODE and NVRUN_ENDED_BY. `program` takes argv[0]'s place: it travels along, into a folder of its
        own. Nothing is raised for a command that fails; `timeout` is in seconds.
        """
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
        answers = self._crew.answers(bodies, answer, timeout + _ANSWER_SECONDS, after_the_end=self._unwinding)
        return {self._name(node): _completed(self._name(node), answers.get(node)) for node in bodies}

    def look(self) -> dict[int, HostFacts]:
        """Node -> facts read anew, of the hosts that answer with any."""
        requests = facts_requests(self._asked, self.plan)
        bodies = {node: {"t": "facts", "request": each, "deadline": FACTS_SECONDS} for node, each in requests.items()}
        found = {}
        answers = self._crew.answers(bodies, "facts", FACTS_SECONDS + _ANSWER_SECONDS, after_the_end=self._unwinding)
        for node, body in answers.items():
            try:
                found[node] = facts_module.decode(body["result"])
            except msgspec.ValidationError:  # or the reason why there is no result
                self.warn(f"facts of {self._name(node)} could not be read", host=self._name(node))
        return found

    def say(self, line: str) -> None:
        """A line on the console."""
        self._say(f"nvrun: {line}")

    def warn(self, message: str, *, host: str | None = None, code: str = WARNED) -> None:
        """A finding that changes nothing of how the job ended."""
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
        self._unwinding = True
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
        return Completed(host=host, trouble=str(body["trouble"]).strip().splitlines()[-1])
    return Completed(host=host, **body["result"])


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, HookFailed) else f"{type(error).__name__}: {error}"


@contextmanager
def around(crew: Crew, asked: Asked, say: Callable[[str], None]) -> Iterator[Job]:
    """The job for its hooks; at the end, however it came, the after-parts have run."""
    job = Job(crew, asked, say)
    try:
        yield job
    finally:
        job.after()
