"""A crew whose agents said hello and are sent home again: what a launch does first.

`python -m tests.fleet.gather FLAGS` prints one JSON object; tests ask a process of it on the lab's launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab, Running, wait_for

LISTENER = Path(__file__).with_name("listener.py")


def greeted(argv: Sequence[str]) -> dict[str, Any]:
    """Who said hello, who is not reached and why, and how long that took; or the usage error."""
    from nvrun import config, job
    from nvrun.errors import UsageError
    from nvrun.fleet.crew import Ended, gathered

    try:
        the_job = job.read(config.load([*argv, "train.py"], os.environ), os.environ)
        began, spoke = time.monotonic(), dict[str, float]()
        with gathered(the_job, os.environ, say=lambda line: None, show=lambda line: None) as crew:

            def watch(host: int, stage: str) -> None:
                if stage == "hello":
                    spoke[crew.names[host]] = time.monotonic() - began

            crew.watch = watch
            with contextlib.suppress(Ended):
                crew.greet()
            took = time.monotonic() - began
    except UsageError as error:
        return {"usage": error.message}
    return {
        "hello": {crew.names[host]: body for host, body in crew.hello.items()},
        "findings": {finding.host: [finding.code, finding.message, finding.remedy] for finding in crew.findings},
        "spoke": spoke,
        "seconds": took,
        "kinds": the_job.kinds,
    }


def serve() -> None:
    """One question a line, one answer a line: what is imported once serves many tests."""
    for line in sys.stdin:
        question = json.loads(line)
        before = dict(os.environ)
        os.environ.update(question["env"])
        print(json.dumps(greeted(question["argv"])), flush=True)
        os.environ.clear()
        os.environ.update(before)


class Server:
    """serve() on a lab's launcher, as one user."""

    def __init__(self, lab: Lab, user: str) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._running = lab.popen(
            [sys.executable, "-m", "tests.fleet.gather"],
            user=user,
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stderr=self._said,
        )

    def ask(self, question: object, timeout: float) -> Any:
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        guard = threading.Timer(timeout, self._running.kill)
        guard.start()
        self._running.stdin.write(json.dumps(question) + "\n")
        self._running.stdin.flush()
        answer = self._running.stdout.readline()
        guard.cancel()
        self._said.seek(0)
        said = self._said.read()
        assert not said, said  # nothing of paramiko's threads
        assert answer, f"no answer in {timeout} s"
        return json.loads(answer)

    def close(self) -> None:
        self._running.kill()
        self._running.communicate()
        self._said.close()


_servers: dict[tuple[int, str], Server] = {}


def close_servers() -> None:
    while _servers:
        _servers.popitem()[1].close()


def gather(lab: Lab, *flags: str, user: str = "root", env: Mapping[str, str] | None = None, timeout: float = 60) -> Any:
    """What greeted() returns, on the lab's launcher."""
    key = (lab.tree, user)
    if key not in _servers:
        _servers[key] = Server(lab, user)
    return _servers[key].ask({"argv": flags, "env": dict(env or {})}, timeout)


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
    if sys.argv[1:]:
        print(json.dumps(greeted(sys.argv[1:])))
    else:
        serve()
