"""Maps in graphs: the items of a node, done at once, each recorded for itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pydantic
import pytest
from dying import crash

from milepost import (
    END,
    BranchError,
    Engine,
    Graph,
    NodeError,
    Reply,
    Retry,
    RunNotResumableError,
    RunSuspended,
    SerializeStateError,
    current,
    reducers,
    step,
    workflow,
)
from milepost.errors import (
    AsyncNodeError,
    MaxIterationsError,
    MergeConflictError,
    NodeTimeoutError,
    OptionError,
    RunStopped,
    StateTypeError,
)
from milepost.events import AttemptFailed, NodeOverdue, Progress
from milepost.executor.context import Context


@dataclass
class Cart:
    items: list[int] = field(default_factory=list)
    out: list[Any] = field(default_factory=list)
    turns: int = 0


@dataclass
class Line:
    name: str
    price: Decimal


class Model(pydantic.BaseModel):
    count: int
    price: Decimal


def collected(state: Cart, results: list[Any]) -> Cart:
    return Cart(state.items, [*state.out, *results], state.turns)


def mapped(verbs, fn, *, over=lambda state: state.items, merge=collected, name="maps", graph=None, **options):
    """A graph of one map, or with it after what `graph` has."""
    each = fn if hasattr(fn, "compile") or hasattr(fn, "node_ids") else verbs.node(fn)
    built = Graph(Cart) if graph is None else graph
    built.add_map("m", over, each, merge=merge, **options)
    return built.add_edge("m", END).set_entry("m").compile(name)


def done(store, run_id="r"):
    return [info.node_id for info in store.history(run_id)]


def kinds(store, run_id="r"):
    return [record.kind for record in store.read(run_id) if record.kind != "owner"]


# -- what comes of it ----------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_results_come_in_the_order_of_the_items(verbs, store):
    order = threading.Event()

    def work(item: int) -> int:
        # Under several threads the first item ends last.
        if item == 0 and verbs.is_async and not verbs.has_coroutines:
            assert order.wait(5)
        if item == 2:
            order.set()
        return item * 10

    graph = mapped(verbs, work)
    assert [0, 10, 20] == verbs.run(graph, Cart([0, 1, 2]), store=store, run_id="r").out
    assert {"m", "m/0", "m/1", "m/2"} == set(done(store))
    assert "m" == done(store)[-1]


def test_the_items_are_recorded_before_the_first_of_them_runs(verbs, store):
    seen: list[list[str]] = []

    def work(item: int) -> int:
        seen.append(kinds(store))
        return item

    verbs.run(mapped(verbs, work, max_parallel=1), Cart([1, 2]), store=store, run_id="r")
    assert ["start", "items"] == seen[0]
    assert b"[1,2]" == store.read("r", kinds=("items",))[0].state()


def test_after_a_crash_only_the_missing_items_run(verbs, timed, clock, log):
    deadly = {3}

    def work(item: int) -> int:
        log.append(f"i{item}")
        if item in deadly:
            raise verbs.Killed
        return item * 10

    def over(state: Cart) -> list[int]:
        log.append("over")
        return state.items

    graph = mapped(verbs, work, over=over, max_parallel=1)
    crash(verbs, graph, timed, "r", Cart([0, 1, 2, 3, 4]), clock=clock)
    assert ["over", "i0", "i1", "i2", "i3"] == log
    deadly.clear()
    log.clear()
    assert [0, 10, 20, 30, 40] == verbs.resume(graph, timed, "r", clock=clock).out
    assert ["i3", "i4"] == log


def test_after_a_crash_an_item_that_had_not_begun_is_at_its_first_attempt(verbs, medium, timed, clock, log):
    deadly = {1, 2}

    def work(item: int) -> int:
        log.append(f"i{item} {current().attempt}")
        if item in deadly:
            raise verbs.Killed
        return item

    graph = mapped(verbs, work, max_parallel=1)
    crash(verbs, graph, timed, "r", Cart([0, 1, 2, 3]), clock=clock)
    deadly.remove(1)
    crash(verbs, graph, timed, "r", clock=clock)
    deadly.clear()
    assert [0, 1, 2, 3] == verbs.resume(graph, timed, "r", clock=clock).out
    second = 2 if medium.has_lease_end else 1  # what was abandoned has not crashed
    assert ["i0 1", "i1 1", f"i1 {second}", "i2 1", f"i2 {second}", "i3 1"] == log


@pytest.mark.stores("sqlite")  # what is abandoned on a memory store has not crashed
@pytest.mark.parametrize("front", ["graph", "workflow"])
def test_items_that_wait_for_a_thread_have_not_begun(verbs, timed, clock, log, front):
    deadly = {0}

    def work(item: int) -> int:
        log.append(f"{item} {current().attempt}")
        if item in deadly:
            raise verbs.Killed
        return item

    @workflow("steps")
    def steps() -> Any:
        yield step("m").map(work, list(range(200)))

    graph = Graph(Cart).add_map("m", lambda state: range(200), work, merge=collected)
    flow = steps if front == "workflow" else graph.add_edge("m", END).set_entry("m").compile("maps")
    crash(verbs, flow, timed, "r", {} if front == "workflow" else Cart(), clock=clock)
    deadly.clear()
    log.clear()
    verbs.resume(flow, timed, "r", clock=clock)
    assert "0 2" in log
    assert 32 >= sum(call.endswith(" 2") for call in log)


def test_a_loop_over_a_map_has_its_own_items_each_time(verbs, timed, clock, log):
    """The second pass has the same ids, and never the results of the first."""
    deadly = {4}

    def work(item: int) -> int:
        log.append(f"i{item}")
        if item in deadly:
            raise verbs.Killed
        return item * 10

    def turn(state: Cart) -> Cart:
        return Cart([1, 2] if state.turns == 0 else [3, 4], state.out, state.turns + 1)

    graph = Graph(Cart).add_node("s", verbs.node(turn))
    graph.add_map("m", lambda state: state.items, verbs.node(work), merge=collected, max_parallel=1)
    graph.add_edge("s", "m").add_conditional_edge("m", lambda state: "s" if state.turns < 2 else END, ["s", END])
    graph = graph.set_entry("s").compile("loop")
    crash(verbs, graph, timed, "r", Cart(), clock=clock)
    deadly.clear()
    assert [10, 20, 30, 40] == verbs.resume(graph, timed, "r", clock=clock).out
    assert ["i1", "i2", "i3", "i4", "i4"] == log
    visits = [(info.node_id, info.visit) for info in timed.history("r")]
    assert [("m/0", 1), ("m/0", 2)] == [visit for visit in visits if visit[0] == "m/0"]
    assert len(set(visits)) == len(visits)


@pytest.mark.parametrize("is_kept", [True, False], ids=["store", "bare"])
def test_a_map_over_nothing_gives_nothing(verbs, store, is_kept):
    options = {"store": store, "run_id": "r"} if is_kept else {}
    assert [7] == verbs.run(mapped(verbs, lambda item: item), Cart([], [7]), **options).out


def test_a_map_works_without_a_store(verbs):
    given = Cart([3, 1])

    def spoil(item: list[int]) -> int:
        item.append(9)
        return len(item)

    assert [2, 2] == verbs.run(mapped(verbs, spoil, over=lambda state: [[n] for n in state.items]), given).out
    assert [3, 1] == given.items


def test_a_coroutine_function_is_refused_by_name_under_a_sync_verb(store):
    async def fetch(item: int) -> int:
        return item

    async def over(state: Cart) -> list[int]:
        return state.items

    async def merge(state: Cart, results: list[int]) -> Cart:
        return state

    graph = Graph(Cart).add_map("m", over, fetch, merge=merge).add_edge("m", END).set_entry("m").compile("maps")
    with pytest.raises(AsyncNodeError, match="function of 'm'") as caught:
        graph.run(Cart([1]), store=store, run_id="r")
    assert {"m", "over of 'm'", "function of 'm'"} == set(caught.value.names)
    assert [] == store.list_runs()


def test_a_function_that_takes_the_context_gets_that_of_its_item(verbs, store):
    def work(ctx: Context, item: int) -> str:
        return f"{ctx.node_id} {ctx.visit} {ctx.attempt} {ctx.idempotency_key}"

    out = verbs.run(mapped(verbs, work), Cart([5, 6]), store=store, run_id="r").out
    assert ["m/0 1 1", "m/1 1 1"] == [text.rpartition(" ")[0] for text in out]
    assert 2 == len({text.rpartition(" ")[2] for text in out})


def test_an_item_keeps_its_idempotency_key_over_processes(verbs, timed, clock):
    keys: list[str] = []

    def work(ctx: Context, item: int) -> int:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise verbs.Killed
        return item

    graph = mapped(verbs, work)
    crash(verbs, graph, timed, "r", Cart([5]), clock=clock)
    verbs.resume(graph, timed, "r", clock=clock)
    assert keys[0] == keys[1]


# -- how many at once ------------------------------------------------------------------------------------------


class Gauge:
    """Counts how many are open at once."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *exc_info: object) -> None:
        with self.lock:
            self.now -= 1


