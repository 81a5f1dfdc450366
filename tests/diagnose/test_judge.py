"""Several logs together: what is told first."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.diagnose.ends import decode
from nvrun.diagnose.judge import diagnose
from nvrun.diagnose.moment import moment
from nvrun.diagnose.scan import Source
from nvrun.facts import HostFacts
from nvrun.model import Finding, RankEnd, Severity, first_failure

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 120, in <module>
    main()
  File "/home/u/train.py", line 88, in main
    step(batch)
  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl
    return forward_call(*args, **kwargs)
ValueError: bad shape in batch 7
""".splitlines()

GLOO_PEER = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 91, in main
    dist.all_reduce(x)
RuntimeError: [/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1234. This is typically caused
by a remote worker crashing.
""".splitlines()

WATCHDOG = (
    "[rank{r}]:[E1129 10:{m}:10.5 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=40, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds"
)

BANNER = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_10:00:0{second}
  host      : gpu01
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 12)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_10:00:01
  host      : gpu01
  rank      : 2 (local_rank: 2)
  exitcode  : {code} (pid: 11)
  error_file: <N/A>
  traceback : {said}
============================================================
"""


def banner(code: int, *, second: int = 5, said: str = "To enable traceback see: https://x") -> list[str]:
    return BANNER.format(code=code, second=second, said=said).splitlines()


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def end(rank: int, code: int, at: float | None = None, **more: object) -> RankEnd:
    return RankEnd(rank=rank, host=f"gpu0{rank}", local_rank=0, pid=10 + rank, code=code, at=at, **more)  # type: ignore[arg-type]


def test_an_exception_outranks_what_follows_from_it() -> None:
    findings = diagnose(
        [
            Source("rank0/stderr", GLOO_PEER, host="gpu00", rank=0),
            Source("rank1/stderr", TRACEBACK, host="gpu01", rank=1),
            Source("torchrun", banner(-15)),
        ]
    )
    assert codes(findings)[0] == "python-exception"
    assert set(codes(findings)[1:]) == {"peer-gone", "taken-down"}
    first = findings[0]
    assert (first.host, first.subject) == ("gpu01", "rank 1")
    assert "ValueError: bad shape in batch 7 at /home/u/train.py:88 in main" in first.message
    assert first.evidence[-1] == "ValueError: bad shape in batch 7"


def test_the_kernel_s_word_outranks_the_signal_and_the_time_out() -> None:
    findings = diagnose(
        [
            Source("rank0", [WATCHDOG.format(r=0, m=20)], host="gpu00", rank=0),
            Source("torchrun", banner(-9, said="Signal 9 (SIGKILL) received by PID 11")),
            Source("dmesg", ["[Sun Nov 29 10:00:00 2026] Out of memory: Killed process 11 (python3)"], host="gpu01"),
        ]
    )
    assert codes(findings) == ["oom-killed", "rank-killed", "collective-timeout"]
    assert findings[0].host == "gpu01"


def test_a_consequence_never_leads_where_there_is_a_cause() -> None:
    noise = [f"gpu0{i}:1:2 [0] misc/socket.cc:9 NCCL WARN Connection closed by remote peer gpu09<1>" for i in range(9)]
    late = "gpu01:7:8 [0] include/shm.h:30 NCCL WARN Call to posix_fallocate failed : No space left on device"
    findings = diagnose([Source("nccl", [*noise, late])])
    assert codes(findings) == ["shm-full", "peer-gone"]
    assert "9 lines" in findings[1].observed


def test_the_first_rank_s_own_words_come_first() -> None:
    other = ["Traceback (most recent call last):", '  File "/home/u/a.py", line 1, in f', "KeyError: 'x'"]
    sources = [Source("rank0", other, host="gpu00", rank=0), Source("rank1", TRACEBACK, host="gpu01", rank=1)]
    assert diagnose(sources)[0].subject == "rank 0"
    ends = (end(1, 1, at=5.0), end(0, 1, at=5.2))
    assert diagnose(sources, ends=ends)[0].subject == "rank 1"


def test_a_rank_that_was_killed_without_a_word_outranks_exceptions_of_others() -> None:
    sources = [Source("rank0", TRACEBACK, host="gpu00", rank=0)]
    findings = diagnose(sources, ends=(end(1, -9, at=1.0), end(0, 1, at=1.4)))
    assert codes(findings) == ["rank-killed", "python-exception"]
    assert "Rank 1 on gpu01 was the first to end, with signal 9 (SIGKILL)" in findings[0].message


def test_the_banner_s_word_about_the_first_rank_is_not_told_twice() -> None:
    findings = diagnose([Source("torchrun", banner(1))], ends=(end(2, 1, at=1.0),))
    assert codes(findings) == ["script-failed"]
    assert "was the first to end" in findings[0].message
    findings = diagnose([Source("torchrun", banner(1))], ends=(end(3, 1, at=1.0), end(2, 1, at=1.1)))
    assert [finding.subject for finding in findings] == ["rank 3"], "nvrun saw the other end too, and by a finer clock"
    assert "was the first to end" in findings[0].message


def test_first_failure_is_by_time_and_not_by_our_own_hand() -> None:
    assert first_failure([end(0, 0, 1.0), end(1, -15, 2.0, by_nvrun=True), end(2, 1, 4.0), end(3, 7, 3.0)]) == end(
        3, 7, 3.0
    )
    assert first_failure([end(2, 1), end(3, 7, 3.0)]) == end(2, 1)
    assert first_failure([end(0, 0)]) is None
    restarted = [msgspec.structs.replace(end(1, 9, 1.0), attempt=0), msgspec.structs.replace(end(2, 9, 5.0), attempt=1)]
    assert first_failure(restarted) == restarted[1], "what torchrun restarted is not what the job failed of"


def test_clocks_are_corrected() -> None:
    early = "[2026-11-29 10:00:10] gpu01:1:2 [0] a.cc:1 NCCL WARN Connect to 10.0.0.1<1> failed : No route to host"
    late = "[2026-11-29 10:00:05] gpu02:1:2 [0] a.cc:1 NCCL WARN Connect to 10.0.0.1<1> failed : No route to host"
    sources = [Source("a", [late]), Source("b", [early])]
    assert diagnose(sources)[0].host == "gpu02"
    # the clock of gpu01 is 60 s fast: its line is the earlier one
    facts = {"gpu01": HostFacts(host="gpu01", clock_offset_s=60.0)}
    assert diagnose(sources, facts=facts)[0].host == "gpu01"


@pytest.mark.parametrize(
    ("line", "second"),
    [
        ("[2026-01-01 00:00:05] gpu01:1:2 [0] NCCL WARN x", 5.0),
        ("[rank0]:[E101 00:00:05.5 ProcessGroupNCCL.cpp:1] x", 5.5),
        ("W0101 00:00:05.250000 12 torch/distributed/run.py:1] x", 5.25),
        ("[Thu Jan  1 00:00:05 2026] NVRM: x", 5.0),
        ("Jan  2 00:00:05 gpu01 kernel: NVRM: x", 86405.0),
        ("2026-01-01_00:00:05", 5.0),
        ("[ 1234.567] NVRM: x", None),
        ("no time here", None),
    ],
)
def test_moments(line: str, second: float | None) -> None:
    assert moment(line) == second


# --- torchrun's banner


def test_ranks_that_fail_in_one_second_are_not_ranked() -> None:
    (finding,) = diagnose([Source("torchrun", banner(1, second=1))])
    assert finding.code == "script-failed"
    assert "1 other(s) in the same second: which was first is not known" in finding.message
    (finding,) = diagnose([Source("torchrun", banner(1, second=5))])
    assert "same second" not in finding.message
    assert (finding.host, finding.subject) == ("gpu01", "rank 2")


def test_of_one_second_the_status_that_says_most_is_taken() -> None:
    (finding,) = diagnose([Source("torchrun", banner(-6, second=1))])
    assert (finding.code, finding.subject) == ("script-failed", "rank 3")
    (finding,) = diagnose([Source("torchrun", banner(-11, second=1))])
    assert (finding.code, finding.subject) == ("segfault", "rank 2")


def test_an_exit_code_follows_from_the_time_out_of_the_same_rank() -> None:
    timed_out = "RuntimeError: [/src/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
    lines = ["Traceback (most recent call last):", '  File "/home/u/a.py", line 1, in f', timed_out]
    findings = diagnose([Source("r2", lines, rank=2), Source("torchrun", banner(1))])
    assert codes(findings) == ["gloo-timeout", "script-failed"]
    # another rank's time-out does not explain it
    findings = diagnose([Source("r0", lines, rank=0), Source("torchrun", banner(1))])
    assert codes(findings) == ["script-failed", "gloo-timeout"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-9, "rank-killed"), (137, "rank-killed"), (-11, "segfault"), (-6, "rank-aborted"), (2, "script-failed")],
)
def test_the_banner_s_status_is_decoded(code: int, expected: str) -> None:
    assert codes(diagnose([Source("torchrun", banner(code))])) == [expected]


