"""Hosts -> routes: which are this machine, and how the others are reached."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Literal

from nvrun.errors import UsageError
from nvrun.fleet.bundle import agent_argv
from nvrun.fleet.link import Link, ProcessLink
from nvrun.fleet.session import Route
from nvrun.model import Host

Kind = Literal["local", "ssh", "srun", "rsh"]


def is_local(host: Host) -> bool:
    """Whether the host's address is on an interface of this network namespace: then a socket can be bound to it.

    With a user or a port of its own it is somebody else's door, and ssh is used.
    """
    if host.user or host.port:
        return False
    try:
        found = socket.getaddrinfo(host.name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False  # perhaps an alias of ssh_config: ssh will know
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False


def choose(
    hosts: Sequence[Host], fleet: Literal["local", "ssh", "srun"] | None, rsh: str | None, *, in_slurm: bool
) -> tuple[Kind, ...]:
    """The way to each host."""
    if rsh and fleet:
        raise UsageError("--rsh and --fleet name two ways to the hosts: drop one")
    if fleet == "local" and len(hosts) > 1:
        raise UsageError(f"--fleet local is this machine alone, but {len(hosts)} hosts are given")
    one: Kind | None = "rsh" if rsh else fleet or ("srun" if in_slurm else None)
    if one:
        return tuple(one for _ in hosts)
    return tuple("local" if is_local(host) else "ssh" for host in hosts)


def routes(
    hosts: Sequence[Host],
    kinds: Sequence[Kind],
    *,
    pythons: Sequence[str],
    rsh: str | None,
    connect_timeout: float,
    ssh_config: str | None,
    environment: Mapping[str, str],
) -> list[Route]:
    """One route a host, but for srun, whose one step serves all of them."""
    command = agent_argv(pythons)
    if "srun" in kinds:
        names = {host.name: node for node, host in enumerate(hosts)}
        argv = srun_argv([host.name for host in hosts], environment) + command
        return [Route(tuple(range(len(hosts))), partial(ProcessLink, argv, environment), names)]
    return [
        Route((node,), _connector(host, kind, command, rsh, connect_timeout, ssh_config, environment))
        for node, (host, kind) in enumerate(zip(hosts, kinds, strict=True))
    ]


def _connector(
    host: Host,
    kind: Kind,
    command: Sequence[str],
    rsh: str | None,
    connect_timeout: float,
    ssh_config: str | None,
    environment: Mapping[str, str],
) -> Callable[[], Link]:
    if kind == "local":
        return partial(ProcessLink, command, environment)
    if kind == "rsh":
        assert rsh is not None
        return partial(ProcessLink, rsh_argv(rsh, host.name, command), environment)
    return partial(_by_ssh, host, command, connect_timeout, ssh_config)


def _by_ssh(host: Host, command: Sequence[str], timeout: float, config: str | None) -> Link:
    from nvrun.fleet import ssh  # paramiko takes 0.2 s to import: only who needs it pays

    return ssh.connect(host, command, timeout=timeout, config=config)


def rsh_argv(template: str, host: str, command: Sequence[str]) -> list[str]:
    """`kubectl exec -i {host} --` and the command as further arguments; where `{command}` stands in the template, or
    the program is ssh, which joins its arguments for a shell, the command goes in as one quoted string."""
    words = shlex.split(template)
    quoted = shlex.join(command)
    if any("{command}" in word for word in words):
        return [word.replace("{host}", host).replace("{command}", quoted) for word in words]
    words = [word.replace("{host}", host) for word in words]
    if PurePath(words[0]).name in ("ssh", "autossh"):
        return [*words, quoted]
    return [*words, *command]


def srun_argv(nodes: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """One step with one task a node, beside whatever else the job runs, with all CPUs of each node and no binding."""
    cpus = environment.get("SLURM_CPUS_ON_NODE", "")
    return [
        "srun",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        *([f"--cpus-per-task={cpus}"] if cpus.isdigit() else []),
        "--overlap",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",  # one node's end must not cut the others' logs
        "--wait=0",
        "--export=ALL",
        "--job-name=nvrun",
    ]


def interpreters(environment: Mapping[str, str], wanted: str | None = None) -> list[str]:
    """Interpreters to try on a host, the best first: the user's word alone, else this one's path, that of the active
    environment, python3."""
    if wanted:
        return [wanted]
    active = [environment[name] + "/bin/python" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    return list(dict.fromkeys([sys.executable, *active, "python3"]))
