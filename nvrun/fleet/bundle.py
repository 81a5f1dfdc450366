"""The agent's code as one block of bytes, and the one-line loader that takes it in on the other side."""

from __future__ import annotations

import importlib.util
import zlib
from functools import cache
from pathlib import Path

from ..agent.boot import PACKAGE

# Reads 8 hex digits of length, then that many bytes of zlib-compressed source, from fd 0 and not one byte more (a
# buffered reader would swallow the messages behind it). One line, no single quote, `$` or `!`: it stands between single
# quotes for whatever login shell the host has.
LOADER = (
    'exec("import os,zlib\\ndef r(n):\\n b=bytes()\\n while len(b)<n:\\n  c=os.read(0,n-len(b))\\n  if not c:'
    " raise SystemExit(1)\\n  b+=c\\n return b\\nexec(compile(zlib.decompress(r(int(r(8),16))),"
    '\\"nvrun-agent/boot.py\\",\\"exec\\"))")'
)


@cache
def bundle() -> bytes:
    """Length, then the compressed agent: all of `nvrun.agent`, and pynvml for the hosts' GPUs."""
    folder = Path(__file__).parent.parent / "agent"
    sources: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(folder).with_suffix("").parts]
        if parts[-1] == "boot":
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    pynvml = importlib.util.find_spec("pynvml")
    if pynvml and pynvml.origin:
        sources["pynvml"] = Path(pynvml.origin).read_text(encoding="utf-8")
    boot = (folder / "boot.py").read_text(encoding="utf-8")
    packed = zlib.compress(f"# -*- coding: utf-8 -*-\n{boot}\nboot({sources!r})\n".encode(), 1)
    return b"%08x" % len(packed) + packed
