"""A rank that writes down where it is and each signal it gets: lines in $PLACE/<rank>.

After its first SIGTERM it works for two more seconds, as one does that saves a checkpoint, and exits with 0.
"""

from __future__ import annotations

import os
import signal
import time

END_SECONDS = 2.0
WATCHED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


def main() -> None:
    path = f"{os.environ['PLACE']}/{os.environ['RANK']}"
    end = time.monotonic() + 150

    def note(words: str) -> None:
        with open(path, "a") as file:
            file.write(words + "\n")

    def came(number: int, frame: object) -> None:
        nonlocal end
        note(signal.Signals(number).name)
        if number == signal.SIGTERM:
            end = min(end, time.monotonic() + END_SECONDS)

    for number in WATCHED:
        signal.signal(number, came)
    note(f"on {os.uname().nodename} {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    while time.monotonic() < end:
        time.sleep(0.05)
    note("saved")


if __name__ == "__main__":
    main()
