"""The hardware that presets are meant for, and what they need on a host. Pure: facts in, reasons and findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from nvrun.facts import HostFacts
from nvrun.meanings import found, means
from nvrun.model import Finding, Severity, Skipped
from nvrun.preset_file import Fits

AMAZON, GOOGLE = "0x1d0f", "0x1ae0"
"""PCI vendors of the clouds whose NICs NCCL itself tunes for (src/transport/net_socket.cc)."""


_WHY = "the preset's variables do nothing there, or the job fails at its first exchange"
NVLINK, RDMA, GPUDIRECT, IBGDA = (
    means(code, summary, read=read, why=_WHY, remedy=remedy, source=source)
    for code, summary, read, remedy, source in (
        ("preset-needs-nvlink", "a preset needs NVLink, and a host has none that is active", "NVLinks by NVML",
         "nvidia-smi nvlink -s; another preset where the GPUs have no NVLink", "DeepEP, requirements"),
        ("preset-needs-rdma", "a preset needs an NVIDIA NIC with RDMA, and a host has none that is active",
         "RDMA ports (sysfs)", "ibv_devinfo; nvrun check --checklist", "NVSHMEM installation guide, IBGDA"),
        ("preset-needs-gpudirect", "a preset needs RDMA into GPU memory, and nvidia_peermem is not loaded",
         "/proc/modules", "sudo modprobe nvidia_peermem; a kernel and driver with dma-buf do without",
         "NVSHMEM installation guide"),
        ("preset-needs-ibgda", "a preset needs the GPU to post RDMA work itself, which the driver does not allow",
         "/proc/driver/nvidia/params", "load the driver with EnableStreamMemOPs=1 and PeerMappingOverride=1",
         "NVSHMEM installation guide, IBGDA"),
    )
)  # fmt: skip


def misfit(fits: Fits | None, hosts: Sequence[HostFacts]) -> str:
    """Why a preset is not for these hosts; empty where it is. What was not read does not fit."""
    if fits is None:
        return "it has no match rule"
    if fits.network and len(hosts) < 2:
        return "the job has one host"
    for facts in hosts:
        reason = _gpus(fits, facts) or _network(fits, facts)
        if reason:
            return f"{facts.host}: {reason}"
    return "" if hosts else "no host was read"


def _gpus(fits: Fits, facts: HostFacts) -> str:
    if not (fits.compute_capability or fits.nvswitch):
        return ""
    if facts.gpus is None:
        return f"its GPUs were not read ({facts.missing.get('gpus', 'no reason given')})"
    if not facts.gpus:
        return "it has no GPU"
    for gpu in facts.gpus:
        if fits.compute_capability and gpu.compute_capability not in fits.compute_capability:
            return f"GPU {gpu.index} has compute capability {gpu.compute_capability or 'unknown'}, not " + " or ".join(
                fits.compute_capability
            )
        if fits.nvswitch and not any(link.active and link.remote_type == "switch" for link in gpu.nvlinks):
            return f"GPU {gpu.index} shows no NVLink to a switch"
    return ""


def _network(fits: Fits, facts: HostFacts) -> str:
    if not fits.network:
        return ""
    kind = network(facts)
    if kind is None:
        return "its network devices were not read"
    if kind != fits.network:
        return f"its network is {kind}, not {fits.network}"
    if kind in ("infiniband", "roce"):  # NCCL's own transport, which a plugin would replace
        if facts.software is None:
            return "whether NCCL would load a network plugin was not read"
        if facts.software.nccl_net_plugins:
            return f"NCCL would load the network plugin {facts.software.nccl_net_plugins[0]}"
    return ""


def network(facts: HostFacts) -> str | None:
    """The network between hosts; None where RDMA or PCI devices were not read.

    `efa` and `gcp` by the NIC's PCI vendor, since both bring plugins that choose for themselves. Of active RDMA ports
    that the job may open the fastest decide, since storage and management ports of another kind are slower; `mixed`
    where these differ.
    """
    if facts.pci is None or facts.rdma is None:
        return None
    if any(device.vendor == AMAZON and device.device.startswith("0xefa") for device in facts.pci):
        return "efa"
    if any(device.vendor == GOOGLE for device in facts.pci):
        return "gcp"
    ports = [port for port in facts.rdma if port.state == "ACTIVE" and port.uverbs_openable is not False]
    if not ports:
        return "ethernet on Amazon's NIC" if any(device.vendor == AMAZON for device in facts.pci) else "ethernet"
    fastest = max(port.rate_gbps or 0 for port in ports)
    layers = {port.link_layer for port in ports if (port.rate_gbps or 0) == fastest}
    return (
        {"InfiniBand": "infiniband", "Ethernet": "roce"}.get(layers.pop(), "unknown") if len(layers) == 1 else "mixed"
    )


def unmet(requires: Iterable[str], facts: HostFacts) -> list[Finding | Skipped]:
    """What the host lacks of a preset's prerequisites; a prerequisite whose fact was not read is skipped, with why."""
    return [answer for name in requires if (answer := REQUIREMENTS[name](facts)) is not None]


