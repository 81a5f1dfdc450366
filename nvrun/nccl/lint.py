"""Lint of the NCCL and PyTorch environment, of conf files and of job scripts: settings in, findings out. Pure.

An error stops a launch (`--waive CODE` lifts it): the job would fail, hang, or run with another value than the one
written. Every finding says where the setting stands (`evidence`) and how to write it right (`remedy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvrun.facts import HostFacts
from nvrun.model import Finding, Severity, worst_first
from nvrun.nccl import meanings, parse  # noqa: F401 - declares the codes
from nvrun.nccl.lint_together import together
from nvrun.nccl.lint_values import value_findings
from nvrun.nccl.setting import Given, Setting, found


def lint_script(text: str, name: str, *, nccl: str | None = None, facts: HostFacts | None = None) -> list[Finding]:
    """Findings about a job script, Dockerfile, YAML, Python or conf file; its file name says how to read it."""
    from nvrun.nccl.lint_launch import launcher_lines  # a launch, which lints variables, waits for none of these
    from nvrun.nccl.lint_tasks import tasks_times_ranks
    from nvrun.nccl.scripts import kind_of, settings_of

    found = lint_settings(settings_of(text, name), nccl=nccl, facts=facts, shared=True)
    if kind_of(text, name) == "shell":
        found += [*tasks_times_ranks(text, name), *launcher_lines(text, name)]
    return worst_first(found)


def lint_settings(
    settings: Iterable[Setting], *, nccl: str | None = None, facts: HostFacts | None = None, shared: bool = False
) -> list[Finding]:
    """Findings about settings in the order they take effect; where a name occurs twice, the later one holds.

    `nccl` is the version that will be loaded, `2.28.9`; without it only what holds for every release is said.
    `facts` of the host let device and interface names be checked against what is there.
    `shared`: one text for several hosts, so a value that must differ between hosts is an error.
    """
    every = list(settings)
    given = Given(
        settings={setting.name: setting for setting in every},
        nccl=parse.version(nccl or ""),
        facts=facts,
        shared=shared,
    )
    alone = [finding for setting in every for finding in value_findings(setting, given)]
    return worst_first([*alone, *together(given)])


MUST_AGREE = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_CHUNK_SIZE",
    "NCCL_NET",
    "NCCL_SOCKET_MAGIC",
    "NCCL_CUMEM_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_NET_CHUNKSIZE",
)
"""Variables from which every rank derives the same schedule or message sizes: ranks that disagree hang, or fail with
`message truncated ... mismatch in collective sizes or environment settings`."""


def lint_hosts(hosts: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Findings about the environments of several hosts (host name -> variables) that none has by itself."""
    findings: list[Finding] = []
    for name in MUST_AGREE:
        values = _by_value(hosts, name)
        if len(values) > 1:
            common = max(values, key=lambda value: len(values[value]))
            for value, holders in values.items():
                if value != common:
                    findings.append(
                        found(
                            Setting(name=name, value=value, where="environment"),
                            "nccl-hosts-disagree",
                            Severity.ERROR,
                            f"{name} is {value or 'unset'} on {', '.join(holders)} and {common or 'unset'} elsewhere:"
                            " all ranks need the same",
                            right=common or None,
                            remedy=f"unset {name}",
                            host=holders[0] if len(holders) == 1 else None,
                        )
                    )
    for identity, holders in _by_value(hosts, "NCCL_HOSTID").items():
        if identity and len(holders) > 1:
            findings.append(
                found(
                    Setting(name="NCCL_HOSTID", value=identity, where="environment"),
                    "nccl-hostid-constant",
                    Severity.ERROR,
                    f"NCCL takes {', '.join(holders)} for one host: they share NCCL_HOSTID={identity}",
                    remedy="unset NCCL_HOSTID, or give each host its own",
                )
            )
    for file, holders in _by_value(hosts, "NCCL_DEBUG_FILE").items():
        if file and len(holders) > 1 and "%h" not in file and not file.startswith("/dev/"):
            findings.append(
                found(
                    Setting(name="NCCL_DEBUG_FILE", value=file, where="environment"),
                    "nccl-debug-file-hosts",
                    Severity.INFO,
                    f"NCCL_DEBUG_FILE without %h: on a shared file system {', '.join(holders)} may write the same file",
                    right=f"{file}.%h" if "%p" in file else f"{file}.%h.%p",
                )
            )
    return worst_first(findings)


def _by_value(hosts: Mapping[str, Mapping[str, str]], name: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for host, variables in hosts.items():
        values.setdefault(variables.get(name, ""), []).append(host)
    return values
