"""HTML that cannot be broken by what is put into it: text is escaped unless it was made here. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """HTML as it stands."""

    __slots__ = ()


def safe(text: str) -> Markup:
    """Text from anywhere, with nothing left that a browser would act on."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def tag(name: str, *inside: str, **attributes: str | None) -> Markup:
    """One element. `class_` is the attribute `class`, `data_x` is `data-x`; an attribute of None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join(inside)}</{name}>")


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Parts one after the other."""
    return Markup(safe(between).join(safe(part) for part in parts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], **attributes: str | None) -> Markup:
    """A table that scrolls by itself where the page is narrow."""
    body = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    inner = tag("table", tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))), tag("tbody", *body))
    return tag("div", inner, class_="scroll", tabindex="0", **attributes)
