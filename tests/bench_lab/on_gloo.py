"""The search of `nvrun tune` where its settings do nothing: `on_gloo.py SECONDS FLAG ...`; its outcome as JSON.

Ranks, jobs and trials are real; only that the ranks meet over gloo is refused at the end only.
"""

from __future__ import annotations

import os
import sys

from nvrun import job
from nvrun.commands.plan import decided
from nvrun.commands.tune import FEWEST, _progress, _with_nccl
from nvrun.config import parse
from nvrun.errors import UsageError
from nvrun.report.document import document
from nvrun.tune.profile import given
from nvrun.tune.search import Trial, search
from nvrun.tune.space import default, space_for
from nvrun.tune.trials import Trials


def main() -> None:
    budget, invocation = float(sys.argv[1]), parse(sys.argv[2:], os.environ)
    _, facts = decided(invocation, os.environ)
    space = space_for(facts)
    measure = Trials(job.read(invocation, os.environ), space, given("64K*10"), os.environ, _progress(budget))
    outcome = search(space, measure, trials=FEWEST, seconds=budget)
    assert measure.setup
    assert measure.setup.backend == "gloo"
    refused = None
    try:
        _with_nccl(measure)([Trial(config=default(space))])
    except UsageError as error:
        refused = error.message
    sys.stdout.write(document(outcome=outcome, refused=refused))


if __name__ == "__main__":
    main()