@pytest.mark.parametrize("where", ["map", "run"])
def test_never_more_items_are_open_than_allowed(verbs, store, where):
    gauge, full = Gauge(), threading.Barrier(3)

    def work(item: int) -> int:
        with gauge:
            if not verbs.has_coroutines:
                full.wait(5)
            return item

    graph = mapped(verbs, work, **({"max_parallel": 3} if where == "map" else {}))
    options = {"max_parallel": 3} if where == "run" else {}
    out = verbs.run(graph, Cart([*range(9)]), store=store, run_id="r", **options).out
    assert ([*range(9)], gauge.most <= 3) == (out, True)


def test_never_more_item_graphs_are_open_than_allowed(verbs, store):
    begun: set[str] = set()
    most = [0]

    def first(ctx: Context, state: Cart) -> Cart:
        begun.add(ctx.node_id.split("/")[1])
        most[0] = max(most[0], len(begun))
        return state

    def last(ctx: Context, state: Cart) -> Cart:
        begun.discard(ctx.node_id.split("/")[1])
        return state

    inner = Graph(Cart).add_node("x", verbs.node(first)).add_node("y", verbs.node(last))
    inner = inner.add_edge("x", "y").add_edge("y", END).set_entry("x").compile("item")
    graph = mapped(verbs, inner, over=lambda state: [Cart(turns=n) for n in state.items], max_parallel=2)
    out = verbs.run(graph, Cart([*range(6)]), store=store, run_id="r").out
    assert ([*range(6)], True) == ([cart.turns for cart in out], most[0] <= 2)


