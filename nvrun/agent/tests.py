"""Tests that a host makes on the launcher's word, by name: work in a child, and what stands until it is released."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict

from . import netprobe, netserve, shared, smoke, sshmesh
from .standing import Say

Request = Dict[str, Any]

WORK: Dict[str, Callable[[Request], object]] = {
    "connections": netprobe.probe,
    "sounding": netprobe.sound,
    "latency": partial(netprobe.or_why_not, netprobe.latency),
    "bandwidth": partial(netprobe.or_why_not, netprobe.bandwidth),
    "token": shared.look,
    "ssh": sshmesh.reach,
    "smoke": smoke.run,
}
"""Answers with JSON."""
STANDING: Dict[str, Callable[[Request, Say, int], None]] = {
    "network": netserve.serve,
    "token": shared.leave,
    "port": smoke.hold,
    "listener": netserve.listen_on,
}
"""Stays until released."""
