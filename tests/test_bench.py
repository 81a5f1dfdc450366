"""Collectives are timed and checked for real on gloo; bandwidths, limits, verdicts; two hosts in the lab."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from nvrun.bench import compare, model, session, settings, show, worker
from nvrun.bench.limit import limit
from nvrun.bench.model import Overlap, Point, Record, Results, Schedule, Setup, TrialEnd
from nvrun.bench.paired import paired, sign_test
from nvrun.errors import UsageError
from nvrun.facts import HostFacts, NvLink, from_json
from tests.lab.lab import Lab

FACTS = Path(__file__).parent / "data/facts"
TEXT = Path(worker.__file__).read_text()


def facts(name: str) -> HostFacts:
    return from_json((FACTS / f"{name}.json").read_bytes())[0]


def ran(schedule: Schedule, text: str = TEXT, ranks: int = 2) -> tuple[Results, str]:
    """The schedule under torchrun on this machine, and what the ranks said on stderr."""
    asked = json.dumps({name: msgspec.to_builtins(getattr(schedule, name)) for name in schedule.__struct_fields__})
    python = [sys.executable, "-u", "-c", text, asked]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    argv = [*torchrun, "--no-python", "--", *python]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=120)
    return session.read(done.stdout.splitlines()), done.stderr.decode()


def record(collective: model.Collective, size: int, *seconds: float, trial: int = 0, wrong: int = 0) -> Record:
    return Record(trial=trial, collective=collective, bytes=size, scope="all", seconds=seconds, wrong=wrong, checked=1)


# ------------------------------------------------------------------------------------------------ the worker, for real


def test_every_collective_is_timed_and_its_data_checked() -> None:
    sizes = (8, 40_004)
    results, said = ran(
        Schedule(
            points=model.points(model.COLLECTIVES, sizes),
            scopes=("all", "node", "across"),
            order=((0, False), (0, True)),
            beside=(Point(collective="all_reduce", bytes=1 << 16),),
            seconds=0.02,
            deadline=60,
            seed=11,
        )
    )
    assert [end.failed for end in results.trials] == [None, None], said
    assert results.setup
    assert (results.setup.backend, results.setup.world, results.setup.scopes) == ("gloo", 2, {"all": 2})
    alone = results.of_trial(0)
    assert {(each.collective, each.skipped) for each in alone} == {(name, "") for name in model.COLLECTIVES}
    for each in alone:
        assert each.wrong == 0
        assert each.checked == 1.0
        assert len(each.seconds) >= 3
        assert 0 < each.median < 1
        assert each.bytes in (8, 40_000, 40_004), "parts of ranks are equally long"
    (beside,) = results.of_trial(1)
    assert beside.overlap
    assert beside.load
    assert beside.overlap.total >= max(min(beside.overlap.together), min(beside.overlap.matmul_together))


FAULTS = {
    "WRONG": "self.recv[3] += 1.0 if self.me == 1 else 0.0",
    "HANG": "time.sleep(600) if self.me == 1 else None",
    "CRASH": "os.kill(os.getpid(), 11) if self.me == 1 else None",
    "RAISE": "raise_it(self.me)",
    "IDLE": "self.recv.fill_(0)",
}


def test_a_trial_that_lies_hangs_or_dies_is_told_and_the_next_one_runs() -> None:
    """The worker with faults put behind its collective, each in one trial's environment."""
    call = "        self.run = self._bound()\n"
    assert TEXT.count(call) == 1
    faults = "".join(f"            if os.environ.get({name!r}):\n                {do}\n" for name, do in FAULTS.items())
    around = (
        f"        well = self.run\n\n        def run() -> None:\n            well()\n{faults}\n        self.run = run\n"
    )
    broken = TEXT.replace(call, call + around).replace(
        "def say(", "def raise_it(me: int) -> None:\n    if me == 1:\n        raise ValueError('boom')\n\n\ndef say(", 1
    )
    results, said = ran(
        Schedule(
            environments=({}, *({name: "1"} for name in FAULTS)),
            order=((0, False), *((at, False) for at in range(1, 1 + len(FAULTS))), (0, False)),
            points=(Point(collective="all_reduce", bytes=64),),
            seconds=0.01,
            deadline=4,
        ),
        broken,
    )
    ends = {(["fine", *FAULTS][end.environment], end.trial): end for end in results.trials}
    assert len(ends) == 7, said
    assert ends["fine", 0].failed is None
    assert ends["fine", 6].failed is None, "a trial after failed ones"
    assert results.of_trial(1)[0].wrong == 1
    assert results.of_trial(5)[0].wrong > 16
    assert "was not done within 4 s" in str(ends["HANG", 2].failed)
    assert "rank 1 ended with signal 11" in str(ends["CRASH", 3].failed)
    assert "rank 1: ValueError: boom" in str(ends["RAISE", 4].failed)
    assert ends["CRASH", 3].seconds < 4, "other ranks are not waited for once one has failed"


