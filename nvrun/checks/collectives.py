"""Matrix products, copies between GPUs and all-reduces as `--check deep` measured them, each judged apart. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from nvrun.checks.blame import blame, usual
from nvrun.checks.code import ERROR, FATAL, WARNING, declare
from nvrun.facts import Gpu
from nvrun.hosts.nodeset import fold
from nvrun.model import Finding, Frozen

_GEMM_SHARE = 0.8
_COPY_SHARE = 0.4
"""Of what NVLink's links carry by their rate; a good copy reaches 80 % (394 of 478 GB/s on H200)."""
_NCCL_SHARE = 0.25
"""Of the slowest copy between the same GPUs: over NVLink an all-reduce reaches 75 % of it, without P2P 7 % (H200)."""
_PAIR_SHARE = 0.5

GEMM = declare(
    "gemm-slow",
    WARNING,
    "a GPU computes slower than its peers",
    read="a matrix product in bfloat16, repeated; without any communication",
    why="every step waits for the slowest GPU",
    remedy="nvidia-smi -q -d PERFORMANCE,CLOCK,POWER on that host: throttled, power-capped, or shared?",
    source="below 80 % of the median of all GPUs of that model",
    depends="on GPUs; CPUs are not judged",
)
COPY = declare(
    "gpu-copy-slow",
    ERROR,
    "copies between two GPUs of a host are slow",
    read="copies of 256 MiB from each GPU to each other one",
    why="P2P is off or a link is lame: the collectives of that host, and so of the job, crawl",
    remedy="nvidia-smi topo -p2p r; nvidia-smi nvlink --status; ACS or IOMMU on, where GPUs hang on PCIe",
    source="below 40 % of the rate of the GPUs' NVLinks, or of the median of that host's pairs",
)
SLOW = declare(
    "collective-slow",
    ERROR,
    "the all-reduce is much slower than the hardware",
    read="bus bandwidth of an all-reduce of 256 MiB, in the environment that the job will have",
    why="gradients are exchanged in every step: training is slowed by that factor",
    remedy="NCCL_P2P_DISABLE, NCCL_P2P_LEVEL or NCCL_SHM_DISABLE set? NCCL_DEBUG=INFO shows `via P2P` or `via SHM`",
    source="below a quarter of the slowest copy between the same GPUs; between hosts below half of the median",
)
FAILS = declare(
    "collective-fails",
    FATAL,
    "a collective test fails or does not end",
    read="an all-reduce among the ranks of a host, and of pairs of hosts, in the environment that the job will have",
    why="the job would fail in its first collective",
    remedy="its last lines stand below; NCCL_DEBUG=INFO tells more",
    source="torch.distributed; NCCL user guide, Troubleshooting",
)
WRONG = declare(
    "collective-wrong",
    FATAL,
    "an all-reduce gives a wrong sum",
    read="a sum that is known, of every rank's all-reduce",
    why="the model would be trained with wrong gradients, and nothing would tell",
    remedy="take the host out; dcgmi diag -r 3 there",
    source="the sum of the ranks' numbers",
)


class Smoke(Frozen, frozen=True, kw_only=True):
    """What a group of hosts (two, or one alone) did together."""

    hosts: tuple[str, ...]
    gemm: Mapping[str, tuple[float, ...]] = {}
    """Host -> TFLOP/s of each rank."""
    copies: Mapping[str, Mapping[str, float]] = {}
    """Host -> `0-1` (from, to; as CUDA counts there) -> GB/s."""
    own: Mapping[str, float] = {}
    """Host -> bus bandwidth of its own ranks' all-reduce, GB/s."""
    together: float | None = None
    """Bus bandwidth over both hosts, GB/s."""
    backend: str = ""
    wrong: tuple[str, ...] = ()
    """Hosts whose ranks got a wrong sum."""
    trouble: str = ""
    """Why it failed; empty where it did not."""
    at_fault: str = ""
    """The host whose rank failed first by itself, where that is known."""
    tail: tuple[str, ...] = ()


def judge(first: Sequence[Smoke], second: Sequence[Smoke], gpus: Mapping[str, Sequence[Gpu]]) -> Iterator[Finding]:
    """Both rounds; in the second every host has another partner, so that a host at fault is told from its partner."""
    rounds = (*first, *second)
    yield from _failed(rounds)
    for host in dict.fromkeys(host for smoke in rounds for host in smoke.wrong):
        yield WRONG.found("an all-reduce gives a wrong sum", host=host, subject="all-reduce")
    yield from _gemm(first)
    for smoke in first:
        for host in smoke.hosts:
            yield from _within(smoke, host, gpus.get(host, ()))
    yield from _between(rounds)


