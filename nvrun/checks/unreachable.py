"""Hosts on which no agent could be started: every way in which that happens has a code of its own."""

from __future__ import annotations

from nvrun.checks.code import FATAL, Code, declare
from nvrun.model import Finding

_READ = "what the connection, or the program started over it, answered"
_WHY = "a job with this host cannot start; its other nodes would wait until the rendezvous expires"
_SSH = "ssh(1), ssh_config(5), sshd_config(5)"

UNREACHABLE: dict[str, Code] = {}


def _unreachable(code: str, summary: str, remedy: str, *, source: str = _SSH) -> None:
    UNREACHABLE[code] = declare(code, FATAL, summary, read=_READ, why=_WHY, remedy=remedy, source=source)


_unreachable(
    "host-name-unknown",
    "the host's name has no address here",
    "getent hosts NAME on this machine; add it to DNS, /etc/hosts, or a HostName line in ~/.ssh/config",
    source="getaddrinfo(3)",
)
_unreachable(
    "host-silent",
    "nothing answers on the ssh port: the host is off, or a firewall drops the packets",
    "ping it, look at its console; open port 22 from here, or --connect-timeout SECONDS for a slow network",
    source="tcp(7): ETIMEDOUT",
)
_unreachable(
    "host-refused",
    "the host is up, but nothing listens on its ssh port (or a firewall rejects it)",
    "start sshd there, or name the right port: HOST:PORT",
    source="connect(2): ECONNREFUSED",
)
_unreachable(
    "host-unreachable",
    "no route leads to the host",
    "ip route get ADDRESS on this machine; is the host up and in this network?",
    source="connect(2): EHOSTUNREACH, ENETUNREACH",
)
_unreachable(
    "host-ssh-hung",
    "the ssh port is open, but sshd does not answer",
    "the host is overloaded, out of memory, or waits for a dead file server: look at its console",
)
_unreachable(
    "host-dropped",
    "the connection ended before the agent spoke, and nothing tells how its command ended",
    "its sshd's log (journalctl -u ssh), an idle timeout or a firewall between, a reboot: uptime there",
    source="RFC 4254, 6.10: exit-status is sent where the command has ended by itself",
)
_unreachable(
    "host-key-unknown",
    "the host's key is not in known_hosts",
    "ssh-keyscan -H HOST >> ~/.ssh/known_hosts, once you know that the key is right",
    source="sshd(8), SSH_KNOWN_HOSTS FILE FORMAT",
)
_unreachable(
    "host-key-changed",
    "the host shows another key than known_hosts has: it was reinstalled, or this is another machine",
    "ssh-keygen -R HOST, once you know that the new key is right",
    source="sshd(8), SSH_KNOWN_HOSTS FILE FORMAT",
)
_unreachable(
    "host-auth",
    "the host does not let this user in",
    "ssh-copy-id USER@HOST, or load the key: ssh-add; is it the right user?",
)
_unreachable(
    "host-ssh-config",
    "the ssh configuration for this host cannot be used",
    "ssh -G HOST shows what it comes to",
)
_unreachable(
    "host-no-transport",
    "the program that reaches hosts could not be started here",
    "install it (openssh-client, Slurm's srun), or name another with --rsh or --fleet",
    source="execve(2)",
)
_unreachable(
    "host-ssh-protocol",
    "what listens on the ssh port does not speak ssh, or knows no algorithm that this side does",
    "is it the right port? --ssh openssh knows more algorithms",
)
_unreachable(
    "host-setup-failed",
    "the --setup command failed on the host, or does not end",
    "try it there in bash; what only login shells have (module, conda) needs: source /etc/profile",
    source="bash(1), INVOCATION",
)
_unreachable(
    "host-in-failed",
    "the --in command starts nothing on the host",
    "try it there by hand: is the program there, and the image?",
    source="execve(2)",
)
_unreachable(
    "host-input-read",
    "a start file of the login shell reads the input that is for the agent",
    "read, cat and their like in ~/.bashrc, or in what it sources, only in a terminal: [ -t 0 ]",
    source="bash(1), INVOCATION: bash reads ~/.bashrc where sshd started it",
)
_unreachable(
    "host-no-python",
    "no Python interpreter was found on the host",
    "--python PATH names the host's interpreter; --setup CMD prepares its environment (module load, conda activate)",
    source="design of nvrun: an agent needs Python 3.9 and nothing else",
)
_unreachable(
    "host-old-python",
    "the host's Python is too old",
    "--python PATH: one from 3.9 on",
    source="design of nvrun: an agent needs Python 3.9 and nothing else",
)
_unreachable(
    "host-no-agent",
    "connected, but the agent did not start or does not speak",
    "a login script that waits, a full process table, no memory, or an MTU black hole on the way: try ssh HOST true",
)
_unreachable(
    "host-no-folder",
    "the agent finds no folder for its files on the host",
    "make room (df -h, df -i) in TMPDIR or /tmp there, writable for the job's user, or remove what lies in its place; "
    "--setup 'export TMPDIR=DIR' names another",
    source="mkdtemp(3)",
)
_unreachable(
    "host-no-proc",
    "the host's /proc does not show the agent's own processes",
    "mount -t proc proc /proc there; a container or --in command with its own pid namespace mounts its own /proc: "
    "unshare --mount-proc",
    source="proc(5); pid_namespaces(7): what a job leaves behind is found, and ended, by what /proc shows",
)


def from_unreachable(host: str, code: str, message: str, hint: str) -> Finding:
    """The finding for a host that was not reached. `message` may begin with the host's name, as the error has it."""
    known = UNREACHABLE.get(code)
    text = message.removeprefix(f"{host}: ")
    if known is None:  # a transport of someone else may have kinds of its own
        return Finding(code=code, severity=FATAL, host=host, message=text, remedy=hint)
    return known.found(text, host=host, remedy=hint or known.remedy)
