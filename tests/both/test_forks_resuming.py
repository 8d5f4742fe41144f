"""Runs with a fork open: gone on with from anywhere, with changed code, damaged records, and in another store."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import pytest
from forking import Basket, Once, builder, few, noting, visits

from milepost import END, BranchError, FlowChangedError, Graph, MemoryStore, NoCheckpointFoundError, NodeError, Retry
from milepost.errors import CheckpointCorruptError, OptionError, RunStopped, StateTypeError
from milepost.events import CheckpointSaved, NodeCompleted, NodeStarted
from milepost.model.record import CHECKPOINT, OWNER

EDGES = "fa ax xj fb by yj"


@pytest.fixture
def graph(verbs, log):
    return builder(verbs, log)


def live(store: Any, run_id: str = "r") -> list[str]:
    return [f"{info.node_id}#{info.visit}" for info in store.history(run_id) if not info.superseded]


def superseded(store: Any, run_id: str = "r") -> list[str]:
    return sorted(f"{info.node_id}#{info.visit}" for info in store.history(run_id) if info.superseded)


def numbered(name: str) -> Any:
    """Notes the name with the state's `n`, which an override changes."""
    return lambda state: noting(f"{name}{state.n}")(state)


# -- resume_from -------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_resume_from_a_node_of_a_branch_keeps_the_results_of_its_siblings(verbs, store, graph, log):
    flow = graph(EDGES)
    verbs.run(flow, Basket(), store=store, run_id="r")
    log.clear()
    assert list("faxbyj") == verbs.resume_from(flow, store, "r", "a").seen
    assert list("xj") == log
    assert ["j#1", "x#1"] == superseded(store)
    assert {"f#1", "a#1", "b#1", "y#1", "x#2", "j#2"} == set(live(store))
    log.clear()
    assert (list("faxbyj"), []) == (verbs.resume(flow, store, "r").seen, log)
    assert store.verify("r").ok


@few
def test_resume_from_with_rerun_runs_the_node_itself_again(verbs, store, graph, log):
    flow = graph(EDGES)
    verbs.run(flow, Basket(), store=store, run_id="r")
    for turn in (2, 3):
        log.clear()
        assert list("faxbyj") == verbs.resume_from(flow, store, "r", "a", rerun=True).seen
        assert list("axj") == log
        assert {"f#1", "b#1", "y#1", f"a#{turn}", f"x#{turn}", f"j#{turn}"} == set(live(store))


@pytest.mark.parametrize("deadly", ["x", "b"])
def test_a_branch_that_failed_is_done_again_after_a_resume_from_beside_it_and_a_crash(verbs, timed, clock, log, deadly):
    bodies = {"b": Once(ValueError("once"), noting("b")), "x": noting("x")}
    flow = builder(verbs, log)(EDGES, bodies)
    with pytest.raises(NodeError):
        verbs.run(flow, Basket(), store=timed, run_id="r", clock=clock)
    bodies[deadly] = Once(verbs.Killed(), noting(deadly))
    flow, log[:] = builder(verbs, log)(EDGES, bodies), []
    with pytest.raises(verbs.Killed):
        verbs.resume_from(flow, timed, "r", "a", clock=clock)
    clock.advance(31)
    assert {*"faxbyj"} == {*verbs.resume(flow, timed, "r", clock=clock, takeover=True).seen}


@few
@pytest.mark.parametrize("node", ["x", "j"])
def test_a_visit_that_is_run_again_has_a_new_number_and_all_its_attempts(verbs, store, graph, log, node):
    flow = graph(EDGES, {node: Once(ValueError("once"), noting(node))}, {node: {"retry": Retry(2, backoff=0)}})
    verbs.run(flow, Basket(), store=store, run_id="r")
    flow = graph(EDGES, {node: Once(ValueError("again"), noting(node))}, {node: {"retry": Retry(2, backoff=0)}})
    log.clear()
    assert list("faxbyj") == verbs.resume_from(flow, store, "r", node, rerun=True).seen
    assert [node, node] == log[:2]
    assert f"{node}#2" in live(store)
    assert [1, 2] == [r.visit for r in store.read("r", kinds=("failure",))]


