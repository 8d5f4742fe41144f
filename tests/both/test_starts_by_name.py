"""Runs that are started by the name of their flow: the process that starts them does not have its code."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pydantic
import pytest

from milepost import (
    END,
    CheckpointNotFoundError,
    Engine,
    Graph,
    InputMismatchError,
    MemoryStore,
    MilepostError,
    NodeError,
    Retry,
    RunCancelled,
    RunExistsError,
    RunNotResumableError,
    SerializeStateError,
    Steps,
    parallel,
    step,
    workflow,
)
from milepost.errors import (
    DeserializeStateError,
    MaxIterationsError,
    OptionError,
    StateTypeError,
    StepError,
    WrongFlowError,
)
from milepost.events import NodeCompleted, StepCompleted
from milepost.model.record import OWNER, START
from milepost.views.journal import is_workflow, read_entries, records_of
from milepost.views.status import RunView, next_places, view_run

ADDED = itertools.count()


@dataclass
class Order:
    id: str
    qty: int = 1
    total: float = 0.0
    number: int = field(default_factory=lambda: next(ADDED))


class Model(pydantic.BaseModel):
    id: str
    qty: int = 1


@dataclass
class Narrow:
    """An order as the code knows it before it is mended."""

    id: int
    qty: int = 1


def packing(state: Any) -> Any:
    if isinstance(state, dict):
        return {**state, "qty": 2}
    if isinstance(state, pydantic.BaseModel):
        return state.model_copy(update={"qty": 2})
    return type(state)(**{**vars(state), "qty": 2})


def repacking(order: Order) -> Order:
    return packing(order)


def graph_of(state: Any = Order, pack: Callable[[Any], Any] = packing, then: str = "") -> Any:
    graph = Graph(state).add_node("pack", pack).set_entry("pack")
    if then:
        return graph.add_node(then, packing).add_edge("pack", then).add_edge(then, END).compile("orders")
    return graph.add_edge("pack", END).compile("orders")


def workflow_of(kind: Any = Order, pack: Callable[[Any], Any] = packing) -> Any:
    @workflow("orders")
    def orders(order: kind, times: int = 2) -> Steps[list[kind]]:
        first = yield from step("pack 0").python(pack, args=(order,))
        again = [] if times < 2 else [(yield from step("pack 1").python(pack, args=(order,)))]
        return [first, *again]

    return orders


def refusing(state: Any) -> Any:
    raise ValueError("sold out")


FLOWS = {
    "dataclass": (graph_of, {"id": "o-1"}, lambda result: result.qty == 2),
    "pydantic": (lambda: graph_of(Model), {"id": "o-1"}, lambda result: result == Model(id="o-1", qty=2)),
    "dict": (lambda: graph_of(dict), {"id": "o-1"}, lambda result: result == {"id": "o-1", "qty": 2}),
    "workflow": (workflow_of, {"order": {"id": "o-1"}}, lambda result: [2, 2] == [order.qty for order in result]),
}
GRAPH, WORKFLOW = ("dataclass", "workflow")
both = pytest.mark.parametrize("front", [GRAPH, WORKFLOW])
KEYS = {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}, "signing_key": {"s": b"signing key, 24 bytes..."}}


def work(engine: Engine) -> None:
    engine.worker().run(until_idle=True)


def view(store: Any, run_id: str = "r") -> RunView:
    latest = store.latest(run_id)
    return view_run(latest, records_of(store, run_id), store.place, is_workflow(store, run_id))


def begun(store: Any, run_id: str = "r") -> list[Any]:
    """The owner records that completed the start record."""
    return [record for record in store.read(run_id, kinds=(OWNER,)) if "fingerprint" in record.fields()]


@pytest.mark.every_store
@pytest.mark.parametrize("keys", [{}, KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize("kind", FLOWS)
def test_a_run_is_started_by_name_and_a_worker_with_the_code_goes_on_with_it(verbs, medium, kind, keys):
    make, given, is_right = FLOWS[kind]
    store, flow = medium.open(**keys), make()
    handle = verbs.call(Engine(store), "start", "orders", given, run_id="r", tags={"team": "shop"})
    (start,) = store.read("r")
    assert {"flow", "epoch"} == start.fields().keys() & {"flow", "epoch", "front", "entry", "shape", "inputs_hash"}
    assert ("ready", {"team": "shop"}) == (handle.info().status, handle.info().tags)
    work(Engine(store, flows=[flow]))
    assert is_right(Engine(store, flows=[flow]).handle("r").result())
    (owner,) = begun(store)
    facts = owner.fields()
    assert ("begin", flow._flow.fingerprint, 1) == (facts["verb"], facts["fingerprint"], facts["flow_version"])
    assert facts.get("entry") == (flow._flow.entry or None)
    assert flow._flow.inputs_hash(flow._flow.input_of(owner.state())) == facts["inputs_hash"]
    assert store.verify("r").ok
    copied = MemoryStore(**keys)
    copied.import_run(store.export("r"))
    assert is_right(Engine(copied, flows=[flow]).resume(flow, "r"))


@pytest.mark.parametrize("kind", FLOWS)
def test_the_run_looks_to_all_that_read_it_like_any_other(verbs, store, kind):
    flow = FLOWS[kind][0]()
    engine = Engine(store, flows=[flow])
    verbs.call(Engine(store), "start", "orders", FLOWS[kind][1], run_id="by name")
    verbs.call(engine, "start", "orders", FLOWS[kind][1], run_id="with the code")
    work(engine)

    def looks(run_id: str) -> list[Any]:
        content, plan = view(store, run_id).content, verbs.plan(engine, flow, run_id)
        parts = [step.step_id for step in content.steps] if kind == WORKFLOW else content.shape
        visits = [(visit.node_id, visit.visit, visit.superseded) for visit in store.history(run_id)]
        events = [type(event).__name__ for event in engine.handle(run_id).events(-1)]
        return [visits, parts, is_workflow(store, run_id), plan.verdict, plan.differences, events]

    assert looks("with the code") == looks("by name")
    assert any("its input is read" in entry.note for entry in read_entries(store, "by name"))


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"id": {1, 2}}, "input.id"),
        ({"id": ["a", ("b",)]}, "input.id[1]"),
        ({"id": datetime(2026, 1, 1, tzinfo=UTC)}, "input.id"),
        ({"a b": {"c": 2**64}}, 'input["a b"].c'),
        ({"id": float("nan")}, "input.id"),
        ({"id": "\ud800"}, "input.id"),
        ({"id": {1: "a"}}, "input.id"),
        ({"id": {"$mp": "date", "v": "2026-01-01"}}, "input.id"),
        (Order("o-1"), "input"),
    ],
)
def test_what_is_no_plain_json_is_refused_by_its_path(verbs, store, given, path):
    with pytest.raises(SerializeStateError, match="is no plain JSON") as caught:
        verbs.call(Engine(store), "start", "orders", given, run_id="r")
    assert (path, []) == (caught.value.path, store.list_runs())


def test_an_input_that_holds_itself_is_refused(store):
    given: dict[str, Any] = {}
    given["id"] = given
    with pytest.raises(SerializeStateError, match="holds itself"):
        Engine(store).start("orders", given)


def test_keywords_and_one_argument_are_the_same_input(verbs, store):
    engine = Engine(store)
    verbs.call(engine, "start", "orders", {"id": "o-1", "qty": 3}, run_id="one")
    verbs.call(engine, "start", "orders", id="o-1", qty=3, run_id="keywords")
    verbs.call(engine, "start", "orders", id="o-1", inputs={"qty": 3}, run_id="both")
    verbs.call(engine, "start", "orders", run_id="none")
    states = [store.read(run_id)[0].state() for run_id in ("one", "keywords", "both", "none")]
    assert [b'{"id":"o-1","qty":3}'] * 3 + [b"{}"] == states


@pytest.mark.parametrize(
    ("args", "options", "told"),
    [
        (({}, {}), {}, "give its input once"),
        (({},), {"id": 1}, "give its input once"),
        ((), {"id": 1, "inputs": {"id": 2}}, "give its input once"),
        (({},), {"if_exists": "resume"}, "takes 'error' or 'return'"),
        (({},), {"turn_id": "t"}, "turn_id"),
        (({},), {"at": datetime(2026, 1, 1)}, "zone"),
    ],
)
@pytest.mark.parametrize("flows", [[], [graph_of()]], ids=["without the code", "with the code"])
def test_arguments_that_a_start_by_name_does_not_take(verbs, store, flows, args, options, told):
    with pytest.raises(OptionError, match=told):
        verbs.call(Engine(store, flows=flows), "start", "orders", *args, **options)
    assert [] == store.list_runs()


@pytest.mark.parametrize("how", ["flow", "known name", "other name"])
def test_a_start_refuses_the_options_that_only_an_execution_uses(verbs, store, how):
    graph = Graph(dict).add_node("a", lambda state: state).add_edge("a", END).set_entry("a").compile("orders")
    engine = Engine(store, flows=[graph], retry=Retry(3), deps="bank", run_timeout=5)
    flow = {"flow": graph, "known name": "orders", "other name": "others"}[how]
    given = {
        "retry": Retry(3), "timeout": 1, "executor": None, "checkpoint_failure_fatal": True, "on_wait": "block",
        "stop_before": "a", "stop_after": "a", "isolate": True, "max_iterations": 1, "run_timeout": 1, "max_parallel": 1,
        "lease": 60, "max_crashes": 1, "deps": "bank", "logger": None, "hooks": [print],
    }  # fmt: skip
    for name, value in given.items():
        advice = rf"so {name} has no effect there: give it to the worker's engine, as in .*{name}=\.\.\.\)"
        with pytest.raises(OptionError, match=advice) as caught:
            verbs.call(engine, "start", flow, {}, **{name: value})
        assert ("node or step" in str(caught.value)) == (name in {"retry", "timeout", "executor"})
    with pytest.raises(OptionError, match="so retry, deps have no effect there: give them to"):
        verbs.call(engine, "start", flow, {}, retry=None, deps=None)
    assert [] == store.list_runs()
    taken = {"compress": True, "warn_size": 10**6, "max_state_size": 10**6, "tags": {"team": "shop"}}
    verbs.call(engine, "start", flow, {}, **taken, on_locked="wait", run_timeout=5)
    assert [{"team": "shop"}] == [info.tags for info in store.list_runs()]


def test_a_start_that_makes_a_run_ready_takes_what_decides_about_that(verbs, store):
    graph = Graph(int).add_node("a", verbs.node(lambda state: state + 1)).set_entry("a")
    flow = graph.add_conditional_edge("a", lambda state: END if state == 3 else "a", [END, "a"]).compile("counting")
    engine = Engine(store, flows=[flow], max_iterations=2)
    with pytest.raises(MaxIterationsError):
        verbs.run(flow, 0, store=store, run_id="r", max_iterations=2)
    with pytest.raises(MaxIterationsError, match="resume with a larger max_iterations"):
        verbs.call(engine, "start", flow, 0, run_id="r", if_exists="resume")
    verbs.call(engine, "start", flow, 0, run_id="r", if_exists="resume", max_iterations=5, max_crashes=None)
    assert "ready" == store.get_run("r").info.status


def test_an_input_may_be_called_like_an_option_of_the_execution(verbs, store):
    @workflow("orders")
    def orders(retry: int) -> Steps[int]:
        return (yield from step("a").python(lambda: retry))

    engine = Engine(store, flows=[orders])
    handles = [verbs.call(engine, "start", flow, inputs={"retry": 3}) for flow in (orders, "orders")]
    engine.worker().run(until_idle=True)
    assert [3, 3] == [handle.result(timeout=5) for handle in handles]


def test_a_name_that_no_flow_has_is_refused(store):
    for name in ("", " ", "x" * 600):
        with pytest.raises(MilepostError):
            Engine(store).start(name, {})


def test_a_run_is_not_taken_before_its_time(verbs, medium, clock):
    store = medium.open(clock=clock)
    engine = Engine(store, flows=[graph_of()], clock=clock)
    later = datetime.fromtimestamp(clock.time(), UTC) + timedelta(hours=1)
    handle = verbs.call(Engine(store, clock=clock), "start", "orders", {"id": "o-1"}, at=later)
    work(engine)
    assert "ready" == handle.info().status
    clock.advance(3601)
    work(engine)
    assert "finished" == handle.info().status


@both
def test_a_run_that_failed_has_the_fingerprint_of_the_code_that_took_it(verbs, store, front):
    make, given, _ = FLOWS[front]
    flow = make(pack=refusing)
    verbs.call(Engine(store), "start", "orders", given, run_id="r")
    work(Engine(store, flows=[flow]))
    assert flow._flow.fingerprint == store.get_run("r").info.fingerprint


# -- an engine that has the flow ---------------------------------------------------------------------------


@both
def test_an_engine_that_has_the_flow_checks_and_encodes_the_input_at_once(verbs, store, front):
    make, given, is_right = FLOWS[front]
    flow = make()
    engine = Engine(store, flows=[flow])
    handle = verbs.call(engine, "start", "orders", given, run_id="r", tags={"team": "shop"})
    (start,) = store.read("r")
    assert (flow._flow.fingerprint, {"team": "shop"}) == (start.fields()["fingerprint"], handle.info().tags)
    work(engine)
    assert is_right(handle.result())
    assert [] == begun(store)
    wrong = {"id": 1} if front == GRAPH else {"order": {"id": 1}}
    with pytest.raises(StateTypeError, match="should be str, but it is an integer") as caught:
        verbs.call(engine, "start", "orders", wrong, run_id="other")
    assert caught.value.path == ("input.id" if front == GRAPH else "input.order.id")
    for more in ({**given, "more": 1}, [] if front == GRAPH else {}):
        with pytest.raises(StateTypeError, match="the input does not fit flow 'orders'"):
            verbs.call(engine, "start", "orders", more, run_id="other")


def test_a_name_that_the_engine_does_not_have_is_warned_of_once(verbs, store, caplog):
    engine = Engine(store, flows=[graph_of()])
    for run_id in ("one", "two"):
        verbs.call(engine, "start", "elsewhere", {}, run_id=run_id)
    assert ["one"] == [record.run_id for record in caplog.records if "not among the flows" in record.getMessage()]
    assert ["ready", "ready"] == [info.status for info in store.list_runs()]


# -- an input that does not fit ----------------------------------------------------------------------------


@pytest.mark.every_store
@both
@pytest.mark.parametrize("how", ["resume", "requeue"])
def test_an_input_that_does_not_fit_blocks_the_run_until_the_code_is_mended(verbs, store, front, how):
    make, given, is_right = FLOWS[front]
    narrow = (graph_of if front == GRAPH else workflow_of)(Narrow)
    handle = Engine(store).start("orders", given, run_id="r")
    work(Engine(store, flows=[narrow]))
    info = handle.info()
    assert ("blocked", "input") == (info.status, info.blocked_by)
    path = "input.id" if front == GRAPH else "input.order.id"
    assert f"{path} should be int, but it is the text 'o-1'" in info.reason
    assert "mend the cause, then milepost resume r [TARGET] goes on" in view(store).why
    with pytest.raises(DeserializeStateError, match=path):
        verbs.call(Engine(store), "resume", narrow, "r")
    with pytest.raises(RunNotResumableError, match="mend the cause, then resume"):
        handle.result(raw=True)
    assert ("refuse", "blocked") == (Engine(store).plan_resume(narrow, "r").verdict, handle.info().status)
    assert store.verify("r").ok
    mended = Engine(store, flows=[make()])
    if how == "resume":
        result = verbs.call(mended, "resume", mended.flows["orders"], "r")
        assert ["resume"] == [owner.fields()["verb"] for owner in begun(store)]
    else:
        verbs.call(Engine(store), "requeue", "r")
        work(Engine(store, flows=[narrow]))
        assert "blocked" == handle.info().status
        verbs.call(Engine(store), "requeue", "r")
        work(mended)
        result = mended.handle("r").result()
    assert is_right(result)
    assert (None, True) == (handle.info().blocked_by, store.verify("r").ok)


def test_a_state_that_cannot_be_recorded_once_it_is_decoded_blocks_the_run(store):
    handle = Engine(store).start("orders", {"id": "x" * 500}, run_id="r")
    work(Engine(store, flows=[graph_of()], max_state_size=100))
    assert ("blocked", "input") == (handle.info().status, handle.info().blocked_by)
    work(Engine(store, flows=[graph_of()]))
    assert "blocked" == handle.info().status


@both
def test_a_cancel_that_is_open_ends_a_run_whose_input_does_not_fit(store, front):
    flow = (graph_of if front == GRAPH else workflow_of)(Narrow)
    handle = Engine(store).start("orders", FLOWS[front][1], run_id="r")
    store.request_cancel("r", "not needed", None)
    assert "ready" == handle.info().status
    work(Engine(store, flows=[flow]))
    assert ("cancelled", None) == (handle.info().status, handle.info().blocked_by)
    assert store.verify("r").ok


# -- runs that exist ---------------------------------------------------------------------------------------


@both
def test_a_start_that_is_repeated_compares_the_inputs_as_json(verbs, store, front):
    make, given, _ = FLOWS[front]
    engine = Engine(store)
    for is_done in (False, True):
        more = {"qty" if front == GRAPH else "times": 1}
        engine.start("orders", {**given, **more}, run_id="r", if_exists="return")
        same = {**more, **given}
        assert "r" == verbs.call(engine, "start", "orders", same, run_id="r", if_exists="return").run_id
        with pytest.raises(RunExistsError):
            verbs.call(engine, "start", "orders", same, run_id="r")
        with pytest.raises(InputMismatchError, match=r"recorded .*, given .*: choose another run_id"):
            verbs.call(engine, "start", "orders", {"id": 1}, run_id="r", if_exists="return")
        verbs.call(engine, "start", "orders", {"id": 1}, run_id="r", if_exists="return", compare_inputs=False)
        with pytest.raises(WrongFlowError):
            verbs.call(engine, "start", "others", same, run_id="r", if_exists="return")
        if not is_done:
            work(Engine(store, flows=[make()]))
    assert 1 == len(store.list_runs())


@both
def test_a_start_with_the_code_compares_its_input_with_that_of_a_run_that_was_started_by_name(verbs, store, front):
    flow = FLOWS[front][0]()
    engine = Engine(store, flows=[flow])
    order = {"id": "o-1", "number": 0}
    Engine(store).start("orders", order if front == GRAPH else {"order": order}, run_id="r")
    same, other = flow.bind(Order("o-1", number=0)), flow.bind(Order("o-2", number=0))
    for _ in range(2):
        verbs.call(engine, "start", same, run_id="r", if_exists="return")
        with pytest.raises(InputMismatchError):
            verbs.call(engine, "start", other, run_id="r", if_exists="return")
        work(engine)
    Engine(store).start("orders", {"id": 7}, run_id="wrong")
    with pytest.raises(InputMismatchError, match="does not fit"):
        verbs.call(engine, "start", other, run_id="wrong", if_exists="return")


# -- before the first worker -------------------------------------------------------------------------------


@both
def test_a_run_that_no_worker_knows_stays_ready_and_says_so(verbs, store, front):
    make, given, is_right = FLOWS[front]
    flow = make()
    handle = Engine(store).start("orders", given, run_id="r")
    engine = Engine(store, flows=[flow])
    work(Engine(store, flows=[Graph(int).add_node("n", int).set_entry("n").add_edge("n", END).compile("others")]))
    assert "ready" == handle.info().status
    assert "no worker knows flow 'orders' so far" in view(store).why
    assert (("",), True, []) == (next_places(store, handle.info()), store.verify("r").ok, store.history("r"))
    plan = verbs.plan(engine, flow, "r", strict=True)
    assert ("continue", ()) == (plan.verdict, plan.differences)
    assert verbs.call(engine.handle("r"), "state") is not None
    copied = MemoryStore()
    copied.import_run(store.export("r"))
    assert is_right(verbs.call(Engine(copied), "resume", flow, "r"))
    fork = verbs.call(engine, "fork_run", flow, "r", new_run_id="fork")
    assert is_right(verbs.call(engine, "resume", flow, fork))
    assert [1, 1] == [len(begun(copied)), len(begun(store, "fork"))]
    verbs.call(Engine(store), "requeue", "r")
    assert "ready" == handle.info().status
    assert "cancelled" == verbs.call(handle, "cancel", "no")
    with pytest.raises(RunCancelled):
        handle.result(raw=True)


def test_a_fork_with_another_state_begins_with_that(verbs, store):
    flow = graph_of(then="send")
    engine = Engine(store, flows=[flow])
    Engine(store).start("orders", {"id": "o-1"}, run_id="r")
    fork = verbs.call(engine, "fork_run", flow, "r", state_override=lambda state: Order("o-9", number=state.number))
    assert "o-9" == verbs.call(engine, "resume", flow, fork, stop_after="pack", full=True).state.id
    assert "o-9" == verbs.call(engine, "resume", flow, fork).id
    assert "o-9" == verbs.call(engine, "resume_from", flow, fork, "pack", rerun=True).id
    assert store.verify(fork).ok


def test_a_turn_may_come_before_the_first_worker(verbs, store):
    flow = graph_of()
    Engine(store).start("orders", {"id": "o-1"}, run_id="r")
    result = verbs.call(Engine(store), "run", flow, Order("o-2"), run_id="r", if_exists="continue", unfinished="drop")
    assert ("o-2", 1) == (result.id, len(begun(store)))
    assert "o-2" == verbs.call(Engine(store), "resume", flow, "r").id


@both
def test_a_default_is_made_once(verbs, store, front):
    """An input lacks what has a default. Whoever goes on with the run later has the values of its first owner."""
    seen: list[int] = []

    def pack(order: Order) -> Order:
        seen.append(order.number)
        if len(seen) == 1:
            raise ValueError("not yet")
        return packing(order)

    flow = (graph_of if front == GRAPH else workflow_of)(pack=pack)
    engine = Engine(store, flows=[flow])
    Engine(store).start("orders", FLOWS[front][1], run_id="r")
    work(engine)
    verbs.call(engine, "retry", flow, "r")
    verbs.call(engine, "resume_from", flow, "r", "pack" if front == GRAPH else "pack 0", rerun=True)
    assert 1 == len({*seen}) < len(seen)


def test_a_flow_that_changed_after_the_first_worker_is_described(verbs, store):
    stopped = Engine(store, flows=[graph_of(pack=refusing)])
    Engine(store).start("orders", {"id": "o-1"}, run_id="r")
    work(stopped)
    changed = graph_of(then="send")
    plan = verbs.plan(Engine(store), changed, "r")
    assert any("send" in told for told in plan.differences)
    assert ("start", "pack") == (plan.source, plan.next_node)


# -- results without the code --------------------------------------------------------------------------------


def test_results_and_outputs_are_plain_json_without_the_code(verbs, store):
    @workflow("many", types=[Order])
    def many(n: int) -> Steps[Order]:
        yield step("each").map(repacking, [Order("a", number=0), Order("b", number=0)])
        yield parallel("all", step("x").python(repacking, args=(Order("c", number=0),)))
        yield step("inner").subworkflow(graph_of(dict), {"id": "d"})
        return Order("z", n, number=0)

    far = Engine(store)
    far.start("many", n=4, run_id="w")
    far.start("orders", {"id": "o-1", "number": 0}, run_id="g")
    work(Engine(store, flows=[many, graph_of()]))
    order = {"id": "o-1", "qty": 2, "total": 0.0, "number": 0}
    handle, graph = far.handle("w"), far.handle("g")
    assert {**order, "id": "z", "qty": 4} == verbs.call(handle, "result", raw=True)
    assert order == verbs.call(graph, "result", raw=True) == verbs.call(graph, "output", "pack", raw=True)
    assert ["a", "b"] == [one["id"] for one in verbs.call(handle, "output", "each", raw=True)]
    assert "b" == verbs.call(handle, "output", "each/1", raw=True)["id"]
    assert "c" == verbs.call(handle, "output", "all", raw=True)["child_results"][0]["output"]["id"]
    assert {"id": "d", "qty": 2} == verbs.call(handle, "output", "inner/pack", raw=True)
    with pytest.raises(CheckpointNotFoundError):
        verbs.call(graph, "output", "no such node", raw=True)
    with pytest.raises(OptionError, match="does not know"):
        verbs.call(graph, "result")
    Engine(store).resume_from(graph_of(), "g", "pack", rerun=True, state_override=lambda state: Order("o-3", number=0))
    assert "o-3" == verbs.call(graph, "result", raw=True)["id"]


@both
def test_events_are_told_without_the_code(verbs, store, front):
    flow = (graph_of if front == GRAPH else workflow_of)()
    far, near = Engine(store), Engine(store, flows=[flow])
    far.start("orders", FLOWS[front][1], run_id="r")
    work(near)
    events = verbs.events(far.handle("r"), "events", -1)
    expected = verbs.events(near.handle("r"), "events", -1)
    assert [type(event) for event in expected] == [type(event) for event in events]
    assert [event.sequence for event in expected] == [event.sequence for event in events]
    if front == GRAPH:
        assert "o-1" == events[0].input["id"]
        assert ["o-1"] == [event.state["id"] for event in events if isinstance(event, NodeCompleted)]
    else:
        assert "o-1" == events[0].inputs["order"]["id"]
        steps = [event for event in events if isinstance(event, StepCompleted)]
        assert [("pack 0", True), ("pack 1", True)] == [(each.step_name, each.result.success) for each in steps]
        assert ["o-1", "o-1"] == [order["id"] for order in events[-1].result.output]


@both
def test_the_error_of_a_run_that_failed_needs_no_code(verbs, store, front):
    flow = (graph_of if front == GRAPH else workflow_of)(pack=refusing)
    far = Engine(store)
    far.start("orders", FLOWS[front][1], run_id="r")
    work(Engine(store, flows=[flow]))
    with pytest.raises(NodeError if front == GRAPH else StepError, match="sold out") as caught:
        verbs.call(far.handle("r"), "result", raw=True)
    given = caught.value.state
    assert "o-1" == (given if front == GRAPH else given["order"])["id"]
    with pytest.raises(CheckpointNotFoundError):
        verbs.call(far.handle("r"), "output", "pack 0", raw=True)


def test_a_raw_result_is_waited_for_no_longer_than_its_timeout(verbs, store):
    handle = Engine(store).start("orders", {"id": "o-1"})
    with pytest.raises(TimeoutError):
        verbs.call(handle, "result", 0, raw=True)
    assert START == store.read(handle.run_id)[-1].kind
