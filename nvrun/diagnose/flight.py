"""Flight-recorder dumps of torch -> which rank did not join which collective, or called another one.

The reading is that of torch's own `torchfrtrace`: within a process group the ranks' collectives are compared by their
sequence number, the first that does not fit is told. Dumps are pickles and come from other hosts: only lists, dicts,
strings and numbers are read from them, nothing in them can name code.
"""

from __future__ import annotations

import ast
import io
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nvrun.diagnose.rule import Stage
from nvrun.diagnose.scan import Match
from nvrun.errors import UsageError
from nvrun.model import Frozen

_OWN_SIZES = frozenset(
    {"all_to_all", "all_to_all_v_single", "all_to_all_single", "gather", "scatter", "all_gather_v", "reduce_scatter_v"}
)
"""Collectives in which ranks may have other sizes."""
_FOREIGN = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen |torch/distributed/")


class Entry(Frozen, frozen=True, kw_only=True):
    """One call that a rank recorded."""

    group: str
    description: str
    sequence: int
    """Number of the collective within its group, from 1; for send and recv the number among these."""
    operation: str
    """`all_reduce`, `send 0->1`, without the backend's name."""
    sizes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Input shapes, output shapes."""
    types: tuple[tuple[str, ...], ...] = ()
    completed: bool = False
    point_to_point: bool = False
    created_ns: int = 0
    frame: str = ""
    """Deepest frame of the user's own code, `train.py:88 in step`."""


class Dump(Frozen, frozen=True, kw_only=True):
    """What one rank recorded."""

    rank: int
    members: Mapping[str, tuple[int, ...]] = {}
    """Group -> global ranks."""
    entries: tuple[Entry, ...] = ()


class _OnlyData(pickle.Unpickler):
    """Builds containers, strings and numbers; whatever would import a name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: object) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def read_dump(data: bytes, *, rank: int, name: str = "dump") -> Dump:
    """The dump of one rank; UsageError where `data` is not a flight-recorder dump of plain values.

    torch writes it to `<prefix><rank>`: the rank is in the file's name only.
    """
    try:
        raw = _OnlyData(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 - a broken pickle may raise anything, and nothing of it was run
        raise UsageError(f"{name} is not a flight-recorder dump: {error or type(error).__name__}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("entries", []), list):
        raise UsageError(f"{name} is not a flight-recorder dump: expected a dict with a list `entries`")
    try:
        members = _members(raw.get("pg_config", {}))
        entries = tuple(_entry(item) for item in raw.get("entries", []) if isinstance(item, dict))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(f"{name} is a flight-recorder dump of an unknown form: {error!r}") from None
    return Dump(rank=rank, members=members, entries=entries)


def rank_of_file(name: str) -> int | None:
    """The rank at the end of a dump's file name; None where there is none."""
    found = re.search(r"(\d+)$", name)
    return int(found[1]) if found else None


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    members = {}
    for name, group in config.items():
        ranks = group["ranks"]
        members[str(name)] = tuple(int(r) for r in (ast.literal_eval(ranks) if isinstance(ranks, str) else ranks))
    return members


def _entry(raw: dict[str, Any]) -> Entry:
    named = raw["process_group"] if "process_group" in raw else raw["pg_id"]  # by number alone: torch 2.3
    group, description = (named, "") if isinstance(named, (str, int)) else named[:2]
    operation = str(raw["profiling_name"]).partition(":")[2] or str(raw["profiling_name"])
    point_to_point = bool(raw.get("is_p2p", False)) or operation.split(" ")[0] in ("send", "recv")
    numbered = "p2p_seq_id" if point_to_point else "collective_seq_id"
    return Entry(
        group=str(group),
        description=str(description),
        sequence=int(raw[numbered if numbered in raw else "seq_id"]),
        operation=operation,
        sizes=tuple(tuple(tuple(int(n) for n in s) for s in raw.get(k) or ()) for k in ("input_sizes", "output_sizes")),
        types=tuple(tuple(str(t) for t in raw.get(k) or ()) for k in ("input_dtypes", "output_dtypes")),
        # gloo never leaves `scheduled`; its entries are retired when they are done. NCCL's are retired when the
        # watchdog looks at them no more, also those that it gave up.
        completed=raw.get("state") == "completed"
        or (bool(raw.get("retired")) and not str(raw["profiling_name"]).startswith("nccl:")),
        point_to_point=point_to_point,
        created_ns=int(raw.get("time_created_ns") or 0),
        frame=_frame(raw.get("frames") or ()),
    )


