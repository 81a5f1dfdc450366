"""Error counters before and after the job: NVLink, GPU memory (ECC), Xid, RDMA ports, interfaces. Growth is a finding.

After a failure nvrun itself looks at the hosts that are concerned; this hook looks at all others, and after a success
at all.
"""

from __future__ import annotations

from collections.abc import Generator

from nvrun.hooks import Job


def around(job: Job, options: object) -> Generator[None, None, None]:
    yield
    for finding in job.changes():
        job.find(finding)
