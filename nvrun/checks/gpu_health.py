"""What NVML and the kernel log say of the planned GPUs' health: memory errors, NVIDIA's own verdict, clocks, PCIe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nvrun.checks import pcie
from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, INFO, WARNING, declare, unread
from nvrun.checks.compare import differing, listed
from nvrun.checks.gpu import label
from nvrun.checks.job import Job
from nvrun.diagnose.rule import Stage
from nvrun.diagnose.xid import SERIOUS, XIDS, Action, read_sxid, read_xid
from nvrun.facts import Gpu, HostFacts, Xid

_MEMORY = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
_NVML = "https://docs.nvidia.com/deploy/nvml-api/"

ECC = declare(
    "gpu-ecc-errors",
    ERROR,
    "a planned GPU had uncorrectable memory errors",
    read="NVML: uncorrected volatile ECC errors, that is since the driver was loaded",
    why="results were wrong or programs were ended; more errors are likely",
    remedy="reset the GPU or reboot: nvidia-smi --gpu-reset -i N; have it replaced if they come back",
    source=_MEMORY,
    real=False,
)
ECC_OFF = declare(
    "gpu-ecc-off",
    WARNING,
    "ECC is off on some GPUs and on for others",
    read="NVML's ECC mode",
    why="silent memory errors on these GPUs; memory size and speed differ from the others'",
    remedy="nvidia-smi -i N -e 1 as root, then reset the GPU",
    source="nvidia-smi(1), --ecc-config",
    real=False,
)
REMAP_PENDING = declare(
    "gpu-remap-pending",
    ERROR,
    "a faulty memory row waits for its replacement",
    read="NVML: row remapping (or page retirement) pending",
    why="the faulty memory is still in use until the GPU is reset",
    remedy="reset the GPU or reboot: nvidia-smi --gpu-reset -i N",
    source=_MEMORY,
    real=False,
)
REMAP_FAILED = declare(
    "gpu-remap-failed",
    ERROR,
    "a faulty memory row could not be replaced",
    read="NVML: row remapping failure",
    why="no spare rows are left: the GPU will corrupt results or end programs",
    remedy="take the host out and have the GPU replaced (NVIDIA's RMA criterion)",
    source=_MEMORY,
    real=False,
)
RECOVERY = declare(
    "gpu-recovery-needed",
    ERROR,
    "the driver asks for a planned GPU's recovery",
    read="NVML: GPU recovery action (drivers from 570)",
    why="NVIDIA's own verdict: the GPU is not fit for work until that was done",
    remedy="do what it asks for: nvidia-smi --gpu-reset -i N, or drain and reboot the host",
    source=f"{_NVML}: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    real=False,
)
THROTTLED = declare(
    "gpu-throttled",
    ERROR,
    "a planned GPU's clocks are held down",
    read="NVML's clocks event reasons",
    why="one slow GPU slows every rank of the job",
    remedy="thermal: airflow and fans; power brake: power supply, PDU or BMC of the host",
    source=f"{_NVML}: nvmlClocksEventReasons",
    depends="error for hardware thermal slowdown and power brake, warning for other slowdowns; power cap is normal",
    real=False,
)
POWER = declare(
    "gpu-power-limited",
    WARNING,
    "the power limit of planned GPUs is below their default",
    read="NVML's power limit and its default",
    why="clocks fall under load",
    remedy="nvidia-smi -i N -pl WATTS as root, if nobody set it on purpose",
    source="nvidia-smi(1), --power-limit",
    depends="warning where GPUs of the job differ, information where all are limited alike",
    real=False,
)
CLOCKS = declare(
    "gpu-clock-differs",
    WARNING,
    "GPUs of like hosts have different highest clocks",
    read="NVML's maximum SM clock",
    why="the slowest GPU sets the pace of all ranks",
    remedy="nvidia-smi -q -d CLOCK; nvidia-smi -rgc as root undoes locked clocks",
    source="nvidia-smi(1), --reset-gpu-clocks",
    real=False,
)
PCIE = declare(
    "gpu-pcie-narrow",
    ERROR,
    "a planned GPU has fewer PCIe lanes than it could",
    read="NVML's current and maximum PCIe link width; the slot's own from sysfs",
    why="copies between host and GPU, and GPUs without NVLink, run at a fraction of the speed",
    remedy="reseat the card or riser, clean the contacts; compare with a like host: nvidia-smi -q -d PCIE",
    source=f"{_NVML}: nvmlDeviceGetCurrPcieLinkWidth; https://github.com/NVIDIA/nccl/issues/1453",
    depends="error where its like on this or another host has more lanes, warning where all have as few in a slot that"
    " has more, information where the slot is not shown (a guest)",
    real=False,
)
PERSISTENCE = declare(
    "gpu-persistence-off",
    INFO,
    "persistence mode is off",
    read="NVML's persistence mode",
    why="the first CUDA call of a job wakes each GPU: seconds per GPU",
    remedy="start nvidia-persistenced, or nvidia-smi -pm 1 as root",
    source="https://docs.nvidia.com/deploy/driver-persistence/",
    real=False,
)
XID = declare(
    "gpu-xid",
    ERROR,
    "the kernel log has a serious NVIDIA error about a planned GPU",
    read="/dev/kmsg since boot: NVRM: Xid",
    why="the hardware or driver failed since boot; without a reset it may fail again",
    remedy="drain the host and reset the GPU, or reboot",
    source="https://docs.nvidia.com/deploy/xid-errors/",
    depends="warning where the driver says that no recovery is needed; errors of programs are not judged",
    real=False,
)


NVSWITCH = declare(
    "nvswitch-error",
    ERROR,
    "an NVSwitch of the host had a fatal error",
    read="/dev/kmsg since boot: nvidia-nvswitch: SXid, Fatal",
    why="GPUs lose their NVLinks or CUDA fails until all GPUs and NVSwitches of the host were reset",
    remedy="end all jobs of that host, nvidia-smi --gpu-reset (all GPUs at once), and restart nvidia-fabricmanager; or"
    " reboot; have the host serviced if it comes back",
    source="Fabric Manager user guide, SXid errors; https://docs.nvidia.com/deploy/xid-errors/",
    depends="for several planned GPUs on a host; warning where the driver asks for no recovery of any of them",
    real=False,
)


@check(ECC, REMAP_PENDING, REMAP_FAILED, RECOVERY)
def gpu_memory_sound(host: str, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """The planned GPUs have no memory errors, and the driver asks for no recovery."""
    blind: dict[str, list[str]] = {}
    for gpu in job.gpus_of(host, gpus):
        name = label(gpu)
        if gpu.ecc_uncorrected_volatile:
            yield ECC.found(
                f"{name} had {gpu.ecc_uncorrected_volatile} uncorrectable memory errors since the driver was loaded",
                subject=name,
                observed=str(gpu.ecc_uncorrected_volatile),
                expected="0",
                remedy=_of(ECC.remedy, gpu),
            )
        if gpu.remap_pending:
            yield REMAP_PENDING.found(
                f"{name} has a memory row to be remapped", subject=name, remedy=_of(REMAP_PENDING.remedy, gpu)
            )
        if gpu.remap_failed:
            yield REMAP_FAILED.found(f"{name} could not remap a faulty memory row", subject=name)
        if gpu.recovery_action not in (None, "none"):
            yield RECOVERY.found(
                f"{name}: the driver asks for {gpu.recovery_action}", subject=name, remedy=_of(RECOVERY.remedy, gpu)
            )
        for what, value in (("ECC errors", gpu.ecc_uncorrected_volatile), ("row remapping", gpu.remap_pending)):
            if value is None:
                field = "ecc_uncorrected_volatile" if what == "ECC errors" else "remap_pending"
                blind.setdefault(f"{what}: {gpu.unread.get(field, 'not read')}", []).append(name)
    for reason, names in blind.items():
        yield unread(f"{reason} ({listed(names)})")


@check(ECC_OFF)
def ecc_alike(host: str, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """ECC is on for all planned GPUs of a host, or for none."""
    planned = job.gpus_of(host, gpus)
    off = [label(gpu) for gpu in planned if gpu.ecc_enabled is False]
    if off and any(gpu.ecc_enabled for gpu in planned):
        yield ECC_OFF.found(f"ECC is off on {listed(off)}", subject=listed(off))


_SLOW = {"hardware thermal": ERROR, "power brake": ERROR, "hardware slowdown": WARNING, "software thermal": WARNING}


@check(THROTTLED)
def gpu_clocks_free(host: str, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """No heat or power fault holds the planned GPUs' clocks down."""
    for gpu in job.gpus_of(host, gpus):
        reasons = [reason for reason in gpu.throttle_reasons if reason in _SLOW]
        if reasons:
            heat = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} °C"
            yield THROTTLED.found(
                f"{label(gpu)} is slowed by {listed(reasons)}{heat}",
                severity=max(_SLOW[reason] for reason in reasons),
                subject=label(gpu),
            )


