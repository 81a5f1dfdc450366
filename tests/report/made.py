"""Runs made for the tests of the report: a recorded kind of machine, its plan, and samples of stated shapes.

Made, not measured: a training job whose GPUs draw 600 W; on the second host GPU 5 is held down by heat, and its rank
fails at the end.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec

from nvrun.checks import Job
from nvrun.checks import run as check
from nvrun.facts import HostFacts, to_json
from nvrun.model import EnvVar, Finding, Host, RankEnd, RunResult, Severity
from nvrun.placement import Wishes, place
from nvrun.plan import Plan, Site, build
from nvrun.rundir import file_name
from nvrun.rundir import to_json as as_json
from nvrun.torchrun import TorchrunArgs
from tests.checks.fleets import fleet

BEGAN = 1.7e9
SECONDS = 600.0
HOT_HOST, HOT_GPU = 1, 5


def write(folder: Path, *, kind: str = "h100x8", hosts: int = 2, ranks: int = 8, fails: bool = True, power: float = 600,
          names: tuple[str, ...] = ()) -> Plan:  # fmt: skip
    """A run's folder with plan, facts, verdict, result and samples."""
    found = dict(enumerate(fleet(kind, hosts).values()))
    if names:
        found = {node: msgspec.structs.replace(each, host=names[node]) for node, each in found.items()}
    plan = _plan(found, ranks, folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_bytes(as_json(plan))
    (folder / "facts.json").write_bytes(to_json(list(found.values())))
    (folder / "verdict.json").write_bytes(as_json(check({each.host: each for each in found.values()}, Job())))
    (folder / "result.json").write_bytes(as_json(_result(plan, fails)))
    for node, facts in found.items():
        logs = folder / "logs" / file_name(facts.host)
        logs.mkdir(parents=True)
        (logs / "samples.jsonl").write_text("\n".join(_samples(plan, node, facts, power)) + "\n")
    return plan


def _plan(found: dict[int, HostFacts], ranks: int, run_id: str) -> Plan:
    sites = [
        Site(host=Host(name=each.host), ranks=ranks, python="/venv/bin/python", folder="") for each in found.values()
    ]
    plan = build(
        run_id=run_id, args=TorchrunArgs(program="train.py"), sites=sites, cwd="/job", fleet=True, master_port=29500,
        env=[EnvVar(name="NCCL_DEBUG", value="INFO", source="--env"),
             EnvVar(name="HF_TOKEN", value="hf_abcdefghijklmnop", source="--env")],
        grace=30.0, lost_after=300.0,
    )  # fmt: skip
    return place(plan, found, Wishes(args=TorchrunArgs())).plan


def _result(plan: Plan, fails: bool) -> RunResult:
    ends = []
    for host in plan.hosts:
        for rank in host.ranks:
            culprit = fails and host.node == HOT_HOST % len(plan.hosts) and rank.local_rank == HOT_GPU
            tail = ("Traceback (most recent call last):", 'RuntimeError: <b>bad</b> & "worse"')
            ends.append(
                RankEnd(
                    rank=rank.rank,
                    host=host.host.name,
                    local_rank=rank.local_rank,
                    pid=1000 + rank.rank,
                    code=1 if culprit else -15 if fails else 0,
                    at=BEGAN + SECONDS + (0 if culprit else 0.4),
                    begun=BEGAN + 4.0,
                    first_output=BEGAN + 9 + 0.1 * rank.rank,
                    by_nvrun=fails and not culprit,
                    tail=tail if culprit else (),
                )
            )
    first = next((end for end in ends if end.code == 1), None)
    return RunResult(
        run_id=plan.run_id, ended_by="rank" if fails else "success", exit_code=int(fails), started=BEGAN,
        seconds=SECONDS + 2, ranks=tuple(ends), first_failure=first,
        findings=(Finding(code="made", severity=Severity.INFO, message="made for a test <script>alert(1)</script>"),),
    )  # fmt: skip


def _samples(plan: Plan, node: int, facts: HostFacts, power: float) -> list[str]:
    gpus = [
        {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_total": gpu.memory_total, "power_limit_w": 700}
        for gpu in facts.gpus or ()
    ]
    lines = [json.dumps({"version": 1, "run": plan.run_id, "host": facts.host, "every": 10, "cpus": 96, "gpus": gpus})]
    for step in range(int(SECONDS / 10) + 1):
        seconds = 10.0 * step
        works = 0.0 if seconds < 20 else 1.0
        lines.append(json.dumps(_sample(plan, node, len(gpus), seconds, works, power)))
    return lines


def _sample(plan: Plan, node: int, gpus: int, seconds: float, works: float, power: float) -> dict[str, object]:
    def wave(at: int) -> float:
        return math.sin(seconds / 37 + at)

    def gpu(at: int) -> dict[str, object]:
        hot = (node, at) == (HOT_HOST, HOT_GPU)
        return {
            "util": works * (97 + wave(at)), "memory_used": int((4 + works * 60) * 2**30),
            "power_w": 110 + works * (power - 130 - 120 * hot + 15 * wave(at)),
            "temperature_c": 36 + works * (24 + at + 22 * hot + wave(at)),
            "sm_mhz": int(1980 - works * (60 + 10 * wave(at) + 520 * hot)),
            "reasons": ["hardware thermal"] if hot and works else ["power cap"] if works else ["idle"],
            "nvlink_tx": int(works * max(0, seconds - 20) * (120 + at) * 1e9),
            "pcie_rx_per_s": int(2e8 + 1e7 * wave(at)), "pcie_replays": 3, "ecc_uncorrected": 0,
        }  # fmt: skip

    ranks = {
        str(rank.rank): {"pid": 1000 + rank.rank, "cpu_s": seconds * 1.4 + 2 * wave(rank.rank), "rss": int(9.5e9),
                         "wait_s": 0.001 * seconds, "minor": 1, "major": 0, "processes": 5}
        for rank in plan.hosts[node].ranks
    }  # fmt: skip
    return {
        "at": BEGAN + 4 + seconds + 0.001, "cpu_busy_s": 20 * seconds, "cpu_total_s": 96 * seconds,
        "memory_available": int(1.8e12), "gpus": [gpu(at) for at in range(gpus)],
        "ranks": ranks if seconds < SECONDS else {},
        "interfaces": {"eth0": {"rx": int(seconds * 1e6), "tx": int(seconds * 2e6), "errors": 0, "drops": 0}},
        "rdma": {f"mlx5_{at}/1": {"rx": int(works * max(0, seconds - 20) * 2.1e10), "symbol_error": 0,
                                  "tx": int(works * max(0, seconds - 20) * 2.1e10)} for at in range(8)},
        "spent_s": 0.2 + seconds * 0.0004,
    }  # fmt: skip
