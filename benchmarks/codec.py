"""The codec, out and in, for states as users have them: records of each library, conversations, plain and tagged dicts.

The limit is msgspec on the same values, which checks nothing on the way out and gives plain dicts on the way in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import msgspec

from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import busy_seconds, interleave
from benchmarks.setting import Setting
from benchmarks.survey import State, as_dict, surveys
from milepost.codec import Codec

__all__ = ["codec"]


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
    for label, size, bound in (("100 KB", 100_000, 2.0), ("1 MB", 1_000_000, 2.4)):
        for state in (*surveys(size), *_states(size)):
            yield from _both_ways(setting, f"{state.kind}, {label}", state, bound)
        yield from _tagged(setting, label, size)


def _both_ways(setting: Setting, what: str, state: State, bound: float) -> Iterator[Figure]:
    ours, data, share, times = _prepared(setting, what, state)
    raw_data = msgspec.json.encode(state.plain)
    found = interleave(
        setting.size.rounds,
        {
            "out": lambda: busy_seconds(ours.encode, state.value, times=times) / share,
            "raw out": lambda: busy_seconds(msgspec.json.encode, state.plain, times=times) / share,
            "in": lambda: busy_seconds(ours.decode, data, times=times) / share,
            "raw in": lambda: busy_seconds(msgspec.json.decode, raw_data, times=times) / share,
        },
    )
    for way in ("out", "in"):
        yield compare(
            f"codec {way}, {what}", found, measure="ours", unit="ms", scale=1e3, ours=way, limit=f"raw {way}",
            limit_is="msgspec, unchecked", goal=at_most(bound), note="per 100 KB",
        )  # fmt: skip


def _tagged(setting: Setting, label: str, size: int) -> Iterator[Figure]:
    """The time of a state, not of its bytes: the tags make them more."""
    untyped, typed = as_dict(size)
    what = f"{untyped.kind}, {label}"
    ours, data, _, times = _prepared(setting, what, untyped)
    other, other_data, _, _ = _prepared(setting, what, typed)
    found = interleave(
        setting.size.rounds,
        {
            "out": lambda: busy_seconds(ours.encode, untyped.value, times=times),
            "typed out": lambda: busy_seconds(other.encode, typed.value, times=times),
            "in": lambda: busy_seconds(ours.decode, data, times=times),
            "typed in": lambda: busy_seconds(other.decode, other_data, times=times),
        },
    )
    for way in ("out", "in"):
        yield compare(
            f"codec {way}, {what}", found, measure="ratio", unit="ms", scale=1e3, ours=way, limit=f"typed {way}",
            limit_is=typed.kind, goal=at_most(3), note="per state",
        )  # fmt: skip


def _prepared(setting: Setting, what: str, state: State) -> tuple[Codec[Any], bytes, float, int]:
    """The codec, what it writes, how many times 100 KB that is, and how often to do it in a round."""
    ours: Codec[Any] = Codec(state.type)
    data = ours.encode(state.value)
    if ours.decode(data) != state.value:
        raise AssertionError(f"{what} does not come back as it was")
    share = len(data) / 100_000
    return ours, data, share, max(int(5 / share), 1) if setting.size.nodes > 10 else 1


def _states(size: int) -> Iterator[State]:
    """States of other shapes, of about `size` bytes."""
    orders = [Order(n, f"customer {n}", n / 3, n % 2 == 0, ["new", "paid"]) for n in range(size // 82)]
    yield State("dataclass of plain records", Book, Book("shop", orders), asdict(Book("shop", orders)))
    text = "The run goes on from its last milepost, whatever happened to the process before. "
    roles = ("user", "assistant")
    messages: list[Message] = [
        {"role": roles[n % 2], "content": text * 3, "tokens": n} for n in range(size // (len(text) * 3 + 44))
    ]
    conversation: Conversation = {"messages": messages, "turn": 3}
    yield State("TypedDict of messages", Conversation, conversation, conversation)
    table = {f"row-{n}": {"id": n, "score": n / 3, "name": f"customer {n}", "ok": True} for n in range(size // 75)}
    yield State("plain dict", dict, table, table)
