"""Healthy machines of which a job was given a part, or that are smaller by design; and their like with a fault."""

from __future__ import annotations

from typing import Any

import pytest

from nvrun.checks import Job, pcie
from nvrun.checks.grown import growth
from nvrun.facts import Gid, Gpu, GpuProcess, HostFacts, PciDevice, Xid
from nvrun.model import Severity
from nvrun.topology.from_facts import from_facts
from nvrun.topology.nics import compute_nics, hca_lists
from tests.checks.cases_hardware import MAIN, interface
from tests.checks.fleets import Change, changed, codes, fleet, gpu, judge, only, port, section, with_

NODES = {"/dev/nvidiactl": "ok", "/dev/nvidia-uvm": "ok"}


def every(hosts: dict[str, HostFacts], change: Change) -> dict[str, HostFacts]:
    return {host: change(known) for host, known in hosts.items()}


def nodes(**answers: str) -> dict[str, str]:
    return {**NODES, **{f"/dev/nvidia{n}": answers.get(f"n{n}", "ok") for n in range(8)}}


def four_of_eight(known: HostFacts) -> HostFacts:
    """Slurm with ConstrainDevices: all files are there, those of the other job do not open, and NVML has four."""
    shut = {f"n{n}": "Operation not permitted" for n in range(4, 8)}
    mine = with_(known, gpus=(known.gpus or ())[:4])
    return section("software", device_nodes=nodes(**shut))(mine)


def without(index: int, answer: str) -> Change:
    """NVML's list lacks a GPU; opening its file says `answer`."""

    def change(known: HostFacts) -> HostFacts:
        kept = with_(known, gpus=tuple(one for one in known.gpus or () if one.index != index))
        return section("software", device_nodes=nodes(**{f"n{index}": answer}))(kept)

    return change


def unreached(index: int) -> Change:
    """NVML counts a GPU and gives no handle of it, as of one that fell off the bus."""
    gone = Gpu(index=index, uuid="", name="", pci="", unread={"handle": "GPU is lost"})

    def change(known: HostFacts) -> HostFacts:
        there = tuple(gone if one.index == index else one for one in known.gpus or ())
        return section("software", device_nodes=nodes())(with_(known, gpus=there))

    return change


def nics(**changes: Any) -> Change:
    """Changes the PCI link of all RDMA devices and, with `slot_`, that of the ports above them."""
    slots = {name.removeprefix("slot_"): value for name, value in changes.items() if name.startswith("slot_")}
    own = {name: value for name, value in changes.items() if not name.startswith("slot_")}

    def change(known: HostFacts) -> HostFacts:
        cards = {one.pci for one in known.rdma or ()}
        above = {one.path[-2] for one in known.pci or () if one.address in cards and len(one.path) > 1}
        changed_ones = (
            with_(one, **own) if one.address in cards else with_(one, **slots) if one.address in above else one
            for one in known.pci or ()
        )
        return with_(known, pci=tuple(changed_ones))  # type: ignore[no-any-return]

    return change


def test_a_part_of_a_hosts_gpus_is_no_fault() -> None:
    assert codes(judge(every(fleet("h100x8", 2), four_of_eight)), Severity.INFO) == set()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without(3, "Input/output error"), "8 GPUs on PCI, 7 in NVML: missing 0000:61:00.0"),
        (without(3, "ok"), "8 GPUs on PCI, 7 in NVML: missing 0000:61:00.0"),
        (unreached(3), "GPU 3 cannot be reached: GPU is lost"),
    ],
)
def test_a_gpu_that_fell_off_is_named(change: Change, words: str) -> None:
    """Once: no model, number or memory of it is judged."""
    finding = only(judge(changed(fleet("h100x8", 3), "n02", change)), "gpu-off-bus")
    assert (finding.host, finding.severity) == ("n02", Severity.ERROR)
    assert words in finding.message