def _failed(rounds: Sequence[Smoke]) -> Iterator[Finding]:
    alone = {smoke.hosts[0]: smoke for smoke in rounds if smoke.trouble and len(smoke.hosts) == 1}
    edges = {pair: smoke.trouble for smoke in rounds if len(smoke.hosts) == 2 for pair in _ways(smoke.hosts)}
    for host, smoke in alone.items():
        yield FAILS.found(f"fails alone: {smoke.trouble}", host=host, subject="all-reduce", evidence=smoke.tail)
    for found in blame(edges):
        hosts = {host for edge in found.edges for host in edge}
        culprit = found.host or next((s.at_fault for s in rounds if s.trouble and set(s.hosts) <= hosts), "") or None
        if culprit in alone:
            continue
        smoke = next(each for each in rounds if each.trouble and each.hosts in found.edges)
        what = "with every partner" if found.host else f"of {' and '.join(sorted(hosts))}"
        yield FAILS.found(
            f"the test {what} fails: {smoke.trouble}", host=culprit, subject="all-reduce", evidence=smoke.tail
        )


def _ways(hosts: tuple[str, ...]) -> tuple[tuple[str, str], tuple[str, str]]:
    a, b = hosts
    return (a, b), (b, a)


def _gemm(first: Sequence[Smoke]) -> Iterator[Finding]:
    speeds = {
        (host, rank): value
        for smoke in first
        if smoke.backend == "nccl"
        for host, values in smoke.gemm.items()
        for rank, value in enumerate(values)
    }
    if len(speeds) < 2:
        return
    middle = median(speeds.values())
    for (host, rank), value in speeds.items():
        if value < _GEMM_SHARE * middle:
            yield GEMM.found(
                f"{value:.0f} TFLOP/s, {middle:.0f} are usual here", host=host, subject=f"local rank {rank}"
            )


def _within(smoke: Smoke, host: str, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    copies = smoke.copies.get(host, {})
    middle = median(copies.values()) if copies else 0.0
    promised = min((rate for gpu in gpus if (rate := nvlink_rate(gpu))), default=0.0) if len(gpus) > 1 else 0.0
    slow = {pair: rate for pair, rate in copies.items() if rate < _COPY_SHARE * max(promised, middle)}
    if slow:
        worst = min(slow, key=lambda pair: slow[pair])
        expected = f"NVLink carries {promised:.0f}" if promised else f"{middle:.0f} is usual there"
        yield COPY.found(
            f"{len(slow)} of {len(copies)} copies between GPUs are slow, the least {slow[worst]:.0f} GB/s; {expected}",
            host=host,
            subject=f"GPU {worst.replace('-', ' to ')}",
            observed=f"{slow[worst]:.1f} GB/s",
        )
    together = smoke.own.get(host)
    slowest = min(copies.values(), default=0.0)
    floor = max(_NCCL_SHARE * slowest, _COPY_SHARE * promised * 0.5)
    if together is not None and together < floor:
        yield SLOW.found(
            f"all-reduce among its GPUs runs at {together:.0f} GB/s, copies between them at {slowest:.0f}: "
            + ("NCCL does not use P2P" if together < _NCCL_SHARE * slowest else "P2P is off"),
            host=host,
            subject="all-reduce",
            observed=f"{together:.1f} GB/s",
            expected=f"{floor:.0f} GB/s or more",
        )


def nvlink_rate(gpu: Gpu) -> float:
    """GB/s that a GPU's NVLinks to the switch carry in one direction, to any peer; 0 without a switch, where each link
    leads to one peer only, or where the speed is not known."""
    return sum((link.speed_mb_s or 0) / 1000 for link in gpu.nvlinks if link.active and link.remote_type == "switch")


def _between(rounds: Sequence[Smoke]) -> Iterator[Finding]:
    rates = {smoke.hosts: smoke.together for smoke in rounds if smoke.together is not None and len(smoke.hosts) == 2}
    if len(rates) < 3 or any(smoke.backend != "nccl" for smoke in rounds if smoke.hosts in rates):
        return  # gloo shares the CPUs with everything else: its rate says little
    middle, _ = usual({(pair[0], pair[1]): rate for pair, rate in rates.items()}, max)
    edges = {way: "slow" if rate < _PAIR_SHARE * middle else "" for pair, rate in rates.items() for way in _ways(pair)}
    for found in blame(edges):
        slow = [rate for pair, rate in rates.items() if pair in found.edges]
        who = "with every partner" if found.host else f"of {fold(found.sources)} with {fold(found.targets)}"
        yield SLOW.found(
            f"all-reduce {who} runs at {min(slow):.1f} GB/s, {middle:.1f} is usual here",
            host=found.host,
            subject="all-reduce",
            observed=f"{min(slow):.1f} GB/s",
        )