def _frame(frames: Iterable[Mapping[str, Any]]) -> str:
    """Frames come deepest first."""
    texts = [(str(f.get("filename", "")), f"{f.get('filename')}:{f.get('line')} in {f.get('name')}") for f in frames]
    return next((text for path, text in texts if not _FOREIGN.search(path)), texts[0][1] if texts else "")


def odd_collectives(dumps: Iterable[Dump]) -> list[Match]:
    """The first collective of each group that does not fit together, the earliest first."""
    by_rank = {dump.rank: dump for dump in dumps}
    groups: dict[tuple[str, tuple[int, ...]], dict[int, dict[int, Entry]]] = defaultdict(dict)
    for dump in by_rank.values():
        for entry in dump.entries:
            if not entry.point_to_point:
                members = _members_of(entry, dump, by_rank.values())
                groups[entry.group, members].setdefault(dump.rank, {}).setdefault(entry.sequence, entry)
    found: list[tuple[int, Match]] = []
    for (_, members), calls in groups.items():
        found.extend(_first_odd(members, calls, set(by_rank)))
    found.extend(_unmatched_messages(by_rank))
    return [match for _, match in sorted(found, key=lambda item: (item[1].stage, item[0]))]


def _members_of(entry: Entry, dump: Dump, dumps: Iterable[Dump]) -> tuple[int, ...]:
    """From the dump's configuration; gloo has no names there. Else those that recorded something in the group."""
    if entry.group in dump.members:
        return dump.members[entry.group]
    if entry.description == "default_pg" and dump.members.get(""):
        return dump.members[""]
    return tuple(sorted(d.rank for d in dumps if any(e.group == entry.group for e in d.entries)))


def _first_odd(
    members: tuple[int, ...], calls: Mapping[int, Mapping[int, Entry]], dumped: set[int]
) -> Iterator[tuple[int, Match]]:
    # The buffer is a ring: before this number some rank has forgotten its calls.
    first_known = max(min(of_rank) for of_rank in calls.values())
    last = max(max(of_rank) for of_rank in calls.values())
    for sequence in range(first_known, last + 1):
        here = {rank: of_rank[sequence] for rank, of_rank in calls.items() if sequence in of_rank}
        if not here:
            continue
        match = _differing(here) or _missing(members, here, calls, dumped) or _stuck(here)
        if match is not None:
            yield min(entry.created_ns for entry in here.values()), match
            return


def _differing(here: Mapping[int, Entry]) -> Match | None:
    """Ranks that call something else under the same number."""
    aspects = (
        ("flight-operation-differs", "called", {rank: entry.operation for rank, entry in here.items()}),
        ("flight-type-differs", "used data types", {rank: entry.types for rank, entry in here.items()}),
        ("flight-size-differs", "used sizes", {rank: entry.sizes for rank, entry in here.items()}),
    )
    example = next(iter(here.values()))
    for code, verb, values in aspects:
        if code == "flight-size-differs" and example.operation in _OWN_SIZES:
            continue
        if code == "flight-type-differs" and example.operation in ("gather", "scatter", "broadcast"):
            continue
        counts = Counter(values.values())
        if len(counts) == 1:
            continue
        usual = counts.most_common(1)[0][0]
        odd = sorted(rank for rank, value in values.items() if value != usual)
        other = here[odd[0]]
        majority = next(entry for rank, entry in here.items() if values[rank] == usual)
        return Match(
            code=code,
            stage=Stage.PROGRAM,
            message=f"{_ranks(odd).capitalize()} {verb} {_show(values[odd[0]])} as number {other.sequence} of group "
            f"{_group(other)} where {_ranks(sorted(set(here) - set(odd)))} {verb} {_show(usual)}",
            remedy="Compare the two places in the program: a branch that depends on the rank, or uneven data",
            confidence=0.95,
            rank=odd[0],
            subject=_ranks(odd),
            evidence=(_describe(odd, other), _describe(sorted(set(here) - set(odd)), majority)),
            source="flight recorder",
        )
    return None


