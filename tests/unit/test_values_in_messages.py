"""A refused value is quoted in the message, whatever it is: an int has more digits than Python shows, a repr fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from milepost import (
    END,
    Engine,
    Graph,
    MemoryStore,
    Retention,
    Retry,
    Steps,
    codec,
    open_store,
    parallel,
    step,
    workflow,
)
from milepost.errors import shown
from milepost.options import Options

BIG: Any = 10**5000


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def same(state: dict[str, int]) -> dict[str, int]:
    return state


@workflow("w")
def flow() -> Steps[int]:
    return (yield from step("a").python(lambda: 1))


GRAPH = Graph(dict).add_node("a", same).add_edge("a", END).set_entry("a").compile("g")


def verbs(store: Any, engine: Any) -> Iterator[Callable[[Any], object]]:
    """Calls that take a value where an id, a number, a time or a thing of ours belongs."""
    yield from (
        (lambda value, name=name: GRAPH.run({}, store=store, **{name: value}))
        for name in ("run_id", *Options.__struct_fields__)
    )
    yield lambda value: Engine(store, flows=[value])
    yield lambda value: GRAPH.run(value, store=store)
    yield lambda value: GRAPH.resume(store, value)
    yield lambda value: GRAPH.resume_from(store, "r", value)
    yield lambda value: GRAPH.fork_run(store, "r", value)
    yield lambda value: GRAPH.fork_run(store, "r", "a", visit=value)
    yield lambda value: GRAPH.to_mermaid(status={"a": value})
    yield lambda value: flow.resume_from(store, "v", value)
    yield lambda value: engine.run(value, {})
    yield lambda value: engine.start(GRAPH, {}, at=value)
    yield lambda value: engine.handle(value)
    yield lambda value: engine.signal("r", value)
    yield lambda value: engine.list_runs(flow=value)
    yield lambda value: engine.list_runs(tags={value: value})
    yield lambda value: engine.worker(concurrency=value)
    yield lambda value: engine.worker(limits={value: 1})
    yield lambda value: engine.worker(poll=value)
    yield lambda value: engine.worker().every(value, flow, "* * * * *")
    yield lambda value: store.read("r", limit=-value)
    yield lambda value: store.read("r", node_id=value)
    yield lambda value: store.load("r", "a", value)
    yield lambda value: store.save("r", value, b"")
    yield lambda value: store.claim_due(value, 1)
    yield lambda value: store.claim_due(["g"], -value)
    yield lambda value: store.prune(older_than=1, statuses=[value])
    yield lambda value: MemoryStore(retention=value)
    yield lambda value: MemoryStore(signing_key={value: b""})
    yield lambda value: open_store(value)
    yield lambda value: Retention(keep_last=-value)
    yield lambda value: Retry(max_attempts=-value)
    yield lambda value: Retry(factor=-value)
    yield lambda value: Retry(retry_on=value)
    yield lambda value: Graph(value)
    yield lambda value: Graph(dict, reducers={value: value})
    yield lambda value: Graph(dict).add_node(value, same)
    yield lambda value: Graph(dict).add_node("a", value)
    yield lambda value: Graph(dict).add_node("a", same, timeout=value)
    yield lambda value: Graph(dict).add_subgraph("a", value)
    yield lambda value: Graph(dict).add_wait("a", value, apply=lambda state, reply: state)
    yield lambda value: step(value)
    yield lambda value: step("a").python(value)
    yield lambda value: step("a").map(print, value)
    yield lambda value: step("a").subworkflow(value)
    yield lambda value: step("a").wait_for(value)
    yield lambda value: step("a").sleep(value)
    yield lambda value: step("a").sleep_until(value)
    yield lambda value: parallel("a", value)
    yield lambda value: workflow(value)
    yield lambda value: codec.register(value)
    yield lambda value: codec.register(Unshown, tag=value)
    yield lambda value: codec.Codec(value)
    yield lambda value: codec.Codec(dict).encode({value: object()})


@pytest.mark.parametrize(
    "make", [lambda: BIG, lambda: [BIG], lambda: {BIG: -BIG}, Unshown], ids=["int", "list", "dict", "without a repr"]
)
def test_a_refusal_quotes_any_value(make: Callable[[], Any]) -> None:
    value = make()
    with MemoryStore() as store, Engine(store, flows=[GRAPH, flow]) as engine:
        GRAPH.run({}, store=store, run_id="r")
        flow.run(store=store, run_id="v")
        told: list[str] = []
        for call in verbs(store, engine):
            try:
                call(value)
            except Exception as exc:
                told.append(str(exc))
    assert len(told) > 50
    assert [] == [text for text in told if "integer string conversion" in text or text == "no repr"]


def test_what_cannot_be_shown_is_named_by_its_type() -> None:
    assert ("<int, whose repr fails: ValueError>", "<Unshown, whose repr fails: RuntimeError>") == (
        shown(BIG),
        shown(Unshown()),
    )
    assert ("'a'", 200, "…") == (shown("a"), len(shown("a" * 500)), shown("a" * 500)[-1])
