"""The collective test of `--check deep`: two rounds of pairs of hosts, as a conversation with the agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from nvrun.active import schedule, worker
from nvrun.active.clock import Clock
from nvrun.active.places import Place
from nvrun.checks.collectives import Smoke
from nvrun.fleet.crew import Crew
from nvrun.fleet.session import Body
from nvrun.model import Frozen
from nvrun.plan import Plan, as_mapping

SECONDS = 90.0
"""For one round: torch from a cold file server, NCCL's first start, and a few seconds of work."""
_MARGIN = 10.0


class Rounds(Frozen, frozen=True, kw_only=True):
    first: tuple[Smoke, ...] = ()
    second: tuple[Smoke, ...] = ()
    untried: str = ""
    """Why a round was not made; empty where all were."""


@cache
def _program() -> str:
    return Path(worker.__file__).read_text(encoding="utf-8")


def smoke(crew: Crew, plan: Plan, places: Mapping[int, Place], gpus: Mapping[int, int], clock: Clock) -> Rounds:
    """`gpus`: host -> GPUs that the job uses there; where any host has none, all ranks use gloo on their CPUs."""
    hosts = list(places) or [0]
    if clock.left <= 0:
        return Rounds(untried=clock.reason)
    groups = schedule.adjacent(hosts)
    first = _round(crew, plan, places, gpus, groups, clock, alone=True)
    if len(hosts) < 3:
        return Rounds(first=first)
    if clock.left <= 0:
        return Rounds(first=first, untried=clock.reason)
    slowness = {host: 1 / (each.together or 1e-9) for group, each in zip(groups, first, strict=True) for host in group}
    bad = {host for group, each in zip(groups, first, strict=True) if each.trouble for host in group}
    again = [group for group in schedule.mixed(groups, slowness, bad) if len(group) > 1]
    return Rounds(first=first, second=_round(crew, plan, places, gpus, again, clock, alone=False))


def _round(
    crew: Crew,
    plan: Plan,
    places: Mapping[int, Place],
    gpus: Mapping[int, int],
    groups: Sequence[tuple[int, ...]],
    clock: Clock,
    *,
    alone: bool,
) -> tuple[Smoke, ...]:
    seconds = min(SECONDS, max(5.0, clock.left))
    on_gpus = all(gpus.get(host) for group in groups for host in group)
    leaders = [group[0] for group in groups]
    try:
        ports = _ask(crew, "stand", "port", {leader: {} for leader in leaders}, 5.0)
        without_port = {leader: body for leader, body in ports.items() if body["trouble"]}
        requests: dict[int, Body] = {}
        for group in groups:
            if group[0] in without_port:  # its ranks could not meet, and would take all of their time to see it
                continue
            address = places[group[0]].address if len(group) > 1 else "127.0.0.1"
            port = ports[group[0]]["result"]["port"]
            counts = [gpus[host] if on_gpus else 1 for host in group]
            nodes = [(sum(counts[:at]), count) for at, count in enumerate(counts)]
            for node, host in enumerate(group):
                requests[host] = {
                    "python": plan.hosts[host].argv[0],
                    "program": _program(),
                    "mark": worker.MARK,
                    "ranks": counts[node],
                    "first": nodes[node][0],
                    "world": sum(counts),
                    "address": address,
                    "port": port,
                    "seconds": seconds,
                    "env": _environment(plan, host),
                    "what": {"gpus": on_gpus, "alone": alone, "nodes": nodes, "node": node, "local": counts[node],
                             "seconds": seconds},
                }  # fmt: skip
        answers = _ask(crew, "test", "smoke", requests, seconds + _MARGIN)
    finally:
        crew.send({"t": "release", "test": "port"}, to=leaders)
    names = {host: crew.names[host] for group in groups for host in group}
    known = answers | without_port
    return tuple(read({names[host]: known[host] for host in group if host in known}) for group in groups)


def _environment(plan: Plan, host: int) -> dict[str, str]:
    there = plan.hosts[host]
    ranks = there.ranks[:1]
    return {
        **as_mapping(there.defaults),
        **as_mapping(there.env),
        **(as_mapping(ranks[0].env) if ranks else {}),
    }


def _ask(crew: Crew, kind: str, test: str, requests: Mapping[int, Body], seconds: float) -> dict[int, Body]:
    bodies = {
        host: {"t": kind, "test": test, "request": request, "deadline": seconds, "answer": test}
        for host, request in requests.items()
    }
    return {host: body for host, (body, _) in crew.ask(bodies, test, seconds + 5.0).items()}


def read(answers: Mapping[str, Body]) -> Smoke:
    """What the ranks of one group said, host by host. Pure."""
    gemm: dict[str, tuple[float, ...]] = {}
    copies: dict[str, Mapping[str, float]] = {}
    own: dict[str, float] = {}
    together: list[float] = []
    wrong: list[str] = []
    backend = trouble = at_fault = ""
    tail: tuple[str, ...] = ()
    for host, body in answers.items():
        if body["trouble"]:
            trouble, at_fault = trouble or body["trouble"], at_fault or host
            continue
        for rank in body["result"]:
            said: Body = {}
            for each in rank["said"]:
                said |= each
                wrong += [host] if each.get("right") is False else []
            backend = said.get("backend", backend)
            gemm[host] = (*gemm.get(host, ()), *([said["gemm"]] if "gemm" in said else []))
            copies |= {host: said["copies"]} if "copies" in said else {}
            own |= {host: min(own.get(host, said["own"]), said["own"])} if "own" in said else {}
            together += [said["together"]] if "together" in said else []
            if rank["code"] != 0 and not said.get("done"):
                words = next((line for line in reversed(rank["tail"]) if line.strip()), "")
                # A rank that died by itself tells more than its partner that waited for it.
                if not trouble or (rank["code"] is not None and "imeout" in trouble):
                    ended = "did not end in time" if rank["code"] is None else f"exit status {rank['code']}"
                    trouble, tail = words or ended, tuple(rank["tail"])
                    at_fault = host if rank["code"] is not None and "imeout" not in words else at_fault
    return Smoke(
        hosts=tuple(answers),
        gemm={host: values for host, values in gemm.items() if values},
        copies=copies,
        own=own,
        together=min(together) if together and len(answers) > 1 else None,
        backend=backend,
        wrong=tuple(dict.fromkeys(wrong)),
        trouble=trouble,
        at_fault=at_fault,
        tail=tail,
    )
