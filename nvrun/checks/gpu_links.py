"""Ways between GPUs: NVLink, the NVSwitch fabric, and peer-to-peer access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, FATAL, INFO, WARNING, declare, unread
from nvrun.checks.compare import differing, listed
from nvrun.checks.gpu import label
from nvrun.checks.job import Job
from nvrun.facts import Gpu, HostFacts

_FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"

DOWN = declare(
    "nvlink-down",
    ERROR,
    "NVLinks of a planned GPU are down",
    read="NVML's state of each link, against the other GPUs of the host",
    why="NCCL gets less bandwidth, or takes the way through PCIe for the whole job",
    remedy="nvidia-smi nvlink -s -i N; reset the GPUs together; service the link if it stays down",
    source="nvidia-smi(1), nvlink",
    depends="error with several planned GPUs on the host, else information",
    real=False,
)
SLOW = declare(
    "nvlink-slow",
    WARNING,
    "an NVLink runs slower than the others",
    read="NVML's speed of each link",
    why="the ring goes at the pace of its slowest link",
    remedy="nvidia-smi nvlink -s -i N; reset the GPUs together; service the link if it stays slow",
    source="nvidia-smi(1), nvlink",
    real=False,
)
DIFFERS = declare(
    "nvlink-differs",
    ERROR,
    "like hosts have different numbers of active NVLinks",
    read="NVML's active links of all GPUs, on hosts of like hardware",
    why="the host with fewer links slows all others",
    remedy="nvidia-smi nvlink -s on that host; nvidia-smi topo -m; reset the GPUs together",
    source="majority of hosts with the same GPU and CPU models",
    depends="not judged where nvlink-down has named the host",
    real=False,
)
P2P = declare(
    "gpu-p2p-off",
    ERROR,
    "planned GPUs cannot reach each other's memory",
    read="NVML's P2P status of each planned pair, read and write",
    why="NCCL goes through host memory: a tenth of NVLink's bandwidth (27 instead of 326 GB/s on two H200)",
    remedy="nvidia-smi topo -p2p r; ACS and IOMMU of the PCIe switches, the driver's registry keys, MIG",
    source="NCCL user guide, Troubleshooting, GPU-to-GPU communication",
    depends="error where the GPUs have NVLink, information where the hardware has no P2P",
    real=False,
)
NOT_READY = declare(
    "fabric-not-ready",
    FATAL,
    "the NVSwitch fabric is not set up",
    read="NVML's fabric state and status of the planned GPUs",
    why="CUDA fails with error 802, `system not yet initialized`",
    remedy="systemctl status nvidia-fabricmanager there; its version must equal the driver's",
    source=_FABRIC,
    real=False,
)
UNHEALTHY = declare(
    "fabric-unhealthy",
    ERROR,
    "the NVSwitch fabric of a planned GPU is not healthy",
    read="NVML's fabric health mask and summary",
    why="less bandwidth, or routes that fail under load",
    remedy="nvidia-smi -q | grep -A8 Fabric; the fabric manager's log; service the NVLinks of that GPU",
    source=_FABRIC,
    depends="warning for less bandwidth or a route under recovery, error for the rest",
    real=False,
)
IMEX = declare(
    "imex-channel-missing",
    WARNING,
    "hosts of one NVLink domain have no IMEX channel",
    read="fabric clique of the planned GPUs; /dev/nvidia-caps-imex-channels",
    why="NCCL cannot use NVLink between these hosts and takes the network",
    remedy="nvidia-modprobe -c 0, and nvidia-imex running on all hosts of the domain",
    source="https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/",
    real=False,
)


@check(DOWN, SLOW)
def nvlinks_up(host: str, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """All NVLinks of the planned GPUs are up and equally fast.

    A GPU is compared with the others of its model on the host: links that no card or board connects are down by design.
    """
    planned = job.gpus_of(host, gpus)
    most: dict[str, int] = {}
    for gpu in gpus:
        most[gpu.name] = max(most.get(gpu.name, 0), _active(gpu))
    speeds = Counter(link.speed_mb_s for gpu in gpus for link in gpu.nvlinks if link.active and link.speed_mb_s)
    usual = max(speeds, key=lambda speed: (speeds[speed], speed), default=0) or 0
    for gpu in planned:
        up = _active(gpu)
        if gpu.mig is not None:
            continue  # its instances have no NVLink
        # A card without a bridge beside a bridged pair has none; behind NVSwitches every GPU has all.
        by_design = up == 0 and not _switched(gpus)
        if up < most[gpu.name] and not by_design:
            down = [link.link for link in gpu.nvlinks if not link.active]
            which = f": {listed(down)} down" if down else ""
            yield DOWN.found(
                f"{label(gpu)} has {up} NVLinks of {most[gpu.name]}{which}",
                severity=ERROR if len(planned) > 1 else INFO,
                subject=label(gpu),
                observed=str(up),
                expected=str(most[gpu.name]),
                remedy=DOWN.remedy.replace("-i N", f"-i {gpu.index}"),
            )
        slow = [link.link for link in gpu.nvlinks if link.active and link.speed_mb_s and link.speed_mb_s < usual]
        if slow:
            yield SLOW.found(
                f"{label(gpu)}: NVLinks {listed(slow)} are slower than {usual} MB/s",
                subject=label(gpu),
                remedy=SLOW.remedy.replace("-i N", f"-i {gpu.index}"),
            )


@fleet_check(DIFFERS)
def nvlinks_agree(gpus: Mapping[str, tuple[Gpu, ...]], groups: tuple[tuple[str, ...], ...], job: Job) -> Results:
    """Like hosts have equally many NVLinks per GPU."""
    counts = {host: _per_gpu(job.gpus_of(host, there)) for host, there in gpus.items()}
    yield from differing(DIFFERS, counts, "active NVLinks of each GPU:", groups=groups, subject="NVLink")


def _per_gpu(planned: Sequence[Gpu]) -> int | None:
    """Links of each whole GPU; None where they differ on the host itself, which nvlink-down names."""
    counts = {_active(gpu) for gpu in planned if gpu.mig is None}
    return counts.pop() if len(counts) == 1 else None


@check(P2P)
def gpus_reach_each_other(host: str, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """Planned GPUs can reach each other's memory."""
    planned = [gpu for gpu in job.gpus_of(host, gpus) if gpu.mig is None]
    indices = {gpu.uuid: gpu.index for gpu in planned}
    reasons: dict[tuple[str, bool], list[str]] = {}
    untold: dict[str, list[str]] = {}
    for gpu in planned:
        for uuid, answer in gpu.p2p.items():
            if answer != "ok" and gpu.index < indices.get(uuid, -1):
                pair = f"{gpu.index}-{indices[uuid]}"
                if "not supported" in answer or "disabled" in answer:
                    reasons.setdefault((answer, _active(gpu) > 0), []).append(pair)
                else:
                    untold.setdefault(answer, []).append(pair)
    for answer, pairs in untold.items():
        yield unread(f"P2P between GPUs {listed(pairs)}: {answer}")
    for (answer, nvlink), pairs in reasons.items():
        yield P2P.found(
            f"no P2P between GPUs {listed(pairs)}: {answer}",
            severity=ERROR if nvlink else (INFO if "not supported" in answer else WARNING),
            subject="P2P",
            evidence=tuple(pairs),
        )


