"""Traces -> figures -> advice. The GPU's are made (tests/traces/made.py); a real one of gloo is in tests/hooks."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from nvrun.cli import main
from nvrun.model import Finding
from nvrun.traces import events
from nvrun.traces.advice import advice
from nvrun.traces.events import Message, read
from nvrun.traces.spans import Spans, common, length
from nvrun.traces.summary import RankProfile, summarize
from tests.traces import made
from tests.traces.made import Raw, event, kernel, nccl, step

MS = 1000.0


def profile(raw: Iterable[Raw], rank: int = 0) -> RankProfile:
    found = summarize(read(io.BytesIO(made.text(raw))), trace=f"rank{rank}", rank=rank, host=f"n{rank}")
    assert found is not None
    return found


def told(*ranks: RankProfile) -> dict[str, Finding]:
    return {finding.code: finding for finding in advice(ranks)}


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_events_come_out_whole_however_the_file_is_cut(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CHUNK", chunk)
    raw = [step(3, 0, 10), kernel(1, 2, 'name with "]}\\ and ü'), nccl(2, 5)]
    kinds = [(each.kind, each.begin, each.end) for each in read(io.BytesIO(made.text(raw)))]
    assert kinds == [("step", 0, 10), ("kernel", 1, 3), ("collective", 2, 7)]


@pytest.mark.parametrize("wrong", [b"", b"{", b"[]", b'{"traceEvents": 3}', b"\x1f\x8b", b'{"traceEvents": [{"a": 1}'])
def test_what_is_no_trace_or_cut_off_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="trace"):
        list(read(io.BytesIO(wrong)))


def test_a_stream_without_an_event_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded whatever the file holds."""
    monkeypatch.setattr(events, "LONGEST", 1 << 16)
    monkeypatch.setattr(events, "CHUNK", 1 << 12)
    stream = io.BytesIO(b'{"traceEvents": ["' + b"x" * 1_000_000)
    with pytest.raises(ValueError, match="no event"):
        list(read(stream))
    assert stream.tell() < 1 << 18


def test_collectives_have_one_name_and_their_size() -> None:
    def message(raw: Raw) -> Message | None:
        return next(read(io.BytesIO(made.text([raw])))).message

    assert message(nccl(0, 1, "_allgather_base", 1000, "BFloat16")) == Message("all_gather", 2000, "bfloat16", 8)
    assert message(nccl(0, 1, "reduce_scatter_tensor_coalesced", 8)) == Message("reduce_scatter", 32, "float", 8)
    assert message(event("kernel", "ncclKernel_AllGather_RING_LL_Sum_int8_t", 0, 1)) == Message("all_gather")
    assert message(event("kernel", "ncclDevKernel_SendRecv(x)", 0, 1)) == Message("send_recv")
    shapes = {"Input Dims": [[256, 4]], "Input type": ["float"]}
    assert message(event("user_annotation", "gloo:all_reduce", 0, 1, **shapes)) == Message("all_reduce", 4096, "float")


def test_joined_and_common_time_agree_with_counting_it() -> None:
    choose = random.Random(8)
    for _ in range(50):
        made_spans = []
        ticks: list[set[int]] = []
        for _ in range(2):
            spans, covered = Spans(), set()
            for _ in range(12):
                begin = choose.randrange(60)
                end = begin + choose.randrange(9)
                spans.add(begin, end)
                covered |= set(range(begin, end))
            made_spans.append(spans.joined())
            ticks.append(covered)
        assert [length(each) for each in made_spans] == [len(each) for each in ticks]
        assert common(*made_spans) == len(ticks[0] & ticks[1])


# -- figures -----------------------------------------------------------------------------------------------------------


def test_exposed_communication_is_what_no_other_kernel_hides() -> None:
    found = profile([kernel(0, 100), nccl(50, 100), kernel(120, 10), kernel(190, 10),
                     event("cpu_op", "aten::mm", 0, 1e9)])  # fmt: skip
    assert found.device == "gpu"
    assert found.total == pytest.approx(200e-6)
    assert found.communication == pytest.approx(100e-6)
    assert found.exposed == pytest.approx(40e-6)
    assert found.busy == pytest.approx(160e-6)
    assert found.hidden == pytest.approx(0.6)
    (reduce,) = found.collectives
    assert (reduce.name, reduce.count, reduce.bytes, reduce.group) == ("all_reduce", 1, 4 << 20, 8)
    assert reduce.exposed == pytest.approx(40e-6)
    assert summarize(read(io.BytesIO(made.text([step(1, 0, 5)]))), trace="t") is None


