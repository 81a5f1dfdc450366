"""Interfaces, routes and RDMA ports, read from recorded trees and from this machine."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from nvrun.agent.probe import dcb, netlink, network, rdma
from nvrun.agent.probe.tree import Tree
from tests.agent.probe import trees

IB, NET = "/sys/class/infiniband", "/sys/class/net"


def test_own_interfaces() -> None:
    found = {interface["name"]: interface for interface in network.interfaces(Tree())}
    assert list(found) == [name for _, name in sorted(socket.if_nameindex())]
    assert found["lo"]["kind"] == "loopback"
    assert {"address": "127.0.0.1", "prefix": 8, "scope": "host"} in found["lo"]["addresses"]


@pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed")
def test_own_interfaces_as_ip_prints_them() -> None:
    told = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True).stdout)
    found = {interface["name"]: interface for interface in network.interfaces(Tree())}
    for link in told:
        mine = found[link["ifname"]]
        assert mine["mtu"] == link["mtu"]
        assert mine["up"] == ("LOWER_UP" in link["flags"] and "UP" in link["flags"])
        assert mine["mac"] == link["address"]
        expected = [(entry["local"], entry["prefixlen"], entry["scope"]) for entry in link["addr_info"]]
        assert [(entry["address"], entry["prefix"], entry["scope"]) for entry in mine["addresses"]] == expected


@pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed")
def test_own_routes_as_ip_prints_them() -> None:
    told = json.loads(subprocess.run(["ip", "-j", "-4", "route"], capture_output=True, check=True).stdout)
    found = {(route["destination"], route["interface"]) for route in network.network(Tree())["routes"]}
    for route in told:
        destination = {"default": "0.0.0.0/0"}.get(route["dst"], route["dst"])
        assert (destination if "/" in destination else f"{destination}/32", route["dev"]) in found


def test_interfaces_of_another_namespace() -> None:
    """The /sys of the outer one shows none of them, and of equal names the wrong ones."""
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a network namespace")
    code = (
        "import json; from nvrun.agent.probe import network; from nvrun.agent.probe.tree import Tree; "
        "print(json.dumps(network.interfaces(Tree())))"
    )
    outer = next((name for _, name in socket.if_nameindex() if (Path(NET) / name / "device").exists()), "v7")
    script = (
        "ip link add v0 type veth peer name v1; ip link add br0 type bridge; ip link set v1 master br0; "
        f"ip link add {outer} type veth peer name v2; ip link set v0 mtu 9000 up; exec {sys.executable} -c '{code}'"
    )
    done = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=True)
    links = {link["name"]: link for link in json.loads(done.stdout)}
    assert (links["v0"]["kind"], links["br0"]["kind"]) == ("veth", "bridge")
    assert (links["v0"]["mtu"], links["v1"]["master"], links["v0"]["up"]) == (9000, "br0", False)
    assert links[outer].get("pci") is None


def test_a_refused_dump_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "GETLINK", 9999)
    with pytest.raises(OSError, match="not supported"):
        netlink.links()


def test_recorded_interfaces_and_settings(tmp_path: Path) -> None:
    nic = trees.pci("pci0000:80/0000:80:01.0/0000:82:00.0", pci_class="0x020000", vendor="0x15b3", node=1)
    files = {
        **nic,
        f"{NET}/eth0/device": "-> /sys/devices/pci0000:80/0000:80:01.0/0000:82:00.0",
        f"{NET}/eth0/ifindex": "2",
        f"{NET}/eth0/flags": "0x1003",
        f"{NET}/eth0/carrier": "1",
        f"{NET}/eth0/mtu": "9000",
        f"{NET}/eth0/speed": "100000",
        f"{NET}/eth0/type": "1",
        f"{NET}/eth0/statistics/rx_dropped": "17",
        f"{NET}/eth0/queues/rx-0/rps_cpus": "00000000,000000ff",
        f"{NET}/eth0/queues/rx-1/rps_cpus": "0",
        f"{NET}/virt0/ifindex": "3",
        f"{NET}/virt0/flags": "0x1003",
        f"{NET}/virt0/speed": "-1",
        "/proc/net/if_inet6": "fe80000000000000000000fffe000001 02 40 20 80     eth0\n"
        "20010db8000000000000000000000007 02 40 00 80     eth0",
        "/proc/net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0102000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00F0FFFF\t0\t0\t0",
        "/proc/net/softnet_stat": "00000010 00000002 0000000a 0 0 0\n00000010 00000001 00000000 0 0 0",
        "/proc/net/arp": "IP address HW type Flags HW address Mask Device\n10.0.2.9 0x1 0x0 00:00:00:00:00:00 * eth0",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999",
        "/proc/sys/net/core/somaxconn": "128",
    }
    facts = network.network(trees.write(tmp_path, files))
    eth0, virt0 = facts["interfaces"]
    assert (eth0["up"], eth0["mtu"], eth0["speed_mbit"], eth0["kind"]) == (True, 9000, 100_000, "ether")
    assert (eth0["pci"], eth0["numa_node"], eth0["rx_queues"]) == ("0000:82:00.0", 1, 2)
    assert (eth0["rps_cpus"], eth0["errors"]) == ("00000000,000000ff", {"rx_dropped": 17})
    assert [(a["address"], a["scope"]) for a in eth0["addresses"]] == [
        ("fe80::ff:fe00:1", "link"),
        ("2001:db8::7", "global"),
    ]
    assert (virt0["speed_mbit"], virt0["up"], virt0["pci"]) == (None, False, None)
    assert facts["routes"] == [
        {"destination": "0.0.0.0/0", "interface": "eth0", "gateway": "10.0.2.1", "metric": 100},
        {"destination": "10.0.2.0/20", "interface": "eth0", "gateway": None, "metric": 0},
    ]
    assert (facts["softnet_dropped"], facts["softnet_squeezed"], facts["somaxconn"]) == (3, 10, 128)
    assert (facts["ephemeral_range"], facts["neighbours"]) == (
        [32768, 60999],
        {"10.0.2.9": "00:00:00:00:00:00 0x0 eth0"},
    )


def port(device: str, **files: str) -> dict[str, str]:
    folder = f"{IB}/{device}/ports/1"
    plain = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    return {f"{folder}/{name}": text for name, text in {**plain, **files}.items()}


def test_rdma_ports(tmp_path: Path) -> None:
    hca = "pci0000:15/0000:15:01.0/0000:18:00.0"
    card = "pci0000:29/0000:29:01.0/0000:2a:00.1"
    zero = "0000:0000:0000:0000:0000:0000:0000:0000"
    files = {
        **trees.pci(hca, pci_class="0x020700", vendor="0x15b3", node=0),
        **trees.pci(card, pci_class="0x020000", vendor="0x15b3", node=1),
        **port("mlx5_10", lid="0x65", sm_lid="0x1"),
        f"{IB}/mlx5_10/device": f"-> /sys/devices/{hca}",
        f"{IB}/mlx5_10/fw_ver": "28.39.1002",
        f"{IB}/mlx5_10/ports/1/gids/0": "fe80:0000:0000:0000:0000:00ff:fe00:0001",
        f"{IB}/mlx5_10/ports/1/gids/1": zero,
        f"{IB}/mlx5_10/ports/1/pkeys/0": "0xffff",
        f"{IB}/mlx5_10/ports/1/pkeys/1": "0x0000",
        f"{IB}/mlx5_10/ports/1/pkeys/2": "0x8001",
        f"{IB}/mlx5_10/ports/1/pkeys/3": "0x0000",
        f"{IB}/mlx5_10/ports/1/counters/link_downed": "3",
        f"{IB}/mlx5_10/device/infiniband_verbs/uverbs4/dev": "231:196",
        f"{IB}/mlx5_10/device/net/ib4/dev_port": "0",
        "/dev/infiniband/uverbs4": "",
        **port("mlx5_2", link_layer="Ethernet", rate="100 Gb/sec (4X EDR)", state="1: DOWN", phys_state="3: Disabled"),
        f"{IB}/mlx5_2/device": f"-> /sys/devices/{card}",
        f"{IB}/mlx5_2/device/physfn/class": "",
        f"{IB}/mlx5_2/tc/1/traffic_class": "Global tclass=106",
        f"{IB}/mlx5_2/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a1e:0007",
        f"{IB}/mlx5_2/ports/1/gid_attrs/types/3": "RoCE v2",
        f"{IB}/mlx5_2/ports/1/gid_attrs/ndevs/3": "ens10f1np1",
        f"{IB}/mlx5_2/device/infiniband_verbs/uverbs2/dev": "231:194",
        **port("rxe0", link_layer="Ethernet", rate="2.5 Gb/sec (1X SDR)"),
    }
    two, ten, software = rdma.ports(trees.write(tmp_path, files))
    assert (two["device"], two["state"], two["phys_state"], two["rate_gbps"]) == ("mlx5_2", "DOWN", "Disabled", 100.0)
    assert two["gids"] == [
        {"index": 3, "gid": "0000:0000:0000:0000:0000:ffff:0a1e:0007", "type": "RoCE v2", "netdev": "ens10f1np1"}
    ]
    assert (two["netdev"], two["pci"], two["numa_node"], two["is_vf"]) == ("ens10f1np1", "0000:2a:00.1", 1, True)
    assert (two["traffic_class"], two["uverbs"], two["uverbs_openable"]) == (106, "/dev/infiniband/uverbs2", False)
    assert (ten["device"], ten["netdev"], ten["lid"], ten["firmware"]) == ("mlx5_10", "ib4", 0x65, "28.39.1002")
    assert ten["pkeys"] == ["0xffff", "0x0000", "0x8001"]
    assert (ten["counters"], ten["uverbs_openable"]) == ({"link_downed": 3}, True)
    assert [gid["index"] for gid in ten["gids"]] == [0]
    assert (software["pci"], software["rate_gbps"], software["uverbs"]) == (None, 2.5, None)


def test_no_rdma(tmp_path: Path) -> None:
    assert rdma.ports(trees.write(tmp_path, {"/proc/stat": ""})) == []


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def test_lossless_priorities_of_roce() -> None:
    """An answer built as dcbnl.h lays it out: PFC on priority 3, DSCP 26 leads to 3; other rules are not DSCP's."""
    pfc = struct.pack("=BBBxH", 8, 1 << 3, 0, 0) + bytes(128)
    rules = attribute(1, struct.pack("=BBH", 5, 3, 26)) + attribute(1, struct.pack("=BBH", 1, 6, 0x8906))
    body = attribute(1, b"eth0\0") + attribute(13, attribute(2, pfc) + attribute(3, rules))
    assert dcb.parse(body) == {"pfc_priorities": [3], "dscp_priorities": {26: 3}}
    assert dcb.parse(attribute(1, b"eth0\0")) == {"pfc_priorities": None, "dscp_priorities": {}}
    assert dcb.parse(body[:30])["pfc_priorities"] is None


def test_an_interface_without_dcb_tells_nothing() -> None:
    told = dcb.lossless(Tree(), "lo")
    assert told == dict.fromkeys(["pfc_priorities", "dscp_priorities", "ecn_priorities", "global_pause"])


def test_ecn(tmp_path: Path) -> None:
    files = {f"{NET}/eth0/ecn/roce_np/enable/{priority}": "1" for priority in range(8)}
    files |= {f"{NET}/eth0/ecn/roce_rp/enable/{priority}": str(int(priority == 3)) for priority in range(8)}
    assert dcb.lossless(trees.write(tmp_path, files), "eth0")["ecn_priorities"] == [3]
