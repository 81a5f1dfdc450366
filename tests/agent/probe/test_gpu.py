"""GPUs through a stand-in for NVML that answers what two H200 behind NVSwitch answered, and what broken ones do."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvrun import facts
from nvrun.agent.probe import gpu, nvlink
from nvrun.agent.probe.child import UnreadError
from nvrun.agent.probe.tree import Tree
from tests.agent.probe import trees


class NVMLError(Exception):
    """NVML's own; its text is NVML's."""


NOT_SUPPORTED = NVMLError("Not Supported")


@dataclasses.dataclass
class Gpu:
    """What one GPU answers: value of each nvmlDeviceGet* function (an exception is raised), and its field values."""

    answers: dict[str, Any]
    fields: dict[tuple[int, int], int]
    links: dict[int, int] = dataclasses.field(default_factory=dict)


def h200(number: int) -> Gpu:
    answers = {
        "PciInfo": SimpleNamespace(busId=f"00000000:0{number}:1B.0"),
        "UUID": f"GPU-{number}",
        "Name": "NVIDIA H200",
        "NumaNodeId": NOT_SUPPORTED,
        "MemoryInfo": SimpleNamespace(total=150754820096, used=0),
        "CudaComputeCapability": (9, 0),
        "MigMode": [0, 0],
        "MinorNumber": number,
        "CurrPcieLinkGeneration": 5,
        "MaxPcieLinkGeneration": 5,
        "CurrPcieLinkWidth": 16,
        "MaxPcieLinkWidth": 16,
        "EccMode": [1, 1],
        "TotalEccErrors": 0,
        "RemappedRows": (0, 0, 0, 0),
        "CurrentClocksEventReasons": 1,
        "PersistenceMode": 1,
        "Temperature": 37,
        "PowerUsage": 105311,
        "EnforcedPowerLimit": 700000,
        "PowerManagementDefaultLimit": 700000,
        "VbiosVersion": "96.00",
        "ClockInfo": 345,
        "MaxClockInfo": 1980,
        "ComputeMode": 0,
        "ComputeRunningProcesses": [],
        "MPSComputeRunningProcesses": [],
        "GraphicsRunningProcesses": [],
        "Fabric": True,
    }
    fields = {(91, 0): 18, (230, 0): 0}
    for link in range(18):
        fields |= {(165, link): 1, (164, link): 26562, (161, link): 0, (162, link): 0, (163, link): 0}
    return Gpu(answers, fields, dict.fromkeys(range(18), 2))


class Fabric(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t as far as it is read: GPUs that have joined the fabric, of a domain of their own."""

    _fields_ = (
        ("state", ctypes.c_int),
        ("status", ctypes.c_int),
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("cliqueId", ctypes.c_uint32),
        ("healthMask", ctypes.c_uint32),
        ("healthSummary", ctypes.c_uint8),
    )

    def __init__(self) -> None:
        super().__init__(state=3)


