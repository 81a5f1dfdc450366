"""The search of `nvrun tune` where its settings do nothing: `on_gloo.py SECONDS FLAG ...`; its outcome as JSON.

Ranks, jobs and trials are real; only that the ranks meet over gloo is not refused.
"""

from __future__ import annotations

import os
import sys

from nvrun import job
from nvrun.commands.plan import decided
from nvrun.commands.tune import FEWEST, _progress
from nvrun.config import parse
from nvrun.rundir import to_json
from nvrun.tune.profile import given
from nvrun.tune.search import search
from nvrun.tune.space import space_for
from nvrun.tune.trials import Trials


def main() -> None:
    budget, invocation = float(sys.argv[1]), parse(sys.argv[2:], os.environ)
    _, facts = decided(invocation, os.environ)
    space = space_for(facts)
    measure = Trials(job.read(invocation, os.environ), space, given("64K*10"), os.environ, _progress(budget))
    outcome = search(space, measure, trials=FEWEST, seconds=budget)
    assert measure.setup
    assert measure.setup.backend == "gloo"
    sys.stdout.write(to_json(outcome).decode())


if __name__ == "__main__":
    main()
