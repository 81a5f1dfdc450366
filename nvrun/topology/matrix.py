"""Topology from the text of `nvidia-smi topo -m`, as people paste it.

Read: headers with and without the leading tab, tabs and blanks mixed, rows indented, wrapped or cut off, lines missing
at the end, colour codes, NICs named by number with a legend or by device, columns of all driver versions. The first
matrix of ways in the text counts; what comes after it (`topo -p2p`) has other cells and ends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

from nvrun.errors import UsageError
from nvrun.model import Frozen
from nvrun.topology.cpus import parse_cpulist
from nvrun.topology.model import GpuPlace, NicPlace, NumaPlace, Topology, is_path

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")
_GPU = re.compile(r"GPU(\d{1,3})", re.ASCII)
_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_COLUMN = re.compile("|".join(name.replace(" ", r"\s+") for name in _COLUMNS))
_LEGEND = re.compile(r"(NIC\d{1,3})\s*:\s*(\S+)", re.ASCII)
_WAYS = "X, NV#, PIX, PXB, PHB, NODE, SYS"
_MOST_WRAPS = 4
"""Line breaks within one row that are tried out; a row of 20 columns in a terminal of 80 has two."""
_CUT_LIST = re.compile(r"\d+(?:,\d+){5}", re.ASCII)
"""The column ends after six entries (`0,2,4,6,8,10` on hosts that number CPUs by turns): the rest is not shown."""


class _Line(Frozen, frozen=True, kw_only=True):
    number: int
    text: str

    @property
    def words(self) -> list[str]:
        return _words(self.text)


class _Row(Frozen, frozen=True, kw_only=True):
    line: int
    cells: tuple[str, ...]
    tail: tuple[str, ...]


def from_matrix(text: str, source: str = "matrix") -> Topology:
    """The topology that a matrix shows. UsageError names `source`, the line and what was expected there."""
    lines = list(_lines(text))
    names, rows = _matrix(lines, source)
    legend = {m[1]: m[2] for line in lines if (m := _LEGEND.fullmatch(" ".join(line.words)))}
    notes: list[str] = []
    paths = _paths(names, rows, notes)
    gpus = [_gpu(name, rows.get(name), notes) for name in names if _GPU.fullmatch(name)]
    numbered = [name for name in names if re.fullmatch(r"NIC\d+", name)]
    if numbered and not legend:
        notes.append("no NIC legend: the NICs have numbers, not device names")
    called = {name: legend.get(name, name) for name in names}
    cpus: dict[int, set[int]] = {}
    for gpu in gpus:
        if gpu.numa_node is not None:
            cpus.setdefault(gpu.numa_node, set()).update(gpu.cpus)
    return Topology(
        source="matrix",
        gpus=tuple(gpus),
        nics=tuple(NicPlace(name=called[name]) for name in names if not _GPU.fullmatch(name)),
        numa=tuple(NumaPlace(node=node, cpus=tuple(sorted(cpus[node])) or None) for node in sorted(cpus)),
        paths={called[a]: {called[b]: path for b, path in ways.items()} for a, ways in paths.items()},
        notes=tuple(notes),
    )


def _lines(text: str) -> Iterator[_Line]:
    """Lines with anything on them."""
    for number, line in enumerate(text.split("\n"), start=1):
        clean = _ESCAPES.sub("", line)
        if _words(clean):
            yield _Line(number=number, text=clean)


def _words(text: str) -> list[str]:
    """The words of a line; the titles of the last columns are one word each, marks of quotation none."""
    return _COLUMN.sub(lambda match: "_".join(match[0].split()), text.lstrip(" \t>|#")).split()


def _header(lines: Sequence[_Line], source: str) -> tuple[int, int]:
    """Index of the header among the lines, and how many lines it is wrapped over."""
    for at, line in enumerate(lines):
        if not _is_header(line.words):
            continue
        wrapped = 1
        while at + wrapped < len(lines) and not _begins_row(lines[at + wrapped].words, line.words[0]):
            wrapped += 1
            if wrapped > _MOST_WRAPS:
                break
        else:
            if at + wrapped < len(lines):
                return at, wrapped
    raise UsageError(
        f"{source}: no matrix of `nvidia-smi topo -m` in {len(lines)} lines: expected a line of column names that "
        f"begins with GPU0, and below it a row `GPU0  X  ...` of ways ({_WAYS})"
    )


def _is_header(words: Sequence[str]) -> bool:
    return _GPU.fullmatch(words[0]) is not None and not (len(words) > 1 and _like_path(words[1]))


def _begins_row(words: Sequence[str], label: str) -> bool:
    """Whether this is the row of a GPU: in the first one the first cell is its own, X, or a way."""
    return len(words) > 1 and words[0] == label and is_path(words[1])


def _like_path(word: str) -> bool:
    """A cell, or what is meant for one: `OK` and the like come from topo -p2p."""
    return is_path(word) or word in ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")


def _matrix(lines: Sequence[_Line], source: str) -> tuple[tuple[str, ...], dict[str, _Row]]:
    """Column names and rows of the first matrix, its header read in the first way that fits the rows."""
    start, wrapped = _header(lines, source)
    error: UsageError | None = None
    for header in _joined(lines[start : start + wrapped]):
        try:
            return _rows(lines[start + wrapped :], header, f"{source}:{lines[start].number}", source)
        except UsageError as this:
            error = error or this
    assert error is not None  # there is at least one way to read a header
    raise error


def _joined(pieces: Sequence[_Line]) -> Iterator[list[str]]:
    """The words of a wrapped line: at each break either the next word begins, or one was cut in two."""
    for glue in product((" ", ""), repeat=len(pieces) - 1):
        yield _words(pieces[0].text + "".join(mark + piece.text for mark, piece in zip(glue, pieces[1:], strict=True)))


def _rows(
    lines: Sequence[_Line], header: Sequence[str], place: str, source: str
) -> tuple[tuple[str, ...], dict[str, _Row]]:
    """Column names and rows below a header; the first line that is neither row nor part of one ends them."""
    titles = [name.replace(" ", "_") for name in _COLUMNS]
    first_title = next((at for at, word in enumerate(header) if word in titles), len(header))
    names = tuple(header[:first_title])
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"{place}: column {min(twice)} is there twice")
    pieces: dict[str, list[_Line]] = {}
    current: list[_Line] = []
    for line in lines:
        label = line.words[0]
        if label in names and len(line.words) > 1 and not _is_header(line.words):
            if label in pieces:
                break  # another matrix
            current = pieces[label] = [line]
        elif _continues(line, current):
            current.append(line)
        else:
            break
    tail = len(header) - first_title
    return names, {name: _row(name, names, tail, pieces[name], source) for name in pieces}


def _continues(line: _Line, row: Sequence[_Line]) -> bool:
    """Whether this line may be the rest of a wrapped row: it follows at once and is no legend."""
    return 0 < len(row) <= _MOST_WRAPS and line.number == row[-1].number + 1 and not line.words[0].endswith(":")


def _row(name: str, names: Sequence[str], tail: int, pieces: Sequence[_Line], source: str) -> _Row:
    """One row put together from its lines: at each break the words go on, or a word was cut in two."""
    best: _Row | None = None
    for _, *words in _joined(pieces):
        cells = words[: len(names)]
        if all(map(is_path, cells)):
            row = _Row(line=pieces[0].number, cells=tuple(cells), tail=tuple(words[len(names) :]))
            if best is None or _misfit(row, names, tail) < _misfit(best, names, tail):
                best = row
    if best is None:
        wrong = next(word for word in pieces[0].words[1:] if not is_path(word)) if len(pieces) == 1 else ""
        found = f", not {wrong!r}" if wrong else ""
        raise UsageError(f"{source}:{pieces[0].number}: row {name}: expected {len(names)} ways ({_WAYS}){found}")
    own = names.index(name)
    if "X" in best.cells and (best.cells.index("X") != own or best.cells.count("X") > 1):
        raise UsageError(
            f"{source}:{best.line}: row {name}: expected X in column {own + 1} ({name}) and nowhere else: "
            "a column is missing or one too many"
        )
    return best


def _misfit(row: _Row, names: Sequence[str], tail: int) -> tuple[int, int, bool]:
    """How badly a reading fits the header; the least is the one to take."""
    readable = all(_cpus(word) is not None for word in row.tail[:1])
    return len(names) - len(row.cells), abs(len(row.tail) - tail), not readable


def _paths(names: Sequence[str], rows: dict[str, _Row], notes: list[str]) -> dict[str, dict[str, str]]:
    """Ways, each from either of the two rows that give it; one on which they disagree is left out."""
    seen: dict[tuple[str, str], set[str]] = {}
    for name, row in rows.items():
        if len(row.cells) < len(names):
            notes.append(f"row {name} is cut off after {len(row.cells)} of {len(names)} columns")
        for other, cell in zip(names, row.cells, strict=False):
            if other != name and cell != "X":
                one, two = sorted((name, other))
                seen.setdefault((one, two), set()).add(cell)
    if absent := [name for name in names if name not in rows]:
        notes.append(f"rows missing: {', '.join(absent)}")
    paths: dict[str, dict[str, str]] = {}
    for (one, two), cells in seen.items():
        if len(cells) > 1:
            notes.append(f"{one} to {two} is {' one way round and '.join(sorted(cells))} the other: left out")
            continue
        paths.setdefault(one, {})[two] = paths.setdefault(two, {})[one] = next(iter(cells))
    return paths


def _gpu(name: str, row: _Row | None, notes: list[str]) -> GpuPlace:
    index = int(name[3:])
    if row is None or not row.tail:
        return GpuPlace(name=name, index=index)
    cpus = _cpus(row.tail[0])
    if cpus is None:
        notes.append(f"{name}: {row.tail[0]!r} is not a list of CPUs")
    if _CUT_LIST.fullmatch(row.tail[0]):
        cpus = None
        note = f"CPU list {row.tail[0]} has six entries, where drivers stop: the whole list is not known"
        notes.extend([note] if note not in notes else [])
    node, memory_node = (_node(row.tail, at) for at in (1, 2))
    return GpuPlace(name=name, index=index, numa_node=node, memory_node=memory_node, cpus=cpus or ())


def _cpus(word: str) -> tuple[int, ...] | None:
    if word == "N/A":
        return ()
    try:
        return parse_cpulist(word)
    except ValueError:
        return None


def _node(tail: Sequence[str], at: int) -> int | None:
    """A column with one NUMA node; None for `N/A`, for several nodes, and where the column is not there."""
    return int(tail[at]) if len(tail) > at and re.fullmatch(r"\d{1,4}", tail[at], re.ASCII) else None
