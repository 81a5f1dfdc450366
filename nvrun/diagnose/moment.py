"""When a line was written, as far as it says so: good for ordering lines, not for telling the date."""

from __future__ import annotations

import re

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)"
_ANY_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_FORMS = (
    # NCCL, Python's logging, ISO 8601, torchrun's banner
    re.compile(rf"\b\d{{4}}-(?P<month>\d\d)-(?P<day>\d\d)[ T_]{_CLOCK}"),
    # glog, as torch's C++ and torchrun write it: E1228 15:44:53.5, and W416 for the 16th of April
    re.compile(rf"\b[IWEF](?P<month>\d{{1,2}})(?P<day>\d\d) {_CLOCK}"),
    # dmesg -T and syslog
    re.compile(rf"\b(?P<name>{'|'.join(_MONTHS)}) +(?P<day>\d{{1,2}}) {_CLOCK}"),
)


def moment(line: str) -> float | None:
    """Seconds since the start of the year (months of 31 days) by the writer's clock; None where no time is written.

    The year is left out because half of the forms have none. A run over New Year's Eve is ordered wrongly.
    """
    head = line[:200]
    if _ANY_CLOCK.search(head) is None:
        return None
    for form in _FORMS:
        if found := form.search(head):
            parts = found.groupdict()
            month = _MONTHS.index(parts["name"]) + 1 if parts.get("name") else int(parts["month"])
            second = float(parts["second"].replace(",", "."))
            days = (month - 1) * 31 + int(parts["day"]) - 1
            return ((days * 24 + int(parts["hour"])) * 60 + int(parts["minute"])) * 60 + second
    return None
