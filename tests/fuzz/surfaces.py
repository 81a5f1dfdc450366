"""Everything that nvrun reads from others, as commands over one file: good samples, and what they are spoilt with.

Each command runs in this process (`nvrun.cli.main`), so that thousands of inputs can be tried. What must hold: an exit
code of the documented ones but 70, at most a few lines on stderr for a refused input, no traceback, an end in time.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from nvrun.cli import main

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "tests/data/facts"
LONGEST = 20.0
"""Seconds that no input of a few kilobytes may take, on a machine that is busy."""
REFUSED_LINES = 3
"""A refused input is told in a line, and its remedy in another."""


class Surface(NamedTuple):
    """One kind of input."""

    name: str
    samples: Callable[[], Sequence[bytes]]
    """Good ones."""
    argv: Callable[[str], list[str]]
    """The command line that reads the file of this path."""
    file: str = "input"
    words: Sequence[bytes] = ()
    """What means something there: it is put in at random places."""


def _texts(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(ROOT.glob(pattern))]


def _matrices() -> list[bytes]:
    head = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    rows = "GPU0\t X \tNV18\tPIX\t0-31\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t32-63\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \n"
    return [f"{head}{rows}\nNIC Legend:\n\n  NIC0: mlx5_0\n".encode()]


XML = (
    b'<system version="1"><cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6">'
    b'<pci busid="0000:4b:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
    b'<gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:5b:00.0" count="18" tclass="0x068000"/></gpu></pci>'
    b'<nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" gdr="1"/></nic></cpu></system>'
)
LOG = (
    b"gpu01:10:11 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n"
    b"gpu01:10:11 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
    b"gpu01:10:12 [0] NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n"
    b"gpu01:10:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    b"gpu01:10:12 [0] NCCL WARN Cuda failure 2 'out of memory'\n"
    b"[rank0]:[E1129 10:00:00.123 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    b"WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 ms\n"
    b'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nRuntimeError: no\n'
)
CONFIG = b"# mine\nhosts: [a, b:2]\ngrace: 5\nenv:\n  NCCL_DEBUG: INFO\nhooks:\n  - none\npreset: hopper\n"
PRESET = (
    b"summary: mine\nfits:\n  compute_capability: ['9.0']\nvariables:\n  NCCL_DEBUG:\n    value: INFO\n    why: x\n"
    b"    source: NCCL's documentation\n    cost: not measured\n    versions: nccl>=2.20\n"
)
YAML = (b"&a ", b"*a", b"!!python/object/apply:os.system [x]", b"{" * 500, b"- " * 300, b"<<: *a\n", b"? ", b"\t", b"'",
        b"---\n", b"...\n", b"%YAML 9.9\n", b"1e999", b"0x", b"~", b"\xff", b"\x00")  # fmt: skip
NUMBERS = (b"-1", b"99999999999999999999", b"1e400", b"NaN", b"0-9999999999", b"\xd9\xa3", b"\x00", b"\xff", b"\x1b[2J")

TRACE = (
    b'{"traceEvents":[{"ph":"X","cat":"user_annotation","name":"nccl:all_reduce","ts":1,"dur":2,'
    b'"args":{"In msg nelems":8,"dtype":"float"}}]}'
)

SURFACES = (
    Surface("a hostfile", lambda: [b"a slots=4\nb:2\n# no\nuser@c:2222\ngpu[01-04]\n"],
            lambda path: ["hosts", "--hostfile", path], words=(b"[", b"]", b"[1-", b"-999999999]", b":", *NUMBERS)),
    Surface("a configuration file", lambda: [CONFIG], lambda path: ["hosts", "--config", path], words=YAML),
    Surface("a preset", lambda: [PRESET, *_texts("presets/h*.yaml")()], lambda path: ["presets", "show", path],
            "mine.yaml", words=YAML),
    Surface("a matrix of nvidia-smi", _matrices, lambda path: ["topo", "--topo", path],
            words=(b"\t", b"GPU7", b"NV", b"NIC0", b"N/A", *NUMBERS)),
    Surface("NCCL's XML", lambda: [XML], lambda path: ["topo", "--topo", path],
            words=(b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"<cpu>", b"</pci>", b"<pci>" * 200, b"&#0;", *NUMBERS)),
    Surface("a log, for nccl", lambda: [LOG], lambda path: ["nccl", path], words=(b"NCCL INFO ", b"\n", *NUMBERS)),
    Surface("a log, for diagnose", lambda: [LOG], lambda path: ["diagnose", path], words=(b"Error: ", b"\n", *NUMBERS)),
    Surface("a flight recorder's dump", _texts("tests/diagnose/dumps/*/trace_0"), lambda path: ["diagnose", path],
            "trace_0", words=(b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04", b".", b"(" * 99, *NUMBERS)),
    Surface("a job script", _texts("examples/slurm/*.sbatch"), lambda path: ["lint", path], "job.sh",
            words=(b"#SBATCH -", b"export NCCL_", b"$(", b"${", b"'", b"\\", *NUMBERS)),
    Surface("recorded facts", lambda: [(FACTS / "cpu_host.json").read_bytes(), (FACTS / "h200x2.json").read_bytes()],
            lambda path: ["plan", "--from", path, "train.py"], words=(b"[" * 5000, b"null", b'{"', b'"', *NUMBERS)),
    Surface("a binding file", lambda: [b"0 0-3 0\n1 4-7 0\n# no\n"],
            lambda path: ["plan", "--from", str(FACTS / "h200x2.json"), "--bind", path, "train.py"], words=NUMBERS),
    Surface("a file of variables", lambda: [b"A=1\nexport B='x y'\n# no\nNCCL_BUFFSIZE=4M\n"],
            lambda path: ["plan", "--from", str(FACTS / "h200x2.json"), "--env-file", path, "train.py"],
            words=(b"=", b"export ", b"'", b"\r", *NUMBERS)),
    Surface("a profiler's trace", lambda: [TRACE], lambda path: ["profile", path], "trace.json",
            words=(b"[" * 5000, b"null", *NUMBERS)),
)  # fmt: skip

# Flags whose values are words of others; with --from nothing is reached and nothing is started.
_FLAGS = ("--nnodes", "--nproc-per-node", "--hosts", "--exclude", "--grace", "--env", "--preset", "--waive", "--tee",
          "--port-range", "--max-restarts", "--rdzv-conf", "--redirects", "--console", "--lost-after", "--model-size",
          "--bind-to", "--omp", "--hook", "--log-dir", "--master-port", "-m", "--json", "--no-python")  # fmt: skip
_VALUES = ("1:2", "auto", "a=b", "9" * 30, "none")
LINES = st.lists(st.sampled_from(_FLAGS) | st.text(max_size=6) | st.sampled_from(_VALUES), max_size=6)  # fmt: skip
"""Argument lists."""


@st.composite
def spoilt(draw: st.DrawFn, surface: Surface) -> bytes:
    """A good sample with pieces cut, doubled, swapped and put in; now and then nothing but noise."""
    data = draw(st.sampled_from(list(surface.samples())))
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 40))
        what = draw(st.integers(0, 3))
        if what == 0:
            data = data[:at] + data[at + length :]
        elif what == 1:
            data = data[:at] + data[at : at + length] * draw(st.integers(2, 4)) + data[at + length :]
        elif what == 2:
            data = data[:at]
        else:
            piece = draw(st.sampled_from(list(surface.words)) if surface.words else st.binary(max_size=8))
            data = data[:at] + piece + data[at:]
    return data


def holds(argv: list[str], home: Path) -> None:
    """Runs the command; AssertionError where it is not told in words what was wrong, or what was found."""
    out, err = io.StringIO(), io.StringIO()
    environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
    began = time.monotonic()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(argv, environ)
    except Exception as error:
        raise AssertionError(f"{argv}: {type(error).__name__}: {error}") from error
    seconds = time.monotonic() - began
    said = err.getvalue()
    assert code in (0, 1, 2, 78), f"{argv}: exit {code}: {said}"
    assert "Traceback" not in said, said
    assert code != 2 or 0 < len(said.splitlines()) <= REFUSED_LINES, said
    assert not set("\x1b\x9b\x00") & set(said + out.getvalue()), "a terminal could be commanded"
    assert seconds < LONGEST, f"{argv}: {seconds:.0f} s"


def try_file(surface: Surface, data: bytes, folder: Path) -> None:
    path = folder / surface.file
    path.write_bytes(data)
    path.chmod(0o600)
    holds(surface.argv(str(path)), folder)


def try_line(words: Sequence[str], folder: Path) -> None:
    holds(["plan", "--from", str(FACTS / "h200x2.json"), *words, "train.py"], folder)
