"""NVIDIA's Xid and SXid codes: what the driver writes into the kernel log about a GPU or an NVSwitch.

The table follows NVIDIA's public Xid catalogue; the action classes those of the cloud operators who act on them (where
they disagree, as on 48 and 74, the harder one). A code that is not in it is shown as unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from nvrun.diagnose.rule import Stage


class Action(Enum):
    """What is to be done about an Xid; the value is the line for the user."""

    SERVICE = "Take the host out and have it serviced"
    REBOOT = "Reboot the host; have the GPU replaced if it comes back"
    RESET = "Drain the host and reset the GPU: nvidia-smi --gpu-reset -i {gpu} (or reboot)"
    LINK = "nvidia-smi nvlink -s and -e on that host; reset the GPUs together; service the link if it comes back"
    PROGRAM = "Look at the program first: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer; other jobs on this GPU run on"
    WATCH = "Nothing now; keep count, and reset the GPU when the host is free"
    UPDATE = "Update driver and firmware, or check how the VM or the licence is set up"


@dataclass(frozen=True, slots=True)
class Xid:
    """One code."""

    code: int
    meaning: str
    action: Action

    @property
    def stage(self) -> Stage:
        if self.code == 45:
            return Stage.CONSEQUENCE
        if self.action is Action.PROGRAM:
            return Stage.PROGRAM
        return Stage.NOTE if self.action is Action.WATCH else Stage.HARDWARE


_TABLE: tuple[tuple[int, str, Action], ...] = (
    (8, "a kernel did not end in time (GPU stopped processing)", Action.PROGRAM),
    (11, "invalid or corrupted push buffer stream", Action.PROGRAM),
    (13, "graphics engine exception: the program's kernel made an illegal access or instruction", Action.PROGRAM),
    (25, "invalid push buffer stream", Action.PROGRAM),
    (31, "memory page fault: the program's kernel used an address that is not mapped", Action.PROGRAM),
    (32, "invalid or corrupted push buffer stream", Action.PROGRAM),
    (37, "driver firmware error", Action.WATCH),
    (38, "driver firmware error", Action.UPDATE),
    (
        43,
        "the GPU stopped processing this program's channel (a fault of the program, most often after 13 or 31)",
        Action.PROGRAM,
    ),
    (44, "graphics engine fault during context switch", Action.RESET),
    (45, "channels were removed because the program ended or failed earlier", Action.PROGRAM),
    (46, "the GPU stopped processing", Action.RESET),
    (48, "double-bit ECC error (uncorrectable GPU memory error)", Action.RESET),
    (54, "auxiliary power is not connected to the GPU", Action.SERVICE),
    (56, "display engine error", Action.RESET),
    (57, "error programming the video memory interface", Action.SERVICE),
    (58, "unstable video memory interface", Action.SERVICE),
    (60, "video processor exception", Action.PROGRAM),
    (61, "internal microcontroller breakpoint", Action.RESET),
    (62, "internal microcontroller halt", Action.RESET),
    (63, "a faulty memory row was remapped (or a page retired): works after the next GPU reset", Action.WATCH),
    (64, "a faulty memory row could not be remapped", Action.RESET),
    (66, "illegal access by the driver", Action.WATCH),
    (67, "illegal access by the driver", Action.WATCH),
    (68, "video processor exception", Action.PROGRAM),
    (69, "graphics engine class error", Action.PROGRAM),
    (73, "encoder error", Action.PROGRAM),
    (74, "NVLink error", Action.LINK),
    (78, "the virtual GPU could not be started", Action.UPDATE),
    (79, "the GPU has fallen off the PCIe bus", Action.REBOOT),
    (80, "corrupted data sent to the GPU", Action.RESET),
    (81, "VGA subsystem error", Action.SERVICE),
    (92, "high rate of corrected (single-bit) ECC errors", Action.WATCH),
    (93, "the information ROM is written too often", Action.WATCH),
    (94, "contained ECC error: an uncorrectable memory error ended only the program that used it", Action.RESET),
    (95, "uncontained ECC error: an uncorrectable memory error that may have reached every program", Action.RESET),
    (106, "test message of the board's management", Action.WATCH),
    (107, "test message of the board's management", Action.WATCH),
    (109, "context switch timeout", Action.RESET),
    (110, "security fault", Action.RESET),
    (119, "the GPU's system processor (GSP) does not answer: RPC timeout", Action.RESET),
    (120, "error of the GPU's system processor (GSP)", Action.RESET),
    (121, "corrected error on the chip-to-chip link (C2C)", Action.WATCH),
    (122, "SPI read failure of the power management unit", Action.RESET),
    (123, "SPI write failure of the power management unit", Action.RESET),
    (136, "NVLink training failed (ALI)", Action.LINK),
    (137, "NVLink: a kernel used an address of a peer GPU's memory that is not mapped", Action.PROGRAM),
    (140, "unrecovered ECC error", Action.RESET),
    (141, "error in a fast path of CUDA", Action.WATCH),
    (142, "encoder error", Action.PROGRAM),
    (143, "the GPU could not be initialised", Action.RESET),
    (144, "NVLink error (SAW)", Action.LINK),
    (145, "NVLink error (RLW)", Action.LINK),
    (146, "NVLink error (TLW)", Action.LINK),
    (147, "NVLink error (TREX)", Action.LINK),
    (148, "NVLink error (NVLPW_CTRL)", Action.LINK),
    (149, "NVLink error (NETIR)", Action.LINK),
    (150, "NVLink error (MSE)", Action.LINK),
    (151, "key rotation error", Action.REBOOT),
    (154, "the recovery action of the GPU changed", Action.RESET),
    (155, "NVLink software-defined error", Action.RESET),
    (156, "a resource was retired", Action.RESET),
    (157, "a resource could not be retired", Action.WATCH),
    (158, "a fatal timeout of the GPU", Action.RESET),
    (160, "a memory channel was retired", Action.WATCH),
    (161, "a memory channel could not be retired", Action.WATCH),
    (162, "power smoothing works again", Action.WATCH),
    (163, "power smoothing does not work", Action.WATCH),
    (164, "power smoothing is near the end of its life", Action.WATCH),
    (165, "power smoothing is worn out", Action.WATCH),
    (167, "a fatal timeout of the GPU on PCIe", Action.RESET),
    (168, "memory errors in the region kept for the firmware", Action.REBOOT),
    (169, "halt of the security microcontroller", Action.RESET),
    (171, "uncorrectable error in the GPU's memory (beside 48)", Action.RESET),
    (172, "uncorrectable error in the GPU's caches (beside 48)", Action.RESET),
    *((code, "copy engine exception", Action.PROGRAM) for code in (39, 40, 41, 70, 71, 72, 75, 76, 77, 85)),
    *((code, "copy engine exception", Action.PROGRAM) for code in range(126, 136)),
    *((code, "video decoder error", Action.PROGRAM) for code in (83, 84, 88, 89, 96, 97, 98)),
    *((code, "JPEG decoder error", Action.PROGRAM) for code in (82, *range(99, 106))),
    *((code, "error of the optical flow engine", Action.PROGRAM) for code in (86, 139)),
)
SERIOUS = (Action.SERVICE, Action.REBOOT, Action.RESET, Action.LINK)
"""Classes that are no program's doing."""
XIDS = {code: Xid(code, meaning, action) for code, meaning, action in _TABLE}

