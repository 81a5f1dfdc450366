"""Facts and a job in, verdict out. What could not be judged is shown, and a check that fails counts as an error."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from nvrun.checks.check import CHECKS, Check, arguments
from nvrun.checks.code import ERROR, declare
from nvrun.checks.compare import groups_of
from nvrun.checks.job import Job, complete
from nvrun.facts import SECTIONS, HostFacts
from nvrun.model import Finding, Skipped, Verdict

CRASHED = declare(
    "check-crashed",
    ERROR,
    "a check itself failed",
    read="the exception that ended the check",
    why="what it should have judged is not known; that must not look like healthy",
    remedy="report it with the facts (nvrun facts --json); --waive check-crashed launches all the same",
    source="nvrun/checks/run.py",
)


_IN_WORDS = {
    "clock_offset_s": "clock",
    "conf_files": "nccl.conf files",
    "env": "environment",
    "gpus_on_pci": "GPUs on PCI",
    "pci": "PCI",
    "xids": "Xids",
}
"""Sections of HostFacts whose names are no words of a user's."""
_OF_GPUS = ("gpu_health", "gpu_links")


def run(fleet: Mapping[str, HostFacts], job: Job) -> Verdict:
    """What all checks say of these hosts; findings in the order of the checks."""
    groups = groups_of(fleet)
    job = complete(job, fleet, groups)
    results: list[Finding | Skipped] = []
    judged: list[str] = []
    for check in CHECKS:
        found = list(_across(check, fleet, job, groups) if check.across else _each(check, fleet, job))
        results += [result for result in found if result is not None]
        if None in found:
            judged.append(check.name)
    return Verdict(
        findings=tuple(result for result in results if isinstance(result, Finding)),
        skipped=tuple(result for result in results if isinstance(result, Skipped)),
        judged=tuple(judged),
    )


def _each(check: Check, fleet: Mapping[str, HostFacts], job: Job) -> Iterator[Finding | Skipped | None]:
    """Findings host by host; None for every host that was judged to the end."""
    for host, facts in fleet.items():
        sections = {name: getattr(facts, name) for name in check.sections}
        lacking = next((name for name, value in sections.items() if value is None), None)
        if lacking is not None and facts.gpus == () and check.family in _OF_GPUS:
            continue  # nothing to say where there is none
        if lacking is not None:
            yield Skipped(code=check.name, host=host, reason=_reason(facts, lacking))
            continue
        context = {"host": host, "facts": facts, "job": job}
        yield from _judge(check, arguments(check, context, sections), host)


def _across(
    check: Check, fleet: Mapping[str, HostFacts], job: Job, groups: tuple[tuple[str, ...], ...]
) -> Iterator[Finding | Skipped | None]:
    if len(fleet) < 2:
        return
    whole: dict[str, HostFacts] = {}
    for host, facts in fleet.items():
        lacking = next((name for name in check.sections if getattr(facts, name) is None), None)
        if lacking is None:
            whole[host] = facts
        else:
            yield Skipped(code=check.name, host=host, reason=_reason(facts, lacking))
    if len(whole) < 2:
        return
    sections: dict[str, Any] = {
        name: {host: getattr(facts, name) for host, facts in whole.items()} for name in check.sections
    }
    context = {"fleet": fleet, "groups": groups, "job": job}
    yield from _judge(check, arguments(check, context, sections), None)


def _judge(check: Check, asked: Mapping[str, Any], host: str | None) -> Iterator[Finding | Skipped | None]:
    try:
        for result in check.function(**asked):
            if isinstance(result, Skipped):
                yield msgspec.structs.replace(result, code=check.name, host=result.host or host)
            else:
                yield msgspec.structs.replace(result, host=result.host or host) if host else result
        yield None
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not pass for healthy
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = "".join(traceback.format_exception_only(error)).strip()
        yield CRASHED.found(
            f"the check {check.name} failed: {words}",
            host=host,
            subject=check.name,
            evidence=(f"{check.family}: {where.name}, line {where.lineno}",),
        )


def _reason(facts: HostFacts, section: str) -> str:
    if len(facts.missing) == len(SECTIONS) and len(set(facts.missing.values())) == 1:
        return next(iter(facts.missing.values()))  # the host, not the section, is why
    return f"{_IN_WORDS.get(section, section)}: {facts.missing.get(section, 'not read')}"
