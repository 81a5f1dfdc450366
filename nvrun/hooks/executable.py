"""Any executable as a hook: called with `before` and with `after` on each host."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from nvrun.errors import UsageError
from nvrun.hooks.model import Completed, HookFailed, Job
from nvrun.options import seconds

TIMEOUT = 30.0
"""Seconds that each of the two calls may take on a host; `timeout=` is the one option nvrun itself reads."""


class Executable(NamedTuple):
    """A program that travels to the hosts."""

    name: str
    program: bytes
    environment: Mapping[str, str]
    timeout: float = TIMEOUT

    def around(self, job: Job, options: object) -> Generator[None, None, None]:
        before = self._call(job, "before")
        failed = [each for each in before.values() if not each.ok]
        if failed:
            undone = [host for host, each in before.items() if each.ok]
            for each in self._call(job, "after", undone).values() if undone else ():
                if not each.ok:
                    job.warn(f"{self.name} after, on {each.host}: {each.words}", host=each.host)
            raise HookFailed("; ".join(f"{each.host}: {each.words}" for each in failed))
        yield
        for each in self._call(job, "after").values():
            if not each.ok:
                job.warn(f"{self.name} after, on {each.host}: {each.words}", host=each.host)

    def _call(self, job: Job, moment: str, hosts: list[str] | None = None) -> dict[str, Completed]:
        found = job.on_hosts(
            [self.name, moment], program=self.program, env=self.environment, hosts=hosts, timeout=self.timeout
        )
        for host, each in found.items():
            for line in each.stdout.splitlines():
                job.say(f"{self.name}: {host}: {line}")
            if each.cut_bytes:
                job.say(f"{self.name}: {host}: {each.cut_bytes} bytes more")
        return found


def executable(name: str, program: bytes, given: Mapping[str, str], where: str) -> Executable:
    """The hook of a program; `given` options reach it as NVRUN_HOOK_<NAME>."""
    timeout = TIMEOUT
    if "timeout" in given:
        try:
            timeout = seconds(given["timeout"])
        except ValueError as error:
            raise UsageError(f"{where}: timeout: expected {error}, got {given['timeout']!r}") from None
    environment = {"NVRUN_HOOK_" + option.replace("-", "_").upper(): value for option, value in given.items()}
    return Executable(name, program, environment, timeout)