_LINE = re.compile(r"\bXid \((?P<pci>[^)]*)\): (?P<code>\d+)(?:, (?P<text>.*))?")
_SXID = re.compile(r"\bSXid \((?P<pci>[^)]*)\): (?P<code>\d+)(?:, (?P<text>.*))?")


class XidEvent(NamedTuple):
    """One Xid line of a kernel log."""

    xid: Xid
    pci: str
    """As the driver writes it, without the leading `PCI:` and MIG's instances; `unknown` where there is none."""
    text: str
    stage: Stage


def read_xid(line: str) -> XidEvent | None:
    """The Xid in a line of dmesg, journalctl or a node agent; None where there is none."""
    found = _LINE.search(line)
    if found is None:
        return None
    code = int(found["code"])
    xid = XIDS.get(code, Xid(code, "not in the table of known codes", Action.RESET))
    text = found["text"] or ""
    stage = xid.stage
    if previous := re.search(r"caused by previous Xid (\d+)", text):
        cause = XIDS.get(int(previous[1]))
        meaning = f"caused by Xid {previous[1]}" + (f" ({cause.meaning})" if cause else "")
        xid = Xid(code, f"{xid.meaning}; {meaning}", cause.action if cause else xid.action)
    if code == 154 and "Reboot" in text:
        xid = Xid(code, xid.meaning, Action.REBOOT)
    # NVLink 5 (144 to 150) and 154 say in words how bad it is.
    if re.search(r"\bNon-?fatal\b|\bto 0x0 \(None\)", text, re.IGNORECASE):
        stage = Stage.NOTE
    address, _, _ = found["pci"].removeprefix("PCI:").partition(" ")
    return XidEvent(xid, address.lower() or "unknown", text, stage)


class SxidEvent(NamedTuple):
    """One SXid line: an NVSwitch about itself."""

    code: int
    pci: str
    fatal: bool


def read_sxid(line: str) -> SxidEvent | None:
    """The SXid in a line; None where there is none. The driver writes `Fatal` or `Non-fatal` into the line."""
    found = _SXID.search(line)
    if found is None:
        return None
    text = found["text"] or ""
    fatal = re.search(r"(?<!Non-)(?<!Non)\bFatal\b", text) is not None
    return SxidEvent(int(found["code"]), found["pci"].removeprefix("PCI:").lower(), fatal)
