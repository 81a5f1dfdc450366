"""Which GPU is cuda:N, by CUDA_VISIBLE_DEVICES in all its forms."""

from __future__ import annotations

import pytest

from nvrun.facts import Gpu
from nvrun.topology.devices import visible

GPUS = (
    Gpu(index=0, uuid="GPU-1fe227cb-b22d", name="NVIDIA H200", pci="0000:00:06.0"),
    Gpu(index=1, uuid="GPU-8a90d1c2-77aa", name="NVIDIA H200", pci="0000:00:07.0"),
)
ONE, TWO = (gpu.uuid for gpu in GPUS)

# What cuInit and cuDeviceGetUuid gave on two H200 with driver 580.159: indices of the GPUs, in CUDA's order.
MEASURED: dict[str, list[int]] = {
    "": [],
    "0": [0],
    "1": [1],
    "1,0": [1, 0],
    "0,1": [0, 1],
    "0,0": [],
    "1,0,1": [],
    "0,5,1": [0],
    "5,0": [],
    "-1": [],
    "0,-1,1": [0],
    "1,-1,0": [1],
    " 1 , 0": [1, 0],
    "1 ,0": [1, 0],
    "0 1": [0],
    "1abc,0": [1, 0],
    "abc,0": [],
    "0,abc,1": [0],
    "+1,0": [1, 0],
    "01,0": [1, 0],
    "0x1,0": [],
    "1;0": [1],
    ",0": [],
    "0,,1": [0],
    "0,": [0],
    ONE: [0],
    f"{TWO},{ONE}": [1, 0],
    "GPU-8": [1],
    "GPU-8,GPU-1": [1, 0],
    "GPU-": [],
    "GPU-zzz": [],
    f"0,{TWO}": [0],
    f"{TWO},0": [1],
    f"0,{ONE}": [0],
    ONE.upper(): [0],
    TWO.removeprefix("GPU-"): [],
    "NoDevFiles": [],
    "MIG-abc": [],
    "0,GPU-8,junk": [0],
    f"{TWO} , {ONE}": [1],
    f" {TWO}": [],
}


@pytest.mark.parametrize(("value", "indices"), MEASURED.items())
def test_as_the_driver_reads_it(value: str, indices: list[int]) -> None:
    seen = visible(GPUS, {"CUDA_VISIBLE_DEVICES": value})
    assert [device.gpu.index for device in seen.devices if device.gpu] == indices
    assert bool(seen.findings) == (
        value not in ("", "0,", "-1", "NoDevFiles")
        and (len(value.rstrip(",").split(",")) > len(indices) or value in ("0 1", "1abc,0", "1;0"))
    )


@pytest.mark.parametrize("order", [{}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}])
def test_like_gpus_keep_pci_order(order: dict[str, str]) -> None:
    assert [device.uuid for device in visible(GPUS, order).devices] == [ONE, TWO]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0,9", "index 9 is beyond the 2 GPUs of this host; CUDA stops there and sees 1 device"),
        ("0,0", "0 names a device twice: CUDA does not start"),
        ("0-1", "CUDA reads '0-1' as 0: there are no ranges, and only commas between"),
        ("1;0", "CUDA reads '1;0' as 1: there are no ranges, and only commas between"),
        ("GPU-", "GPU- fits 2 devices of this host; CUDA stops there and sees 0 devices"),
        ("GPU-zzz", "GPU-zzz fits no device of this host; CUDA stops there and sees 0 devices"),
        (f"0,{TWO}", f"'{TWO}' is no index in a list of indices; CUDA stops there and sees 1 device"),
        (f"{TWO}, {ONE}", f"' {ONE}' is no UUID in a list of UUIDs; CUDA stops there and sees 1 device"),
    ],
)
def test_what_is_wrong_is_said(value: str, said: str) -> None:
    (finding,) = visible(GPUS, {"CUDA_VISIBLE_DEVICES": value}).findings
    assert finding.message == f"CUDA_VISIBLE_DEVICES={value}: {said}"
