"""Samples of stated shapes -> findings that name the host at fault, and nothing where all are alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from nvrun import checks
from nvrun.checks.in_run import in_run
from nvrun.model import Severity
from nvrun.monitor import GpuKnown, GpuRead, Header, HostSamples, RankRead, Sample

Change = Callable[[str, int, int], dict[str, Any]]
"""(host, GPU or rank, number of the sample) -> fields that differ."""


def nothing(host: str, at: int, number: int) -> dict[str, Any]:
    return {}


def job(gpu: Change = nothing, rank: Change = nothing, sample: Change = nothing, *, hosts: int = 2, samples: int = 30,
        gpus: int = 4) -> dict[str, HostSamples]:  # fmt: skip
    """Hosts whose GPUs work alike, within the spread of real ones, but for what the changes say."""
    spread = random.Random(7)
    found = {}
    for number in range(1, hosts + 1):
        host = f"n{number:02}"
        reads = []
        for at in range(samples):
            busy = 0 < at < samples - 1
            cards = tuple(
                GpuRead(**{
                    "util": busy * spread.uniform(92, 100), "sm_mhz": spread.randint(1890, 1980) if busy else 345,
                    "temperature_c": spread.uniform(55, 66), "reasons": ("power cap",) if busy else ("idle",),
                    "power_w": 600.0, "pcie_replays": at % 3, "ecc_uncorrected": 0, "nvlink_recoveries": 0,
                    **gpu(host, card, at),
                })
                for card in range(gpus)
            )  # fmt: skip
            ranks = {
                card + (number - 1) * max(gpus, 2): RankRead(**{
                    "pid": 100 + card, "cpu_s": 12.0 * at, "wait_s": 0.02 * at, "major": 1000 if at else 0,
                    **rank(host, card, at),
                })
                for card in range(max(gpus, 2))
            }  # fmt: skip
            base = {
                "at": 10.0 * at, "gpus": cards, "ranks": ranks,
                "interfaces": {"eth0": {"rx": at, "tx": at, "errors": 5, "drops": at}},
                "rdma": {"mlx5_0/1": {"rx": at, "tx": at, "symbol_error": 2}},
            }  # fmt: skip
            reads.append(Sample(**{**base, **sample(host, 0, at)}))
        header = Header(every=10, gpus=tuple(GpuKnown(index=card, name="NVIDIA H100") for card in range(gpus)))
        found[host] = HostSamples(header=header, samples=tuple(reads))
    return found


@pytest.mark.parametrize("hosts", [1, 2, 8])
@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_like_gpus_and_ranks_give_nothing(hosts: int, gpus: int) -> None:
    assert in_run(job(hosts=hosts, gpus=gpus)) == ()


def on_gpu(at: int, **fields: Any) -> dict[str, Any]:
    """Other readings on one GPU of n02; a function of the sample's number gives one that changes."""
    return {"gpu": _there(at, fields)}


def on_rank(at: int, **fields: Any) -> dict[str, Any]:
    return {"rank": _there(at, fields)}


def on_host(**fields: Any) -> dict[str, Any]:
    return {"sample": _there(0, fields)}


