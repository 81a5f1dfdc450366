"""Crew -> plan: folders made, the rendezvous port held, torchrun's command lines known."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

import msgspec

from nvrun import hooks
from nvrun.errors import NvrunError, UsageError
from nvrun.facts import HostFacts
from nvrun.fleet.crew import HELLO_SECONDS, Crew
from nvrun.fleet.session import Body
from nvrun.gather.cards import Known
from nvrun.job import Job
from nvrun.model import Frozen, Host
from nvrun.plan import Plan, Site, as_mapping, attempt_id, build, rendezvous
from nvrun.rundir import RunFolder
from nvrun.topology.interface import addresses


class Prepared(Frozen, frozen=True, kw_only=True):
    """A plan without bindings yet, and what was made for it on the hosts."""

    plan: Plan
    private: Mapping[int, str]
    """Host -> the folder of its own for logs, where it does not share the run's."""


def prepare(job: Job, crew: Crew, run_id: str, folder: RunFolder | None) -> Prepared:
    """The plan as far as torchrun's command lines go. Without a run folder nothing is made on any host."""
    prepared = crew.ask(
        {host: _preparation(job, crew, run_id, folder, host) for host in crew.hosts}, "prepared", HELLO_SECONDS
    )
    answers = {host: body for host, (body, _) in prepared.items()}
    known = {host: [address for _, address in crew.hello[host]["addresses"]] for host in crew.hosts}
    master = master_address(known[0], [known[host] for host in crew.hosts if host])
    sites = [
        Site(
            host=job.hosts[host],
            ranks=ranks_of(job, job.hosts[host], crew.hello[host]["gpus"], crew.hello[host]["cpus"]),
            python=crew.hello[host]["executable"],  # --python, --setup and --in have chosen it
            folder=answers[host]["folder"],
            forwarded=job.forwarded if job.kinds[host] in ("ssh", "rsh") else (),
            address=master if host == 0 else nearest_address(known[host], master),
        )
        for host in crew.hosts
    ]
    plan = _plan(job, run_id, sites, answers[0]["port"])
    private = {host: body["folder"] for host, body in answers.items() if body["folder"] and not body["shared"]}
    return Prepared(plan=plan, private=private)


def plan_of_facts(job: Job, run_id: str, facts: Sequence[HostFacts]) -> Plan:
    """The plan for recorded hosts, which are not asked."""
    known = [addresses(each) for each in facts]
    master = master_address(known[0], known[1:])
    sites = [
        Site(
            host=Host(name=each.host),
            ranks=ranks_of(job, Host(name=each.host), len(each.gpus or ()), len(each.cpus.online) if each.cpus else 0),
            python=each.software.executable if each.software else "python3",
            folder="",
            address=master if node == 0 else nearest_address(known[node], master),
        )
        for node, each in enumerate(facts)
    ]
    return _plan(job, run_id, sites, ports(job)[0])


def plan_of_step(job: Job, started: Plan, nodes: Sequence[Known], own: int) -> Plan:
    """The whole step as one of its nodes sees it: its own place as `started` has it, the others by what they told."""
    here = started.hosts[0]
    sites = [
        Site(
            host=Host(name=each.name),
            ranks=each.ranks,
            python=here.program[0] if here.program else job.options.python or "python3",
            folder=here.folder if node == own else "",
            address=next(iter(each.addresses), "127.0.0.1"),
        )
        for node, each in enumerate(nodes)
    ]
    plan = _plan(job, started.run_id, sites, None)
    return msgspec.structs.replace(plan, master_addr=job.args.master_addr, master_port=job.args.master_port)


def _plan(job: Job, run_id: str, sites: Sequence[Site], port: int | None) -> Plan:
    plan = build(
        run_id=run_id,
        attempt=job.attempt,
        restarts=job.restarts,
        args=job.args,
        sites=sites,
        cwd=job.cwd,
        fleet=job.fleet,
        alone=job.mode.alone,
        master_port=port,
        env=job.env,
        defaults=job.defaults,
        grace=job.options.grace,
        lost_after=job.lost_after,
        console=None if job.options.console == "all" else job.options.console,
    )
    return hooks.wrapped(job.hooks, plan)


