"""RoCE's traffic in the class that the network keeps from loss: PFC, ECN and NCCL's own mark, on the hosts' side.

What the switches do cannot be read from a host; that two hosts are set up alike, and that a host marks its packets for
the priority on which it sends pauses, can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, INFO, WARNING, Code, declare, unread
from nvrun.checks.compare import differing, listed
from nvrun.checks.job import Job, name_of
from nvrun.facts import HostFacts, Interface, Network, RdmaPort
from nvrun.topology.cpus import format_cpulist

_LOSSLESS = "https://github.com/NVIDIA/nccl/issues/2383"
_DCB = "dcb-pfc(8), dcb-app(8)"
_USUAL_DSCP, _ECT = 26, 2
"""The DSCP of RoCE in NVIDIA's own examples, and the bits that say that a packet may be marked for congestion."""

CLASS = declare(
    "roce-class-differs",
    ERROR,
    "RoCE traffic is marked differently on the hosts",
    read="forced traffic class of the port (MLNX_OFED) and NCCL_IB_TC",
    why="part of the traffic runs in a class without flow control: drops, timeouts, slow collectives",
    remedy="set one traffic class on all hosts, that of the switches' lossless priority: NCCL_IB_TC",
    source=_LOSSLESS,
    depends="RoCE ports in the plan only",
    real=False,
)
FLOW = declare(
    "roce-flow-control-missing",
    WARNING,
    "a RoCE port has neither priority flow control nor congestion control",
    read="PFC by dcbnl (as `dcb pfc show`), ECN in MLNX_OFED's /sys/class/net/IFACE/ecn, pauses by ETHTOOL_GPAUSEPARAM",
    why="packets are dropped under load, and RoCE starts over at each loss: timeouts (error 12), slow collectives",
    remedy="PFC on the priority that the switches keep from loss: dcb pfc set dev IFACE prio-pfc 3:on; or mlnx_qos",
    source=_DCB,
    depends="RoCE ports in the plan only; not judged where the driver does not tell",
    real=False,
)
LOSSY = declare(
    "roce-class-lossy",
    WARNING,
    "RoCE traffic is not in the class for which the port has flow control",
    read="NCCL_IB_TC or the forced traffic class: a quarter of it is the DSCP, whose rule gives a priority; and PFC",
    why="NCCL's traffic class is 0 unless it is set: it shares the lossy class with everything else",
    remedy="--env NCCL_IB_TC=VALUE: 106 is DSCP 26, in many fabrics the lossless one",
    source=_LOSSLESS,
    depends="RoCE ports in the plan only; not judged where the driver does not tell",
    real=False,
)
ECN = declare(
    "roce-ecn-off",
    INFO,
    "a RoCE port has flow control, but no congestion control on that priority",
    read="roce_np and roce_rp in MLNX_OFED's /sys/class/net/IFACE/ecn",
    why="pauses spread through the fabric where senders could have slowed down: one slow receiver stops others",
    remedy="as root: echo 1 > /sys/class/net/IFACE/ecn/roce_np/enable/PRIORITY, and roce_rp",
    source="https://docs.nvidia.com/doca/sdk/explicit+congestion+notification/index.html",
    depends="RoCE ports in the plan only; not judged where the driver does not tell",
    real=False,
)
PAUSE = declare(
    "roce-global-pause",
    INFO,
    "a RoCE port sends or obeys pauses for all of its traffic",
    read="ETHTOOL_GPAUSEPARAM (as `ethtool -a`)",
    why="one slow receiver stops everything on the link, ssh and storage too",
    remedy="PFC in its place: ethtool -A IFACE rx off tx off, then dcb pfc set dev IFACE prio-pfc 3:on",
    source="ethtool(8), -a; IEEE 802.3x and 802.1Qbb",
    depends="RoCE ports in the plan only",
    real=False,
)
DIFFERS = declare(
    "roce-flow-control-differs",
    ERROR,
    "RoCE ports of the plan have different flow control",
    read="PFC and DSCP rules by dcbnl, ECN in MLNX_OFED's sysfs",
    why="the host without it is sent more than it can take, or stops the others: drops, timeouts, slow collectives",
    remedy="bring it to what the others have: dcb pfc show dev IFACE, dcb app show dev IFACE, mlnx_qos -i IFACE",
    source=_DCB,
    depends="RoCE ports in the plan only",
    real=False,
)


class _Mark(NamedTuple):
    """How a port's RoCE packets are marked."""

    source: str
    traffic_class: int
    forced: bool
    """By the port, whatever NCCL asks for."""

    @property
    def dscp(self) -> int:
        return self.traffic_class >> 2

    def priority(self, interface: Interface) -> int:
        """A DSCP without a rule, and every one where the interface does not look at it, is priority 0."""
        return (interface.dscp_priorities or {}).get(self.dscp, 0)


@check(FLOW, LOSSY, ECN, PAUSE)
def roce_lossless(host: str, rdma: tuple[RdmaPort, ...], network: Network, facts: HostFacts, job: Job) -> Results:
    """RoCE traffic of the plan is in a class with flow control."""
    untold: list[str] = []
    for port in _roce(job.ports_of(host, rdma)):
        interface = _interface(port, network)
        if interface is None or (interface.pfc_priorities is None and interface.ecn_priorities is None):
            untold.append(name_of(port))
        else:
            yield from _judge(port, interface, _mark(port, _asked_for(host, facts, job)))
    if untold:
        yield unread(f"flow control (PFC, ECN) of RoCE: the driver of {listed(untold)} does not tell")


