"""An engine binds store, dependencies, hooks and options once; a call's own options win."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest

from milepost import END, Engine, Graph, NodeError, Retry
from milepost.errors import NotAuthorizedError, OptionError, RunStopped, StoreClosedError


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


@pytest.mark.every_store
def test_every_verb_of_an_engine_works_on_its_store(verbs, store, line, log):
    graph, engine = line(Count), Engine(store)
    with pytest.raises(RunStopped):
        verbs.run(engine, graph, Count(), run_id="r1", stop_after="a")
    assert "b" == verbs.plan(engine, graph, "r1").next_node
    assert Count(3) == verbs.resume(engine, graph, "r1")
    assert Count(3) == verbs.resume_from(engine, graph, "r1", "b")
    assert Count(3) == verbs.run(engine, graph.bind(Count()), run_id="r2")
    assert "finished" == verbs.run(engine, graph, Count(), full=True).status
    assert 8 == len(verbs.stream(engine, graph, Count(), run_id="r3")) - 3
    assert "finished" == verbs.resume_stream(engine, graph, "r3")[-1].status
    assert ["a", "b", "c", "c"] == [info.node_id for info in verbs.call(engine, "history", "r1")]
    assert {"r1", "r2", "r3"} < {info.run_id for info in verbs.call(engine, "list_runs", flow="line")}
    assert 2 == verbs.call(engine, "count_runs", flow="line", limit=2)
    verbs.call(engine, "delete_run", "r1")
    assert [] == verbs.call(engine, "history", "r1")


@pytest.mark.every_store
def test_a_page_that_looked_at_as_many_runs_as_it_may_says_where(verbs, store, line, monkeypatch):
    engine = Engine(store)
    for number in range(6):
        engine.start(line(Count).bind(Count()), run_id=f"r{number}", tags={"half": str(number % 2), "env": "test"})
    asked = {"tags": {"env": "test", "half": "0"}, "limit": 2}
    monkeypatch.setattr("milepost.stores.base.store.MOST_WALKED", 3)
    seen, after = [], None
    for _ in range(3):
        page = verbs.call(engine, "list_runs", **asked, after=after)
        seen.append(([info.run_id for info in page], page.stopped_after))
        after = page.stopped_after or (page[-1].run_id if page else after)
    assert [(["r4"], "r3"), (["r2", "r0"], None), ([], None)] == seen
    assert ["r4", "r2", "r0"] == [*verbs.call(engine, "cancel_matching", tags=asked["tags"]).outcomes]


def test_retry_by_an_engine_runs_again_what_failed(verbs, store, line):
    is_broken = [True]

    def b(state: Count) -> Count:
        if is_broken[0]:
            raise ValueError("no")
        return plus(state)

    graph = line(Count, "ab", {"b": b})
    engine = Engine(store, retry=Retry(1))
    with pytest.raises(NodeError):
        verbs.run(engine, graph, Count(), run_id="r1")
    is_broken[0] = False
    assert Count(2) == verbs.retry(engine, graph, "r1")


def test_deps_of_the_engine_reach_nodes_unless_a_call_has_its_own(verbs, store, line):
    seen = []

    def a(ctx, state: Count) -> Count:
        seen.append(ctx.deps)
        return state

    graph, engine = line(Count, "a", {"a": a}), Engine(store, deps="bound")
    verbs.run(engine, graph, Count())
    verbs.run(engine, graph, Count(), deps="own")
    assert ["bound", "own"] == seen


def test_options_are_checked_when_the_engine_is_made(store):
    for wrong in ({"max_iterations": 0}, {"nonsense": 1}, {"lease": -1}):
        with pytest.raises(OptionError):
            Engine(store, **wrong)
    with pytest.raises(OptionError, match="store"):
        Engine(7)


def test_flows_need_names_of_their_own(store, line):
    with pytest.raises(OptionError, match="name"):
        Engine(store, flows=[line(Count, name=None)])
    with pytest.raises(OptionError, match="orders"):
        Engine(store, flows=[line(Count, name="orders"), line(Count, name="orders")])
    assert {"a", "b"} == set(Engine(store, flows=[line(Count, name="a"), line(Count, name="b")]).flows)


def test_a_flow_with_its_input_bound_takes_no_other(verbs, store, line):
    graph, engine = line(Count), Engine(store)
    with pytest.raises(OptionError):
        verbs.run(engine, graph.bind(Count()), Count(1))
    with pytest.raises(OptionError):
        verbs.run(engine, graph)
    assert [] == store.list_runs()


@pytest.mark.parametrize("answer", [False, ValueError("not you")])
def test_authorize_is_asked_before_resume_override_and_delete(verbs, store, line, log, answer):
    asked, refused = [], set()

    def authorize(action: str, run_id: str, flow: str):
        asked.append((action, run_id, flow))
        if action in refused:
            if isinstance(answer, Exception):
                raise answer
            return answer
        return True

    graph, engine = line(Count), Engine(store, authorize=authorize)
    with pytest.raises(RunStopped):
        verbs.run(engine, graph, Count(), run_id="r1", stop_after="a")
    assert [] == asked
    refused.add("resume")
    for verb, more in (("resume", ()), ("retry", ()), ("resume_from", ("a",))):
        with pytest.raises(NotAuthorizedError) as caught:
            getattr(verbs, verb)(engine, graph, "r1", *more)
        assert ("resume", "r1") == (caught.value.action, caught.value.run_id)
        assert (answer if isinstance(answer, Exception) else None) is caught.value.__cause__
    with pytest.raises(NotAuthorizedError):
        verbs.run(engine, graph, Count(), run_id="r1", if_exists="resume")
    refused.clear()
    refused.add("override")
    with pytest.raises(NotAuthorizedError, match="override"):
        verbs.resume(engine, graph, "r1", state_override=lambda state: state)
    refused.add("delete")
    with pytest.raises(NotAuthorizedError, match="delete"):
        verbs.call(engine, "delete_run", "r1")
    assert (["a"], "interrupted") == (log, store.get_run("r1").info.status)
    assert Count(3) == verbs.resume(engine, graph, "r1")
    assert ("resume", "r1", "line") == asked[-1]


def test_a_store_given_stays_open_and_one_made_from_a_url_is_closed(verbs, store, line, tmp_path):
    with Engine(store) as engine:
        verbs.run(engine, line(Count), Count(), run_id="r1")
    assert ["r1"] == [info.run_id for info in store.list_runs()]

    with Engine(f"sqlite:///{tmp_path}/url.db") as engine:
        verbs.run(engine, line(Count), Count(), run_id="r1")
        opened = engine.store
    with pytest.raises(StoreClosedError):
        opened.list_runs()

    async def main() -> None:
        async with Engine("memory://") as engine:
            await engine.alist_runs()
            opened.append(engine.store)

    opened = []
    asyncio.run(main())
    with pytest.raises(StoreClosedError):
        opened[0].list_runs()


def test_an_engine_is_used_from_many_threads_and_event_loops_at_once(verbs, store, line):
    graph, engine = line(Count), Engine(store)
    barrier = threading.Barrier(8)

    def work(n: int) -> Count:
        barrier.wait(10)
        return verbs.run(engine, graph, Count(n), run_id=f"r{n}")

    with ThreadPoolExecutor(8) as pool:
        assert [Count(n + 3) for n in range(8)] == list(pool.map(work, range(8)))
    assert {"finished"} == {info.status for info in engine.list_runs()}


def test_an_engine_s_clock_is_that_of_its_runs(verbs, medium, clock, line):
    store, seen = medium.open(clock=clock), []
    graph = line(Count, "a", {"a": lambda ctx, state: seen.append(ctx.now()) or state})
    verbs.run(Engine(store, clock=clock), graph, Count(), run_id="r1", hooks=[lambda e: seen.append(e.timestamp)])
    assert clock.now() in seen
    assert clock.time() in seen


def test_two_flows_share_a_store(verbs, store, line):
    engine = Engine(store)
    doubling = (
        Graph(Count)
        .add_node("double", verbs.node(lambda state: Count(state.n * 2)))
        .add_edge("double", END)
        .set_entry("double")
        .compile("doubling")
    )
    assert (Count(8), Count(3)) == (verbs.run(engine, doubling, Count(4)), verbs.run(engine, line(Count), Count()))
    assert ["doubling"] == [info.flow for info in engine.list_runs(flow="doubling")]


def test_an_override_by_if_exists_needs_leave_too(verbs, store, line):
    graph, asked = line(Count), []
    engine = Engine(store, authorize=lambda *what: asked.append(what) or True)
    with pytest.raises(RunStopped):
        verbs.run(engine, graph, Count(), run_id="r1", stop_after="a")
    override = {"if_exists": "resume", "state_override": lambda state: Count(5)}
    assert Count(7) == verbs.run(engine, graph, Count(), run_id="r1", **override)
    verbs.call(engine, "delete_run", "r1")
    verbs.call(engine, "delete_run", "r1")
    deletes = [("delete", "r1", "line"), ("delete", "r1", "")]
    assert [("resume", "r1", "line"), ("override", "r1", "line"), *deletes] == asked


def test_only_true_lets_an_action_pass(verbs, store, line):
    async def later(*what: str) -> bool:
        return False

    async def yields(*what: str):
        yield True

    class Asked:
        async def __call__(self, *what: str) -> bool:
            return False

    for authorize in (later, yields, Asked(), partial(Asked()), "yes"):
        with pytest.raises(OptionError, match="authorize"):
            Engine(store, authorize=authorize)

    class Promise:
        def __await__(self):
            yield

    for answer in (Promise(), None, 0, 1, "", "yes", []):
        engine = Engine(store, authorize=lambda *what, answer=answer: answer)
        with pytest.raises(NotAuthorizedError):
            verbs.resume(engine, line(Count), "r1")


def test_what_is_no_flow_is_refused_by_name(verbs, store):
    for flow in (Graph(Count), plus, None):
        with pytest.raises(OptionError, match="compile"):
            verbs.run(Engine(store), flow, Count())
        with pytest.raises(OptionError, match="compile"):
            verbs.resume(Engine(store), flow, "r1")
    with pytest.raises(OptionError, match="compile"):
        Engine(store, flows=[Graph(Count)])


def test_a_breakpoint_gives_a_result_from_every_verb_with_full(verbs, store, line):
    graph, engine = line(Count, "abcde"), Engine(store)
    told = [
        verbs.run(engine, graph, Count(), run_id="r1", stop_after="a", full=True),
        verbs.resume(engine, graph, "r1", stop_after="b", full=True),
        verbs.resume_from(engine, graph, "r1", "a", stop_before="c", full=True),
        verbs.run(graph, Count(), store=store, run_id="r1", if_exists="resume", stop_after="c", full=True),
        verbs.resume(graph, store, "r1", full=True),
    ]
    assert [1, 2, 2, 3, 5] == [result.state.n for result in told]
    assert ["interrupted"] * 4 + ["finished"] == [result.status for result in told]
    assert [None, "a", "a", "b", "c"] == [result.resumed and result.resumed.from_node for result in told]


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_failure_fatal": "no"},
        {"reroute": "b"},
        {"strict": 1},
        {"takeover": "yes"},
        {"compare_inputs": None},
        {"compress": "zstd"},
        {"stop_before": 5},
        {"stop_after": [3]},
        {"stop_after": None},
        {"max_iterations": True},
        {"max_iterations": 100_001},
        {"lease": None},
        {"timeout": float("nan")},
        {"hooks": 5},
        {"hooks": print},
        {"clock": 3},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_by_calls_and_engines_alike(verbs, store, line, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        verbs.run(line(Count), Count(), store=store, **options)
    with pytest.raises(OptionError, match=next(iter(options))):
        Engine(store, **options)
    assert [] == store.list_runs()


@pytest.mark.parametrize("tags", [["a"], "a", {"a": 1}])
def test_tags_that_are_no_texts_are_a_type_error(verbs, store, line, tags):
    with pytest.raises(TypeError, match="tags"):
        verbs.run(line(Count), Count(), store=store, tags=tags)
    with pytest.raises(TypeError, match="tags"):
        Engine(store, tags=tags)


def test_two_engines_with_hooks_and_deps_of_their_own_share_a_run(verbs, medium, line):
    graph, seen = line(Count), {"one": [], "two": []}
    engines = {name: Engine(medium.open(), hooks=[seen[name].append], deps=name) for name in seen}
    with pytest.raises(RunStopped):
        verbs.run(engines["one"], graph, Count(), run_id="r1", stop_after="a")
    assert Count(3) == verbs.resume(engines["two"], graph, "r1")
    nodes = {
        name: [event.node_id for event in events if type(event).__name__ == "NodeStarted"]
        for name, events in seen.items()
    }
    assert {"one": ["a"], "two": ["b", "c"]} == nodes
