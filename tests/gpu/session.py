"""A session of nvrun's own bench with a schedule of this study: `session.py SCHEDULE.json FLAG ...`, JSON on stdout.

The schedule is that of nvrun.bench.model, its environments as words of `nvrun bench --compare`. What was measured by
the time it is ended is printed too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from nvrun import job
from nvrun.bench import session, settings, show
from nvrun.bench.model import Schedule
from nvrun.commands.bench import limits_of, users_variables
from nvrun.commands.plan import decided
from nvrun.commands.reach import note
from nvrun.config import parse
from nvrun.placement import versions


def main() -> None:
    asked: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    invocation = parse(sys.argv[2:], os.environ)
    placed, facts = decided(invocation, os.environ)
    asked["environments"] = [
        settings.environment(
            word,
            folders=job.preset_folders(os.environ),
            versions=versions(facts[0]),
            user=users_variables(placed),
        )
        for word in asked["environments"]
    ]
    assert "NVLS_ENABLE" not in json.dumps(asked).replace("NVSHMEM_DISABLE_NVLS", ""), "multicast is not swept"
    schedule = msgspec.convert(asked, Schedule)
    done = session.run(job.read(invocation, os.environ), schedule, os.environ, lambda end: note(session.how(end)))
    records = show.data(done.results, limits_of(done.facts, done.plan, schedule))
    whole = {"environments": asked["environments"], "records": records, "trials": done.results.trials}
    sys.stdout.write(msgspec.json.encode(whole).decode() + "\n")


if __name__ == "__main__":
    main()
