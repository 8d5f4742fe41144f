"""Odd texts and values that users give as tags, reasons and overrides: kept exactly, or refused by every store alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from milepost import MemoryStore, NodeError, RunCancelled, SerializeStateError, SQLiteStore
from milepost.errors import RunStopped
from milepost.model.failure import type_name


@dataclass
class Count:
    n: int = 0


@dataclass
class Holder:
    value: Any = None


class Opaque:
    pass


def test_an_unknown_value_in_an_override_is_refused_and_changes_nothing(verbs, store, line, log):
    graph = line(Holder, "ab", {"a": lambda state: state, "b": lambda state: state})
    with pytest.raises(RunStopped):
        verbs.run(graph, Holder(1), store=store, run_id="r1", stop_after="a")
    before = store.read("r1")
    with pytest.raises(SerializeStateError) as caught:
        verbs.resume(graph, store, "r1", state_override=lambda state: Holder([Opaque()]))
    assert "state.value[0]" == caught.value.path
    assert (["a"], before, "interrupted") == (log, store.read("r1"), store.get_run("r1").info.status)
    assert Holder(1) == verbs.resume(graph, store, "r1")


@pytest.fixture
def every_store(tmp_path):
    """One store of each kind: what they do with the same text must be the same."""
    stores = (SQLiteStore(tmp_path / "every.db"), MemoryStore())
    yield stores
    for store in stores:
        store.close()


@pytest.mark.parametrize("text", ["a\ud801b", "a\x00b"])
@pytest.mark.parametrize("place", ["key", "value"])
@pytest.mark.parametrize("way", ["call", "node"])
def test_a_tag_of_odd_text_is_kept_exactly_or_refused_by_every_store_alike(verbs, every_store, line, text, place, way):
    tags = {"k": text} if place == "value" else {text: "v"}
    shorter = {"k": "a"} if place == "value" else {"a": "v"}

    def tagging(ctx, state: Count) -> Count:
        for key, value in tags.items():
            ctx.tag(key, value)
        return state

    def verdict(store: Any) -> str:
        verbs.run(line(Count, "a"), Count(), store=store, run_id="other")
        try:
            if way == "call":
                verbs.run(line(Count, "a"), Count(), store=store, run_id="r1", tags=tags)
            else:
                verbs.run(line(Count, "a", {"a": tagging}), Count(), store=store, run_id="r1")
        except (TypeError, ValueError, NodeError) as exc:
            if isinstance(exc, UnicodeError) or isinstance(exc.__cause__, UnicodeError):
                raise
            assert ["other"] == [info.run_id for info in store.list_runs(status="finished")]
            return "refused"
        assert tags == dict(store.get_run("r1").info.tags)
        assert ["r1"] == [info.run_id for info in store.list_runs(tags=tags)]
        assert [] == store.list_runs(tags=shorter)
        return "kept"

    assert 1 == len({verdict(store) for store in every_store})


@pytest.mark.parametrize(
    "reason",
    ["a\ud801b", "a\x00b", "two\nlines", "x" * 5000],
    ids=["surrogate", "NUL", "lines", "long"],
)
def test_a_reason_of_odd_text_is_told_by_every_store_alike_and_ends_the_run(verbs, every_store, line, log, reason):
    def verdict(store: Any) -> tuple[str, str]:
        graph = line(Count, "ab")
        with pytest.raises(RunStopped):
            verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
        try:
            assert "requested" == store.request_cancel("r1", reason, None)
        except (TypeError, ValueError) as exc:
            if isinstance(exc, UnicodeError):
                raise
            return ("refused", store.get_run("r1").info.status)
        assert "?" not in store.get_run("r1").cancel
        with pytest.raises(RunCancelled):
            verbs.resume(graph, store, "r1")
        info = store.get_run("r1").info
        assert store.verify("r1").ok
        return (info.status, info.reason)

    (told,) = {verdict(store) for store in every_store}
    assert told[0] in {"cancelled", "refused"}
    assert list("aa") == log


def test_the_odd_name_of_an_error_s_type_can_be_recorded():
    odd = type("Odd", (Exception,), {"__qualname__": "Odd\ud801", "__module__": "of\ud801"})
    is_printable = type_name(odd("no")).isprintable()
    assert is_printable


def test_a_paused_stream_and_a_loop_over_a_listing_block_nobody(verbs, medium, line):
    store, other = medium.open(), medium.open()
    graph = line(Count, "abc")
    results: list[Any] = []

    def meanwhile(event: Any) -> bool:
        if type(event).__name__ == "CheckpointSaved" and not results:
            with ThreadPoolExecutor(1) as pool:
                results.append(pool.submit(verbs.run, graph, Count(10), store=other, run_id="r2").result(10))
                pool.submit(other.save, "r3", "x", b"{}").result(10)
        return False

    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r0", stop_after="a")
    for _ in store.list_runs():
        verbs.events(graph, "stream", Count(), store=store, run_id="r1", until=meanwhile)
        break
    assert [Count(13)] == results
    assert {"r0", "r1", "r2", "r3"} == {info.run_id for info in store.list_runs()}
    for number, info in enumerate(store.history("r1")):
        store.save("r3", info.node_id, store.load("r1", info.node_id))
        if number == 0:
            assert Count(3) == verbs.resume(graph, store, "r0")
    assert ["finished"] * 3 == [store.get_run(f"r{n}").info.status for n in range(3)]


# -- stored bytes are data ---------------------------------------------------------------------------------
