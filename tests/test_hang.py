"""What silent ranks show -> they move, they hang and for whom, or nobody can say."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec
import pytest

from nvrun.agent import ras, stacks
from nvrun.hang.judge import Hang, HostLook, Look, Moves, Place, Seen, Thread, Unknown, all_stacks, call, judge
from nvrun.nccl.ras import Member, behind

C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"
GRAPH = "/usr/lib/python3/dist-packages/torch/autograd/graph.py"
STEP = (Place("step", "/home/ada/torch/train.py", 44), Place("main", "/home/ada/torch/train.py", 60))
ALL_REDUCE = (Place("all_reduce", C10D, 3252), Place("_exception_logger.<locals>.wrapper", LOGGER, 83), *STEP)
GATHER = (Place("all_gather", C10D, 1), Place("wrapper", LOGGER, 83), Place("all_gather_object", C10D, 2), *STEP)
EVALUATE = (Place("evaluate", "/home/ada/torch/train.py", 88), STEP[1])
BACKWARD = (Place("_engine_run_backward", GRAPH, 829), Place("backward", GRAPH, 1), *STEP)


def look(frames: tuple[Place, ...] = ALL_REDUCE, *others: Thread, pid: int = 7, **changed: object) -> Look:
    threads = (Thread("MainThread", 1.0, frames), *others) if frames else ()
    seen = Look(pid, 20, threads, own_cpu=0.0, below_cpu=0.0, starved=0.0, faults=0.0, io=0.0, trouble="")
    return msgspec.structs.replace(seen, **changed)


def ranks(*looks: Look | None) -> list[Seen]:
    """Two on each host: a a b b."""
    return [Seen(rank=rank, host="ab"[rank // 2 % 2], look=each) for rank, each in enumerate(looks)]


def told(*looks: Look | None) -> tuple[str, str]:
    said = judge(ranks(*looks), silent=600)
    assert isinstance(said, Hang), said
    return said.finding.message.removeprefix("no output for 600 s and no rank moves: "), said.finding.subject


@pytest.mark.parametrize(
    ("looks", "message", "missing"),
    [
        ((look(), look(), look(), look(EVALUATE)),
         "rank 3 on b has not joined all_reduce, in which ranks 0-2 wait", "rank 3"),
        ((look(own_cpu=1.0), look(BACKWARD, own_cpu=1.0)),
         "rank 1 on a waits in backward, rank 0 on a waits in all_reduce: they do not meet", ""),
        ((look(), look(), look(), None),
         "rank 3 on b has not joined all_reduce, in which ranks 0-2 wait; rank 3 has ended", "rank 3"),
        ((look(), look(GATHER), look(), look()),
         "rank 1 on a waits in all_gather_object, ranks 0,2-3 on a, b wait in all_reduce: they do not meet", "rank 1"),
        ((look(EVALUATE), look(STEP), look(STEP)),
         "rank 0 on a stands at evaluate (/home/ada/torch/train.py:88), ranks 1-2 on a, b stand at "
         "step (/home/ada/torch/train.py:44): they do not meet", "rank 0"),
        ((look(), look(), look()),
         "all 3 ranks wait in the same all_reduce, called by step (/home/ada/torch/train.py:44): "
         "the transport or a GPU hangs, or they mean different groups", ""),
        ((look(EVALUATE),), "rank 0 on a stands at evaluate (/home/ada/torch/train.py:88)", ""),
    ],
)  # fmt: skip
def test_whom_the_others_wait_for(looks: tuple[Look | None, ...], message: str, missing: str) -> None:
    assert told(*looks) == (message, missing)


WORKS = look(EVALUATE, Thread("worker", 0.5, STEP))
POLLS = look(EVALUATE, Thread("monitor", 0.95, STEP))


@pytest.mark.parametrize(
    "works",
    [
        look(threads=(Thread("MainThread", 0.95, EVALUATE),)),
        WORKS,
        look(below_cpu=0.9),
        look(io=5e6),
        look(faults=1000.0),
    ],
    ids=["evaluates", "in a thread", "compiles", "downloads", "loads"],
)
def test_one_rank_that_works_is_enough(works: Look) -> None:
    assert isinstance(judge(ranks(look(), look(), works), silent=600), Moves)


@pytest.mark.parametrize(
    ("state", "words", "remedy"),
    [("T", "stopped by somebody (SIGSTOP)", "kill -CONT 7"), ("t", "held by a debugger", "/proc/7/status"),
     ("D", "in uninterruptible wait", "dmesg")],
)  # fmt: skip
@pytest.mark.parametrize("frames", [ALL_REDUCE, EVALUATE, ()], ids=["in the collective", "elsewhere", "unseen"])
def test_a_rank_that_the_kernel_does_not_run_is_the_cause(
    state: str, words: str, remedy: str, frames: tuple[Place, ...]
) -> None:
    held = look(frames, state=state, trouble="" if frames else "py-spy is not installed")
    said = judge(ranks(look(), look(), look(state="S"), held), silent=600)
    assert isinstance(said, Hang)
    assert f"rank 3 on b is {words}" in said.finding.message
    assert said.finding.subject == "rank 3"
    assert remedy in said.finding.remedy
    assert isinstance(judge(ranks(look(below_cpu=1.0), held), silent=600), Moves), "another works"


def test_a_busy_wait_and_a_thread_that_polls_are_no_work() -> None:
    assert told(look(own_cpu=1.0, io=2000.0), POLLS)[1] == "rank 1"


def test_what_is_not_seen_is_not_judged() -> None:
    dark = look((), trouble="py-spy is not installed")
    assert judge(ranks(look(), look(), dark, dark), silent=9) == Unknown((("b", "py-spy is not installed"),))
    assert isinstance(judge(ranks(look(below_cpu=1.0), look(), dark), silent=9), Moves), "another is seen to work"
    alike = judge(ranks(look(), look()), silent=9, elsewhere=True)
    assert isinstance(alike, Unknown), "they may wait for a rank of another node that works"
    assert isinstance(judge(ranks(look(), look(EVALUATE)), silent=9, elsewhere=True), Hang)
    assert isinstance(judge([], silent=9), Unknown)
    starved = look(EVALUATE, starved=0.5)
    assert judge(ranks(look(), starved), silent=9) == Unknown((("a", "CPUs are short: a rank had to wait for one"),))


def test_only_what_the_program_called_counts_as_a_collective() -> None:
    assert call(look(EVALUATE)) == ""
    assert call(look((STEP[0], *ALL_REDUCE))) == "", "it computes in a function that a hook of all_reduce called"
    fsdp = "/v/lib/python3.11/site-packages/torch/distributed/fsdp/_runtime_utils.py"
    assert call(look((Place("all_gather_into_tensor", C10D, 1), Place("_unshard", fsdp, 2), *STEP))) == (
        "all_gather_into_tensor"
    )
    assert call(look((Place("_unshard", fsdp, 2), Place("unshard", fsdp, 9), *STEP))) == "unshard"


def test_the_evidence_has_the_stack_and_the_file_has_all() -> None:
    seen = ranks(look(), look(), look(), look(EVALUATE, Thread("pin", 1.0, STEP), pid=31, own_cpu=0.5))
    said = judge(seen, silent=60)
    assert isinstance(said, Hang)
    assert said.finding.host == "b"
    assert said.finding.evidence[:3] == (
        "rank 3 on b (pid 31, 50% of a CPU): in no collective",
        "  evaluate (/home/ada/torch/train.py:88)",
        "  main (/home/ada/torch/train.py:60)",
    )
    assert "  all_reduce (torch/distributed/distributed_c10d.py:3252)" in said.finding.evidence
    text = all_stacks(seen)
    assert text.startswith("ranks 0-2 on a, b\n  thread MainThread\n    all_reduce (/v/lib")
    assert "rank 3 on b\n" in text
    assert "  thread pin\n    step" in text


# ------------------------------------------------------------------------------------------------------ py-spy's words

RAW = """\
thread (27310): MainThread;<module> (/home/a b/x;y.py:12);work (/home/a b/t.py:6) 5
thread (27310): MainThread;<module> (/home/a b/t.py:12);work (/home/a b/t.py:6);work.<locals>.<genexpr> (/t.py:6) 15
thread (27315): a;b poll;Thread.run (/usr/lib/python3.11/threading.py:982);poll (/home/a b/t.py:8) 20
"""
"""As py-spy 0.4.3 writes it."""


def test_stacks_as_py_spy_writes_them() -> None:
    samples, threads = stacks.stacks(RAW, 27310)
    assert samples == 20
    main, other = msgspec.convert(threads, tuple[Thread, Thread])
    assert (main.name, main.share) == ("MainThread", 0.75)
    assert main.frames[:2] == (Place("work.<locals>.<genexpr>", "/t.py", 6), Place("work", "/home/a b/t.py", 6))
    assert (other.share, other.frames[0]) == (1.0, Place("poll", "/home/a b/t.py", 8))
    assert stacks.stacks("thread (9);main (t.py:1) 3\nthread (8);f (t.py:2) 3\n", 8)[1][0]["frames"] == [
        ["f", "t.py", 2]
    ]
    for unknown in ("", "thread (8);main@t.py@1 3\n", "thread (8); 3\n", "\x1b[2J\0"):
        assert stacks.stacks(unknown, 8) == (0, []), "no stack is no rank that stands still"


def test_why_py_spy_failed_is_one_line() -> None:
    assert "Yama" in stacks.reason("Permission Denied: Try running again with elevated permissions by going 'sudo'")
    assert "Yama" in stacks.reason("Error: Failed to suspend process\n\nCaused by:\n    0: EPERM (os error 1)\n")
    words = "py-spy> Sampling\nError: Failed to find python version from target process\n\nStack backtrace:\n   0: <E"
    assert stacks.reason(words) == "py-spy: Error: Failed to find python version from target process"


# ----------------------------------------------------------------------------------------------------------- NCCL's RAS

MISMATCH = """\
NCCL version 2.28.9 compiled with CUDA 12.9

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         2         4         4   RUNNING  MISMATCH