@few
def test_resume_from_reaches_only_the_branch_that_it_names(verbs, store, graph):
    flow = graph(
        "fa ax xj fb by yj", {name: numbered(name) for name in "axby"}, {"j": {"merge": {"n": max}}}, partial=True
    )
    verbs.run(flow, Basket(), store=store, run_id="r")
    result = verbs.resume_from(flow, store, "r", "a", state_override=lambda state: dataclasses.replace(state, n=7))
    assert (["f", "a0", "x7", "b0", "y0", "j"], 7) == (result.seen, result.n)
    assert ["f", "a0", "x7", "b0", "y0", "j"] == verbs.resume(flow, store, "r").seen


@few
def test_an_override_in_one_branch_outlives_a_resume_from_another_one(verbs, store, graph):
    flow = graph("fa aj fb bj", {name: numbered(name) for name in "ab"})
    verbs.run(flow, Basket(), store=store, run_id="r")
    verbs.resume_from(flow, store, "r", "a", state_override=lambda state: dataclasses.replace(state, n=7))
    result = verbs.resume_from(flow, store, "r", "b")
    assert (7, ["f", "a0", "b0", "j"]) == (result.n, result.seen)
    assert (7, 7) == (verbs.resume_from(flow, store, "r", "b", rerun=True).n, verbs.resume(flow, store, "r").n)
    assert 0 == verbs.resume_from(flow, store, "r", "a").n


@few
def test_an_override_in_a_branch_is_kept_where_the_run_fails_right_after_it(verbs, store, graph):
    flow = graph(EDGES)
    verbs.run(flow, Basket(), store=store, run_id="r")

    def merge(base: Basket, branches: Mapping[str, Basket]) -> Basket:
        raise ValueError("no")

    failing = graph(EDGES, options={"j": {"merge": merge}})
    with pytest.raises(NodeError, match="no"):
        options = {"state_override": lambda state: dataclasses.replace(state, n=7)}
        verbs.resume_from(failing, store, "r", "x", **options)
    result = verbs.resume(flow, store, "r")
    assert (7, list("faxbyj")) == (result.n, result.seen)


@few
def test_an_override_in_a_branch_must_give_a_state(verbs, store, graph):
    flow = graph(EDGES)
    verbs.run(flow, Basket(), store=store, run_id="r")
    before = store.read("r")
    with pytest.raises(StateTypeError):
        verbs.resume_from(flow, store, "r", "a", state_override=lambda state: 5)
    assert before == store.read("r")


@few
def test_resume_from_an_earlier_visit_of_a_loop_in_a_branch(verbs, store, graph, log):
    def again(state: Basket) -> str:
        return "a" if state.seen.count("a") < 3 else "j"

    flow = graph("fa fb bj", routes={"a": (again, ["a", "j"])})
    verbs.run(flow, Basket(), store=store, run_id="r")
    log.clear()
    assert ["f", "a", "a", "a", "b", "j"] == verbs.resume_from(flow, store, "r", "a", visit=2).seen
    assert list("aj") == log
    assert {"f#1", "a#1", "a#2", "a#4", "b#1", "j#2"} == set(live(store))
    with pytest.raises(NoCheckpointFoundError):
        verbs.resume_from(flow, store, "r", "a", visit=3)


@few
def test_resume_from_an_earlier_pass_of_a_loop_over_a_fork(verbs, store, graph, log):
    turning = numbered("f")
    flow = graph(
        "fa fb aj bj",
        {"f": lambda state: turning(dataclasses.replace(state, n=state.n + 1)), "a": numbered("a"), "b": numbered("b")},
        routes={"j": (lambda state: "f" if state.n < 3 else END, ["f", END])},
    )
    whole = verbs.run(flow, Basket(), store=store, run_id="r").seen
    log.clear()
    assert whole == verbs.resume_from(flow, store, "r", "a", visit=2, rerun=True).seen
    assert ["a", "j", "f", "j"] == [name for name in log if name != "b"][:4] or "b" in log
    assert 1 == log.count("b")
    assert {"a#4", "a#5", "b#2", "b#4"} <= set(live(store))


@few
def test_reroute_asks_the_router_in_a_branch_again(verbs, store, graph, log):
    def where(state: Basket) -> str:
        log.append("asked")
        return "x" if state.n else "j"

    flow = graph("fb bj fa xj", routes={"a": (where, ["x", "j"])})
    verbs.run(flow, Basket(), store=store, run_id="r")
    log.clear()
    options = {"state_override": lambda state: dataclasses.replace(state, n=1)}
    assert ["f", "b", "a", "j"] == verbs.resume_from(flow, store, "r", "a", reroute=False, **options).seen
    assert ["j"] == log
    log.clear()
    assert ["f", "b", "a", "x", "j"] == verbs.resume_from(flow, store, "r", "a", **options).seen
    assert ["asked", "x", "j"] == log


