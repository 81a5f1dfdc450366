"""The agent's code as one block of bytes, and the one-line loader that takes it in on the other side."""

from __future__ import annotations

import importlib.util
import json
import marshal
import sys
import threading
import zlib
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path

from ..agent.boot import PACKAGE

_making = threading.Lock()

# Reads 8 hex digits of length, then that many bytes of zlib-compressed source, from fd 0 and not one byte more (a
# buffered reader would swallow what is behind it); that source, `boot`, reads the rest by the same `r`. One line, no
# single quote, `$` or `!`: it stands between single quotes for whatever login shell the host has.
LOADER = (
    'exec("import os,zlib\\ndef r(n):\\n b=bytes()\\n while len(b)<n:\\n  c=os.read(0,n-len(b))\\n  if not c:'
    " raise SystemExit(1)\\n  b+=c\\n return b\\nexec(compile(zlib.decompress(r(int(r(8),16))),"
    '\\"nvrun-agent/boot.py\\",\\"exec\\"))")'
)


def bundle() -> bytes:
    """The bytes that every host is sent, made once: all connections want them in the same moment."""
    with _making:
        return _made()


@cache
def _made() -> bytes:
    """`boot` and what it reads then: names, sources and compiled code of all of `nvrun.agent`, and of pynvml for the
    hosts' GPUs; each block behind its length."""
    folder = Path(__file__).parent.parent / "agent"
    sources: dict[str, str] = {}
    codes: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(folder).with_suffix("").parts]
        if parts[-1] == "boot":
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
        code = marshal.dumps(SourceFileLoader(name, str(path)).get_code(name))  # out of __pycache__
        codes[name] = zlib.compress(code, 1)  # each by itself: an agent takes the third that it needs
    pynvml = importlib.util.find_spec("pynvml")
    if pynvml and pynvml.origin:  # its code would be half of all, and only hosts with a GPU want it
        sources["pynvml"] = Path(pynvml.origin).read_text(encoding="utf-8")
    boot = (folder / "boot.py").read_text(encoding="utf-8")
    blocks = (
        zlib.compress(f"# -*- coding: utf-8 -*-\n{boot}\nboot(r)\n".encode(), 1),
        " ".join(sources).encode(),
        zlib.compress(json.dumps(sources).encode(), 1),
        sys.implementation.cache_tag.encode() + importlib.util.MAGIC_NUMBER,
        marshal.dumps(codes),
    )
    return b"".join(b"%08x" % len(block) + block for block in blocks)