@check(NOT_READY, UNHEALTHY)
def fabric_healthy(host: str, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """The NVSwitch fabric of the planned GPUs is set up and healthy."""
    states: dict[str, list[str]] = {}
    faults: dict[tuple[str, bool], list[str]] = {}
    for gpu in job.gpus_of(host, gpus):
        if gpu.fabric_state in ("not started", "in progress") or (gpu.fabric_state or "").startswith("unknown"):
            states.setdefault(gpu.fabric_state or "", []).append(label(gpu))
        elif gpu.fabric_state == "completed" and gpu.fabric_status not in (None, "success"):
            states.setdefault(f"failed: {gpu.fabric_status}", []).append(label(gpu))
        for fault, severe in _faults(gpu.fabric_health):
            faults.setdefault((fault, severe), []).append(label(gpu))
    for state, names in states.items():
        yield NOT_READY.found(f"fabric setup of {listed(names)} is {state}", subject="fabric", observed=state)
    for (fault, severe), names in faults.items():
        yield UNHEALTHY.found(
            f"fabric of {listed(names)}: {fault}", severity=ERROR if severe else WARNING, subject="fabric"
        )


def _faults(health: Mapping[str, str]) -> list[tuple[str, bool]]:
    """What is wrong, and whether it is an error. The summary counts only where nothing else says what it is."""
    found = [(name, name.startswith(("route unhealthy", "access"))) for name, value in health.items() if value == "yes"]
    if wrong := health.get("incorrect configuration"):
        found.append((f"incorrect configuration ({wrong})", True))
    if not found and health.get("summary") in ("unhealthy", "limited"):
        found.append((health["summary"], health["summary"] == "unhealthy"))
    return found


@fleet_check(IMEX)
def imex_channels(gpus: Mapping[str, tuple[Gpu, ...]], fleet: Mapping[str, HostFacts], job: Job) -> Results:
    """Hosts of one NVLink domain have IMEX channels."""
    cliques: dict[str, set[str]] = {}
    for host, there in gpus.items():
        for gpu in job.gpus_of(host, there):
            if gpu.fabric_clique:
                cliques.setdefault(gpu.fabric_clique, set()).add(host)
    spanning = {host for hosts in cliques.values() if len(hosts) > 1 for host in hosts}
    for host in fleet:
        software = fleet[host].software
        if host not in spanning or software is None:
            continue
        channels = {path: answer for path, answer in software.device_nodes.items() if "imex" in path}
        if not channels:
            yield IMEX.found("no IMEX channel, though its NVLink domain spans hosts of the job", host=host)
        elif "ok" not in channels.values():
            path, answer = next(iter(channels.items()))
            yield IMEX.found(f"{path} cannot be opened: {answer}", host=host)


def _active(gpu: Gpu) -> int:
    return sum(link.active for link in gpu.nvlinks)


def _switched(gpus: Sequence[Gpu]) -> bool:
    return any(link.remote_type == "switch" for gpu in gpus for link in gpu.nvlinks)