def test_lines_of_others_and_cut_ones_are_left_out() -> None:
    whole = b'nvrun-bench {"trial": 0, "environment": 0, "seconds": 1.5, "failed": null}'
    results = session.read([b"NCCL INFO x", whole[:40], b"nvrun-bench []", b"nvrun-bench 3", b"\xff", whole])
    assert results.trials == (TrialEnd(trial=0, environment=0, seconds=1.5),)
    assert results.records == ()


# ------------------------------------------------------------------------------------------------ figures and limits


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """Eight ranks, 1 GB in 10 ms: algorithm bandwidth 100 GB/s."""
    bus = {name: model.bus_bandwidth(record(name, 10**9, 0.01), 8) / 1e9 for name in model.COLLECTIVES}
    assert bus == pytest.approx(
        {"all_reduce": 175, "all_gather": 87.5, "reduce_scatter": 87.5, "broadcast": 100, "all_to_all": 87.5,
         "send_recv": 100}
    )  # fmt: skip


def test_limits_come_from_the_links() -> None:
    nvlink = limit("all_reduce", "all", [facts("h200x2")], 2)
    assert nvlink.bytes_per_second == pytest.approx(18 * 26.562e9)
    assert nvlink.why == "18 NVLinks x 26.6 GB/s a direction"
    pcie = limit("all_reduce", "all", [facts("l40sx4")], 4)
    assert pcie.why.startswith("PCIe gen 4 x16")
    assert pcie.bytes_per_second == pytest.approx(31.5e9, rel=0.01)
    assert limit("all_reduce", "all", [facts("cpu_host")], 4).bytes_per_second is None
    known = facts("h200x2")
    assert known.gpus
    blind = tuple(msgspec.structs.replace(gpu, nvlinks=(NvLink(link=0, active=True),)) for gpu in known.gpus)
    unknown = limit("all_reduce", "all", [msgspec.structs.replace(known, gpus=blind)], 2)
    assert unknown.bytes_per_second is None
    assert "was not read" in unknown.why


def test_over_hosts_the_network_limits_and_the_share_of_each_rank_counts() -> None:
    hosts = [facts("h100x8"), msgspec.structs.replace(facts("h100x8"), host="other")]
    one = limit("all_reduce", "across", hosts, 8)
    assert one.why == "8 ports x 400 Gb/s a host"
    assert one.bytes_per_second == pytest.approx(8 * 50e9 / 8)
    # A ring of 16 ranks over two hosts: each host's 400 GB/s carry 15/16 of what 1/2 of the message is counted as.
    every = limit("all_reduce", "all", hosts, 8)
    assert every.bytes_per_second is not None
    assert every.bytes_per_second <= 400e9 * (15 / 16) / (1 / 2)
    exchange = limit("all_to_all", "all", hosts, 8)
    assert exchange.bytes_per_second == pytest.approx(400e9 * (15 / 16) / (8 * 8 / 16))
    assert limit("all_reduce", "node", hosts, 8).why.endswith("NVLinks x 26.6 GB/s a direction")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8:128", (8, 32, 128)), ("1K:4K:2", (1024, 2048, 4096)), ("25M,1M", (1 << 20, 25 << 20)), ("4MiB", (1 << 22,))],
)
def test_sizes(text: str, expected: Sequence[int]) -> None:
    assert model.sizes(text) == tuple(expected)


@pytest.mark.parametrize("text", ["", "x", "8:", ":8", "8:4", "8:64:1", "8:64:x", "8:16:2:2", "1,2", "0", "-8", "8,,9"])
def test_wrong_sizes_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError):
        model.sizes(text)


