"""Who this host is, how it and its peers are named here, and what the environment and NCCL's files say."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

from .tree import Tree

SILENT = "no answer"
"""Begins the error of a name for which the resolver said nothing in time."""

PREFIXES = (
    *("NCCL_", "TORCH", "PYTORCH_", "GLOO_", "UCX_", "FI_", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "GOMP_"),
    *("PET_", "SLURM_JOB", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_CPU", "COMPUTE_PROFILE", "OPENCL_PROFILE"),
)
NAMES = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)
CONF_LIMIT = 64 << 10
PATIENCE = 3.0
"""Seconds for all names together; a resolver whose first server is dead takes 5 for one."""


def identity(tree: Tree, env: dict[str, str]) -> dict[str, Any]:
    """The `Identity` of the schema.

    NCCL takes two ranks for one host's where NCCL_HOSTID, or else hostname and boot id, agree."""
    hostname = _hostname(tree)
    boot_id = tree.text("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink(tree.path("/proc/self/ns/net"))
    except OSError:
        namespace = None
    return {
        "hostname": hostname,
        "boot_id": boot_id,
        "machine_id": tree.text("/etc/machine-id") or None,
        "net_namespace": namespace,
        "nccl_host_hash": env.get("NCCL_HOSTID") or (hostname + boot_id if boot_id else None),
    }


def names(tree: Tree, peers: list[str]) -> dict[str, Any]:
    """The `Names` of the schema: own name, localhost and the peers, asked all at once."""
    hostname = _hostname(tree)
    answers = resolve([hostname, "localhost", *peers], PATIENCE)
    own, local = answers[hostname], answers["localhost"]
    return {
        "hostname": hostname,
        "fqdn": own["canonical"],
        "resolves_to": own["addresses"],
        "resolve_error": own["error"],
        "peers": {peer: answers[peer]["addresses"] for peer in peers},
        "peer_errors": {peer: answers[peer]["error"] for peer in peers if answers[peer]["error"]},
        "sources": {peer: source for peer in peers if (source := source_to(answers[peer]["addresses"]))},
        "localhost_ok": None if late(local) else any(each in ("127.0.0.1", "::1") for each in local["addresses"]),
    }


def resolve(hosts: list[str], patience: float) -> dict[str, dict[str, Any]]:
    """Name -> addresses in the resolver's order, canonical name and error; only in a process that ends by os._exit,
    for a thread in getaddrinfo cannot be ended."""
    answers: dict[str, dict[str, Any]] = {}
    pending = list(dict.fromkeys(hosts))[::-1]

    def work() -> None:
        while pending:
            try:
                host = pending.pop()
            except IndexError:
                return
            answers[host] = lookup(host)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(16, len(pending)))]
    until = time.monotonic() + patience
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    silence: dict[str, Any] = {"addresses": [], "canonical": None, "error": f"{SILENT} in {patience:g} s"}
    done = dict(answers)
    return {host: done.get(host, silence) for host in hosts}


def late(answer: dict[str, Any]) -> bool:
    """The resolver said nothing in time."""
    return str(answer["error"] or "").startswith(SILENT)


def lookup(host: str) -> dict[str, Any]:
    """One getaddrinfo, as torchrun and NCCL do it."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    except (OSError, UnicodeError) as error:
        text = error.strerror if isinstance(error, OSError) else "not a host name"
        return {"addresses": [], "canonical": None, "error": text}
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return {"addresses": addresses, "canonical": found[0][3] or None, "error": None}


def source_to(addresses: list[str]) -> str | None:
    """Own address that the kernel would send from to the first of these that it has a way to; sends nothing."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, 9))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return None


def environment(env: dict[str, str]) -> dict[str, str]:
    """What of the environment bears on NCCL, torch and CUDA; nothing that may hold a secret."""
    return {name: value for name, value in sorted(env.items()) if name.startswith(PREFIXES) or name in NAMES}


def conf_files(tree: Tree, env: dict[str, str]) -> dict[str, str]:
    """NCCL reads /etc/nccl.conf, and NCCL_CONF_FILE (2.23+) or else ~/.nccl.conf (NCCL's param.cc)."""
    own = env.get("NCCL_CONF_FILE") or (env["HOME"] + "/.nccl.conf" if env.get("HOME") else "")
    texts = {}
    for path in filter(None, ("/etc/nccl.conf", own)):
        try:
            with open(tree.path(path), "rb") as file:
                texts[path] = file.read(CONF_LIMIT).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            # A file that is there but cannot be read is told from one that is absent by its text.
            texts[path] = f"# nvrun: not readable: {error.strerror}\n"
    return texts


def _hostname(tree: Tree) -> str:
    return socket.gethostname() if tree.live else tree.text("/proc/sys/kernel/hostname") or ""
