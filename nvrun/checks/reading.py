"""Whether anything at all could be read of a host."""

from __future__ import annotations

from collections import Counter

from nvrun.checks.busy import silent
from nvrun.checks.check import Results, check
from nvrun.checks.code import ERROR, declare, unread
from nvrun.facts import SECTIONS, HostFacts

UNREAD = declare(
    "facts-unread",
    ERROR,
    "nothing could be read of a host",
    read="why each section of its facts is missing",
    why="no check has looked at that host, and what keeps nvrun from reading keeps torchrun from running",
    remedy="mend the reason given; too many open files: raise ulimit -n there (LimitNOFILE= of sshd or slurmd); no"
    " process to be had: ulimit -u, pids.max of the container",
    source="getrlimit(2): RLIMIT_NOFILE, RLIMIT_NPROC; pipe(2) and fork(2) on their errors",
    depends="not judged where no answer came in time: the host has too much to do, or --check-timeout is short",
)


@check(UNREAD)
def facts_read(facts: HostFacts) -> Results:
    """Something could be read of the host."""
    if not facts.missing.keys() >= set(SECTIONS):
        return
    ((reason, _),) = Counter(facts.missing.values()).most_common(1)
    if silent(reason):
        yield unread(reason)
    else:
        yield UNREAD.found(f"nothing could be read of it: {reason}", observed=reason)
