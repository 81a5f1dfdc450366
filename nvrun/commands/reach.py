"""Hosts that answer, for commands that ask them something and run no job."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nvrun.errors import NvrunError
from nvrun.fleet.crew import Crew, Ended, gathered
from nvrun.job import Job
from nvrun.report import text


class NoAnswer(NvrunError):
    """What was asked of the hosts was not answered: one cannot be reached, was lost, or a signal came."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def crew_of(the_job: Job, environ: Mapping[str, str]) -> Iterator[Crew]:
    """The crew of the job's hosts, not greeted yet. NoAnswer where it ends before the caller is done."""
    with gathered(the_job, environ, say=say, show=lambda line: None) as crew:
        try:
            yield crew
        except Ended:
            assert crew.ending is not None
            lines = [*text.finding_lines(crew.findings), *filter(None, [crew.ending.message])]
            raise NoAnswer("\n".join(lines).removeprefix("nvrun: "), crew.ending.exit_code) from None


def say(line: str) -> None:
    """A word to the user while the command runs; its answer goes to standard output."""
    print(line, file=sys.stderr)


def note(line: str) -> None:
    """`say`, as nvrun's own word."""
    say(f"nvrun: {line}")
