"""Hosts -> routes: which are this machine, and how the others are reached."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Literal

from nvrun.errors import UsageError
from nvrun.fleet.link import Link, ProcessLink
from nvrun.fleet.session import Route
from nvrun.fleet.start import COMMAND, Start, line
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
    if not hosts:
        return ()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(64) as pool:  # a name server that hangs does so once, not once a host
        return tuple(pool.map(lambda host: "local" if is_local(host) else "ssh", hosts))


def routes(
    hosts: Sequence[Host],
    kinds: Sequence[Kind],
    start: Start,
    *,
    environment: Mapping[str, str],
    rsh: str | None = None,
    ssh: Literal["paramiko", "openssh"] = "paramiko",
    ssh_config: str | None = None,
    connect_timeout: float = 10.0,
) -> list[Route]:
    """One route a host, but for srun, whose one step serves all of them. `connect_timeout` in seconds.

    Raises UsageError for a name that a command line could take for something else.
    """
    for host in hosts:
        _check_name(host)
    first = line(start)
    if "srun" in kinds:
        names = {host.name: node for node, host in enumerate(hosts)}
        argv = [*srun_argv([host.name for host in hosts], environment), *COMMAND]
        return [Route(tuple(range(len(hosts))), partial(ProcessLink, argv, environment), names, first)]
    by_ssh = _openssh(ssh_config, connect_timeout, environment)
    if ssh == "paramiko" and "ssh" in kinds:
        by_ssh = _paramiko(ssh_config, connect_timeout)

    def connector(host: Host, kind: Kind) -> Callable[[], Link]:
        if kind == "local":
            return partial(ProcessLink, COMMAND, environment)
        if kind == "rsh":
            assert rsh is not None
            return partial(ProcessLink, rsh_argv(rsh, host.name, COMMAND), environment)
        return partial(by_ssh, host)

    pairs = enumerate(zip(hosts, kinds, strict=True))
    return [Route((node,), connector(host, kind), {}, first) for node, (host, kind) in pairs]


def by_hand(host: Host, kind: Kind, rsh: str | None) -> str:
    """What a person types before a command that is to run on this host; nothing on this machine."""
    if kind == "rsh" and rsh is not None:
        return shlex.join(rsh_argv(rsh.replace("{command}", ""), host.name, ()))
    return {"local": "", "srun": f"srun --nodelist={host.name}"}.get(kind, f"ssh {shlex.quote(host.name)}")


def _openssh(config: str | None, timeout: float, environment: Mapping[str, str]) -> Callable[[Host], Link]:
    def connect(host: Host) -> Link:
        from nvrun.fleet import openssh

        return openssh.connect(host, COMMAND, timeout=timeout, environment=environment, config=config)

    return connect


def _paramiko(config: str | None, timeout: float) -> Callable[[Host], Link]:
    from nvrun.fleet import ssh  # takes 0.2 s to import: only who needs it pays

    jumps = ssh.Jumps(config, timeout)

    def connect(host: Host) -> Link:
        return ssh.connect(host, COMMAND, timeout=timeout, jumps=jumps, config=config)

    return connect


def _check_name(host: Host) -> None:
    """Names come from files and variables of others, and go into command lines: rsh's, ssh's, a ProxyCommand's."""
    for what, text in (("host", host.name), ("user", host.user)):
        if text is not None and not re.fullmatch(r"[\w.:%@+=/][\w.:%@+=/-]*", text):
            raise UsageError(
                f"{text!r} is no {what} name", hint="letters, digits and . _ : - % @ + = / only, not beginning with -"
            )


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
    cpus, gpus = environment.get("SLURM_CPUS_ON_NODE", ""), environment.get("SLURM_GPUS_ON_NODE", "")
    # A job of --gpus-per-task would give the step's one task the GPUs of one task (measured on 22.05).
    shared_out = any(environment.get(name) for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
    return [
        "srun",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        *([f"--cpus-per-task={cpus}"] if cpus.isdigit() else []),
        *([f"--gpus-per-node={gpus}"] if gpus.isdigit() and shared_out else []),
        "--overlap",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",  # one node's end must not cut the others' logs
        "--wait=0",
        "--no-kill",  # where the job outlives a node that fails, the other nodes' agents do too
        "--export=ALL",
        "--job-name=nvrun",
    ]