Warnings
========

#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 64
  Rank 3 has launched up to operation 60 -- GPU 1 managed by process 31 on node 10.0.0.2

#1-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  2 ranks have launched up to operation 7
  2 ranks have not launched any operations
  Rank 0 -- GPU 0 managed by process 31 on node 10.0.0.1
  Rank 2 -- GPU 0 managed by process 9 on node 10.0.0.2
"""
"""In the forms of NCCL's documentation and source (2.24 to 2.31)."""
RECORDED = (Path(__file__).parent / "nccl/ras/rank_behind.txt").read_text()
"""NCCL 2.28.9 on two H200 (2026-11-29): rank 1 sleeps before the sixth all-reduce, in which rank 0 waits."""


def test_ranks_that_are_behind() -> None:
    first, second = behind(MISMATCH)
    assert (first.operation, first.reached) == ("AllReduce operation", 64)
    assert first.members == (Member(3, 31, "10.0.0.2"),)
    assert (second.communicator, second.reached) == ("27a079b828ff1a75", 7)
    assert [member.rank for member in second.members] == [0, 2]
    assert behind(MISMATCH.split("Warnings")[0]) == ()


def test_a_recorded_answer_names_the_rank_that_hangs() -> None:
    (found,) = behind(RECORDED)
    assert (found.operation, found.reached) == ("AllReduce operation", 6)
    assert found.members == (Member(1, 1076, "192.0.2.2"),)