def test_a_gpu_whose_file_only_its_mode_keeps_shut_is_told() -> None:
    """Nothing tells one that a prologue gave to another user from one whose file has a wrong mode."""
    shut = changed(fleet("h100x8", 1), "n01", without(3, "Permission denied"))
    (finding,) = [one for one in judge(shut).findings if one.code == "gpu-device-closed"]
    assert (finding.severity, finding.subject) == (Severity.INFO, "/dev/nvidia3")
    assert codes(judge(shut)) == set()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without(3, "Input/output error"), "this job was given 4 GPUs, 3 in NVML"),
        (unreached(3), "GPU 3 cannot be reached: GPU is lost"),
    ],
)
def test_one_of_a_part_that_fell_off_is_named_and_the_other_jobs_are_not(change: Change, words: str) -> None:
    def part(known: HostFacts) -> HostFacts:
        opened = change(known).software
        assert opened is not None
        mine = with_(change(known), gpus=tuple(one for one in change(known).gpus or () if one.index < 4))
        shut = dict.fromkeys((f"/dev/nvidia{n}" for n in range(4, 8)), "Operation not permitted")
        return section("software", device_nodes={**opened.device_nodes, **shut})(mine)

    finding = only(judge(changed(every(fleet("h100x8", 3), four_of_eight), "n02", part)), "gpu-off-bus")
    assert (finding.host, finding.severity) == ("n02", Severity.ERROR)
    assert words in finding.message
    assert "some of them not this job's" in finding.evidence[0]


def lanes(number: int | None) -> Change:
    return lambda known: with_(known, gpus=tuple(with_(one, pcie_width=number) for one in known.gpus or ()))


def slots(**changes: Any) -> Change:
    """Changes the ports above the GPUs; none: they are not shown."""

    def change(known: HostFacts) -> HostFacts:
        cards = {one.pci for one in known.gpus or ()}
        above = {one.path[-2] for one in known.pci or () if one.address in cards}
        if not changes:
            return with_(known, pci=tuple(one for one in known.pci or () if one.address not in above))  # type: ignore[no-any-return]
        return with_(known, pci=tuple(with_(o, **changes) if o.address in above else o for o in known.pci or ()))  # type: ignore[no-any-return]

    return change


@pytest.mark.parametrize(
    ("slot", "severity"),
    [
        (slots(link_width_max=8, link_width=8), None),  # x8 by design
        (slots(), Severity.INFO),  # a guest: 16 GPUs of g4dn and g5 instances have 8 lanes of 16
        (slots(link_width_max=16), Severity.WARNING),
    ],
)
def test_gpus_with_eight_lanes_each(slot: Change, severity: Severity | None) -> None:
    found = judge(every(every(fleet("l40sx4", 2), lanes(8)), slot)).findings
    narrow = [one for one in found if one.code == "gpu-pcie-narrow"]
    assert {one.severity for one in narrow} == ({severity} if severity else set())
    odd = judge(changed(every(every(fleet("l40sx4", 3), lanes(8)), slot), "n02", gpu(1, pcie_width=4)))
    errors = [one for one in odd.findings if one.code == "gpu-pcie-narrow" and one.severity is Severity.ERROR]
    assert [(one.host, one.subject) for one in errors] == [("n02", "GPU 1")]


def test_a_host_whose_gpus_have_fewer_lanes_than_those_of_its_like() -> None:
    hosts = every(fleet("l40sx4", 3), slots())
    errors = [f for f in judge(changed(hosts, "n02", lanes(8))).findings if f.severity is Severity.ERROR]
    assert [(one.host, one.message) for one in errors] == [("n02", "PCIe lanes of each GPU: 8, but 16 on 2 hosts")]
    assert codes(judge(changed(every(hosts, lanes(8)), "n02", lanes(16)))) == set()


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        # a card of the next generation in a slot of this one, fast enough for its port
        (nics(link_speed_gt_s=16.0, slot_link_speed_max_gt_s=16.0, slot_link_speed_gt_s=16.0), None, ""),
        (nics(link_speed_gt_s=16.0), Severity.WARNING, "16 GT/s a lane of 32"),
        (nics(link_width=8, slot_link_width_max=8, slot_link_width=8), None, ""),
        (nics(link_width=8), Severity.ERROR, "8 PCIe lanes of 16"),
        (
            nics(
                link_width=8, link_speed_gt_s=8.0, slot_link_width_max=8, slot_link_speed_max_gt_s=8.0,
                slot_link_width=8, slot_link_speed_gt_s=8.0,
            ),
            Severity.WARNING,
            "8 lanes at 8 GT/s: it carries 63 Gb/s of 200",
        ),
    ],
)  # fmt: skip
def test_a_nic_is_held_against_its_slot_and_its_rate(change: Change, severity: Severity | None, words: str) -> None:
    rated = every(fleet("h100x8", 2), lambda known: with_(
        known, rdma=tuple(with_(one, rate_gbps=200.0) for one in known.rdma or ())))  # fmt: skip
    found = [one for one in judge(every(rated, change)).findings if one.severity >= Severity.WARNING]
    assert {(one.code, one.severity) for one in found} == ({("nic-pcie-narrow", severity)} if severity else set())
    assert all(words in one.message for one in found)


