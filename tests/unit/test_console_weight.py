"""The weight of the console's pages: what a browser loads to show one, without the values of the run."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from milepost import Engine, Graph, MemoryStore
from milepost.console import console

TWENTY = [f"step_number_{number}" for number in range(20)]
graph = Graph(dict).set_entry(TWENTY[0])
for name, target in zip(TWENTY, [*TWENTY[1:], "__end__"], strict=True):
    graph.add_node(name, lambda state: {"n": state["n"] + 1})
    if target != "__end__":
        graph.add_edge(name, target)
graph.add_conditional_edge(TWENTY[-1], lambda s: TWENTY[0] if s["n"] < 500 else "__end__", [TWENTY[0], "__end__"])
loop = graph.compile("orders")


@pytest.fixture(scope="module")
def client() -> TestClient:
    engine = Engine(MemoryStore(), flows=[loop])
    engine.run(loop, {"n": 0}, run_id="long")
    for number in range(60):
        engine.start(loop, {"n": number}, run_id=f"order-{number:08}", tags={"customer": "acme", "region": "north"})
    made = console(engine, user=lambda request: "bea", write=lambda user, action, run_id: True)
    return TestClient(made, base_url="http://localhost")


@pytest.mark.parametrize(("path", "most"), [("/runs/long", 190), ("/flows/orders", 190), ("/runs", 110), ("/", 110)])
def test_a_page_weighs_little(path: str, most: int, client: TestClient):
    page = client.get(path)
    files = sorted(set(re.findall(r'"(/static/[^"]+)"', page.text)))
    weights = {"": len(page.content)} | {file.rpartition("/")[2]: len(client.get(file).content) for file in files}
    assert most * 1000 >= sum(weights.values()), weights
