"""What nodes tell each other, and what is found when their cards lie side by side. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping

from nvrun import __version__
from nvrun.facts import Address, HostFacts, Interface, Network
from nvrun.hosts import meanings  # noqa: F401 - declares the codes
from nvrun.hosts.nodeset import fold
from nvrun.job import Job
from nvrun.meanings import found
from nvrun.model import EndedBy, Finding, Frozen, Severity, Verdict
from nvrun.topology.interface import addresses


class Card(Frozen, frozen=True, kw_only=True):
    """One node, as it shows itself to the first."""

    ranks: int
    command: str
    """SHA-256 of the command line and of nvrun's settings."""
    script: str | None
    """SHA-256 of the program's file; None where it is no file that can be read."""
    world: str
    """Nodes and rendezvous in words."""
    nvrun: str
    facts: HostFacts
    findings: tuple[Finding, ...] = ()
    """What this node has found on its own."""


class Known(Frozen, frozen=True, kw_only=True):
    """What every node must know of another to plan for itself."""

    name: str
    ranks: int
    addresses: tuple[str, ...]

    def as_facts(self) -> HostFacts:
        """Facts with nothing but the addresses."""
        there = tuple(Address(address=each, prefix=128 if ":" in each else 32) for each in self.addresses)
        interface = Interface(name="?", up=True, addresses=there)
        return HostFacts(host=self.name, network=Network(interfaces=(interface,)))


class Answer(Frozen, frozen=True, kw_only=True):
    """What the first node says to all."""

    verdict: Verdict
    exit_code: int
    """0: the ranks may run."""
    nodes: tuple[Known, ...]


class End(Frozen, frozen=True, kw_only=True):
    """The end of the job on one node; with a `code` other than 0 the job is over everywhere."""

    node: str
    """Its name."""
    by: EndedBy
    code: int
    words: str = ""


def card(job: Job, ranks: int, facts: HostFacts, program: bytes | None, findings: tuple[Finding, ...]) -> Card:
    """This node's. `program`: the bytes of the script."""
    command = "\0".join([*job.args.replacing(node_rank=0).to_argv(), repr(job.options), job.cwd])
    first, last = job.args.nnodes
    world = f"{first}:{last} nodes at {job.args.master_addr}:{job.args.master_port}, id {job.args.rdzv_id}"
    return Card(
        ranks=ranks,
        command=hashlib.sha256(command.encode(errors="surrogateescape")).hexdigest(),
        script=None if program is None else hashlib.sha256(program).hexdigest(),
        world=world[:300],
        nvrun=__version__,
        facts=facts,
        findings=findings,
    )


def known(name: str, card: Card) -> Known:
    return Known(name=name, ranks=card.ranks, addresses=addresses(card.facts)[:64])


def differences(cards: Mapping[str, Card]) -> Iterator[Finding]:
    """Nodes that are not like the most of them; where there is no majority, not like the first."""
    for what, words in (
        ("command", "its command line"),
        ("script", "its script"),
        ("world", "its world"),
        ("nvrun", "the version of its nvrun"),
    ):
        values = {name: getattr(each, what) for name, each in cards.items()}
        usual, count = Counter(values.values()).most_common(1)[0]
        if count * 2 <= len(values):
            usual = next(iter(values.values()))
        alike = [name for name, value in values.items() if value == usual]
        for name, value in values.items():
            if value != usual:
                yield found(
                    f"node-{what}-differs",
                    Severity.ERROR,
                    f"{words} is another than on {fold(alike)}",
                    host=name,
                    observed=_short(value),
                    expected=_short(usual),
                )


def missing(names: list[str], seconds: float) -> Iterator[Finding]:
    """Nodes of the step that have not come."""
    for name in names:
        yield found("node-not-heard", Severity.ERROR, f"its nvrun has not come within {seconds:g} s", host=name)


def _short(value: str | None) -> str:
    return "no file" if value is None else value[:12] if len(value) == 64 else value
