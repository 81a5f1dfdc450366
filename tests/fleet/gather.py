"""A crew whose agents said hello and are sent home again: what a launch does first.

`python -m tests.fleet.gather FLAGS` prints one JSON object; tests run it on the lab's launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab, Running, wait_for

LISTENER = Path(__file__).with_name("listener.py")


def main(argv: Sequence[str]) -> None:
    from nvrun import config, job
    from nvrun.fleet.crew import Ended, gathered

    invocation = config.load([*argv, "train.py"], os.environ)
    the_job = job.read(invocation, os.environ)
    began, wall = time.monotonic(), time.time()
    said: list[str] = []
    with gathered(the_job, os.environ, say=said.append, show=lambda line: None) as crew:
        with contextlib.suppress(Ended):
            crew.greet()
        took = time.monotonic() - began
    answer = {
        "hello": {crew.names[host]: body for host, body in crew.hello.items()},
        "findings": {finding.host: [finding.code, finding.message, finding.remedy] for finding in crew.findings},
        "began": wall,
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


def finding(answer: Any, host: str) -> tuple[str, str, str]:
    """Code, message and remedy of a host's one finding; both are one line."""
    code, message, remedy = answer["findings"][host]
    assert "\n" not in message + remedy
    assert remedy
    assert host not in answer["hello"]
    return code, message, remedy


@contextlib.contextmanager
def listener(lab: Lab, host: str, manner: str, port: int) -> Iterator[Running]:
    """Something that is no sshd on a port of a host."""
    with lab.popen([sys.executable, LISTENER, manner, str(port)], place=host) as running:
        wait_for(lambda: lab.listens(host, port), "the listener")
        try:
            yield running
        finally:
            running.kill()


@contextlib.contextmanager
def changed_file(path: Path, text: str) -> Iterator[None]:
    """The file has this text; it is as it was, or gone, afterwards."""
    before = path.read_text() if path.exists() else None
    path.write_text(text)
    try:
        yield
    finally:
        path.unlink() if before is None else path.write_text(before)


@contextlib.contextmanager
def config(lab: Lab, text: str) -> Iterator[Path]:
    """A configuration for --ssh-config on the launcher."""
    path = lab.path("launcher", lab.home()) / "config.test"
    with changed_file(path, text):
        yield Path(lab.home()) / "config.test"


def interpreter(folder: Path, sitecustomize: str) -> Path:
    """A virtual environment whose site-packages has this sitecustomize."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    (folder / "bin" / "python").symlink_to(f"{sys.base_prefix}/bin/{version}")
    (site / "sitecustomize.py").write_text(sitecustomize + "\n")
    return folder / "bin" / "python"


if __name__ == "__main__":
    main(sys.argv[1:])
