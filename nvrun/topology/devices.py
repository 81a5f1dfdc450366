"""Which GPU `cuda:N` will be, worked out as the CUDA driver does it, without asking CUDA.

Source of the rules: CUDA programming guide, environment variables (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER); MIG user
guide, device enumeration; 40 values tried on two H200 with driver 580 (tests/topology/test_devices.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from nvrun.facts import Gpu
from nvrun.meanings import found, means
from nvrun.model import Finding, Frozen, Severity

INVALID = means(
    "visible-devices-invalid",
    "CUDA_VISIBLE_DEVICES has an entry that stands for no GPU",
    read="the rank's environment and the GPUs that NVML lists",
    why="CUDA ends the list there: later ranks have no GPU",
    remedy="correct the entry, or unset CUDA_VISIBLE_DEVICES to use all GPUs",
    source="CUDA programming guide, environment variables",
)
ONE_INSTANCE = means(
    "mig-one-instance",
    "with MIG on, a process sees one instance only",
    read="MIG mode and instances by NVML",
    why="there is no cuda:1: the second rank of a host fails",
    remedy="--virtual-local-rank gives each rank its own instance; or turn MIG off",
    source="MIG user guide, device enumeration",
)

_NONE = ("-1", "NoDevFiles")
"""Values by which people hide all GPUs on purpose; both are invalid entries to CUDA."""


class Device(Frozen, frozen=True, kw_only=True):
    """What one CUDA ordinal will be."""

    gpu: Gpu | None
    """None: cannot be predicted, `why` says the reason."""
    uuid: str | None = None
    """UUID of the GPU, or of the MIG instance on it."""
    why: str = ""

    @property
    def is_mig(self) -> bool:
        return self.gpu is not None and self.uuid != self.gpu.uuid


class Visible(Frozen, frozen=True, kw_only=True):
    """The devices of a process, in the order of their CUDA ordinals."""

    devices: tuple[Device, ...] = ()
    findings: tuple[Finding, ...] = ()


def visible(
    gpus: Sequence[Gpu], env: Mapping[str, str], *, host: str | None = None, one_per_rank: bool = False
) -> Visible:
    """The CUDA devices of a process with this environment on a host with these GPUs.

    `one_per_rank`: torchrun's `--virtual-local-rank` gives each rank one entry of CUDA_VISIBLE_DEVICES; the result is
    then one device a rank.
    """
    gpus = sorted((gpu for gpu in gpus if gpu.reached), key=lambda gpu: gpu.index)
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    ordered = env.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") != "FASTEST_FIRST" or len({gpu.name for gpu in gpus}) < 2
    findings: list[Finding] = []
    if wanted is None:
        devices = [_by_index(gpus, index, ordered) for index in range(len(gpus))]
    else:
        devices, problem = _listed(gpus, wanted, ordered)
        if not problem:
            problem = _half_read(wanted)
        if problem and wanted not in _NONE:
            findings.append(_invalid_entry(host, wanted, problem))
    there = [device for device in devices if device is not None]
    instances = [device for device in there if device.is_mig]
    if instances and not one_per_rank:
        # A process enumerates one compute instance only, and no whole GPU beside it (MIG user guide).
        if len(there) > 1:
            findings.append(_one_instance(host, len(there), instances[0]))
        there = instances[:1]
    return Visible(devices=tuple(there), findings=tuple(findings))


def _by_index(gpus: Sequence[Gpu], index: int, ordered: bool) -> Device | None:
    """Device of a CUDA index; None for a GPU in MIG mode that has no instance."""
    if not ordered:
        return Device(gpu=None, why="CUDA_DEVICE_ORDER=FASTEST_FIRST with unlike GPUs: the driver's order is not known")
    gpu = gpus[index]
    if gpu.mig is None:
        return Device(gpu=gpu, uuid=gpu.uuid)
    return Device(gpu=gpu, uuid=gpu.mig[0]) if gpu.mig else None


def _listed(gpus: Sequence[Gpu], wanted: str, ordered: bool) -> tuple[list[Device | None], str]:
    """Devices of a CUDA_VISIBLE_DEVICES value, and what is wrong with it.

    The first invalid entry ends the list. The first entry decides whether it is one of indices or of UUIDs. A device
    named twice makes cuInit fail (CUDA_ERROR_INVALID_DEVICE).
    """
    devices: list[Device | None] = []
    seen: set[str] = set()
    by_uuid = wanted.startswith(("GPU-", "MIG-"))
    entries = wanted.split(",")
    for at, entry in enumerate(entries):
        if not entry.strip() and at == len(entries) - 1:
            break  # an empty value, or a comma at the end
        device, problem = _by_uuid(gpus, entry) if by_uuid else _by_number(gpus, entry, ordered)
        if problem:
            return devices, f"{problem}; CUDA stops there and sees {len(devices)} device{'s'[: len(devices) != 1]}"
        key = device.uuid if device and device.uuid else entry.strip()
        if key in seen:
            return [], f"{entry.strip()} names a device twice: CUDA does not start"
        seen.add(key)
        devices.append(device)
    return devices, ""


def _half_read(wanted: str) -> str:
    """An index with more behind it, which CUDA drops: `0-3` is 0, and so is `0;1`."""
    for entry in wanted.split(","):
        number = re.match(r"\s*\+?(\d{1,9})(?!\d)\s*\S", entry, re.ASCII)
        if number is not None:
            return f"CUDA reads {entry.strip()!r} as {int(number[1])}: there are no ranges, and only commas between"
    return ""


def _by_number(gpus: Sequence[Gpu], entry: str, ordered: bool) -> tuple[Device | None, str]:
    """Device of an index, read as strtol does: `2abc` and `+2` are 2."""
    number = re.match(r"\s*\+?(\d{1,9})", entry, re.ASCII)
    if number is None:
        return None, f"{entry!r} is no index in a list of indices"
    if int(number[1]) >= len(gpus):
        return None, f"index {int(number[1])} is beyond the {len(gpus)} GPUs of this host"
    return _by_index(gpus, int(number[1]), ordered), ""


def _by_uuid(gpus: Sequence[Gpu], entry: str) -> tuple[Device | None, str]:
    """Device of a UUID or the beginning of one, in either case; a blank before it is not forgiven."""
    wanted = entry.rstrip().lower()
    if not wanted.startswith(("gpu-", "mig-")):
        return None, f"{entry!r} is no UUID in a list of UUIDs"
    names = {gpu.uuid: gpu for gpu in gpus} | {uuid: gpu for gpu in gpus for uuid in gpu.mig or ()}
    matches = [name for name in names if name.lower() == wanted] or [n for n in names if n.lower().startswith(wanted)]
    if len(matches) != 1:
        return None, f"{entry.strip()} fits {len(matches) or 'no'} device{'s' if matches else ''} of this host"
    gpu = names[matches[0]]
    if matches[0] == gpu.uuid and gpu.mig is not None:
        return (Device(gpu=gpu, uuid=gpu.mig[0]) if gpu.mig else None), ""
    return Device(gpu=gpu, uuid=matches[0]), ""


def _invalid_entry(host: str | None, value: str, problem: str) -> Finding:
    message = f"CUDA_VISIBLE_DEVICES={value}: {problem}"
    return found(INVALID, Severity.WARNING, message, host=host, subject="CUDA_VISIBLE_DEVICES", observed=value)


def _one_instance(host: str | None, devices: int, first: Device) -> Finding:
    return found(
        ONE_INSTANCE,
        Severity.WARNING,
        f"with MIG on, a process sees one instance only: cuda:0 is {first.uuid}, there is no cuda:1",
        host=host,
        subject=first.uuid or "",
        observed=f"{devices} devices visible",
        expected="1",
    )
