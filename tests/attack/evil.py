"""Speaks the agent's protocol up to one point, and then something else. For `--rsh 'python evil.py AT WHAT'`.

AT is the request that gets the wrong answer: hello, pong, prepared, facts. WHAT is the answer as a Python expression
that gives bytes; "" is a host that answers that request well and then goes on to the next wrong thing.
"""

from __future__ import annotations

import json
import os
import sys
import time

from nvrun.agent import wire

at, what = sys.argv[1:3]
GOOD = {
    "hello": {"t": "hello", "uid": 0, "hostname": "h", "executable": "/usr/bin/python3",
              "addresses": [["eth0", "10.9.9.9"]], "gpus": 0, "cpus": 1},
    "pong": {"t": "pong", "time": time.time()},
    "prepared": {"t": "prepared", "folder": "/nowhere", "shared": False, "port": 29500},
}  # fmt: skip
ASKED = {"you": "hello", "ping": "pong", "prepare": "prepared", "facts": "facts"}


def say(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def message(body: object) -> bytes:
    """A whole message, whatever it is."""
    return b"".join(wire.frames(0, wire.MESSAGE, body if isinstance(body, bytes) else json.dumps(body).encode()))


sys.stdin.buffer.readline()  # the start's line of sh
for _ in range(5):  # the bundle's blocks
    sys.stdin.buffer.read(int(sys.stdin.buffer.read(8), 16))
for line in sys.stdin.buffer:
    kind = ASKED.get(json.loads(line)["t"], "")
    if kind and kind == at:
        try:
            say(eval(what, {"message": message, "wire": wire, "GOOD": GOOD}))  # the test's own words
        except BrokenPipeError:
            break
    elif kind in GOOD:
        say(message(GOOD[kind]))