def _missing(
    members: tuple[int, ...],
    here: Mapping[int, Entry],
    calls: Mapping[int, Mapping[int, Entry]],
    dumped: set[int],
) -> Match | None:
    """Members that never called what others wait in."""
    absent = sorted(set(members) - set(here))
    if not absent or all(entry.completed for entry in here.values()):
        return None
    entry = next(iter(here.values()))
    silent = [rank for rank in absent if rank not in dumped]
    lines = [_describe(sorted(here), entry)]
    for rank in [rank for rank in absent if rank in dumped][:4]:
        own = calls.get(rank)
        lines.append(_describe([rank], own[max(own)]) if own else f"rank {rank}: nothing recorded in this group")
    if silent:
        lines.append(f"{_ranks(silent)}: no dump")
    why = "it wrote no dump: it died or hangs before" if silent else "look at where it is instead"
    return Match(
        code="flight-rank-missing",
        stage=Stage.SYMPTOM,
        message=f"{_ranks(absent).capitalize()} did not join {entry.operation} number {entry.sequence} of group "
        f"{_group(entry)}, in which {_ranks(sorted(here))} {'waits' if len(here) == 1 else 'wait'}; {why}",
        remedy="Look at the log and the stack of the missing rank first",
        confidence=0.85,
        rank=absent[0],
        subject=_ranks(absent),
        evidence=tuple(lines),
        source="flight recorder",
    )


def _stuck(here: Mapping[int, Entry]) -> Match | None:
    """All joined, with the same call, and it did not end everywhere."""
    waiting = sorted(rank for rank, entry in here.items() if not entry.completed)
    if not waiting:
        return None
    entry = here[waiting[0]]
    return Match(
        code="flight-collective-stuck",
        stage=Stage.TIMEOUT,
        message=f"All ranks joined {entry.operation} number {entry.sequence} of group {_group(entry)}, but on "
        f"{_ranks(waiting)} it did not end: the program is right, the transport or a GPU hangs",
        remedy="Look for Xids, link errors and NCCL warnings on the hosts of these ranks",
        confidence=0.5,
        subject=_ranks(waiting),
        evidence=(_describe(waiting, entry),),
        source="flight recorder",
    )


def _unmatched_messages(dumps: Mapping[int, Dump]) -> Iterator[tuple[int, Match]]:
    """Sends that wait for a receive that was never called, and the other way round."""
    called: Counter[tuple[str, str]] = Counter()
    waiting: dict[tuple[str, str], tuple[int, Entry]] = {}
    for dump in dumps.values():
        for entry in dump.entries:
            if entry.point_to_point:
                key = (entry.group, entry.operation)
                called[key] += 1
                if not entry.completed:
                    waiting.setdefault(key, (dump.rank, entry))
    for (group, operation), (rank, entry) in waiting.items():
        partner = _counterpart(operation)
        if partner is not None and called[group, partner] < called[group, operation]:
            yield (
                entry.created_ns,
                Match(
                    code="flight-message-unmatched",
                    stage=Stage.PROGRAM,
                    message=f"Rank {rank} waits in {operation} of group {_group(entry)}, and nobody called {partner}",
                    remedy="Compare the order of sends and receives of the two ranks (pipeline schedule)",
                    confidence=0.8,
                    rank=rank,
                    subject=f"rank {rank}",
                    evidence=(_describe([rank], entry),),
                    source="flight recorder",
                ),
            )


def _counterpart(operation: str) -> str | None:
    """`send 0->1` <-> `recv 1<-0`, as torch writes them."""
    if found := re.fullmatch(r"send (\d+)->(\d+)", operation):
        return f"recv {found[2]}<-{found[1]}"
    if found := re.fullmatch(r"recv (\d+)<-(\d+)", operation):
        return f"send {found[2]}->{found[1]}"
    return None


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def _group(entry: Entry) -> str:
    return entry.description if entry.description not in ("", "undefined") else entry.group or "default"


def _show(value: object) -> str:
    """An operation as it is; of (inputs, outputs) the inputs."""
    if not isinstance(value, tuple):
        return str(value)
    inputs = value[0] if value else ()
    return str([list(shape) if isinstance(shape, tuple) else shape for shape in inputs]) if inputs else "none"


def _describe(ranks: list[int], entry: Entry) -> str:
    state = "done" if entry.completed else "waiting"
    at = f", called at {entry.frame}" if entry.frame else ""
    return f"{_ranks(ranks)}: {entry.operation} number {entry.sequence}, sizes {_show(entry.sizes)}, {state}{at}"
