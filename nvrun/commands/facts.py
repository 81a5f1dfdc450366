"""`nvrun facts`: what the hosts are like, read in one round trip."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun import facts, job
from nvrun.commands import Said
from nvrun.commands.reach import crew_of
from nvrun.commands.recorded import read_facts
from nvrun.config import Invocation
from nvrun.facts import HostFacts
from nvrun.fleet.crew import Crew
from nvrun.report import text


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    if invocation.options.from_:
        known = read_facts(invocation.options.from_)
    else:
        the_job = job.read(invocation, environ)
        with crew_of(the_job, environ) as crew:
            crew.greet()
            known = tuple(of_crew(crew, the_job).values())
    if invocation.options.json:
        return Said(facts.to_json(known).decode() + "\n")
    return Said("\n".join(line for each in known for line in text.facts_lines(each)) + "\n")


def of_crew(crew: Crew, the_job: job.Job) -> dict[int, HostFacts]:
    """Facts of every host without a plan: the interpreter that the agent runs in, the user's variables."""
    requests = {
        host: {
            "host": crew.names[host],
            "python": the_job.options.python or crew.hello[host]["executable"],
            "cwd": the_job.cwd,
            "script": the_job.script,
            "peers": [name for name in crew.names if name != crew.names[host]],
            "env": {variable.name: variable.value for variable in (*the_job.defaults, *the_job.env)},
        }
        for host in crew.hosts
    }
    return crew.facts(requests)
