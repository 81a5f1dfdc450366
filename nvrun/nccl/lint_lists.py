"""Lint of values that are lists or words: devices, interfaces, algorithms, subsystems. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from nvrun.model import Finding, Severity
from nvrun.nccl import parse
from nvrun.nccl.catalogue import Variable
from nvrun.nccl.setting import Given, Setting, found

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR

MOST_DEVICES = {"NCCL_IB_HCA": 32, "NCCL_SOCKET_IFNAME": 16, "NCCL_OOB_NET_IFNAME": 16}
"""Entries NCCL keeps (MAX_IB_DEVS, MAX_IFS); the rest is dropped."""

FUNCTIONS = {
    "broadcast": {"ring"},
    "reduce": {"ring"},
    "allgather": {"ring", "collnetdirect", "nvls", "pat"},
    "reducescatter": {"ring", "collnetdirect", "nvls", "pat"},
    "allreduce": {"ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree"},
}
"""NCCL's collectives and the algorithms that can do them (src/graph/tuning.cc)."""

_IGNORED = {
    "NCCL_DEBUG": "nothing is printed",
    "NCCL_DEBUG_SUBSYS": "from NCCL 2.30.7 one bad name rejects the whole list",
    "NCCL_NET_MERGE_LEVEL": "NICs are then not fused at all",
    "NCCL_CTA_POLICY": "NCCL ignores the value",
}


def names(
    setting: Setting, variable: Variable, given: Given, tokens: Sequence[str], *, any_case: bool
) -> Iterator[Finding]:
    """Words that must be among the variable's choices."""
    raises = variable.owner == "torch"
    for token in tokens:
        word = token.upper() if any_case else token
        known = {choice.upper() if any_case else choice: choice for choice in variable.choices}
        if word in known:
            yield from _too_new(setting, variable, given, known[word])
            continue
        folded = {choice.upper(): choice for choice in variable.choices}
        near = folded.get(token.strip().upper()) or next(
            (folded[match] for match in difflib.get_close_matches(token.strip().upper(), folded, n=1)), None
        )
        what = "PyTorch raises" if raises else _IGNORED.get(setting.name, "it is ignored")
        why = ""
        if token.strip() != token:
            why = ", a blank is part of it"
        elif token.upper() in folded:
            why = " in this letter case"
        yield found(
            setting,
            "nccl-value-choice",
            ERROR if raises else WARNING,
            f"{token!r} is no value of {setting.name}{why}: {what}",
            right=setting.value.replace(token, near, 1) if near else None,
            expected="" if near else variable.allowed,
        )


def _too_new(setting: Setting, variable: Variable, given: Given, choice: str) -> Iterator[Finding]:
    since = variable.choice_since.get(choice, "")
    if variable.owner == "nccl" and since and given.before(since):
        yield found(
            setting,
            "nccl-choice-too-new",
            WARNING,
            f"{setting.name} knows {choice} from NCCL {since} on; the loaded one does not",
        )


