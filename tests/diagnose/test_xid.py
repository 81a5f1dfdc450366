"""Xids in the forms of dmesg, journalctl and node agents."""

from __future__ import annotations

import pytest

from nvrun.diagnose.judge import diagnose
from nvrun.diagnose.rule import Stage
from nvrun.diagnose.scan import Source
from nvrun.diagnose.xid import XIDS, read_sxid, read_xid
from nvrun.model import Severity


@pytest.mark.parametrize(
    "line",
    [
        "[ 1234.567890] NVRM: Xid (PCI:0000:1B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "[Sun Nov 29 10:00:00 2026] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "Nov 29 10:00:00 gpu01 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.",
        "NVRM: Xid (0000:1b:00): 79",
        "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:1B:00 GPU-I:01 GPU-CI:02): 79, pid=9, name=a, GPU has fallen off the bus.",
    ],
)
def test_every_form_is_read(line: str) -> None:
    event = read_xid(line)
    assert event is not None
    assert (event.xid.code, event.pci, event.stage) == (79, "0000:1b:00", Stage.HARDWARE)


def test_the_bare_word_is_no_xid() -> None:
    assert read_xid("nfs: xid 79 timed out") is None
    assert diagnose([Source("dmesg", ["RPC: xid 1234: retransmit"])]) == []


def test_hardware_before_program_before_notes() -> None:
    lines = [
        "NVRM: Xid (PCI:0000:1b:00): 63, Row remapping event",
        "NVRM: Xid (PCI:0000:1b:00): 45, pid=7, name=python, Ch 00000008",
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python, MMU Fault",
        "NVRM: Xid (PCI:0000:4b:00): 48, DBE",
    ]
    findings = diagnose([Source("dmesg", lines, host="gpu01")])
    assert [finding.code for finding in findings] == ["xid-48", "xid-31", "xid-45", "xid-63"]
    assert findings[-1].severity is Severity.WARNING
    assert "0000:4b:00" in findings[0].remedy


def test_one_finding_for_each_gpu() -> None:
    lines = [f"NVRM: Xid (PCI:0000:{bus}:00): 79, GPU has fallen off the bus." for bus in ("1b", "4b", "1b")]
    findings = diagnose([Source("dmesg", lines, host="gpu01")])
    assert [finding.subject for finding in findings] == ["GPU 0000:1b:00", "GPU 0000:4b:00"]


@pytest.mark.parametrize(
    ("text", "stage"), [("SAW_MVB Nonfatal XC0", Stage.NOTE), ("RLW_REMAP Fatal XC0", Stage.HARDWARE)]
)
def test_the_driver_says_how_bad_an_nvlink_error_is(text: str, stage: Stage) -> None:
    event = read_xid(f"NVRM: Xid (PCI:0000:01:00): 145, {text} i0 Link 00 (0x1 0x2)")
    assert event is not None
    assert event.stage is stage


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("137, NVLink FLA privileged error", Stage.PROGRAM),
        ("39, pid=7, name=python, CCMDs 00000000 0000c8b5", Stage.PROGRAM),
        ("106, SMBPBI Test Message", Stage.NOTE),
        ("163, Power Smoothing HW Circuitry capability disengaged", Stage.NOTE),
        ("171, Uncorrectable DRAM Error", Stage.HARDWARE),
    ],
)
def test_what_nvidias_catalogue_says_of_a_code_holds(line: str, stage: Stage) -> None:
    """Resolution buckets: RESTART_APP, IGNORE, RESET_GPU."""
    event = read_xid(f"NVRM: Xid (PCI:0000:01:00): {line}")
    assert event is not None
    assert event.stage is stage


def test_a_recovery_action_that_is_a_reboot_asks_for_one() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    event = read_xid(f"NVRM: Xid (PCI:0000:01:00): 154, {text}")
    assert event is not None
    assert "Reboot" in event.xid.action.value


def test_an_unknown_code_is_shown_as_unknown() -> None:
    event = read_xid("NVRM: Xid (PCI:0000:01:00): 999, what")
    assert event is not None
    assert "not in the table" in event.xid.meaning


def test_nvswitch_errors() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    event = read_sxid(line)
    assert event is not None
    assert (event.code, event.fatal) == (20034, True)
    (finding,) = diagnose([Source("dmesg", [line])])
    assert finding.code == "sxid-20034"
    quiet = read_sxid(line.replace("Fatal", "Non-fatal"))
    assert quiet is not None
    assert not quiet.fatal


def test_the_table_has_each_code_once() -> None:
    assert len(XIDS) > 40
    assert all(xid.meaning and xid.action.value for xid in XIDS.values())


@pytest.mark.parametrize(
    ("action", "stage"), [("0x1 (GPU Reset Required)", Stage.HARDWARE), ("0x0 (None)", Stage.NOTE)]
)
def test_a_changed_recovery_action_is_read(action: str, stage: Stage) -> None:
    event = read_xid(f"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to {action}")
    assert event is not None
    assert event.stage is stage


def test_a_channel_ended_by_an_earlier_xid_names_that() -> None:
    line = "NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 145"
    (finding,) = diagnose([Source("dmesg", [line])])
    assert finding.code == "xid-45"
    assert "caused by Xid 145 (NVLink error (RLW))" in finding.message
    assert "nvlink" in finding.remedy