def test_collectives_by_any_spelling() -> None:
    assert model.collectives("all-reduce,ALLGATHER,send_recv,all_reduce") == ("all_reduce", "all_gather", "send_recv")
    with pytest.raises(UsageError, match="gather-all"):
        model.collectives("gather-all")


# --------------------------------------------------------------------------------------------------------- verdicts


def test_the_sign_test_is_exact() -> None:
    assert sign_test([0.9] * 6) == 2 / 64
    assert sign_test([0.9] * 5 + [1.2]) == 14 / 64
    assert sign_test([0.9, 1.1] * 4) == 1.0
    assert sign_test([1.0, 1.0]) == 1.0


def test_the_interval_holds_the_true_ratio_and_the_test_errs_as_rarely_as_it_says() -> None:
    random = Random(1)
    inside = wrong = 0
    for _ in range(500):
        a, b = ([random.lognormvariate(0, 0.05) for _ in range(12)] for _ in range(2))
        found = paired(a, b)
        inside += found.low <= 1.0 <= found.high
        wrong += found.p <= compare.SURE
    print(f"interval holds in {inside} of 500, p <= {compare.SURE} in {wrong} of 500")
    assert inside >= 475
    assert wrong <= 30


def compared(ratio: float, seed: int, pairs: int = 10, noise: float = 0.03) -> compare.Comparison:
    """A machine that drifts by a fifth over the session, made."""
    random = Random(seed)
    order = compare.order(pairs)
    records, ends = [], []
    for trial, (which, _) in enumerate(order):
        for size in (1 << 16, 1 << 24):
            seconds = size * 1e-9 * (ratio if which else 1) * random.lognormvariate(0, noise) * (1 + 0.2 * trial / 21)
            records.append(record("all_reduce", size, seconds, trial=trial))
        ends.append(TrialEnd(trial=trial, environment=which, seconds=1))
    setup = Setup(backend="nccl", world=2, torch="2.11", scopes={"all": 2})
    return compare.compare(Results(setup=setup, records=tuple(records), trials=tuple(ends)), ("a", "b"))


def test_a_comparison_finds_a_difference_and_none_in_noise() -> None:
    slower = [compared(1.15, seed) for seed in range(20)]
    assert all(each.verdict.startswith("a is faster") for each in slower)
    assert all(each.overall and 1.10 < each.overall.ratio < 1.20 for each in slower)
    same = [compared(1.0, seed) for seed in range(100)]
    assert sum(not each.verdict.startswith("no difference") for each in same) <= 5
    assert "no difference beyond the noise" in "\n".join(compare.lines(same[0]))


def test_a_failed_or_wrong_trial_costs_its_pair() -> None:
    order = compare.order(3)
    ends = [TrialEnd(trial=at, environment=which, seconds=1) for at, (which, _) in enumerate(order)]
    ends[3] = msgspec.structs.replace(ends[3], failed="rank 0 was not done within 5 s")
    records = [record("broadcast", 8, 1.0 + at / 100, trial=at) for at in range(len(order))]
    found = compare.compare(Results(setup=None, records=tuple(records), trials=tuple(ends)), ("a", "b"))
    assert (found.lost, found.overall and found.overall.pairs) == (1, 2)
    records[6] = msgspec.structs.replace(records[6], wrong=1)
    found = compare.compare(Results(setup=None, records=tuple(records), trials=tuple(ends)), ("a", "b"))
    assert found.overall is None
    assert "no verdict" in found.verdict


def test_the_two_orders_of_a_pair_take_turns() -> None:
    order = [which for which, _ in compare.order(4)]
    assert order == [0, 0, 1, 1, 0, 0, 1, 1, 0]


