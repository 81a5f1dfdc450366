"""What is known of each variable: who reads it, how, since when, and what to write instead. Data in variables.tsv."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

from nvrun.errors import UsageError
from nvrun.model import Frozen
from nvrun.nccl import parse

Type = Literal["bool", "int", "size", "enum", "list", "text", "names", "none"]
Reads = Literal[
    "integer",  # NCCL's strtoll: what is not a number at the start is dropped
    "number",  # a plain whole number; the owner's parser was not read
    "only-1",  # exactly the integer 1 acts, everything else is the default
    "strict-bool",  # NCCL's typed parameters
    "bool-word",  # PyTorch: other text raises
    "stoi",  # PyTorch: text raises, a suffix is dropped
    "word",  # one of the choices in any case
    "exact",  # one of the choices, in this case
    "level",  # path type in upper case, or a legacy integer
    "list",  # comma list of choices, one leading ^
    "algorithms",  # NCCL_ALGO, NCCL_PROTO
    "devices",  # [^][=]name[:port],...
    "interfaces",  # comma list of exact names
    "cta-policy",
    "netdevs",
    "cidr",
    "cpus",  # comma list of CPU numbers, no ranges
    "threads",  # OpenMP: whole numbers from 1 on, one a nesting level
    "address",  # host:port or [ipv6]:port
    "thresholds",  # six whole numbers with blanks between
    "text",
    "none",  # read by nobody
]


class Variable(Frozen, frozen=True, kw_only=True):
    """One row of the catalogue. A name that ends in `*` stands for all names that start so."""

    name: str
    owner: str
    """Who reads it: nccl, torch, gloo, cuda, aws-ofi-nccl, libfabric, hpcx, google, nvshmem, horovod, ...; `nobody`
    for names that only blog posts know."""
    type: Type
    reads: Reads
    unit: str = ""
    low: int | None = None
    high: int | None = None
    """Inclusive limits of what makes sense, not of what the parser takes: NCCL checks almost nothing."""
    choices: tuple[str, ...] = ()
    form: str = ""
    """What a text looks like, where it is neither a number nor a choice."""
    choice_since: Mapping[str, str] = {}
    """First release of a choice that came later than the variable."""
    default: str = ""
    since: str = ""
    """First release of the owner that reads it; for nccl 2.3.5 stands for that and before."""
    until: str = ""
    """Last release that reads it."""
    replacement: str = ""
    note: str = ""

    @property
    def allowed(self) -> str:
        """The range, the choices or the form, for people."""
        if self.form:
            return self.form
        if self.choices:
            return ", ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low} to {self.high}"
        if self.low is not None:
            return f"{self.low} or more"
        return "" if self.high is None else f"{self.high} or less"


@cache
def variables() -> Mapping[str, Variable]:
    """All rows by name, namespaces included."""
    text = (files("nvrun.nccl") / "variables.tsv").read_text(encoding="utf-8")
    header, *lines = text.splitlines()
    keys = header.split("\t")
    return {row["name"]: _variable(row) for row in (dict(zip(keys, line.split("\t"), strict=True)) for line in lines)}


def _variable(row: dict[str, str]) -> Variable:
    words = [word.partition("@") for word in row.pop("choices").split()]
    low, high = row.pop("low"), row.pop("high")
    return Variable(
        low=int(low) if low else None,
        high=int(high) if high else None,
        choices=tuple(word for word, _, _ in words),
        choice_since={word: since for word, _, since in words if since},
        **row,  # type: ignore[arg-type]  # type and reads are checked by tests/nccl/test_catalogue.py
    )


def find(name: str) -> Variable | None:
    """The row of a name, or of the longest namespace it belongs to; None where nobody is known to read it."""
    rows = variables()
    if name in rows:
        return rows[name]
    spaces = [row for row in rows.values() if row.type == "names" and name.startswith(row.name[:-1])]
    return max(spaces, key=lambda row: len(row.name), default=None)


def nearest(name: str) -> str | None:
    """The real variable that a misspelt name most resembles."""
    real = [row.name for row in variables().values() if row.owner != "nobody" and row.type != "names"]
    upper = name.upper().strip()
    if upper in real:
        return upper
    return next(iter(difflib.get_close_matches(upper, real, n=1, cutoff=0.75)), None)


def reads_at(variable: Variable, loaded: parse.Version) -> bool:
    """True where NCCL of this version reads the variable. Only for rows owned by nccl."""
    return loaded >= parse.version(variable.since) and not is_past(variable, loaded)


def is_past(variable: Variable, loaded: parse.Version) -> bool:
    """True where the variable was removed before this version."""
    return bool(variable.until) and loaded > parse.version(variable.until)


def explain(name: str) -> str:
    """Text of `nvrun env --explain NAME`. Raises UsageError with the nearest name where there is no such variable."""
    variable = find(name)
    if variable is None:
        near = nearest(name)
        raise UsageError(f"{name}: no such variable is known", hint=f"did you mean {near}?" if near else "")
    facts = {
        "read by": _OWNERS.get(variable.owner, variable.owner),
        "type": variable.type + (f", in {variable.unit}" if variable.unit else ""),
        "allowed": variable.allowed,
        "default": variable.default,
        "parsed": _PARSED.get(variable.reads, ""),
        "since": variable.since and f"{_release_of(variable)} {variable.since}",
        "until": variable.until and f"{_release_of(variable)} {variable.until}",
        "instead": variable.replacement,
    }
    lines = [name if variable.name == name else f"{name}, one of {variable.name}"]
    lines += [f"  {label:8} {value}" for label, value in facts.items() if value]
    if variable.note:
        lines += textwrap.wrap(
            variable.note[0].upper() + variable.note[1:] + ".", 100, initial_indent="  ", subsequent_indent="  "
        )
    return "\n".join(lines)


def native(name: str, text: str) -> str:
    """The value in the variable's own units: `4MiB` -> `4194304` for a size, other text as it is.

    Raises ValueError, with what was expected, where a size is none.
    """
    variable = find(name)
    if variable is None or variable.type != "size":
        return text
    if parse.is_plain(text):
        return text.strip()
    number = parse.scaled(text)
    if number is None:
        raise ValueError(f"{name} is a size in bytes: a whole number with or without KiB, MiB or GiB, not {text!r}")
    return str(number)


def _release_of(variable: Variable) -> str:
    return "NCCL" if variable.owner in ("nccl", "nccl-inspector", "nccl-profiler") else variable.owner


_OWNERS = {
    "nccl": "NCCL",
    "nccl-inspector": "the inspector profiler plugin that comes with NCCL",
    "nccl-profiler": "the example profiler plugin that comes with NCCL",
    "torch": "PyTorch",
    "gloo": "Gloo",
    "cuda": "CUDA",
    "aws-ofi-nccl": "the aws-ofi-nccl plugin (EFA)",
    "libfabric": "libfabric (EFA)",
    "hpcx": "the NCCL RDMA and SHARP plugin of HPC-X",
    "google": "Google's NCCL plugins (TCPX, TCPXO)",
    "nvshmem": "NVSHMEM",
    "horovod": "Horovod",
    "ncclx": "Meta's NCCLX; not NVIDIA NCCL",
    "nobody": "nobody",
    "build": "build systems, not NCCL",
    "container": "container images and runtimes",
}
_PARSED = {
    "integer": "as C's strtoll with base 0: leading digits count, the rest is dropped (4M is 4, 010 is 8, true is 0)",
    "only-1": "only the integer 1 acts",
    "strict-bool": "from NCCL 2.30 1, T, TRUE, 0, F, FALSE in any case; other text means the default",
    "bool-word": "y, yes, 1, t, true, n, no, 0, f, false in any case; other text raises",
    "stoi": "leading digits count, other text raises",
    "word": "any letter case",
    "exact": "exactly so, in this letter case; other text is ignored",
    "level": "a name in upper case, or a legacy integer (0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and above SYS)",
    "list": "comma list; one ^ at the very start inverts all of it",
    "algorithms": "comma list with one leading ^; from NCCL 2.24 also [list];function:list;...",
    "devices": "[^][=]name[:port],... with ^ then = once, at the very start; without = names are prefixes",
    "interfaces": "comma list of exact names; no prefixes, no ^, no =",
    "cpus": "comma list of CPU numbers; a range such as 0-3 is read as its first number",
}
