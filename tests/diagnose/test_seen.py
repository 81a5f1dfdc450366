"""What nvrun itself saw, beside the logs: the kernel's OOM killer, a lost host, what changed since the launch."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from nvrun.aftermath import waited_for_a_peer
from nvrun.agent import oom
from nvrun.diagnose import seen
from nvrun.diagnose.ends import decode_end
from nvrun.diagnose.judge import culprit, diagnose
from nvrun.diagnose.scan import Source
from nvrun.failure import failure
from nvrun.hang.judge import HANGS
from nvrun.model import Finding, OomKills, RankEnd, RunResult, Severity

KILLED = RankEnd(rank=3, host="b", local_rank=1, pid=40, code=-9, at=5.0)
GLOO = "RuntimeError: [x/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"
CLOSED = Finding(code="port-dropped", severity=Severity.FATAL, message="a and b cannot reach each other", remedy="open")


def killed(kills: int, where: str = "its cgroup", line: str = "") -> RankEnd:
    return msgspec.structs.replace(KILLED, oom=OomKills(kills=kills, where=where, line=line))


def result(*ends: RankEnd, **more: object) -> RunResult:
    values = {"run_id": "r", "ended_by": "rank", "exit_code": 1, "started": 0.0, "seconds": 1.0, **more}
    return RunResult(ranks=ends, **values)  # type: ignore[arg-type]


def test_sigkill_is_explained_by_what_the_kernel_counted() -> None:
    unknown, other, cgroup, host = (decode_end(end) for end in (KILLED, killed(0), killed(2), killed(1, "its host")))
    assert (unknown.code, unknown.confidence) == ("rank-killed", 0.6)
    assert other.code == "rank-killed"
    assert "not by the kernel" in other.meaning
    assert cgroup.code == host.code == "oom-killed"
    assert cgroup.confidence > host.confidence, "another process of the host may have been the victim"
    (first, *_) = diagnose([], ends=(killed(1, line="Memory cgroup out of memory: Killed process 40 (python3)"),))
    assert (first.code, first.host, first.subject) == ("oom-killed", "b", "rank 3")
    assert first.evidence[0].startswith("Memory cgroup")


def test_a_killed_worker_explains_the_exception_of_its_rank() -> None:
    end = msgspec.structs.replace(killed(1), code=1)
    lines = [
        "Traceback (most recent call last):",
        "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.",
    ]
    (first, *others) = diagnose([Source("rank3.err", lines, host="b", rank=3)], ends=(end,))
    assert first.code == "oom-killed"
    assert "rank 3's cgroup" in first.message
    assert "data-worker-died" in {finding.code for finding in others}


def test_counters_are_those_of_the_cgroup_else_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, elsewhere = tmp_path / "memory.events", tmp_path / "gone"
    group.write_text("low 0\noom 1\noom_kill 4\noom_group_kill 0\n")
    before = oom.Counted(str(group), 3, 9, 0.0)
    monkeypatch.setattr(oom, "_line", lambda pid, since: "a line")
    assert oom.since(before, 1) == {"kills": 1, "where": "its cgroup", "line": "a line"}
    assert oom.since(before._replace(in_group=4), 1) == {"kills": 0, "where": "its cgroup", "line": ""}
    host = oom.since(before._replace(group=str(elsewhere)), 1)
    assert host is None or host["where"] == "its host"
    assert oom.since(oom.Counted("", None, None, 0.0), 1) is None


def test_what_changed_is_the_cause_of_a_wait_and_not_of_an_exception() -> None:
    waits = [Source("rank0.err", [GLOO], host="a", rank=0)]
    end = RankEnd(rank=0, host="a", local_rank=0, pid=1, code=1, at=1.0, tail=(GLOO,))
    changed = result(end, changed=(CLOSED,))
    assert waited_for_a_peer(changed)
    (first, *_) = diagnose(waits, ends=(end,), matches=seen.matches(changed))
    assert (first.code, first.evidence) == ("port-dropped", ("seen after the failure; before the launch it was well",))
    raises = [Source("rank0.err", ["Traceback (most recent call last):", "KeyError: 'x'"], host="a", rank=0)]
    findings = diagnose(raises, ends=(end,), matches=seen.matches(changed))
    assert findings[0].code == "python-exception"
    assert seen.changes(changed, findings[:1]) == ["a and b cannot reach each other"]
    assert not waited_for_a_peer(result(msgspec.structs.replace(end, tail=("KeyError: 'x'",))))
    full = Finding(code="disk-filled", severity=Severity.ERROR, message="/scratch is full", host="a")
    assert (
        diagnose(raises, ends=(end,), matches=seen.matches(result(end, changed=(full,))))[0].code == "python-exception"
    )


def test_an_xid_that_came_meanwhile_is_read_as_the_kernels_line() -> None:
    line = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."
    xid = Finding(code="xid-79", severity=Severity.ERROR, message="new", host="b", evidence=(line,))
    (first,) = diagnose(seen.sources(result(changed=(xid,))))
    assert (first.code, first.host) == ("xid-79", "b")


def test_the_rank_at_fault_is_not_always_the_quickest() -> None:
    victim = RankEnd(rank=0, host="a", local_rank=0, pid=1, code=1, at=1.0)
    fault = RankEnd(rank=1, host="b", local_rank=0, pid=2, code=1, at=1.2, by_nvrun=True)
    sources = [
        Source("rank0.err", ["RuntimeError: Connection closed by peer [10.0.0.2]:1234"], host="a", rank=0),
        Source("rank1.err", ["Traceback (most recent call last):", "KeyError: 'x'"], host="b", rank=1),
    ]
    findings = diagnose(sources, ends=(victim, fault))
    assert culprit(findings, (victim, fault)) == fault
    asked = msgspec.structs.replace(fault, code=-15)
    assert culprit(diagnose(sources, ends=(victim, asked)), (victim, asked)) == victim, "that one only obeyed"


def test_nccl_warnings_of_the_process_that_ended() -> None:
    said = ((40, "first"), (41, "another rank's"), (40, "second"), (40, "second"))
    lines = [f"b:{pid}:{pid + 1} [0] net.cc:10 NCCL WARN {text}" for pid, text in said]
    found = seen.warnings_before([Source("nccl.b.40.log", lines)], KILLED)
    assert [line.partition("WARN ")[2] for line in found] == ["first", "second"]


def test_a_torchrun_that_was_killed_is_the_cause_and_one_that_failed_only_where_no_log_has_another() -> None:
    reset = [Source("rank0.err", ["RuntimeError: Connection reset by peer", "errno: 113 - No route to host"], rank=0)]
    end = RankEnd(rank=0, host="a", local_rank=0, pid=1, code=1, at=1.0)
    killed, failed = (
        Finding(code=f"torchrun-{how}", severity=Severity.ERROR, message=how, host="b", evidence=("its last words",))
        for how in ("killed", "failed")
    )
    for own, others, expected in (
        (killed, reset, "torchrun-killed"),
        (failed, [], "torchrun-failed"),
        (failed, reset, "no-route"),
    ):
        ended = result(ended_by="torchrun", findings=(own,))
        (first, *_) = diagnose(others, ends=(end,) if others else (), matches=seen.matches(ended))
        assert first.code == expected
    (alone,) = diagnose([], matches=seen.matches(result(ended_by="torchrun", findings=(failed,))))
    assert (alone.host, alone.evidence) == ("b", ("its last words",))


def test_a_lost_host_and_words_that_the_disk_did_not_take(tmp_path: Path) -> None:
    lost = Finding(code="host-lost", severity=Severity.ERROR, message="b was lost while its ranks ran: nothing heard",
                   host="b", remedy="look", confidence=0.9)  # fmt: skip
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(result(findings=(lost,), ended_by="lost")))
    assert "Cause (almost certain, 90%): on b\n  b was lost" in failure([tmp_path]).page
    words = ("Traceback (most recent call last):", "KeyError: 'x'")
    end = RankEnd(rank=1, host="b", local_rank=0, pid=1, code=1, at=1.0, tail=words)
    logs = tmp_path / "logs" / "b"
    logs.mkdir(parents=True)
    for text, count in (("", 1), ("\n".join(words), 1)):
        (logs / "rank1.err").write_text(text)
        (tmp_path / "result.json").write_bytes(msgspec.json.encode(result(end)))
        found = [finding for finding in failure([tmp_path]).findings if finding.code == "python-exception"]
        assert len(found) == count
        assert found[0].observed.startswith("1 line")
    assert json.loads((tmp_path / "result.json").read_bytes())["ended_by"] == "rank"


@pytest.mark.parametrize(
    ("number", "message", "job", "begins"),
    [
        (2, "ended by SIGINT", None, "It was ended by Ctrl-C (SIGINT to nvrun)"),
        (
            15,
            "ended by SIGTERM",
            812,
            "It was ended by SIGTERM to nvrun: scancel of job 812, a time limit, or a person",
        ),
        (15, "ended by SIGTERM", None, "It was ended by SIGTERM to nvrun: a person"),
        (1, "ended by SIGHUP", None, "It was ended because its terminal or session was closed (SIGHUP to nvrun)"),
        (15, "b: the agent was told to end (SIGTERM)", 812, "It was ended by SIGTERM to nvrun's agent on b: scancel"),
        (
            15,
            "ended on n2: ended by SIGTERM",
            812,
            "It was ended by SIGTERM, ended on n2: ended by SIGTERM: scancel of",
        ),
    ],
)
def test_how_a_stopped_run_ended_is_what_its_record_says(
    tmp_path: Path, number: int, message: str, job: int | None, begins: str
) -> None:
    """torchrun and ranks were told to end by nvrun: no log line of that is a cause, an error, or also seen."""
    told = RankEnd(rank=0, host="a", local_rank=0, pid=1, code=-15, at=1.0)  # by Slurm, before nvrun could
    stopped = result(told, ended_by="signal", exit_code=128 + number, message=message)
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(stopped))
    hosts = {"hosts": [], "kinds": [], "hosts_from": "", "mode": "", "cwd": "/", "torchrun": [], "nvrun": "0"}
    (tmp_path / "request.json").write_text(json.dumps({**hosts, "started": 0.0, "slurm_job": job}))
    logs = tmp_path / "logs" / "a"
    logs.mkdir(parents=True)
    (logs / "torchrun.err").write_text("x.SignalException: Process 9 got signal: 23\nclosing signal SIGTERM\n")
    (logs / "rank0.err").write_text("RuntimeError: Connection closed by peer [10.0.0.2]:1\nKilled\n")
    found = failure([tmp_path])
    assert (found.page.startswith(begins), found.is_error) == (True, False), found.page
    assert [finding.code for finding in found.findings] == ["run-stopped"]
    (logs / "rank1.err").write_text("nvrun: x\nOSError: [Errno 28] No space left on device\n")
    found = failure([tmp_path])
    assert [finding.code for finding in found.findings] == ["run-stopped", "disk-full"]
    assert found.page.index(begins) < found.page.index("Seen besides") < found.page.index("A disk is full")


def test_a_hang_that_the_user_ended_is_told_after_that(tmp_path: Path) -> None:
    hang = Finding(code=HANGS, severity=Severity.ERROR, message="rank 3 waits in a read", host="b", confidence=0.8)
    told = msgspec.structs.replace(KILLED, by_nvrun=True)
    stopped = result(told, ended_by="signal", exit_code=130, message="ended by SIGINT", findings=(hang,))
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(stopped))
    found = failure([tmp_path])
    assert [finding.code for finding in found.findings] == ["run-stopped", HANGS]
    assert [line.partition(" (")[0] for line in found.page.splitlines()[:3]] == [
        "It was ended by Ctrl-C",
        "Seen besides",
        "  rank 3 waits in a read",
    ]
    assert "First to fail" not in found.page, "that rank was ended with the others"


TOLD = RankEnd(rank=0, host="a", local_rank=0, pid=1, code=-15, at=9.0, attempt=1, by_nvrun=True)


@pytest.mark.parametrize(
    ("failed", "code"),
    [((killed(1), TOLD), "oom-killed"), ((msgspec.structs.replace(KILLED, code=-11),), "segfault")],
)
def test_ranks_that_failed_before_a_signal_ended_the_run_are_told_after_it(
    tmp_path: Path, failed: tuple[RankEnd, ...], code: str
) -> None:
    stopped = result(*failed, ended_by="signal", exit_code=130, message="ended by SIGINT")
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(stopped))
    found = failure([tmp_path])
    assert [finding.code for finding in found.findings] == ["run-stopped", code]
    assert found.is_error
    assert found.page.startswith("It was ended by Ctrl-C")
    assert "First to fail: rank 3 on b" in found.page


@pytest.mark.parametrize("ended_by", ["rank", "hang", "lost", "torchrun"])
def test_what_nvrun_did_after_a_failure_is_not_told(tmp_path: Path, ended_by: str) -> None:
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(result(KILLED, ended_by=ended_by)))
    lines = ["x.SignalException: Process 9 got signal: 15", "Sending process 40 closing signal SIGTERM"]
    (tmp_path / "torchrun.err").write_text("\n".join(lines))
    found = failure([tmp_path])
    assert {finding.code for finding in found.findings} == {"rank-killed"}
    assert "Also seen" not in found.page
    foreign = failure([tmp_path / "torchrun.err"])
    assert foreign.findings[0].code == "ended-from-outside", "of another launcher it is the best there is"
    assert "Also seen" not in foreign.page, "that ranks are ended is what every failing job has"
