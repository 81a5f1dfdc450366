"""Which libnccl the job would load, why that one, and its version; the net plugins that it would find."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import Any

from . import elf

NCCL = "libnccl.so.2"
PLUGIN = re.compile(r"libnccl-net(-\w+)?\.so(\.\d+)*")
STANDARD = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


def nccl(torch: str, env: dict[str, str], site: list[str]) -> dict[str, Any]:
    """`nccl`, `nccl_path`, `nccl_from` and `nccl_version_from` for the torch package in folder `torch`.

    All None where this torch loads none (a CPU build)."""
    found = _nccl_file(torch, env)
    if found is None:
        return {"nccl": None, "nccl_path": None, "nccl_from": None, "nccl_version_from": None}
    path, why = found
    version, origin = (None, None) if why == "built into torch" else nccl_version(path, site)
    return {"nccl": version, "nccl_path": path, "nccl_from": why, "nccl_version_from": origin}


def net_plugins(env: dict[str, str]) -> list[str]:
    """NCCL's net plugins where the loader looks, and the file that NCCL_NET_PLUGIN names."""
    named = env.get("NCCL_NET_PLUGIN", "")
    found = [named] if "/" in named and os.path.exists(named) else []
    for folder in _folders(env.get("LD_LIBRARY_PATH", "")):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [os.path.join(folder, name) for name in names if PLUGIN.fullmatch(name)]
    found += [path for name, path in elf.cached().items() if PLUGIN.fullmatch(name)]
    return list(dict.fromkeys(found))


def nccl_version(path: str, site: list[str]) -> tuple[str | None, str | None]:
    """Version and where it stands: `binary` (its own banner), `file name` or `wheel`."""
    banner = _banner(path)
    if banner:
        return banner, "binary"
    name = re.search(r"\.so\.(\d+\.\d+\.\d+)$", os.path.realpath(path))
    if name:
        return name[1], "file name"
    for folder in site:
        version = wheel_version([folder], r"nvidia_nccl_cu\d+")
        if version and os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep):
            return version, "wheel"
    return None, None


def _banner(path: str) -> str | None:
    """`NCCL version 2.28.9+cuda13.0`, which the library prints with NCCL_DEBUG=VERSION, stands in its constants."""
    try:
        for data in elf.chunks(path, ".rodata"):
            found = re.search(rb"NCCL version (\d+\.\d+\.\d+)(?!\d)", data)
            if found:
                return found[1].decode()
    except (OSError, ValueError, IndexError, struct.error):
        pass  # not a library that can be read so: its name and its wheel may still tell
    return None


def wheel_version(site: list[str], name: str) -> str | None:
    """Version of an installed distribution from its folder's name; `name` is a pattern."""
    for folder in site:
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            match = re.fullmatch(rf"(?:{name})-([^-]+)\.dist-info", entry)
            if match:
                return match[1]
    return None


def _nccl_file(torch: str, env: dict[str, str]) -> tuple[str, str] | None:
    """The order of ld.so(8): preloaded, RPATH (unless RUNPATH), LD_LIBRARY_PATH, RUNPATH, cache, standard folders."""
    user = os.path.join(torch, "lib", "libtorch_cuda.so")
    try:
        dynamic = elf.dynamic(user)
    except (OSError, ValueError):
        return None
    for path in _folders(env.get("LD_PRELOAD", "").replace(" ", ":")):
        if os.path.basename(path).startswith("libnccl.so"):
            return path, "LD_PRELOAD"
    if NCCL not in dynamic.needed:
        return user, "built into torch"
    for folder, why in _search(dynamic, os.path.dirname(user), env):
        path = os.path.join(folder, NCCL)
        if os.path.exists(path):
            return os.path.normpath(path), why
    cached = elf.cached().get(NCCL)
    if cached:
        return cached, "ld.so.cache"
    return next(((f"{folder}/{NCCL}", "system") for folder in STANDARD if os.path.exists(f"{folder}/{NCCL}")), None)


def _search(dynamic: elf.Dynamic, origin: str, env: dict[str, str]) -> Iterator[tuple[str, str]]:
    def placed(folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for folder in folders:
            real = folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
            yield real, "wheel" if "/nvidia/" in real else "torch"

    if not dynamic.runpath:
        yield from placed(dynamic.rpath)
    for folder in _folders(env.get("LD_LIBRARY_PATH", "")):
        yield folder, "LD_LIBRARY_PATH"
    yield from placed(dynamic.runpath)


def _folders(text: str) -> list[str]:
    return [folder for folder in text.split(":") if folder]
