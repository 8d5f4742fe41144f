"""Verbs with a store's URL in the place of the store: it is opened for the call, and closed with it."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import pytest

from milepost import Engine, FileStore, Graph, RunSuspended, SQLiteStore, step, workflow
from milepost.errors import NodeError, OptionError


@dataclass
class Count:
    n: int = 0


@workflow("asking")
def asking(first: int = 1):
    yield step("a").python(lambda: first)
    return (yield from step("ask").wait_for("go")).payload


@pytest.fixture
def closed(monkeypatch):
    """The stores that were closed, in order."""
    closed: list[str] = []
    for kind in (SQLiteStore, FileStore):

        def close(store, plain=kind.close):
            closed.append(store.place)
            plain(store)

        monkeypatch.setattr(kind, "close", close)
    return closed


@pytest.fixture(params=["sqlite:///{}/runs.db", "file:{}/runs"])
def url(request, tmp_path):
    return request.param.format(tmp_path)


def test_every_verb_takes_a_url_and_closes_what_it_opened(verbs, line, url, tmp_path, closed):
    graph = line(Count, "ab")
    calls = [
        lambda: verbs.run(graph, Count(), store=url, run_id="r1", stop_after="a", full=True),
        lambda: verbs.plan(graph, url, "r1"),
        lambda: verbs.call(graph, "fork_run", url, "r1", into=f"sqlite:///{tmp_path}/other.db"),
        lambda: verbs.resume(graph, url, "r1"),
        lambda: verbs.resume_from(graph, url, "r1", "a"),
        lambda: verbs.stream(graph, Count(), store=url, run_id="r2"),
        lambda: verbs.resume_stream(graph, url, "r2"),
        lambda: verbs.run(asking, store=url, run_id="w", first=2, full=True),
        lambda: verbs.call(asking, "signal", url, "w", "go", 3),
        lambda: verbs.resume(asking, url, "w"),
        lambda: verbs.call(asking, "cancel", url, "w"),
    ]
    for call in calls:
        call()
        assert closed, "the call has opened a store"
        closed.clear()
    with Engine(url, flows=[asking]) as engine:
        assert (3, 3) == (engine.handle("w").result(), len(engine.list_runs()))


def test_a_verb_that_fails_closes_its_store_too(verbs, line, url, closed):
    def fails(state: Count) -> Count:
        raise ValueError("no")

    graph = line(Count, "a", {"a": fails})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=url, run_id="r1")
    with pytest.raises(NodeError):
        verbs.retry(graph, url, "r1")
    with pytest.raises(RunSuspended):
        verbs.run(asking, store=url, run_id="w")
    assert 3 == len(closed)


def test_a_stream_that_is_broken_off_or_never_begun_closes_its_store(verbs, line, url, closed):
    graph = line(Count, "ab")
    verbs.events(graph, "stream", Count(), store=url, run_id="r1", until=lambda event: True)
    assert 1 == len(closed)
    unused = getattr(graph, "astream" if verbs.is_async else "stream")(Count(), store=url)
    assert 1 == len(closed)
    del unused
    gc.collect()
    assert 2 == len(closed)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///:memory:"])
def test_a_store_in_memory_would_be_gone_with_the_call(verbs, line, store, url):
    graph = line(Count, "ab")
    verbs.run(graph, Count(), store=store, run_id="r1")
    for call in (
        lambda: verbs.run(graph, Count(), store=url),
        lambda: verbs.call(graph, "signal", url, "r1", "go"),
        lambda: verbs.call(graph, "fork_run", store, "r1", into=url),
        lambda: verbs.call(Engine(store), "fork_run", graph, "r1", into=url),
    ):
        with pytest.raises(OptionError, match="would be gone with the call"):
            call()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("invoke", "run"),
        ("ainvoke", "arun"),
        ("add_conditional_edges", "add_conditional_edge"),
        ("add_sequence", "add_node and add_edge"),
        ("get_state", "engine.handle"),
        ("update_state", "resume_from"),
    ],
)
def test_names_that_people_bring_lead_to_ours(line, store, name, ours):
    for owner in (Graph(Count), line(Count), asking, Engine(store)):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': here it is {ours}"):
            getattr(owner, name)
        assert not hasattr(owner, "no_such_name")
