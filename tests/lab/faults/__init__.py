"""What goes wrong on a cluster, one context manager each: true inside the `with`, mended after it.

    with drop(lab, "b", "29500"):
        ...                     # packets to and from port 29500 of b vanish, those of open connections too

A port is always a port of the named host. Faults of sshd (clock, limits, ...) hold for connections opened inside the
`with`; commands by `lab.exec`, `--rsh` and srun do not see them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from ..lab import BRIDGE, Lab, needed_paths
from ..processes import Process

_numbers = itertools.count()

Reply = Literal[
    "icmpx type port-unreachable", "icmpx type admin-prohibited", "icmpx type host-unreachable", "tcp reset"
]


# ------------------------------------------------------------------------------------------------------- firewalls


@contextlib.contextmanager
def firewall(lab: Lab, host: str, *, arriving: str = "", leaving: str = "") -> Iterator[None]:
    """nft rules on a host for what arrives and leaves by its cable, ahead of connection tracking."""
    table = f"inet fault{next(_numbers)}"
    chains = [
        f"chain {hook} {{\n type filter hook {hook} priority -300\n {interface} != lo {rule}\n}}"
        for hook, interface, rule in (("input", "iifname", arriving), ("output", "oifname", leaving))
        if rule
    ]
    lab.nft(host, f"table {table} {{\n" + "\n".join(chains) + "\n}")
    try:
        yield
    finally:
        lab.nft(host, f"delete table {table}")


def drop(
    lab: Lab,
    host: str,
    ports: str = "0-65535",
    *,
    protocol: Literal["tcp", "udp"] = "tcp",
    way: Literal["in", "out", "both"] = "both",
    peer: str | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Packets to ("in") and from ("out") these ports ("22" or "32768-60999") of the host vanish."""
    family = "ip6" if lab.ipv6 else "ip"
    source, destination = (f"{family} {end} {lab.address(peer)}" if peer else "" for end in ("saddr", "daddr"))
    arriving = f"{source} {protocol} dport {ports} drop" if way != "out" else ""
    leaving = f"{destination} {protocol} sport {ports} drop" if way != "in" else ""
    return firewall(lab, host, arriving=arriving, leaving=leaving)


def reject(
    lab: Lab, host: str, ports: str = "0-65535", *, reply: Reply = "icmpx type port-unreachable"
) -> contextlib.AbstractContextManager[None]:
    """TCP packets to these ports of the host are refused, as iptables' REJECT does; firewalld says admin-prohibited."""
    return firewall(lab, host, arriving=f"tcp dport {ports} reject with {reply}")


def cut(lab: Lab, host: str) -> contextlib.AbstractContextManager[None]:
    """The host's cable is dead, though its link is up."""
    return firewall(lab, host, arriving="drop", leaving="drop")


# -------------------------------------------------------------------------------------------------- cable, addresses


@contextlib.contextmanager
def changed(lab: Lab, places: Iterable[str], command: Sequence[str], back: Sequence[str]) -> Iterator[None]:
    """One command on each of the places, and another one afterwards."""
    with contextlib.ExitStack() as stack:
        for place in places:
            lab.exec(place, command, check=True)
            stack.callback(lab.exec, place, back, check=True)
        yield


def segmented(lab: Lab) -> contextlib.AbstractContextManager[None]:
    """Packets are cut to size before they leave; a veth passes 64 KiB ones whole otherwise, through any MTU."""
    ethtool = ["ethtool", "-K", "eth0"]
    return changed(
        lab,
        lab.hosts,
        [*ethtool, "tso", "off", "gso", "off", "gro", "off"],
        [*ethtool, "tso", "on", "gso", "on", "gro", "on"],
    )


@contextlib.contextmanager
def mtu(lab: Lab, host: str, size: int) -> Iterator[None]:
    """The host's own interface has this MTU (bytes); larger packets of others are lost at its door."""
    command = ["ip", "link", "set", "eth0", "mtu"]
    with segmented(lab), changed(lab, [host], [*command, str(size)], [*command, "1500"]):
        yield


@contextlib.contextmanager
def black_hole(lab: Lab, host: str, size: int) -> Iterator[None]:
    """Packets over this size (bytes) vanish on the way from and to the host, whose MTU says nothing of it.

    This is a switch port with too small an MTU: nobody answers "fragmentation needed".
    """
    command = ["ip", "link", "set", lab.port(host), "mtu"]
    with segmented(lab), changed(lab, [BRIDGE], [*command, str(size)], [*command, "1500"]):
        yield


def extra_address(lab: Lab, host: str, address: str) -> contextlib.AbstractContextManager[None]:
    """One more address (with prefix length) on the host's interface; another host's makes it a duplicate."""
    command = ["address", "{}", address, "dev", "eth0"]
    add, delete = (["ip", *(word.format(verb) for word in command)] for verb in ("add", "del"))
    return changed(lab, [host], add, delete)


