"""Hosts in network namespaces on this machine: each with its own name, address, /etc/hosts and sshd.

    with Lab(["a", "b", "c"]) as lab:
        lab.run(["ssh", "b", "hostname"]).stdout    # from the launcher, as a user of the cluster would
        lab.exec("b", ["hostname"]).stdout          # on host b itself, without ssh

Everything lives in one tree of namespaces whose first process is `inside.py`: when it ends, or whoever started it is
killed, nothing is left. All of /run, the homes and the accounts are the lab's own; the rest of the file system is the
machine's, so that the checkout and its interpreter are found at the same path on every host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from .processes import Process, child_of, processes

Argv: TypeAlias = Sequence[str | Path]

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCHER = "launcher"
"""The place where users sit: on the hosts' network, without an sshd."""
BRIDGE = "bridge"
"""The place where the cables of all others end."""
USER = "ada"
"""The ordinary user."""
UID = 4711
HOMES = {"root": str(Path("~root").expanduser()), USER: f"/run/home/{USER}"}
NAMESPACES = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "ip", "sshd", "ssh", "ssh-keygen")

SSHD_CONFIG = """\
AuthorizedKeysFile /run/lab/id_ed25519.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
UseDNS no
Subsystem sftp internal-sftp
"""

RSH = """\
#!/bin/sh
# rsh HOST COMMAND...: the command on that host with an environment of its own, as `kubectl exec` would run it
target=/proc/$(cat "/run/lab/$1/pid")
shift
exec nsenter --net="$target/ns/net" --uts="$target/ns/uts" --mount="$target/ns/mnt" \\
    --pid="$target/ns/pid_for_children" env -i HOME=/root USER=root LANG=C.UTF-8 PATH="$PATH" "$@"
"""