def test_an_agent_s_line_without_a_banner() -> None:
    line = "E1129 10:00:00.5 8 torch/distributed/elastic/api.py:874] failed (exitcode: -9) local_rank: 4 (pid: 9)"
    assert codes(diagnose([Source("torchrun", [line])])) == ["rank-killed"]
    assert codes(diagnose([Source("torchrun", [line.replace("pid: 9", "pid: 11"), *banner(-9)])])) == ["rank-killed"]


def test_the_traceback_inside_a_banner_is_read() -> None:
    said = "Traceback (most recent call last):"
    lines = banner(1, said=said)
    at = next(i for i, line in enumerate(lines) if line.endswith(said)) + 1
    lines[at:at] = ["  " + line for line in TRACEBACK[1:]]
    findings = diagnose([Source("torchrun", lines)])
    assert codes(findings) == ["python-exception", "script-failed"]
    assert "ValueError: bad shape" in findings[0].message


# --- tracebacks


def test_tracebacks_of_ranks_that_are_mixed() -> None:
    a = ["[rank0]: " + line for line in TRACEBACK]
    b = ["[rank1]: " + line for line in GLOO_PEER]
    mixed = [line for pair in zip(a, b, strict=False) for line in pair] + a[len(b) :] + b[len(a) :]
    findings = diagnose([Source("console", mixed)])
    assert codes(findings) == ["python-exception", "peer-gone"]
    assert findings[0].subject == "rank 0"


