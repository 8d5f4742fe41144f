"""With an encryption key, nothing that a user's code said lies anywhere in a store's medium."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import pytest
from attacker import Attacker

from milepost import NodeError
from milepost.model.info import Wait
from milepost.store import Release
from milepost.testing.journals import begin, work

MARKER = "a-secret-of-users-7261"
ENCRYPTED = {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}}
BOTH = {**ENCRYPTED, "signing_key": {"s": b"signing key, 24 bytes..."}}
KEYS: dict[str, dict[str, Any]] = {"none": {}, "encrypted": ENCRYPTED, "both": BOTH}

pytestmark = pytest.mark.ways("sync", "async")


@dataclass
class Note:
    text: str
    n: int = 0


def forms_of(marker: str) -> list[bytes]:
    """The marker as it may stand in bytes: as text, and as base64 wherever in it it begins."""
    text = marker.encode()
    packed = [base64.b64encode(b"x" * shift + text)[4 if shift else 0 : -4] for shift in range(3)]
    return [text, text.hex().encode(), marker.encode("utf-16-le"), *packed]


def say_it_everywhere(verbs: Any, line: Any, store: Any) -> None:
    """Leave the marker in all that a run records."""

    def failing(state: Note) -> Note:
        raise ValueError("in its message, and in this line of its traceback: a-secret-of-users-7261")

    broken = line(Note, "ab", bodies={"b": failing})
    with pytest.raises(NodeError, match=MARKER):
        verbs.run(broken, Note(MARKER), store=store, run_id="failed", tags={"team": "billing"})
    store.request_cancel("failed", f"because of {MARKER}")
    graph = line(Note, "abc")
    verbs.run(graph, Note(MARKER * 50), store=store, run_id="large", compress=True)
    verbs.run(graph, Note(MARKER), store=store, run_id="done")
    verbs.resume_from(graph, store, "done", "a", state_override=lambda state: Note(MARKER, 5))
    store.save("saved", "node", MARKER.encode())
    token = begin(store, "asks", state=f'"{MARKER}"'.encode())
    work(store, token, "a")
    waits = (Wait("ask#1", "approval", {"question": MARKER}), Wait("other#1", "other", MARKER))
    store.release(token, Release("waiting", MARKER, waiting_for=waits, signals=0))
    store.put_signal("asks", "approval", f'{{"answer":"{MARKER}"}}'.encode(), signal_id="1")


def shown_of(store: Any) -> list[object]:
    """What the store tells of all that, to whoever has its keys."""
    reasons = [store.get_run(run_id).info.reason for run_id in ("failed", "asks")]
    failure = next(record for record in store.read("failed") if record.kind == "failure").fields()
    prompts = [wait.prompt for wait in store.get_run("asks").info.waiting_for]
    return [
        *reasons,
        store.get_run("failed").cancel,
        failure["message"],
        failure["traceback"],
        *prompts,
        store.signals("asks")[0].payload,
        store.load("saved", "node"),
        store.load("done", "c"),
        store.export("asks"),
    ]


@pytest.mark.parametrize("keys", KEYS)
def test_no_byte_that_is_kept_shows_what_users_said(verbs, medium, line, keys):
    attacker, store = Attacker(medium.kind, medium.path), medium.open(**KEYS[keys])
    say_it_everywhere(verbs, line, store)
    while_open = attacker.everything(store)
    told = shown_of(store)
    if medium.kind != "memory":
        store.close()
    found = [form for form in forms_of(MARKER) if form in while_open or form in attacker.everything(store)]
    if keys == "none":
        assert found  # the search finds it where it is
    else:
        assert [] == found
    # Tags, ids, names of flows and nodes, and the types of errors stay readable.
    for readable in (b"billing", b"failed", b"asks", b"line", b"ValueError", b"approval"):
        assert readable in while_open
    shown = [text for text in told if MARKER not in str(text)]
    assert [] == [text for text in shown if text]
    assert len(told) - len(shown) >= 8
