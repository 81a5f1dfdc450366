"""Node lists as Slurm writes them (`gpu[001-004,7],login`), expanded in their own order, and names folded back.

The order of SLURM_JOB_NODELIST is the order of ranks; ClusterShell's NodeSet sorts, and evaluates `@group` by running
commands. So lists are expanded here, by the rules of Slurm's `scontrol show hostnames`, and ClusterShell only folds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from nvrun.errors import UsageError

MAX_HOSTS = 65_536
"""Hosts in one list; more is a mistake in a range. Slurm's own limit on nodes (MAX_SLURM_NODES) is the same."""

_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def split(text: str, where: str) -> list[str]:
    """`text` at its commas, but not inside brackets; spaces around an entry are dropped, empty entries too."""
    entries, start, depth = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise UsageError(f"{where}: brackets do not match in {text!r}")
        if letter == "," and not depth:
            entries.append(text[start:index])
            start = index + 1
    if depth:
        raise UsageError(f"{where}: brackets do not match in {text!r}")
    return [entry.strip() for entry in (*entries, text[start:]) if entry.strip()]


def expand(text: str, where: str) -> tuple[str, ...]:
    """All names of a node list, in its order; a name that is listed twice comes once.

    `where` is how errors name the source. Raises UsageError; never gives an empty tuple.
    """
    names: dict[str, None] = {}
    for entry in split(text, where):
        for name in _expand_entry(entry, where):
            names[name] = None
            if len(names) > MAX_HOSTS:
                raise UsageError(f"{where}: more than {MAX_HOSTS} hosts in {_short(text)}")
    if not names:
        raise UsageError(f"{where}: names no host")
    return tuple(names)


def _expand_entry(entry: str, where: str) -> Iterable[str]:
    """`dc[1-2]n[01-99]-x`: every combination, the last bracket running fastest."""
    parts: list[list[str]] = []
    for index, part in enumerate(re.split(r"\[([^\[\]]*)\]", entry)):
        if index % 2:
            parts.append(_numbers(part, entry, where))
        elif _NAME.fullmatch(part):
            parts.append([part])
        else:
            raise UsageError(f"{where}: {_short(entry)} is no host name")
    total = 1
    for part_names in parts:
        total *= len(part_names)
    if total > MAX_HOSTS:
        raise UsageError(f"{where}: more than {MAX_HOSTS} hosts in {_short(entry)}")
    for combination in itertools.product(*parts):
        name = "".join(combination)
        if not is_host_name(name):
            raise UsageError(f"{where}: {_short(name)} is no host name")
        yield name


def is_host_name(name: str) -> bool:
    """Letters, digits, `_`, `.` and `-`, starting with none of `.-`: what neither ssh nor a shell can take for more."""
    return 0 < len(name) < 254 and name[0] not in "-." and bool(_NAME.fullmatch(name))


def _numbers(ranges: str, entry: str, where: str) -> list[str]:
    """`08-10,3` -> 08 09 10 3. The first number of a range gives the width."""
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise UsageError(f"{where}: expected numbers as [1-4,7] in {_short(entry)}")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise UsageError(f"{where}: the range {part.strip()} in {_short(entry)} runs backwards")
        if last - first >= MAX_HOSTS:
            raise UsageError(f"{where}: more than {MAX_HOSTS} hosts in {_short(entry)}")
        numbers.extend(f"{number:0{len(found[1])}d}" for number in range(first, last + 1))
    return numbers


def counts(text: str, where: str) -> tuple[int, ...]:
    """Slurm's counts per node: `2(x3),1` -> (2, 2, 2, 1)."""
    numbers: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        if not found or int(found[2] or 1) + len(numbers) > MAX_HOSTS:
            raise UsageError(f"{where}: expected counts as 2(x3),1, got {_short(text)}")
        numbers.extend([int(found[1])] * int(found[2] or 1))
    return tuple(numbers)


def fold(names: Iterable[str]) -> str:
    """Names -> the short form, sorted: `gpu[001-017],login`. What is no host name (an IPv6 address) stands alone."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    unique = dict.fromkeys(names)
    foldable = [name for name in unique if is_host_name(name)]
    others = [name for name in unique if not is_host_name(name)]
    folded = str(NodeSet.fromlist(foldable, resolver=RESOLVER_NOGROUP)) if foldable else ""
    return ",".join(filter(None, [folded, *others]))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
