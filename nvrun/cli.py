"""Subcommands and exit codes; the only module that prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

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
            from nvrun.usage import page

            print(page(invocation.help), end="")
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
    import time

    from nvrun import console, job, rundir
    from nvrun.fleet.crew import Ended, gathered
    from nvrun.launch import Launch
    from nvrun.placement import place
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
            plan = place(plan, facts, the_job.args, mode=the_job.options.bind).plan
            folder.write("plan.json", rundir.to_json(plan))
            writer.say("\n".join(text.plan_lines(plan, str(folder.path))))
            launch.go(plan)
        launch.observe()
        launch.bring_logs()
    result = launch.result(started)
    folder.finish(result)
    writer.say("\n".join(text.result_lines(result, str(folder.path))))
    writer.close()
    return result.exit_code
