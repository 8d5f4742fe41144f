"""`resume_from` a part of a step: what the step began with stands, and no visit number or key is used twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from forking import few

from milepost import END, Graph, RunSuspended, current, parallel, step, workflow


@pytest.fixture
def keys() -> list[tuple[str, str | None]]:
    """The id and the idempotency key of each call of a function that really ran."""
    return []


@pytest.fixture
def made(work, keys):
    """A workflow of a parallel, a map, a graph with maps in it, and a step."""

    def call(value: str) -> str:
        context = current()
        assert context is not None
        keys.append((context.node_id, context.idempotency_key))
        return value

    def node(state: dict[str, Any]) -> dict[str, Any]:
        call("node")
        return {**state, "count": state.get("count", 0) + 1}

    item = Graph(dict).add_node("a", node).add_node("b", node).add_edge("a", "b").add_edge("b", END)
    inside = Graph(dict).add_map("each", lambda s: ["0", "1"], call, merge=lambda s, got: {**s, "got": got})
    inside.add_map("deep", lambda s: [{}, {}], item.set_entry("a").compile(), merge=lambda s, got: {**s, "deep": got})
    graph = inside.add_edge("each", "deep").add_edge("deep", END).set_entry("each").compile("inside")

    @workflow("made")
    def code():
        both = yield parallel("p", step("l").python(work(call), args=("l",)), step("r").python(work(call), args=("r",)))
        items = yield step("m").map(work(call), ["m0", "m1"])
        walked = yield step("g").subworkflow(graph, {})
        last = yield step("z").python(work(call), args=("z",))
        return [[result.output for result in both], items, walked.final_output, last]

    return code


EXPECTED = [["l", "r"], ["m0", "m1"], {"got": ["0", "1"], "deep": [{"count": 2}, {"count": 2}]}, "z"]


@few
@pytest.mark.parametrize(
    "places",
    ["m/0", "m/0 m/0", "m m/0 m", "p/l p m/1", "g/each/0", "g/deep/0/a g/deep/0/a", "g/each g/deep/1/b m/0"],
)
def test_resume_from_a_part_of_a_step_uses_no_visit_and_no_key_twice(verbs, store, made, keys, places):
    assert EXPECTED == verbs.run(made, store=store, run_id="r")
    for place in places.split():
        stands = {(i.node_id, i.visit) for i in store.history("r") if not i.superseded}
        upto = max(i.sequence for i in store.history("r") if i.node_id == place and not i.superseded)
        kept = {(i.node_id, i.visit) for i in store.history("r") if not i.superseded and i.sequence <= upto}
        assert EXPECTED == verbs.resume_from(made, store, "r", place)
        now = {(i.node_id, i.visit) for i in store.history("r") if not i.superseded}
        assert (kept, {node_id for node_id, _ in stands}) == (kept & now, {node_id for node_id, _ in now})
    visits = Counter((info.node_id, info.visit) for info in store.history("r"))
    assert ([], []) == ([v for v, n in visits.items() if n > 1], [k for k, n in Counter(keys).items() if n > 1])
    assert (EXPECTED, True) == (verbs.resume(made, store, "r"), store.verify("r").ok)


@few
def test_a_wait_beside_the_step_that_is_resumed_from_waits_anew_or_keeps_its_reply(verbs, store, work):
    def f(value: str) -> str:
        return value

    @workflow("waits")
    def code():
        first = yield parallel("p", step("w").wait_for("go"), step("a").python(work(f), args=("a",)))
        return [result.output if result.name == "a" else result.output.payload for result in first]

    with pytest.raises(RunSuspended):
        verbs.run(code, store=store, run_id="r")
    verbs.call(code, "signal", store, "r", "go", 1)
    assert [1, "a"] == verbs.resume(code, store, "r")
    with pytest.raises(RunSuspended) as caught:
        verbs.resume_from(code, store, "r", "p/a")
    assert ["p/w#2"] == [wait.wait_id for wait in caught.value.waiting_for]
    verbs.call(code, "signal", store, "r", "go", 2)
    assert [2, "a"] == verbs.resume(code, store, "r")
    visits = Counter((info.node_id, info.visit) for info in store.history("r"))
    assert {("p/a", 1), ("p/w", 1), ("p/w", 2), ("p", 1), ("p", 2)} == set(visits)
    assert [1] * 5 == list(visits.values())
