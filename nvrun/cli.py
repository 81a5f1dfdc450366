"""Subcommands and exit codes; the only module that prints."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from nvrun import __version__
from nvrun.commands import COMMANDS
from nvrun.config import Invocation, load
from nvrun.errors import NvrunError, UsageError

if TYPE_CHECKING:  # `nvrun --help` need not import them
    from nvrun.console import Writer
    from nvrun.facts import HostFacts
    from nvrun.fleet.session import Console as Line
    from nvrun.job import Job
    from nvrun.model import Attempt, RunResult
    from nvrun.preflight import Decided
    from nvrun.rundir import RunFolder


NOT_OF_A_RUN = {
    "from_": "a run has its hosts themselves; nvrun plan --from FILE says what would run on recorded ones",
    "json": "a run writes result.json into its folder; nvrun plan --json and nvrun check --json print theirs",
    "show_env": "nvrun plan --show-env",
}
"""Field of `Options` -> what to type in its place."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs nvrun and returns its exit code: the job's own, or 2 usage, 69 unreachable or lost, 70 nvrun's own fault,
    74 where standard output takes no answer, 78 preflight refused, 124 hang, 128+n for signal n. What stops it is told
    in a line or two."""
    try:
        return act(argv, environ)
    except NvrunError as error:
        _tell(filter(None, (_shown(error.message), _shown(error.hint))))
        return error.exit_code
    except KeyboardInterrupt:  # before there was a job to end, or in a command that has none
        return 130
    except Exception as error:  # noqa: BLE001 - the outermost border: the user gets one line, the file has the rest
        if isinstance(error, ModuleNotFoundError) and not (error.name or "nvrun").startswith("nvrun"):
            missing = f"{error.name} is not installed for {sys.executable}"
            _tell([missing, "pip install of nvrun without --no-deps brings what it needs"])
            return 70
        _tell([f"a fault of nvrun itself: {type(error).__name__}: {error}", f"please report it with {_keep(error)}"])
        return 70


def act(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command or the user's program that the line names; its exit code. Raises what `main` tells."""
    command, argv = command_of(argv)
    if command:
        from nvrun.commands.line import flags_first

        invocation = load(flags_first(command, argv), environ, COMMANDS[command])
    else:
        invocation = load(argv, environ)
    if invocation.version:
        return _answer(f"nvrun {__version__}\n")
    if invocation.help:
        from nvrun.usage import command_page, page

        return _answer(command_page(command) if command else page(invocation.help))
    if command is None or COMMANDS[command].words is None:
        from nvrun.slips import check_words

        check_words(invocation, tuple(COMMANDS))
    if command:
        _tell(invocation.notices)
        said = importlib.import_module(f"nvrun.commands.{command}").run(invocation, environ)
        return _answer(_shown(said.text), int(said.exit_code))
    if invocation.options.dry_run:
        return act(["plan", *argv], environ)
    if not invocation.torchrun.program:
        raise UsageError("what shall run? nvrun [flags] train.py [arguments]", hint="nvrun --help")
    for name, instead in NOT_OF_A_RUN.items():
        if (flag := invocation.source(name)).startswith("--"):  # as a setting for all commands it does no harm
            raise UsageError(f"{flag} is no flag of a run", hint=instead)
    _tell(invocation.notices)
    return run(invocation, environ)


def _answer(text: str, code: int = 0) -> int:
    """Prints what a command has to say; its exit code, or that of a standard output which does not take it."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        _unplug(sys.stdout)
        if isinstance(error, BrokenPipeError):  # `nvrun ... | head`: nobody reads any more
            return 141
        _tell([f"standard output: {error.strerror}"])
        return 74
    return code


def _tell(notices: Iterable[str]) -> None:
    """Lines for standard error; where that takes none the exit code has to do."""
    for notice in notices:
        try:
            print(f"nvrun: {notice}", file=sys.stderr)
        except OSError:
            _unplug(sys.stderr)


def _unplug(stream: TextIO) -> None:
    """What it still holds goes nowhere, and so does all that follows."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _shown(text: str) -> str:
    """Text for a terminal: what hosts and files say in it cannot command the terminal."""
    if text.isascii() and "\x1b" not in text and all(line.isprintable() for line in text.splitlines()):
        return text
    from nvrun.console import plain

    lines = [plain(line.encode(errors="surrogatepass")) for line in text.split("\n")]
    return b"\n".join(lines).decode(errors="surrogatepass")