def _there(at: int, fields: dict[str, Any]) -> Change:
    def change(host: str, which: int, number: int) -> dict[str, Any]:
        if (host, which) != ("n02", at):
            return {}
        return {name: value(number) if callable(value) else value for name, value in fields.items()}

    return change


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("run-gpu-slow", on_gpu(3, sm_mhz=1500), "GPU 3", "1500 MHz"),
    ("run-gpu-throttled", on_gpu(1, reasons=("power cap", "power brake")), "GPU 1", "power brake in 100%"),
    ("run-gpu-throttled", on_gpu(0, reasons=lambda at: ("software thermal",) * (at % 2)), "GPU 0", "thermal in 50%"),
    ("run-gpu-hot", on_gpu(2, temperature_c=84), "GPU 2", "84 °C"),
    ("run-gpu-starved", on_gpu(0, util=55), "GPU 0", "55 %"),
    ("run-rank-contended", on_rank(1, wait_s=lambda at: 4.0 * at), "rank 5", "40%"),
    ("run-rank-paged", on_rank(1, major=lambda at: 500 * at), "rank 5", "50 major page faults"),
    ("run-errors-grew", on_gpu(0, ecc_uncorrected=lambda at: at // 9), "GPU 0", "uncorrected memory errors"),
    ("run-errors-grew", on_gpu(0, nvlink_recoveries=lambda at: at // 20), "GPU 0", "1 NVLink recoveries"),
    ("run-errors-grew", on_gpu(0, pcie_replays=lambda at: 50 * at), "GPU 0", "1450 PCIe replays"),
    ("run-errors-grew", on_host(rdma=lambda at: {"mlx5_0/1": {"symbol_error": at // 20}}), "mlx5_0/1", "grew by 1"),
    ("run-link-down", on_host(rdma=lambda at: {"mlx5_0/1": {"link_downed": at // 20}}), "mlx5_0 port 1",
     "mlx5_0 port 1 went down between 00:03:10 and 00:03:20 UTC"),
    ("run-link-down", on_host(interfaces=lambda at: {"eth0": {"errors": 5, "carrier_down_count": 1 + at // 14}}),
     "eth0", "eth0 went down 2 times, first between 00:02:10 and 00:02:20 UTC"),
    ("run-errors-grew", on_host(interfaces=lambda at: {"eth0": {"errors": at}}), "eth0", "29 packet errors"),
    ("run-gpu-driver-silent", on_host(gpus=lambda at: None if at > 25 else (GpuRead(util=95.0),) * 4,
                                      gpus_unread=lambda at: "GPU is lost" * (at > 25)), "", "GPU is lost"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "changes", "subject", "words"), CASES, ids=[f"{case[0]}-{case[3]}" for case in CASES])
def test_one_that_differs_is_found_once_and_named(code: str, changes: Any, subject: str, words: str) -> None:
    (found,) = in_run(job(**changes))
    assert (found.code, found.host, found.subject) == (code, "n02", subject)
    assert words in found.message
    assert found.remedy
    assert checks.explain(code)


def test_uncorrected_memory_errors_are_an_error() -> None:
    (found,) = in_run(job(**on_gpu(0, ecc_uncorrected=lambda at: at)))
    assert found.severity == Severity.ERROR


def test_all_slow_alike_is_no_straggler() -> None:
    assert in_run(job(gpu=lambda host, card, at: {"sm_mhz": 1200})) == ()


def test_other_models_are_no_peers() -> None:
    mixed = job(gpu=lambda host, card, at: {"sm_mhz": 1200} if host == "n02" else {})
    known = tuple(GpuKnown(index=card, name="NVIDIA L40S") for card in range(4))
    mixed["n02"] = HostSamples(header=Header(every=10, gpus=known), samples=mixed["n02"].samples)
    assert in_run(mixed) == ()


def test_gpus_of_other_jobs_are_not_judged() -> None:
    hosts = job(**on_gpu(3, sm_mhz=800))
    used = {host: frozenset({0, 1, 2}) for host in hosts}
    assert in_run(hosts, used) == ()


def test_short_runs_say_nothing() -> None:
    assert in_run(job(**on_gpu(3, sm_mhz=800), samples=5)) == ()


def test_restarted_rank_does_not_count_backwards() -> None:
    def restarted(host: str, which: int, at: int) -> dict[str, Any]:
        return {"pid": 100 + 50 * (at > 15), "wait_s": 0.01 * (at % 16), "major": at % 16}

    assert in_run(job(rank=restarted)) == ()


def test_every_code_has_a_case() -> None:
    declared = {name for name, code in checks.CODES.items() if code.read.startswith("the monitor's samples")}
    assert declared == {case[0] for case in CASES}
