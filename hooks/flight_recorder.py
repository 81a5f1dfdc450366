"""PyTorch's flight recorder keeps the last collectives of each rank, and a timeout writes them among the host's logs.

On by default; variables that the user set hold. The names are those of the host's torch version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from nvrun.facts import HostFacts
from nvrun.hooks import Contribution, EnvVar, Frozen, Option, log_folder
from nvrun.nccl import parse
from nvrun.options import whole
from nvrun.plan import Plan


class Options(Frozen, frozen=True, kw_only=True):
    entries: Annotated[int, Option(whole, "N", "collectives that are remembered")] = 2000


def contribute(plan: Plan, facts: Mapping[int, HostFacts], options: Options) -> Contribution:
    return Contribution(
        env={
            host.node: tuple(_variables(facts[host.node], log_folder(host, plan), options.entries))
            for host in plan.hosts
        }
    )


def _variables(facts: HostFacts, folder: str, entries: int) -> Iterator[EnvVar]:
    def variable(name: str, value: str, why: str) -> EnvVar:
        return EnvVar(name=name, value=value, source="hook flight-recorder", why=why)

    torch = parse.version(facts.software.torch or "") if facts.software else ()
    if torch < (2, 2):  # or none at all
        return
    # TORCH_FR_* came with 2.8; newer versions print a deprecation warning for the old names.
    size, file = (
        ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
        if torch >= (2, 8)
        else ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    )
    yield variable(size, str(entries), f"the flight recorder keeps the last {entries} collectives")
    yield variable(file, f"{folder}/flight_", "its dumps go among the host's logs")
    yield variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a collective that times out leaves its history")
