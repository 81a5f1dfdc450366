"""Headless Chromium, driven by the DevTools protocol over a pipe: a page at a width and in a colour scheme."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page in one browser."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.said: list[str] = []
        """Errors and warnings of the console, exceptions, and requests that left the file."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; its result."""
        number = next(self._numbers)
        body: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            body["sessionId"] = self._session
        os.write(self._send, json.dumps(body).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    def open(self, path: Path, *, width: int, scheme: Literal["light", "dark"]) -> None:
        """Loads the file and waits until its charts are drawn, or a few seconds."""
        self.said.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + 60
        ready = "document.readyState === 'complete' && location.protocol === 'file:'"
        while not self.value(ready) and time.monotonic() < deadline:
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """What the expression is in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._receive], [], [], 60)[0]:
                raise TimeoutError("the browser is silent")
            data = os.read(self._receive, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        kind, about = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.said.append(str(about["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.said.append(f"{about['type']}: {about['args']}")
        elif kind == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.said.append(str(about["entry"]))
        elif kind == "Network.requestWillBeSent" and not about["request"]["url"].startswith(
            ("file:", "data:", "blob:")
        ):
            self.said.append(f"asked for {about['request']['url']}")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty profile, gone at the end."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="nvrun-chromium-", ignore_cleanup_errors=True) as profile:
        theirs, send = os.pipe()
        receive, out = os.pipe()

        def place() -> None:
            """The protocol is spoken on descriptors 3 and 4."""
            source, sink = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs, out))
            os.dup2(source, 3)
            os.dup2(sink, 4)

        argv = [PROGRAM, *_FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   preexec_fn=place, pass_fds=(3, 4), start_new_session=True)  # fmt: skip
        os.close(theirs)
        os.close(out)
        try:
            yield Browser(send, receive)
        finally:
            os.close(send)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
            os.close(receive)
