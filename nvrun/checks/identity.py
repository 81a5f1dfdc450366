"""Who the hosts are: each named once, and told apart by NCCL. Clocks, too, are compared here.

Hosts that share a kernel (containers, network namespaces) have one boot id: only together with an equal hostname does
that make one host of two, for that is what NCCL hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from nvrun.checks.check import Results, fleet_check
from nvrun.checks.code import ERROR, FATAL, WARNING, declare
from nvrun.checks.job import Job
from nvrun.facts import Gpu, HostFacts, Identity, Network
from nvrun.hosts.nodeset import fold

CLOCK_LIMIT, CLOCK_NOTED = 1.0, 0.1
"""Seconds."""

TWICE = declare(
    "host-twice",
    FATAL,
    "one host is listed under two names",
    read="hostname, boot id and network namespace of each host",
    why="two nodes of the job would share GPUs, CPUs and ports",
    remedy="take one of the names out of the host list",
    source="nvrun compares /proc/sys/kernel/random/boot_id and the hostname",
)
TAKEN_FOR_ONE = declare(
    "hosts-taken-for-one",
    FATAL,
    "NCCL would take two hosts for one",
    read="what NCCL hashes to tell hosts apart: NCCL_HOSTID, else hostname and boot id",
    why="NCCL tries shared memory and P2P between GPUs of different machines and hangs or aborts",
    remedy="give each host its own hostname (docker --hostname), or NCCL_HOSTID a value of its own on each",
    source="https://github.com/NVIDIA/nccl, src/misc/utils.cc: getHostHash; NCCL user guide, NCCL_HOSTID",
)
SAME_GPU = declare(
    "gpu-listed-twice",
    FATAL,
    "two hosts show the same GPU",
    read="NVML's UUIDs of the planned GPUs",
    why="two ranks on one GPU: NCCL aborts with `Duplicate GPU detected`",
    remedy="take one of the hosts out, or give each its own GPUs (docker --gpus, NVIDIA_VISIBLE_DEVICES)",
    source="https://github.com/NVIDIA/nccl, src/init.cc: Duplicate GPU detected",
    real=False,
)
CLOCK = declare(
    "clock-off",
    ERROR,
    "the host's clock is off",
    read="the host's time in one round trip; offset with half the round trip as its error",
    why="elastic keep-alives expire, nodes drop out of the rendezvous, and logs cannot be compared",
    remedy="chronyc makestep (or timedatectl set-ntp true) there; chronyc tracking shows its source",
    source="https://github.com/pytorch/pytorch/issues/76287; RFC 5905, on the error of an offset",
    depends="error above 1 s, warning above 0.1 s, both beyond the error of the reading",
)


@fleet_check(TWICE, TAKEN_FOR_ONE)
def hosts_distinct(identity: Mapping[str, Identity], fleet: Mapping[str, HostFacts]) -> Results:
    """No host has two names, and NCCL can tell all hosts apart."""
    alike: dict[str, list[str]] = {}
    for host, who in identity.items():
        if who.nccl_host_hash:
            alike.setdefault(who.nccl_host_hash, []).append(host)
    for hosts in alike.values():
        if len(hosts) < 2:
            continue
        machines = {_machine(identity[host], fleet[host].network) for host in hosts}
        if len(machines) == 1:
            yield TWICE.found(f"{fold(hosts)} are one host ({identity[hosts[0]].hostname})")
            continue
        set_by_user = {(fleet[host].env or {}).get("NCCL_HOSTID") for host in hosts}
        shared = next(iter(set_by_user)) if len(set_by_user) == 1 else None
        what = f"NCCL_HOSTID={shared}" if shared else f"the hostname {identity[hosts[0]].hostname} and the boot id"
        yield TAKEN_FOR_ONE.found(f"NCCL takes {fold(hosts)} for one host: they share {what}")


def _machine(who: Identity, network: Network | None) -> tuple[object, ...]:
    """What differs between two machines, or two network namespaces of one."""
    addresses = frozenset(
        address.address
        for interface in (network.interfaces if network else ())
        for address in interface.addresses
        if address.scope == "global" and interface.up
    )
    return who.hostname, who.boot_id, who.net_namespace, addresses


@fleet_check(SAME_GPU)
def gpus_distinct(gpus: Mapping[str, tuple[Gpu, ...]], job: Job) -> Results:
    """No GPU belongs to two hosts of the plan."""
    owners: dict[str, list[str]] = {}
    for host, there in gpus.items():
        for gpu in job.gpus_of(host, there):
            owners.setdefault(gpu.uuid, []).append(host)
    shared: dict[tuple[str, ...], list[str]] = {}
    for uuid, hosts in owners.items():
        if len(hosts) > 1:
            shared.setdefault(tuple(hosts), []).append(uuid)
    for owned_by, uuids in shared.items():
        yield SAME_GPU.found(f"{fold(owned_by)} show the same {len(uuids)} GPU(s), the first is {uuids[0]}")


@fleet_check(CLOCK)
def clocks_agree(clock_offset_s: Mapping[str, float], fleet: Mapping[str, HostFacts]) -> Results:
    """The hosts' clocks agree to a second."""
    errors = {host: fleet[host].clock_error_s or 0.0 for host in clock_offset_s}
    if len(clock_offset_s) == 2:  # neither is the majority
        (a, at_a), (b, at_b) = clock_offset_s.items()
        apart, error = abs(at_a - at_b), errors[a] + errors[b]
        if apart - error > CLOCK_NOTED:
            ahead = a if at_a > at_b else b
            yield CLOCK.found(
                f"the clocks of {a} and {b} are {apart:.1f} s apart ({ahead} is ahead)",
                severity=ERROR if apart - error > CLOCK_LIMIT else WARNING,
                subject="clock",
                observed=f"{apart:.3f} s ± {error:.3f} s",
            )
        return
    common = median(clock_offset_s.values())
    for host, offset in clock_offset_s.items():
        off, error = offset - common, errors[host]
        if abs(off) - error > CLOCK_NOTED:
            yield CLOCK.found(
                f"the clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the other hosts",
                host=host,
                severity=ERROR if abs(off) - error > CLOCK_LIMIT else WARNING,
                subject="clock",
                observed=f"{off:+.3f} s ± {error:.3f} s",
            )