def devices(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    """`[^][=]name[:port],...`: syntax, limits, and what it takes on this very host."""
    text, name = setting.value, setting.name
    listed = parse.device_list(text)
    wrong = _misplaced_signs(text)
    if wrong is not None:
        yield found(
            setting,
            "nccl-list-signs",
            ERROR,
            f"{name}={text}: ^ and then = count once, at the very start; elsewhere they are part of a name",
            right=wrong,
        )
    if any(character.isspace() for character in text):
        yield found(
            setting,
            "nccl-list-blank",
            ERROR,
            f"{name}: blanks are part of a name, so the entry after one matches nothing",
            right="".join(text.split()),
        )
    if text.endswith(",") and setting.where != "environment":
        yield found(
            setting,
            "nccl-list-cut",
            ERROR,
            f"{name} ends at {text!r}: the rest of the list was cut off, by a blank or by a comma inside --export=",
            remedy=f"quote the whole list without blanks; inside --export= use export {name}=... before srun instead",
        )
    if name == "NCCL_SOCKET_IFNAME" and len(text) == 1:
        yield found(setting, "nccl-list-short", WARNING, f"NCCL ignores a {name} of one character")
    no_ports = name == "NCCL_IB_HCA" and any(len(entry) > 1 and not _is_port(entry[1]) for entry in listed.entries)
    if no_ports:
        ports = [entry if len(entry) < 2 or _is_port(entry[1]) else entry[:1] for entry in listed.entries]
        head = text[: len(text) - len(text.lstrip("^="))]
        yield found(
            setting,
            "nccl-list-port",
            ERROR,
            f"{name}={text}: behind the colon stands a port, from 1 on; NCCL takes anything else for port 0, which no"
            " device has",
            right=head + ",".join(":".join(entry) for entry in ports),
        )
    if len(listed.entries) > MOST_DEVICES[name]:
        yield found(
            setting,
            "nccl-list-long",
            WARNING,
            f"{name} names {len(listed.entries)} devices: NCCL keeps the first {MOST_DEVICES[name]}",
            remedy="name fewer devices",
        )
    if name == "NCCL_IB_HCA" and given.before("2.30.7") and any(len(entry) > 2 for entry in listed.entries):
        yield found(
            setting,
            "nccl-choice-too-new",
            WARNING,
            "rail and plane in NCCL_IB_HCA are read from NCCL 2.30.7 on; before, they are ignored",
            remedy="name devices and ports only",
        )
    if wrong is None and not no_ports and not any(character.isspace() for character in text):
        yield from _on_this_host(setting, listed, given)


def _is_port(text: str) -> bool:
    return text.strip().isdecimal() and int(text) > 0


def _misplaced_signs(text: str) -> str | None:
    """The list with its signs where NCCL looks for them; None where they are right."""
    body = text.removeprefix("^").removeprefix("=")
    if not any(sign in body for sign in "^="):
        return None
    head = ("^" if "^" in text else "") + ("=" if "=" in text else "")
    return head + body.replace("^", "").replace("=", "")


def _on_this_host(setting: Setting, listed: parse.DeviceList, given: Given) -> Iterator[Finding]:
    present = _present(setting.name, given)
    if present is None or not listed.entries:
        return
    host = given.facts.host if given.facts else None
    taken = [device for device in present if listed.takes(device)]
    ports = given.active_ports or ()
    if setting.name == "NCCL_IB_HCA":
        taken = [port.device for port in ports if listed.takes(port.device, port.port)]
    if not taken:
        apart = [device for device in present if device != "lo"]  # it may be named, but reaches no other host
        falls = setting.name == "NCCL_IB_HCA"
        yield found(
            setting,
            "nccl-list-matches-nothing",
            ERROR,
            f"{setting.name}={setting.value} leaves {host} with no usable device: NCCL "
            + ("falls back to sockets without a warning" if falls else "fails with 'no socket interface found'"),
            expected=f"one or more of {', '.join(present) or 'none, for there is none'}",
            remedy=setting.removal + (f", or name devices of {host}: {', '.join(apart)}" if apart else ""),
            host=host,
        )
    elif not listed.exact:
        for name in dict.fromkeys(entry[0] for entry in listed.entries):
            longer = [device for device in present if device.startswith(name) and device != name]
            if name in present and longer:
                yield found(
                    setting,
                    "nccl-list-prefix",
                    WARNING,
                    f"{name} in {setting.name} is a prefix: it also takes {', '.join(longer)}",
                    right=("^" if listed.exclude else "") + "=" + setting.value.removeprefix("^"),
                    host=host,
                )
                break


def _present(name: str, given: Given) -> list[str] | None:
    """Devices this list could take on the host; None where they were not read, or depend on the network plugin."""
    if name == "NCCL_IB_HCA":
        ports = given.active_ports
        return None if ports is None or given.plugin else list(dict.fromkeys(port.device for port in ports))
    network = given.facts.network if given.facts else None
    if name != "NCCL_SOCKET_IFNAME" or network is None:
        return None
    return [interface.name for interface in network.interfaces if interface.up and interface.addresses]


def interfaces(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    """Exact names, comma separated: no ^, no =, no prefixes, no blanks."""
    clean = ",".join(part.strip().lstrip("^=") for part in setting.value.split(",") if part.strip())
    if "^" in setting.value:
        yield found(
            setting,
            "interface-list-signs",
            ERROR,
            f"{setting.name} knows no exclusion: ^ is part of a name there",
            expected="a comma list of exact names",
        )
    elif clean != setting.value:
        yield found(
            setting,
            "interface-list-signs",
            ERROR,
            f"{setting.name} takes a comma list of exact names: {setting.value!r} is not one",
            right=clean,
        )
    elif setting.name == "GLOO_SOCKET_IFNAME" and given.facts is not None and given.facts.network is not None:
        present = [interface.name for interface in given.facts.network.interfaces]
        for name in sorted(set(clean.split(",")) - set(present)):
            yield found(
                setting,
                "interface-not-there",
                ERROR,
                f"{given.facts.host} has no interface {name}: Gloo fails",
                expected=f"one of {', '.join(present)}",
                host=given.facts.host,
            )


def algorithms(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    """NCCL_ALGO and NCCL_PROTO: words, the syntax of this release, and collectives left without an algorithm."""
    text = setting.value
    entries = parse.choices(text)
    if given.before("2.24") and (";" in text or ":" in text):
        yield found(
            setting,
            "nccl-algo-syntax",
            ERROR,
            f"function:list in {setting.name} is read from NCCL 2.24 on: the loaded one ignores it and takes Ring",
            right=",".join(dict.fromkeys(word for entry in entries for word in entry.names)),
        )
        return
    yield from _words(setting, variable, given, entries)
    if setting.name == "NCCL_ALGO":
        if not given.before("2.24"):
            yield from _left_without(setting, given, entries)
        yield from _without_nvls(setting, given, entries)


def _words(setting: Setting, variable: Variable, given: Given, entries: Sequence[parse.Choice]) -> Iterator[Finding]:
    known = {choice.lower(): choice for choice in variable.choices}
    severity = WARNING if given.before("2.24") else ERROR
    fate = "is ignored" if given.before("2.24") else "makes NCCL fail (from 2.24 on)"
    for position, entry in enumerate(entries):
        if entry.function is None and position:
            yield found(
                setting,
                "nccl-algo-syntax",
                severity,
                f"in {setting.name} only the first entry may lack its function:",
                expected="[list];function:list;...",
            )
        elif entry.function is not None and entry.function.lower() not in FUNCTIONS:
            yield found(
                setting,
                "nccl-algo-word",
                severity,
                f"{entry.function!r} in {setting.name} is no collective and {fate}",
                expected=", ".join(FUNCTIONS),
            )
        for word in entry.names:
            if word.lower() in known:
                yield from _too_new(setting, variable, given, known[word.lower()])
                continue
            near = known.get(word.strip().lower()) or next(
                (known[match] for match in difflib.get_close_matches(word.strip().lower(), known, n=1, cutoff=0.7)),
                None,
            )
            yield found(
                setting,
                "nccl-algo-word",
                severity,
                f"{word!r} in {setting.name} {fate}",
                right=setting.value.replace(word, near, 1) if near else None,
                expected="" if near else variable.allowed,
            )


def _allowed(entries: Sequence[parse.Choice], function: str) -> set[str]:
    """Algorithms left for one collective: the last entry that speaks of it holds."""
    every = set().union(*FUNCTIONS.values())
    left = every
    for entry in entries:
        if entry.function is None or entry.function.lower() == function:
            listed = {word.strip().lower() for word in entry.names}
            left = every - listed if entry.exclude else listed
    return left & FUNCTIONS[function]


def _left_without(setting: Setting, given: Given, entries: Sequence[parse.Choice]) -> Iterator[Finding]:
    without = [function for function in FUNCTIONS if not _allowed(entries, function)]
    if not without or any(
        word.strip().lower() not in set().union(*FUNCTIONS.values()) for e in entries for word in e.names
    ):
        return
    first = entries[0]
    bare = len(entries) == 1 and first.function is None and not first.exclude
    yield found(
        setting,
        "nccl-algo-leaves-none",
        ERROR if given.nccl else WARNING,
        f"{setting.name}={setting.value} leaves {', '.join(without)} without an algorithm: from NCCL 2.24 on the first"
        " such collective fails",
        right=f"allreduce:{','.join(first.names).lower()},ring" if bare and _allowed(entries, "allreduce") else None,
        expected="every collective keeps ring",
        remedy="add ring to the lists, or write allreduce:LIST so that the others keep their own",
    )


def _without_nvls(setting: Setting, given: Given, entries: Sequence[parse.Choice]) -> Iterator[Finding]:
    chosen = _allowed(entries, "allreduce")
    off = given.number("NCCL_NVLS_ENABLE") == 0 or given.nvswitch is False or given.before("2.17")
    if chosen and not off and not any(entry.exclude for entry in entries) and not chosen & {"nvls", "nvlstree"}:
        yield found(
            setting,
            "nccl-algo-excludes-nvls",
            WARNING if given.nvswitch else INFO,
            f"{setting.name}={setting.value} excludes NVLS, the algorithm of NVSwitch for all-reduce",
            remedy=f"{setting.removal}, or add nvls,nvlstree",
        )