def test_on_a_cpu_operators_hide_what_gloo_does() -> None:
    found = profile([event("cpu_op", "aten::addmm", 0, 60), event("cpu_op", "aten::mm", 10, 20),
                     event("user_annotation", "gloo:all_reduce", 40, 60),
                     event("cpu_op", "c10d::allreduce_", 40, 1)])  # fmt: skip
    assert found.device == "cpu"
    assert found.total == pytest.approx(100e-6)
    assert found.exposed == pytest.approx(40e-6)
    assert found.collectives[0].bytes is None


# -- advice ------------------------------------------------------------------------------------------------------------


def steps(count: int, *, compute: float, buckets: int, each: float, elements: int, dtype: str = "Float",
          late: float = 0.0) -> list[Raw]:  # fmt: skip
    """`count` steps of `compute` ms, then all-reduces of `each` ms that nothing hides."""
    raw: list[Raw] = []
    at = 0.0
    for number in range(count):
        raw.append(step(number, at, MS * (compute + late + buckets * each)))
        raw.append(kernel(at, MS * (compute + late)))
        at += MS * (compute + late)
        for _ in range(buckets):
            raw.append(nccl(at, MS * each, elements=elements, dtype=dtype))
            at += MS * each
    return raw


def test_hidden_communication_is_left_alone() -> None:
    found = told(profile([step(1, 0, 100 * MS), kernel(0, 100 * MS), nccl(20 * MS, 60 * MS)]))
    assert list(found) == ["profile-communication-hidden"]


def test_many_small_all_reduces() -> None:
    found = told(profile(steps(4, compute=10, buckets=20, each=0.5, elements=1 << 18)))
    assert "bucket_cap_mb=6" in found["profile-buckets-small"].remedy
    assert found["profile-buckets-small"].evidence == ("20 of 1 MiB a step",)
    assert "profile-bucket-late" not in found
    assert "50%" in found["profile-communication-exposed"].message


def test_one_bucket_that_comes_last() -> None:
    found = told(profile(steps(4, compute=10, buckets=1, each=10, elements=50 << 20)))
    assert "200 MiB carries 100%" in found["profile-bucket-late"].message
    assert "bf16_compress_hook" in found["profile-gradients-wide"].remedy
    narrow = told(profile(steps(4, compute=10, buckets=1, each=10, elements=50 << 20, dtype="BFloat16")))
    assert "profile-gradients-wide" not in narrow


def test_what_ddp_does_for_nothing() -> None:
    reducer = "torch.distributed.ddp.reducer::"
    raw = steps(4, compute=10, buckets=4, each=0.01, elements=25 << 18)
    for at in range(8):
        raw += [event("user_annotation", "DistributedDataParallel.forward", at * 10 * MS, 100),
                event("cpu_op", reducer + "search_unused_parameters", at * 10 * MS + 200, 300),
                event("cpu_op", "c10d::allreduce_", at * 10 * MS + 600, 10),
                event("cpu_op", reducer + "copy_bucket_to_grad", at * 10 * MS + 700, 20)]  # fmt: skip
        if at % 2:
            raw.append(event("user_annotation", "Optimizer.step#AdamW.step", at * 10 * MS + 900, 50))
    found = told(profile(raw))
    assert "static_graph=True" in found["profile-unused-searched"].remedy
    assert "gradient_as_bucket_view=True" in found["profile-gradients-copied"].remedy
    assert "4 of 8 backward passes" in found["profile-needless-reduction"].message
    assert "no_sync" in found["profile-needless-reduction"].remedy
    every = [each for each in raw if not str(each["name"]).startswith("c10d")]
    assert "profile-needless-reduction" not in told(profile(every)), "with no_sync nothing is reduced"