def test_ras_tells_where_stacks_do_not() -> None:
    dark = look((), pid=31, trouble="py-spy is not installed")
    nodes = {"10.0.0.1": "a", "10.0.0.2": "b"}
    seen = [Seen(rank=0, host="a", look=look(STEP, pid=31)), Seen(rank=1, host="b", look=dark)]
    only = MISMATCH.split("#1-0")[0]
    said = judge(seen, (only, only), silent=600, nodes=nodes)
    assert isinstance(said, Hang)
    assert "rank 1 on b has not launched AllReduce operation 64" in said.finding.message
    moved = only.replace("up to operation 64", "up to operation 65")
    assert isinstance(judge(seen, (only, moved), silent=600, nodes=nodes), Moves)
    busy = [seen[0], Seen(rank=1, host="b", look=msgspec.structs.replace(dark, own_cpu=0.9))]
    assert isinstance(judge(busy, (only, only), silent=600, nodes=nodes), Unknown), "it may compute"


def test_ras_is_asked_in_its_own_protocol() -> None:
    """Lines as in NCCL's client (`ncclras`); what answers here is no NCCL."""
    asked: list[bytes] = []

    def serve(server: socket.socket) -> None:
        sock, _ = server.accept()
        with sock, sock.makefile("rb") as file:
            for answer in (b"SERVER PROTOCOL 2\n", b"OK\n", MISMATCH.encode()):
                asked.append(file.readline())
                sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        assert ras.ask(f"localhost:{server.getsockname()[1]}") == MISMATCH
        thread.join()
    assert asked == [b"client protocol 2\n", b"timeout 5\n", b"verbose status\n"]
    assert ras.ask("localhost:1") == ""


def test_an_answer_of_a_host_is_read_strictly() -> None:
    answer = {"ranks": {"3": msgspec.to_builtins(look(io=None))}, "ras": []}
    assert msgspec.convert(answer, HostLook, str_keys=True).ranks[3] == look(io=None)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"ranks": {"3": {"pid": "x"}}}, HostLook, str_keys=True)