@pytest.mark.wide
@pytest.mark.stores("memory", "sqlite")
def test_a_map_may_have_thousands_of_items(verbs, medium):
    store = medium.open()
    before, most = threading.active_count(), [0]

    def work(item: int) -> int:
        most[0] = max(most[0], threading.active_count())
        return item + 1

    out = verbs.run(mapped(verbs, work), Cart([*range(5000)]), store=store, run_id="r").out
    assert [*range(1, 5001)] == out
    assert most[0] <= before + 80


# -- attempts --------------------------------------------------------------------------------------------------


def test_items_are_tried_by_the_policy_of_the_run(verbs, medium, jumping, log):
    def work(ctx: Context, item: int) -> int:
        log.append(f"{item}.{ctx.attempt}")
        if item == 1 and ctx.attempt < 3:
            raise OSError("not yet")
        return item

    store = medium.open(clock=jumping)
    graph = mapped(verbs, work, max_parallel=1)
    policy = Retry(max_attempts=3, backoff=0)
    assert [0, 1, 2] == verbs.run(graph, Cart([0, 1, 2]), store=store, run_id="r", retry=policy, clock=jumping).out
    assert ["0.1", "1.1", "1.2", "1.3", "2.1"] == log


def test_items_are_tried_by_the_policy_of_the_map_and_nothing_else_is(verbs, store, log):
    keys: set[str] = set()

    def work(ctx: Context, item: int) -> int:
        if item == 1:
            log.append(f"{item}.{ctx.attempt}")
            keys.add(ctx.idempotency_key)
            if ctx.attempt < 3:
                raise OSError("not yet")
        return item

    def merge(state: Cart, results: list[int]) -> Cart:
        log.append("merge")
        if log.count("merge") == 1:
            raise OSError("not yet")
        return collected(state, results)

    graph = mapped(verbs, work, merge=merge, retry=Retry(max_attempts=3, backoff=0.01, jitter=False))
    seen: list[Any] = []
    with pytest.raises(NodeError, match="node 'm' of run 'r' failed: OSError: not yet"):
        verbs.stream(graph, Cart([0, 1, 2]), store=store, run_id="r", retry=Retry(max_attempts=1), seen=seen)
    told = [(event.node_id, event.attempt, event.retry_in) for event in seen if isinstance(event, AttemptFailed)]
    assert [("m/1", 1, 0.01), ("m/1", 2, 0.02), ("m", 1, None)] == told
    failed = [(record.node_id, record.fields()["attempt"]) for record in store.read("r", kinds=("failure",))]
    assert [("m/1", 1), ("m/1", 2), ("m", 1)] == failed
    assert [0, 1, 2] == verbs.retry(graph, store, "r").out
    assert ["1.1", "1.2", "1.3", "merge", "merge"] == log
    assert 1 == len(keys)


@pytest.mark.parametrize("whose", ["run", "map"])
def test_attempts_of_an_item_are_counted_over_processes(verbs, medium, timed, clock, log, whose):
    deadly = [True]

    def work(ctx: Context, item: int) -> int:
        log.append(f"{item}.{ctx.attempt}")
        if ctx.attempt == 2 and deadly[0]:
            raise verbs.Killed
        raise OSError("never")

    policy = {"retry": Retry(max_attempts=3, backoff=0)}
    graph = mapped(verbs, work, **(policy if whose == "map" else {}))
    options = policy if whose == "run" else {}
    crash(verbs, graph, timed, "r", Cart([7]), clock=clock, **options)
    deadly[0] = False
    with pytest.raises(BranchError) as caught:
        verbs.resume(graph, timed, "r", clock=clock, **options)
    # The second was cut short, which is no failure of the policy's; where no lease ends nobody knows of it.
    assert (["7.1", "7.2", "7.3", "7.4"] if medium.has_lease_end else ["7.1", "7.2", "7.2", "7.3"]) == log
    with pytest.raises(RunNotResumableError, match="'m/0' has used up its 3 attempts"):
        verbs.resume(graph, timed, "r", clock=clock, **options)
    assert ["m/0"] == [*caught.value.errors]
    before, last = len(log), int(log[-1][2:])
    with pytest.raises(BranchError):
        verbs.retry(graph, timed, "r", clock=clock, **options)
    assert [f"7.{last + n}" for n in (1, 2, 3)] == log[before:]


@pytest.mark.parametrize("whose", ["run", "map"])
def test_a_timeout_is_for_each_item(store, whose):
    import asyncio

    async def work(item: int) -> int:
        if item == 1:
            await asyncio.sleep(30)
        return item

    timeout = {"timeout": 0.05}
    graph = Graph(Cart).add_map(
        "m", lambda state: state.items, work, merge=collected, **(timeout if whose == "map" else {})
    )
    graph = graph.add_edge("m", END).set_entry("m").compile("maps")
    options = timeout if whose == "run" else {}
    with pytest.raises(BranchError) as caught:
        asyncio.run(graph.arun(Cart([0, 1, 2]), store=store, run_id="r", **options))
    assert {"m/1": NodeTimeoutError} == {key: type(error) for key, error in caught.value.errors.items()}
    assert {"m/0", "m/2"} == set(done(store))


