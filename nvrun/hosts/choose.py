"""Which hosts a fleet has: the user's list or file, else those of the allocation, less the excluded ones. Pure."""

from __future__ import annotations

from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.hosts import hostfile, listing
from nvrun.hosts.detect import Detected
from nvrun.model import Frozen, Host


class Chosen(Frozen, frozen=True, kw_only=True):
    """The hosts of a fleet, spares included, in rank order."""

    hosts: tuple[Host, ...]
    source: str
    """`--hosts`, `NVRUN_HOSTS`, `nvrun.yaml:3`, `slurm allocation`, `this machine`."""
    not_listed: tuple[str, ...] = ()
    """Excluded names that were no host anyway: perhaps misspelt."""


def choose(invocation: Invocation, detected: Detected, hostfile_text: str | None = None) -> Chosen:
    """The hosts. `hostfile_text` is the text of `options.hostfile`, where `reads_hostfile` says that it counts.

    Raises UsageError for a bad list, for two lists of equal weight, and for more `--nodes` than hosts.
    """
    options, sources = invocation.options, invocation.sources
    if reads_hostfile(invocation):
        if options.hostfile is None or hostfile_text is None:
            raise UsageError(f"{invocation.source('hostfile')}: {options.hostfile}: the file could not be read")
        chosen = Chosen(hosts=hostfile.parse(hostfile_text, options.hostfile), source=sources["hostfile"])
    elif options.hosts is not None:
        chosen = Chosen(hosts=listing.parse(options.hosts, sources["hosts"]), source=sources["hosts"])
    elif detected.hosts:
        chosen = Chosen(hosts=detected.hosts, source=detected.kind)
    else:
        chosen = Chosen(hosts=(Host(name="localhost"),), source="this machine")
    if options.exclude is not None:
        hosts, not_listed = listing.without(chosen.hosts, options.exclude, invocation.source("exclude"))
        chosen = Chosen(hosts=hosts, source=chosen.source, not_listed=not_listed)
    if options.nodes is not None and options.nodes > len(chosen.hosts):
        raise UsageError(
            f"{invocation.source('nodes')}: {options.nodes} nodes wanted, but {chosen.source} has {len(chosen.hosts)}"
        )
    return chosen


def reads_hostfile(invocation: Invocation) -> bool:
    """Whether the hosts come from `options.hostfile`: it was given, and `hosts` was not by a later layer."""
    sources = invocation.sources
    if "hostfile" not in sources or "hosts" not in sources:
        return "hostfile" in sources
    of_file, of_list = _weight(sources["hostfile"]), _weight(sources["hosts"])
    if of_file == of_list:
        raise UsageError(f"{sources['hosts']} and {sources['hostfile']} both name the hosts: drop one")
    return of_file > of_list


def _weight(source: str) -> int:
    """Flags over variables over files."""
    return 2 if source.startswith("--") else 1 if source.startswith("NVRUN_") else 0