@check(PCIE, PERSISTENCE)
def gpu_link_full(host: str, gpus: tuple[Gpu, ...], facts: HostFacts, job: Job) -> Results:
    """The planned GPUs have all the PCIe lanes that their slots have; persistence mode is on."""
    planned = job.gpus_of(host, gpus)
    devices = {device.address: device for device in facts.pci or ()}
    for gpu in planned:
        slot = pcie.slot(devices[gpu.pci].path, devices) if gpu.pci in devices else None
        most = min(filter(None, (gpu.pcie_width_max, slot.link_width_max if slot else None)), default=0)
        if gpu.pcie_width and gpu.pcie_width < most:
            others = max((one.pcie_width or 0 for one in gpus if one.name == gpu.name), default=0)
            yield PCIE.found(
                f"{label(gpu)} has {gpu.pcie_width} PCIe lanes of {most}",
                severity=ERROR if others > gpu.pcie_width else WARNING if slot else INFO,
                subject=label(gpu),
                observed=f"x{gpu.pcie_width}",
                expected=f"x{most}",
            )
    off = [label(gpu) for gpu in planned if gpu.persistence is False]
    if off:
        yield PERSISTENCE.found(f"persistence mode is off on {listed(off, 4)}", subject="persistence")


@fleet_check(PCIE)
def gpu_links_agree(gpus: Mapping[str, tuple[Gpu, ...]], groups: tuple[tuple[str, ...], ...], job: Job) -> Results:
    """GPUs of like hosts have equally many PCIe lanes."""
    lanes = {host: {gpu.pcie_width for gpu in job.gpus_of(host, there)} for host, there in gpus.items()}
    alike = {host: next(iter(widths)) for host, widths in lanes.items() if len(widths) == 1}
    most = max((width for width in alike.values() if width), default=0)
    for finding in differing(PCIE, alike, "PCIe lanes of each GPU:", groups=groups, subject="PCIe lanes"):
        if finding.host is None or (alike[finding.host] or 0) < most:
            yield finding