def _keep(error: Exception) -> str:
    """Writes its traceback to a file of the user's alone; returns its path, or where it was raised if no file can be
    written."""
    import tempfile

    try:
        fd, path = tempfile.mkstemp(prefix="nvrun-fault-", suffix=".txt")
        with open(fd, "w") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"the place where it was raised: {place.filename}:{place.lineno}"
    return path


def command_of(argv: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The subcommand and the rest of the line. `nvrun -- plan` and `nvrun ./plan` run a program of that name.

    Raises UsageError for a word that is nearly a subcommand and no file here.
    """
    if argv and argv[0] in COMMANDS:
        return argv[0], argv[1:]
    if argv and argv[0].isalpha() and not Path(argv[0]).exists():
        from nvrun.torchrun import nearest

        if argv[0] == "help":
            raise UsageError("help is no command: nvrun --help, nvrun COMMAND --help")
        if near := nearest(argv[0], COMMANDS):
            raise UsageError(
                f"{argv[0]} is no command, and there is no such file here; did you mean {near}?",
                hint=f"nvrun -- {argv[0]} runs a program of that name",
            )
    return None, argv


def run(invocation: Invocation, environ: Mapping[str, str]) -> int:
    """Runs the user's program; its exit code. Spares stand in for hosts that fail before it has begun, and while it
    runs as often as --node-restarts allows."""
    from nvrun import job, replacement, requeue, rundir, slips
    from nvrun.fleet.signals import signals_noted
    from nvrun.hosts.nodeset import fold

    the_job = job.read(invocation, environ)
    slips.check_script(the_job)
    if the_job.not_listed and invocation.source("exclude") == "--exclude":  # a site's own list may name other hosts
        _tell([f"--exclude: {fold(the_job.not_listed)}: no host of {the_job.hosts_from}"])
    _tell([*the_job.notices, *replacement.check(the_job)])
    folder = new_folder(the_job, environ)
    attempts: list[Attempt] = []
    struck_off: dict[str, str] = {}
    with signals_noted() as noted:
        while True:
            result = run_job(the_job, folder, environ, earlier=attempts, noted=noted)
            struck_off |= result.bad_hosts
            bad = replacement.shown_bad(the_job, struck_off, began=result.began)
            well = [host.name for host in the_job.hosts if host.name not in result.between]
            rundir.note_hosts(folder.path, well, bad)
            following = replacement.after(the_job, result, struck_off, interrupted=bool(noted))
            if following.line:
                _tell([following.line])
            if following.struck_off is not None:
                struck_off = dict(following.struck_off)
            if following.job is None:
                break
            attempts.append(replacement.ended(the_job, result))
            aside = folder.set_aside(the_job.attempt)
            if result.began:
                _tell([f"the logs of the attempt before are now in {aside}"])
            the_job = following.job
    if result.bad_hosts and not result.began:
        _tell(requeue.left_out(the_job, bad, folder.path.parent, environ))
    return result.exit_code


def new_folder(the_job: Job, environ: Mapping[str, str]) -> RunFolder:
    """A folder for a run that begins now."""
    import time

    from nvrun import rundir

    return rundir.create(rundir.new_run_id(time.time()), the_job.options.run_dir, environ, the_job.measures)


def run_job(
    the_job: Job,
    folder: RunFolder,
    environ: Mapping[str, str],
    *,
    take: Callable[[Line], bool] = lambda line: False,
    announced: bool = False,
    earlier: Sequence[Attempt] = (),
    noted: list[int] | None = None,
) -> RunResult:
    """hosts -> facts -> checks -> plan -> launch -> observe -> report. How it went.

    `take` sees each line of the ranks first; one for which it is true is not shown. `announced`: the console has been
    told of this very plan, and hears of it only where it is refused. `earlier`: attempts of this run before; `noted`:
    signals that came between them.
    """
    import time

    from nvrun import console, rundir, runs
    from nvrun.fleet.crew import Ended, gathered

    started = time.time()
    writer = console.standard([host.name for host in the_job.hosts])
    if trouble := runs.remember(the_job, folder.run_id, folder.path, started, environ):
        writer.say(f"nvrun: {trouble}")

    def show(line: Line) -> None:
        if not take(line):
            writer.offer(line)

    with folder.whatever_happens(started), gathered(the_job, environ, say=writer.say, show=show, noted=noted) as crew:
        # The agents come up while the rest is imported.
        from nvrun import preflight, slurm
        from nvrun.active.run import clock_of
        from nvrun.gather.join import gathering
        from nvrun.hooks.around import around
        from nvrun.launch import Launch
        from nvrun.prepare import facts_requests, prepare
        from nvrun.report import board
        from nvrun.report.text import plan_lines
        from nvrun.request import request
        from nvrun.watched import watched

        folder.write("request.json", rundir.to_json(request(the_job, started)))
        with around(crew, the_job, writer.say) as hooked, gathering(the_job, environ, writer.say) as nodes:
            launch = Launch(the_job, crew, folder, writer)
            with suppress(Ended):
                with board.shown(crew.names) as crew.watch:
                    crew.greet()
                    prepared = prepare(the_job, crew, folder.run_id, folder)
                    hooked.before(the_job.hooks, prepared.plan)
                    # torchrun starts now and imports torch; its ranks wait at the gate while the hosts are looked at.
                    plan = launch.start(prepared)
                    clock = clock_of(the_job)
                    facts = crew.facts(facts_requests(the_job, plan), clock.left)
                found = slurm.found(the_job, environ, facts.values())
                if nodes:
                    decided = nodes.decide(crew, plan, facts[0], found)
                else:
                    tried = preflight.tests(crew, the_job, plan, facts, clock)
                    decided = preflight.decide(the_job, plan, facts, found, tried.verdict)
                _write_plan(decided, facts, folder)
                if decided.exit_code or not announced:
                    spares = [host.name for host in the_job.spares]
                    writer.say("\n".join([*plan_lines(decided.plan, str(folder.path), spares), *decided.lines]))
                hooked.plan, hooked.facts = decided.plan, facts
                launch.go(plan, facts, decided)
            launch.observe()
            if nodes:
                nodes.tell(launch.result(started))
            hooked.looked_at = launch.look_again(started)
            hooked.result = launch.result(started)
            hooked.after()
            launch.bring_logs()
    found = slurm.found(the_job, environ, ()) if crew.findings else []
    result = launch.result(started, [*hooked.findings, *found, *watched(folder.path, launch.plan)], earlier)
    _tell_of_end(result, folder, writer)
    return result


def _write_plan(decided: Decided, facts: Mapping[int, HostFacts], folder: RunFolder) -> None:
    """What will run, from which facts and with which verdict: into the run's folder."""
    from nvrun.facts import to_json
    from nvrun.rundir import to_json as record

    folder.write("plan.json", record(decided.plan))
    folder.write("facts.json", to_json(list(facts.values())))
    folder.write("verdict.json", record(decided.verdict))


def _tell_of_end(result: RunResult, folder: RunFolder, writer: Writer) -> None:
    """How it went, and after a failure why: into the run's folder and on the console, which closes with it."""
    from nvrun.model import FAILURES
    from nvrun.report import text

    if trouble := folder.finish(result):
        writer.say(f"nvrun: {trouble}")
    page, where = "", str(folder.path) if folder.path.exists() else ""
    if result.ended_by in FAILURES:
        from nvrun.failure import at_the_end

        page = at_the_end(folder.path)
    writer.say("\n".join(text.result_lines(result, where, page)))
    writer.close()