def _judge(port: RdmaPort, interface: Interface, mark: _Mark) -> Results:
    name, lossless = name_of(port), interface.pfc_priorities or ()
    priority = mark.priority(interface)
    if interface.global_pause:
        yield PAUSE.found(
            f"{name}: global pause is on for {interface.name}", subject=name, remedy=_of(PAUSE, interface)
        )
    elif not lossless and not interface.ecn_priorities:
        yield FLOW.found(f"{name}: {interface.name} has {_shown(interface)}", subject=name, remedy=_of(FLOW, interface))
    if lossless and priority not in lossless:
        yield LOSSY.found(
            f"{name}: {mark.source}, DSCP {mark.dscp}, is priority {priority} on {interface.name}; PFC is on"
            f" {listed(lossless)}",
            subject=name,
            observed=f"priority {priority}",
            expected=f"priority {listed(lossless)}",
            remedy=_into(lossless, port, interface, mark),
        )
    elif lossless and interface.ecn_priorities is not None and priority not in interface.ecn_priorities:
        remedy = _of(ECN, interface).replace("PRIORITY", str(priority))
        yield ECN.found(f"{name}: no ECN on priority {priority} of {interface.name}", subject=name, remedy=remedy)


def _into(lossless: Sequence[int], port: RdmaPort, interface: Interface, mark: _Mark) -> str:
    """How the packets come into a class with PFC."""
    leading = [dscp for dscp, priority in (interface.dscp_priorities or {}).items() if priority in lossless]
    if not leading:
        return (
            f"{interface.name} looks at no DSCP: mlnx_qos -i {interface.name} --trust dscp, or"
            f" dcb app add dev {interface.name} dscp-prio {_USUAL_DSCP}:{lossless[0]}"
        )
    value = (_USUAL_DSCP if _USUAL_DSCP in leading else min(leading)) << 2 | _ECT
    if mark.forced:
        return f"echo {value} > /sys/class/infiniband/{port.device}/tc/{port.port}/traffic_class as root"
    return f"--env NCCL_IB_TC={value}"


def _of(code: Code, interface: Interface) -> str:
    return code.remedy.replace("IFACE", interface.name)


@fleet_check(CLASS, DIFFERS)
def roce_agrees(
    rdma: Mapping[str, tuple[RdmaPort, ...]],
    network: Mapping[str, Network],
    fleet: Mapping[str, HostFacts],
    job: Job,
) -> Results:
    """RoCE's traffic class and flow control are one on all hosts that use RoCE."""
    classes: dict[str, tuple[int, ...]] = {}
    sources: dict[tuple[int, ...], str] = {}
    pauses: dict[str, str | None] = {}
    notices: dict[str, str | None] = {}
    for host, there in rdma.items():
        ports = _roce(job.ports_of(host, there))
        if not ports:
            continue
        marks = [_mark(port, _asked_for(host, fleet[host], job)) for port in ports]
        classes[host] = tuple(sorted({mark.traffic_class for mark in marks}))
        sources.setdefault(classes[host], listed(sorted({mark.source for mark in marks})))
        there_are = [one for port in ports if (one := _interface(port, network[host]))]
        pauses[host], notices[host] = _all(map(_pauses, there_are)), _all(map(_notices, there_are))
    yield from differing(CLASS, classes, "RoCE traffic class", subject="traffic class", shown=sources.__getitem__)
    yield from differing(DIFFERS, pauses, "RoCE flow control", subject="flow control")
    yield from differing(DIFFERS, notices, "RoCE congestion control", subject="congestion control")


def _all(told: Iterable[str | None]) -> str | None:
    """What a host's interfaces have; None where one of them does not tell, or there is none."""
    each = list(told)
    return None if None in each else "; ".join(sorted({one for one in each if one})) or None


def _roce(ports: Iterable[RdmaPort]) -> list[RdmaPort]:
    return [port for port in ports if port.link_layer == "Ethernet" and port.state == "ACTIVE"]


def _interface(port: RdmaPort, network: Network) -> Interface | None:
    """The Ethernet interface of the port itself; its addresses may be those of a bond or VLAN above it."""
    own = [one for one in network.interfaces if one.rdma_device == port.device]
    named = [one for one in own or network.interfaces if one.name == port.netdev]
    return next(iter(named or own), None)


def _asked_for(host: str, facts: HostFacts, job: Job) -> str | None:
    return job.env.get(host, facts.env or {}).get("NCCL_IB_TC")


def _mark(port: RdmaPort, asked: str | None) -> _Mark:
    if port.traffic_class is not None:
        return _Mark(f"the forced traffic class {port.traffic_class}", port.traffic_class, forced=True)
    if asked is None or not asked.strip().isdigit():
        return _Mark("NCCL_IB_TC 0 (unset)" if asked is None else f"NCCL_IB_TC {asked}", 0, forced=False)
    return _Mark(f"NCCL_IB_TC {asked}", int(asked), forced=False)


def _shown(interface: Interface) -> str:
    """What is set up, in words, as far as the driver tells."""
    return ", ".join(filter(None, (_pauses(interface), _notices(interface))))


def _pauses(interface: Interface) -> str | None:
    """PFC, and the DSCPs that lead to it; equal words for equal settings. None where the driver does not tell."""
    pfc = interface.pfc_priorities
    if pfc is None:
        return None
    leading = [dscp for dscp, priority in (interface.dscp_priorities or {}).items() if priority in pfc]
    return f"PFC on {listed(pfc) or 'no priority'}" + (f", DSCP {format_cpulist(leading)} there" if leading else "")


def _notices(interface: Interface) -> str | None:
    """ECN, likewise."""
    ecn = interface.ecn_priorities
    return None if ecn is None else f"ECN on {listed(ecn) or 'no priority'}"