@contextlib.contextmanager
def moved(lab: Lab, host: str, address: str) -> Iterator[None]:
    """The host has this address (with prefix length) instead of its own: a wrong subnet, or somebody else's address."""
    own = f"{lab.address(host)}/{lab.prefix}"
    script = (
        "ip address del {} dev eth0 && ip address add {} dev eth0 && ip route replace default via {} dev eth0 onlink"
    )
    there, back = (script.format(old, new, lab.gateway) for old, new in ((own, address), (address, own)))
    with changed(lab, [host], ["sh", "-c", there], ["sh", "-c", back]):
        yield


# ------------------------------------------------------------------------------------------------------------ names


@contextlib.contextmanager
def hosts_file(lab: Lab, place: str, change: Callable[[str], str]) -> Iterator[None]:
    """The place's /etc/hosts as `change` makes it out of the present one."""
    path = lab.path(place, "/etc/hosts")
    before = path.read_text()
    path.write_text(change(before))
    try:
        yield
    finally:
        path.write_text(before)


def name_to_loopback(lab: Lab, host: str) -> contextlib.AbstractContextManager[None]:
    """The host's own name means 127.0.1.1 to itself, as Debian's installer writes it."""
    line = f"{lab.address(host)} {host}\n"
    return hosts_file(lab, host, lambda text: text.replace(line, f"127.0.1.1 {host}\n"))


def name_unknown(lab: Lab, place: str, name: str) -> contextlib.AbstractContextManager[None]:
    """This place alone cannot resolve the name."""
    return hosts_file(lab, place, lambda text: text.replace(f"{lab.address(name)} {name}\n", ""))


# ------------------------------------------------------------------------------------------------------------- sshd