def _nvlink(facts: HostFacts) -> Finding | Skipped | None:
    if facts.gpus is None:
        return Skipped(code=NVLINK, host=facts.host, reason=facts.missing.get("gpus", "GPUs were not read"))
    without = [gpu.index for gpu in facts.gpus if not any(link.active for link in gpu.nvlinks)]
    if facts.gpus and not without:
        return None
    message = f"no active NVLink on GPU {', '.join(map(str, without)) or '(none there)'}"
    return found(NVLINK, Severity.ERROR, message, host=facts.host)


def _rdma(facts: HostFacts) -> Finding | Skipped | None:
    if facts.rdma is None:
        return Skipped(code=RDMA, host=facts.host, reason=facts.missing.get("rdma", "RDMA ports were not read"))
    if any(port.state == "ACTIVE" and port.device.startswith("mlx5") for port in facts.rdma):
        return None
    message = "no active mlx5 port: GPU-initiated RDMA needs a ConnectX NIC"
    return found(RDMA, Severity.ERROR, message, host=facts.host)


def _gpudirect(facts: HostFacts) -> Finding | Skipped | None:
    loaded = facts.software.nvidia_peermem if facts.software else None
    if loaded is None:
        return Skipped(code=GPUDIRECT, host=facts.host, reason="whether nvidia_peermem is loaded was not read")
    if loaded:
        return None
    return found(
        GPUDIRECT,
        Severity.WARNING,  # dma-buf can do without, where NVSHMEM and the driver both know it
        "nvidia_peermem is not loaded: RDMA into GPU memory then depends on dma-buf",
        host=facts.host,
    )


def _gpu_initiated(facts: HostFacts) -> Finding | Skipped | None:
    """Driver options without which the GPU may not ring the NIC's doorbell (NVSHMEM installation guide, IBGDA)."""
    options = facts.software.driver_options if facts.software else None
    if options is None:
        return Skipped(code=IBGDA, host=facts.host, reason="/proc/driver/nvidia/params was not read")
    peer = options.get("RegistryDwords", "").strip('"').replace(" ", "")
    if options.get("EnableStreamMemOPs") == "1" and (
        "PeerMappingOverride=1" in peer or "PeerMappingOverride=0x1" in peer
    ):
        return None
    return found(
        IBGDA,
        Severity.ERROR,
        "the driver was loaded without EnableStreamMemOPs=1 and PeerMappingOverride=1: GPU-initiated RDMA fails",
        host=facts.host,
        remedy="echo 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"PeerMappingOverride=1;\"'"
        " | sudo tee /etc/modprobe.d/nvidia-ibgda.conf, rebuild the initramfs, reboot",
    )


REQUIREMENTS: dict[str, Callable[[HostFacts], Finding | Skipped | None]] = {
    "nvlink": _nvlink,
    "rdma": _rdma,
    "gpudirect": _gpudirect,
    "gpu-initiated-rdma": _gpu_initiated,
}
"""Name in a preset's `requires` -> what is missing on a host; None where nothing is."""
