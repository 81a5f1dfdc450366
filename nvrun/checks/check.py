"""What a check is: a generator that names the facts it needs as its parameters and yields findings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from nvrun.checks.code import Code
from nvrun.facts import SECTIONS
from nvrun.model import Finding, Skipped

Results = Iterator[Finding | Skipped]
_Function = TypeVar("_Function", bound=Callable[..., Results])

_FACTS = frozenset((*SECTIONS, "clock_offset_s", "clock_error_s"))
_OF_ONE_HOST = frozenset({"host", "facts", "job"})
_OF_ALL_HOSTS = frozenset({"fleet", "groups", "job"})


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, as registered."""

    name: str
    """The function's name with dashes; what `Skipped.code` says."""
    family: str
    """The module it stands in."""
    summary: str
    """First line of its docstring: what holds where it finds nothing."""
    codes: tuple[Code, ...]
    function: Callable[..., Results]
    parameters: tuple[str, ...]
    sections: tuple[str, ...]
    """Those of the parameters that are sections of HostFacts; without one of them the check is skipped."""
    across: bool
    """Compares hosts."""


CHECKS: list[Check] = []
"""All checks, in the order of declaration; complete once `nvrun.checks` is imported."""


def check(*codes: Code) -> Callable[[_Function], _Function]:
    """Registers a check of one host.

    Parameters: sections of HostFacts by name (`gpus`, `software`), `host` (its name), `facts` (all of it) and `job`.
    """
    return _register(codes, _OF_ONE_HOST, across=False)


def fleet_check(*codes: Code) -> Callable[[_Function], _Function]:
    """Registers a check that compares hosts; it runs where there are at least two.

    A section's name as parameter is a mapping host -> section, of the hosts that have all sections asked for; the
    others are shown as skipped. Further parameters: `fleet` (host -> HostFacts, all of them), `groups` (hosts of like
    hardware) and `job`.
    """
    return _register(codes, _OF_ALL_HOSTS, across=True)


def _register(codes: tuple[Code, ...], others: frozenset[str], *, across: bool) -> Callable[[_Function], _Function]:
    def register(function: _Function) -> _Function:
        name = function.__name__.replace("_", "-")
        parameters = tuple(inspect.signature(function).parameters)
        unknown = [parameter for parameter in parameters if parameter not in _FACTS | others]
        if unknown:
            raise TypeError(f"check {name} asks for {', '.join(unknown)}: neither a section of HostFacts nor context")
        if not codes or (__doc__ and not function.__doc__):  # -OO leaves no docstring, not even this module's
            raise TypeError(f"check {name} needs a docstring and its codes")
        if any(other.name == name for other in CHECKS):
            raise TypeError(f"two checks are named {name}")
        CHECKS.append(
            Check(
                name=name,
                family=function.__module__.rpartition(".")[2],
                summary=(function.__doc__ or name).strip().splitlines()[0],
                codes=codes,
                function=function,
                parameters=parameters,
                sections=tuple(parameter for parameter in parameters if parameter in _FACTS),
                across=across,
            )
        )
        return function

    return register


def arguments(check: Check, context: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """What a check is called with."""
    return {name: sections[name] if name in sections else context[name] for name in check.parameters}
