"""Lint of network variables that contradict each other, the library or the host. Pure.

Each rule's docstring is what it looks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvrun.model import Finding, Severity
from nvrun.nccl.setting import Given, found

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR

EPHEMERAL = (32768, 60999)
"""net.ipv4.ip_local_port_range where nobody changed it (Linux, Documentation/networking/ip-sysctl)."""


def socket_threads(given: Given) -> Iterator[Finding]:
    """Sockets per thread without threads, or more than 64 sockets."""
    threads, sockets = given.number("NCCL_SOCKET_NTHREADS"), given.number("NCCL_NSOCKS_PERTHREAD")
    if sockets is not None and sockets > 1 and not threads:
        yield found(
            given.settings["NCCL_NSOCKS_PERTHREAD"],
            "nccl-sockets-without-threads",
            WARNING,
            f"NCCL_NSOCKS_PERTHREAD={sockets} multiplies NCCL_SOCKET_NTHREADS, which is 0 unless set (except on AWS and"
            " Google NICs): no effect",
            remedy=f"export NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD={min(sockets, 32)}",
        )
    if threads and sockets and min(threads, 16) * sockets > 64:
        yield found(
            given.settings["NCCL_NSOCKS_PERTHREAD"],
            "nccl-sockets-too-many",
            WARNING,
            f"{threads} threads x {sockets} sockets are more than NCCL's 64: it takes fewer sockets",
            right=str(64 // min(threads, 16)),
        )


def sockets_beside_rdma(given: Given) -> Iterator[Finding]:
    """Socket threads where the network is InfiniBand or EFA."""
    net = (given.text("NCCL_NET") or "").lower()
    efa = (given.text("FI_PROVIDER") or "").lower() == "efa"
    rdma = bool(given.active_ports or given.plugin) and given.number("NCCL_IB_DISABLE") in (None, 0)
    if not (net == "ib" or efa or (rdma and net != "socket")):
        return
    for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"):
        if given.text(name):
            yield found(
                given.settings[name],
                "nccl-no-effect",
                INFO,
                f"{name} belongs to the socket transport; over {'EFA' if efa else 'RDMA'} it has no effect",
            )


def ib_without_ib(given: Given) -> Iterator[Finding]:
    """NCCL_IB_* where InfiniBand is switched off."""
    disabled = given.number("NCCL_IB_DISABLE") not in (None, 0)
    net = (given.text("NCCL_NET") or "").lower()
    if disabled and net == "ib":
        yield found(
            given.settings["NCCL_NET"],
            "nccl-net-contradiction",
            ERROR,
            "NCCL_NET=IB demands what NCCL_IB_DISABLE switches off: NCCL fails at init",
            remedy=given.settings["NCCL_IB_DISABLE"].removal,
        )
    elif net == "ib" and given.active_ports is not None:
        if not any(port.uverbs_openable is not False for port in given.active_ports):
            yield found(
                given.settings["NCCL_NET"],
                "nccl-net-contradiction",
                ERROR,
                "NCCL_NET=IB demands an active InfiniBand or RoCE port that the job may open, and there is none: NCCL"
                " fails at init",
                host=given.facts.host if given.facts else None,
            )
    elif disabled or net == "socket":
        off = "NCCL_IB_DISABLE" if disabled else "NCCL_NET"
        for name, setting in given.settings.items():
            if name.startswith("NCCL_IB_") and name != "NCCL_IB_DISABLE" and given.text(name):
                yield found(
                    setting,
                    "nccl-no-effect",
                    WARNING,
                    f"{name} has no effect: {off}={given.text(off)} keeps NCCL on sockets",
                )


def gid_index(given: Given) -> Iterator[Finding]:
    """A pinned GID index where NCCL finds it itself."""
    index, setting = given.number("NCCL_IB_GID_INDEX"), given.settings.get("NCCL_IB_GID_INDEX")
    if setting is None or index is None or index < 0:
        return
    gids = [{gid.index: gid.type for gid in port.gids}.get(index, "") for port in given.ports or () if port.gids]
    right_here = bool(gids) and all("v2" in kind for kind in gids)
    if given.from_("2.21"):
        yield found(
            setting,
            "nccl-gid-index-pinned",
            INFO if right_here else WARNING,
            f"NCCL finds the GID itself from 2.21 on; a pinned index ({index}) is wrong as soon as a host's table is"
            " renumbered",
        )
    for name in ("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM"):
        if given.text(name):
            yield found(
                given.settings[name],
                "nccl-no-effect",
                WARNING,
                f"{name} has no effect beside NCCL_IB_GID_INDEX={index}",
                remedy=setting.removal,
            )
    for port in given.ports or ():
        gid = {gid.index: gid for gid in port.gids}.get(index)
        if port.link_layer == "Ethernet" and port.gids and (gid is None or "v2" not in gid.type):
            yield found(
                setting,
                "nccl-gid-index-wrong",
                ERROR if gid is None else WARNING,  # in one flat network RoCE v1 works
                f"GID {index} of {port.device} is {gid.type if gid else 'empty'}, not RoCE v2",
                expected=f"one of {', '.join(str(g.index) for g in port.gids if 'v2' in g.type) or 'none'}",
                host=given.facts.host if given.facts else None,
            )


def traffic_class(given: Given) -> Iterator[Finding]:
    """A RoCE traffic class on pure InfiniBand."""
    layers = {port.link_layer for port in given.ports or ()}
    if layers == {"InfiniBand"}:
        for name in ("NCCL_IB_TC", "NCCL_IB_FIFO_TC"):
            if (given.number(name) or 0) > 0:
                yield found(
                    given.settings[name],
                    "nccl-no-effect",
                    WARNING,
                    f"{name} is used on Ethernet ports only; all RDMA ports here are InfiniBand",
                    remedy=f"{given.settings[name].removal}; the service level is NCCL_IB_SL",
                )


def partition(given: Given) -> Iterator[Finding]:
    """A partition key where its place in the table is wanted, or a place that holds none."""
    index = given.number("NCCL_IB_PKEY")
    if not index:
        return
    setting = given.settings["NCCL_IB_PKEY"]
    tables = [port for port in given.ports or () if port.link_layer == "InfiniBand" and port.pkeys]
    if index >= _LIMITED_KEY:
        right = {at for port in tables for at, key in enumerate(port.pkeys) if _same_key(key, index)}
        yield found(
            setting,
            "nccl-pkey-index-wrong",
            ERROR,
            f"NCCL_IB_PKEY is a place in the port's table of keys, and {setting.value} is a key itself",
            right=str(right.pop()) if len(right) == 1 else None,
        )
    elif lacking := [port for port in tables if index >= len(port.pkeys) or not port.pkeys[index].strip("0x")]:
        places = [str(at) for at, key in enumerate(lacking[0].pkeys) if key.strip("0x")]
        yield found(
            setting,
            "nccl-pkey-index-wrong",
            ERROR,
            f"{lacking[0].device} has no P_Key at place {index} of its table",
            expected=f"one of {', '.join(places)}",
            host=given.facts.host if given.facts else None,
        )


_LIMITED_KEY = 0x7FFF
"""The default partition's key of a limited member: what is as large is a key, for a table has up to 128 places."""


