"""The pages of the console, asked for over HTTP: as pages, as JSON, and of runs that are not there or damaged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from milepost import Engine, Graph, MemoryStore
from milepost.console import console
from milepost.errors import NodeError


def add(state: dict) -> dict:
    return {**state, "n": state.get("n", 0) + 1}


def fail(state: dict) -> dict:
    raise ValueError("no price <b>for</b> it")


adding = Graph(dict).add_node("add", add).set_entry("add").add_edge("add", "__end__").compile("adding")
failing = (
    Graph(dict).add_node("add", add).add_node("fail", fail).set_entry("add").add_edge("add", "fail")
    .add_edge("fail", "__end__").compile("failing")
)  # fmt: skip


@pytest.fixture
def engine() -> Iterator[Engine]:
    with MemoryStore() as store, Engine(store, flows=[adding, failing]) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> TestClient:
    return TestClient(console(engine), base_url="http://localhost")


def test_the_list_has_a_link_to_each_run(engine: Engine, client: TestClient):
    engine.run(adding, {}, run_id="shop/1 ?#")
    page = client.get("/runs")
    assert 200 == page.status_code
    assert 'href="/runs/shop%2F1%20%3F%23"' in page.text
    assert ["shop/1 ?#"] == [run["run_id"] for run in client.get("/runs.json").json()["runs"]]
    assert "shop/1 ?#" == client.get("/runs/shop%2F1%20%3F%23?format=json").json()["run"]["run_id"]


def test_the_page_of_a_run_that_failed_shows_its_error_and_escapes_it(engine: Engine, client: TestClient):
    with pytest.raises(NodeError):
        engine.run(failing, {}, run_id="r-1")
    page = client.get("/runs/r-1")
    assert "ValueError: no price &lt;b&gt;for&lt;/b&gt; it" in page.text
    values = client.get("/runs/r-1", headers={"accept": "application/json"}).json()
    assert ("ValueError", "fail") == (values["error"]["error_type"], values["error"]["node_id"])
    assert ["done", "failed"] == [node["status"] for node in values["graph"]["nodes"]]


def test_a_part_that_has_not_changed_is_204(engine: Engine, client: TestClient):
    engine.run(adding, {}, run_id="r-1")
    mark = client.get("/runs").text.partition('data-mark="')[2][:16]
    assert 204 == client.get(f"/runs?part=live&mark={mark}").status_code
    engine.run(adding, {}, run_id="r-2")
    part = client.get(f"/runs?part=live&mark={mark}")
    assert part.text.startswith("<section")
    assert "r-2" in part.text


def test_a_run_that_is_not_there_is_404(client: TestClient):
    assert 404 == client.get("/runs/nowhere").status_code
    assert 404 == client.get("/nothing/of/this").status_code
