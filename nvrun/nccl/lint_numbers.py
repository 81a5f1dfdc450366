"""Lint of numbers and switches, each as its owner's parser reads it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nvrun.model import Finding, Severity
from nvrun.nccl import parse
from nvrun.nccl.catalogue import Variable
from nvrun.nccl.setting import Given, Setting, found

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR

BREAKS = {
    "NCCL_BUFFSIZE": "below 128 KiB a step of 1/8 is shorter than the protocol's chunk and collectives hang;"
    " above 1 GiB it nears the 32-bit limit",
    "NCCL_IB_QPS_PER_CONNECTION": "more than 128 queue pairs overrun an array that NCCL does not check",
}
"""Variables that do harm outside their range, and how. Elsewhere NCCL clamps or ignores."""

CHANNELS = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS")
"""Capped by MAXCHANNELS: 64 from NCCL 2.25, 32 before."""

POWERS_OF_TWO = ("NCCL_BUFFSIZE", "NCCL_WORK_FIFO_BYTES")

ASKS_THE_HARDWARE = ("NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE")
"""Switches whose default, 2, means on where it works, while 1 does not ask: `true` is better written as 2."""


def integer(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    text, name = setting.value, setting.name
    read, meant = parse.strtoll(text), parse.meant(text)
    if name in ASKS_THE_HARDWARE and meant == 1:
        meant = 2
    if read is None:
        yield found(
            setting,
            "nccl-value-overflow",
            WARNING,
            f"{name}={text} does not fit 64 bits: NCCL takes the default, {variable.default or 'unset'}",
            expected=variable.allowed,
        )
    elif parse.is_plain(text):
        yield from in_range(setting, variable, given, read)
    elif text[0] not in "\"'":  # quotes have their own finding
        same = meant == read
        yield found(
            setting,
            "nccl-value-not-plain" if same else "nccl-value-misread",
            INFO if same else ERROR,
            f"NCCL reads {name}={text} as {read}"
            + (", which is what it says, but only by luck" if same else "")
            + (f", not as {meant}" if not same and meant is not None else ""),
            right=None if meant is None else str(meant),
            expected="" if meant is not None else f"a whole number, {variable.allowed}".rstrip(", "),
        )
        if meant is not None and not same:
            yield from in_range(setting, variable, given, meant)


def only_1(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    yield from integer(setting, variable, given)
    if parse.strtoll(setting.value) == 0 and parse.is_plain(setting.value):
        yield found(
            setting,
            "nccl-p2p-not-forced",
            INFO,
            f"{setting.name}=0 is the default: it is an off switch and does not force P2P",
            remedy=f"{setting.removal}; to allow P2P over longer paths set NCCL_P2P_LEVEL",
        )


def in_range(setting: Setting, variable: Variable, given: Given, number: int) -> Iterator[Finding]:
    low, high = variable.low, variable.high
    if setting.name in CHANNELS and given.before("2.25"):
        high = 32
    if (low is not None and number < low) or (high is not None and number > high):
        harm = BREAKS.get(setting.name)
        yield found(
            setting,
            "nccl-value-range",
            ERROR if harm else WARNING,
            f"{setting.name}={number} is outside {variable.allowed if high == variable.high else f'{low} to {high}'}"
            + (f": {harm}" if harm else ""),
            expected=variable.allowed if high == variable.high else f"{low} to {high}",
        )
    elif setting.name in POWERS_OF_TWO and number & (number - 1):
        yield found(
            setting,
            "nccl-value-power-of-two",
            WARNING,
            f"{setting.name}={number} is no power of two"
            + (": NCCL takes the default" if setting.name == "NCCL_WORK_FIFO_BYTES" else ", as NCCL advises"),
            right=str(1 << (number.bit_length() - 1)),
        )
    elif setting.name in ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS") and number % 32:
        yield found(
            setting,
            "nccl-value-warp",
            WARNING,
            f"{setting.name}={number} is no multiple of 32 threads: NCCL takes another value",
            right=str(max(variable.low or 32, number // 32 * 32)),
        )


def number(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    """A whole number for a reader whose parser is not known: only what is plainly no number is reported."""
    if parse.is_plain(setting.value):
        yield from in_range(setting, variable, given, parse.strtoll(setting.value) or 0)
        return
    meant = parse.meant(setting.value)
    yield found(
        setting,
        "value-not-a-number",
        WARNING,
        f"{setting.name} is a plain whole number{' of bytes' if variable.unit == 'bytes' else ''}, not {setting.value}",
        right=None if meant is None else str(meant),
    )


def strict_bool(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    if given.before("2.30.7"):
        yield from integer(setting, variable, given)
    elif setting.value.lower() not in parse.TYPED_BOOL:
        yield found(
            setting,
            "nccl-value-choice",
            WARNING,
            f"NCCL 2.30 takes 1, T, TRUE, 0, F or FALSE for {setting.name}; {setting.value} silently means the default",
            right=str(parse.meant(setting.value) or 0),
        )


def bool_word(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    if setting.value.lower() not in parse.TORCH_TRUE | parse.TORCH_FALSE:
        meant = parse.meant(setting.value)
        yield found(
            setting,
            "torch-value-raises",
            ERROR,
            f"PyTorch raises on {setting.name}={setting.value}: it takes y, yes, 1, t, true, n, no, 0, f, false",
            right=None if meant is None else str(int(bool(meant))),
        )


def stoi(setting: Setting, variable: Variable, given: Given) -> Iterator[Finding]:
    text = setting.value.strip()
    digits = text.lstrip("+-")
    leading = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    if not leading:
        yield found(
            setting,
            "torch-value-raises",
            ERROR,
            f"PyTorch raises on {setting.name}={setting.value}: it takes a whole number",
            expected=variable.allowed or "a whole number",
        )
    elif leading != digits:
        yield found(
            setting,
            "torch-value-suffix",
            WARNING,
            f"PyTorch reads {setting.name}={setting.value} as {int(leading)}"
            + (f" {variable.unit}" if variable.unit else "")
            + ": what follows the digits is dropped",
            right=str(int(leading)),
        )
    else:
        yield from in_range(setting, variable, given, int(text))
