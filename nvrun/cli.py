"""Subcommands and exit codes; the only module that prints."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from nvrun import __version__
from nvrun.config import Invocation, load
from nvrun.errors import NvrunError, UsageError


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs nvrun and returns its exit code: the job's own, or 2 usage, 69 unreachable or lost, 70 nvrun's own fault,
    78 preflight refused, 124 hang, 128+n for signal n."""
    try:
        invocation = load(argv, environ)
        if invocation.version:
            print(f"nvrun {__version__}")
            return 0
        if invocation.help:
            from nvrun.help import text

            print(text(invocation.help), end="")
            return 0
        if invocation.torchrun.program is None:
            raise UsageError("what shall run? nvrun [flags] train.py [arguments]", hint="nvrun --help")
        for notice in invocation.notices:
            print(f"nvrun: {notice}", file=sys.stderr)
        return run(invocation, environ)
    except NvrunError as error:
        print(f"nvrun: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"nvrun: {error.hint}", file=sys.stderr)
        return error.exit_code


def run(invocation: Invocation, environ: Mapping[str, str]) -> int:
    """hosts -> facts -> checks -> plan -> launch -> observe -> report."""
    import msgspec

    from nvrun import console, launch, plan, rundir, travel
    from nvrun.fleet import routes
    from nvrun.fleet.session import Session
    from nvrun.hosts import listing
    from nvrun.model import Host

    options = invocation.options
    started = time.time()
    hosts = listing.parse(options.hosts, "--hosts") if options.hosts else (Host(name="localhost"),)
    kinds = routes.choose(hosts, options.fleet, options.rsh)
    lost_after = options.lost_after or (60.0 if "srun" in kinds else 300.0)
    names = [host.name for host in hosts]
    folder = rundir.create(rundir.new_run_id(started), options.run_dir, dict(environ))
    writer = console.standard(names)
    session = Session(
        routes.routes(
            hosts,
            kinds,
            pythons=routes.interpreters(environ, options.python),
            rsh=options.rsh,
            connect_timeout=options.connect_timeout,
            ssh_config=options.ssh_config,
            environment=environ,
        ),
        lost_after=lost_after,
        show=writer.offer,
    )
    conductor = launch.Conductor(session, names, folder, writer.say, options.grace)
    private: list[int] = []
    with _signals(session):
        try:
            conductor.greet(options.connect_timeout)
            first, last = options.port_range
            prepared = conductor.prepare(range(first, last + 1))
            private = [host for host, body in prepared.items() if not body["shared"]]
            the_plan = plan.build(
                run_id=folder.run_id,
                args=invocation.torchrun,
                hosts=hosts,
                ranks_per_host=[host.slots or int(invocation.torchrun.nproc_per_node) for host in hosts],
                pythons=[conductor.hello[node]["executable"] for node in range(len(hosts))],
                folders=[prepared[node]["folder"] for node in range(len(hosts))],
                cwd=options.chdir or _here(environ),
                master_addr=launch.master_address(
                    [address for _, address in conductor.hello[0]["addresses"]],
                    [[address for _, address in conductor.hello[node]["addresses"]] for node in range(1, len(hosts))],
                ),
                master_port=prepared[0]["port"],
                forwarded=travel.forwarded(environ) if {"ssh", "rsh"} & set(kinds) else (),
                grace=options.grace,
                lost_after=lost_after,
                console=None if options.console == "all" else options.console,
            )
            folder.write("plan.json", launch.to_json(the_plan))
            conductor.start(the_plan, max_restarts=invocation.torchrun.max_restarts)
            conductor.go(the_plan)
            conductor.observe()
        except launch.HostGone:
            conductor.observe()
        not_fetched = conductor.bring_logs(private)
        conductor.goodbye()
    result = msgspec.structs.replace(
        conductor.result(run_id=folder.run_id, started=started), not_fetched=tuple(not_fetched)
    )
    folder.write("result.json", launch.to_json(result))
    folder.close()
    for line in _summary(conductor, result.exit_code):
        writer.say(line)
    writer.close()
    return result.exit_code


def _summary(conductor: object, code: int) -> Iterator[str]:
    from nvrun.launch import Conductor, ended

    assert isinstance(conductor, Conductor)
    for trouble in conductor.unreachable.values():
        yield f"nvrun: {trouble.message}"
        if trouble.hint:
            yield f"nvrun:   {trouble.hint}"
    first = conductor.first_failure()
    if conductor.ended_by == "rank" and first:
        end, tail = first
        yield f"nvrun: rank {end.rank} on {end.host} (local rank {end.local_rank}) {ended(end.code)}"
        for line in tail:
            yield f"    {line}"
    elif conductor.message and conductor.ended_by != "unreachable":
        yield f"nvrun: {conductor.message}"


def _here(environ: Mapping[str, str]) -> str:
    """The working directory, by the name the user knows it."""
    import os

    logical = environ.get("PWD", "")
    if logical.startswith("/") and os.path.isdir(logical) and os.path.samefile(logical, "."):
        return logical
    return os.getcwd()


@contextmanager
def _signals(session: object) -> Iterator[None]:
    from nvrun.fleet.session import Event, Session

    assert isinstance(session, Session)

    def tell(number: int, frame: object) -> None:
        session.events.put(Event(-1, "signal", number))

    wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, tell) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