@few
def test_the_late_answer_of_a_router_in_a_branch_is_not_asked_for_again(verbs, store, graph, log):
    asked = [ValueError("lost")]

    def where(state: Basket) -> str:
        log.append("asked")
        if asked:
            raise asked.pop()
        return "x"

    flow = graph("fb bj fa xj", routes={"a": (where, ["x", "j"])})
    with pytest.raises(BranchError):
        verbs.run(flow, Basket(), store=store, run_id="r")
    verbs.resume(flow, store, "r")
    log.clear()
    assert ["f", "b", "a", "x", "j"] == verbs.resume_from(flow, store, "r", "a").seen
    assert ["x", "j"] == log


@few
def test_resume_from_inside_an_inner_fork_keeps_both_kinds_of_siblings(verbs, store, graph, log):
    flow = graph("fa aj fb bc bd ci di ij")
    whole = verbs.run(flow, Basket(), store=store, run_id="r").seen
    log.clear()
    assert whole == verbs.resume_from(flow, store, "r", "c", rerun=True).seen
    assert list("cij") == log
    assert {"a#1", "b#1", "d#1", "c#2", "i#2", "j#2"} <= set(live(store))
    log.clear()
    assert whole == verbs.resume_from(flow, store, "r", "b").seen
    assert ["c", "d", "i", "j"] == sorted(log)


@few
def test_a_graph_inside_a_branch_is_run_again_as_a_whole(verbs, store, graph, log):
    inner = graph("st")
    flow = Graph(Basket)
    for name in "faj":
        flow.add_node(name, noting(name))
    flow.add_subgraph("sub", inner).add_edge("f", "a").add_edge("f", "sub").add_edge("a", "j").add_edge("sub", "j")
    compiled = flow.add_edge("j", END).set_entry("f").compile("around")
    verbs.run(compiled, Basket(), store=store, run_id="r")
    log.clear()
    assert list("fastj") == verbs.resume_from(compiled, store, "r", "sub", rerun=True).seen
    assert list("st") == log


@few
def test_an_override_needs_a_branch_where_a_fork_is_open(verbs, store, graph, log):
    flow = graph(EDGES)
    with pytest.raises(RunStopped):
        verbs.run(flow, Basket(), store=store, run_id="r", stop_before="x")
    log.clear()
    with pytest.raises(OptionError, match="resume_from") as caught:
        verbs.resume(flow, store, "r", state_override=lambda state: state)
    assert ("state_override", []) == (caught.value.option, log)


# -- plans and events --------------------------------------------------------------------------------------


@few
def test_a_plan_tells_where_each_branch_goes_on(verbs, store, graph, log):
    flow = graph("fa ax xj fb bc bd ci dy yi ij fe ej")
    with pytest.raises(RunStopped):
        verbs.run(flow, Basket(), store=store, run_id="r", stop_before=["x", "y", "c"])
    log.clear()
    plan = verbs.plan(flow, store, "r")
    assert ("continue", ("x", "c", "y"), "f", "j") == (plan.verdict, plan.repeated, plan.from_node, plan.next_node)
    assert [] == log
    whole = verbs.resume(flow, store, "r", full=True)
    assert (("x", "c", "y"), list("faxbcdyiej")) == (whole.resumed.repeated, whole.state.seen)


@few
def test_events_tell_of_every_node_of_every_branch(verbs, store, graph):
    flow = graph(EDGES)
    told = verbs.stream(flow, Basket(), store=store, run_id="r")
    for kind in (NodeStarted, NodeCompleted, CheckpointSaved):
        assert sorted("faxbyj") == sorted(event.node_id for event in told if isinstance(event, kind))
    order = [(type(event).__name__, event.node_id) for event in told if isinstance(event, (NodeStarted, NodeCompleted))]
    assert order.index(("NodeCompleted", "a")) < order.index(("NodeStarted", "x"))
    assert max(order.index(("NodeCompleted", name)) for name in "xy") < order.index(("NodeStarted", "j"))


