"""A crew whose agents said hello and are sent home again: what a launch does first.

`python -m tests.fleet.gather FLAGS` prints one JSON object; tests run it on the lab's launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab


def main(argv: Sequence[str]) -> None:
    from nvrun import config, job
    from nvrun.fleet.crew import Ended, gathered

    invocation = config.load([*argv, "train.py"], os.environ)
    the_job = job.read(invocation, os.environ)
    began = time.monotonic()
    said: list[str] = []
    with gathered(the_job, os.environ, say=said.append, show=lambda line: None) as crew:
        with contextlib.suppress(Ended):
            crew.greet()
        took = time.monotonic() - began
    answer = {
        "hello": {crew.names[host]: body for host, body in crew.hello.items()},
        "findings": {finding.host: [finding.code, finding.message, finding.remedy] for finding in crew.findings},
        "seconds": took,
        "closed": time.monotonic() - began - took,
        "kinds": the_job.kinds,
        "said": said,
    }
    print(json.dumps(answer))


def gather(lab: Lab, *flags: str, user: str = "root", env: Mapping[str, str] | None = None, timeout: float = 30) -> Any:
    """What main() prints, run on the lab's launcher."""
    command = [sys.executable, "-m", "tests.fleet.gather", *flags]
    root = str(Path(__file__).parents[2])
    done = lab.run(command, user=user, env={"PYTHONPATH": root, **(env or {})}, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # nothing of paramiko's threads, nothing left open
    return json.loads(done.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
