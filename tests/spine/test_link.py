"""The link between launcher and agents under load."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.lab.lab import REPOSITORY, Lab

PING = """
import json, os, sys, time
from nvrun.fleet.routes import routes
from nvrun.fleet.session import Session
from nvrun.fleet.start import Start
from nvrun.model import Host

hosts = [Host(name=name) for name in "abc"]
ways = routes(hosts, ["srun"] * 3, Start(pythons=(sys.executable,)), environment=dict(os.environ))
session = Session(ways, lost_after=60.0, show=print)
payload = "".join(chr(32 + i * 7919 % 5000) for i in range(500_000))
# Whom it tried comes back by name: nobody here, so that it answers at once.
request = {"secret": "00", "silence": 1.0, "targets": [{"host": payload, "ports": [], "mtu": None}]}
session.send({"t": "test", "test": "connections", "request": request, "deadline": 20.0, "answer": "tried"})
whole = {}
while len(whole) < 3:
    event = session.events.get(timeout=30)
    if event.kind == "message" and event.body["t"] == "tried":
        whole[event.host] = [*(event.body["result"] or {})] == [payload]
    elif event.kind in ("closed", "unreachable"):
        sys.exit(f"{event.kind}: {event.body}")
print(json.dumps([len(payload.encode()), sorted(whole.items())]))
session.close()
"""


@pytest.mark.lab
def test_a_megabyte_from_each_of_three_hosts_through_one_srun(slurm_lab: Lab, place: Path) -> None:
    (place / "ping.py").write_text(f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n{PING}")
    done = slurm_lab.run(["salloc", "-N3", "--exclusive", "--quiet", sys.executable, place / "ping.py"], timeout=60)
    assert done.returncode == 0, done.stderr
    size, whole = json.loads(done.stdout)
    assert size > 1_000_000
    assert whole == [[0, True], [1, True], [2, True]]
