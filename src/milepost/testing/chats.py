"""Runs of a chat: large states that grow at their end and change at their beginning, with one message a node."""

from __future__ import annotations

from typing import Any

import msgspec

from milepost.model.record import CHECKPOINT, format_time, make_record
from milepost.store import Store, Token
from milepost.testing.journals import EPOCH_TIME, write

__all__ = ["chat", "said", "state_of", "talk"]

NODES = "abc"


def chat(messages: int) -> bytes:
    """Return a state that grows at its end and changes at its beginning."""
    history = [{"role": "user", "content": f"Nº {n}: " + f"how are you, {n * n}? " * 20} for n in range(messages)]
    return msgspec.json.encode({"count": messages, "messages": history, "cost": messages / 7})


def talk(store: Store, token: Token, first: int, last: int, *, compressing: bool = False) -> None:
    """Append checkpoints `first` to `last`, one by one, with the nodes in turn. Each has as many messages as its number."""
    for n in range(first, last + 1):
        write(store, token, said(token.run_id, n, compressing=compressing))


def said(run_id: str, n: int, *, compressing: bool = False) -> Any:
    """Return the n-th checkpoint of a chat, which is a visit of a node."""
    fields = {"next_node": "later", "attempt": 1}
    at, node_id, visit = format_time(EPOCH_TIME), NODES[n % 3], 1 + n // 3
    return make_record(run_id, n, at, CHECKPOINT, node_id, visit, chat(n), fields, compressing)


def state_of(store: Store, run_id: str, n: int) -> bytes | None:
    """Return the state of the n-th record in the store."""
    (record,) = store.read(run_id, after=n - 1, before=n + 1)
    return record.state()
