"""The catalogue's data is well formed, and the parsers read text as NCCL does."""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.errors import UsageError
from nvrun.nccl import catalogue, parse


@pytest.mark.parametrize("row", catalogue.variables().values(), ids=lambda row: row.name)
def test_row_is_well_formed(row: catalogue.Variable) -> None:
    assert row.type in get_args(catalogue.Type)
    assert row.reads in get_args(catalogue.Reads)
    assert (row.reads == "none") <= (row.owner in ("nobody", "ncclx"))
    assert row.low is None or row.high is None or row.low <= row.high
    assert bool(row.choices) == (row.reads in ("word", "exact", "list", "level", "algorithms", "cta-policy", "netdevs"))
    assert set(row.choice_since) <= set(row.choices)
    assert row.type != "size" or row.unit == "bytes"
    if row.owner == "nccl":
        assert row.since, "every NCCL variable has a first release"
    if row.since and row.until:
        assert parse.version(row.since) <= parse.version(row.until)
    if row.replacement and row.replacement != "OFI_NCCL_*":
        assert catalogue.variables()[row.replacement].owner != "nobody"
    assert row.note == row.note.strip()
    assert catalogue.explain(row.name)


def test_rows_travel_as_json() -> None:
    rows = tuple(catalogue.variables().values())
    assert msgspec.json.decode(msgspec.json.encode(rows), type=tuple[catalogue.Variable, ...]) == rows


def test_the_names_a_user_meets() -> None:
    owners = {
        "NCCL_BUFFSIZE": "nccl",
        "NCCL_NVLS_PATH": "nobody",
        "NCCL_ALLREDUCE_ALGO": "ncclx",
        "NCCL_BLOCKING_WAIT": "torch",
        "NCCL_GPUDIRECTTCPX_CTRL_DEV": "google",
        "NCCL_FASTRAK_NUM_FLOWS": "google",
        "NCCL_PLUGIN_P2P": "hpcx",
        "NCCL_SHARP_DISABLE": "hpcx",
        "OFI_NCCL_PROTOCOL": "aws-ofi-nccl",
        "OFI_NCCL_SOMETHING_NEW": "aws-ofi-nccl",
        "FI_EFA_FORK_SAFE": "libfabric",
        "NCCL_VERSION": "container",
        "NCCL_HOME": "build",
        "NVSHMEM_DISABLE_NVLS": "nvshmem",
        "HOROVOD_FUSION_THRESHOLD": "horovod",
    }
    for name, owner in owners.items():
        row = catalogue.find(name)
        assert row is not None, name
        assert row.owner == owner, name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("NCCL_BUFSIZE", "NCCL_BUFFSIZE"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
        ("NCCL_MAX_CHANELS", "NCCL_MAX_NCHANNELS"),
        ("NCCL_ZZZZZZZZZZ", None),
    ],
)
def test_nearest(wrong: str, right: str | None) -> None:
    assert catalogue.nearest(wrong) == right


def test_explain() -> None:
    text = catalogue.explain("NCCL_BUFFSIZE")
    assert "size, in bytes" in text
    assert "4194304" in text
    assert "strtoll" in text
    assert "nobody" in catalogue.explain("NCCL_NVLS_PATH")
    with pytest.raises(UsageError) as error:
        catalogue.explain("NCCL_BUFSIZE")
    assert "NCCL_BUFFSIZE" in error.value.hint


def test_what_a_release_reads() -> None:
    ras, copies = (catalogue.variables()[name] for name in ("NCCL_RAS_ENABLE", "NCCL_SHM_USE_CUDA_MEMCPY"))
    assert [catalogue.reads_at(ras, version) for version in ((2, 19, 3), (2, 30, 7))] == [False, True]
    assert [catalogue.reads_at(copies, version) for version in ((2, 19, 3), (2, 30, 7))] == [True, False]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("NCCL_BUFFSIZE", "4MiB", "4194304"),
        ("NCCL_BUFFSIZE", "256 KiB", "262144"),
        ("NCCL_BUFFSIZE", "4M", "4194304"),
        ("NCCL_BUFFSIZE", "0.5M", "524288"),
        ("NCCL_BUFFSIZE", "8388608", "8388608"),
        ("HOROVOD_FUSION_THRESHOLD", "64MiB", "67108864"),
        ("NCCL_IB_HCA", "4M", "4M"),
        ("NCCL_SOCKET_NTHREADS", "4", "4"),
    ],
)
def test_native_units(name: str, text: str, value: str) -> None:
    assert catalogue.native(name, text) == value