@few
def test_a_stream_that_is_broken_off_in_a_fork_stops_at_a_durable_point(verbs, store, graph, log):
    flow = graph(EDGES)
    verbs.stream(
        flow,
        Basket(),
        store=store,
        run_id="r",
        max_parallel=1,
        until=lambda event: isinstance(event, CheckpointSaved) and event.node_id == "a",
    )
    assert "interrupted" == store.get_run("r").info.status
    done = set(visits(store))
    log.clear()
    assert list("faxbyj") == verbs.resume(flow, store, "r").seen
    assert not {name[0] for name in done} & set(log)


# -- changed code ------------------------------------------------------------------------------------------


@pytest.fixture
def halted(verbs, store, graph):
    """A run whose branches stand before x and y."""
    flow = graph(EDGES)
    with pytest.raises(RunStopped):
        verbs.run(flow, Basket(), store=store, run_id="r", stop_before=["x", "y"])
    return flow


@few
@pytest.mark.parametrize(
    ("edges", "gone"),
    [
        ("fa aj fb by yj", "x"),  # the next node of a branch
        ("fb by yj bz zj", "a"),  # a branch
        ("fa ax xk fb by yk", "j"),  # the join
        ("fa ax xj", "b"),  # the fork
        ("ga ax xj gb by yj", "f"),  # the node that it follows
        ("fa ay yj fb bx xj", "x"),  # in the other branch
    ],
)
def test_a_changed_fork_is_refused_while_it_is_open(verbs, store, graph, halted, log, edges, gone):
    log.clear()
    before = store.read("r")
    with pytest.raises(FlowChangedError, match=f"'{gone}'|{gone}") as caught:
        verbs.resume(graph(edges), store, "r")
    assert caught.value.differences
    assert ([], before) == (log, store.read("r"))
    assert "refuse" == verbs.plan(graph(edges), store, "r").verdict
    assert list("faxbyj") == verbs.resume(halted, store, "r").seen


@few
def test_an_inner_fork_that_is_gone_is_refused_while_it_is_open(verbs, store, graph, log):
    flow = graph("fa aj fb bc bd ci di ij")
    with pytest.raises(RunStopped):
        verbs.run(flow, Basket(), store=store, run_id="r", stop_after="b")
    log.clear()
    for edges in ("fa aj fb bi ij", "fa aj fb bc be ci ei ij"):
        with pytest.raises(FlowChangedError, match="'b'"):
            verbs.resume(graph(edges), store, "r")
    assert [] == log
    assert list("fabcdij") == verbs.resume(flow, store, "r").seen


@few
def test_a_branch_that_is_new_runs_with_those_that_are_open(verbs, store, graph, halted):
    result = verbs.resume(graph("fa ax xj fb by yj fn nj"), store, "r", full=True)
    assert (list("faxbynj"), True) == (result.state.seen, bool(result.resumed.differences))


@few
def test_a_change_beside_an_open_fork_is_told(verbs, store, graph, halted):
    result = verbs.resume(graph("fa ax xj fb by yj jk"), store, "r", full=True)
    assert (list("faxbyjk"), True) == (result.state.seen, bool(result.resumed.differences))
    assert list("faxbyjk") == verbs.resume(graph("fa ax xj fb by yj jk"), store, "r").seen


@few
@pytest.mark.parametrize("old", "faxbj")
def test_a_renamed_node_is_gone_on_with(verbs, store, graph, halted, log, old):
    edges = EDGES.replace(old, "q")
    log.clear()
    result = verbs.resume(graph(edges), store, "r", rename={old: "q"})
    expected = [name if name in "fab" else name.replace(old, "q") for name in "faxbyj"]
    assert expected == result.seen
    assert not {"f", "a", "b", "q"} & set(log) - set({"x": "q", "j": "q"}.get(old, ""))
    log.clear()
    assert expected == verbs.resume(graph(edges), store, "r", rename={old: "q"}).seen
    assert [] == log


# -- damage ------------------------------------------------------------------------------------------------


class Damaged:
    """Gives the records whose numbers are in `damaged` with another content than was written."""

    damaged: tuple[int, ...] = ()

    def read(self, *args: Any, **options: Any) -> Any:
        return [self._shown(record) for record in super().read(*args, **options)]  # type: ignore[misc]

    def latest(self, *args: Any, **options: Any) -> Any:
        found = super().latest(*args, **options)  # type: ignore[misc]
        point = None if found.point is None else self._shown(found.point)
        return found._replace(point=point, tail=tuple(map(self._shown, found.tail)))

    def _shown(self, record: Any) -> Any:
        if record.sequence not in self.damaged:
            return record
        return record._replace(header=record.header.replace(b'"epoch":', b'"epoch": '))


