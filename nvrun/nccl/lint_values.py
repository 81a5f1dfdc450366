"""Lint of one variable at a time: its name, and its text as the owner's parser reads it. Pure.

Severities: error where the job fails, hangs, or runs with another value than the one written; warning where the setting
has no effect or costs something; info where it is right, but maybe not for the reason it was set.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator

from nvrun.model import Finding, Severity
from nvrun.nccl import catalogue, parse
from nvrun.nccl.catalogue import Reads, Variable
from nvrun.nccl.lint_lists import algorithms, devices, interfaces, names
from nvrun.nccl.lint_numbers import bool_word, in_range, integer, number, only_1, stoi, strict_bool
from nvrun.nccl.setting import Given, Setting, found

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR

JUDGED = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_")
"""Prefixes whose unknown names are reported: the others are too wide to know all of."""

OLDEST_LIVE = (2, 19)
"""NCCL of the oldest torch that still counts (2.2); what was removed before it is reported whatever is loaded."""


def value_findings(setting: Setting, given: Given) -> Iterator[Finding]:
    """Everything wrong with one variable alone."""
    variable = catalogue.find(setting.name)
    if variable is None:
        yield from _unknown(setting)
        return
    yield from _name(setting, variable, given)
    if setting.known and setting.value:
        yield from _quoted(setting, variable)
        yield from _READERS.get(variable.reads, _anything)(setting, variable, given)
    elif setting.known and setting.name == "NCCL_DEBUG_SUBSYS":
        yield found(
            setting, "nccl-value-empty", WARNING, "an empty NCCL_DEBUG_SUBSYS hides all NCCL messages, warnings too"
        )


def _unknown(setting: Setting) -> Iterator[Finding]:
    bare = setting.name.strip().removeprefix("export ").strip()
    if not bare.upper().startswith(JUDGED):
        return
    if bare != setting.name:
        yield found(
            setting,
            "nccl-name-blank",
            WARNING,
            f"{setting.name!r} is not {bare}: in a conf file all that stands before = is the name, blanks too",
            remedy=f"{bare}={setting.value.strip()}",
        )
        return
    near = catalogue.nearest(setting.name)
    yield found(
        setting,
        "nccl-name-unknown",
        WARNING,
        f"{setting.name} is read by no NCCL, PyTorch or plugin that is known"
        + (f"; the nearest real name is {near}" if near else ""),
        remedy=setting.line(setting.value).replace(setting.name, near, 1) if near else setting.removal,
    )


def _name(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    name, instead = setting.name, variable.replacement
    use = f"; use {instead}" if instead else ""
    if variable.owner in ("nobody", "ncclx"):
        yield found(
            setting,
            "nccl-name-invented",
            WARNING,
            f"{name} has no effect: {variable.note}",
            remedy=_renamed(setting, variable) or setting.removal + use,
        )
    elif variable.owner == "torch" and name.startswith("NCCL_"):
        yield found(
            setting,
            "nccl-name-renamed",
            WARNING,
            f"{name} is PyTorch's, not NCCL's, and deprecated since torch 2.2{use}",
            remedy=_renamed(setting, variable),
        )
    elif variable.owner == "nccl" and catalogue.is_past(variable, given.nccl or OLDEST_LIVE):
        yield found(
            setting,
            "nccl-name-removed",
            WARNING,
            f"NCCL {variable.until} was the last to read {name}: it has no effect{use}",
            remedy=setting.removal + use,
        )
    elif variable.owner == "nccl" and variable.since and given.before(variable.since):
        yield found(
            setting,
            "nccl-name-too-new",
            WARNING,
            f"{name} is read from NCCL {variable.since} on; the loaded NCCL {_dotted(given.nccl)} ignores it",
        )
    elif instead and not variable.until and not _replacement_is_newer(variable, given):
        yield found(
            setting, "nccl-name-deprecated", INFO, f"{name} still works but is deprecated{use}", remedy=f"use {instead}"
        )


def _replacement_is_newer(variable: Variable, given: Given) -> bool:
    """True where the loaded library does not know the new name yet."""
    new = catalogue.variables().get(variable.replacement)
    loaded = given.torch if variable.owner == "torch" else given.nccl
    return bool(new and loaded and loaded < parse.version(new.since))


def _renamed(setting: Setting, variable: Variable) -> str:
    """The same line under the new name, where the value means the same there."""
    if variable.name in ("NCCL_MIN_CHANNELS", "NCCL_MAX_CHANNELS", "NCCL_MAX_P2P_PEERS") or variable.owner == "torch":
        return setting.line(setting.value).replace(setting.name, variable.replacement, 1)
    return ""


def _quoted(setting: Setting, variable: Variable) -> Iterator[Finding]:
    """Quotes that reached the value: docker's --env-file and nccl.conf keep them."""
    value = setting.value
    if value[0] in "\"'" and variable.reads != "text":
        yield found(
            setting,
            "nccl-value-quoted",
            ERROR,
            f"the quotes are part of {setting.name}'s value: nobody strips them in an nccl.conf or env file",
            right=value.strip(value[0]),
        )


