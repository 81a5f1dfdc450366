"""One node's part in the gathering of its Slurm step: from its own facts to the verdict that all nodes share, and the
end that they share."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from nvrun import preflight
from nvrun.facts import SECTIONS, HostFacts
from nvrun.fleet.crew import Crew, Ended
from nvrun.gather import proof
from nvrun.gather.cards import Answer, Card, End, Known, card, differences, known, missing
from nvrun.gather.meeting import Event, First, Other, Side
from nvrun.gather.step import Step
from nvrun.job import Job
from nvrun.meanings import found
from nvrun.model import Finding, Frozen, RunResult, Severity, Verdict, worst_first
from nvrun.plan import Plan
from nvrun.prepare import plan_of_step

GATHER_SECONDS = 60.0
"""srun starts tasks within a second of each other; from a cold file server Python's imports take up to a minute."""
_LOOK_SECONDS = 0.02
_CLOCK = ("clock_offset_s", "clock_error_s")
_LARGEST_SCRIPT = 16 << 20


class _Gathered(Frozen, frozen=True, kw_only=True):
    """The first node's result of waiting."""

    cards: Mapping[int, Card]
    findings: tuple[Finding, ...] = ()


class Gathering:
    """Made before the agent is asked anything, so that nodes find each other meanwhile."""

    def __init__(self, job: Job, step: Step, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._job, self._step, self._say = job, step, say
        self._ways = proof.ways(environ)
        self._started = time.monotonic()
        self._side: Side | None = None
        self._trouble = ""
        if not self._ways.ways:
            self._trouble = f"nodes cannot prove who they are: {'; '.join(self._ways.missing)}"
        elif step.node == 0:
            try:
                self._side = First(step, self._ways.ways)
            except OSError as error:
                self._trouble = f"none of the ports {step.ports[0]} to {step.ports[-1]} is free here: {error.strerror}"

    def decide(self, crew: Crew, plan: Plan, facts: HostFacts, found: Sequence[Finding]) -> preflight.Decided:
        """The verdict on the whole step, and this node's own plan. Ended where a signal or a loss came first."""
        if self._trouble:
            self._say(f"nvrun: this node is checked alone: {self._trouble}")
            return preflight.decide(self._job, plan, {0: facts}, found)
        facts = msgspec.structs.replace(_clockless(facts), host=self._step.names[self._step.node])
        mine = card(self._job, len(plan.hosts[0].ranks), facts, self._program(), tuple(found))
        if isinstance(self._side, First):
            decided = self._judge(plan, facts, self._wait_for_all(crew, mine))
        else:
            self._side = Other(self._step, self._ways.ways, msgspec.json.encode(mine))
            decided = self._obey(plan, facts, self._wait_for_answer(crew, self._side))
        threading.Thread(target=self._watch, args=(crew, self._side), daemon=True).start()
        return decided

    def tell(self, result: RunResult) -> None:
        """The other nodes are told how it ended here."""
        if self._side:
            words = result.message
            if failed := result.first_failure:
                words = f"rank {failed.rank} on {failed.host} failed"
            name = self._step.names[self._step.node]
            end = End(node=name, by=result.ended_by, code=result.exit_code, words=words[:500])
            self._side.tell(msgspec.json.encode(end))

    def close(self) -> None:
        if self._side:
            self._side.close()

    # -- the first node ---------------------------------------------------------------------------------------------

    def _wait_for_all(self, crew: Crew, mine: Card) -> _Gathered:
        assert self._side
        cards = {0: mine}
        findings: list[Finding] = []
        unread: set[int] = set()
        deadline = self._started + GATHER_SECONDS
        while len(cards) + len(unread) < len(self._step.names) and time.monotonic() < deadline:
            for event in self._events(crew, self._side):
                if event.kind == "card":
                    try:
                        cards[event.node] = msgspec.json.decode(event.data, type=Card)
                    except msgspec.DecodeError as error:
                        unread.add(event.node)
                        findings.append(_unread(self._step.names[event.node], str(error)))
        absent = [name for node, name in enumerate(self._step.names) if node not in cards and node not in unread]
        findings += missing(absent, GATHER_SECONDS)
        return _Gathered(cards=dict(sorted(cards.items())), findings=tuple(findings))

    def _judge(self, plan: Plan, facts: HostFacts, gathered: _Gathered) -> preflight.Decided:
        names, cards = self._step.names, gathered.cards
        usual = cards[0].ranks
        nodes = tuple(
            known(name, cards[node]) if node in cards else Known(name=name, ranks=usual, addresses=())
            for node, name in enumerate(names)
        )
        everybody = {
            node: msgspec.structs.replace(cards[node].facts, host=name) if node in cards else _nothing(name)
            for node, name in enumerate(names)
        }
        findings = [
            *gathered.findings,
            *differences({names[node]: each for node, each in cards.items()}),
            *(_of(names[node], finding) for node, each in cards.items() for finding in each.findings),
        ]
        decided = preflight.decide(self._job, plan_of_step(self._job, plan, nodes, 0), everybody, findings)
        assert isinstance(self._side, First)
        answer = Answer(verdict=decided.verdict, exit_code=decided.exit_code, nodes=nodes)
        self._side.answer(msgspec.json.encode(answer))
        return self._own(decided, plan)

    # -- the others -------------------------------------------------------------------------------------------------

    def _wait_for_answer(self, crew: Crew, side: Side) -> Answer | Finding:
        first, trouble = self._step.names[0], "it has not answered"
        deadline = self._started + 2 * GATHER_SECONDS  # the first waits for the slowest, then judges
        while time.monotonic() < deadline:
            for event in self._events(crew, side):
                if event.kind == "answer":
                    try:
                        return msgspec.json.decode(event.data, type=Answer)
                    except msgspec.DecodeError as error:
                        return _unread(first, str(error))
                if event.kind == "gone":
                    return _not_heard(first, "its nvrun ended before it had judged")
                if event.kind == "cannot":
                    trouble = event.data.decode(errors="replace")[:300]
        return _not_heard(first, trouble)

    def _obey(self, plan: Plan, facts: HostFacts, answer: Answer | Finding) -> preflight.Decided:
        names, node = self._step.names, self._step.node
        if isinstance(answer, Finding):
            return preflight.decide(self._job, plan, {0: facts}, [answer])
        everybody = {number: each.as_facts() for number, each in enumerate(answer.nodes)} | {node: facts}
        world = plan_of_step(self._job, plan, answer.nodes, node)
        decided = preflight.placed_only(self._job, world, everybody)
        mine = [finding for finding in worst_first(answer.verdict.findings) if finding.host == names[node]]
        lines = [*preflight.shown(Verdict(findings=tuple(mine)))] if mine else []
        if answer.exit_code:
            lines.append(f"nvrun: refused by the checks: {names[0]} says why")
        decided = msgspec.structs.replace(decided, exit_code=answer.exit_code, lines=tuple(lines))
        return self._own(decided, plan)

    # -- both -------------------------------------------------------------------------------------------------------

    def _own(self, decided: preflight.Decided, started: Plan) -> preflight.Decided:
        """Of the step's plan what this node's own agent is to do: with the command that it has already started."""
        there = decided.plan.hosts[self._step.node]
        here = msgspec.structs.replace(there, node=0, argv=started.hosts[0].argv, env=started.hosts[0].env)
        return msgspec.structs.replace(decided, plan=msgspec.structs.replace(decided.plan, hosts=(here,)))

    def _program(self) -> bytes | None:
        if self._job.script is None:
            return None
        try:
            with open(Path(self._job.cwd, self._job.script), "rb") as file:
                return file.read(_LARGEST_SCRIPT)
        except OSError:
            return None

    def _events(self, crew: Crew, side: Side) -> Iterator[Event]:
        """What has come, after a moment in which signals and the agent were heard."""
        crew.pump(time.monotonic() + _LOOK_SECONDS)
        if crew.ending:
            raise Ended
        while True:
            try:
                yield side.events.get_nowait()
            except queue.Empty:
                return

    def _watch(self, crew: Crew, side: Side) -> None:
        """The end of the job on another node ends it here, and on all others that only the first can tell."""
        done: set[int] = set()
        while True:
            event = side.events.get()
            name = self._step.names[event.node]
            if event.kind == "end":
                try:
                    end = msgspec.json.decode(event.data, type=End)
                except msgspec.DecodeError:
                    continue
                done.add(event.node)
                if end.code:
                    side.tell(event.data, but=event.node)
                    crew.end_from_outside(end.by, end.code, f"ended on {end.node}: {end.words or end.by}")
            elif event.kind == "gone" and event.node not in done:
                crew.end_from_outside("lost", 69, f"lost {name}: its nvrun is gone")


@contextmanager
def gathering(job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> Iterator[Gathering | None]:
    """This node's gathering, where the job is one of a step with several nodes and checks are wanted."""
    if job.step is None or len(job.step.names) < 2 or job.options.check == "off":
        yield None
        return
    here = Gathering(job, job.step, environ, say)
    try:
        yield here
    finally:
        here.close()


def _nothing(name: str) -> HostFacts:
    return HostFacts(host=name, missing=dict.fromkeys((*SECTIONS, *_CLOCK), "its nvrun has not told"))


def _clockless(facts: HostFacts) -> HostFacts:
    """Without the offset from this very nvrun's clock, which would always be 0."""
    missing = {**facts.missing, **dict.fromkeys(_CLOCK, "nodes of a step do not measure each other's clocks")}
    return msgspec.structs.replace(facts, clock_offset_s=None, clock_error_s=None, missing=missing)


def _of(name: str, finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, host=name)


def _unread(name: str, why: str) -> Finding:
    message = f"what its nvrun says is not understood: {why[:200]}"
    return found("node-not-understood", Severity.ERROR, message, host=name)


def _not_heard(name: str, why: str) -> Finding:
    message = f"the first node of the step cannot be heard: {why}"
    return found("node-not-heard", Severity.ERROR, message, host=name)
