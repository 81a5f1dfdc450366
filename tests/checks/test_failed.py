"""Which hosts count as failed after a job: from recorded machines, as they were and as they are afterwards."""

from __future__ import annotations

import pytest

from nvrun.checks import CODES, Job
from nvrun.checks.failed import HOST_FAILED, failed
from nvrun.diagnose.scan import RULES
from nvrun.facts import HostFacts, Xid
from nvrun.meanings import MEANINGS
from nvrun.model import RankEnd
from tests.checks.fleets import Change, fleet, gpu, judge, port, section, with_

BEFORE = fleet("h100x8", 2)
JOB = Job(
    hosts=("n01", "n02"),
    ranks={"n01": 8, "n02": 4},
    gpus={
        host: tuple(gpu.uuid for gpu in known.gpus or ())[: 8 if host == "n01" else 4] for host, known in BEFORE.items()
    },
    interfaces={"n01": "eno1", "n02": "eno1"},
)
"""Half of n02's GPUs are another job's."""


def after(change: Change) -> str | None:
    """The code by which n02 counts as failed once it has changed so; n01 never may."""
    now = {**BEFORE, "n02": change(BEFORE["n02"])}
    found = failed(BEFORE, now, JOB, judge(BEFORE, JOB).findings)
    assert set(found) <= {"n02"}, found
    return found["n02"].code if found else None


def xid(code: int, text: str = "pid=1, some words", gpu: int = 2) -> Change:
    pci = (BEFORE["n02"].gpus or ())[gpu].pci
    line = f"NVRM: Xid (PCI:{pci.removesuffix('.0')}): {code}, {text}"
    return lambda known: with_(known, xids=(*(known.xids or ()), Xid(code=code, pci=pci, at=2.0, text=line)))


def without_gpu(number: int) -> Change:
    return lambda known: with_(known, gpus=tuple(each for each in known.gpus or () if each.index != number))


def links_down(known: HostFacts) -> HostFacts:
    assert known.gpus
    return gpu(1, nvlinks=tuple(with_(link, active=False) for link in known.gpus[1].nvlinks))(known)


def interface_down(known: HostFacts) -> HostFacts:
    assert known.network
    interfaces = tuple(with_(each, up=each.up and each.name != "eno1") for each in known.network.interfaces)
    return section("network", interfaces=interfaces)(known)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda known: known, None),
        (without_gpu(2), "gpu-lost"),
        (without_gpu(6), "gpu-off-bus"),  # of another job, but the bus is the host's
        (lambda known: without_gpu(2)(xid(79)(known)), "gpu-lost"),
        (lambda known: with_(known, gpus=None, missing={"gpus": "no answer in 10 s"}), "gpu-driver-fails"),
        (gpu(0, ecc_uncorrected_volatile=1), "gpu-ecc-errors"),
        (gpu(7, ecc_uncorrected_volatile=1), None),
        (gpu(0, remap_failed=True), "gpu-remap-failed"),
        (gpu(0, recovery_action="reset"), "gpu-recovery-needed"),
        (gpu(0, power_limit_w=100.0), None),
        (gpu(0, memory_used=40 << 30), None),
        (links_down, "nvlink-down"),
        (port("mlx5_0", state="DOWN"), "rdma-port-down"),
        (interface_down, "interface-down"),
        (lambda known: with_(known, gpus=None, gpus_on_pci=None), None),  # unknown is not bad
    ],
)
def test_what_changed(change: Change, code: str | None) -> None:
    assert after(change) == code


@pytest.mark.parametrize(
    ("codes", "bad"),
    [
        ("54 57 58 79 151 168", True),  # service and reboot
        ("46 48 61 62 64 94 95 109 110 119 120 136 140 143 155 156 158", True),  # reset
        ("74 144 145 146 147 148 149 150", True),  # NVLink
        ("8 13 31 32 43 45 63 68 92 121", False),  # the program's, or to be watched
        ("9999", False),
    ],
)
def test_classes_of_xids(codes: str, bad: bool) -> None:
    found = {code: after(xid(code)) for code in map(int, codes.split())}
    assert set(found.values()) == {"gpu-xid" if bad else None}, found


def test_which_xids_count() -> None:
    assert after(xid(48, gpu=6)) is None, "of a GPU that is not the job's"
    assert after(xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")) is None
    assert after(xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")) == "gpu-xid"
    old = {**BEFORE, "n02": xid(48)(BEFORE["n02"])}
    known = judge(old, JOB).findings
    assert failed(old, old, JOB, known) == {}, "it was there before the launch, and waived"
    again = {**old, "n02": xid(48)(old["n02"])}
    assert set(failed(old, again, JOB, known)) == {"n02"}
    assert failed(old, {"n01": old["n01"]}, JOB, known) == {}, "a host that does not answer is not known to be bad"


@pytest.mark.parametrize(
    ("line", "by_nvrun", "code"),
    [
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", False, "gpu-ecc"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", True, None),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", False, "nvlink-error"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", False, None),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", False, None),
        (
            "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
            False,
            None,
        ),
        ("ValueError: a fault of the script", False, None),
    ],
)
def test_a_ranks_own_words(line: str, by_nvrun: bool, code: str | None) -> None:
    end = RankEnd(rank=9, host="n02", local_rank=1, pid=7, code=1, by_nvrun=by_nvrun, tail=(line,))
    found = failed(BEFORE, BEFORE, JOB, judge(BEFORE, JOB).findings, [end])
    assert [finding.code for finding in found.values()] == ([code] if code else [])


def test_every_code_of_the_table_exists() -> None:
    assert set(HOST_FAILED) <= {*CODES, *MEANINGS, *(rule.code for rule in RULES)}


def test_no_code_is_declared_twice() -> None:
    assert not CODES.keys() & MEANINGS.keys()
