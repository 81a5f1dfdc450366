"""`nvrun topo`: GPUs, NICs and NUMA nodes as a tree, of hosts, of recorded ones, or of a pasted matrix."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun import job, topology
from nvrun.commands import Said
from nvrun.commands.facts import of_crew
from nvrun.commands.reach import crew_of
from nvrun.commands.recorded import read_facts, read_topology
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.report.document import document
from nvrun.report.findings import printable


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    if invocation.words:
        raise UsageError(f"nvrun topo: expected flags only, got {invocation.words[0]!r}", hint="--topo FILE reads one")
    found = _topologies(invocation, environ)
    if invocation.options.json:
        return Said(document(hosts=[{"host": name, "topology": each} for name, each in found.items()]))
    trees = [[printable(line) for line in topology.tree(each, name)] for name, each in found.items()]
    return Said("\n\n".join("\n".join(lines) for lines in trees) + "\n")


def _topologies(invocation: Invocation, environ: Mapping[str, str]) -> dict[str, topology.Topology]:
    """By host, or by the name of the file."""
    options = invocation.options
    source = invocation.flags.get("--topo")
    if source and options.from_:
        raise UsageError("--topo and --from each name what to draw: drop one")
    if source:
        name, found = read_topology(source)
        return {name: found}
    if options.from_:
        return {each.host: topology.from_facts(each) for each in read_facts(options.from_)}
    the_job = job.read(invocation, environ)
    with crew_of(the_job, environ) as crew:
        crew.greet()
        known = of_crew(crew, the_job)
    return {each.host: topology.from_facts(each) for each in known.values()}
