"""Which GPU `cuda:N` will be, worked out as the CUDA driver does it, without asking CUDA.

Source of the rules: CUDA programming guide, environment variables (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER); MIG user
guide, device enumeration; torch.cuda's own reading of the variable, which agrees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from nvrun.facts import Gpu
from nvrun.model import Finding, Frozen, Severity


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
    gpus = sorted(gpus, key=lambda gpu: gpu.index)
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    ordered = env.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") != "FASTEST_FIRST" or len({gpu.name for gpu in gpus}) < 2
    findings: list[Finding] = []
    if wanted is None:
        devices = [_by_index(gpus, index, ordered) for index in range(len(gpus))]
    else:
        devices, problem = _listed(gpus, wanted, ordered)
        if problem:
            findings.append(_invalid_entry(host, wanted, problem, len(devices)))
    found = [device for device in devices if device is not None]
    instances = [device for device in found if device.is_mig]
    if instances and not one_per_rank:
        # A process enumerates one compute instance only, and no whole GPU beside it (MIG user guide).
        if len(found) > 1:
            findings.append(_one_instance(host, len(found), instances[0]))
        found = instances[:1]
    return Visible(devices=tuple(found), findings=tuple(findings))


def _by_index(gpus: Sequence[Gpu], index: int, ordered: bool) -> Device | None:
    """Device of a CUDA index; None for a GPU in MIG mode that has no instance."""
    if not ordered:
        return Device(gpu=None, why="CUDA_DEVICE_ORDER=FASTEST_FIRST with unlike GPUs: the driver's order is not known")
    gpu = gpus[index]
    if gpu.mig is None:
        return Device(gpu=gpu, uuid=gpu.uuid)
    return Device(gpu=gpu, uuid=gpu.mig[0]) if gpu.mig else None


def _listed(gpus: Sequence[Gpu], wanted: str, ordered: bool) -> tuple[list[Device | None], str]:
    """Devices of a CUDA_VISIBLE_DEVICES value, and what is wrong with it: the first invalid entry ends the list."""
    devices: list[Device | None] = []
    seen: set[str] = set()
    if not wanted.strip():
        return [], ""
    for entry in (entry.strip() for entry in wanted.split(",")):
        device, problem = _entry(gpus, entry, ordered)
        if problem:
            return devices, problem
        key = device.uuid if device and device.uuid else entry
        if key in seen:
            return [], f"{entry} is there twice, which makes the list empty"
        seen.add(key)
        devices.append(device)
    return devices, ""


def _entry(gpus: Sequence[Gpu], entry: str, ordered: bool) -> tuple[Device | None, str]:
    if entry.startswith(("GPU-", "MIG-")):
        names = {gpu.uuid: gpu for gpu in gpus} | {uuid: gpu for gpu in gpus for uuid in gpu.mig or ()}
        matches = [name for name in names if name == entry] or [name for name in names if name.startswith(entry)]
        if len(matches) != 1:
            return None, f"{entry} fits {len(matches) or 'no'} device{'s' if matches else ''} of this host"
        gpu = names[matches[0]]
        if matches[0] == gpu.uuid and gpu.mig is not None:
            return (Device(gpu=gpu, uuid=gpu.mig[0]) if gpu.mig else None), ""
        return Device(gpu=gpu, uuid=matches[0]), ""
    number = re.match(r"\+?\d{1,9}", entry, re.ASCII)  # read by strtoul: `2abc` is 2
    if number is None:
        return None, f"{entry!r} is neither an index nor a UUID"
    if int(number[0]) >= len(gpus):
        return None, f"index {int(number[0])} is beyond the {len(gpus)} GPUs of this host"
    return _by_index(gpus, int(number[0]), ordered), ""


def _invalid_entry(host: str | None, value: str, problem: str, left: int) -> Finding:
    return Finding(
        code="visible-devices-invalid",
        severity=Severity.WARNING,
        host=host,
        subject="CUDA_VISIBLE_DEVICES",
        observed=value,
        message=f"CUDA_VISIBLE_DEVICES={value}: {problem}; CUDA stops there and sees {left} device{'s'[: left != 1]}",
        remedy="correct the entry, or unset CUDA_VISIBLE_DEVICES to use all GPUs",
    )


def _one_instance(host: str | None, devices: int, first: Device) -> Finding:
    return Finding(
        code="mig-one-instance",
        severity=Severity.WARNING,
        host=host,
        subject=first.uuid or "",
        observed=f"{devices} devices visible",
        expected="1",
        message=f"with MIG on, a process sees one instance only: cuda:0 is {first.uuid}, there is no cuda:1",
        remedy="add --virtual-local-rank, which gives each rank its own instance, or turn MIG off",
    )