@pytest.mark.parametrize("text", ["4 apples", "0.3 B", "MiB", "", "true"])
def test_native_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        catalogue.native("NCCL_BUFFSIZE", text)


def _libc_strtoll(text: str) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.strtoll.restype = ctypes.c_longlong
    ctypes.set_errno(0)
    number = int(libc.strtoll(text.encode(), None, 0))
    return None if ctypes.get_errno() == 34 else number  # ERANGE


_NUMBERISH = st.text("0123456789abfxX+-kKMGe.,_ \t", max_size=24)


@given(_NUMBERISH | st.integers(-(1 << 65), 1 << 65).map(str) | st.integers(0, 1 << 65).map(hex))
def test_strtoll_is_the_c_library_s(text: str) -> None:
    assert parse.strtoll(text) == _libc_strtoll(text)


@pytest.mark.parametrize(
    ("text", "read", "meant"),
    [
        ("4M", 4, 4 << 20),
        ("256K", 256, 256 << 10),
        ("256KiB", 256, 256 << 10),
        ("1 MB", 1, 1 << 20),
        ("8,388,608", 8, 8388608),
        ("1e6", 1, 1000000),
        ("010", 8, 10),
        ("0x10", 16, 16),
        ("true", 0, 1),
        ("no", 0, 0),
        (" 8 ", 8, 8),
        ("4194304.0", 4194304, 4194304),
        ('"4"', 0, 4),
        ("99999999999999999999", None, 99999999999999999999),
        ("fast", 0, None),
    ],
)
def test_what_is_read_and_what_was_meant(text: str, read: int | None, meant: int | None) -> None:
    assert parse.strtoll(text) == read
    assert parse.meant(text) == meant


@given(st.integers(-(1 << 62), 1 << 62))
def test_a_plain_number_is_what_it_says(number: int) -> None:
    assert parse.is_plain(str(number))
    assert parse.strtoll(str(number)) == number == parse.meant(str(number))


@pytest.mark.parametrize(
    ("text", "device", "taken"),
    [
        ("mlx5_1", "mlx5_10", True),
        ("=mlx5_1", "mlx5_10", False),
        ("^mlx5_1", "mlx5_10", False),
        ("^=mlx5_1", "mlx5_10", True),
        ("^mlx5_0,^mlx5_1", "mlx5_1", True),
        ("=^mlx5_1", "mlx5_1", False),
        ("mlx5_0, mlx5_1", "mlx5_1", False),
        ("mlx5_0:1,,mlx5_3:1", "mlx5_3", True),
    ],
)
def test_device_lists(text: str, device: str, taken: bool) -> None:
    assert parse.device_list(text).takes(device) is taken


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("mlx5_1", {"mlx5_1", "mlx5_10"}),
        ("=mlx5_1", {"mlx5_1"}),
        ("=mlx5_1:1,mlx5_10:2", {"mlx5_1"}),
        ("^mlx5_1", {"mlx5_2"}),
        ("^=mlx5_1:2", {"mlx5_1", "mlx5_2", "mlx5_10"}),
        ("^=mlx5_1", {"mlx5_2", "mlx5_10"}),
        ("mlx5_1:1x,mlx5_2:port1", {"mlx5_1", "mlx5_10"}),
    ],
)
def test_the_first_ports_that_a_list_takes(text: str, taken: set[str]) -> None:
    listed = parse.device_list(text)
    assert {device for device in ("mlx5_1", "mlx5_2", "mlx5_10") if listed.takes(device, 1)} == taken


def test_path_levels() -> None:
    names = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
    levels = {text: parse.path_level(text, names) for text in ("PXB", "pxb", "0", "2", "5", "-1", "NET")}
    assert levels == {"PXB": "PXB", "pxb": None, "0": "LOC", "2": "PXB", "5": "SYS", "-1": None, "NET": None}


def test_conf_lines_trim_nothing() -> None:
    text = "# comment\nNCCL_DEBUG=INFO\nNCCL_ALGO =Ring\n #NCCL_X=1\n\nnonsense\nA=b=c\n"
    assert list(parse.conf_lines(text)) == [
        (2, "NCCL_DEBUG", "INFO"),
        (3, "NCCL_ALGO ", "Ring"),
        (4, " #NCCL_X", "1"),
        (7, "A", "b=c"),
    ]


def test_versions() -> None:
    assert parse.version("2.27.5+cuda12.9") == (2, 27, 5)
    assert parse.version("unknown") == ()
