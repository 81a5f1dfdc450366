"""The shim before each rank: sent through the supervisor's socket and executed in the rank's own process.

It waits there for GO, then becomes the rank by exec: same pid, nothing written on the host, no parent left in between.
`sock` is connected already, by the few words of nvrun.plan that torchrun starts. Only what the job's interpreter has
under -I -S is used.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import sys
from typing import Any


def receive_plan(sock: socket.socket) -> "tuple[dict[str, Any], list[int]]":
    """The plan and the descriptors that came with it; the supervisor's end means that the run is over."""
    data, fds, _, _ = socket.recv_fds(sock, 4, 8)
    while data and len(data) < 4:
        data += sock.recv(4 - len(data))
    if not data:
        sys.exit(143)
    (left,) = struct.unpack("!I", data)
    body = b""
    while len(body) < left:
        part = sock.recv(left - len(body))
        if not part:
            sys.exit(143)
        body += part
    return json.loads(body), list(fds)


def main(sock: socket.socket) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: outlives every exec below
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
             "TORCHELASTIC_ERROR_FILE", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
    hello = {"pid": os.getpid(), "env": {name: os.environ.get(name, "") for name in names}}
    sock.sendall(json.dumps(hello).encode() + b"\n")
    plan, fds = receive_plan(sock)
    for target, fd in enumerate(fds, start=1):
        os.dup2(fd, target)
        os.close(fd)
    for name in plan["unset"]:
        os.environ.pop(name, None)
    if plan.get("traced"):  # PR_SET_PTRACER: where Yama lets only ancestors look, the supervisor's children may
        ctypes.CDLL(None).prctl(0x59616D61, sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED), 0, 0, 0)
    os.environ.update(plan["set"])
    if plan.get("cpus"):
        os.sched_setaffinity(0, plan["cpus"])
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):  # ignored so that they cannot stop torchrun
        signal.signal(number, signal.SIG_DFL)
    argv = plan["prefix"] + sys.argv[1:]
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        why = error.strerror
        if isinstance(error, FileNotFoundError) and os.path.exists(argv[0]):
            why = "the interpreter that it names is not there"
        sys.stderr.write("nvrun: cannot run %s: %s\n" % (argv[0], why))
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


main(globals()["sock"])
