"""Reading a host's /sys and /proc, or a recorded copy of them below another root."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable


class Tree:
    """The files below `root`. What cannot be read is None: sysfs answers EINVAL, ENODEV, EACCES for single files."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    @property
    def live(self) -> bool:
        """This is the running host, so that system calls may be asked as well."""
        return self.root == ""

    def path(self, path: str) -> str:
        return self.root + path

    def text(self, path: str) -> str | None:
        try:
            with open(self.root + path, "rb") as file:
                return file.read().decode("utf-8", "replace").strip("\0 \t\n")  # old kernels end lists with NUL
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """A decimal or 0x number."""
        text = self.text(path)
        try:
            return int(text, 0) if text else None
        except ValueError:
            return None

    def cpus(self, path: str) -> list[int] | None:
        """A list such as `0-3,7`, or where the name ends in `map`, `cpus` or `siblings` a mask of hex words; what is
        neither (sandboxes make such files up) is not told."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse_mask(text) if path.endswith(("map", "cpus", "siblings")) else parse_list(text)
        except ValueError:
            return None

    def entries(self, path: str) -> list[str]:
        """Names in a folder in natural order (`cpu2` before `cpu10`); none where it does not exist."""
        try:
            return sorted(os.listdir(self.root + path), key=natural)
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self.root + path)

    def realpath(self, path: str) -> str:
        """The path with links followed, as seen below the root."""
        return (
            os.path.realpath(self.root + path)[len(os.path.realpath(self.root)) :]
            if self.root
            else os.path.realpath(path)
        )


def natural(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def parse_list(text: str) -> list[int]:
    """`0-2,8` -> [0, 1, 2, 8]; "" -> []."""
    numbers: list[int] = []
    for part in filter(None, text.replace("\n", ",").split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def parse_mask(text: str) -> list[int]:
    """`ff,00000001` (32-bit words, highest first) -> [0, 32, 33, ..., 39]."""
    mask = int("".join(word.zfill(8) for word in text.split(",")) or "0", 16)
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value), None)
