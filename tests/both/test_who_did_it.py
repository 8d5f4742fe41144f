"""Who did it: a caller may say who signals, cancels, requeues or forks. The records keep it, and views show it."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from milepost import END, Engine, Graph, MilepostError, SQLiteStore, Steps, step, workflow
from milepost.errors import InvalidIDError
from milepost.model.record import FINISH, OWNER, REPLY, START
from milepost.views.journal import is_workflow, read_entries, records_of
from milepost.views.status import view_run


@dataclass
class Order:
    ok: bool = False


@workflow("asking")
def asking() -> Steps[Any]:
    return (yield step("ask").wait_for("answer")).payload


def fail(state: Order) -> Order:
    raise ValueError("no")


failing = Graph(Order).add_node("a", fail).add_edge("a", END).set_entry("a").compile("failing")


def newest(store: Any, run_id: str, kind: str) -> dict[str, Any]:
    return store.read(run_id, kinds=(kind,), newest=True, limit=1)[0].fields()


def shown(store: Any, run_id: str) -> tuple[str, list[str]]:
    """Return what `show` says of who did something, and the notes of `history` that name somebody."""
    view = view_run(store.latest(run_id), records_of(store, run_id), store.place, is_workflow(store, run_id))
    notes = [entry.note for entry in read_entries(store, run_id) if entry.by is not None]
    assert [entry.by for entry in read_entries(store, run_id) if entry.by] == [action.by for action in view.actions]
    return str(dict(view.facts())["by"]), notes


@pytest.mark.every_store
def test_the_records_say_who_did_it(verbs, store):
    engine = Engine(store, flows=[asking, failing])
    for run_id in ("r", "plain"):
        engine.run(asking, run_id=run_id, full=True)
    verbs.call(engine, "signal", "r", "answer", 1, by="ann")
    engine.signal("plain", "answer", 1)
    engine.worker().run(until_idle=True)
    assert ("ann", None) == (newest(store, "r", REPLY)["by"], newest(store, "plain", REPLY).get("by"))
    assert ("ann (signal)", ["signal number 1 came (by ann)"]) == shown(store, "r")
    assert ("", []) == shown(store, "plain")

    fork = verbs.call(engine, "fork_run", asking, "r", "ask", by="bob")
    assert "bob" == newest(store, fork, START)["origin"]["by"]
    again = verbs.call(engine, "fork_run", asking, fork, "ask")
    assert "by" not in newest(store, again, START)["origin"]
    assert "ann (signal), bob (fork)" == shown(store, fork)[0]

    with suppress(MilepostError):
        engine.run(failing, Order(), run_id="f")
    verbs.call(engine, "requeue", "f", by="cyd")
    assert "cyd" == newest(store, "f", OWNER)["by"]
    verbs.call(engine.handle("f"), "cancel", "enough", by="dan")
    assert ("dan", "enough") == (newest(store, "f", FINISH)["by"], newest(store, "f", FINISH)["reason"])
    assert "dan (cancel), cyd (requeue)" == shown(store, "f")[0]


def test_an_owner_that_is_asked_to_end_records_who_asked(verbs, store):
    def stop(state: Order) -> Order:
        assert "requested" == Engine(store).cancel("r", "enough", by="ann")
        return state

    graph = Graph(Order).add_node("a", stop).add_node("b", stop)
    flow = graph.add_edge("a", "b").add_edge("b", END).set_entry("a").compile("w")
    with pytest.raises(MilepostError) as caught:
        verbs.run(flow, Order(), store=store, run_id="r")
    assert ("enough", "ann") == (caught.value.reason, caught.value.by)
    assert ("enough", "ann") == (newest(store, "r", FINISH)["reason"], newest(store, "r", FINISH)["by"])
    assert "enough" == store.get_run("r").info.reason


def test_whoever_ends_a_run_with_rollbacks_records_who_asked(verbs, store):
    done: list[str] = []

    @workflow("w")
    def wf() -> Steps[Any]:
        yield step("book").python(lambda: 1).with_rollback(lambda ctx: done.append("undone"))
        return (yield step("ask").wait_for("answer"))

    engine = Engine(store, flows=[wf])
    engine.run(wf, run_id="r", full=True)
    assert "requested" == verbs.call(engine, "cancel", "r", by="ann")
    assert ("", "ann") == (store.get_run("r").cancel, store.get_run("r").cancel_by)
    engine.worker().run(until_idle=True)
    assert (["undone"], "ann") == (done, newest(store, "r", FINISH)["by"])


def test_an_encrypted_store_hides_who_did_it(tmp_path):
    keys = {"encryption_key": {"k": b"k" * 32}, "signing_key": {"s": b"s" * 32}}
    with SQLiteStore(tmp_path / "runs.db", **keys) as store:
        engine = Engine(store, flows=[asking])
        engine.run(asking, run_id="r", full=True)
        engine.signal("r", "answer", 1, by="somebody-known")
        assert ["somebody-known"] == [signal.by for signal in store.signals("r")]
        engine.worker().run(until_idle=True)
        assert "somebody-known" == newest(store, "r", REPLY)["by"]
        engine.run(asking, run_id="s", full=True)
        engine.cancel("s", by="somebody-known")
        assert "somebody-known" == newest(store, "s", FINISH)["by"]
    for path in tmp_path.iterdir():
        assert b"somebody-known" not in path.read_bytes()


def test_who_did_it_has_at_most_512_bytes(verbs, store):
    engine = Engine(store, flows=[asking])
    engine.run(asking, run_id="r", full=True)
    for verb, *arguments in (
        ("signal", "r", "answer"),
        ("cancel", "r"),
        ("requeue", "r"),
        ("fork_run", asking, "r"),
        ("requeue_all",),
        ("cancel_matching",),
    ):
        with pytest.raises(InvalidIDError, match="512"):
            verbs.call(engine, verb, *arguments, by="b" * 513)
    assert "waiting" == store.get_run("r").info.status


def test_a_delete_is_logged(store, caplog):
    with suppress(MilepostError):
        Engine(store).run(asking, run_id="r")
    store.save("s", "a", b"1")
    caplog.set_level(logging.INFO, "milepost")
    store.delete_run("r")
    store.delete("s", "a")
    store.delete_run("unknown")
    assert [
        f"run 'r' was deleted from {store.place}",
        f"node 'a' of run 's' was deleted from {store.place}",
    ] == caplog.messages
