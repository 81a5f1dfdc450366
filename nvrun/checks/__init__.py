"""Checks: pure rules over facts. `run` judges, `apply` decides, `codes` and `explain` tell what a finding means."""

from __future__ import annotations

# Imported for what they declare; the order is that of the reports.
from nvrun.checks import unreachable  # noqa: F401  isort: skip
from nvrun.checks import reading, identity, names, software, paths, limits  # noqa: F401  isort: skip
from nvrun.checks import gpu, gpu_health, gpu_links, rdma, roce, network, fabric, system  # noqa: F401  isort: skip
from nvrun.checks import prefix, rendezvous, in_run, connections, shared, collectives  # noqa: F401  isort: skip
from nvrun.checks.check import CHECKS, Check
from nvrun.checks.checklist import Item, checklist
from nvrun.checks.code import CODES, Code
from nvrun.checks.decide import Decision, apply, exit_code
from nvrun.checks.job import Job
from nvrun.checks.run import run
from nvrun.checks.table import codes, explain, rows
from nvrun.checks.unreachable import from_unreachable

__all__ = [
    "CHECKS",
    "CODES",
    "Check",
    "Code",
    "Decision",
    "Item",
    "Job",
    "apply",
    "checklist",
    "codes",
    "exit_code",
    "explain",
    "from_unreachable",
    "rows",
    "run",
]
