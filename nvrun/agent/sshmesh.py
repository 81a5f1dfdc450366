"""ssh from this host to others, as a framework of the job would use it: no password, no question, nothing written."""

from __future__ import annotations

import selectors
import signal
import subprocess
import time
from functools import partial
from typing import Any, Dict, List

from . import procs

_AT_ONCE = 8
"""sshd begins to drop connections at ten that have not logged in yet (sshd_config(5), MaxStartups)."""
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=5", "UpdateHostKeys=no", "ControlMaster=no", "ControlPath=none")


def ssh_argv(peer: Dict[str, Any]) -> List[str]:
    argv = ["ssh", *(word for option in _OPTIONS for word in ("-o", option))]
    if peer.get("port"):
        argv += ["-p", str(peer["port"])]
    if peer.get("user"):
        argv += ["-l", peer["user"]]
    return [*argv, "--", peer["name"], "true"]


def reach(request: Dict[str, Any]) -> Dict[str, str]:
    """Name of each peer -> "" or ssh's last words. `seconds`: what one connection has."""
    waiting = list(request["peers"])
    running: Dict[str, Any] = {}
    answers: Dict[str, str] = {}
    while waiting or running:
        while waiting and len(running) < _AT_ONCE:
            peer = waiting.pop(0)
            try:
                process = subprocess.Popen(
                    ssh_argv(peer),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    preexec_fn=partial(procs.set_pdeathsig, signal.SIGKILL),
                )
            except OSError as error:
                answers[peer["name"]] = "ssh: %s" % error.strerror
                continue
            running[peer["name"]] = (process, time.monotonic() + request["seconds"])
        _wait(running, answers, request["seconds"])
    return answers


def _wait(running: Dict[str, Any], answers: Dict[str, str], seconds: float) -> None:
    """Until one of them has ended or has had its time."""
    with selectors.DefaultSelector() as selector:
        for name, (process, _) in running.items():
            selector.register(process.stderr, selectors.EVENT_READ, name)
        deadline = min((end for _, end in running.values()), default=0.0)
        ready = [key.data for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
    late = [name for name, (_, end) in running.items() if end <= time.monotonic()]
    for name in {*ready, *late}:
        process, end = running.pop(name)
        if name not in ready:
            process.kill()
        try:
            words = process.communicate(timeout=max(0.1, end - time.monotonic()))[1]
        except subprocess.TimeoutExpired:
            process.kill()
            words = process.communicate()[1]
        lines = words.decode(errors="replace").strip().splitlines()
        if name in late:
            answers[name] = "no answer in %g s" % seconds
        elif process.returncode:
            answers[name] = lines[-1] if lines else "exit status %d" % process.returncode
        else:
            answers[name] = ""