def test_an_item_in_a_thread_that_takes_too_long_is_tried_again_when_it_has_ended(store, log):
    late, ended = threading.Event(), threading.Event()

    def work(ctx: Context, item: int) -> int:
        if item == 1 and ctx.attempt == 1:
            late.wait(20)
            ended.set()
        elif item == 1:
            log.append("began beside it" if not ended.is_set() else "began")
        return item

    graph = Graph(Cart).add_map(
        "m", lambda state: state.items, work, merge=collected, timeout=0.05, retry=Retry(2, backoff=0)
    )
    graph = graph.add_edge("m", END).set_entry("m").compile("maps")
    events = graph.stream(Cart([0, 1]), store=store, run_id="r")
    for event in events:
        if isinstance(event, NodeOverdue):
            assert "m/1" == event.node_id
            late.set()
    assert ["began"] == log
    assert [0, 1] == graph.resume(store, "r").out


@pytest.mark.parametrize("option", ["executor", "retry", "timeout"])
def test_a_map_of_a_graph_leaves_to_its_nodes_how_they_are_tried(verbs, option):
    value = {"executor": ThreadPoolExecutor, "retry": Retry(2), "timeout": 3}[option]
    inner = Graph(int).add_node("x", verbs.node(int)).add_edge("x", END).set_entry("x").compile("inner")
    with pytest.raises(OptionError, match=f"map 'm' is of a graph.*give them the {option}") as caught:
        mapped(verbs, inner, **{option: value})
    assert option == caught.value.option


@pytest.mark.parametrize(
    ("given", "text"),
    [({"retry": 3}, "retry of map 'm' must be a Retry"), ({"timeout": 0}, "timeout of map 'm' must be more")],
)
def test_a_wrong_policy_of_a_map_is_refused(verbs, given, text):
    with pytest.raises(OptionError, match=text):
        mapped(verbs, str, **given)


# -- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_failed_items_let_the_others_go_on_and_run_again_alone(verbs, store, log, verb):
    broken = {1, 3}

    def work(item: int) -> int:
        log.append(f"i{item}")
        if item in broken:
            raise ValueError(f"no {item}")
        return item * 10

    graph = mapped(verbs, work, over=lambda state: log.append("over") or state.items)
    with pytest.raises(BranchError, match=r"2 items of map 'm' of run 'r' failed") as caught:
        verbs.run(graph, Cart([*range(5)]), store=store, run_id="r")
    error = caught.value
    assert ["m/1", "m/3"] == sorted(error.errors)
    assert all(isinstance(found, NodeError) for found in error.errors.values())
    assert ("r", "m", "m", 1, Cart([*range(5)])) == (error.run_id, error.node_id, error.fork, error.visit, error.state)
    assert {"m/0", "m/2", "m/4"} == set(done(store))
    assert "failed" == store.get_run("r").info.status
    with pytest.raises(BranchError) as told:  # whoever waits for it in another process has only its records
        verbs.run(graph, Cart([*range(5)]), store=store, run_id="r", if_exists="return")
    assert ("m", 1, ["m/1", "m/3"]) == (told.value.fork, told.value.visit, sorted(told.value.errors))
    log.clear()
    broken.discard(1)
    with pytest.raises(BranchError) as caught:
        verbs.call(graph, verb, store, "r")
    assert (["i1", "i3"], ["m/3"]) == (sorted(log), [*caught.value.errors])
    log.clear()
    broken.clear()
    assert [0, 10, 20, 30, 40] == verbs.call(graph, verb, store, "r").out
    assert ["i3"] == log
    visits = [(info.node_id, info.visit) for info in store.history("r")]
    assert sorted([("m", 1), *((f"m/{n}", 1) for n in range(5))]) == sorted(visits)


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_failing_merge_runs_again_alone(verbs, store, log, verb):
    broken = [True]

    def merge(state: Cart, results: list[int]) -> Cart:
        log.append("merge")
        if broken[0]:
            raise ValueError("cannot")
        return collected(state, results)

    def work(item: int) -> int:
        log.append(f"i{item}")
        return item

    graph = mapped(verbs, work, over=lambda state: log.append("over") or state.items, merge=merge, max_parallel=1)
    with pytest.raises(NodeError, match="node 'm' of run 'r' failed: ValueError: cannot"):
        verbs.run(graph, Cart([1, 2]), store=store, run_id="r")
    assert ["over", "i1", "i2", "merge"] == log
    broken[0] = False
    log.clear()
    assert [1, 2] == verbs.call(graph, verb, store, "r").out
    assert ["merge"] == log


def test_a_merge_has_the_attempts_of_the_policy_over_processes(verbs, timed, clock, log):
    def merge(state: Cart, results: list[int]) -> Cart:
        log.append("merge")
        state.out += results
        raise OSError(f"not yet {state.out}")

    graph = mapped(verbs, lambda item: log.append(f"i{item}") or item, merge=merge)
    policy = Retry(max_attempts=2, backoff=0)
    with pytest.raises(NodeError, match="not yet") as caught:
        verbs.run(graph, Cart([1]), store=timed, run_id="r", clock=clock, retry=policy)
    assert (["i1", "merge", "merge"], 2) == (log, caught.value.attempt)
    assert "not yet [1];" in str(caught.value)  # each attempt has a state of its own
    with pytest.raises(RunNotResumableError, match="used up its 2 attempts"):
        verbs.resume(graph, timed, "r", clock=clock, retry=policy)
    with pytest.raises(NodeError, match="not yet"):
        verbs.retry(graph, timed, "r", clock=clock, retry=policy)
    assert ["i1", *["merge"] * 4] == log