def test_a_chain_is_told_by_its_first_exception() -> None:
    lines = [
        *TRACEBACK,
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 99, in main',
        "TrainingFailed: step 7",
    ]
    (finding,) = diagnose([Source("rank0", lines, rank=0)])
    assert "ValueError" in finding.message


def test_in_the_file_of_one_rank_the_last_exception_ended_it() -> None:
    caught = ["Traceback (most recent call last):", '  File "/home/u/io.py", line 3, in get', "TimeoutError: retrying"]
    (finding,) = diagnose([Source("rank0", [*caught, "retry ok", *TRACEBACK], rank=0)])
    assert "ValueError" in finding.message


def test_a_known_exception_is_told_by_its_rule_with_its_traceback() -> None:
    lines = [*TRACEBACK[:-1], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"]
    (finding,) = diagnose([Source("rank3", lines, rank=3)])
    assert finding.code == "gpu-out-of-memory"
    assert "Tried to allocate 2.00 GiB" in finding.message
    assert any("train.py" in line for line in finding.evidence)


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_source_code_in_a_traceback_is_not_what_happened(prefix: str) -> None:
    """Frames show code that names errors: in a message that is not raised, in a comparison."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 7, in step',
        '    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB" if full else f"bad batch {batch}")',
        '    if "No space left on device" in words or "NCCL error" in words:',
        "       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "RuntimeError: bad batch 17",
    ]
    (finding,) = diagnose([Source("rank1", [prefix + line for line in lines], rank=1)])
    assert (finding.code, finding.message) == (
        "python-exception",
        "The script raised RuntimeError: bad batch 17 at /home/u/train.py:7 in step",
    )


def test_ctrl_c_is_no_fault_of_the_program() -> None:
    lines = [*TRACEBACK[:-1], "KeyboardInterrupt"]
    assert codes(diagnose([Source("rank0", lines, rank=0)])) == ["interrupted"]


# --- bounds


def test_evidence_is_bounded_and_clean() -> None:
    line = "\x1b[31mgpu01:1:2 [0] a.cc:1 NCCL WARN Connection closed by remote peer x" + "y" * 100_000
    (finding,) = diagnose([Source("log", [line.replace("x", str(i)) for i in range(1000)])])
    assert len(finding.evidence) <= 16
    assert all(len(text) <= 400 and "\x1b" not in text for text in finding.evidence)


@given(st.lists(st.one_of(st.text(max_size=80), st.binary(max_size=80)), max_size=30))
def test_noise_never_raises(lines: list[str | bytes]) -> None:
    for finding in diagnose([Source("noise", lines)]):
        assert finding.severity in Severity


@given(st.integers(-70, 300))
def test_every_status_is_decoded(status: int) -> None:
    ending = decode(status)
    assert ending.text
    assert ending.meaning
