"""Error counters before and after the job: NVLink, GPU memory (ECC), Xid, RDMA ports, interfaces. Growth is a finding.

After a failure nvrun itself looks at the hosts that are concerned; this hook looks at all hosts, also after a success.
"""

from __future__ import annotations

from collections.abc import Generator

from nvrun.checks.grown import growth
from nvrun.hooks import Job


def around(job: Job, options: object) -> Generator[None, None, None]:
    yield
    if not job.facts:
        return
    for node, after in job.look().items():
        for finding in growth(job.facts[node], after):
            job.find(finding)
