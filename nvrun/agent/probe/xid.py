"""NVIDIA's errors in the kernel log since boot."""

from __future__ import annotations

import os
import re
from typing import Any

from .. import denied
from .child import UnreadError
from .tree import Tree

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)(?: GPU-I:\w+)?(?: GPU-CI:\w+)?\): (\d+)")
"""The driver's own line; the bare word Xid also stands in other modules' lines. With MIG the GPU's and the compute
instance follow the address, and old drivers write the address alone."""
SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")
"""An NVSwitch's own error."""


def xids(tree: Tree) -> list[dict[str, Any]]:
    """The `Xid`s of GPUs and NVSwitches, oldest first. Raises UnreadError where the kernel log may not be read."""
    boot = re.search(r"^btime (\d+)$", tree.text("/proc/stat") or "", re.MULTILINE)
    found = []
    for record in records(tree.path("/dev/kmsg"), b"Xid"):
        match, nvswitch = XID.search(record), SXID.search(record)
        if match or nvswitch:
            found.append(_xid(record, match or nvswitch, int(boot[1]) if boot else None, nvswitch=match is None))
    return found


def _xid(record: str, match: Any, boot: int | None, *, nvswitch: bool) -> dict[str, Any]:
    """A record is `priority,sequence,microseconds since boot,flags;text`."""
    head, _, text = record.partition(";")
    fields = head.split(",")
    since_boot = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdigit() else None
    at = boot + since_boot if boot is not None and since_boot is not None else None
    # The driver leaves the function out: `PCI:0000:1b:00`.
    address = match[1].lower() if "." in match[1] else match[1].lower() + ".0"
    line = text.splitlines()[0][:300]
    return {"code": int(match[2]), "pci": address, "at": at, "text": line, "nvswitch": nvswitch}


def records(path: str, word: bytes) -> list[str]:
    """Those of all that the kernel holds now that have the word in them; the device gives one a read and would wait for
    more. Raises UnreadError."""
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise UnreadError(denied.KERNEL_LOG) from None
    except OSError as error:
        raise UnreadError(f"{path}: {error.strerror}") from None
    found: list[str] = []
    try:
        while True:
            try:
                data = os.read(log, 1 << 16)
            except BlockingIOError:
                return found
            except BrokenPipeError:  # overwritten while we read: the next read goes on behind the gap
                continue
            if not data:
                return found
            if word in data:  # most have not, and there are thousands
                found.extend(data.decode("utf-8", "replace").splitlines())
    finally:
        os.close(log)