@few
@pytest.mark.parametrize("node", list("axby"))
def test_a_damaged_record_in_a_branch_is_passed_over_where_that_is_asked(verbs, medium, graph, log, node):
    store = medium.open(Damaged)
    flow = graph(EDGES)
    with pytest.raises(RunStopped):
        verbs.run(flow, Basket(), store=store, run_id="r", stop_before="j")
    store.damaged = tuple(r.sequence for r in store.read("r", kinds=(CHECKPOINT,)) if r.node_id == node)
    log.clear()
    with pytest.raises(CheckpointCorruptError) as caught:
        verbs.resume(flow, store, "r")
    assert (store.damaged[0], []) == (caught.value.sequence, log)
    result = verbs.resume(flow, store, "r", on_corrupt="previous", full=True)
    assert list("faxbyj") == result.state.seen
    assert any("damaged" in told for told in result.resumed.differences)
    assert node in log
    assert list("faxbyj") == verbs.resume(flow, store, "r").seen


# -- elsewhere ---------------------------------------------------------------------------------------------


def test_a_run_with_an_open_fork_goes_on_where_it_is_imported(verbs, store, graph, halted, log):
    other = MemoryStore()
    other.import_run(store.export("r"))
    log.clear()
    assert list("faxbyj") == verbs.resume(halted, other, "r").seen
    assert list("jxy") == sorted(log)
    back = MemoryStore()
    back.import_run(other.export("r"))
    assert list("faxbyj") == verbs.resume(halted, back, "r").seen


class Chat(TypedDict, total=False):
    messages: Annotated[list[str], operator.add]


@pytest.mark.stores("memory", "sqlite", "file")
def test_a_store_with_a_key_shows_nothing_of_what_branches_returned(verbs, medium, graph, tmp_path):
    marker = "a-secret-of-users-7261"
    store = medium.open(encryption_key={"e": b"encryption key, exactly 32 bytes"})
    bodies = {name: (lambda state: {"messages": [marker]}) for name in "faxbyj"}
    flow = graph(EDGES, bodies, state=Chat, partial=True)
    with pytest.raises(RunStopped):
        verbs.run(flow, {}, store=store, run_id="r", stop_before="x")
    assert 6 == len(verbs.resume(flow, store, "r")["messages"])
    told = [record.fields().get("updates") for record in store.read("r", kinds=(CHECKPOINT,))]
    assert 4 == len([updates for updates in told if updates == {"messages": [marker]}])
    if medium.kind == "memory":
        return
    store.close()
    raw = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert raw
    assert not any(marker.encode() in data for data in raw)


def test_a_thinned_run_with_an_open_fork_goes_on(verbs, store, graph, log):
    flow = graph(
        "fa ax xj fb by yj",
        {"f": lambda state: noting("f")(dataclasses.replace(state, n=state.n + 1))},
        routes={"j": (lambda state: "f" if state.n < 4 else END, ["f", END])},
    )
    whole = verbs.run(flow, Basket())
    with pytest.raises(RunStopped):
        verbs.run(flow, Basket(), store=store, run_id="r", stop_before="x")
    for _ in range(2):
        with pytest.raises(RunStopped):
            verbs.resume(flow, store, "r", stop_before="x")
        store.prune(keep_last=1, statuses=("interrupted",))
    assert store.verify("r").ok
    log.clear()
    assert whole == verbs.resume(flow, store, "r")
    assert 2 == log.count("x")


def test_what_no_store_is_needed_for_ends_the_same(verbs, graph):
    flow = graph("fa fb bc bd ci di ij aj", options={"j": {"merge": lambda base, branches: _joined(base, branches)}})
    assert verbs.run(flow, Basket()) == verbs.run(flow, Basket(), store=MemoryStore(), isolate=True)


def _joined(base: Basket, branches: Mapping[str, Basket]) -> Basket:
    seen = [name for state in branches.values() for name in state.seen[len(base.seen) :]]
    return dataclasses.replace(base, seen=[*base.seen, *seen])


@few
def test_an_owner_record_tells_what_stayed(verbs, store, graph):
    flow = graph(EDGES)
    verbs.run(flow, Basket(), store=store, run_id="r")
    verbs.resume_from(flow, store, "r", "a")
    owners = store.read("r", kinds=(OWNER,))
    assert [list(span) for span in store.get_run("r").live] == owners[-1].fields()["live"]
