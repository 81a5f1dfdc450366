"""Flight-recorder dumps: sets that torch 2.13 wrote (gloo, 3 ranks) and torch 2.11 (NCCL 2.28.9, two H200), paths
replaced, and made ones for the rest."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from nvrun.diagnose.flight import Dump, odd_collectives, rank_of_file, read_dump
from nvrun.diagnose.judge import diagnose
from nvrun.diagnose.scan import Source
from nvrun.errors import UsageError

DUMPS = Path(__file__).parent / "dumps"


def recorded(case: str) -> list[Dump]:
    return [
        read_dump(path.read_bytes(), rank=int(path.name.rpartition("_")[2]), name=path.name)
        for path in sorted((DUMPS / case).iterdir())
    ]


def call(
    sequence: int, operation: str = "all_reduce", *, done: bool = True, size: int = 8, **more: Any
) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"),
        "profiling_name": f"nccl:{operation}",
        "collective_seq_id": sequence,
        "p2p_seq_id": sequence,
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "started",
        "time_created_ns": sequence,
        "frames": [{"filename": "/home/user/train.py", "line": sequence, "name": "step"}],
        **more,
    }


def dump(rank: int, *entries: dict[str, Any], ranks: str = "[0, 1, 2, 3]") -> Dump:
    raw = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "entries": list(entries),
    }
    return read_dump(pickle.dumps(raw), rank=rank)


def codes(*dumps: Dump) -> list[str]:
    return [match.code for match in odd_collectives(dumps)]


def test_a_recorded_mismatch_names_rank_and_place() -> None:
    (match,) = odd_collectives(recorded("op"))
    assert match.code == "flight-operation-differs"
    assert match.subject == "rank 1"
    assert "broadcast" in match.message
    assert "ranks 0, 2 called all_reduce" in match.message
    assert "/home/user/train.py:" in match.evidence[0]


def test_under_nccl_a_rank_that_called_another_collective_is_named() -> None:
    (match,) = odd_collectives(recorded("nccl-op"))
    assert (match.code, match.subject) == ("flight-operation-differs", "rank 1")
    assert match.message == "Rank 1 called broadcast as number 6 of group default_pg where rank 0 called all_reduce"
    assert "/home/user/train.py:46 in odd" in match.evidence[0]


def test_under_nccl_a_rank_that_left_one_out_is_named() -> None:
    (match,) = odd_collectives(recorded("nccl-missing"))
    assert (match.code, match.subject) == ("flight-rank-missing", "rank 1")
    assert "did not join all_reduce number 6 of group default_pg, in which rank 0 waits;" in match.message


def test_a_recorded_absence_names_the_missing_rank() -> None:
    (match,) = odd_collectives(recorded("missing"))
    assert (match.code, match.subject) == ("flight-rank-missing", "rank 1")
    assert "number 3" in match.message
    assert match.evidence[1].startswith("rank 1: all_reduce number 2")


def test_a_rank_without_a_dump_is_said_to_have_none() -> None:
    dumps = [dump(rank, call(1), call(2, done=False)) for rank in (0, 1, 3)]
    (match,) = odd_collectives(dumps)
    assert match.subject == "rank 2"
    assert "rank 2: no dump" in match.evidence


def test_a_healthy_snapshot_gives_nothing() -> None:
    assert codes(*(dump(rank, call(1), call(2)) for rank in range(4))) == []
    # one rank is a step ahead, and what it called is done
    assert codes(dump(0, call(1), call(2)), *(dump(rank, call(1)) for rank in (1, 2, 3))) == []
    assert codes() == []


def test_sizes_types_and_what_may_differ() -> None:
    same = [dump(rank, call(1)) for rank in (0, 1, 2)]
    assert codes(*same, dump(3, call(1, size=9))) == ["flight-size-differs"]
    assert codes(*same, dump(3, call(1, input_dtypes=["Half"]))) == ["flight-type-differs"]
    uneven = [dump(rank, call(1, "all_to_all_single", size=rank)) for rank in range(4)]
    assert codes(*uneven) == []


def test_all_joined_but_it_never_ended() -> None:
    (match,) = odd_collectives([dump(rank, call(1, done=rank != 2)) for rank in range(4)])
    assert (match.code, match.subject) == ("flight-collective-stuck", "rank 2")


def test_what_the_ring_buffer_forgot_is_not_missed() -> None:
    late = [dump(rank, call(5), call(6)) for rank in (0, 1, 2)]
    assert codes(*late, dump(3, call(4), call(5), call(6))) == []


def test_only_the_first_odd_collective_counts() -> None:
    dumps = [dump(rank, call(1), call(2), call(3)) for rank in (0, 1, 2)]
    odd = dump(3, call(1), call(2, "broadcast"), call(3, "all_gather"))
    (match,) = odd_collectives([*dumps, odd])
    assert "number 2" in match.message


def test_send_without_receive() -> None:
    sender = dump(0, call(1, "send 0->1", done=False, is_p2p=True))
    assert codes(sender, dump(1)) == ["flight-message-unmatched"]
    assert codes(sender, dump(1, call(1, "recv 1<-0", done=False, is_p2p=True))) == []


def test_dumps_join_the_diagnosis_before_the_time_out() -> None:
    line = (
        "[rank0]:[E1129 10:10:10.5 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds"
    )
    findings = diagnose([Source("rank0", [line], rank=0)], dumps=recorded("missing"))
    assert [finding.code for finding in findings] == ["flight-rank-missing", "collective-timeout"]


class Dangerous:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/should-not-exist-nvrun-test",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Dangerous()),
        pickle.dumps({"entries": [Dangerous()]}),
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"",
        b"\x80\x04garbage",
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": 3}),
        pickle.dumps({"entries": [{"process_group": 1}]}),
        pickle.dumps({"pg_config": {"0": {"ranks": "__import__('os')"}}}),
    ],
)
def test_a_dump_that_is_not_plain_data_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="flight-recorder dump"):
        read_dump(data, rank=0, name="trace_0")
    assert not Path("/tmp/should-not-exist-nvrun-test").exists()


def test_the_rank_is_in_the_file_s_name() -> None:
    assert rank_of_file("comm_lib_trace_rank_17") == 17
    assert rank_of_file("notes") is None


def test_a_collective_that_the_watchdog_gave_up_is_not_done() -> None:
    """It is retired, and still `started`."""
    given_up = [dump(rank, call(1), call(2, done=False, retired=True), ranks="[0, 1, 2]") for rank in (0, 1)]
    (match,) = odd_collectives([*given_up, dump(2, call(1), ranks="[0, 1, 2]")])
    assert (match.code, match.subject) == ("flight-rank-missing", "rank 2")


@pytest.mark.parametrize(
    "old",
    [
        {"process_group": "0"},  # a name alone
        {"pg_id": 0},  # a number alone
    ],
)
def test_dumps_of_older_torch_are_read(old: dict[str, Any]) -> None:
    def entry(sequence: int, *, done: bool) -> dict[str, Any]:
        kept = call(sequence, done=done)
        for name in ("process_group", "collective_seq_id", "p2p_seq_id"):
            del kept[name]
        return {**kept, **old, "seq_id": sequence}

    first = dump(0, entry(1, done=True), entry(2, done=False), ranks="[0, 1]")
    (match,) = odd_collectives([first, dump(1, entry(1, done=True), ranks="[0, 1]")])
    assert (match.code, match.subject) == ("flight-rank-missing", "rank 1")
