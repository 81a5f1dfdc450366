"""Hooks: what a user puts around a job without changing nvrun. A hook is a Python file with one or more of

    class Options(Frozen): ...                  # fields: Annotated[type, Option(read, metavar, help)] = default
    def contribute(plan, facts, options): ...   # pure -> Contribution: variables, prefixes; --dry-run shows them
    def wrap(plan, options): ...                # pure -> node -> what stands before torchrun there
    def around(job, options): ...; yield; ...   # what is done before the job, and what after it

or any executable, called with `before` and `after` on each host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nvrun.errors import NvrunError
from nvrun.facts import HostFacts
from nvrun.hooks import inside
from nvrun.hooks.load import load
from nvrun.hooks.model import Completed, Contribution, Hook, HookFailed, Job, Option, asked, chosen, log_folder
from nvrun.meanings import means
from nvrun.model import EnvVar, Finding, Frozen, Severity
from nvrun.plan import Echoed, LastCommand, Plan

__all__ = ["Completed", "Contribution", "Echoed", "EnvVar", "Finding", "Frozen", "Hook", "HookFailed", "Job",
           "LastCommand", "Option", "Severity", "asked", "chosen", "contributions", "inside", "load", "log_folder",
           "means", "wrapped"]  # fmt: skip


def contributions(hooks: Sequence[Hook], plan: Plan, facts: Mapping[int, HostFacts]) -> Contribution:
    """What all of them add to the plan. NvrunError where one cannot say."""
    total = Contribution()
    for hook in hooks:
        if hook.contribute is None:
            continue
        try:
            total += hook.contribute(plan, facts, hook.settings)
        except Exception as error:
            raise NvrunError(
                f"hook {hook.name}: contribute: {type(error).__name__}: {error}", hint=hook.source
            ) from error
    return total


def wrapped(hooks: Sequence[Hook], plan: Plan) -> Plan:
    """The plan with what hooks put before torchrun on its hosts; an earlier hook's stands outside."""
    for hook in hooks:
        if hook.wrap is None:
            continue
        prefixes = hook.wrap(plan, hook.settings)
        hosts = tuple(
            msgspec.structs.replace(host, prefix=(*host.prefix, *prefixes.get(host.node, ()))) for host in plan.hosts
        )
        plan = msgspec.structs.replace(plan, hosts=hosts)
    return plan
