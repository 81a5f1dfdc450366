"""What was seen of ranks that write nothing -> do they move, do they hang and for whom, or can nobody say?

A rank moves where its main thread was seen at more than one place, another thread was often elsewhere, processes below
it compute (a compilation), it reads or writes much (a download, a checkpoint), or it fills memory. An evaluation moves.
Whoever waits in a collective does not, however busy its CPU is. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nvrun.meanings import means
from nvrun.model import Finding, Frozen, Severity
from nvrun.nccl.ras import Behind, Member, behind
from nvrun.topology.cpus import format_cpulist

HANGS = means(
    "job-hangs",
    "no rank writes or moves",
    read="nothing on stdout or stderr for --hang-after, the Python stacks of all ranks (py-spy), NCCL's RAS",
    why="the ranks wait for each other until a watchdog ends them, and the hosts are taken meanwhile",
    remedy="look at what the missing rank does there; --hang-timeout ends such a job by itself",
    source="py-spy record; NCCL user guide, RAS",
)
NOT_JUDGED = means(
    "hang-not-judged",
    "no rank writes, and whether they move cannot be seen",
    read="py-spy on the hosts, NCCL's RAS",
    why="--hang-timeout cannot end this job, and a hang is not reported",
    remedy="install py-spy on the hosts, on PATH or beside the job's interpreter",
    source="py-spy record",
)

ELSEWHERE = 0.1
"""Share of the samples in which a thread beside the main one was not at its usual place: with more it works. Those that
look at something every few seconds stay far below it."""
BELOW_CPUS = 0.1
"""CPUs that processes below a rank use: a compiler takes one, idle data loader workers wake every 5 s."""
IO_BYTES = 100 << 10
"""Read and written a second: more than a monitor that reads /proc, less than any download or checkpoint."""
FAULTS = 100.0
"""Pages a second, 0.4 MB, that a rank touches for the first time: libraries are loaded, memory is filled."""
STARVED = 0.2
"""Share of the time without a CPU that it wanted: a stack may stand still for want of it."""
IDLE_CPUS = 0.05
"""CPUs that a rank whose stack was not seen uses at most, where NCCL's RAS alone may say that it hangs."""
MOST_LINES = 12
"""Of a stack, and of RAS's answer, in the finding; stacks.txt has all."""

_CALLS = re.compile(r"torch/distributed/distributed_c10d\.py$")
"""Where what the program calls stands; what lies around it there are wrappers."""
_DISTRIBUTED = re.compile(r"torch/distributed/|torch/nn/parallel/distributed\.py$")
_WRAPPERS = frozenset({"wrapper", "inner", "decorate_context"})
_TORCH = r"/torch/(?:_\w+|autograd|cuda|distributed|nn|utils)\b"
_TORCH_OR_STDLIB = re.compile(rf"{_TORCH}|/lib/python3[^/]*/(?!site-packages/|dist-packages/)|^<")
_LIBRARY = re.compile(rf"{_TORCH}|/lib/python3|site-packages|dist-packages|^<")
_PACKAGES = re.compile(r"^.*/(?:site-packages|dist-packages|python3[^/]*)/")
_BACKWARD = "_engine_run_backward"


class Place(NamedTuple):
    """A line of a program."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"

    @property
    def short(self) -> str:
        """Without where packages lie."""
        return f"{self.function} ({_PACKAGES.sub('', self.file)}:{self.line})"


class Thread(msgspec.Struct, frozen=True):
    """Where a thread was seen most."""

    name: str
    share: float
    """Of the samples that show this very stack."""
    frames: tuple[Place, ...]
    """From the innermost on."""


class Look(msgspec.Struct, frozen=True):
    """What a host saw of one rank, as `nvrun.agent.stacks.look` tells it."""

    pid: int
    samples: int
    threads: tuple[Thread, ...]
    own_cpu: float
    below_cpu: float
    starved: float
    faults: float
    io: float | None
    trouble: str
    state: str = ""
    """A letter of proc(5), where it was the same before and after."""


class HostLook(msgspec.Struct, frozen=True):
    """The answer of one host."""

    ranks: dict[int, Look]
    ras: tuple[str, ...] = ()


class Seen(Frozen, frozen=True, kw_only=True):
    """One rank of the job."""

    rank: int
    host: str
    look: Look | None = None
    """None where it has ended."""


class Moves(NamedTuple):
    """No hang: what was seen to move."""

    why: str


class Unknown(NamedTuple):
    """Nobody can say."""

    reasons: tuple[tuple[str, str], ...]
    """(host, why not), each once; the host is empty where it is no host's doing."""


