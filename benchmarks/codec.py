"""The codec, out and in, for states as users have them: a dataclass of records, a TypedDict, a plain dict.

The limit is msgspec on the same values, which checks nothing on the way out and gives plain dicts on the way in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import msgspec

from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import busy_seconds, interleave
from benchmarks.setting import Setting
from milepost.codec import Codec

__all__ = ["codec"]


@dataclass(frozen=True)
class Reading:
    """One record of the state, with the types that records have."""

    id: int
    station: str
    taken_at: datetime
    value: float
    is_checked: bool
    tags: list[str]
    note: str | None


@dataclass(frozen=True)
class Survey:
    """A state of many records."""

    name: str
    readings: list[Reading]
    totals: dict[str, float]


@dataclass(frozen=True)
class Order:
    """A record of values that JSON has."""

    id: int
    customer: str
    total: float
    is_paid: bool
    tags: list[str]


@dataclass(frozen=True)
class Book:
    """A state of many plain records."""

    name: str
    orders: list[Order]


class Message(TypedDict):
    """One message of a conversation."""

    role: str
    content: str
    tokens: int


class Conversation(TypedDict):
    """A state as agents have it."""

    messages: list[Message]
    turn: int


def codec(setting: Setting) -> Iterator[Figure]:
    """Milliseconds per 100 KB, for states of 100 KB and of 1 MB."""
    for label, size in (("100 KB", 100_000), ("1 MB", 1_000_000)):
        for kind, type_, value, plain in _states(size):
            yield from _both_ways(setting, f"{kind}, {label}", type_, value, plain)


def _both_ways(setting: Setting, what: str, type_: Any, value: Any, plain: Any) -> Iterator[Figure]:
    ours: Codec[Any] = Codec(type_)
    data = ours.encode(value)
    if ours.decode(data) != value:
        raise AssertionError(f"{what} does not come back as it was")
    share = len(data) / 100_000
    times = max(int(5 / share), 1) if setting.size.nodes > 10 else 1
    raw_data = msgspec.json.encode(plain)
    found = interleave(
        setting.size.rounds,
        {
            "out": lambda: busy_seconds(ours.encode, value, times=times) / share,
            "raw out": lambda: busy_seconds(msgspec.json.encode, plain, times=times) / share,
            "in": lambda: busy_seconds(ours.decode, data, times=times) / share,
            "raw in": lambda: busy_seconds(msgspec.json.decode, raw_data, times=times) / share,
        },
    )
    for way in ("out", "in"):
        yield compare(
            f"codec {way}, {what}", found, measure="ours", unit="ms", scale=1e3, ours=way, limit=f"raw {way}",
            limit_is="msgspec, unchecked", goal=at_most(1), note="per 100 KB",
        )  # fmt: skip


def _states(size: int) -> Iterator[tuple[str, Any, Any, Any]]:
    """Kind, type, value of about `size` bytes, and the value as msgspec takes it without knowing the type."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    readings = [
        Reading(n, f"station-{n % 17}", began + timedelta(seconds=n), n / 3, n % 2 == 0, ["new", "raw"], None)
        for n in range(size // 150)
    ]
    survey = Survey("spring", readings, {f"station-{n}": n / 7 for n in range(17)})
    yield "dataclass of records", Survey, survey, asdict(survey)
    orders = [Order(n, f"customer {n}", n / 3, n % 2 == 0, ["new", "paid"]) for n in range(size // 82)]
    yield "dataclass of plain records", Book, Book("shop", orders), asdict(Book("shop", orders))
    text = "The run goes on from its last milepost, whatever happened to the process before. "
    roles = ("user", "assistant")
    messages: list[Message] = [
        {"role": roles[n % 2], "content": text * 3, "tokens": n} for n in range(size // (len(text) * 3 + 44))
    ]
    conversation: Conversation = {"messages": messages, "turn": 3}
    yield "TypedDict of messages", Conversation, conversation, conversation
    table = {f"row-{n}": {"id": n, "score": n / 3, "name": f"customer {n}", "ok": True} for n in range(size // 75)}
    yield "plain dict", dict, table, table
