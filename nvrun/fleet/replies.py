"""What agents may say: bytes -> message. A host that says something else is not believed, and never crashes nvrun."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any

import msgspec

from nvrun.model import OomKills, RankEnd

Body = dict[str, Any]

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Code = Annotated[int, msgspec.Meta(ge=-255, le=255)]


class _Hello(msgspec.Struct):
    uid: _Count
    hostname: str
    executable: str
    addresses: list[tuple[str, str]]
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    cpus: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]

    def __post_init__(self) -> None:
        for _, address in self.addresses:
            ipaddress.ip_address(address)


class _Pong(msgspec.Struct):
    time: float


class _Prepared(msgspec.Struct):
    folder: str
    shared: bool
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None


class _Cannot(msgspec.Struct):
    code: str
    why: str


class _Failed(msgspec.Struct):
    at: str
    why: str


class _NoStart(msgspec.Struct):
    why: str


class _File(msgspec.Struct):
    path: str


class _Unread(_File):
    why: str


class _Stopped(msgspec.Struct):
    pid: _Count


class _Rank(msgspec.Struct):
    rank: _Count
    local: _Count
    pid: _Count
    attempt: _Count


class _End(_Rank):
    code: _Code | None
    asked: bool
    time: float
    begun: float | None
    first_output: float | None
    tail: list[str]
    oom: OomKills | None


class _Done(msgspec.Struct):
    code: _Code
    stuck: list[int]
    tail: list[str]
    dropped: _Count
    lost: dict[str, tuple[_Count, str]]


class _Noted(msgspec.Struct):
    lines: dict[str, list[_Count]]


class _Answer(msgspec.Struct):
    """Of whatever was asked by name; what is in `result` is for who asked."""

    result: Any
    trouble: str


_BARE = ("listening", "fetched", "terminated", "silent", "speaks")
_FORMS: dict[str, type[msgspec.Struct]] = {
    "hello": _Hello,
    "pong": _Pong,
    "prepared": _Prepared,
    "cannot": _Cannot,
    "failed": _Failed,
    "no-start": _NoStart,
    "file": _File,
    "unread": _Unread,
    "stopped": _Stopped,
    "rank": _Rank,
    "noted": _Noted,
    "end": _End,
    "done": _Done,
}


def read(payload: bytes) -> Body:
    """The message in a frame. Raises ValueError, in words, for what is none."""
    try:
        body = msgspec.json.decode(payload)
        if not isinstance(body, dict) or not isinstance(body.get("t"), str):
            raise ValueError("no message")
        kind: str = body["t"]
        if kind not in _BARE:
            said = msgspec.convert(body, _FORMS.get(kind, _Answer))
            if isinstance(said, _Answer):  # of several lines the last is for users
                body["trouble"] = (said.trouble.strip().splitlines() or [""])[-1]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return body


def rank_end(end: Body, host: str, offset: float) -> RankEnd:
    """An `end` message of a host whose clock is `offset` seconds ahead of the launcher's."""

    def ours(theirs: float | None) -> float | None:
        return None if theirs is None else theirs - offset

    return RankEnd(
        rank=end["rank"],
        host=host,
        local_rank=end["local"],
        pid=end["pid"],
        attempt=end["attempt"],
        code=end["code"],
        at=ours(end["time"]),
        begun=ours(end["begun"]),
        first_output=ours(end["first_output"]),
        by_nvrun=end["asked"],
        tail=tuple(end["tail"]),
        oom=msgspec.convert(end["oom"], OomKills | None),
    )
