"""Subcommands and exit codes; the only module that prints."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from nvrun import __version__
from nvrun.commands import COMMANDS
from nvrun.config import Invocation, load
from nvrun.errors import NvrunError, UsageError


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs nvrun and returns its exit code: the job's own, or 2 usage, 69 unreachable or lost, 70 nvrun's own fault,
    78 preflight refused, 124 hang, 128+n for signal n."""
    try:
        command, argv = command_of(argv)
        invocation = load(argv, environ)
        if invocation.version:
            print(f"nvrun {__version__}")
            return 0
        if invocation.help:
            from nvrun.usage import page

            print(page(invocation.help), end="")
            return 0
        if command:
            said = importlib.import_module(f"nvrun.commands.{command}").run(invocation, environ)
            print(said.text, end="")
            return int(said.exit_code)
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


def command_of(argv: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The subcommand and the rest of the line. `nvrun -- plan` and `nvrun ./plan` run a program of that name."""
    if argv and argv[0] in COMMANDS:
        return argv[0], argv[1:]
    return None, argv


def run(invocation: Invocation, environ: Mapping[str, str]) -> int:
    """hosts -> facts -> checks -> plan -> launch -> observe -> report."""
    import time

    from nvrun import console, job, rundir
    from nvrun.fleet.crew import Ended, gathered
    from nvrun.launch import Launch
    from nvrun.placement import place, wishes_of
    from nvrun.report import text

    started = time.time()
    the_job = job.read(invocation, environ)
    folder = rundir.create(rundir.new_run_id(started), invocation.options.run_dir, environ)
    writer = console.standard([host.name for host in the_job.hosts])
    with gathered(the_job, environ, say=writer.say, show=writer.offer) as crew:
        launch = Launch(the_job, crew, folder, writer)
        with suppress(Ended):
            crew.greet()
            plan = launch.prepare()
            launch.start(plan)  # torchrun imports torch and its ranks wait at the gate while the checks run
            facts = launch.facts(plan)
            placed = place(plan, facts, wishes_of(the_job, facts.values()))
            folder.write("plan.json", rundir.to_json(placed.plan))
            writer.say("\n".join(text.plan_lines(placed.plan, str(folder.path))))
            launch.go(placed.plan)
        launch.observe()
        launch.bring_logs()
    result = launch.result(started)
    folder.finish(result)
    writer.say("\n".join(text.result_lines(result, str(folder.path))))
    writer.close()
    return result.exit_code
