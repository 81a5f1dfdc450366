"""How NCCL reads the text of its variables and files, and what the person who wrote it probably meant. Pure.

NCCL's integers go through strtoll with base 0 and nobody looks at what is left over (src/misc/param.cc, every release
from 2.3.5 to 2.30.7): `4M` is 4, `1e6` is 1, `010` is 8, `true` is 0, and no warning is ever printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

Version = tuple[int, ...]

_STRTOLL = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_PLAIN = re.compile(r"\s*[+-]?(0|[1-9][0-9]*|0[xX][0-9a-fA-F]+)\s*")
_SCALED = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_FACTOR = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_WORDS = {"true": 1, "yes": 1, "on": 1, "y": 1, "t": 1, "false": 0, "no": 0, "off": 0, "n": 0, "f": 0}

TORCH_TRUE = frozenset({"y", "yes", "1", "t", "true"})
TORCH_FALSE = frozenset({"n", "no", "0", "f", "false"})
"""What getCvarBool of PyTorch takes, in any case; every other text raises (c10d/Utils.hpp)."""

TYPED_BOOL = frozenset({"1", "t", "true", "0", "f", "false"})
"""What NCCL's typed parameters (2.30.3 and later) take as a bool; other text silently means the default."""

PATH_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
"""Meaning of the legacy integers 0 to 4 of NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL; above 4 is SYS too."""


def version(text: str) -> Version:
    """`2.27.5+cuda12.9` -> (2, 27, 5); () where the text does not start with a number."""
    match = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def strtoll(text: str) -> int | None:
    """The number NCCL reads; None where it overflows 64 bits and NCCL takes the default."""
    match = _STRTOLL.match(text)
    if not match:
        return 0
    sign, digits = match.groups()
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    number = int(digits, base) * (-1 if sign == "-" else 1)
    return number if -(1 << 63) <= number < 1 << 63 else None


def is_plain(text: str) -> bool:
    """True where a person and strtoll see the same integer."""
    return _PLAIN.fullmatch(text) is not None


def meant(text: str) -> int | None:
    """The integer that the writer of a text such as `4M`, `1e6`, `8,388,608`, `010` or `yes` had in mind.

    K, M and G are powers of 1024, with and without iB or B. None where no one reading is likely.
    """
    text = text.strip().strip("\"'").strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?0[xX][0-9a-fA-F]+", text):
        return int(text, 16)
    if re.fullmatch(r"[0-9]{1,3}([,_'][0-9]{3})+", text):
        return int(re.sub(r"[,_']", "", text))
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}", text):
        return int(Fraction(text))
    if re.fullmatch(r"[+-][0-9]+", text):
        return int(text)
    return scaled(text)


def scaled(text: str) -> int | None:
    """Bytes of `4MiB`, `4M`, `256 KiB`, `1048576`; None where it is no such size or no whole number of bytes."""
    match = _SCALED.fullmatch(text.strip())
    if not match:
        return None
    number = Fraction(match[1]) * _FACTOR[(match[2] or "").upper()]
    return int(number) if number.denominator == 1 else None


def path_level(text: str, names: tuple[str, ...]) -> str | None:
    """The path type that NCCL takes from NCCL_P2P_LEVEL or NCCL_NET_GDR_LEVEL; None where it ignores the text.

    Names are compared with strcmp, so lower case is ignored; only text that starts with a digit is a legacy integer
    (src/graph/paths.cc).
    """
    if text in names:
        return text
    if text[:1].isdigit():
        return PATH_LEVELS[min(strtoll(text) or 0, len(PATH_LEVELS) - 1)]
    return None


class DeviceList(NamedTuple):
    """A list of NCCL_IB_HCA, NCCL_SOCKET_IFNAME or NCCL_OOB_NET_IFNAME as NCCL splits it (src/misc/utils.cc)."""

    exclude: bool
    exact: bool
    entries: tuple[tuple[str, ...], ...]
    """Each entry split at `:`; blanks are kept, because NCCL keeps them."""

    def takes(self, device: str, port: int | None = None) -> bool:
        """True where NCCL would use a device of this name, or this port of it. A port goes through atoi: what is no
        number is port 0, which no device has."""
        hit = any(
            (device == name if self.exact else device.startswith(name))
            and (port is None or not number or port == _atoi(number[0]))
            for name, *number in self.entries
        )
        return hit != self.exclude


def _atoi(text: str) -> int:
    found = re.match(r"\s*(\d{1,9})", text, re.ASCII)
    return int(found[1]) if found else 0


def device_list(text: str) -> DeviceList:
    """`^` and then `=` count once, at the very start; empty entries are skipped."""
    exclude = text.startswith("^")
    text = text[1:] if exclude else text
    exact = text.startswith("=")
    text = text[1:] if exact else text
    return DeviceList(exclude, exact, tuple(tuple(entry.split(":")) for entry in text.split(",") if entry))


class Choice(NamedTuple):
    """One entry of NCCL_ALGO or NCCL_PROTO."""

    function: str | None
    """None: all functions."""
    exclude: bool
    names: tuple[str, ...]


def choices(text: str) -> tuple[Choice, ...]:
    """The entries of `[list];function:list;...`, the syntax of NCCL 2.24 and later (src/graph/tuning.cc)."""
    found = []
    for entry in text.split(";"):
        if not entry:
            continue
        function, colon, names = entry.rpartition(":")
        exclude = names.startswith("^")
        found.append(Choice(function if colon else None, exclude, tuple(names.lstrip("^").split(","))))
    return tuple(found)


def conf_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """(line number, name, value) of an nccl.conf. Nothing is trimmed: a blank before `=` belongs to the name.

    NCCL reads 1023 bytes a line and takes `#` in the first column as a comment (src/misc/param.cc).
    """
    for number, line in enumerate(text.splitlines(), start=1):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield number, name, value