def _word(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    yield from names(setting, variable, given, (setting.value,), any_case=True)


def _exact(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    yield from names(setting, variable, given, (setting.value,), any_case=False)


def _list(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    yield from names(setting, variable, given, setting.value.removeprefix("^").split(","), any_case=True)


def _cta_policy(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    if parse.is_plain(setting.value):
        yield from in_range(setting, variable, given, parse.strtoll(setting.value) or 0)
    elif given.before("2.29"):
        yield from integer(setting, variable, given)
    else:
        yield from names(setting, variable, given, setting.value.split("|"), any_case=False)


def _netdevs(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    head, _, count = setting.value.upper().partition(":")
    if not (setting.value.upper() in ("AUTO", "ALL") or (head == "MAX" and count.isdigit() and int(count) > 0)):
        yield found(
            setting,
            "nccl-value-choice",
            WARNING,
            f"{setting.name}={setting.value} is ignored: NCCL takes AUTO, ALL or MAX:N",
            expected="AUTO, ALL or MAX:N",
        )


def _level(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    known = tuple(word for word in variable.choices if not given.before(variable.choice_since.get(word, "0")))
    level = parse.path_level(setting.value, known)
    if level is None:
        yield from names(setting, variable, given, (setting.value,), any_case=False)
    elif level != setting.value:
        yield found(
            setting,
            "nccl-level-number",
            WARNING,
            f"{setting.name}={setting.value} is the old spelling of {level}"
            + (", the longest distance there is" if level == "SYS" else ""),
            right=level,
        )


def _cidr(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    try:
        ipaddress.ip_network(setting.value, strict=False)
    except ValueError:
        yield found(
            setting,
            "nccl-value-choice",
            WARNING,
            f"{setting.name}={setting.value} is ignored: it is no address range such as 10.0.0.0/16",
            expected="ADDRESS/LENGTH",
        )


def _cpus(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    for part in setting.value.split(","):
        first, dash, last = part.partition("-")
        if dash:
            spread = (
                ",".join(map(str, range(int(first), int(last) + 1))) if first.isdigit() and last.isdigit() else None
            )
            yield found(
                setting,
                "nccl-value-misread",
                ERROR,
                f"NCCL reads {part} in {setting.name} as CPU {parse.strtoll(part)}: there are no ranges",
                right=setting.value.replace(part, spread) if spread else None,
            )


def _address(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    host, colon, port = setting.value.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536) or (":" in host and host[0] != "["):
        yield found(
            setting,
            "nccl-value-address",
            ERROR,
            f"{setting.name}={setting.value} is no HOST:PORT or [IPV6]:PORT: NCCL fails with an invalid argument",
            expected="HOST:PORT or [IPV6]:PORT",
        )


def _threads(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    if not all(part.strip().isdecimal() and int(part) > 0 for part in setting.value.split(",")):
        yield found(
            setting,
            "value-not-a-number",
            WARNING,
            f"OpenMP ignores {setting.name}={setting.value}: every rank then takes a thread for each CPU it may use",
            expected="a whole number, at least 1",
        )


def _thresholds(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    numbers = setting.value.replace(",", " ").split()
    whole = len(numbers) == 6 and all(map(parse.is_plain, numbers))
    if not whole or "," in setting.value:
        yield found(
            setting,
            "nccl-value-choice",
            WARNING,
            f"{setting.name} is six whole numbers with blanks between, not {setting.value}",
            right=" ".join(numbers) if whole else None,
            expected="" if whole else "six whole numbers with blanks between",
        )


def _anything(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    yield from ()


_READERS: dict[Reads, Callable[[Setting, Variable, Given], Iterator[Finding]]] = {
    "integer": integer,
    "number": number,
    "only-1": only_1,
    "strict-bool": strict_bool,
    "bool-word": bool_word,
    "stoi": stoi,
    "word": _word,
    "exact": _exact,
    "list": _list,
    "level": _level,
    "algorithms": algorithms,
    "devices": devices,
    "interfaces": interfaces,
    "cta-policy": _cta_policy,
    "netdevs": _netdevs,
    "cidr": _cidr,
    "cpus": _cpus,
    "address": _address,
    "threads": _threads,
    "thresholds": _thresholds,
}


def _dotted(version: parse.Version) -> str:
    return ".".join(map(str, version))