def _preparation(job: Job, crew: Crew, run_id: str, folder: RunFolder | None, host: int) -> Body:
    wants_port = host == 0 and rendezvous(job.args, fleet=job.fleet, alone=job.mode.alone) != "user"
    return {
        "t": "prepare",
        "run": attempt_id(run_id, job.attempt),
        "folder": str(folder.path) if folder else None,
        "token": folder.token if folder else "",
        "name": folder.logs(crew.names[host]).name if folder else "",
        "ports": ports(job) if wants_port else None,
    }


def ports(job: Job) -> list[int]:
    """Those of the rendezvous that are tried, in order: the user's --master-port alone, else --port-range."""
    if job.args.is_set("master_port") and job.args.master_port:
        return [job.args.master_port]
    first, last = job.options.port_range
    return list(range(first, last + 1))


def facts_requests(job: Job, plan: Plan) -> dict[int, Body]:
    """What every host's agent is asked to look at, in the chain that will run the job."""
    return {host.node: _facts_request(job, plan, host.node) for host in plan.hosts}


def opened_port(job: Job, plan: Plan) -> int | None:
    """The port that torchrun will open on the first host, as far as that is known before."""
    return plan.master_port or (job.endpoint.port if job.endpoint and job.endpoint.listens else None)


def _facts_request(job: Job, plan: Plan, node: int) -> Body:
    host, meeting, port = plan.hosts[node], job.endpoint, opened_port(job, plan)
    return {
        "host": host.host.name,
        "python": host.argv[0],
        "cwd": host.cwd,
        "script": job.script,
        "paths": [
            *job.options.require_path,
            *job.options.require_same,
            *([job.options.monitor_textfile] if job.options.monitor_textfile else []),
        ],
        "peers": [
            *(other.host.name for other in plan.hosts if other.node != node),
            *([meeting.host] if meeting and meeting.is_name else []),
        ],
        "env": {**as_mapping(host.defaults), **as_mapping(host.env)},
        "ports": [port] if port else [],
    }


def master_address(addresses: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    """The address of the first host that the others are to use: the one in whose network they all are, by family and
    the longest common prefix, the first of equals; for a single host the loopback."""
    if not others:
        return "127.0.0.1"
    if not addresses:
        raise NvrunError("the first host has no address that others could reach", hint="look there: ip address show")

    def closeness(mine: str) -> int:
        return min(max((_shared(mine, theirs) for theirs in other), default=-1) for other in others)

    return max(addresses, key=closeness)


def nearest_address(addresses: Sequence[str], master: str) -> str:
    """Of a host's addresses the one nearest to the first host's."""
    return max(addresses, key=lambda mine: _shared(mine, master), default="127.0.0.1")


def _shared(one: str, other: str) -> int:
    """Leading bits that two addresses share; -1 for different families."""
    first, second = ipaddress.ip_address(one), ipaddress.ip_address(other)
    if first.version != second.version:
        return -1
    return first.max_prefixlen - (int(first) ^ int(second)).bit_length()


def ranks_of(job: Job, host: Host, gpus: int, cpus: int) -> int:
    """Ranks of one host: its slots, else --nproc-per-node, else (a fleet) one for each visible GPU, at least one.

    `cpus`: those of the machine, as torchrun counts them, whichever the job may use."""
    wanted = job.args.nproc_per_node
    if host.slots:
        return host.slots
    if isinstance(wanted, int) and (job.args.is_set("nproc_per_node") or not job.all_gpus):
        return wanted
    if cpus and (wanted == "cpu" or (wanted == "auto" and not gpus)):
        return cpus
    if isinstance(wanted, str) and wanted not in ("gpu", "auto"):
        raise UsageError(
            f"--nproc-per-node {wanted}: expected a number, gpu, cpu or auto"
            if wanted != "cpu"
            else f"--nproc-per-node cpu: how many {host.name} has is not known, so give a number"
        )
    if isinstance(wanted, str) and not gpus:
        raise UsageError(
            f"--nproc-per-node {wanted}: {host.name} has no GPU that the job may use",
            hint="--nproc-per-node N gives a number",
        )
    return max(gpus, 1)
