"""Samples of stated shapes -> findings that name the host at fault, and nothing where all are alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from nvrun import checks
from nvrun.checks.in_run import in_run
from nvrun.model import Finding, Severity
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


def on(host: str, at: int, **fields: Any) -> Change:
    return lambda where, which, number: fields if (where, which) == (host, at) else {}


@pytest.mark.parametrize("hosts", [1, 2, 8])
@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_like_gpus_and_ranks_give_nothing(hosts: int, gpus: int) -> None:
    assert in_run(job(hosts=hosts, gpus=gpus)) == ()


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("run-gpu-slow", {"gpu": on("n02", 3, sm_mhz=1500)}, "GPU 3", "1500 MHz"),
    ("run-gpu-throttled", {"gpu": on("n02", 1, reasons=("power cap", "power brake"))}, "GPU 1", "power brake in 100%"),
    ("run-gpu-throttled", {"gpu": lambda host, card, at: {"reasons": ("software thermal",)} if host == "n02" and card == 0
                           and at % 2 else {}}, "GPU 0", "software thermal in 50%"),
    ("run-gpu-hot", {"gpu": on("n02", 2, temperature_c=84)}, "GPU 2", "84 °C"),
    ("run-gpu-starved", {"gpu": on("n02", 0, util=55)}, "GPU 0", "55 %"),
    ("run-rank-contended", {"rank": lambda host, which, at: {"wait_s": 4.0 * at} if (host, which) == ("n02", 1) else {}},
     "rank 5", "40%"),
    ("run-rank-paged", {"rank": lambda host, which, at: {"major": 500 * at} if (host, which) == ("n02", 1) else {}},
     "rank 5", "50 major page faults"),
    ("run-errors-grew", {"gpu": lambda host, card, at: {"ecc_uncorrected": at // 9} if (host, card) == ("n02", 0) else {}},
     "GPU 0", "uncorrected memory errors"),
    ("run-errors-grew", {"gpu": lambda host, card, at: {"pcie_replays": 50 * at} if (host, card) == ("n02", 0) else {}},
     "GPU 0", "1450 PCIe replays"),
    ("run-errors-grew", {"sample": lambda host, _, at: {"rdma": {"mlx5_0/1": {"link_downed": at // 20}}}
                         if host == "n02" else {}}, "mlx5_0/1", "link_downed grew by 1"),
    ("run-errors-grew", {"sample": lambda host, _, at: {"interfaces": {"eth0": {"errors": at}}} if host == "n02" else {}},
     "eth0", "29 packet errors"),
    ("run-gpu-driver-silent", {"sample": lambda host, _, at: {"gpus": None, "gpus_unread": "GPU is lost"}
                               if host == "n02" and at > 25 else {}}, "", "GPU is lost"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "changes", "subject", "words"), CASES, ids=[f"{case[0]}-{case[3]}" for case in CASES])
def test_one_that_differs_is_found_once_and_named(code: str, changes: Any, subject: str, words: str) -> None:
    (found,) = in_run(job(**changes))
    assert (found.code, found.host, found.subject) == (code, "n02", subject)
    assert words in found.message
    assert found.remedy
    assert checks.explain(code)


def test_uncorrected_memory_errors_are_an_error() -> None:
    (found,) = in_run(job(gpu=lambda host, card, at: {"ecc_uncorrected": at} if (host, card) == ("n01", 0) else {}))
    assert found.severity == Severity.ERROR


def test_all_slow_alike_is_no_straggler() -> None:
    assert in_run(job(gpu=lambda host, card, at: {"sm_mhz": 1200})) == ()


def test_other_models_are_no_peers() -> None:
    mixed = job(gpu=lambda host, card, at: {"sm_mhz": 1200} if host == "n02" else {})
    known = tuple(GpuKnown(index=card, name="NVIDIA L40S") for card in range(4))
    mixed["n02"] = HostSamples(header=Header(every=10, gpus=known), samples=mixed["n02"].samples)
    assert in_run(mixed) == ()


def test_gpus_of_other_jobs_are_not_judged() -> None:
    hosts = job(gpu=on("n02", 3, sm_mhz=800))
    used = {host: frozenset({0, 1, 2}) for host in hosts}
    assert in_run(hosts, used) == ()


def test_short_runs_say_nothing() -> None:
    assert in_run(job(gpu=on("n02", 3, sm_mhz=800), samples=5)) == ()


def test_restarted_rank_does_not_count_backwards() -> None:
    def restarted(host: str, which: int, at: int) -> dict[str, Any]:
        return {"pid": 100 + 50 * (at > 15), "wait_s": 0.01 * (at % 16), "major": at % 16}

    assert in_run(job(rank=restarted)) == ()


def test_every_code_has_a_case() -> None:
    declared = {name for name in checks.CODES if name.startswith("run-")}
    assert declared == {case[0] for case in CASES}


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.code for finding in findings]