class Hang(NamedTuple):
    finding: Finding


def judge(
    seen: Sequence[Seen],
    ras: Sequence[str] = (),
    *,
    silent: float,
    elsewhere: bool = False,
    nodes: Mapping[str, str] = {},
) -> Moves | Unknown | Hang:
    """`silent`: seconds without output. `elsewhere`: the job has ranks that are not in `seen`. `ras`: NCCL's answers
    before and after the stacks were seen. `nodes`: a host's name or address as NCCL may write it -> host."""
    living = [each for each in seen if each.look is not None]
    for each in living:
        if why := _moves(each.look):
            return Moves(f"rank {each.rank} on {each.host}: {why}")
    before, after = (behind(ras[0]), behind(ras[1])) if len(ras) == 2 else ((), ())
    if before != after:
        return Moves("NCCL's operations go on")
    late = [rank for each in after if (rank := _members(each, living, nodes))]
    dark = tuple(dict.fromkeys((each.host, why) for each in living if (why := _dark(each.look))))
    if held := [each for each in living if each.look and each.look.state in _HELD]:
        return Hang(_finding(_by_state(held), seen, silent))
    if dark or not living:
        if late and not any(_dark_and_busy(each) for each in living):
            return Hang(_finding(_by_ras(late[0], after[0]), living, silent))
        return Unknown(dark or (("", "no rank runs"),))
    told = _by_ras(late[0], after[0]) if late else _by_stacks(seen)
    if told is None and elsewhere:
        return Unknown((("", "all ranks here wait in the same call, perhaps for ranks that this nvrun does not see"),))
    return Hang(_finding(told or _all_alike(seen), seen, silent))


def _moves(look: Look | None) -> str:
    """What of it moves; empty where nothing was seen to."""
    if look is None:
        return ""
    main = look.threads[:1]
    if main and main[0].share < 1.0:
        return f"its main thread was at {main[0].frames[0] if main[0].frames else 'one place'} and elsewhere"
    for thread in look.threads[1:]:
        if thread.share < 1.0 - ELSEWHERE:
            return f"its thread {thread.name or 'without a name'} works"
    if look.below_cpu >= BELOW_CPUS:
        return f"processes below it use {look.below_cpu:.1f} CPUs"
    if look.faults >= FAULTS:
        return f"it touches new memory, {look.faults:.0f} pages a second"
    if look.io is not None and look.io >= IO_BYTES:
        return f"it reads or writes {look.io / 1e6:.1f} MB a second"
    return ""


def _dark(look: Look | None) -> str:
    """Why a rank's stack says nothing; empty where it does."""
    if look is None:
        return ""
    return look.trouble or ("CPUs are short: a rank had to wait for one" if look.starved >= STARVED else "")


def _dark_and_busy(seen: Seen) -> bool:
    return bool(seen.look and _dark(seen.look) and seen.look.own_cpu + seen.look.starved >= IDLE_CPUS)


class _Told(NamedTuple):
    """Whom the others wait for."""

    missing: tuple[int, ...]
    """Empty where nobody can be told apart."""
    message: str
    confidence: float
    lines: tuple[str, ...] = ()
    remedy: str = ""
    """Where it differs from what is to be done about ranks that go another way."""


_HELD = {
    "T": ("stopped by somebody (SIGSTOP)", "there: kill -CONT {pids}", 0.95),
    "t": ("held by a debugger", "detach it; there: grep TracerPid /proc/{pid}/status names it", 0.9),
    "D": (
        "in uninterruptible wait: a file system, a disk or a driver does not answer",
        "there: cat /proc/{pid}/stack (as root), dmesg -T; does ls of the job's file systems hang, or nvidia-smi?",
        0.8,
    ),
}
"""State of a process (proc(5)) that is not its program's doing -> how it is told, what to do, how certain it is."""