def test_a_merge_that_gives_no_state_is_refused(verbs, store):
    graph = mapped(verbs, lambda item: item, merge=lambda state, results: results)
    with pytest.raises(StateTypeError, match="'m'") as caught:
        verbs.run(graph, Cart([1]), store=store, run_id="r")
    assert ("r", "m") == (caught.value.run_id, caught.value.node_id)


@pytest.mark.parametrize("given", [None, 5, "abc", {"a": 1}])
@pytest.mark.parametrize("is_kept", [True, False], ids=["store", "bare"])
def test_an_over_that_gives_no_list_is_refused(verbs, store, given, is_kept):
    options = {"store": store, "run_id": "r"} if is_kept else {}
    graph = mapped(verbs, lambda item: item, over=lambda state: given)
    with pytest.raises(StateTypeError, match=r"node 'm' of run .*: over= gave .*: it must give the items") as caught:
        verbs.run(graph, Cart(), **options)
    assert ("m", "items") == (caught.value.node_id, caught.value.path)
    if is_kept:
        assert "failed" == store.get_run("r").info.status
        assert ["start", "failure", "finish"] == kinds(store)


@pytest.mark.parametrize("how", ["call", "iterate"])
def test_an_over_that_fails_is_a_failure_of_its_node(verbs, store, log, how):
    broken = [True]

    def lazy(state: Cart):
        for item in state.items:
            log.append("over")
            if broken[0] and item == 2:
                raise OSError("gone")
            yield item

    def over(state: Cart):
        return lazy(state) if how == "iterate" else [*lazy(state)]

    graph = mapped(verbs, lambda item: log.append(f"i{item}") or item, over=over, max_parallel=1)
    with pytest.raises(NodeError, match="node 'm' of run 'r' failed after 2 failed attempts: OSError: gone"):
        verbs.run(graph, Cart([1, 2]), store=store, run_id="r", retry=Retry(max_attempts=2, backoff=0))
    assert ["over"] * 4 == log
    broken[0] = False
    assert [1, 2] == verbs.retry(graph, store, "r").out


def test_a_merge_conflict_of_an_item_graph_is_that_item_s_failure(verbs, store):
    def put(n):
        return verbs.node(lambda state: Cart(state.items, state.out, n))

    inner = Graph(Cart, reducers={"out": reducers.append})
    inner.add_node("f", verbs.node(lambda state: state))
    inner.add_node("a", put(1)).add_node("b", put(2)).add_node("j", verbs.node(lambda state: state))
    inner.add_edge("f", "a").add_edge("f", "b").add_edge("a", "j").add_edge("b", "j").add_edge("j", END)
    inner = inner.set_entry("f").compile("item")
    graph = mapped(verbs, inner, over=lambda state: [Cart(), Cart()])
    with pytest.raises(BranchError) as caught:
        verbs.run(graph, Cart(), store=store, run_id="r")
    assert {"m/0": MergeConflictError, "m/1": MergeConflictError} == {
        key: type(error) for key, error in caught.value.errors.items()
    }


# -- what items and results are --------------------------------------------------------------------------------


def price_line(item: Line) -> Line:
    return Line(item.name, item.price * 2)


def price_model(item: Model) -> Model:
    return Model(count=item.count + 1, price=item.price)


def price_decimal(item: Decimal) -> Decimal:
    return item + 1


def price_tuple(item: tuple[int, str]) -> tuple[str, int]:
    return item[1], item[0]


@pytest.mark.parametrize(
    ("fn", "items", "results"),
    [
        (price_line, [Line("a", Decimal("1.10"))], [Line("a", Decimal("2.20"))]),
        (price_model, [Model(count=1, price=Decimal("1.0"))], [Model(count=2, price=Decimal("1.0"))]),
        (price_decimal, [Decimal("1.50"), Decimal("-0")], [Decimal("2.50"), Decimal(1)]),
        (price_tuple, [(1, "a"), (2, "b")], [("a", 1), ("b", 2)]),
    ],
    ids=["dataclass", "pydantic", "decimal", "tuple"],
)
def test_items_and_results_come_back_as_what_they_are(verbs, timed, clock, fn, items, results):
    """What merge is given after a crash has the types and values that it has without one."""
    given: list[Any] = []
    seen: list[Any] = []
    deadly = [True]

    def merge(state: Cart, found: list[Any]) -> Cart:
        given.append(found)
        if deadly[0]:
            raise verbs.Killed
        return state

    def work(item):
        seen.append(item)
        return fn(item)

    work.__annotations__ = fn.__annotations__
    graph = mapped(verbs, work, over=lambda state: iter(items), merge=merge)
    crash(verbs, graph, timed, "r", Cart(), clock=clock)
    deadly[0] = False
    verbs.resume(graph, timed, "r", clock=clock)
    assert [results, results] == given
    assert [type(result) for result in results] == [type(result) for result in given[1]]
    assert sorted(map(repr, items)) == sorted(map(repr, seen))


def test_an_item_that_cannot_be_recorded_is_refused_with_its_path(verbs, store, log):
    graph = mapped(verbs, lambda item: log.append("item"), over=lambda state: [1, 2, 3, {"a": object()}])
    with pytest.raises(SerializeStateError, match=r'items\[3\]\["a"\]') as caught:
        verbs.run(graph, Cart(), store=store, run_id="r")
    assert ("r", "m", []) == (caught.value.run_id, caught.value.node_id, log)
    assert "failed" == store.get_run("r").info.status


