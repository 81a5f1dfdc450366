"""The text that node_exporter's textfile collector reads."""

from __future__ import annotations

import re

from nvrun.model import Finding, Severity, Skipped, Verdict
from nvrun.report import prometheus

SAMPLE = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\\n]|\\.)*",?)+\})? -?[0-9.]+')


def test_every_line_is_a_comment_or_a_sample() -> None:
    verdict = Verdict(
        findings=(
            Finding(code="gpu-busy", severity=Severity.ERROR, host='a"b\\c\nd', message="m"),
            Finding(code="gpu-busy", severity=Severity.ERROR, host='a"b\\c\nd', message="n"),
            Finding(code="system-differs", severity=Severity.INFO, message="m"),
        ),
        skipped=(Skipped(code="kernel-log-quiet", host="b", reason="root only"),),
    )
    text = prometheus.text(verdict, ['a"b\\c\nd', "b"], at=1.5)
    for line in text.splitlines():
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line
    assert 'nvrun_findings{host="a\\"b\\\\c\\nd",code="gpu-busy",severity="error"} 2' in text
    assert 'nvrun_host_fit{host="b"} 1' in text
    assert 'nvrun_host_fit{host="a\\"b\\\\c\\nd"} 0' in text
    assert "nvrun_check_timestamp_seconds 1.500" in text