@fleet_check(POWER, CLOCKS)
def gpu_speed_agrees(gpus: Mapping[str, tuple[Gpu, ...]], groups: tuple[tuple[str, ...], ...], job: Job) -> Results:
    """GPUs of like hosts may use the same power and reach the same clocks."""
    planned = {host: job.gpus_of(host, there) for host, there in gpus.items()}
    limits = {host: _least([gpu.power_limit_w for gpu in there]) for host, there in planned.items()}
    yield from differing(POWER, limits, "power limit", groups=groups, shown=lambda watts: f"{watts:g} W")
    clocks = {host: _least([gpu.sm_clock_max_mhz for gpu in there]) for host, there in planned.items()}
    yield from differing(CLOCKS, clocks, "highest SM clock", groups=groups, shown=lambda mhz: f"{mhz:g} MHz")


@check(POWER)
def gpu_power_default(host: str, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """The planned GPUs' power limits are their defaults."""
    lowered = [
        gpu
        for gpu in job.gpus_of(host, gpus)
        if gpu.power_limit_w and gpu.power_limit_default_w and gpu.power_limit_w < gpu.power_limit_default_w
    ]
    if lowered:
        alike = len({gpu.power_limit_w for gpu in job.gpus_of(host, gpus)}) == 1
        first = lowered[0]
        yield POWER.found(
            f"{listed(label(gpu) for gpu in lowered)}: limited to {first.power_limit_w:g} W of"
            f" {first.power_limit_default_w:g} W",
            severity=INFO if alike else WARNING,
            subject=listed(label(gpu) for gpu in lowered),
        )


@check(XID, NVSWITCH)
def kernel_log_quiet(host: str, gpus: tuple[Gpu, ...], xids: tuple[Xid, ...], job: Job) -> Results:
    """The kernel log has no serious NVIDIA error about a planned GPU or its NVSwitches since boot."""
    planned = {gpu.pci: gpu for gpu in job.gpus_of(host, gpus)}
    yield from _nvswitches(list(planned.values()), xids)
    seen: dict[tuple[str, int], list[Xid]] = {}
    for one in xids:
        event = read_xid(one.text)
        harmless = one.nvswitch or (event is not None and event.stage is Stage.NOTE)
        if one.pci in planned and one.code in XIDS and XIDS[one.code].action in SERIOUS and not harmless:
            seen.setdefault((one.pci, one.code), []).append(one)
    for (pci, code), events in seen.items():
        last = read_xid(events[-1].text)
        gpu, xid = planned[pci], last.xid if last else XIDS[code]
        # `RST: No, D-RST: No` of a contained error: as recovery action none, in the words of drivers before 570
        spared = all("RST: No, D-RST: No" in event.text for event in events)
        well = (gpu.recovery_action == "none" or spared) and xid.action not in (Action.SERVICE, Action.REBOOT)
        times = f", {len(events)} times since boot" if len(events) > 1 else ""
        yield XID.found(
            f"{label(gpu)}: Xid {code}: {xid.meaning}{times}",
            severity=WARNING if well else ERROR,
            subject=label(gpu),
            remedy=xid.action.value.format(gpu=gpu.index),
            evidence=(events[-1].text,),
        )


def _nvswitches(planned: Sequence[Gpu], xids: tuple[Xid, ...]) -> Results:
    fatal = {(event.pci, event.code): one.text for one in xids if (event := read_sxid(one.text)) and event.fatal}
    well = all(gpu.recovery_action == "none" for gpu in planned)
    for (pci, code), text in fatal.items() if len(planned) > 1 else ():
        yield NVSWITCH.found(
            f"the NVSwitch {pci} had a fatal error, SXid {code}",
            severity=WARNING if well else ERROR,
            subject=f"NVSwitch {pci}",
            evidence=(text,),
        )


def _least(values: list[float | None] | list[int | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _of(remedy: str, gpu: Gpu) -> str:
    return remedy.replace("-i N", f"-i {gpu.index}")