def test_an_item_of_another_type_than_declared_is_refused(verbs, store, log):
    def work(item: int) -> int:
        log.append("item")
        return item

    graph = mapped(verbs, work, over=lambda state: [1, "two"])
    with pytest.raises((StateTypeError, SerializeStateError), match=r"items\[1\]"):
        verbs.run(graph, Cart(), store=store, run_id="r")
    assert [] == log


def test_a_result_that_cannot_be_recorded_is_refused_with_its_path(verbs, store, log):
    broken = [True]

    def work(item: int) -> Any:
        log.append(f"i{item}")
        return {"a": object()} if item == 1 and broken[0] else item

    graph = mapped(verbs, work)
    with pytest.raises(SerializeStateError, match=r'output\["a"\]') as caught:
        verbs.run(graph, Cart([0, 1, 2]), store=store, run_id="r")
    assert ("r", "m/1") == (caught.value.run_id, caught.value.node_id)
    assert {"m/0", "m/2"} == set(done(store))
    broken[0] = False
    log.clear()
    assert [0, 1, 2] == verbs.resume(graph, store, "r").out
    assert ["i1"] == log


def test_an_attempt_that_changes_its_item_leaves_the_next_one_whole(verbs, medium, jumping):
    seen: list[list[int]] = []

    def work(item: list[int]) -> int:
        seen.append([*item])
        item.append(9)
        if len(seen) < 3:
            raise OSError("not yet")
        return len(item)

    store = medium.open(clock=jumping)
    graph = mapped(verbs, work, over=lambda state: [[1]])
    policy = Retry(max_attempts=3, backoff=0)
    assert [2] == verbs.run(graph, Cart(), store=store, run_id="r", retry=policy, clock=jumping).out
    assert [[1]] * 3 == seen


# -- a graph for each item -------------------------------------------------------------------------------------


def forked(verbs, log):
    """A graph that forks and adds up."""

    def step(name, n):
        def add(state: Cart) -> Cart:
            log.append(name)
            return Cart(state.items, [*state.out, f"{name}{state.turns}"], state.turns)

        return verbs.node(add)

    def merge(base: Cart, branches: dict[str, Cart]) -> Cart:
        return Cart(base.items, [*branches["a"].out, *branches["b"].out[len(base.out) :]], base.turns)

    graph = Graph(Cart)
    for n, name in enumerate("fab"):
        graph.add_node(name, step(name, n))
    graph.add_node("j", step("j", 4), merge=merge)
    graph.add_edge("f", "a").add_edge("f", "b").add_edge("a", "j").add_edge("b", "j").add_edge("j", END)
    return graph.set_entry("f").compile("item")


def test_an_item_may_be_a_graph_that_forks(verbs, store, log):
    def merge(state: Cart, results: list[Cart]) -> Cart:
        return Cart(state.items, [result.out for result in results], state.turns)

    graph = mapped(verbs, forked(verbs, log), over=lambda state: [Cart(turns=n) for n in state.items], merge=merge)
    out = verbs.run(graph, Cart([1, 2]), store=store, run_id="r").out
    assert [["f1", "a1", "b1", "j1"], ["f2", "a2", "b2", "j2"]] == out
    expected = {"m", *(f"m/{n}/{name}" for n in (0, 1) for name in "fabj")}
    assert expected == set(done(store))


def test_waits_inside_of_items_park_the_run_and_are_answered_one_by_one(verbs, timed, clock, log):
    def taken(state: Cart, reply: Reply[Any]) -> Cart:
        return Cart(state.items, [*state.out, reply.payload], state.turns)

    inner = Graph(Cart).add_node("x", verbs.node(lambda state: log.append("x") or state))
    inner.add_wait("w", "go", apply=taken, payload=str, prompt=lambda state: f"item {state.turns}")
    inner = inner.add_edge("x", "w").add_edge("w", END).set_entry("x").compile("item")

    def merge(state: Cart, results: list[Cart]) -> Cart:
        return Cart(state.items, [result.out[0] for result in results], state.turns)

    graph = mapped(verbs, inner, over=lambda state: [Cart(turns=n) for n in state.items], merge=merge)
    engine = Engine(timed, clock=clock)
    with pytest.raises(RunSuspended) as caught:
        verbs.run(engine, graph, Cart([4, 5, 6]), run_id="r")
    waits = caught.value.waiting_for
    assert [("m/0/w#1", "item 4"), ("m/1/w#1", "item 5"), ("m/2/w#1", "item 6")] == sorted(
        (wait.wait_id, wait.prompt) for wait in waits
    )
    assert "taken" == engine.signal("r", "go", "last", to="m/2/w#1")
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(engine, graph, "r")
    assert ["m/0/w#1", "m/1/w#1"] == sorted(wait.wait_id for wait in caught.value.waiting_for)
    answers = {wait.wait_id: wait.prompt for wait in caught.value.waiting_for}
    assert ["taken", "taken"] == [engine.signal("r", "go", answers[wait_id]) for wait_id in answers]
    assert ["item 4", "item 5", "last"] == verbs.resume(engine, graph, "r").out
    assert ["x"] * 3 == log