@pytest.mark.parametrize(
    ("lanes", "speed", "gbps"),
    [(16, 2.5, 32), (8, 5.0, 32), (16, 8.0, 126.03), (16, 16.0, 252.06), (16, 32.0, 504.12), (None, 8.0, None),
     (16, None, None), (0, 8.0, None)],
)  # fmt: skip
def test_what_a_link_carries(lanes: int | None, speed: float | None, gbps: float | None) -> None:
    carried = pcie.Link(lanes, speed).gbps
    assert carried == (None if gbps is None else pytest.approx(gbps, abs=0.01))


def test_a_device_without_a_port_above_it_has_only_its_own_most() -> None:
    card = PciDevice(address="0001:00:00.0", path=("0001:00:00.0",), link_width_max=16, link_speed_max_gt_s=32.0)
    assert pcie.possible(card, {card.address: card}) == pcie.Link(16, 32.0)


def virtual(known: HostFacts) -> HostFacts:
    return with_(known, rdma=tuple(with_(one, is_vf=True) for one in known.rdma or ()))  # type: ignore[no-any-return]


def test_a_pod_with_virtual_functions_only_uses_them() -> None:
    """Their limits are judged and they are planned; beside physical functions they are left out."""
    hosts = every(fleet("h100x8", 2), virtual)
    assert codes(judge(hosts)) == set()
    assert only(judge(changed(hosts, "n02", section("limits", memlock_bytes=8 << 20))), "memlock-low").host == "n02"
    assert len(compute_nics(from_facts(hosts["n01"])).chosen) == 8


def test_a_pod_that_was_given_some_devices_uses_these() -> None:
    """With the shared RDMA namespace all devices are in sysfs, physical functions too: files tell what is the pod's."""

    def given(known: HostFacts) -> HostFacts:
        ports = known.rdma or ()
        cards = {one.address: one for one in known.pci or ()}
        extra, places = [], []
        for one in ports:
            if one.device != "mlx5_0" and one.pci:
                own, card = f"{one.pci[:-1]}4", cards[one.pci]
                extra.append(with_(one, device=f"{one.device}_v", is_vf=True, node_guid=None, pci=own))
                places.append(with_(card, address=own, path=(*card.path[:-1], own)))
        return with_(  # type: ignore[no-any-return]
            known,
            rdma=(*(with_(one, uverbs_openable=False) for one in ports), *extra),
            pci=(*(known.pci or ()), *places),
        )

    hosts = every(fleet("h100x8", 2), given)
    assert codes(judge(hosts)) == set()
    nics = compute_nics(from_facts(hosts["n01"]))
    assert {nic.name for nic in nics.chosen} <= {f"mlx5_{n}_v" for n in range(12)}
    assert nics.left_out["mlx5_3:1"] == "its device file cannot be opened"
    # NCCL cannot open the others, so it needs no list because of them
    assert all("mlx5_3:1" not in found.why for found in hca_lists({"a": from_facts(hosts["n01"])}).values())


def test_a_device_file_that_only_one_host_closes_is_named() -> None:
    one = only(judge(changed(fleet("h100x8", 3), "n02", port("mlx5_4", uverbs_openable=False))), "rdma-device-closed")
    assert one.host == "n02"
    shut = every(fleet("h100x8", 2), lambda known: with_(
        known, rdma=tuple(with_(p, uverbs_openable=False) for p in known.rdma or ())))  # fmt: skip
    assert codes(judge(shut)) == {"rdma-device-closed"}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (137, "NVLink FLA privileged error"),  # left behind by any job whose kernel used a peer's address
        (63, "Row Remapper: New row (0x1) marked for remapping, reset gpu to activate."),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000040)"),
    ],
)
def test_a_kernel_log_without_a_fault_of_the_hardware(code: int, text: str) -> None:
    hosts = fleet("h100x8", 2)
    pci = (hosts["n02"].gpus or ())[3].pci
    old = gpu(3, recovery_action=None)  # drivers before 570 do not say it
    line = f"NVRM: Xid (PCI:{pci[:-2]}): {code}, {text}"
    logged = changed(hosts, "n02", lambda known: with_(old(known), xids=(Xid(code=code, pci=pci, text=line),)))
    assert codes(judge(logged)) == set()


