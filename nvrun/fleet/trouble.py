"""Why an agent did not come up although its host was reached: from the stage it came to, and the last words. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Literal

from nvrun.fleet import ssh_words
from nvrun.fleet.link import Unreachable
from nvrun.fleet.start import Start

Stage = Literal["connecting", "step", "connected", "shell", "setup", "in", "python"]
"""How far a host is. `step`: srun is asked; `connected`: no word of our command yet (the login shell starts); `shell`:
it runs."""

SECONDS: Mapping[Stage, float] = {
    "connecting": 5.0,
    "step": 60.0,
    "connected": 0.0,
    "shell": 5.0,
    "setup": 120.0,
    "in": 120.0,
    "python": 20.0,
}
"""How long a stage may last; for `connecting` and `connected` beyond --connect-timeout. Slurm may run a prolog, a
set-up load modules from a slow file system, a container its image; a Python there takes seconds, too."""

GARBLED = "its answer is not understood"
_AT_WORK: Mapping[Stage, str] = {
    "shell": "its agent was started",
    "setup": "--setup ran",
    "in": "--in ran",
    "python": "its agent came up",
}
_LINES, _LINE_LENGTH = 5, 200
_PYTHON_HINT = "--python PATH names the host's interpreter, --setup CMD prepares its environment"


def limit(stage: Stage, connect_timeout: float) -> float:
    """Seconds after which a host in this stage is given up."""
    return SECONDS[stage] + (connect_timeout if stage in ("connecting", "connected") else 0.0)


def refused(name: str, code: str, why: str, said: str, start: Start) -> Unreachable:
    """What the start's own shells and the agent's first lines refuse, in their words."""
    if code == "host-no-python":
        has = ", ".join(path.strip() for path in why.split(":") if path.strip())
        tried = ", ".join(start.pythons)
        return Unreachable(
            f"{name}: no Python there: tried {tried}; {f'the host has {has}' if has else 'the host has none'}",
            code=code,
            hint=_PYTHON_HINT,
        )
    if code == "host-setup-failed":
        return Unreachable(
            f"{name}: --setup failed ({why}){tail(ssh_words.without_end(said))}",
            code=code,
            hint="try it there in bash; what only login shells have (module, conda) needs: source /etc/profile",
        )
    if code == "host-input-read":
        return Unreachable(
            f"{name}: a start file of its login shell reads the input that is for the agent",
            code=code,
            hint="in ~/.bashrc or what it sources there: read, cat and their like only in a terminal ([ -t 0 ])",
        )
    if code == "host-in-failed":
        return _in_failed(name, "no such program there", said, start)
    return Unreachable(f"{name}: {why}", code="host-old-python", hint="--python PATH names another")


def ended(name: str, stage: Stage, said: str, start: Start) -> Unreachable:
    """The connection ended before the agent spoke. Where `said` does not tell how the command did, that may have been
    well."""
    if stage in ("connected", "connecting") and (known := ssh_words.explain(said, name)):
        return Unreachable(f"{name}: {known.cause}", code=known.code, hint=known.hint)
    if stage in _AT_WORK and _dropped(said):
        return Unreachable(
            f"{name}: its connection ended while {_AT_WORK[stage]}{tail(said)}",
            code="host-dropped",
            hint=f"does this stay? {start.there(name, 'sleep 60')}; then its sshd's log says who ended it, or the "
            "network between",
        )
    if stage == "setup":
        return refused(name, "host-setup-failed", "it ended the shell", said, start)
    if stage == "in":
        return _in_failed(name, "it ended", said, start)
    if "Unknown option: -I" in said:
        why = "needs Python 3.9 or newer, found Python 2 (it does not know -I)"
        return refused(name, "host-old-python", why, said, start)
    if stage == "connected" and said.endswith("(ended with 0)"):
        return Unreachable(
            f"{name}: its login shell ended and did not run the command{tail(ssh_words.without_end(said))}",
            code="host-no-agent",
            hint="a line of its start files (~/.bashrc) exits, runs another program or has its own exec or printf",
        )
    what = {
        "python": "its Python died at once",
        "shell": "the start ended early",
    }.get(stage, "the command did not run there")
    return Unreachable(
        f"{name}: {what}{tail(said) or ': the connection ended'}",
        code="host-no-agent",
        hint=_PYTHON_HINT if stage == "python" else start.there(name, "true"),
    )


def late(name: str, stage: Stage, seconds: float, said: str, start: Start) -> Unreachable:
    """A stage lasts too long."""
    quoted = shlex.quote(name)
    cause, code, hint = {
        "connecting": (
            "no connection",
            "host-silent",
            f"a name server, an ssh agent, a proxy or a Match exec that hangs: ssh -v {quoted} true",
        ),
        "step": ("srun has started nothing there", "host-no-agent", "squeue --steps; scontrol show node; its prolog?"),
        "connected": (
            "logged in, but its login shell runs no command",
            "host-no-agent",
            "a line of its start files (~/.bashrc) waits or sends the output elsewhere (exec >), or its home folder "
            f"hangs: ssh -t {quoted} bash --norc",
        ),
        "setup": ("--setup has not ended", "host-setup-failed", "does it wait for something? It gets no input"),
        "in": (f"--in {start.within} has not started anything", "host-in-failed", "try it there by hand"),
        "python": (
            "connected, but its agent says nothing",
            "host-no-agent",
            "an interpreter on a dead file system, a full process table, or an MTU black hole on the way there",
        ),
    }[stage if stage != "shell" else "python"]
    return Unreachable(f"{name}: {cause} in {seconds:.3g} s{tail(said)}", code=code, hint=hint)


def _in_failed(name: str, why: str, said: str, start: Start) -> Unreachable:
    return Unreachable(
        f"{name}: --in {start.within}: {why}{tail(said if why == 'it ended' else ssh_words.without_end(said))}",
        code="host-in-failed",
        hint=start.there(name, f"{start.within} true"),
    )


def _dropped(said: str) -> bool:
    """Whether it was the connection that ended: sshd tells how a command ended (RFC 4254, 6.10), the ssh program why a
    connection did."""
    untold = not ssh_words.tells_end(said) and not said.startswith(GARBLED)
    return untold or bool(re.search(r"closed by remote host|send disconnect: |^Timeout, server ", said, re.MULTILINE))


def tail(said: str) -> str:
    """The last lines of what came, on one and as the end of a sentence. Control characters of a host are not for a
    terminal."""
    clean = re.sub(r"[^\x20-\x7e\n\x85\xa0-\U0010ffff]", " ", ssh_words.without_chatter(said))
    lines = [" ".join(line.split())[:_LINE_LENGTH] for line in clean.splitlines() if line.strip()]
    return ": " + " | ".join(lines[-_LINES:]) if lines else ""