def test_the_limit_of_nodes_is_for_each_item(verbs, store):
    inner = Graph(Cart).add_node("x", verbs.node(lambda state: Cart(state.items, state.out, state.turns - 1)))
    inner.add_conditional_edge("x", lambda state: "x" if state.turns > 0 else END, ["x", END])
    inner = inner.set_entry("x").compile("item")
    graph = mapped(verbs, inner, over=lambda state: [Cart(turns=n) for n in state.items])
    out = verbs.run(graph, Cart([5] * 6), store=store, run_id="r", max_iterations=5).out
    assert [0] * 6 == [cart.turns for cart in out]
    with pytest.raises(MaxIterationsError, match="its limit is 5"):
        verbs.run(graph, Cart([1, 6, 2]), store=store, run_id="s", max_iterations=5)
    assert [0, 0, 0] == [cart.turns for cart in verbs.resume(graph, store, "s", max_iterations=6).out]


def test_the_limit_of_an_item_counts_on_in_another_process(verbs, timed, clock):
    deadly = [True]

    def down(state: Cart) -> Cart:
        if state.turns == 3 and deadly[0]:
            raise verbs.Killed
        return Cart(state.items, state.out, state.turns - 1)

    inner = Graph(Cart).add_node("x", verbs.node(down))
    inner.add_conditional_edge("x", lambda state: "x" if state.turns > 0 else END, ["x", END])
    inner = inner.set_entry("x").compile("item")
    graph = mapped(verbs, inner, over=lambda state: [Cart(turns=n) for n in state.items])
    crash(verbs, graph, timed, "r", Cart([6]), clock=clock, max_iterations=5)
    deadly[0] = False
    with pytest.raises(MaxIterationsError):
        verbs.resume(graph, timed, "r", clock=clock, max_iterations=5)


# -- inside of other things ------------------------------------------------------------------------------------


def test_a_map_inside_a_branch(verbs, timed, clock, log):
    deadly = {2}

    def work(item: int) -> int:
        log.append(f"i{item}")
        if item in deadly:
            raise verbs.Killed
        return item * 10

    def merge(base: Cart, branches: dict[str, Cart]) -> Cart:
        return Cart(base.items, [*branches["m"].out, *branches["b"].out], base.turns)

    graph = Graph(Cart).add_node("f", verbs.node(lambda state: log.append("f") or state))
    graph.add_node("b", verbs.node(lambda state: log.append("b") or Cart(out=["b"])))
    graph.add_map("m", lambda state: state.items, verbs.node(work), merge=collected, max_parallel=1)
    graph.add_node("j", verbs.node(lambda state: state), merge=merge)
    for source, target in ("fb", "fm", "bj", "mj"):
        graph.add_edge(source, target)
    graph = graph.add_edge("j", END).set_entry("f").compile("branch")
    crash(verbs, graph, timed, "r", Cart([1, 2, 3]), clock=clock)
    deadly.clear()
    assert [10, 20, 30, "b"] == verbs.resume(graph, timed, "r", clock=clock).out
    assert (1, 1, 2, 1) == (log.count("f"), log.count("i1"), log.count("i2"), log.count("i3"))


def test_a_map_may_be_stopped_before_an_item(verbs, store, log):
    graph = mapped(verbs, lambda item: log.append(f"i{item}") or item, max_parallel=1)
    with pytest.raises(RunStopped):
        verbs.run(graph, Cart([0, 1, 2]), store=store, run_id="r", stop_before=["m/1"])
    assert [0, 1, 2] == verbs.resume(graph, store, "r").out
    assert ["i0", "i1", "i2"] == sorted(log)


def test_a_map_that_is_gone_on_with_stops_before_the_items_that_it_does_not_go_on_with(verbs, timed, clock, log):
    deadly = {1}

    def work(item: int) -> int:
        log.append(f"i{item}")
        if item in deadly:
            raise verbs.Killed
        return item

    graph = mapped(verbs, work, max_parallel=1)
    crash(verbs, graph, timed, "r", Cart([0, 1, 2, 3]), clock=clock)
    deadly.clear()
    with pytest.raises(RunStopped, match="before node 'm/2'"):
        verbs.resume(graph, timed, "r", clock=clock, stop_before=["m/1", "m/2"])
    assert ["i0", "i1", "i1", "i3"] == log
    assert [0, 1, 2, 3] == verbs.resume(graph, timed, "r", clock=clock, stop_before=["m/1", "m/2"]).out
    assert ["i0", "i1", "i1", "i3", "i2"] == log


def test_a_map_that_had_not_begun_stops_before_its_first_item(verbs, store, log):
    graph = mapped(verbs, lambda item: log.append(f"i{item}") or item, max_parallel=1)
    with pytest.raises(RunStopped, match="before node 'm'"):
        verbs.run(graph, Cart([0, 1]), store=store, run_id="r", stop_before=["m", "m/0"])
    with pytest.raises(RunStopped, match="before node 'm/0'"):
        verbs.resume(graph, store, "r", stop_before=["m", "m/0"])
    assert [0, 1] == verbs.resume(graph, store, "r", stop_before=["m", "m/0"]).out
    assert ["i1", "i0"] == log