def _same_key(text: str, key: int) -> bool:
    """Without bit 15, which tells full members from limited ones."""
    return text.startswith("0x") and int(text, 16) & 0x7FFF == key & 0x7FFF


def queue_pairs(given: Given) -> Iterator[Finding]:
    """Splitting over queue pairs that are not there."""
    if given.number("NCCL_IB_SPLIT_DATA_ON_QPS") == 1 and (given.number("NCCL_IB_QPS_PER_CONNECTION") or 1) <= 1:
        yield found(
            given.settings["NCCL_IB_SPLIT_DATA_ON_QPS"],
            "nccl-no-effect",
            INFO,
            "NCCL_IB_SPLIT_DATA_ON_QPS needs NCCL_IB_QPS_PER_CONNECTION above 1",
            remedy="export NCCL_IB_QPS_PER_CONNECTION=2",
        )


def out_of_band(given: Given) -> Iterator[Finding]:
    """A bootstrap interface without the bootstrap network."""
    if given.text("NCCL_OOB_NET_IFNAME") and given.number("NCCL_OOB_NET_ENABLE") != 1:
        yield found(
            given.settings["NCCL_OOB_NET_IFNAME"],
            "nccl-no-effect",
            WARNING,
            "NCCL_OOB_NET_IFNAME counts only with NCCL_OOB_NET_ENABLE=1",
            remedy="export NCCL_OOB_NET_ENABLE=1",
        )


def efa(given: Given) -> Iterator[Finding]:
    """EFA settings of plugins long gone."""
    old = {
        "FI_EFA_USE_DEVICE_RDMA": "aws-ofi-nccl 1.7 and libfabric 1.18 need no FI_EFA_USE_DEVICE_RDMA",
        "RDMAV_FORK_SAFE": "RDMAV_FORK_SAFE does nothing good on EFA; the plugin sets FI_EFA_FORK_SAFE",
    }
    for name, why in old.items():
        if given.text(name):
            yield found(given.settings[name], "efa-outdated", INFO, why)
    if (given.text("FI_PROVIDER") or "").lower() == "efa":
        for name in ("NCCL_ALGO", "NCCL_PROTO"):
            if given.text(name):
                yield found(
                    given.settings[name],
                    "efa-tuner-off",
                    INFO,
                    f"{name} switches off the tuner of the aws-ofi-nccl plugin",
                )


def several_plugins(given: Given) -> Iterator[Finding]:
    """A list of network plugins for an NCCL that takes one."""
    if "," in (given.text("NCCL_NET_PLUGIN") or "") and given.before("2.27"):
        yield found(
            given.settings["NCCL_NET_PLUGIN"],
            "nccl-choice-too-new",
            WARNING,
            "NCCL_NET_PLUGIN takes a list from NCCL 2.27 on; the loaded one looks for one file of that name",
            right=(given.text("NCCL_NET_PLUGIN") or "").split(",")[0],
        )


def rendezvous_port(given: Given) -> Iterator[Finding]:
    """A port for the rendezvous that may not be had when the job starts."""
    network = given.facts.network if given.facts else None
    first, last = (network.ephemeral_range if network else None) or EPHEMERAL
    port = given.number("MASTER_PORT") or 0
    if 0 < port < 1024:
        why = "only root listens below 1024"
    elif first <= port <= last:
        why = f"the kernel gives ports {first} to {last} to outgoing connections, so that one of them may have it"
    else:
        return
    yield found(
        given.settings["MASTER_PORT"], "master-port-unsafe", WARNING, f"MASTER_PORT={port}: {why}", right="29500"
    )


NETWORK_RULES = (
    rendezvous_port,
    socket_threads,
    sockets_beside_rdma,
    ib_without_ib,
    gid_index,
    partition,
    traffic_class,
    queue_pairs,
    out_of_band,
    efa,
    several_plugins,
)
