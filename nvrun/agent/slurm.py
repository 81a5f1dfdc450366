"""Signals under Slurm, which delivers them to every process of a job by itself: none may reach a rank twice.

Slurm tells all processes of a step at once, those in a session of their own too (measured on 22.05: `scancel --signal`,
`sbatch --signal`, scancel and the time limit, where TERM comes twice within a millisecond). What the launcher asks for
besides is therefore left out where the same signal has come here by itself.
"""

from __future__ import annotations

import signal
import time
from typing import Callable, Dict, List, Mapping

from .loop import Loop

END = signal.SIGURG
"""What ends torchrun under Slurm. torchrun hands on to its ranks whatever ended it, and this is ignored by default.
The ranks have had their TERM from Slurm."""

_SETTLE_SECONDS = 0.5  # two hosts of an idle cluster were told within 4 ms
_SAME_SECONDS = 5.0


class Signals:
    """What has come to this process, and what the launcher asks for."""

    def __init__(self, loop: Loop, environ: Mapping[str, str]) -> None:
        self.active = "SLURM_JOB_ID" in environ
        self._loop = loop
        self._came: Dict[int, float] = {}

    def note(self, number: int) -> None:
        """This process has got the signal: so has every other process of the job here."""
        self._came[number] = time.monotonic()

    def came(self, number: int) -> bool:
        """Slurm has delivered it a moment ago."""
        return self.active and time.monotonic() - self._came.get(number, -_SAME_SECONDS) < _SAME_SECONDS

    def when_settled(self, call: Callable[[], None]) -> None:
        """Calls at once; under Slurm after what is on its way has come."""
        if self.active:
            self._loop.later(_SETTLE_SECONDS, call)
        else:
            call()


def shields(environ: Mapping[str, str], argv: List[str]) -> bool:
    """Whether torchrun is to ignore TERM and end by END: under Slurm, unless the user chose its signals."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    chosen = VARIABLE in environ or any(word.startswith("--signals") for word in own)
    return "SLURM_JOB_ID" in environ and not chosen


VARIABLE, HANDLED = "PET_SIGNALS_TO_HANDLE", "SIGINT,SIGHUP,SIGQUIT," + END.name
"""torchrun's --signals-to-handle (torch 2.10; an older one hands TERM on all the same, as one more)."""
