"""What NCCL's RAS answers to `verbose status` -> which ranks of a communicator are behind the others. Pure.

Forms of NCCL 2.24 to 2.31 (NCCL user guide, RAS): one count for all operations, or since 2.28 one for each kind.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_COMMUNICATOR = re.compile(r"#\d+-\d+ \(([0-9a-f]+)\) ")
_WHAT = re.compile(r"Communicator ranks have different (.+) counts")
_LAUNCHED = r"(?:(?:have|has) launched up to operation (\d+)|(?:have|has) not launched any operations)"
_MANY = re.compile(rf"(\d+) ranks {_LAUNCHED}")
_ONE = re.compile(rf"Rank (\d+) {_LAUNCHED} -- (?:GPU .*? )?managed by process (\d+) on node (\S+)")
_MEMBER = re.compile(r"Rank (\d+) -- (?:GPU .*? )?managed by process (\d+) on node (\S+)")


class Member(NamedTuple):
    """A rank of a communicator; its number there need not be torch's."""

    rank: int
    pid: int
    node: str
    """The host's name or address."""


class Behind(NamedTuple):
    """Ranks of one communicator that have launched fewer operations than the others."""

    communicator: str
    """Its hash, as NCCL's log has it too."""
    operation: str
    """`AllReduce operation`, or `collective operation` where all kinds are counted together."""
    reached: int
    """Up to which operation the others came."""
    members: tuple[Member, ...]
    lines: tuple[str, ...]
    """RAS's own words."""


def behind(answer: str) -> tuple[Behind, ...]:
    """Every communicator whose ranks have launched different numbers of operations; the ranks that stayed back are
    there as far as RAS names them (it names a part of the ranks that is no more than half of them)."""
    found: list[Behind] = []
    block: list[str] = []
    communicator, what = "", ""
    for line in [*answer.splitlines(), "#0-0 (0) end"]:
        text = line.strip()
        if begins := _COMMUNICATOR.match(text):
            found += _of_block(communicator, what, block)
            communicator, what, block = begins[1], "", []
        elif begins := _WHAT.match(text):
            found += _of_block(communicator, what, block)
            what, block = begins[1], []
        elif what and text:
            block.append(text)
    return tuple(found)


def _of_block(communicator: str, what: str, lines: list[str]) -> list[Behind]:
    counts: dict[int, list[Member]] = {}
    count = 0
    for line in lines:
        if many := _MANY.match(line):
            count = int(many[2] or 0)
            counts.setdefault(count, [])
        elif one := _ONE.match(line):
            counts.setdefault(int(one[2] or 0), []).append(Member(int(one[1]), int(one[3]), one[4]))
        elif member := _MEMBER.match(line):
            counts.setdefault(count, []).append(Member(int(member[1]), int(member[2]), member[3]))
    if len(counts) < 2:
        return []
    reached = max(counts)
    members = tuple(member for count in sorted(counts) if count != reached for member in counts[count])
    return [Behind(communicator, what, reached, members, (f"communicator {communicator}: {what} counts", *lines))]