class Nvml:
    """The calls of pynvml that the probe makes."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2  # noqa: N815 - pynvml's name

    def __init__(self, *gpus: Gpu, p2p: int = 0) -> None:
        self.gpus, self.p2p = gpus, p2p

    c_nvmlGpuFabricInfo_v3_t = Fabric  # noqa: N815

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Gpu, info: Any) -> int:  # noqa: N802
        if "Fabric" not in handle.answers:
            raise NVMLError("Function Not Found")
        return 0

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        if self.gpus[index].answers.get("Handle"):
            raise self.gpus[index].answers["Handle"]
        return self.gpus[index]

    def nvmlDeviceGetFieldValues(self, handle: Gpu, wanted: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        found = [handle.fields.get(key) for key in wanted]
        return [SimpleNamespace(nvmlReturn=3 if v is None else 0, value=SimpleNamespace(ullVal=v or 0)) for v in found]

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Gpu, link: int) -> int:  # noqa: N802
        return handle.links[link]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Gpu, link: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId="FFFFFFFF:FF:FF.0")

    def nvmlDeviceGetP2PStatus(self, a: Gpu, b: Gpu, index: int) -> int:  # noqa: N802
        return self.p2p if index == 1 else 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def call(handle: Gpu, *_: Any) -> Any:
            answer = handle.answers.get(name.removeprefix("nvmlDeviceGet"), NOT_SUPPORTED)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def host(tmp_path: Path) -> Any:
    """Two GPUs on PCI, node 1 near the second."""
    files = {
        **trees.machine({0: "0-1", 1: "2-3"}, online="0-3", siblings={}),
        **trees.pci("pci0000:00/0000:00:1b.0", pci_class="0x030200", node=-1),
        **trees.pci("pci0000:01/0000:01:1b.0", pci_class="0x030200", node=1),
    }
    return trees.write(tmp_path, files)


def read(host: Any, nvml: Nvml) -> tuple[facts.Gpu, ...]:
    """Through the schema, which refuses a value of another type."""
    reply = gpu.gpus(host, lambda: nvml)
    decoded = facts.decode({"host": "h", "gpus": reply["gpus"], "software": {"python": "", "executable": ""}})
    assert decoded.gpus is not None
    return decoded.gpus


def test_two_h200(host: Any) -> None:
    reply = gpu.gpus(host, lambda: Nvml(h200(0), h200(1)))
    assert (reply["driver"], reply["cuda_driver"]) == ("580.159.04", "13.0")
    first, second = read(host, Nvml(h200(0), h200(1)))
    assert (first.pci, first.numa_node, second.pci, second.numa_node) == ("0000:00:1b.0", None, "0000:01:1b.0", 1)
    assert len(first.nvlinks) == 18
    assert first.nvlinks[17].speed_mb_s == 26562
    assert first.nvlinks[17].remote_type == "switch"
    assert first.nvlinks[17].remote_pci is None
    assert all(link.active for link in first.nvlinks)
    assert first.p2p == {"GPU-1": "ok"}
    assert (first.recovery_action, first.throttle_reasons, first.compute_mode) == ("none", ("idle",), "default")
    assert (first.ecc_enabled, first.remap_pending, first.mig, first.power_w) == (True, False, None, 105.311)
    assert (first.fabric_state, first.fabric_status, first.fabric_clique) == ("completed", "success", None)
    assert first.unread == {"memory_node": "Not Supported"}


def test_a_gpu_lost_from_the_bus_keeps_its_place(host: Any) -> None:
    lost = h200(0)
    lost.answers["Handle"] = NVMLError("GPU is lost")
    first, second = read(host, Nvml(lost, h200(1)))
    assert (first.uuid, first.unread) == ("", {"handle": "GPU is lost"})
    assert (second.uuid, second.p2p) == ("GPU-1", {})


def test_a_gpu_of_another_job_is_none_of_ours(host: Any) -> None:
    """NVML counts those too that a device cgroup keeps from this job; CUDA does not, and numbers the others."""
    theirs = h200(0)
    theirs.answers["Handle"] = NVMLError("Insufficient Permissions")
    (found,) = read(host, Nvml(theirs, h200(1)))
    assert (found.uuid, found.p2p, found.reached) == ("GPU-1", {}, True)


def test_a_display_is_told_from_a_computation(host: Any) -> None:
    shown = h200(0)
    shown.answers["GraphicsRunningProcesses"] = [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in (7, 8)]
    shown.answers["ComputeRunningProcesses"] = [SimpleNamespace(pid=8, usedGpuMemory=2)]
    (found,) = read(host, Nvml(shown))
    assert {(one.pid, one.memory_bytes, one.graphics) for one in found.processes} == {(7, 1, True), (8, 2, False)}


def test_what_cannot_be_read_is_not_healthy(host: Any) -> None:
    """An old driver or a consumer card: unknown fields are None and named."""
    old = Gpu({"PciInfo": SimpleNamespace(busId=b"00000000:00:1B.0"), "UUID": b"GPU-7", "Name": b"Old"}, {})
    (found,) = read(host, Nvml(old))
    assert (found.uuid, found.pci) == ("GPU-7", "0000:00:1b.0")
    unknown = ("ecc_enabled", "remap_pending", "remap_failed", "recovery_action", "persistence", "memory_used", "mig")
    assert [getattr(found, name) for name in unknown] == [None] * len(unknown)
    assert set(unknown) - {"remap_failed"} <= set(found.unread)
    assert (found.nvlinks, found.fabric_state) == ((), None)


def test_sick_gpu(host: Any) -> None:
    sick = h200(0)
    sick.answers |= {
        "RemappedRows": (0, 3, 1, 1),
        "TotalEccErrors": 5,
        "CurrentClocksEventReasons": 0x80 | 0x8,
        "CurrPcieLinkWidth": 8,
        "PersistenceMode": 0,
    }
    sick.fields |= {(230, 0): 2, (165, 3): 0, (165, 4): 2, (165, 5): 3, (163, 6): 99}
    (found,) = read(host, Nvml(sick))
    assert (found.remap_pending, found.remap_failed, found.ecc_uncorrected_volatile) == (True, True, 5)
    assert (found.recovery_action, found.persistence, found.pcie_width) == ("reboot", False, 8)
    assert found.throttle_reasons == ("hardware slowdown", "power brake")
    # A link asleep is healthy, one whose traffic is off is not.
    assert [link.link for link in found.nvlinks if not link.active] == [3, 5]
    assert found.nvlinks[6].crc_errors == 99


def test_mig_busy_and_p2p(host: Any) -> None:
    busy = h200(0)
    busy.answers |= {
        "MigMode": [1, 1],
        "MaxMigDeviceCount": 2,
        "MigDeviceHandleByIndex": Gpu({"UUID": "MIG-1"}, {}),
        "ComputeRunningProcesses": [SimpleNamespace(pid=4711, usedGpuMemory=1 << 30)],
        "MPSComputeRunningProcesses": [SimpleNamespace(pid=4712, usedGpuMemory=None)],
    }
    first, _ = read(host, Nvml(busy, h200(1), p2p=3))
    assert first.mig == ("MIG-1", "MIG-1")
    assert [(process.pid, process.memory_bytes) for process in first.processes] == [(4711, 1 << 30), (4712, None)]
    assert first.p2p == {"GPU-1": "topology not supported"}


def test_no_gpu_and_no_answer_differ(tmp_path: Path, host: Any) -> None:
    class NoDriver(Nvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise NVMLError("Driver Not Loaded")

    with pytest.raises(UnreadError, match="NVML: Driver Not Loaded"):
        gpu.gpus(host, NoDriver)
    nic = trees.pci("pci0000:00/0000:00:02.0", pci_class="0x020000", vendor="0x15b3")
    assert gpu.gpus(trees.write(tmp_path / "cpu", nic)) == {"gpus": []}
    with pytest.raises(UnreadError, match="no PCI bus"):
        gpu.gpus(trees.write(tmp_path / "bare", {"/proc/stat": ""}))


@pytest.mark.parametrize(
    ("mask", "summary", "words"),
    [
        (0, 0, {}),
        (0b10, 1, {"degraded bandwidth": "no", "summary": "healthy"}),
        (0b01 | 1 << 8, 3, {"degraded bandwidth": "yes", "summary": "limited"}),
        (0b01_00_00_00, 2, {"access timeout": "yes", "summary": "unhealthy"}),
        (5 << 8, 0, {"incorrect configuration": "too few NVLinks"}),
    ],
)
def test_fabric_health(mask: int, summary: int, words: dict[str, str]) -> None:
    assert nvlink.health(mask, summary) == words


def test_device_nodes(tmp_path: Path) -> None:
    tree = trees.write(tmp_path, {"/dev/nvidia0": "", "/dev/nvidiactl": "", "/dev/nvidia-modeset": "", "/dev/null": ""})
    assert gpu.device_nodes(tree) == {"/dev/nvidia0": "ok", "/dev/nvidiactl": "ok"}


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA driver here")
def test_this_hosts_gpus() -> None:
    found = gpu.gpus(Tree())["gpus"]
    assert found
    assert all(entry["uuid"].startswith("GPU-") and entry["memory_total"] for entry in found)