def test_environments_of_a_comparison(tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    variable = "why: w, source: s, cost: c"
    preset.write_text(
        f"summary: x\nvariables:\n  NCCL_BUFFSIZE: {{value: 8MiB, {variable}}}\n"
        f"  NCCL_MIN_CTAS: {{value: 4, {variable}}}\n"
    )

    def given(text: str, *user: str) -> dict[str, str]:
        return settings.environment(text, folders=[tmp_path], versions={"nccl": "2.28.9", "torch": None}, user=user)

    assert given("default") == {}
    assert given("mine") == given(str(preset)) == {"NCCL_BUFFSIZE": "8388608", "NCCL_MIN_CTAS": "4"}
    assert given("mine", "NCCL_MIN_NCHANNELS") == {"NCCL_BUFFSIZE": "8388608"}
    assert given("NCCL_ALGO=Ring,Tree NCCL_BUFFSIZE=4M") == {"NCCL_ALGO": "Ring,Tree", "NCCL_BUFFSIZE": "4194304"}
    for text in ("none-such", "LD_PRELOAD=x.so", "A=1 B", "1A=2", "A='", "NCCL_BUFFSIZE=lots"):
        with pytest.raises(UsageError):
            given(text)


# ------------------------------------------------------------------------------------------------------------- shown


def test_tables_show_what_was_measured_skipped_and_wrong() -> None:
    setup = Setup(backend="nccl", world=2, torch="2.11.0", nccl="2.28.9", scopes={"all": 2})
    records = (
        record("all_reduce", 8, 18e-6, 20e-6, 22e-6),
        record("all_reduce", 1 << 20, 50e-6, 60e-6, 70e-6, wrong=7),
        record("all_reduce", 1 << 30, 0.0033, 0.0033, 0.0033),
        Record(trial=0, collective="all_reduce", bytes=8 << 30, scope="all", skipped="needs more memory"),
    )
    beside = Overlap(alone=(0.02,), matmul_alone=(0.02,), together=(0.03,), matmul_together=(0.025,))
    results = Results(setup=setup, records=(*records, msgspec.structs.replace(records[0], overlap=beside)))
    limits = {("all_reduce", "all"): limit("all_reduce", "all", [facts("h200x2")], 2)}
    text = "\n".join([*show.lines(results, limits), *show.overlap_lines(results.records)])  # type: ignore[arg-type]
    assert "7 WRONG ELEMENTS" in text
    assert "needs more memory" in text
    assert "limit 478.1 GB/s (18 NVLinks" in text
    assert f"{(1 << 30) / 0.0033 / 478.116e9:.1%}" in text
    assert "x1.50" in text
    assert "x1.25" in text
    assert "75% of one after the other" in text
    rows = show.data(results, limits)  # type: ignore[arg-type]
    assert rows[2]["bus_bandwidth"] == pytest.approx((1 << 30) / 0.0033)
    assert "bus_bandwidth" not in rows[3]


# -------------------------------------------------------------------------------------------------------- in the lab


def nvrun(lab: Lab, place: Path, *arguments: str) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "nvrun", *arguments, "--json", "--hosts", "a,b", "--run-dir", str(place / "runs")]
    done = lab.run(argv, cwd=Path(__file__).parents[1], timeout=500)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.lab
def test_two_hosts_are_benched_within_and_across(lab: Lab, tmp_path: Path) -> None:
    code, out, err = nvrun(
        lab, tmp_path, "bench", "--nproc-per-node", "2", "--sizes", "64,64K", "--collectives", "all-reduce,all-to-all"
    )
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    assert found["setup"]["scopes"] == {"all": 4, "node": 2, "across": 2}
    assert {(row["collective"], row["scope"]) for row in found["records"]} == {
        (name, scope) for name in ("all_reduce", "all_to_all") for scope in ("all", "node", "across")
    }
    assert all(row["wrong"] == 0 and row["bus_bandwidth"] > 0 for row in found["records"])
    assert "of_limit" not in found["records"][0], "a veth pair has no rate"


@pytest.mark.lab
@pytest.mark.slow
def test_on_gloo_the_search_keeps_the_default(lab: Lab, tmp_path: Path) -> None:
    """NCCL's variables do nothing there: whatever differs is noise, of which two cores have plenty. nvrun tune itself
    refuses such ranks; its search and its trials are the same."""
    argv = [sys.executable, "-m", "tests.bench_lab.on_gloo", "100", "--nproc-per-node", "1", "--hosts", "a,b"]
    done = lab.run([*argv, "--run-dir", str(tmp_path / "runs")], cwd=Path(__file__).parents[1], timeout=500)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    outcome = found["outcome"]
    assert "these ranks use gloo" in found["refused"]
    print(outcome["why"], outcome["trials"])
    assert not any(outcome["config"])
    assert outcome["trials"] > 30
    assert done.stderr.count("plan and logs in") == 1, "the plan is told once, whatever rounds there are"
    own = lab.run([sys.executable, "-m", "nvrun", "runs"], check=True).stdout.splitlines()[1]
    assert re.search(r"  tune, \d+ rounds  ", own)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tune"], "no `latest` of the user's programs"
