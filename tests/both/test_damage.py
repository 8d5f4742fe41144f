"""Records that were damaged: refused, and passed over where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from milepost import Engine, step, workflow
from milepost.errors import CheckpointCorruptError, RunNotFoundError, RunStopped


@dataclass
class Count:
    n: int = 0


class Damaged:
    """Gives the records whose numbers are in `damaged` with another content than was written."""

    damaged: tuple[int, ...] = ()

    def read(self, *args, **options):
        return [self._shown(record) for record in super().read(*args, **options)]

    def latest(self, *args, **options):
        found = super().latest(*args, **options)
        point, start = (None if record is None else self._shown(record) for record in (found.point, found.start))
        return found._replace(point=point, start=start, tail=tuple(map(self._shown, found.tail)))

    def _shown(self, record):
        if record.sequence not in self.damaged:
            return record
        return record._replace(header=record.header.replace(b'"epoch":', b'"epoch": '))


@pytest.fixture
def damaged(medium):
    return medium.open(Damaged)


def numbers(store, kind: str, nodes: str = "") -> tuple[int, ...]:
    return tuple(r.sequence for r in store.read("r1") if r.kind == kind and (not nodes or r.node_id in nodes))


def refused(verbs, graph, store, log):
    before, ran = store.read("r1"), list(log)
    with pytest.raises(CheckpointCorruptError) as caught:
        verbs.resume(graph, store, "r1")
    assert ("r1", True) == (caught.value.run_id, caught.value.sequence in store.damaged)
    assert (before, ran) == (store.read("r1"), log)


def test_the_newest_good_point_is_found_behind_superseded_records(verbs, damaged, line, log):
    graph = line(Count, "abcd")
    verbs.run(graph, Count(), store=damaged, run_id="r1")
    with pytest.raises(RunStopped):
        verbs.resume_from(graph, damaged, "r1", "a", stop_after="c")
    damaged.damaged = numbers(damaged, "checkpoint", "c")[-1:]
    refused(verbs, graph, damaged, log)
    result = verbs.resume(graph, damaged, "r1", on_corrupt="previous", full=True)
    assert (Count(4), "b", 2) == (result.state, result.resumed.from_node, result.resumed.visit)
    assert "damaged" in result.resumed.differences[0]
    live = [(info.node_id, info.visit) for info in damaged.history("r1") if not info.superseded]
    assert [("a", 1), ("b", 2), ("c", 3)] == live[:3]
    assert Count(4) == verbs.resume(graph, damaged, "r1")


def test_several_damaged_records_are_passed_over(verbs, damaged, line, log):
    graph = line(Count, "abcd")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=damaged, run_id="r1", stop_after="c")
    damaged.damaged = numbers(damaged, "checkpoint", "bc")
    refused(verbs, graph, damaged, log)
    result = verbs.resume(graph, damaged, "r1", on_corrupt="previous", full=True)
    assert (Count(4), "a", 2) == (result.state, result.resumed.from_node, len(result.resumed.differences))
    assert list("abcbcd") == log


def test_a_damaged_start_record_costs_only_the_comparison_of_graphs(verbs, damaged, line, log):
    graph = line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=damaged, run_id="r1", stop_after="b")
    damaged.damaged = (0,)
    refused(verbs, graph, damaged, log)
    result = verbs.resume(graph, damaged, "r1", on_corrupt="previous", full=True)
    assert (Count(3), "b", True) == (result.state, result.resumed.from_node, "start" in result.resumed.differences[0])
    assert list("abc") == log


def test_a_run_whose_start_alone_is_there_and_damaged_cannot_go_on(verbs, damaged, line, log):
    graph = line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=damaged, run_id="r1", stop_before="a")
    damaged.damaged = (0,)
    for options in ({}, {"on_corrupt": "previous"}):
        with pytest.raises(CheckpointCorruptError):
            verbs.resume(graph, damaged, "r1", **options)
    assert [] == log


def test_a_damaged_override_is_passed_over_and_the_point_before_it_kept(verbs, damaged, line, log):
    dying = [True]

    def b(state: Count) -> Count:
        if dying[0]:
            raise KeyboardInterrupt
        return Count(state.n + 1)

    graph = line(Count, "abc", {"b": b})
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=damaged, run_id="r1", stop_after="a")
    with pytest.raises(KeyboardInterrupt):
        verbs.resume(graph, damaged, "r1", state_override=lambda state: Count(50))
    dying[0] = False
    damaged.damaged = numbers(damaged, "owner")
    refused(verbs, graph, damaged, log)
    result = verbs.resume(graph, damaged, "r1", on_corrupt="previous", full=True)
    assert (Count(3), "a", list("abbc")) == (result.state, result.resumed.from_node, log)
    assert Count(3) == verbs.resume(graph, damaged, "r1")


def test_resume_from_does_not_look_for_an_older_point(verbs, damaged, line, log):
    graph = line(Count)
    verbs.run(graph, Count(), store=damaged, run_id="r1")
    damaged.damaged = numbers(damaged, "checkpoint", "b")
    with pytest.raises(CheckpointCorruptError):
        verbs.resume_from(graph, damaged, "r1", "b", on_corrupt="previous")
    assert list("abc") == log


WAITING = {
    "events": lambda verbs, handle: verbs.events(handle, "events"),
    "result": lambda verbs, handle: verbs.call(handle, "result"),
    "output": lambda verbs, handle: verbs.call(handle, "output", "b"),
}


@workflow("steps")
def steps():
    yield step("a").python(lambda: 1)
    yield step("b").wait_for("go")


@pytest.mark.parametrize("waits", WAITING)
def test_whoever_waits_for_a_damaged_run_is_told(verbs, damaged, line, waits):
    handle = Engine(damaged).start(line(Count, "ab"), Count(), run_id="r1")
    damaged.damaged = (0,)
    with pytest.raises(CheckpointCorruptError, match="record 0 of run 'r1'"):
        WAITING[waits](verbs, handle)


@pytest.mark.parametrize("waits", WAITING)
def test_whoever_waits_for_a_workflow_is_told_of_any_damaged_record(verbs, damaged, waits):
    engine = Engine(damaged)
    engine.run(steps, run_id="r1", full=True)
    damaged.damaged = numbers(damaged, "checkpoint", "a")
    with pytest.raises(CheckpointCorruptError, match="at node 'a'"):
        WAITING[waits](verbs, engine.handle("r1", steps))


@pytest.mark.parametrize("waits", WAITING)
def test_whoever_waits_for_a_run_is_told_that_it_was_deleted(verbs, medium, jumping, line, waits):
    store = medium.open(clock=jumping)
    handle = Engine(store, clock=jumping).start(line(Count, "ab"), Count(), run_id="r1")
    jumping.on_advance.append(lambda: store.delete_run("r1"))
    with pytest.raises(RunNotFoundError, match="'r1'"):
        WAITING[waits](verbs, handle)


def test_a_verb_that_waits_in_the_run_is_told_that_it_was_deleted(verbs, medium, jumping):
    store = medium.open(clock=jumping)
    jumping.on_advance.append(lambda: store.delete_run("r1"))
    with pytest.raises(RunNotFoundError, match="'r1'"):
        verbs.run(steps, store=store, run_id="r1", on_wait="block", clock=jumping)
