"""CPUs, NUMA nodes and PCI locality of generated machines whose numbering is not 0, 1, 2 ..."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.agent.probe import cpu, gpu, pci, system
from nvrun.agent.probe.tree import natural, parse_list, parse_mask
from tests.agent.probe import trees

NUMBERS = st.sets(st.integers(0, 2000), max_size=50)


@given(NUMBERS)
def test_cpu_lists(numbers: set[int]) -> None:
    assert parse_list(",".join(str(number) for number in sorted(numbers))) == sorted(numbers)


@given(NUMBERS)
def test_cpu_masks(numbers: set[int]) -> None:
    digits = f"{sum(1 << number for number in numbers):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    assert parse_mask(",".join(digits[i : i + 8] for i in range(0, len(digits), 8))) == sorted(numbers)


def test_ranges_and_order() -> None:
    assert parse_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_list("") == []
    assert sorted(["mlx5_10", "mlx5_2", "mlx5_0"], key=natural) == ["mlx5_0", "mlx5_2", "mlx5_10"]


def test_cpu0_and_node0_offline(tmp_path: Path) -> None:
    files = trees.machine({1: "1,3,5,7"}, online="3-6", siblings={3: "3,5", 5: "3,5", 4: "4", 6: "6"}, distances="10")
    tree = trees.write(tmp_path, files)
    assert [(entry["cpu"], entry["node"], entry["core"]) for entry in cpu.cpus(tree)["online"]] == [
        (3, 1, [3, 5]),
        (4, None, [4]),
        (5, 1, [3, 5]),
        (6, None, [6]),
    ]
    (node,) = cpu.numa(tree)
    assert (node["node"], node["cpus"], node["distances"]) == (1, [3, 5], {})


def test_sparse_nodes_take_their_distances_by_position(tmp_path: Path) -> None:
    files = trees.machine(
        {0: "0-1", 33: "2-3", 72: "4-5"},
        online="0-5",
        siblings={number: str(number) for number in range(6)},
        distances="10 16 22\n16 10 24\n22 24 10",
    )
    nodes = {node["node"]: node for node in cpu.numa(trees.write(tmp_path, files))}
    assert nodes[33]["distances"] == {0: 16, 72: 24}
    assert nodes[72]["cpus"] == [4, 5]


def test_gpu_memory_is_a_node_without_cpus(tmp_path: Path) -> None:
    files = trees.machine({0: "0-1", 255: ""}, online="0-1", siblings={0: "0", 1: "1"}, distances="10 80\n80 10")
    files["/proc/driver/nvidia/gpus/0004:05:00.0/numa_status"] = "Node: 255\nNuma status: online"
    tree = trees.write(tmp_path, files)
    assert [(node["node"], node["cpus"]) for node in cpu.numa(tree)] == [(0, [0, 1]), (255, [])]
    assert gpu.memory_node_of(tree, "0004:05:00.0") == 255
    assert gpu.memory_node_of(tree, "0004:06:00.0") is None


@pytest.mark.parametrize(
    ("row", "distances"),
    [("10 21", {1: 21}), ("10 32 21", {}), ("10", {}), ("10 N/A", {}), ("", {})],
)
def test_distances_that_cannot_be_assigned_to_nodes_are_not_told(
    tmp_path: Path, row: str, distances: dict[int, int]
) -> None:
    files = trees.machine({0: "0", 1: "1"}, online="0-1", siblings={0: "0", 1: "1"}, distances=f"{row}\n21 10")
    first, _ = cpu.numa(trees.write(tmp_path, files))
    assert first["distances"] == distances


def test_a_list_that_is_none_is_not_told(tmp_path: Path) -> None:
    """Sandboxes make files of /sys up; what else is there counts."""
    files = trees.machine({0: "0", 1: "1"}, online="N/A", siblings={0: "0", 1: "nonsense"})
    facts = cpu.cpus(trees.write(tmp_path, files))
    assert [(one["cpu"], one["core"], one["node"]) for one in facts["online"]] == [(0, [0], 0), (1, [1], 1)]


def test_cpuset_and_quota(tmp_path: Path) -> None:
    files = trees.machine({0: "0-3", 1: "4-7"}, online="0-7", siblings={n: str(n) for n in range(8)})
    files["/proc/self/status"] = "Name: x\nCpus_allowed:\tf0\nCpus_allowed_list:\t4-7\nMems_allowed_list:\t1"
    files["/proc/self/cgroup"] = "0::/slurm/job_7/step_0"
    files["/sys/fs/cgroup/slurm/cpu.max"] = "800000 100000"
    files["/sys/fs/cgroup/slurm/job_7/cpu.max"] = "250000 100000"
    files["/sys/fs/cgroup/slurm/job_7/step_0/cpu.max"] = "max 100000"
    facts = cpu.cpus(trees.write(tmp_path, files))
    assert (facts["allowed"], facts["allowed_nodes"], facts["quota"]) == ([4, 5, 6, 7], [1], 2.5)


def test_quota_and_tasks_of_cgroups_of_version_1(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup"
    files = {
        "/proc/self/cgroup": "11:pids:/kubepods/pod1\n4:cpu,cpuacct:/kubepods/pod1\n1:name=systemd:/kubepods/pod1",
        f"{group}/cpu/cpu.cfs_quota_us": "350000",  # a container sees its own folder as the root
        f"{group}/cpu/cpu.cfs_period_us": "100000",
        f"{group}/pids/kubepods/pod1/pids.max": "100",
        f"{group}/pids/kubepods/pod1/pids.current": "40",
    }
    tree = trees.write(tmp_path, files)
    assert cpu.quota(tree) == 3.5
    assert system.limits(tree)["tasks_left"] == 60
    files[f"{group}/cpu/cpu.cfs_quota_us"] = "-1"  # no limit
    assert cpu.quota(trees.write(tmp_path / "free", files)) is None


def test_what_is_allowed_is_unknown_without_its_file(tmp_path: Path) -> None:
    tree = trees.write(tmp_path, trees.machine({0: "0"}, online="0", siblings={0: "0"}))
    assert cpu.cpus(tree)["allowed"] == []


def test_old_kernels_have_masks_only(tmp_path: Path) -> None:
    files = {
        "/sys/devices/system/cpu/online": "0-1",
        "/sys/devices/system/cpu/cpu0/topology/thread_siblings": "00000000,00000003",
        "/sys/devices/system/cpu/cpu1/topology/thread_siblings": "00000000,00000003",
        "/sys/devices/system/node/node0/cpumap": "00000000,00000003",
        "/sys/devices/system/node/has_cpu": "0",
    }
    tree = trees.write(tmp_path, files)
    assert cpu.cpus(tree)["online"][1]["core"] == [0, 1]
    assert cpu.numa(tree)[0]["cpus"] == [0, 1]


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor: 0\nmodel name\t: Some CPU @ 2GHz", "Some CPU @ 2GHz"),
        ("processor: 0\nCPU implementer: 0x41\nCPU part\t: 0xd4f", "Neoverse-V2"),
        ("CPU part\t: 0x999", "ARM part 0x999"),
        ("processor: 0\ncpu\t\t: POWER9, altivec supported", "POWER9, altivec supported"),
        ("", ""),
    ],
)
def test_cpu_model(tmp_path: Path, text: str, model: str) -> None:
    assert cpu.model(trees.write(tmp_path, {"/proc/cpuinfo": text})) == model


def test_pci_paths_share_a_switch(tmp_path: Path) -> None:
    switch = "pci0000:15/0000:15:01.0/0000:16:00.0"
    files = {
        **trees.pci("pci0000:15/0000:15:01.0", pci_class="0x060400", vendor="0x8086", node=0),
        **trees.pci(switch, pci_class="0x060400", vendor="0x1000", node=0, current_link_width="16"),
        **trees.pci(f"{switch}/0000:17:00.0/0000:18:00.0", pci_class="0x020700", vendor="0x15b3", node=0),
        **trees.pci(
            f"{switch}/0000:17:02.0/0000:1b:00.0",
            pci_class="0x030200",
            node=0,
            current_link_speed="2.5 GT/s PCIe",
            max_link_speed="32.0 GT/s PCIe",
            current_link_width="8",
            max_link_width="16",
        ),
        **trees.pci("pci0000:00/0000:00:1f.0", pci_class="0x060100", vendor="0x8086"),
    }
    tree = trees.write(tmp_path, files)
    devices = {device["address"]: device for device in pci.devices(tree)}
    assert devices["0000:1b:00.0"]["path"][:3] == devices["0000:18:00.0"]["path"][:3]
    assert devices["0000:1b:00.0"]["path"] == [
        "pci0000:15",
        "0000:15:01.0",
        "0000:16:00.0",
        "0000:17:02.0",
        "0000:1b:00.0",
    ]
    assert (devices["0000:1b:00.0"]["link_width"], devices["0000:1b:00.0"]["link_width_max"]) == (8, 16)
    assert (devices["0000:1b:00.0"]["link_speed_gt_s"], devices["0000:1b:00.0"]["link_speed_max_gt_s"]) == (2.5, 32.0)
    assert devices["0000:16:00.0"]["link_width"] == 16  # the bridges on the way are there too
    assert "0000:00:1f.0" not in devices
    assert pci.gpus(tree) == ["0000:1b:00.0"]


def test_no_pci_at_all_is_not_no_gpu(tmp_path: Path) -> None:
    assert pci.gpus(trees.write(tmp_path, {"/proc/stat": ""})) is None
    assert pci.gpus(trees.write(tmp_path, trees.pci("pci0000:00/0000:00:02.0", pci_class="0x020000"))) == []


@pytest.mark.parametrize(
    ("told", "node"),
    [
        ({"numa_node": "1"}, 1),
        ({"numa_node": "1", "local_cpulist": "2-3"}, 1),
        ({"numa_node": "1", "local_cpulist": ""}, 1),  # a node of memory only
        ({"numa_node": "1", "local_cpulist": "0-3"}, None),  # the kernel contradicts itself; hwloc trusts it neither
        ({"numa_node": "-1"}, None),
        ({"numa_node": "-1", "local_cpulist": "0-3"}, None),  # all CPUs: the firmware tells nothing
        ({"numa_node": "-1", "local_cpulist": "2-3"}, 1),
        ({"local_cpus": "00000000,00000003"}, 0),
        ({}, None),
    ],
)
def test_numa_node_of_a_device(tmp_path: Path, told: dict[str, str], node: int | None) -> None:
    files = trees.machine({0: "0-1", 1: "2-3"}, online="0-3", siblings={})
    device = trees.pci("pci0000:00/0000:00:02.0", pci_class="0x030200", **told)  # type: ignore[arg-type]
    tree = trees.write(tmp_path, {**files, **device})
    assert pci.devices(tree)[0]["numa_node"] == node


def test_one_node_is_near_to_everything(tmp_path: Path) -> None:
    files = trees.machine({0: "0-3"}, online="0-3", siblings={})
    device = trees.pci("pci0000:00/0000:00:06.0", pci_class="0x030200", node=-1, local_cpulist="0-3")
    assert pci.devices(trees.write(tmp_path, {**files, **device}))[0]["numa_node"] == 0


@pytest.mark.parametrize("width", ["0", "63", "255"])
def test_a_link_that_is_down_has_no_width(tmp_path: Path, width: str) -> None:
    files = trees.pci("pci0000:00/0000:00:02.0", pci_class="0x020000", current_link_width=width)
    assert pci.devices(trees.write(tmp_path, files))[0]["link_width"] is None
