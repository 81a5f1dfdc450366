"""`nvrun check` in the lab, and its answer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab

NVRUN = (sys.executable, "-m", "nvrun")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Checked:
    """What one `nvrun check --json` said."""

    code: int
    answer: dict[str, Any]
    seconds: float
    errors: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.answer["findings"]
        return found

    @property
    def serious(self) -> set[tuple[str, str | None]]:
        """Code and host of what is above information (20: warning)."""
        return {(each["code"], each.get("host")) for each in self.findings if each["severity"] >= 20}

    def of(self, code: str) -> dict[str, Any]:
        return next(each for each in self.findings if each["code"] == code)


def check(
    lab: Lab, *flags: str | Path, hosts: Sequence[str] = ("a", "b", "c"), user: str = "root", rsh: bool = False
) -> Checked:
    reach = ["--hosts", ",".join(hosts), *(["--rsh", lab.rsh] if rsh else [])]
    started = time.monotonic()
    done = lab.run([*NVRUN, "check", *reach, "--json", *flags], cwd=ROOT, user=user, timeout=120)
    seconds = time.monotonic() - started
    assert done.stdout, done.stderr
    return Checked(done.returncode, json.loads(done.stdout), seconds, done.stderr)
