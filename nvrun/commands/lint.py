"""`nvrun lint`: mistakes in the environment here, in recorded ones, or in job scripts and conf files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from nvrun.commands import Said
from nvrun.commands.recorded import read_facts
from nvrun.config import Invocation
from nvrun.environment import SYSTEM_CONF, conf_variables
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.model import Finding, Severity, Verdict, worst_first
from nvrun.nccl import parse
from nvrun.nccl.lint import lint_hosts, lint_script, lint_settings
from nvrun.nccl.setting import Setting
from nvrun.report import findings
from nvrun.report.document import document

LARGEST = 4 << 20
"""Bytes of a script; nobody writes a longer one by hand."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits with 1 where an error was found."""
    hosts = read_facts(invocation.options.from_) if invocation.options.from_ else ()
    nccl = invocation.flags.get("--nccl") or next((_nccl(host) for host in hosts if _nccl(host)), None)
    if nccl and not parse.version(nccl):
        raise UsageError(f"--nccl: expected a version as 2.28.9, got {nccl!r}")
    if invocation.words:
        facts = hosts[0] if hosts else None
        found = [each for name in invocation.words for each in lint_script(_text(name), name, nccl=nccl, facts=facts)]
    elif hosts:
        found = _of_hosts(hosts, invocation.flags.get("--nccl"))
    else:
        found = lint_settings(settings_of(environ, dict(_conf_files(environ))), nccl=nccl)
    found = worst_first(found)
    exit_code = int(any(finding.severity >= Severity.ERROR for finding in found))
    if invocation.options.json:
        return Said(document(findings=found), exit_code)
    lines = [line.text for line in findings.lines(Verdict(findings=tuple(found)), least=Severity.INFO, most=len(found))]
    if not invocation.words:
        what = f"the environments of {len(hosts)} recorded hosts" if hosts else _looked_at(environ)
        lines.append(f"looked at {what}; nvrun lint FILE looks at a job script or conf file")
    return Said("".join(f"{line}\n" for line in lines), exit_code)


def _looked_at(environ: Mapping[str, str]) -> str:
    """The environment here and the conf files there are, in words."""
    number = sum(name.startswith("NCCL_") for name in environ)
    files = [path for path, _ in _conf_files(environ)]
    variables = f"this environment ({number or 'no'} NCCL variable{'' if number == 1 else 's'})"
    return f"{variables} and {' and '.join(files) if files else 'no conf file, for there is none'}"


def settings_of(environ: Mapping[str, str], conf_files: Mapping[str, str]) -> list[Setting]:
    """What holds in a process with this environment, beside these files."""
    from_files = [
        Setting(name=variable.name, value=variable.value, where=variable.source, syntax="conf")
        for variable in conf_variables(conf_files, environ)
        if variable.name not in environ
    ]
    return [*from_files, *(Setting(name=name, value=text, where="environment") for name, text in environ.items())]


def _of_hosts(hosts: Iterable[HostFacts], nccl: str | None) -> list[Finding]:
    found: list[Finding] = []
    environments: dict[str, dict[str, str]] = {}
    for host in hosts:
        settings = settings_of(host.env or {}, host.conf_files or {})
        environments[host.host] = {setting.name: setting.value for setting in settings}
        for finding in lint_settings(settings, nccl=nccl or _nccl(host), facts=host):
            found.append(msgspec.structs.replace(finding, host=finding.host or host.host))
    return [*found, *lint_hosts(environments)]


def _nccl(host: HostFacts) -> str | None:
    return host.software.nccl if host.software else None


def _conf_files(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The conf files that NCCL would read here, as far as they are there."""
    own = environ.get("NCCL_CONF_FILE") or f"{environ.get('HOME', '')}/.nccl.conf"
    for path in (own, SYSTEM_CONF):
        if Path(path).is_file():
            yield path, _text(path)


def _text(name: str) -> str:
    try:
        with open(name, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from None
    if len(data) > LARGEST or b"\0" in data:
        raise UsageError(f"{name}: expected a script or a conf file of at most {LARGEST >> 20} MiB of text")
    return data.decode(errors="replace")