def _by_state(held: Sequence[Seen]) -> _Told:
    """Whoever the kernel does not run is waited for, wherever in its program it is."""
    looks = [(each, each.look) for each in held if each.look]
    first = min((look.state for _, look in looks), key=list(_HELD).index)
    alike = [(each, look) for each, look in looks if look.state == first]
    words, remedy, confidence = _HELD[first]
    who = [each for each, _ in alike]
    pids = [str(look.pid) for _, look in alike]
    return _Told(
        tuple(each.rank for each in who),
        f"{_who(who)} {'are' if len(who) > 1 else 'is'} {words}",
        confidence,
        remedy=remedy.format(pid=pids[0], pids=" ".join(pids)),
    )


def _by_stacks(seen: Sequence[Seen]) -> _Told | None:
    """None where all are at the same place."""
    calls = {each.rank: call(each.look) for each in seen}
    waiting = Counter(name for name in calls.values() if name)
    absent = [each for each in seen if not calls[each.rank]]
    if waiting and absent:
        usual = waiting.most_common(1)[0][0]
        others = _ranks(rank for rank, name in calls.items() if name == usual)
        gone = [each for each in absent if each.look is None]
        verb = f"{_have(absent)} not joined {usual}, in which {others} {_wait(waiting[usual])}"
        if gone:
            verb += f"; {_ranks(each.rank for each in gone)} {_have(gone)} ended"
        return _Told(tuple(each.rank for each in absent), f"{_who(absent)} {verb}", 0.9)
    if len(waiting) > 1:
        return _differing(seen, calls, "wait", "in", 0.9)
    places = {each.rank: str(place(each.look)) if each.look else "its end" for each in seen}
    if len(set(places.values())) > 1:
        verb, where = ("wait", f"in {next(iter(waiting))}, called by") if waiting else ("stand", "at")
        return _differing(seen, places, verb, where, 0.6)
    return None


def _differing(seen: Sequence[Seen], values: Mapping[int, str], verb: str, where: str, confidence: float) -> _Told:
    """Ranks that are at another place than most; none where no place has most of them."""
    (usual, most), (other, second), *_ = Counter(values.values()).most_common()
    odd = [each for each in seen if values[each.rank] == other]
    others = [each for each in seen if values[each.rank] == usual]
    missing = tuple(each.rank for each in seen if values[each.rank] != usual) if most > second else ()
    first, rest = (f"{_who(alike)} {verb}{'s' if len(alike) == 1 else ''} {where}" for alike in (odd, others))
    return _Told(missing, f"{first} {other}, {rest} {usual}: they do not meet", confidence)


def _all_alike(seen: Sequence[Seen]) -> _Told:
    name, where = call(seen[0].look), place(seen[0].look)
    if len(seen) == 1:
        return _Told((), f"{_who(seen)} stands at {where}", 0.5)
    if name:
        why = "the transport or a GPU hangs, or they mean different groups"
        return _Told((), f"all {len(seen)} ranks wait in the same {name}, called by {where}: {why}", 0.5)
    return _Told((), f"all {len(seen)} ranks stand at {where}", 0.5)


def _by_ras(late: tuple[Seen, ...], told: Behind) -> _Told:
    words = f"not launched {told.operation} {told.reached}, as the others of its communicator have"
    return _Told(tuple(each.rank for each in late), f"{_who(late)} {_have(late)} {words}", 0.9, told.lines[:MOST_LINES])


def _members(told: Behind, living: Sequence[Seen], nodes: Mapping[str, str]) -> tuple[Seen, ...]:
    """torch's ranks of the processes that RAS names; those that cannot be told are left out."""
    return tuple(each for member in told.members for each in living if _is(each, member, nodes))


def _is(seen: Seen, member: Member, nodes: Mapping[str, str]) -> bool:
    return seen.look is not None and seen.look.pid == member.pid and nodes.get(member.node, seen.host) == seen.host