def test_an_nvswitch_that_noted_what_is_not_fatal_is_well() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"
    note = Xid(code=12028, pci="0000:c1:00.0", text=line, nvswitch=True)
    hosts = fleet("h100x8", 2)
    assert codes(judge(changed(hosts, "n02", lambda known: with_(known, xids=(note,))))) == set()
    (before, after) = (with_(hosts["n01"], xids=()), with_(hosts["n01"], xids=(note,)))
    assert list(growth(before, after)) == []
    fatal = Xid(code=20034, pci=note.pci, text=line.replace("12028, Non-fatal", "20034, Fatal"), nvswitch=True)
    (grown,) = growth(before, with_(before, xids=(fatal,)))
    assert (grown.code, grown.subject) == ("sxid-20034", "NVSwitch at 0000:c1:00.0")


@pytest.mark.parametrize(
    ("capability", "cuda", "words"),
    [
        ("7.0", "13.0", "the last for compute capability 7.0 is CUDA 12"),
        ("6.1", "13.0", "is CUDA 12"),
        ("3.7", "12.1", "is CUDA 11"),
        ("10.0", "12.6", "compute capability 10.0 needs 12.8"),
        ("7.0", "12.8", None),
        ("7.5", "13.0", None),
        ("10.3", "12.8", None),  # code for 10.0 runs on it
        ("12.1", "13.0", None),
    ],
)
def test_cuda_of_torch_and_generation_of_the_gpu(capability: str, cuda: str, words: str | None) -> None:
    def change(known: HostFacts) -> HostFacts:
        there = tuple(with_(one, compute_capability=capability) for one in known.gpus or ())
        return section("software", cuda=cuda, cuda_driver="13.0", nccl="2.28.9")(with_(known, gpus=there))

    verdict = judge(every(fleet("h100x8", 1), change))
    if words is None:
        assert codes(verdict) == set()
    else:
        assert words in only(verdict, "cuda-too-old-for-gpu").message


def process(name: str, **more: Any) -> GpuProcess:
    return GpuProcess(pid=77, name=name, memory_bytes=40 << 20, **more)


@pytest.mark.parametrize(
    ("there", "used", "mode", "severity"),
    [
        (process("Xorg", graphics=True), 90 << 20, "default", Severity.INFO),  # a workstation's display
        (process("Xorg", graphics=True), 90 << 20, "exclusive process", Severity.INFO),
        (process("blender", graphics=True), 9 << 30, "default", Severity.ERROR),
        (process("python"), 90 << 20, "default", Severity.ERROR),
        (process("nvidia-cuda-mps"), 30 << 20, "exclusive process", None),  # MPS, as its manual sets it up
    ],
)
def test_who_may_be_on_a_gpu_beside_the_job(there: GpuProcess, used: int, mode: str, severity: Severity | None) -> None:
    busy = gpu(1, processes=(there,), memory_used=used, compute_mode=mode)
    found = [each for each in judge(changed(fleet("l40sx4", 2), "n02", busy)).findings if each.code.startswith("gpu-")]
    assert {each.severity for each in found if each.code == "gpu-busy"} == ({severity} if severity else set())
    assert "gpu-compute-mode" not in {each.code for each in found}


def test_memory_of_a_gpu_that_is_a_numa_node_may_be_the_kernels() -> None:
    grace = judge(changed(fleet("gh200", 2), "n02", gpu(0, memory_used=3 << 30)))
    assert only(grace, "gpu-busy").severity is Severity.WARNING
    h100 = judge(changed(fleet("h100x8", 2), "n02", gpu(0, memory_used=3 << 30)))
    assert only(h100, "gpu-busy").severity is Severity.ERROR


