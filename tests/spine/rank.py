"""A rank for tests that need no torch: quiet unless told, does what its arguments say, in their order.

    ready            touch the file $READY.<rank>, so that a test knows that it runs
    deaf             ignore SIGTERM
    checkpoint:S     on SIGTERM work for S seconds, then touch $READY.<rank>.saved and exit 0
    closed           no process of an ordinary user may look into it, as where Yama forbids ptrace
    daemon           leave a double-forked daemon with an empty environment behind
    wait             until the file $READY.go is there
    sleep            for ever
    fail:RANK:CODE   that rank exits with CODE (negative: a signal it sends itself), after a word on stderr
    quit:RANK:CODE   that rank exits with CODE, without a word
    print:RANK:MB    that rank prints so many MB in lines of 100 bytes
    gush:RANK:MB     that rank writes so many MB to stderr without a newline
    raw:RANK:HEX     that rank writes these bytes to stdout
    lines:N          print N numbered lines
    pace             until $READY.go is there print 4 kB every 2 ms, and keep the count of it in $READY.<rank>.paced
    tell:NAME        write sys.argv and that variable to $READY.<rank>.told as JSON
    signals          write each SIGUSR1 and SIGUSR2 to $READY.<rank>.signals

How many seconds a rank took to print or gush it writes to $READY.<rank>.took.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from functools import partial
from pathlib import Path

RANK = int(os.environ["RANK"])


def mark(suffix: str = "", text: str = "") -> None:
    with open(f"{os.environ['READY']}.{RANK}{suffix}", "a") as file:
        file.write(text)


def daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", "left-behind"], {})
        os._exit(0)
    os.wait()


def save(seconds: float, number: int, frame: object) -> None:
    time.sleep(seconds)
    mark(".saved")
    os._exit(0)


def pace() -> None:
    with open(f"{os.environ['READY']}.{RANK}.paced", "w") as count:
        step = 0
        while not Path(os.environ["READY"] + ".go").exists():
            step += 1
            print("x" * 4000, flush=True)
            count.seek(0)
            count.write(f"{step:012d}")
            count.flush()
            time.sleep(0.002)


def main() -> None:
    for action in sys.argv[1:]:
        name, *values = action.split(":")
        mine = values[:1] == [str(RANK)]
        if name == "ready":
            mark()
        elif name == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif name == "closed":
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        elif name == "checkpoint":
            signal.signal(signal.SIGTERM, partial(save, float(values[0])))
        elif name == "daemon":
            daemon()
        elif name == "wait":  # select: libfaketime lets Python's sleep fail (EINVAL) where it comes too late
            while not Path(os.environ["READY"] + ".go").exists():
                select.select([], [], [], 0.01)
        elif name == "sleep":
            select.select([], [], [], 600)
        elif name == "signals":
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, lambda number, frame: mark(".signals", signal.Signals(number).name + "\n"))
        elif name == "fail" and mine:
            print("Traceback (most recent call last):\nValueError: this rank fails on purpose", file=sys.stderr)
            code = int(values[1])
            if code < 0:
                os.kill(os.getpid(), -code)
            sys.exit(code)
        elif name == "quit" and mine:
            sys.exit(int(values[1]))
        elif name == "print" and mine:
            block = "".join(f"{line:09d} {'x' * 89}\n" for line in range(10_000))
            started = time.monotonic()
            for _ in range(int(values[1])):
                sys.stdout.write(block)
            sys.stdout.flush()
            mark(".took", str(time.monotonic() - started))
        elif name == "gush" and mine:
            started = time.monotonic()
            for _ in range(int(values[1])):
                sys.stderr.buffer.write(b"y" * 1_000_000)
            sys.stderr.flush()
            mark(".took", str(time.monotonic() - started))
        elif name == "raw" and mine:
            os.write(1, bytes.fromhex(values[1]))
        elif name == "lines":
            print("".join(f"line {number} of rank {RANK}\n" for number in range(int(values[0]))), end="", flush=True)
        elif name == "pace":
            pace()
        elif name == "tell":
            mark(".told", json.dumps({"argv": sys.argv, "value": os.environ.get(values[0])}))
            break


if __name__ == "__main__":
    main()
