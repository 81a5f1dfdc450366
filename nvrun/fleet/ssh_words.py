"""What the ssh program says on standard error, as one of our codes. Pure.

The sentences are those of OpenSSH 7 to 10 (sshconnect.c, kex.c, packet.c, ssh.c); the first row that fits counts.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Meaning(NamedTuple):
    """Of a sentence of ssh."""

    pattern: str
    code: str
    cause: str
    """In words, after the host's name; the pattern's groups fill it."""
    hint: str = ""
    again: bool = False
    """Another try may succeed: refused or dropped before sshd's banner."""


FORWARD = "does the jump host allow it (AllowTcpForwarding), and reach that name and port itself?"
KEYS = "ssh-copy-id {login}, or load the key: ssh-add"

MEANINGS = (
    Meaning(r"REVOKED HOST KEY|is marked as revoked", "host-key-changed", "its host key is marked as revoked",
            "ask whoever runs the host for its new key"),
    Meaning(r"REMOTE HOST IDENTIFICATION HAS CHANGED", "host-key-changed", "its host key is not the one in known_hosts",
            "if the host was reinstalled: ssh-keygen -R {name} && ssh {name} true"),
    Meaning(r"No (\S+) host key is known for (\S+) and you have requested|Host key verification failed",
            "host-key-unknown", "its host key is not known here",
            "compare the fingerprint that this shows, and say yes: ssh {name} true"),
    Meaning(r"open failed: (?:connect failed|administratively prohibited)?:? ?(.*)", "host-unreachable",
            "its jump host cannot connect to it: {1}", FORWARD),
    Meaning(r"Could not resolve hostname (\S+?):? (.+)", "host-name-unknown", "{1} has no address: {2}",
            "getent hosts {name}; add it to DNS, /etc/hosts, or a HostName line in ~/.ssh/config"),
    Meaning(r"connect to (?:host|address) (\S+) port (\d+): Connection refused", "host-refused",
            "{1} port {2} refused the connection",
            "is sshd running there, and is this its port? (systemctl status ssh)",
            again=True),
    Meaning(r"connect to (?:host|address) (\S+) port (\d+): (?:Connection|Operation) timed out", "host-silent",
            "no answer from {1} port {2}", "is the host up, and does a firewall drop its ssh port?"),
    Meaning(r"connect to (?:host|address) (\S+) port (\d+): (.+)", "host-unreachable", "cannot reach {1} port {2}: {3}",
            "ip route get {1}; is the host up and in this network?"),
    Meaning(r"Connection timed out during banner exchange|Connection to \S+ port \d+ timed out", "host-ssh-hung",
            "its port accepted the connection, but sshd does not speak",
            "sshd hangs or the host is overloaded: look at its console"),
    Meaning(r"(?:kex_exchange_identification|ssh_exchange_identification|banner exchange).*"
            r"(?:[Cc]losed by remote host|[Rr]eset by peer|Broken pipe)", "host-ssh-hung",
            "sshd dropped the connection before its banner",
            "too many connections at once (MaxStartups), or a ban (PerSourcePenalties, fail2ban)", again=True),
    Meaning(r"banner line contains invalid|Bad remote protocol version|banner exchange: .*invalid format",
            "host-ssh-protocol", "what listens there does not speak ssh", "is it the right port?"),
    Meaning(r"Unable to negotiate with .*: (no matching .+)", "host-ssh-protocol", "{1}",
            "ssh {name} true; allow it by KexAlgorithms, HostKeyAlgorithms or Ciphers in ~/.ssh/config"),
    Meaning(r"UNPROTECTED PRIVATE KEY FILE|Permissions \S+ for '(.+)' are too open", "host-auth",
            "a private key is readable by others, and ssh does not use it", "chmod 600 ~/.ssh/id_*"),
    Meaning(r"Too many authentication failures", "host-auth", "it was offered too many keys before the right one",
            "IdentitiesOnly yes and IdentityFile for this host in ~/.ssh/config"),
    Meaning(r"Permission denied \((.*)\)", "host-auth", "none of the keys tried is accepted (it takes: {1})", KEYS),
    Meaning(r"(Bad owner or permissions on .+|Bad configuration option: .+|.*bad configuration options|jumphost loop.*"
            r"|hostname contains invalid characters|Can't open user config file .+)", "host-ssh-config",
            "its ssh configuration cannot be used: {1}", "ssh -G {name}"),
    Meaning(r"Connection (?:closed|reset) by (\S+) port (\d+)", "host-auth",
            "{1} port {2} ended the connection at login",
            "its log says why: journalctl -u ssh; account locked, no home folder, AllowUsers?"),
)  # fmt: skip
"""Sentences that ssh ends with, most telling first."""


_END = re.compile(r" ?\(ended (?:with -?\d+|by a signal)\)$")


class Explained(NamedTuple):
    code: str
    cause: str
    hint: str
    again: bool


def explain(said: str, name: str, login: str | None = None) -> Explained | None:
    """The meaning of ssh's words for the host `name`; None where they hold no sentence that is known."""
    said = without_end(said)
    for meaning in MEANINGS:
        found = re.search(meaning.pattern, said)
        if found:
            fill = [group or "" for group in (found[0], *found.groups())]
            words = {"name": name, "login": login or name}
            cause = meaning.cause.format(*fill, **words).rstrip(": ")
            return Explained(meaning.code, cause, meaning.hint.format(*fill, **words), meaning.again)
    return None


def tells_end(said: str) -> bool:
    """Whether a link's last words say how the far command ended: `(ended with 3)`, `(ended by a signal)`."""
    return bool(_END.search(said))


def without_end(said: str) -> str:
    """The words without that."""
    return _END.sub("", said)


def without_chatter(said: str) -> str:
    """The words without what ssh tells at LogLevel VERBOSE about a connection that went well, and what srun says where
    the cluster binds no CPUs."""
    chatter = r"Authenticated to |Transferred: |Bytes per second: |Warning: Permanently added "
    chatter += "|srun: cluster configuration lacks support for cpu binding"
    return "\n".join(line for line in said.splitlines() if not re.match(chatter, line))
