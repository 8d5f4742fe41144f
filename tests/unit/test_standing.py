"""Where a run of a graph stands, told from its records alone."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest

from milepost import END, BranchError, Engine, Graph, MemoryStore, NodeError, RunSuspended, SQLiteStore
from milepost.errors import RunStopped
from milepost.graph.builder import CompiledGraph
from milepost.graph.status import RunStatus, Visit, read_status
from milepost.reducers import append


@dataclass
class Trip:
    cities: list[str] = field(default_factory=list)
    told: Annotated[list[str], append] = field(default_factory=list)
    rounds: int = 0


@dataclass
class City:
    name: str


def keep(state: Any) -> Any:
    return state


def fail(state: Any) -> Any:
    raise ValueError("no luck")


def look(city: str) -> str:
    if city == "nowhere":
        raise ValueError("no such city")
    return city.upper()


def forked(**functions: Any) -> Graph[Trip]:
    """plan -> (flights -> seats | hotels | cars) -> join."""
    inner = Graph(Trip).add_node("find", functions.get("find", keep)).add_node("book", keep).add_edge("find", "book")
    cars = inner.add_edge("book", END).set_entry("find").compile("cars")
    graph = Graph(Trip).add_node("plan", keep).add_subgraph("cars", cars)
    for node in ("flights", "seats", "hotels", "join"):
        graph.add_node(node, functions.get(node, keep))
    graph.add_edge("plan", "flights").add_edge("plan", "hotels").add_edge("plan", "cars").add_edge("flights", "seats")
    return graph.add_edge("seats", "join").add_edge("hotels", "join").add_edge("cars", "join").set_entry("plan")


def stands(store: MemoryStore, status: str | None = None) -> RunStatus:
    latest = store.latest("r")
    return read_status(store.read("r"), latest.row.live, status or latest.row.info.status)


def store_signal(store: MemoryStore, run_id: str, name: str, payload: Any) -> None:
    Engine(store).signal(run_id, name, payload)


def ended(graph: CompiledGraph[Any], state: Any, *errors: type[BaseException], **options: Any) -> MemoryStore:
    """The store of a run that ended with one of the errors, or well."""
    store = MemoryStore()
    if errors:
        with pytest.raises(errors):
            graph.run(state, store=store, run_id="r", **options)
    else:
        graph.run(state, store=store, run_id="r", **options)
    return store


def tree(visits: tuple[Visit, ...] | list[Visit]) -> list[Any]:
    """Names, visits and statuses, nested as they are."""
    return [
        (visit.name + (f"#{visit.visit}" if visit.visit else ""), visit.status, *([tree(visit.steps)] * bool(visit.steps)))
        for visit in visits
    ]  # fmt: skip


def test_branches_stand_below_the_visit_of_their_fork_and_the_join_after_it() -> None:
    store = ended(forked().add_edge("join", END).compile("trips"), Trip())
    assert [
        (
            "plan#1",
            "done",
            [
                ("flights", "done", [("flights#1", "done"), ("seats#1", "done")]),
                ("hotels", "done", [("hotels#1", "done")]),
                ("cars", "done", [("cars#1", "done", [("find#1", "done"), ("book#1", "done")])]),
            ],
        ),
        ("join#1", "done"),
    ] == tree(stands(store).visits)
    found = stands(store)
    assert {"done"} == set(found.statuses.values())
    assert {"plan", "flights", "seats", "hotels", "cars", "cars/find", "cars/book", "join"} == set(found.statuses)
    assert () == found.next_nodes


def test_a_branch_that_failed_stands_where_it_failed_and_its_siblings_at_their_ends() -> None:
    store = ended(forked(seats=fail).add_edge("join", END).compile("trips"), Trip(), BranchError)
    found = stands(store)
    assert ("failed", "done", "done") == tuple(found.statuses[node] for node in ("seats", "hotels", "cars"))
    assert "join" not in found.statuses
    assert ("seats",) == found.next_nodes
    (branch, *_) = found.visits[0].steps
    assert ("branch", "failed", "ValueError: no luck") == (branch.kind, branch.status, branch.steps[-1].error)


def test_branches_that_have_not_begun_are_next_or_run() -> None:
    graph = forked().add_edge("join", END).compile("trips")
    store = ended(graph, Trip(), RunStopped, stop_after=["plan"])
    found = stands(store)
    expected = ("flights", "hotels", "cars")
    assert expected == found.next_nodes
    assert {"plan": "done", **dict.fromkeys(expected, "next")} == found.statuses
    assert {"plan": "done", **dict.fromkeys(expected, "running")} == stands(store, "running").statuses


def test_a_run_that_only_began_stands_before_its_entry() -> None:
    store = ended(forked().add_edge("join", END).compile("trips"), Trip(), RunStopped, stop_before=["plan"])
    assert {"plan": "next"} == stands(store).statuses


def test_inside_a_graph_whole_ids_tell_where_a_run_stands() -> None:
    graph = forked(find=fail).add_edge("join", END).compile("trips")
    found = stands(ended(graph, Trip(), BranchError))
    assert ("failed", "failed") == (found.statuses["cars"], found.statuses["cars/find"])
    assert ("cars/find",) == found.next_nodes
    assert "cars/book" not in found.statuses


def test_branches_that_met_leave_their_join_next() -> None:
    graph = forked().add_edge("join", END).compile("trips")
    found = stands(ended(graph, Trip(), RunStopped, stop_before=["join"]))
    assert ("join",) == found.next_nodes
    assert "done" == found.statuses["seats"]


def test_a_merge_that_failed_is_told_of_the_join() -> None:
    def merge(state: Trip, ends: Any) -> Trip:
        raise ValueError("cannot be")

    graph = (
        Graph(Trip).add_node("plan", keep).add_node("a", keep).add_node("b", keep).add_node("join", keep, merge=merge)
    )
    graph.add_edge("plan", "a").add_edge("plan", "b").add_edge("a", "join").add_edge("b", "join").add_edge("join", END)
    found = stands(ended(graph.set_entry("plan").compile("m"), Trip(), NodeError))
    assert {"plan": "done", "a": "done", "b": "done", "join": "failed"} == found.statuses
    assert "ValueError: cannot be" == found.visits[-1].error


# -- maps ----------------------------------------------------------------------------------------------------


def mapped(each: Any, over: Any = lambda trip: trip.cities) -> CompiledGraph[Trip]:
    graph = Graph(Trip).add_map("cities", over, each, merge=lambda trip, found: trip)
    return graph.add_edge("cities", END).set_entry("cities").compile("mapped")


def test_a_map_tells_how_many_items_are_done_and_have_failed() -> None:
    found = stands(ended(mapped(look), Trip(["rome", "nowhere", "oslo"]), BranchError))
    assert {"cities": (2, 1, 3)} == found.maps
    assert {"cities": "failed", "cities/0": "done", "cities/1": "failed", "cities/2": "done"} == found.statuses
    assert ("cities/1",) == found.next_nodes
    assert ["item"] * 3 == [item.kind for item in found.visits[0].steps]


def test_items_that_have_not_begun_are_counted() -> None:
    records = ended(mapped(look), Trip(["a", "b"])).read("r")[:3]
    found = read_status(records, (), "interrupted")
    assert ({"cities": (1, 0, 2)}, "next") == (found.maps, found.statuses["cities"])
    assert ("cities",) == found.next_nodes
    assert "running" == read_status(records, (), "running").statuses["cities"]


def test_the_items_of_a_map_of_a_graph_are_made_of_its_nodes() -> None:
    def go(city: City) -> City:
        return city if city.name != "nowhere" else fail(city)

    item = Graph(City).add_node("go", keep).add_node("see", go).add_edge("go", "see").add_edge("see", END)
    graph = mapped(item.set_entry("go").compile("item"), lambda trip: [City(name) for name in trip.cities])
    found = stands(ended(graph, Trip(["rome", "nowhere"]), BranchError))
    first, second = found.visits[0].steps
    assert (("item", "done"), ("item", "failed")) == ((first.kind, first.status), (second.kind, second.status))
    assert [["done", "done"], ["done", "failed"]] == [[row.status for row in item.steps] for item in (first, second)]
    assert ["go", "see"] == [row.name for row in second.steps]
    assert {"cities": (1, 1, 2)} == found.maps
    assert ("cities/1/see",) == found.next_nodes
    assert "done" == found.statuses["cities/1/go"]


def test_a_map_whose_items_cannot_be_told_failed_itself() -> None:
    found = stands(ended(mapped(look, fail), Trip(), NodeError))
    assert {"cities": "failed"} == found.statuses


# -- waits ---------------------------------------------------------------------------------------------------


def waiting() -> CompiledGraph[Trip]:
    graph = Graph(Trip).add_node("plan", keep).add_node("hotels", keep).add_node("join", keep)
    graph.add_wait("ask", "approval", apply=lambda trip, reply: trip, prompt="is it good?", payload=bool)
    graph.add_edge("plan", "hotels").add_edge("plan", "ask").add_edge("hotels", "join").add_edge("ask", "join")
    return graph.add_edge("join", END).set_entry("plan").compile("waiting")


def test_a_branch_that_waits_says_for_what() -> None:
    store = ended(waiting(), Trip(), RunSuspended)
    found = stands(store)
    assert {"plan": "done", "hotels": "done", "ask": "waiting"} == found.statuses
    wait = found.waits["ask"]
    assert ("ask#1", "approval", "is it good?") == (wait.wait_id, wait.signal, wait.prompt)
    assert "wait" == found.visits[0].steps[1].steps[0].kind


def test_a_refused_answer_is_told_and_a_good_one_ends_the_wait() -> None:
    store = MemoryStore()
    Engine(store).start(waiting(), Trip(), run_id="r")
    store_signal(store, "r", "approval", "maybe")
    with pytest.raises(RunSuspended):
        waiting().resume(store, "r")
    assert "refused" in stands(store).visits[0].steps[1].steps[0].reason
    store_signal(store, "r", "approval", True)
    waiting().resume(store, "r")
    assert {} == stands(store).waits
    assert {"done"} == set(stands(store).statuses.values())


def test_an_encrypted_journal_is_told_without_its_key(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db", encryption_key={"k": b"k" * 32}) as store, pytest.raises(RunSuspended):
        waiting().run(Trip(), store=store, run_id="r")
    with SQLiteStore(tmp_path / "s.db") as store:
        latest = store.latest("r")
        found = read_status(store.read("r"), latest.row.live, latest.row.info.status)
    assert {"plan": "done", "hotels": "done", "ask": "waiting"} == found.statuses
    assert ("ask#1", "approval", None) == (
        found.waits["ask"].wait_id,
        found.waits["ask"].signal,
        found.waits["ask"].prompt,
    )


# -- several visits ------------------------------------------------------------------------------------------


def looped() -> CompiledGraph[Trip]:
    def count(trip: Trip) -> Trip:
        trip.rounds += 1
        return trip

    def where(trip: Trip) -> Any:
        return END if trip.rounds > 1 else "plan"

    return forked(join=count).add_conditional_edge("join", where, ["plan", END]).compile("looped")


def test_each_visit_of_a_fork_has_its_own_branches() -> None:
    store = ended(looped(), Trip())
    assert ["plan#1", "join#1", "plan#2", "join#2"] == [row[0] for row in tree(stands(store).visits)]
    assert [3, 3] == [len(visit.steps) for visit in stands(store).visits if visit.kind == "fork"]
    inner = [visit.steps[2].steps[0].steps for visit in stands(store).visits if visit.kind == "fork"]
    assert [[("find#1", "done"), ("book#1", "done")], [("find#2", "done"), ("book#2", "done")]] == [*map(tree, inner)]


def test_what_an_older_visit_of_a_fork_did_does_not_count_in_a_newer_one() -> None:
    store = ended(looped(), Trip())
    records = store.read("r")
    second = next(r.sequence for r in records if r.node_id == "plan" and r.visit == 2)
    found = read_status(records[: second + 1], (), "running")
    expected = dict.fromkeys(("flights", "hotels", "cars"), "running")
    assert {"plan": "done", "join": "done", **expected} == found.statuses


def test_every_beginning_of_a_journal_can_be_told() -> None:
    """Whatever a process had recorded when it died, something stands somewhere."""
    records = ended(looped(), Trip()).read("r")
    for length in range(1, len(records)):
        found = read_status(records[:length], (), "dead")
        assert found.next_nodes or length == len(records) - 1
        assert set(found.statuses.values()) <= {"done", "next"}


def test_superseded_visits_are_kept_apart() -> None:
    store = ended(looped(), Trip())
    with pytest.raises(RunStopped):
        looped().resume_from(store, "r", "join", visit=1, stop_after=["plan"])
    found = stands(store)
    assert ["plan#1", "join#1", "plan#3"] == [row[0] for row in tree(found.visits)]
    assert {"plan", "join", "cars/find"} <= {record.node_id for record in found.superseded}
    assert {2} == {record.visit for record in found.superseded}


def test_a_failure_stands_until_the_run_goes_on() -> None:
    store = ended(forked(seats=fail).add_edge("join", END).compile("trips"), Trip(), BranchError)
    good = forked().add_edge("join", END).compile("trips")
    with pytest.raises(RunStopped):
        good.resume(store, "r", stop_before=["join"])
    assert {"done", "next"} == set(stands(store).statuses.values())


def test_a_router_that_failed_is_told_of_its_node() -> None:
    graph = Graph(dict).add_node("a", keep).set_entry("a").add_conditional_edge("a", fail, ["a", END]).compile("routed")
    found = stands(ended(graph, {}, NodeError))
    assert {"a": "failed"} == found.statuses
    assert found.visits[0].is_done


def test_a_journal_without_its_start_and_with_pruned_records_is_told_as_far_as_it_goes() -> None:
    records = ended(looped(), Trip()).read("r")
    for leave_out in range(len(records)):
        found = read_status([record for record in records if record.sequence != leave_out], (), "finished")
        assert "done" == found.statuses["join"]


def test_a_partial_state_stands_like_any_other() -> None:
    graph = Graph(dict, partial=True, reducers={"n": operator.add})
    graph.add_node("a", lambda state: {"n": 1}).add_node("b", lambda state: {"n": 1}).add_node(
        "c", lambda state: {"n": 1}
    )
    graph.add_node("d", lambda state: {}).add_edge("a", "b").add_edge("a", "c").add_edge("b", "d").add_edge("c", "d")
    store = ended(graph.add_edge("d", END).set_entry("a").compile("partial"), {"n": 0})
    assert ["fork", "node"] == [visit.kind for visit in stands(store).visits]


def test_a_visit_whose_router_is_to_be_asked_again_leads_nowhere_yet() -> None:
    graph = Graph(dict).add_node("a", keep).add_node("b", keep).add_conditional_edge("a", lambda state: "b", ["b", END])
    flow = graph.add_edge("b", END).set_entry("a").compile("again")
    store = MemoryStore()
    flow.run({}, store=store, run_id="r")
    flow.fork_run(store, "r", "a", new_run_id="f", state_override=keep)
    row = store.get_run("f")
    found = read_status(store.read("f"), row.live, row.info.status)
    assert [("a", None, "next")] == [(visit.node_id, visit.next_node, visit.status) for visit in found.visits]
    flow.resume(store, "f")
    assert [("a", "b"), ("b", END)] == [(v.node_id, v.next_node) for v in read_status(store.read("f"), row.live).visits]