def test_fsdp_that_waits_for_its_shards() -> None:
    raw: list[Raw] = []
    for number in range(3):
        at = number * 30 * MS
        raw += [step(number, at, 30 * MS), nccl(at, 8 * MS, "_allgather_base", 1 << 20, "BFloat16", "AllGather_RING"),
                kernel(at + 8 * MS, 16 * MS),
                nccl(at + 22 * MS, 8 * MS, "_reduce_scatter_base", 1 << 20, "Float", "ReduceScatter_Sum")]  # fmt: skip
    found = told(profile(raw))
    assert "forward_prefetch" in found["profile-shards-late"].remedy
    assert "all-gathers of 2 MiB" in found["profile-shards-late"].remedy
    assert "profile-buckets-small" not in found


def test_waits_and_copies_of_the_cpu() -> None:
    raw: list[Raw] = []
    for number in range(4):
        at = number * 20 * MS
        raw += [step(number, at, 20 * MS), kernel(at, 8 * MS), kernel(at + 18 * MS, 2 * MS),
                event("cpu_op", "aten::item", at, 9 * MS), event("cpu_op", "aten::_local_scalar_dense", at, 9 * MS),
                event("cuda_runtime", "cudaStreamSynchronize", at + 100, 8 * MS),
                event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at, 500)]  # fmt: skip
    found = told(profile(raw))
    assert "8 ms a step" in found["profile-cpu-waits"].message
    assert any(line.startswith("aten::item: 1 a step") for line in found["profile-cpu-waits"].evidence)
    assert "pin_memory" in found["profile-copies-pageable"].remedy
    assert "50%" in found["profile-gpu-idle"].message


def test_the_rank_that_others_wait_for() -> None:
    ranks = [profile(steps(4, compute=10, buckets=4, each=1.5, elements=1 << 22), rank) for rank in (0, 1, 3)]
    slow = profile(steps(4, compute=10, late=4, buckets=4, each=0.5, elements=1 << 22), 2)
    behind = told(*ranks, slow)["profile-rank-behind"]
    assert (behind.host, behind.subject) == ("n2", "rank 2")
    assert "wait 4 ms a step" in behind.message
    assert "profile-rank-behind" not in told(*ranks)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for rank, host in enumerate("ab"):
        folder = tmp_path / "run" / "logs" / host / "torch-profiler"
        made.write(folder / f"rank{rank}.pt.trace.json.gz",
                   steps(4, compute=10, late=5.0 * rank, buckets=4, each=2 - rank, elements=1 << 20))  # fmt: skip
        made.write(folder / f"rank{rank}.pt.trace.part.json.gz", [])
    (folder / "rank2.pt.trace.json.gz").write_bytes((folder / "rank1.pt.trace.json.gz").read_bytes()[:200])
    (folder / "rank3.pt.trace.json").symlink_to(folder / "rank1.pt.trace.json.gz")
    environ = {"HOME": str(tmp_path)}
    assert main(["profile", "./run"], environ) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[1].split() == ["0", "a", "4", "18.00", "55.6%", "44.4%", "0%", "44.4%", "0.0%"]
    assert lines[2].split()[:3] == ["1", "b", "4"]
    assert "the others wait 4 ms a step for rank 1" in out
    assert "not read: " in lines[-1]
    assert "rank2" in lines[-1]
    assert main(["profile", "./run", "--json"], environ) == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["rank"] for each in said["ranks"]] == [0, 1]
    assert said["ranks"][0]["collectives"][0]["sizes"] == [{"bytes": 4 << 20, "count": 16}]
    assert {"profile-rank-behind", "profile-communication-exposed"} <= {each["code"] for each in said["findings"]}
    one = str(next(folder.glob("rank1.pt.trace.json.gz")))
    assert main(["profile", one], environ) == 0
    (tmp_path / "empty").mkdir()
    for wrong in ("./empty", "nowhere"):
        assert main(["profile", wrong], environ) == 2
    assert "--hook torch-profiler" in capsys.readouterr().err
    for record in ("request.json", "facts.json"):  # a run without the hook
        (tmp_path / "empty" / record).write_text("{}")
    assert main(["profile", "./empty"], environ) == 2
    assert capsys.readouterr().err.startswith("nvrun: empty: no trace of torch.profiler\n")
