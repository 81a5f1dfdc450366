"""Two nodes of a step decide together over loopback: what each is told, and what one does without the other."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nvrun import job
from nvrun.config import parse
from nvrun.facts import HostFacts
from nvrun.gather import cards, join, proof
from nvrun.gather.cards import Card, Known
from nvrun.gather.join import Gathering
from nvrun.model import Finding, Host, Severity
from nvrun.plan import Plan, Site, build
from nvrun.preflight import Decided
from tests.checks.fleets import fleet

NODES = ("127.0.0.1", "127.0.0.2")
KIND = "cpu_host"


class Quiet:
    """A crew of which nothing is heard."""

    ending = None

    def __init__(self) -> None:
        self.ended: list[tuple[str, int, str]] = []

    def pump(self, deadline: float) -> None:
        time.sleep(max(0.0, deadline - time.monotonic()))

    def end_from_outside(self, by: str, code: int, message: str) -> None:
        self.ended.append((by, code, message))


class Node:
    """One nvrun of the step, as far as it decides."""

    def __init__(self, node: int, tmp_path: Path, line: str = "", names: tuple[str, ...] = NODES) -> None:
        environ = {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": "7",
            "SLURM_STEP_NODELIST": ",".join(names),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{len(names)})",
            "SLURM_NODEID": str(node),
            "HOME": str(tmp_path),
            "PATH": str(tmp_path),
        }
        self.crew = Quiet()
        self.said: list[str] = []
        self.job = job.read(parse(["--hook", "none", *line.split(), "train.py"], environ), environ)
        assert self.job.step
        self.gathering = Gathering(self.job, self.job.step, environ, self.said.append)
        self.facts: HostFacts = list(fleet(KIND, len(names)).values())[node]
        self.decided: Decided | None = None
        self.plan: Plan = build(
            run_id="run",
            args=self.job.args,
            sites=[Site(host=Host(name=names[node]), ranks=2 + node, python="python3", folder="")],
            cwd="/",
            fleet=False,
            master_port=None,
            grace=1,
            lost_after=1,
        )

    def decide(self, *found: Finding) -> Decided:
        facts = msgspec.structs.replace(self.facts, host=NODES[self.job.step.node])  # type: ignore[union-attr]
        self.decided = self.gathering.decide(self.crew, self.plan, facts, found)  # type: ignore[arg-type]
        return self.decided


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for both, a PATH without munge, and less patience."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(join, "GATHER_SECONDS", 0.5)
    return tmp_path


@pytest.fixture
def nodes(path: Path) -> Iterator[list[Node]]:
    both = [Node(0, path), Node(1, path)]
    yield both
    for node in both:
        node.gathering.close()


def together(nodes: list[Node], *found: Finding) -> tuple[Decided, Decided]:
    """Both decide at once; `found` by the second."""
    thread = threading.Thread(target=nodes[1].decide, args=found)
    thread.start()
    first = nodes[0].decide()
    thread.join(10)
    assert nodes[1].decided
    return first, nodes[1].decided


def test_each_node_plans_its_own_ranks_in_one_world(nodes: list[Node]) -> None:
    first, second = together(nodes)
    assert (first.exit_code, second.exit_code) == (0, 0), first.lines
    assert [rank.rank for rank in first.plan.hosts[0].ranks] == [0, 1]
    assert [rank.rank for rank in second.plan.hosts[0].ranks] == [2, 3, 4]
    assert [host.host.name for decided in (first, second) for host in decided.plan.hosts] == list(NODES)
    assert first.plan.world_size == second.plan.world_size == 5
    assert second.plan.hosts[0].node == 0, "it is the only host of its own agent"
    assert second.plan.hosts[0].argv == nodes[1].plan.hosts[0].argv, "torchrun runs already"


def test_what_one_node_finds_refuses_both(nodes: list[Node]) -> None:
    bad = Finding(code="x", severity=Severity.ERROR, message="it is broken")
    first, second = together(nodes, bad)
    assert (first.exit_code, second.exit_code) == (78, 78)
    assert set(first.bad_hosts) == {NODES[1]}
    assert any("it is broken" in line for line in first.lines)
    assert any("it is broken" in line for line in second.lines)
    assert f"nvrun: refused by the checks: {NODES[0]} says why" in second.lines


def test_a_missing_node_is_named_in_time(nodes: list[Node]) -> None:
    started = time.monotonic()
    first = nodes[0].decide()
    assert time.monotonic() - started < 5
    assert (first.exit_code, set(first.bad_hosts)) == (78, {NODES[1]})
    assert any("its nvrun has not come within 0.5 s" in line for line in first.lines)


def test_a_dead_first_node_is_named_in_time(path: Path) -> None:
    other = Node(1, path)
    started = time.monotonic()
    decided = other.decide()
    other.gathering.close()
    assert time.monotonic() - started < 5
    assert decided.exit_code == 78
    assert any("the first node of the step cannot be heard: Connection refused" in line for line in decided.lines)


def test_without_a_proof_each_node_is_checked_alone_and_says_so(path: Path) -> None:
    (path / ".local").write_text("no folder can be made here")
    node = Node(0, path)
    assert node.decide().exit_code == 0
    (said,) = node.said
    assert said.startswith("nvrun: this node is checked alone: nodes cannot prove who they are: munge is not installed")
    assert not proof.ways({"HOME": str(path)}).ways


def test_another_command_line_is_named(path: Path) -> None:
    both = [Node(0, path), Node(1, path, "--grace 3")]
    first, second = together(both)
    for node in both:
        node.gathering.close()
    assert (first.exit_code, second.exit_code) == (78, 78)
    assert not first.bad_hosts, "another node would not be better"
    assert any(f"{NODES[1]}: its command line is another than on {NODES[0]}" in line for line in first.lines)


def test_the_end_of_one_node_is_the_end_of_all(nodes: list[Node]) -> None:
    together(nodes)
    side = nodes[1].gathering._side
    assert side
    end = cards.End(node=NODES[1], by="rank", code=37, words="rank 3 on b failed")
    side.tell(msgspec.json.encode(end))
    deadline = time.monotonic() + 5
    while not nodes[0].crew.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert nodes[0].crew.ended == [("rank", 37, f"ended on {NODES[1]}: rank 3 on b failed")]


def test_a_node_that_vanishes_ends_the_others(nodes: list[Node]) -> None:
    together(nodes)
    nodes[1].gathering.close()
    deadline = time.monotonic() + 5
    while not nodes[0].crew.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert nodes[0].crew.ended == [("lost", 69, f"lost {NODES[1]}: its nvrun is gone")]


# -- pure -------------------------------------------------------------------------------------------------------------


def a_card(**changes: object) -> Card:
    fields = {"ranks": 1, "command": "c" * 64, "script": "s" * 64, "world": "w", "nvrun": "1"} | changes
    return Card(facts=HostFacts(host="x"), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message", "code"),
    [
        ({"command": "d" * 64}, "its command line is another than on a,c", "node-command-differs"),
        ({"script": None}, "its script is another than on a,c", "node-script-differs"),
        ({"world": "v"}, "its world is another than on a,c", "node-world-differs"),
        ({"nvrun": "2"}, "the version of its nvrun is another than on a,c", "node-nvrun-differs"),
    ],
)
def test_the_odd_one_out_is_named(changes: dict[str, object], message: str, code: str) -> None:
    (found,) = cards.differences({"a": a_card(), "b": a_card(**changes), "c": a_card()})
    assert (found.host, found.message, found.code) == ("b", message, code)


def test_of_two_the_first_is_right() -> None:
    (found,) = cards.differences({"a": a_card(), "b": a_card(script="t" * 64)})
    assert found.host == "b"
    assert list(cards.differences({"a": a_card(), "b": a_card(ranks=9)})) == []


def test_a_known_node_is_reached_by_its_addresses() -> None:
    there = Known(name="b", ranks=1, addresses=("10.0.0.2", "fd00::2"))
    assert cards.known("b", msgspec.structs.replace(a_card(), facts=there.as_facts())) == there
