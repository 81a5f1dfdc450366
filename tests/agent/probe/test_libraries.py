"""Which libnccl would be loaded, over shared objects that hold nothing but what the loader reads."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest

from nvrun.agent.probe import elf, libraries

DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 1, 5, 15, 29


def shared_object(path: Path, *, needed: str = "", rpath: str = "", runpath: str = "", constants: bytes = b"") -> Path:
    """The smallest ELF file with a dynamic section and a section .rodata."""
    strings, tags = b"\0", []
    for tag, text in ((DT_NEEDED, needed), (DT_RPATH, rpath), (DT_RUNPATH, runpath)):
        if text:
            tags.append((tag, len(strings)))
            strings += text.encode() + b"\0"
    names = b"\0.rodata\0.shstrtab\0"
    base, headers = 0x1000, 64 + 2 * 56
    dynamic_at = headers
    dynamic_size = 16 * (len(tags) + 2)
    strings_at = dynamic_at + dynamic_size
    constants_at, names_at = strings_at + len(strings), strings_at + len(strings) + len(constants)
    sections_at = names_at + len(names)
    tags += [(DT_STRTAB, base + strings_at), (0, 0)]
    data = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 2, 64, 3, 2
    )
    data += struct.pack("<IIQQQQQQ", 1, 4, 0, base, base, sections_at, sections_at, 4096)
    data += struct.pack("<IIQQQQQQ", 2, 4, dynamic_at, base + dynamic_at, 0, dynamic_size, dynamic_size, 8)
    data += b"".join(struct.pack("<qQ", *tag) for tag in tags) + strings + constants + names
    data += bytes(64)
    data += struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, constants_at, len(constants), 0, 0, 1, 0)
    data += struct.pack("<IIQQQQIIQQ", 9, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """site-packages with a CUDA torch as its wheels are built: RPATH leads to the nccl wheel."""
    site = tmp_path / "site-packages"
    rpath = "$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"
    shared_object(site / "torch/lib/libtorch_cuda.so", needed="libnccl.so.2", rpath=rpath)
    nccl_library(site / "nvidia/nccl/lib/libnccl.so.2", "2.26.2")
    (site / "nvidia_nccl_cu12-2.26.2.post1.dist-info").mkdir()
    return site


def nccl_library(path: Path, version: str) -> Path:
    """The banner stands behind a megabyte of other constants, across the border of what is read at a time."""
    return shared_object(
        path, constants=b"x" * ((1 << 20) - 9) + f"NCCL version {version}+cuda12.4\0".encode() + b"y" * 50
    )


def find(site: Path, **env: str) -> tuple[str | None, str | None, str | None]:
    found = libraries.nccl(str(site / "torch"), env, [str(site)])
    return found["nccl"], found["nccl_from"], found["nccl_version_from"]


def test_the_wheels_own(site: Path) -> None:
    assert find(site) == ("2.26.2", "wheel", "binary")
    assert libraries.nccl(str(site / "torch"), {}, [])["nccl_path"] == str(site / "nvidia/nccl/lib/libnccl.so.2")


def test_rpath_beats_ld_library_path_and_runpath_does_not(site: Path, tmp_path: Path) -> None:
    nccl_library(tmp_path / "old/libnccl.so.2", "2.18.5")
    path = f"/nowhere:{tmp_path}/old"
    assert find(site, LD_LIBRARY_PATH=path) == ("2.26.2", "wheel", "binary")
    shared_object(
        site / "torch/lib/libtorch_cuda.so", needed="libnccl.so.2", runpath="$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"
    )
    assert find(site, LD_LIBRARY_PATH=path) == ("2.18.5", "LD_LIBRARY_PATH", "binary")
    assert find(site, LD_LIBRARY_PATH="/nowhere") == ("2.26.2", "wheel", "binary")


def test_ld_preload_beats_all(site: Path, tmp_path: Path) -> None:
    mine = nccl_library(tmp_path / "libnccl.so.2.30.7", "2.30.7")
    assert find(site, LD_PRELOAD=f"/usr/lib/libjemalloc.so.2 {mine}") == ("2.30.7", "LD_PRELOAD", "binary")


def test_without_a_banner_the_name_and_the_wheel_tell(site: Path, tmp_path: Path) -> None:
    library = site / "nvidia/nccl/lib/libnccl.so.2"
    library.write_bytes(b"not an ELF file")
    assert find(site) == ("2.26.2.post1", "wheel", "wheel")
    library.unlink()
    library.symlink_to(shared_object(tmp_path / "libnccl.so.2.21.5"))
    assert find(site) == ("2.21.5", "wheel", "file name")


def test_built_in_and_cpu_builds(site: Path) -> None:
    shared_object(site / "torch/lib/libtorch_cuda.so", needed="libcudart.so.12")
    assert find(site) == (None, "built into torch", None)
    (site / "torch/lib/libtorch_cuda.so").unlink()
    assert find(site) == (None, None, None)


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(58), b"\x7fELF\x02\x01" + b"\xff" * 58]
)
def test_broken_files_are_no_faults(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(content)
    assert libraries.nccl_version(str(tmp_path / "libnccl.so.2"), []) == (None, None)


def test_net_plugins(tmp_path: Path) -> None:
    for name in ("libnccl-net.so", "libnccl-net-ofi.so.0", "libnccl-tuner.so", "libnccl-networks.txt"):
        (tmp_path / name).touch()
    found = libraries.net_plugins({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"})
    assert found[:2] == [f"{tmp_path}/libnccl-net-ofi.so.0", f"{tmp_path}/libnccl-net.so"]
    named = libraries.net_plugins({"NCCL_NET_PLUGIN": f"{tmp_path}/libnccl-tuner.so"})
    assert named[0] == f"{tmp_path}/libnccl-tuner.so"


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_a_real_library_as_readelf_reads_it() -> None:
    torch = Path(sysconfig.get_paths()["purelib"]) / "torch/lib/libtorch_python.so"
    if not torch.exists():
        pytest.skip("torch is not installed")
    text = subprocess.run(["readelf", "-d", torch], capture_output=True, text=True, check=True).stdout
    needed = [line.partition("[")[2].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
    assert list(elf.dynamic(str(torch)).needed) == needed


@pytest.mark.skipif(shutil.which("ldconfig") is None, reason="ldconfig is not installed")
def test_the_loaders_cache_as_ldconfig_prints_it() -> None:
    lines = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    pairs = [(line.split()[0], line.rpartition("=> ")[2]) for line in lines if "=>" in line]
    assert elf.cached() == dict(reversed(pairs))


def test_no_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"glibc-ld.so.cache1.1" + b"\xff" * 10)
    assert elf.cached(str(tmp_path / "cache")) == {}
    assert elf.cached(str(tmp_path / "none")) == {}
