"""A verdict as Prometheus text, for node_exporter's textfile collector. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nvrun.model import Severity, Verdict


def text(verdict: Verdict, hosts: Iterable[str], *, at: float) -> str:
    """Gauges: findings by host, code and severity; checks that could not judge; whether a host is fit; the time.

    `hosts`: all that were looked at, so that a healthy one has a value too. `at`: seconds since the epoch.
    """
    found = Counter((finding.host or "", finding.code, finding.severity.label) for finding in verdict.findings)
    blind = Counter((skipped.host or "", skipped.code) for skipped in verdict.skipped)
    unfit = {finding.host for finding in verdict.findings if finding.severity >= Severity.ERROR}
    lines = _head("nvrun_findings", "Findings of the last check; host is empty for the job as a whole.")
    for (host, code, severity), count in sorted(found.items()):
        lines.append(f"nvrun_findings{_labels(host=host, code=code, severity=severity)} {count}")
    lines += _head("nvrun_checks_skipped", "Checks that could not judge the host.")
    for (host, check), count in sorted(blind.items()):
        lines.append(f"nvrun_checks_skipped{_labels(host=host, check=check)} {count}")
    lines += _head("nvrun_host_fit", "1 where no error or fatal finding names the host.")
    lines += [f"nvrun_host_fit{_labels(host=host)} {int(host not in unfit)}" for host in dict.fromkeys(hosts)]
    lines += _head("nvrun_check_timestamp_seconds", "When the check ended.")
    lines.append(f"nvrun_check_timestamp_seconds {at:.3f}")
    return "\n".join(lines) + "\n"


def _head(name: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} gauge"]


def _labels(**labels: str) -> str:
    """Escaped as the exposition format wants it: backslash, quote and line feed."""
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