@contextlib.contextmanager
def stopped(processes: Sequence[Process]) -> Iterator[None]:
    """The processes are stopped (SIGSTOP), and go on whatever happens: others use the cluster after this test."""
    try:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # a child of the host's that has ended meanwhile
                os.kill(process.pid, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


def hung_sshd(lab: Lab, host: str) -> contextlib.AbstractContextManager[None]:
    """The kernel accepts connections to the host's sshd, which says nothing; open sessions go on."""
    return stopped([process for process in lab.daemons(host) if "[listener]" in process.argv[0]])


def hung_host(lab: Lab, host: str) -> contextlib.AbstractContextManager[None]:
    """Nothing of the host runs: its kernel answers, no process does."""
    return stopped([*lab.daemons(host), *lab.processes(host)])


@contextlib.contextmanager
def no_sshd(lab: Lab, host: str) -> Iterator[None]:
    """No sshd listens on the host: connections are refused. Open sessions go on."""
    lab.stop_sshd(host)
    try:
        yield
    finally:
        lab.start_sshd(host)


@contextlib.contextmanager
def other_sshd(lab: Lab, host: str, *options: str, prefix: Sequence[str] = ()) -> Iterator[None]:
    """The host's sshd with more options, or started by another command."""
    with no_sshd(lab, host):
        lab.start_sshd(host, *options, prefix=prefix)
        try:
            yield
        finally:
            lab.stop_sshd(host)


@contextlib.contextmanager
def wrong_host_key(lab: Lab, host: str) -> Iterator[None]:
    """The host shows another key than known_hosts has: a reinstalled machine, or a stranger."""
    key = f"/run/lab/{host}/host_key"
    swap = f"mv {key} {key}.own; ssh-keygen -q -t ed25519 -N '' -f {key}.other; mv {key}.other {key}"
    with no_sshd(lab, host), changed(lab, [host], ["sh", "-ec", swap], ["mv", f"{key}.own", key]):
        lab.start_sshd(host)
        try:
            yield
        finally:
            lab.stop_sshd(host)


def clock_variables(file: str) -> tuple[str, ...]:
    """NAME=value of what makes a process take its wall clock from this file; none where libfaketime is missing."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    variables = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": file,
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # a wrong clock does not change how long a timeout lasts
    }
    return tuple(f"{name}={value}" for name, value in variables.items()) if library else ()


@contextlib.contextmanager
def clock(lab: Lab, host: str, offset: str) -> Iterator[Callable[[str], None]]:
    """The wall clock of the host's ssh sessions is off by "+90", "-1h", ...; the yielded function sets it anew.

    Set while a Python 3.11 sleeps there, it lets that sleep fail (EINVAL).
    """
    path = f"/run/lab/{host}/clock"
    file = lab.path(host, path)

    def turn(offset: str) -> None:
        file.write_text(offset)

    turn(offset)
    with other_sshd(lab, host, "-o", f"SetEnv={' '.join(clock_variables(path))}"):
        yield turn


def low_limits(lab: Lab, host: str, **limits: int) -> contextlib.AbstractContextManager[None]:
    """Resource limits of ssh sessions, named as prlimit names them: `nofile=64`."""
    return other_sshd(lab, host, prefix=["prlimit", *(f"--{name}={value}" for name, value in limits.items()), "--"])


# ------------------------------------------------------------------------------------------------- disks and memory


@contextlib.contextmanager
def mounted(lab: Lab, host: str, directory: str, options: str) -> Iterator[None]:
    """An empty tmpfs of the same owner and mode over a directory, on this host alone: "size=1m", "noexec", "ro".

    The checkout and its interpreter stay where they are, also below that directory.
    """
    script = """
        directory=$1 options=$2; shift 2
        behind=/run/behind$(echo "$directory" | tr / _)
        mkdir -p "$behind"; mount --rbind "$directory" "$behind"
        mount -t tmpfs -o "$(stat -c mode=%a,uid=%u,gid=%g "$directory")" fault "$directory"
        for path; do mkdir -p "$path"; mount --bind "$behind${path#"$directory"}" "$path"; done
        mount -o "remount,$options" "$directory"; umount --lazy "$behind"
    """
    kept = [path for path in needed_paths() if Path(directory) in Path(path).parents]
    command = ["sh", "-ec", script, "sh", directory, options, *kept]
    with changed(lab, [host], command, ["umount", "--lazy", directory]):
        yield


@contextlib.contextmanager
def file_in_place(lab: Lab, host: str, path: str, text: str) -> Iterator[None]:
    """On this host alone the file at `path` holds `text`."""
    copy = f"/run/instead.{abs(hash((host, path)))}"
    lab.exec(host, ["sh", "-c", 'cat > "$1"', "sh", copy], input=text, check=True)
    with changed(lab, [host], ["mount", "--bind", copy, path], ["umount", "--lazy", path]):
        yield


def small_shm(lab: Lab, host: str, size: str = "1m") -> contextlib.AbstractContextManager[None]:
    """The host's /dev/shm has this size, as in a container's default."""
    return mounted(lab, host, "/dev/shm", f"size={size}")


@contextlib.contextmanager
def full_disk(lab: Lab, host: str, directory: str) -> Iterator[None]:
    """Nothing more can be written under the directory on this host."""
    with mounted(lab, host, directory, "size=64k"):
        lab.exec(host, ["dd", "if=/dev/zero", f"of={directory}/filler", "bs=4k"])
        yield


@contextlib.contextmanager
def group_of(pids: Sequence[int], controller: str) -> Iterator[Path]:
    """A new cgroup (version 1) with these processes, and what they start, in it. See `why_no_group`."""
    lines = (line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines())
    base = Path("/sys/fs/cgroup", controller)
    own = next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")
    if (base / own.strip("/")).is_dir():  # else a container, which sees its own group as the root
        base = base / own.strip("/")
    group = base / f"nvrun-lab-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        while members := (group / "cgroup.procs").read_text().split():
            for pid_text in members:
                with contextlib.suppress(ProcessLookupError):
                    (base / "cgroup.procs").write_text(pid_text)
        group.rmdir()


def why_no_group(controller: str) -> str | None:
    """Why `small_memory` ("memory") or `frozen` ("freezer") is not possible here, or None."""
    directory = Path("/sys/fs/cgroup", controller)
    return None if os.access(directory / "cgroup.procs", os.W_OK) else f"no writable cgroup version 1 at {directory}"


@contextlib.contextmanager
def small_memory(lab: Lab, host: str, size: int) -> Iterator[None]:
    """What sshd and slurmd of the host start may use this much memory together (bytes); more, and the kernel kills."""
    with group_of([process.pid for process in lab.daemons(host)], "memory") as group:
        (group / "memory.limit_in_bytes").write_text(str(size))
        try:
            yield
        finally:
            (group / "memory.limit_in_bytes").write_text("-1")


@contextlib.contextmanager
def frozen(pids: Sequence[int], at_most: float = 30) -> Iterator[None]:
    """The processes are in uninterruptible wait (state D): SIGKILL does nothing until they thaw.

    They thaw by themselves after `at_most` seconds or when this process dies, lest they never end.
    """
    with group_of(pids, "freezer") as group:
        state = group / "freezer.state"
        state.write_text("FROZEN")
        guard = subprocess.Popen(
            ["sh", "-c", f"timeout {at_most} cat; echo THAWED > {state}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 5
            while state.read_text().strip() != "FROZEN" and time.monotonic() < deadline:
                time.sleep(0.01)
            yield
        finally:
            guard.communicate()  # end of input: the guard thaws them