class Running(subprocess.Popen[str]):
    """A command in the lab. `pid` is that of the nsenter which waits for it; signals go to the command itself."""

    @property
    def target(self) -> int:
        """The command's own pid, as this machine sees it. ProcessLookupError when it has ended."""
        while self.poll() is None:
            if pid := child_of(self.pid):
                return pid
            time.sleep(0.002)
        raise ProcessLookupError("the command has ended")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait for the command; a test that failed meanwhile does not wait, the command is killed."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, at)

    def send_signal(self, sig: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.target, sig)
            if sig == signal.SIGCONT:
                os.kill(self.pid, sig)  # nsenter stops itself when the command is stopped

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclasses.dataclass
class Lab:
    """A cluster. Start it with `with` or `start()` and `close()`."""

    hosts: Sequence[str] = ("a", "b", "c")
    ipv6: bool = False
    """The hosts have IPv6 addresses only (but for the loopback)."""
    split: bool = False
    """No shared file system: each host has its own /tmp, /dev/shm and homes."""
    own_pids: bool = False
    """Each host has its own pid namespace."""
    private: Sequence[str] = ()
    """More (existing) directories that each host has for itself, empty at first. The launcher keeps the machine's."""
    behind: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Host -> bastion: the launcher reaches the host only by way of the bastion (ProxyJump)."""

    rsh = "/run/lab/rsh {host}"
    """For `--rsh`: runs a command on a host without ssh. Root only."""

    # ------------------------------------------------------------------------------------------- life

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """All hosts are up and accept ssh afterwards. RuntimeError with the tools' own words when that fails."""
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in close())
        self._tree = subprocess.Popen(
            [*NAMESPACES, sys.executable, "-I", "-S", str(Path(__file__).with_name("inside.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            cwd="/",
            env=base_environment("root"),
        )
        assert self._tree.stdin is not None
        assert self._tree.stdout is not None
        self._tree.stdin.write(json.dumps(self._spec()) + "\n")
        self._tree.stdin.flush()
        if self._tree.stdout.readline() != "ready\n":
            self._log.seek(0)
            said = self._log.read()
            self.close()
            raise RuntimeError(f"the lab did not start:\n{said}")
        self._holders = self._find_holders()
        for host, bastion in self.behind.items():
            self._hide(host, bastion)

    def close(self) -> None:
        """Nothing of the lab is left afterwards."""
        assert self._tree.stdin is not None
        self._tree.stdin.close()  # the first process ends with it, and is gone only after all others
        try:
            self._tree.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._tree.kill()
            self._tree.wait()
        for stream in (self._tree.stdout, self._log):
            if stream is not None:
                stream.close()

    @property
    def tree(self) -> int:
        """The pid of the lab's outermost process: killing it ends the lab."""
        return self._tree.pid

    # --------------------------------------------------------------------------------------- commands

    def popen(
        self,
        argv: Argv,
        *,
        place: str = LAUNCHER,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **options: Any,
    ) -> Running:
        """Start a command, by default on the launcher in the user's home, with a small clean environment plus `env`.

        Its output is text, with "\\r" read as "\\n"; for its bytes pass a file as `stdout`.
        """
        become = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        command = [*self._enter(place), *become, "env", f"--chdir={cwd or HOMES[user]}", *map(str, argv)]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        environment = base_environment(user) | dict(env or {})
        return Running(command, env=environment, text=True, errors="replace", **options)

    def run(
        self, argv: Argv, *, timeout: float = 30, input: str | None = None, check: bool = False, **where: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `where` as for `popen`.

        subprocess.TimeoutExpired after `timeout` seconds, later where the machine is busy: see `out_of_patience`.
        """
        if input is not None:
            where["stdin"] = subprocess.PIPE
        with self.popen(argv, **where) as running:
            began = time.monotonic()
            while True:
                try:
                    stdout, stderr = running.communicate(input, timeout=timeout)
                    break
                except subprocess.TimeoutExpired:
                    if out_of_patience(began, timeout):
                        raise
                    input = None  # it has gone out
        completed = subprocess.CompletedProcess(list(argv), running.returncode, stdout, stderr)
        if check and completed.returncode:
            raise RuntimeError(f"{shlex.join(map(str, argv))}: exit {completed.returncode}\n{stdout}{stderr}")
        return completed

    def exec(self, host: str, argv: Argv, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on the host itself, without ssh."""
        return self.run(argv, place=host, **options)

    def start_sshd(self, host: str, *options: str, prefix: Argv = ()) -> None:
        """Start the host's sshd, as it is or by another command; it accepts connections afterwards."""
        self.exec(host, [*prefix, *sshd_command(host), *options], check=True)
        wait_for(lambda: self.listens(host, 22), f"sshd of {host}")

    def stop_sshd(self, host: str) -> None:
        """End the host's listening sshd; open sessions go on."""
        listener = next(process for process in self.daemons(host) if "[listener]" in process.argv[0])
        os.kill(listener.pid, signal.SIGTERM)
        wait_for(lambda: not self.listens(host, 22), f"end of {host}'s sshd")

    def nft(self, host: str, script: str) -> None:
        """Load firewall rules on a host."""
        self.exec(host, ["nft", "-f", "-"], input=script, check=True)

    # ---------------------------------------------------------------------------------------- looking

    def address(self, place: str) -> str:
        """The place's numeric address."""
        number = 0xFFFF if place == LAUNCHER else list(self.hosts).index(place) + 1
        if self.ipv6:
            return f"fd77::{number:x}"
        return "10.77.255.1" if place == LAUNCHER else f"10.77.{number // 250}.{number % 250 + 1}"

    @property
    def prefix(self) -> int:
        """Bits of the network's part of an address."""
        return 64 if self.ipv6 else 16

    @property
    def gateway(self) -> str:
        """The default route of all places. It leads nowhere."""
        return "fd77::fffe" if self.ipv6 else "10.77.255.254"

    def port(self, place: str) -> str:
        """The interface on the bridge in which the place's cable ends."""
        return f"port{[LAUNCHER, *self.hosts].index(place)}"

    def home(self, user: str = "root") -> str:
        """The user's home, as a path in the lab."""
        return HOMES[user]

    def path(self, place: str, inside: str | Path) -> Path:
        """A path of that place, as this process can open it."""
        return Path(f"/proc/{self._holders[place]}/root{inside}")

    def listens(self, place: str, port: int) -> bool:
        """Somebody listens on this TCP port there."""
        proc = Path(f"/proc/{self._holders[place]}/net")
        rows = [line.split() for file in ("tcp", "tcp6") for line in (proc / file).read_text().splitlines()[1:]]
        return any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows)

    def processes(self, place: str, mark: str = "") -> tuple[Process, ...]:
        """The living processes of a place that carry the mark, but for those that make the lab itself."""
        others = (process for process in self._all(place) if not is_daemon(process))
        return tuple(process for process in others if process.carries(mark))

    def daemons(self, host: str) -> tuple[Process, ...]:
        """The host's listening sshd, and its slurmd."""
        return tuple(process for process in self._all(host) if is_daemon(process))

    def pids(self, place: str, mark: str = "") -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes(place, mark))

    # ------------------------------------------------------------------------------------ how it is made

    def _spec(self) -> dict[str, Any]:
        places = [LAUNCHER, *self.hosts]
        own = [*(["/tmp", "/dev/shm", *HOMES.values()] if self.split else []), *self.private]
        needed = needed_paths()
        names = "".join(f"{self.address(name)} {name}\n" for name in places)
        return {
            "user": USER,
            "uid": UID,
            "homes": [[HOMES["root"], 0], [HOMES[USER], UID]],
            "needed": needed,
            "etc_hosts": f"127.0.0.1 localhost\n::1 localhost\n{names}",
            "scripts": {"rsh": RSH},
            "sshd_config": SSHD_CONFIG,
            "ssh_config": "".join(f"Host {host}\n    ProxyJump {jump}\n" for host, jump in self.behind.items()),
            "gateway": self.gateway,
            "prefix": self.prefix,
            "places": [
                {
                    "name": name,
                    "port": self.port(name),
                    "address": self.address(name),
                    "daemon": "" if name == LAUNCHER else shlex.join(sshd_command(name)),
                    "own_pids": self.own_pids and name != LAUNCHER,
                    "private": [] if name == LAUNCHER else own,
                    "kept": [path for path in needed if any(Path(folder) in Path(path).parents for folder in own)],
                }
                for name in places
            ],
        }

    def _find_holders(self) -> dict[str, int]:
        """Place -> pid of the process that holds its namespaces."""
        first = child_of(self._tree.pid)
        assert first is not None
        places = {p.environ["NAME"]: p.pid for p in processes() if p.parent == first and "NAME" in p.environ}
        return places | {BRIDGE: first}

    def _all(self, place: str) -> Iterator[Process]:
        """The processes of a place, without the holders of its namespaces and the nsenters that lead into them."""
        net = Path(f"/proc/{self._holders[place]}/ns/net").readlink()
        here = (process for process in processes() if process.net == net)
        return (p for p in here if "OWN_PIDS" not in p.environ and Path(p.argv[0]).name != "nsenter")

    def _enter(self, place: str) -> list[str]:
        target = f"/proc/{self._holders[place]}/ns"
        kinds = {"net": "net", "uts": "uts", "mount": "mnt", "pid": "pid_for_children"}
        return ["nsenter", *(f"--{kind}={target}/{file}" for kind, file in kinds.items()), "--"]

    def _hide(self, host: str, bastion: str) -> None:
        """Nothing from the launcher arrives at the host."""
        family = "ip6" if self.ipv6 else "ip"
        rule = f"{family} saddr {self.address(LAUNCHER)} drop"
        self.nft(host, f"table inet bastion {{\n chain in {{\n type filter hook input priority -300; {rule}\n }}\n}}")


def needed_paths() -> list[str]:
    """What every host must see at the same path: the checkout and its interpreter."""
    return sorted({str(Path(path).resolve()) for path in (REPOSITORY, sys.prefix, sys.base_prefix)})


def is_daemon(process: Process) -> bool:
    return "[listener]" in process.argv[0] or Path(process.argv[0]).name == "slurmd"


def wait_for(condition: Callable[[], bool], what: str, timeout: float = 10) -> None:
    """Return as soon as it holds; TimeoutError after `timeout` seconds, or see `out_of_patience`."""
    began = time.monotonic()
    while not condition():
        if out_of_patience(began, timeout):
            raise TimeoutError(f"{what}: not within {timeout} s")
        time.sleep(0.01)


def machine_is_busy() -> bool:
    """More processes want a CPU than three for each: what takes time then says nothing of nvrun."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return running > 3 * (os.cpu_count() or 1)


def out_of_patience(began: float, seconds: float) -> bool:
    """What began then has had its seconds; on a busy machine six times as many."""
    passed = time.monotonic() - began
    return passed > 6 * seconds or (passed > seconds and not machine_is_busy())


def sshd_command(host: str) -> list[str]:
    state = f"/run/lab/{host}"
    files = ["-f", "/run/lab/sshd_config", "-h", f"{state}/host_key", "-E", f"{state}/sshd.log"]
    return ["/usr/sbin/sshd", *files, "-o", f"PidFile={state}/sshd.pid"]


def base_environment(user: str) -> dict[str, str]:
    return {"HOME": HOMES[user], "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "LANG": "C.UTF-8", "PATH": PATH}


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def why_not() -> str | None:
    """Why a lab cannot be made here, or None."""
    if os.geteuid() != 0:
        return "the lab needs root (network namespaces)"
    if absent := [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]:
        return f"the lab needs {', '.join(absent)} (Debian: openssh-server iproute2 nftables)"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
    )
    return f"no namespaces here: {probe.stderr.strip()}" if probe.returncode else None