def test_efa_is_judged_as_what_its_plugin_uses() -> None:
    """Limits, device files and number; NCCL_IB_* and the advice for sockets are not about it."""
    hosts = fleet("efa_h100x8", 3)
    assert codes(judge(hosts)) == set()
    assert only(judge(changed(hosts, "n02", section("limits", memlock_bytes=8 << 20))), "memlock-low").host == "n02"
    fewer = judge(changed(hosts, "n02", lambda known: with_(known, rdma=(known.rdma or ())[:31])))
    assert only(fewer, "rdma-ports-differ").host == "n02"
    shut = judge(changed(hosts, "n02", port((hosts["n02"].rdma or ())[0].device, uverbs_openable=False)))
    assert only(shut, "rdma-device-closed").host == "n02"
    off = every(hosts, lambda known: with_(known, env={**(known.env or {}), "NCCL_IB_DISABLE": "1"}))
    assert "memlock-low" in codes(judge(every(off, section("limits", memlock_bytes=8 << 20))))
    bare = every(every(hosts, section("software", nccl_net_plugins=())), section("limits", memlock_bytes=8 << 20))
    assert "memlock-low" not in codes(judge(bare))


@pytest.mark.parametrize(("pinned", "found"), [("", {"roce-gid-missing"}), ("0", set()), ("7", {"roce-gid-missing"})])
def test_who_pins_a_gid_of_version_1_means_it(pinned: str, found: set[str]) -> None:
    def flat(known: HostFacts) -> HostFacts:
        gid = Gid(index=0, gid="fe80:0000:0000:0000:0000:00ff:fe00:0001", type="IB/RoCE v1")
        env = {**(known.env or {}), **({"NCCL_IB_GID_INDEX": pinned} if pinned else {})}
        return with_(known, env=env, rdma=tuple(with_(one, gids=(gid,)) for one in known.rdma or ()))  # type: ignore[no-any-return]

    assert codes(judge(every(fleet("a100x8_nps4", 2), flat))) == found


def renamed(known: HostFacts) -> HostFacts:
    """As udev names them where MLNX_OFED does not."""
    ports = tuple(with_(one, device=f"rocep{number}s0") for number, one in enumerate(known.rdma or ()))
    return with_(known, rdma=ports)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["h100x8", "a100x8_nps4", "efa_h100x8", "gh200"])
def test_a_host_whose_driver_names_its_ports_in_another_way_has_as_many(kind: str) -> None:
    hosts = changed(fleet(kind, 3), "n02", renamed)
    assert codes(judge(hosts)) == set()
    (down, *_) = hosts["n02"].rdma or ()
    found = judge(changed(hosts, "n02", port(down.device, state="DOWN", phys_state="Polling")))
    assert [(one.host, one.subject) for one in found.findings if one.code == "rdma-port-down"] == [
        ("n02", f"{down.device}:1")
    ]


def unknown(*sections: str) -> Change:
    return lambda known: with_(known, **dict.fromkeys(sections), missing=dict.fromkeys(sections, "not read"))


@pytest.mark.parametrize("kind", ["h100x8", "a100x8_nps4", "efa_h100x8", "gh200", "l40sx4", "h200x2"])
@pytest.mark.parametrize(
    "sections", [("software",), ("network",), ("rdma",), ("pci",), ("cpus", "numa"), ("gpus_on_pci",)]
)
def test_what_was_not_read_is_no_fault(kind: str, sections: tuple[str, ...]) -> None:
    hosts = fleet(kind, 3)
    assert codes(judge(changed(hosts, "n02", unknown(*sections)))) == set()
    assert codes(judge(every(hosts, unknown(*sections)))) == set()


def test_p2p_of_which_the_driver_says_nothing_is_not_known() -> None:
    hosts = fleet("h100x8", 2)
    first, second, *_ = hosts["n02"].gpus or ()
    verdict = judge(changed(hosts, "n02", gpu(0, p2p={**first.p2p, second.uuid: "function not found"})))
    assert codes(verdict, Severity.INFO) == set()
    assert [(one.host, one.reason) for one in verdict.skipped] == [("n02", "P2P between GPUs 0-1: function not found")]


