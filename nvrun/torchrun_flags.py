"""torchrun's flags: names, types, PET_* variables, and the torch release that brought each. Pure.

The table holds for torch 2.9 to 2.14; a test compares it with the parser of the installed torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Flag(NamedTuple):
    """One option of torchrun."""

    name: str
    """argparse's destination, `nproc_per_node`; also the field of `TorchrunArgs`."""
    read: Callable[[str], object] | None
    """Text -> value, ValueError saying what was expected; None for a switch, which takes no value."""
    metavar: str = ""
    help: str = ""
    pet: bool = True
    """Whether PET_<NAME> changes the default."""
    since: str | None = None
    """First torch release seen with it (2.9.1, 2.10.0, 2.13.0 and 2.14.1 were compared); None: 2.9 or older."""
    short: str | None = None

    @property
    def spelling(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Long forms, with dashes and with underscores; one where both are the same."""
        return tuple(dict.fromkeys((self.spelling, "--" + self.name)))

    @property
    def variable(self) -> str | None:
        return f"PET_{self.name.upper()}" if self.pet else None


def _nnodes(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    try:
        nodes = int(first), int(last if colon else first)
    except ValueError:
        nodes = 0, 0
    if not 0 < nodes[0] <= nodes[1]:
        raise ValueError("N or MIN:MAX with 1 <= MIN <= MAX")
    return nodes


_MOST_RANKS = 65536
"""On one host: more than Linux's default pid_max leaves room for."""


def _nproc(text: str) -> int | str:
    try:
        count = int(text)
    except ValueError:
        # `auto`, `cpu`, `gpu`, `xpu` or the name of a private backend, which only the host's torch knows.
        if re.fullmatch(r"[A-Za-z_]\w*", text):
            return text
        count = 0
    if not 1 <= count <= _MOST_RANKS:
        raise ValueError(f"a number of ranks from 1 to {_MOST_RANKS}, or auto, cpu, gpu, xpu")
    return count


def _whole(lowest: int, what: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if number < lowest:
            raise ValueError(what)
        return number

    return read


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("seconds") from None


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise ValueError("a port from 0 to 65535")
    return port


def _streams(text: str) -> str:
    # torch's own pattern: local ranks above 9 are refused there too.
    if not re.fullmatch(r"[0-3]|(\d:[0-3],)*\d:[0-3]", text):
        raise ValueError("0 to 3 (1 stdout, 2 stderr, 3 both), or RANK:0-3,... for local ranks 0 to 9")
    return text


def _ranks(text: str) -> str:
    try:
        _ = [int(rank) for rank in text.split(",")] if text else []
    except ValueError:
        raise ValueError("local ranks separated by commas, as 0,1") from None
    return text


def filters(text: str) -> tuple[str, ...]:
    """`a,b` -> ("a", "b"); `,,` is a comma."""
    return tuple(item.replace("\0", ",") for item in text.replace(",,", "\0").split(","))


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError("one of " + ", ".join(words))
        return text

    return read


FLAGS: tuple[Flag, ...] = (
    Flag("nnodes", _nnodes, "N|MIN:MAX", "nodes of the job, or the range of an elastic one (1); see --nodes"),
    Flag("nproc_per_node", _nproc, "N|auto|gpu|cpu", "ranks on each node (fleet: all visible GPUs; one node: 1)"),
    Flag("rdzv_backend", str, "NAME", "rendezvous: static, c10d, etcd-v2 or a plug-in (static)"),
    Flag("rdzv_endpoint", str, "HOST[:PORT]", "where the rendezvous is"),
    Flag("rdzv_id", str, "ID", "name of the job at the rendezvous"),
    Flag("rdzv_conf", str, "KEY=VALUE,...", "further settings of the rendezvous"),
    Flag("standalone", None, "", "one node, with a rendezvous of its own on a free port"),
    Flag("max_restarts", _whole(0, "a number from 0"), "N", "restarts of all ranks before the job fails (0)"),
    Flag("monitor_interval", _seconds, "SECONDS", "how often torchrun looks at its ranks (0.1)"),
    Flag(
        "start_method", _choice("spawn", "fork", "forkserver"), "spawn|fork|forkserver", "how ranks are started (spawn)"
    ),
    Flag("event_log_handler", str, "NAME", "registered handler of torchrun's events (null)"),
    Flag("role", str, "NAME", "role of the ranks (default)"),
    Flag("module", None, "", "the program is a module, as in python -m", short="-m"),
    Flag("no_python", None, "", "the program is no Python script: run it directly"),
    Flag("run_path", None, "", "run the script by runpy.run_path"),
    Flag("log_dir", str, "DIR", "folder of torchrun's own log files"),
    Flag(
        "redirects",
        _streams,
        "STREAMS",
        "streams to torchrun's log files: 1 out, 2 err, 3 both, or RANK:N,...",
        short="-r",
    ),
    Flag("tee", _streams, "STREAMS", "as --redirects, and to the console too", short="-t"),
    Flag("log_line_prefix_template", str, "TEXT", "prefix of console lines: ${role_name} ${rank} ...", since="2.14"),
    Flag("local_ranks_filter", _ranks, "RANKS", "local ranks that torchrun shows on the console"),
    Flag("duplicate_stdout_filters", filters, "TEXT,...", "copy matching stdout lines to a file", since="2.10"),
    Flag("duplicate_stderr_filters", filters, "TEXT,...", "copy matching stderr lines to a file", since="2.10"),
    Flag("node_rank", _whole(0, "a node's rank from 0"), "N", "rank of this node (static rendezvous)"),
    Flag("master_addr", str, "HOST", "address of node 0 (static rendezvous)"),
    Flag("master_port", _port, "PORT", "port on node 0 (static rendezvous, 29500)"),
    Flag("local_addr", str, "HOST", "address of this node that the others are given"),
    Flag("logs_specs", str, "NAME", "entry point in torchrun.logs_specs", pet=False),
    Flag(
        "numa_binding",
        _choice("node", "socket", "exclusive", "core-complex"),
        "node|socket|exclusive|core-complex",
        "torch's own CPU binding; nvrun then binds nothing",
        pet=False,
        since="2.9",
    ),
    Flag("signals_to_handle", str, "NAMES", "signals on which torchrun stops its ranks", since="2.10"),
    Flag("shutdown_timeout", _whole(0, "whole seconds"), "SECONDS", "from TERM to KILL (30)", since="2.13"),
    Flag("virtual_local_rank", None, "", "each rank sees its GPU as cuda:0 and LOCAL_RANK as 0", since="2.10"),
    Flag(
        "print_completion",
        _choice("bash", "zsh", "tcsh"),
        "bash|zsh|tcsh",
        "torchrun's own shell completion",
        pet=False,
        since="2.14",
    ),
)
BY_NAME = {flag.name: flag for flag in FLAGS}
