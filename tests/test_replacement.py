"""What follows an attempt, from how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nvrun import job, preflight, replacement
from nvrun.config import parse
from nvrun.diagnose.files import collect
from nvrun.errors import UsageError
from nvrun.facts import Address, HostFacts, Interface, Network
from nvrun.job import Job
from nvrun.model import EndedBy, Finding, RunResult, Severity
from nvrun.prepare import plan_of_facts
from nvrun.replacement import Next
from nvrun.rundir import RunFolder

RUN = "20261129-151203-k3x9"


def asked(*argv: str) -> Job:
    return job.read(parse([*argv, "t.py"], {}, []), {"HOME": "/nowhere"})


def ended(by: EndedBy, *bad: str, began: bool = True, code: int = 69) -> RunResult:
    why = {host: f"{host}: its connection ended" for host in bad}
    return RunResult(run_id=RUN, ended_by=by, exit_code=code, started=1.0, seconds=2.0, began=began, bad_hosts=why)


def after(the_job: Job, result: RunResult, **more: Any) -> Next:
    return replacement.after(the_job, result, result.bad_hosts, **more)


FLEET = ("--hosts", "n1,n2,n3", "--nodes", "2", "--rsh", "ssh {host}", "--node-restarts", "1")


@pytest.mark.parametrize(
    ("result", "hosts"),
    [
        (ended("lost", "n2"), ["n1", "n3"]),
        (ended("rank", "n1", code=1), ["n2", "n3"]),
        (ended("torchrun", "n1", code=1), ["n2", "n3"]),
        (ended("rank", code=1), None),  # the script's own failure
        (ended("success", code=0), None),
        (ended("signal", "n2", code=143), None),
        (ended("internal", "n2", code=70), None),
        (ended("lost", "n1", "n2"), None),
    ],
)
def test_which_ends_are_followed_by_a_restart_and_where(result: RunResult, hosts: list[str] | None) -> None:
    following = after(asked(*FLEET), result).job
    assert (following and [host.name for host in following.hosts]) == hosts
    if following:
        assert (following.attempt, following.restarts, following.options.check) == (1, 1, "quick")
        assert following.spares == ()


def test_words() -> None:
    first = asked(*FLEET)
    restart = after(first, ended("lost", "n2"))
    assert restart.line == "restart 1 of 1 on n1, n3; struck off: n2: its connection ended"
    assert restart.job
    again = after(restart.job, ended("lost", "n3"))
    assert again == Next(line="no further restart without n3: 1 of --node-restarts 1 are used up")
    none_left = after(asked(*FLEET, "--node-restarts", "9", "--nodes", "3"), ended("lost", "n2"))
    assert none_left == Next(line="no restart without n2: 2 of the 3 hosts that the job needs are left")
    refused = after(restart.job, ended("preflight", "n3", began=False, code=78))
    assert refused == Next(line="no restart without n3: 1 of the 2 hosts that the job needs are left")
    step = after(first, ended("lost"))
    assert step == Next(line="no restart: the step of srun ended as a whole, which tells nothing of any node")
    assert after(first, ended("lost", "n2"), interrupted=True).line == "no restart: an end was asked for"
    assert after(first, ended("signal", code=130), interrupted=True) == Next()
    assert after(asked(*FLEET[:-2]), ended("lost", "n2")) == Next(), "without the flag a lost host ends the run"


def test_what_is_between_hosts_is_laid_to_those_that_are_new_among_others_that_have_run() -> None:
    first = asked(*FLEET)
    second = after(first, ended("lost", "n2")).job
    assert second
    assert second.proven == {"n1"}
    finding = Finding(code="port-dropped", severity=Severity.FATAL, message="n3 cannot reach n1: no answer")
    for the_job, bad in ((first, {}), (second, {"n3": finding.message})):
        fleet = [
            HostFacts(
                host=host.name, network=Network(interfaces=(Interface(name="eth0", up=True, addresses=(there,)),))
            )
            for number, host in enumerate(the_job.hosts, start=1)
            for there in [Address(address=f"10.0.0.{number}", prefix=24)]
        ]
        facts = dict(enumerate(fleet))
        decided = preflight.decide(the_job, plan_of_facts(the_job, RUN, fleet), facts, [finding])
        assert (decided.exit_code, decided.bad_hosts) == (78, bad)


def test_hosts_that_the_checks_refuse_are_replaced_without_counting() -> None:
    following = after(asked(*FLEET[:-2]), ended("preflight", "n1", began=False, code=78))
    assert following.line == "without n1: starting again on n2, n3"
    assert following.job
    assert (following.job.attempt, following.job.restarts, following.job.options.check) == (1, 0, "full")


def pair(the_job: Job, *between: str, out: dict[str, str] | None = None) -> Next:
    finding = Finding(code="port-dropped", severity=Severity.FATAL, message="no answer", between=between)
    result = RunResult(run_id=RUN, ended_by="preflight", exit_code=78, started=1.0, seconds=2.0, between=between,
                       findings=(finding,))  # fmt: skip
    return replacement.after(the_job, result, out or {})


def test_where_two_fail_together_a_spare_shows_once_which_of_them_it_is() -> None:
    first = pair(asked(*FLEET), "n2", "n1")
    words = "n1 and n2 fail together: a spare in the place of n2 shows which of them is bad; starting again on n1, n3"
    assert first.line == words
    assert first.struck_off == {"n2": "no answer"}
    assert first.job
    assert (first.job.attempt, first.job.restarts) == (1, 0)
    other = pair(first.job, "n1", "n3", out=dict(first.struck_off))
    assert other.line == "n1 fails with the spare too; starting again on n3, n2"
    assert other.struck_off == {"n1": "no answer"}
    assert other.job
    assert pair(other.job, "n3", "n2", out=dict(other.struck_off)) == Next(), "never again"
    assert pair(asked(*FLEET, "--nodes", "3"), "n1", "n2") == Next(), "no spare"
    assert pair(asked(), "n1", "n2") == Next(), "one node of a step knows of others, and starts none"


def test_a_host_that_is_out_for_a_pairs_sake_is_bad_only_where_the_others_ran_without_it() -> None:
    first = pair(asked(*FLEET), "n2", "n1")
    assert first.job
    assert first.struck_off
    # The spare is refused for a reason of its own: of n2 nothing was shown.
    assert replacement.shown_bad(first.job, {**first.struck_off, "n3": "its disk is full"}, began=False) == ["n3"]
    assert replacement.shown_bad(first.job, first.struck_off, began=True) == ["n2"]
    other = pair(first.job, "n1", "n3", out=dict(first.struck_off))
    assert other.job
    assert other.struck_off
    # All pairs fail: a firewall everywhere.
    assert replacement.shown_bad(other.job, other.struck_off, began=False) == []
    assert replacement.shown_bad(other.job, other.struck_off, began=True) == ["n1"]


def test_fewer_hosts_only_as_far_as_the_range_goes() -> None:
    flags = ("--hosts", "n1,n2,n3", "--rsh", "ssh {host}", "--node-restarts", "2")
    elastic = after(asked(*flags, "--nnodes", "2:3"), ended("lost", "n3"))
    assert elastic.job
    assert [host.name for host in elastic.job.hosts] == ["n1", "n2"]
    assert (
        after(elastic.job, ended("lost", "n2")).line
        == "no restart without n2: 1 of the 2 hosts that the job needs are left"
    )


def test_where_it_cannot_be_it_is_said_before_the_launch() -> None:
    with pytest.raises(UsageError, match=r"--node-restarts: nvrun is one node here.*one machine"):
        list(replacement.check(asked("--node-restarts", "1")))
    assert list(replacement.check(asked(*FLEET))) == []
    (no_spare,) = replacement.check(asked(*FLEET, "--nodes", "3"))
    assert "no spare host" in no_spare
    assert list(replacement.check(asked("--hosts", "n1,n2", "--rsh", "ssh {host}"))) == []


def test_an_attempt_is_set_aside_as_a_run_of_its_own(tmp_path: Path) -> None:
    folder = RunFolder(RUN, tmp_path)
    (logs := folder.logs("n1")).mkdir()
    (logs / "rank0.err").write_text("RuntimeError: CUDA out of memory\n")
    assert folder.finish(ended("lost", "n2")) == ""
    aside = folder.set_aside(0)
    assert {path.name for path in aside.iterdir()} == {"logs", "result.json"}
    assert {path.name for path in folder.path.iterdir()} == {"attempts", "logs", ".token"}
    assert list((folder.path / "logs").iterdir()) == []
    assert [source.host for source in collect([aside]).sources] == ["n1"]
    assert collect([folder.path]).sources == [], "what ended an earlier attempt is not the cause of the last one's end"