def beside(device: str, like: str, **changes: Any) -> Change:
    """One more RDMA port in the slot's neighbourhood of another one."""

    def change(known: HostFacts) -> HostFacts:
        first = next(one for one in known.rdma or () if one.device == like)
        card = next((one for one in known.pci or () if one.address == first.pci), None)
        own = f"{(first.pci or '')[:-1]}5"
        more = with_(first, device=device, pci=own, node_guid=None, gids=(), netdev=None, **changes)
        places = () if card is None else (with_(card, address=own, path=(*card.path[:-1], own)),)
        return with_(known, rdma=(*(known.rdma or ()), more), pci=(*(known.pci or ()), *places))  # type: ignore[no-any-return]

    return change


def test_storage_on_ethernet_beside_a_gpu_is_no_rail_of_infiniband() -> None:
    """A BlueField below a GPU's switch, without an address: NCCL is kept from it, and nobody is told of its GIDs."""
    hosts = every(fleet("h100x8", 2), beside("mlx5_20", "mlx5_0", link_layer="Ethernet", rate_gbps=200.0))
    assert codes(judge(hosts)) == set()
    lists = hca_lists({host: from_facts(known) for host, known in hosts.items()})
    assert "mlx5_20" not in (lists["n01"].value or "mlx5_20")
    assert "mlx5_20:1" in lists["n01"].why


def test_where_no_nic_is_near_a_gpu_the_fastest_ones_link_layer_counts() -> None:
    """One InfiniBand port and two slower Ethernet ones: with all three NCCL connects what cannot be connected."""
    hosts = fleet("gh200", 2)
    fast = (hosts["n01"].rdma or ())[0]
    for device in ("mlx5_7", "mlx5_8"):
        hosts = every(hosts, beside(device, fast.device, link_layer="Ethernet", rate_gbps=25.0))
    assert codes(judge(hosts)) == set()
    lists = hca_lists({host: from_facts(known) for host, known in hosts.items()})
    assert {one.value for one in lists.values()} == {f"={fast.device}:1"}
    alike = every(fleet("gh200", 2), beside("mlx5_7", fast.device))
    assert {one.value for one in hca_lists({h: from_facts(k) for h, k in alike.items()}).values()} == {None}


def test_an_instance_of_a_gpu_behind_nvswitches_has_no_nvlink_by_design() -> None:
    hosts = fleet("h100x8", 1)
    (cut, *_) = hosts["n01"].gpus or ()
    off = tuple(with_(link, active=False) for link in cut.nvlinks)
    divided = gpu(0, mig=("MIG-1",), nvlinks=off, p2p=dict.fromkeys(cut.p2p, "not supported"))
    job = Job(gpus={"n01": ("MIG-1", *(one.uuid for one in (hosts["n01"].gpus or ())[1:]))})
    assert codes(judge(changed(hosts, "n01", divided), job), Severity.INFO) == set()
    two = fleet("h100x8", 2)
    whole = (two["n01"].gpus or ())[0].uuid
    mixed = judge(changed(two, "n02", divided), Job(gpus={"n01": (whole,), "n02": ("MIG-1",)}))
    assert "nvlink-differs" not in codes(mixed, Severity.INFO)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (nics(link_width=8), "nic-pcie-narrow", "lspci -vv -s 0000:"),
        (interface(MAIN, mtu=1400), "mtu-differs", f"dev {MAIN} mtu"),
        (interface(MAIN, speed_mbit=1000), "interface-slow", f"ethtool {MAIN}:"),
    ],
)
def test_a_remedy_to_paste_names_the_device(change: Change, code: str, words: str) -> None:
    found = [one for one in judge(changed(fleet("h100x8", 3), "n02", change)).findings if one.code == code]
    assert found
    assert all(one.host == "n02" and words in one.remedy for one in found)


@pytest.mark.parametrize(("names", "words"), [((MAIN, MAIN), f"dev {MAIN} mtu"), ((MAIN, "eno9"), "dev IFACE mtu")])
def test_a_tie_names_the_interface_that_both_have(names: tuple[str, str], words: str) -> None:
    hosts = fleet("h100x8", 2)
    for host, name, mtu in zip(hosts, names, (1400, 1500), strict=True):
        known = hosts[host].network
        assert known
        there = tuple(with_(i, name=name, mtu=mtu) if i.name == MAIN else i for i in known.interfaces)
        hosts = changed(hosts, host, section("network", interfaces=there))
    assert words in only(judge(hosts, Job(interfaces=dict(zip(hosts, names, strict=True)))), "mtu-differs").remedy
