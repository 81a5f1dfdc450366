"""A plan as shell that can be pasted on its hosts: torchrun as nvrun would start it, without nvrun. Pure.

No value that the user gave by flag or that travels is printed: such a variable is demanded (`: "${NAME:?}"`), so that
no secret shows; so is a default of a configuration file that looks like one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from nvrun.environment import is_nvruns
from nvrun.mask import masked
from nvrun.model import EnvVar
from nvrun.plan import HostPlan, Plan, RankPlan
from nvrun.topology.cpus import format_cpulist

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but tab and line feed."""


def script(plan: Plan) -> str:
    """One block for each host. All blocks are to be started within torchrun's rendezvous timeout."""
    return "\n".join("\n".join(_host(host)) + "\n" for host in plan.hosts)


def _host(host: HostPlan) -> Iterator[str]:
    rank = "" if host.node_rank is None else f" (node {host.node_rank})"
    yield f"# {_comment(host.host.name)}{rank}"
    yield f"cd {_word(host.cwd)}"
    shared = host.ranks[0].env if host.ranks else ()
    for variable in host.defaults:
        if masked(variable.name, variable.value) != variable.value:
            yield _demanded(variable)
            continue
        yield f'[ -n "${{{variable.name}+set}}" ] || export {variable.name}={_word(variable.value)}'
    for variable in (*host.env, *shared):
        if variable.source.startswith("nvrun: ") or is_nvruns(variable):  # nvrun.env:3 is a file of the user's
            yield f"export {variable.name}={_word(variable.value)}  # {_comment(variable.why or variable.source)}"
        else:
            yield _demanded(variable)
    yield _words(_argv(host))


def _words(argv: Sequence[str]) -> str:
    return " ".join(map(_word, argv))


def _word(text: str) -> str:
    """The text as one word of bash, with nothing in it that would command a terminal on which it is shown."""
    if not _CONTROL.search(text):
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda found: "".join(f"\\x{byte:02x}" for byte in found[0].encode()), escaped) + "'"


def _comment(text: str) -> str:
    """Reasons quote hosts and file names: a line break there must not become a command."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _demanded(variable: EnvVar) -> str:
    """Whoever pastes it has set the variable before."""
    return f': "${{{variable.name}:?}}"; export {variable.name}  # {_comment(variable.source)}'


def _argv(host: HostPlan) -> list[str]:
    """torchrun's command line with the binding of each rank in place of nvrun's shim."""
    separator = host.argv.index("--")
    head = [*host.prefix, *host.argv[:separator]]
    if any(map(_placing, host.ranks)):
        return [*head, "--", "bash", "-c", _case(host.ranks), "nvrun", *host.program]
    return [*head, "--", *host.program]


def _placing(rank: RankPlan) -> Sequence[str]:
    """What stands before a rank's program; taskset where nvrun's shim would set the CPUs itself."""
    return (*(("taskset", "--cpu-list", format_cpulist(rank.cpus)) if rank.cpus else ()), *rank.prefix)


def _case(ranks: Sequence[RankPlan]) -> str:
    placed = [(rank.local_rank, _words(argv)) for rank in ranks if (argv := _placing(rank))]
    arms = " ".join(f'{local}) exec {argv} "$@";;' for local, argv in placed)
    return f'case $LOCAL_RANK in {arms} *) exec "$@";; esac'