def call(look: Look | None) -> str:
    """The collective in which a rank waits, as the program called it; empty where it is in none."""
    called: list[str] = []
    around: list[str] = []
    for frame in look.threads[0].frames if look and look.threads else ():
        name = frame.function.rpartition(".")[2]
        if not _TORCH_OR_STDLIB.search(frame.file):
            break
        if name == _BACKWARD:
            around.append("backward")
        elif name not in _WRAPPERS and _DISTRIBUTED.search(frame.file):
            (called if _CALLS.search(frame.file) else around).append(name)
    names = called or around
    return ([name for name in names if not name.startswith("_")] or names or [""])[-1]


def place(look: Look | None) -> Place | str:
    """The innermost line of the program's own."""
    frames = look.threads[0].frames if look and look.threads else ()
    own = next((frame for frame in frames if not _LIBRARY.search(frame.file)), None)
    return own or next(iter(frames), "an unknown place")


def _finding(told: _Told, seen: Sequence[Seen], silent: float) -> Finding:
    missing = [each for each in seen if each.rank in told.missing]
    hosts = {each.host for each in missing}
    samples = min((each.look.samples for each in seen if each.look and each.look.samples), default=0)
    others = [each for each in seen if each.look and each.rank not in told.missing]
    lines = [line for each in (missing or others)[:2] for line in _stack(each, MOST_LINES)]
    lines += [line for each in others[:1] if missing for line in _stack(each, 6)]
    remedy = "what makes that rank go another way: a branch on the rank, uneven data, a lock, a file it waits for?"
    if not missing:
        remedy = "Xids, link errors and NCCL's warnings of the hosts; whether all ranks mean the same group"
    if told.remedy:
        remedy = told.remedy
    return Finding(
        code=HANGS,
        severity=Severity.ERROR,
        message=f"no output for {silent:.0f} s and no rank moves: {told.message}",
        host=hosts.pop() if len(hosts) == 1 else None,
        subject=_ranks(told.missing) if told.missing else "",
        observed=f"all stacks the same in {samples} samples" if samples else "NCCL's RAS, twice the same",
        remedy=remedy,
        evidence=(*told.lines, *lines),
        confidence=told.confidence,
    )


def _stack(seen: Seen, most: int) -> list[str]:
    """A rank and the lines of the thread that waits, from the innermost on."""
    if seen.look is None:
        return [f"rank {seen.rank} on {seen.host} has ended"]
    busy = f"{seen.look.own_cpu:.0%} of a CPU"
    head = f"rank {seen.rank} on {seen.host} (pid {seen.look.pid}, {busy}): {call(seen.look) or 'in no collective'}"
    frames = seen.look.threads[0].frames if seen.look.threads else ()
    return [head, *(f"  {frame.short}" for frame in frames[:most])]


def all_stacks(seen: Sequence[Seen]) -> str:
    """Every thread of every rank, ranks with the same stacks together."""
    texts: dict[str, list[Seen]] = {}
    for each in seen:
        lines: list[str] = []
        for thread in each.look.threads if each.look else ():
            lines += [f"  thread {thread.name}", *(f"    {frame}" for frame in thread.frames)]
        trouble = each.look.trouble if each.look else "has ended"
        texts.setdefault("\n".join([*lines, *([f"  {trouble}"] if trouble else [])]), []).append(each)
    return "".join(f"{_who(alike, 64)}\n{text}\n\n" for text, alike in texts.items())


def _ranks(ranks: Iterable[int]) -> str:
    found = sorted(ranks)
    return f"rank{'s' if len(found) > 1 else ''} {format_cpulist(found)}"


def _who(seen: Sequence[Seen], most: int = 8) -> str:
    hosts = list(dict.fromkeys(each.host for each in seen))
    more = f" and {len(hosts) - most} more" if len(hosts) > most else ""
    return f"{_ranks(each.rank for each in seen)} on {', '.join(hosts[:most])}{more}"


def _have(seen: Sequence[Seen]) -> str:
    return "have" if len(seen) > 1 else "has"


def _wait(count: int) -> str:
    return "wait" if count > 1 else "waits"