def test_an_item_that_has_begun_is_gone_on_with_and_others_stop(verbs, store, log):
    inner = Graph(int).add_node("x", verbs.node(lambda n: log.append(f"x{n}") or n))
    inner = inner.add_node("y", verbs.node(lambda n: log.append(f"y{n}") or n)).add_edge("x", "y").add_edge("y", END)
    graph = mapped(verbs, inner.set_entry("x").compile("inner"), max_parallel=1)
    with pytest.raises(RunStopped):
        verbs.run(graph, Cart([0, 1]), store=store, run_id="r", stop_before=["m/0/x", "m/1/y"])
    assert ["x1"] == log
    with pytest.raises(RunStopped, match="before node 'm/0/y'"):
        verbs.resume(graph, store, "r", stop_before=["m/0/x", "m/0/y", "m/1/x", "m/1/y"])
    assert ["x1", "x0", "y1"] == log
    assert [0, 1] == verbs.resume(graph, store, "r", stop_before=["m/0/y"]).out
    assert ["x1", "x0", "y1", "y0"] == log


def test_a_run_that_is_inside_of_something_tells_where_it_goes_on_by_whole_ids(verbs, store):
    """`next_node`: where the newest checkpoint leads, as a whole id: what it is inside of, where it is the last in that."""
    inner = Graph(int).add_node("x", verbs.node(int)).add_node("y", verbs.node(int)).add_edge("x", "y")
    inner = inner.add_edge("y", END).set_entry("x").compile("inner")
    graph = Graph(Cart).add_subgraph("g", inner, into=lambda state: 7, out=lambda state, n: Cart([n]))
    graph.add_map("n", lambda state: [0, 1], inner, merge=collected, max_parallel=1)
    graph.add_map("m", lambda state: [0, 1], verbs.node(int), merge=collected, max_parallel=1)
    graph = graph.add_edge("g", "n").add_edge("n", "m").add_edge("m", END).set_entry("g").compile("inside")

    def next_node(stop_after: str, run: Any = verbs.resume, *given: Any, **options: Any) -> str | None:
        with pytest.raises(RunStopped):
            run(graph, *(given or (store, "r")), stop_after=stop_after, **options)
        return store.get_run("r").info.next_node

    assert "g/y" == next_node("g/x", verbs.run, Cart(), store=store, run_id="r")
    assert ["g", "n"] == [next_node("g/y"), next_node("g")]
    assert ["n/1", "m"] == [next_node("n/0/x"), next_node("m/0")]
    verbs.resume(graph, store, "r")
    assert END == store.get_run("r").info.next_node


def test_a_map_that_is_run_again_does_its_items_again(verbs, store, log):
    graph = mapped(verbs, lambda item: log.append(f"i{item}") or item, max_parallel=1)
    verbs.run(graph, Cart([0, 1]), store=store, run_id="r")
    assert [0, 1] == verbs.resume_from(graph, store, "r", "m", rerun=True).out
    assert ["i0", "i1", "i0", "i1"] == log


def test_a_map_in_a_branch_that_is_run_again_does_its_items_again(verbs, store, log):
    graph = Graph(Cart).add_node("f", verbs.node(lambda state: state))
    graph.add_node("b", verbs.node(lambda state: log.append("b") or state))
    graph.add_map("m", lambda state: [0, 1], verbs.node(lambda item: log.append(f"i{item}") or item), merge=collected)
    graph.add_node("j", verbs.node(lambda state: state), merge=lambda base, branches: branches["m"])
    for source, target in ("fb", "fm", "bj", "mj"):
        graph.add_edge(source, target)
    graph = graph.add_edge("j", END).set_entry("f").compile("branch")
    verbs.run(graph, Cart(), store=store, run_id="r")
    log.clear()
    assert [0, 1] == verbs.resume_from(graph, store, "r", "m", rerun=True).out
    assert ["i0", "i1"] == sorted(log)


def test_an_override_of_a_run_whose_items_are_recorded_is_refused(verbs, store, log):
    broken = [True]

    def work(item: int) -> int:
        if broken[0]:
            raise ValueError("no")
        return item

    graph = Graph(Cart).add_node("s", verbs.node(lambda state: state)).add_edge("s", "m")
    graph.add_map("m", lambda state: state.items, verbs.node(work), merge=collected).add_edge("m", END)
    graph = graph.set_entry("s").compile("maps")
    with pytest.raises(BranchError):
        verbs.run(graph, Cart([1]), store=store, run_id="r")
    broken[0] = False
    with pytest.raises(OptionError, match=r"inside node 'm'.*use resume_from"):
        verbs.resume(graph, store, "r", state_override=lambda state: Cart([5]))
    assert [5] == verbs.resume_from(graph, store, "r", "s", state_override=lambda state: Cart([5])).out


# -- what it tells ---------------------------------------------------------------------------------------------


def test_each_item_that_is_done_is_told_as_progress(verbs, store):
    told = verbs.stream(mapped(verbs, lambda item: item), Cart([7, 8, 9]), store=store, run_id="r")
    progress = [event for event in told if isinstance(event, Progress)]
    assert [("m", 1, 3), ("m", 2, 3), ("m", 3, 3)] == [(event.node_id, event.done, event.total) for event in progress]
    started = [event.node_id for event in told if type(event).__name__ == "NodeStarted"]
    assert ["m", "m/0", "m/1", "m/2"] == [started[0], *sorted(started[1:])]
    completed = [event.node_id for event in told if type(event).__name__ == "NodeCompleted"]
    assert "m" == completed[-1]
