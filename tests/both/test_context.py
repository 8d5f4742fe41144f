"""What a node is given besides its state."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from milepost import (
    END,
    Graph,
    MemoryStore,
    NodeError,
    Retry,
    SQLiteStore,
    Steps,
    WorkflowContext,
    current,
    step,
    workflow,
)
from milepost.errors import OptionError
from milepost.events import Emitted, Progress


@dataclass
class Count:
    n: int = 0


class Clients:
    greeting = "hello"


def plus(state: Count) -> Count:
    return Count(state.n + 1)


@pytest.mark.every_store
def test_ids_of_run_node_visit_and_attempt_are_always_set(verbs, store, line):
    seen = []

    def a(ctx, state: Count) -> Count:
        seen.append((ctx.run_id, ctx.node_id, ctx.visit, ctx.attempt, ctx.store))
        return plus(state)

    graph = line(Count, "a", {"a": a})
    verbs.run(graph, Count(), store=store, run_id="r1")
    assert [("r1", "a", 1, 1, store)] == seen
    verbs.run(graph, Count())
    assert [True, None] == [bool(seen[1][0]), seen[1][4]]


def test_the_idempotency_key_is_that_of_the_visit(verbs, timed, log):
    keys, is_dying = [], [False]

    def b(ctx, state: Count) -> Count:
        keys.append(ctx.idempotency_key)
        if is_dying[0]:
            raise verbs.Killed
        if len(keys) == 1:
            raise ValueError("no")
        return plus(state)

    graph = Graph(Count).add_node("b", verbs.node(b), retry=Retry(3, backoff=0))
    graph.add_conditional_edge("b", lambda state: "b" if state.n < 2 else END, ["b", END])
    compiled = graph.set_entry("b").compile()
    verbs.run(compiled, Count(), store=timed, run_id="r1")
    first, again, second = keys
    assert first == again != second
    assert 32 == len(first) == len(bytes.fromhex(first)) * 2
    keys.clear()
    is_dying[0] = True
    verbs.crash(compiled, timed, "r2", Count(1))
    is_dying[0] = False
    verbs.resume(compiled, timed, "r2")
    assert 1 == len(set(keys)) < len(keys)
    assert first not in keys


def test_time_randomness_and_uuids_are_repeated_on_a_retry_and_after_a_crash(verbs, medium, clock, log):
    store, seen, is_dying = medium.open(clock=clock), {"a": [], "b": []}, [True]

    def drawing(node):
        def body(ctx, state: Count) -> Count:
            seen[node].append((ctx.now(), ctx.random(), ctx.uuid4(), ctx.uuid4()))
            clock.advance(1)
            if node == "b" and len(seen[node]) == 1:
                raise ValueError("no")
            if node == "b" and is_dying[0]:
                raise verbs.Killed
            return plus(state)

        return verbs.node(body)

    graph = Graph(Count).add_node("a", drawing("a")).add_node("b", drawing("b"), retry=Retry(3, backoff=0))
    compiled = graph.add_edge("a", "b").add_edge("b", END).set_entry("a").compile()
    verbs.crash(compiled, store, "r1", Count(), clock=clock)
    is_dying[0] = False
    verbs.resume(compiled, store, "r1", clock=clock)
    assert (3, 1) == (len(seen["b"]), len(set(seen["b"])))
    now, number, one, two = seen["b"][0]
    assert seen["a"][0][1:] != (number, one, two)
    assert (4, 4, True) == (one.version, two.version, one != two)
    assert store.history("r1")[0].timestamp == now
    assert seen["a"][0][0].timestamp() == 1_767_225_600.0


@pytest.mark.parametrize("is_workflow", [False, True])
def test_what_a_run_draws_does_not_follow_from_its_id(verbs, tmp_path, is_workflow):
    """Whoever knows the id of a run cannot know its tokens; a store that is told what to draw gives the same again."""
    drawn: list[str] = []

    def draw(ctx: Any) -> None:
        drawn.append(str(ctx.uuid4()))

    @workflow("drawing")
    def drawing(ctx: WorkflowContext[Any]) -> Steps[None]:
        draw(ctx)
        yield from step("wait").sleep(0)

    def node(ctx, state: Count) -> Count:
        draw(ctx)
        return plus(state)

    graph = Graph(Count).add_node("a", verbs.node(node)).add_edge("a", END).set_entry("a").compile("drawing")
    flow, given = (drawing, ()) if is_workflow else (graph, (Count(),))
    for store in (MemoryStore(), MemoryStore(), None, None):
        verbs.run(flow, *given, store=store, run_id="r1")
    assert len(drawn) == len(set(drawn))
    fixed = [SQLiteStore(tmp_path / f"{n}.db", entropy=lambda size: b"x" * size) for n in range(2)]
    for store in fixed:
        verbs.run(flow, *given, store=store, run_id="r1")
        store.close()
    assert drawn[-1] == drawn[-2]


def test_what_a_run_draws_from_is_not_readable_where_the_store_encrypts(verbs, line):
    store = MemoryStore(encryption_key={"e": b"encryption key, exactly 32 bytes"})
    verbs.run(line(Count), Count(), store=store, run_id="r1")
    entropy = store.read("r1", limit=1)[0].fields()["entropy"]
    with store._read("look") as tx:
        (start,) = tx.records("r1", before=1)
    assert 32 == len(entropy)
    assert entropy.encode() not in (start.header or b"") + (start.payload or b"")


def test_the_first_node_follows_the_start_of_the_run_after_a_crash_too(verbs, medium, clock):
    store, seen, is_dying = medium.open(clock=clock), [], [True]

    def a(ctx, state: Count) -> Count:
        seen.append((ctx.now(), ctx.random()))
        if is_dying[0]:
            raise verbs.Killed
        return plus(state)

    graph = Graph(Count).add_node("a", verbs.node(a)).add_edge("a", END).set_entry("a").compile()
    verbs.crash(graph, store, "r1", Count(), clock=clock)
    clock.advance(100)
    is_dying[0] = False
    verbs.resume(graph, store, "r1", clock=clock)
    assert seen[0] == seen[1]


def test_tags_are_written_with_the_checkpoint_of_their_visit(verbs, store, line):
    seen = []

    def a(ctx, state: Count) -> Count:
        ctx.tag("order", "o-17")
        seen.append(dict(store.get_run("r1").info.tags))
        return plus(state)

    def b(ctx, state: Count) -> Count:
        ctx.tag("lost", "yes")
        seen.append(dict(store.get_run("r1").info.tags))
        raise ValueError("no")

    def c(ctx, state: Count) -> Count:
        ctx.tag("order", "o-18")
        return plus(state)

    with pytest.raises(Exception, match="no"):
        verbs.run(line(Count, "ab", {"a": a, "b": b}), Count(), store=store, run_id="r1", tags={"by": "me"})
    assert [{"by": "me"}, {"by": "me", "order": "o-17"}] == seen
    assert {"by": "me", "order": "o-17"} == store.get_run("r1").info.tags
    verbs.resume(line(Count, "ab", {"b": c}), store, "r1")
    assert {"by": "me", "order": "o-18"} == store.get_run("r1").info.tags
    assert ["r1"] == [info.run_id for info in store.list_runs(tags={"order": "o-18"})]


def test_a_run_has_at_most_64_tags(verbs, store, line):
    """Those that it began with and those of nodes, also of nodes before a resume; a fork has one more, its origin."""

    def a(ctx, state: Count) -> Count:
        ctx.tag("n", "1")
        return plus(state)

    def b(ctx, state: Count) -> Count:
        ctx.tag("n", "2")
        ctx.tag("one more", "3")
        return plus(state)

    given, graph = {str(n): "" for n in range(63)}, line(Count, "ab", {"a": a, "b": b})
    with pytest.raises(NodeError, match="a run has at most 64 tags, and would have 65"):
        verbs.run(graph, Count(), store=store, run_id="r1", tags=given)
    with pytest.raises(NodeError, match="a run has at most 64 tags"):
        verbs.resume(graph, store, "r1")
    fork_id = graph.fork_run(store, "r1", "a")
    assert 65 == len(store.get_run(fork_id).info.tags)
    with pytest.raises(NodeError, match="a run has at most 64 tags"):
        verbs.resume(graph, store, fork_id)
    assert Count(2) == verbs.resume(line(Count, "ab"), store, fork_id)
    with pytest.raises(OptionError, match="a run has at most 64 tags"):
        verbs.run(graph, Count(), store=store, run_id="r2", tags={**given, "x": "", "y": ""})


@pytest.mark.parametrize(("key", "value"), [(1, "x"), ("x", 1), ("x", None)])
def test_a_tag_that_is_no_text_is_a_type_error(verbs, line, key, value):
    with pytest.raises(Exception, match="tag") as caught:
        verbs.run(line(Count, "a", {"a": lambda ctx, state: ctx.tag(key, value)}), Count())
    assert TypeError is type(caught.value.__cause__)


def test_progress_and_own_events_reach_hooks_and_are_not_recorded(verbs, store, line):
    events = []

    def a(ctx, state: Count) -> Count:
        ctx.progress(1, 3, "first")
        ctx.emit("token", {"text": "he"})
        return plus(state)

    verbs.run(line(Count, "a", {"a": a}), Count(), store=store, run_id="r1", hooks=[events.append])
    told = [event for event in events if isinstance(event, (Progress, Emitted))]
    assert [("a", 1, 3, "first"), ("a", "token", {"text": "he"})] == [
        (told[0].node_id, told[0].done, told[0].total, told[0].message),
        (told[1].node_id, told[1].name, told[1].data),
    ]
    assert ["start", "checkpoint", "finish"] == [record.kind for record in store.read("r1")]


def test_without_a_listener_progress_costs_nothing_and_raises_nothing(verbs, line):
    def a(ctx, state: Count) -> Count:
        ctx.progress(1)
        ctx.emit("token")
        return plus(state)

    assert Count(1) == verbs.run(line(Count, "a", {"a": a}), Count())


def test_the_logger_s_records_name_run_node_and_attempt(verbs, line, caplog):
    def a(ctx, state: Count) -> Count:
        ctx.logger.warning("look", extra={"mine": 7})
        return plus(state)

    verbs.run(line(Count, "a", {"a": a}), Count(), run_id="r1")
    record = next(record for record in caplog.records if record.getMessage() == "look")
    assert ("milepost", "r1", "a", 1, 7) == (record.name, record.run_id, record.node_id, record.attempt, record.mine)


def test_the_logger_s_parent_may_be_given(verbs, line, caplog):
    def a(ctx, state: Count) -> Count:
        ctx.logger.warning("look")
        return plus(state)

    verbs.run(line(Count, "a", {"a": a}), Count(), logger=logging.getLogger("mine"))
    assert ["mine"] == [record.name for record in caplog.records]


def test_deps_are_given_to_every_node_and_never_stored(verbs, store, line):
    clients, seen = Clients(), []

    def b(ctx, state: Count) -> Count:
        seen.append(ctx.deps)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return plus(state)

    graph = line(Count, "ab", {"b": b})
    with pytest.raises(KeyboardInterrupt):
        verbs.run(graph, Count(), store=store, run_id="r1", deps=clients)
    assert b"Clients" not in store.export("r1")
    verbs.resume(graph, store, "r1", deps=7)
    assert [clients, 7] == seen


def test_current_gives_the_context_anywhere_below_a_node(verbs, line):
    seen = []

    def deep() -> None:
        seen.append(current())
        seen.append(current(Clients).deps.greeting)

    def a(ctx, state: Count) -> Count:
        deep()
        seen.append(ctx)
        return plus(state)

    verbs.run(line(Count, "a", {"a": a}), Count(), deps=Clients())
    assert seen[0] is seen[2]
    assert "hello" == seen[1]


def test_current_gives_the_context_in_tasks_and_threads_that_a_coroutine_node_starts():
    seen = []

    async def a(ctx, state: Count) -> Count:
        seen.append(await asyncio.to_thread(current) is ctx)
        seen.append(await asyncio.create_task(asyncio.sleep(0, current())) is ctx)
        return plus(state)

    graph = Graph(Count).add_node("a", a).add_edge("a", END).set_entry("a").compile()
    asyncio.run(graph.arun(Count()))
    assert [True, True] == seen


def test_current_tells_runs_that_go_on_at_once_apart(store):
    seen = {}

    async def a(ctx, state: Count) -> Count:
        await asyncio.sleep(0)
        seen[ctx.run_id] = current().run_id
        return plus(state)

    graph = Graph(Count).add_node("a", a).add_edge("a", END).set_entry("a").compile()

    async def main() -> None:
        await asyncio.gather(*(graph.arun(Count(), store=store, run_id=f"r{n}") for n in range(8)))

    asyncio.run(main())
    assert {f"r{n}": f"r{n}" for n in range(8)} == seen


def test_current_with_other_deps_is_an_option_error(verbs, line):
    with pytest.raises(Exception, match="deps") as caught:
        verbs.run(line(Count, "a", {"a": lambda state: current(Clients)}), Count(), deps=7)
    assert OptionError is type(caught.value.__cause__)


def test_outside_a_run_there_is_no_current_context(verbs, line):
    verbs.run(line(Count), Count())
    with pytest.raises(LookupError, match=r"milepost\.testing\.context"):
        current()


def test_a_context_cannot_be_changed_by_accident(verbs, line):
    def a(ctx, state: Count) -> Count:
        ctx.something = 1
        return state

    with pytest.raises(Exception, match="something") as caught:
        verbs.run(line(Count, "a", {"a": a}), Count())
    assert AttributeError is type(caught.value.__cause__)


def test_without_a_timeout_there_is_no_deadline_and_nothing_to_stop_for(verbs, line):
    seen = []

    def a(ctx, state: Count) -> Count:
        ctx.check_cancelled()
        seen.append((ctx.deadline, ctx.cancelled))
        return dataclasses.replace(state, n=threading.active_count() and 1)

    assert Count(1) == verbs.run(line(Count, "a", {"a": a}), Count())
    assert [(None, False)] == seen


def test_a_router_has_the_context_of_its_node(verbs):
    seen = []

    def choose(ctx, state: Count) -> str:
        seen.append((ctx.node_id, ctx.visit, current() is ctx))
        return END

    graph = Graph(Count).add_node("a", verbs.node(plus)).add_conditional_edge("a", verbs.node(choose), [END])
    verbs.run(graph.set_entry("a").compile(), Count())
    assert [("a", 1, True)] == seen
