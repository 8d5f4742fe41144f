"""The drawing of graphs in a browser: nothing lies over anything else, and edges begin and end at their nodes."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from browsing import Open

import milepost.console

STATIC = Path(milepost.console.__file__).parent / "static"
MEASURE = """() => {
  const place = (part) => {
    const {left, top, right, bottom} = part.getBoundingClientRect();
    return [left, top, right, bottom];
  };
  const at = (line, length) => {
    const point = line.getPointAtLength(length).matrixTransform(line.getScreenCTM());
    return [point.x, point.y];
  };
  const graphs = [...new Set([...document.querySelectorAll(".edge")].map((edge) => edge.parentNode))];
  return graphs.map((graph) => ({
    boxes: Object.fromEntries([...graph.children].filter((part) => part.dataset.node !== undefined)
      .map((part) => [part.dataset.node, place(part.querySelector("rect"))])),
    edges: [...graph.children].filter((part) => part.matches(".edge")).map((edge) => {
      const line = edge.querySelector("path");
      return { ends: edge.dataset.ends.split(" "), from: at(line, 0), to: at(line, line.getTotalLength()),
               kind: edge.getAttribute("class"), label: edge.querySelector("rect") && place(edge.querySelector("rect")) };
    }),
    texts: [...graph.querySelectorAll("a")].map((link) => [place(link.querySelector(".face")),
      ...[...link.querySelectorAll("text")].filter((text) => text.textContent).map(place)]),
  }));
}"""


def drawn_graph(dice: random.Random, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """A graph as `picture_document` gives it, of up to 14 nodes, with cycles, forks, labels and graphs inside nodes."""
    names = [
        f"node_{number}" + "_long" * dice.choice((0, 0, 1, 3)) for number in range(dice.randint(2, 14 - 6 * depth))
    ]
    nodes = []
    for name in names:
        kind = dice.choice(("node", "node", "node", "map", "wait", "timer"))
        node = {"id": prefix + name, "name": name, "kind": kind, "note": "", "signal": "approval" * dice.randint(0, 3)}
        node["status"] = dice.choice(("", "done", "failed", "running", "next", "waiting"))
        if kind == "map" and dice.random() < 0.5:
            node["counts"] = {"done": 37, "failed": 1, "total": 40}  # type: ignore[assignment]
        if depth < 2 and dice.random() < 0.15:
            node |= {"kind": "subgraph", "inner": drawn_graph(dice, f"{prefix}{name}/", depth + 1)}  # type: ignore[dict-item]
        nodes.append(node)
    ids = [str(node["id"]) for node in nodes]
    pairs: list[tuple[str, str | None]] = [
        ("__start__", ids[0]),
        (ids[-1], "__end__"),
        *pairwise(ids),
    ]
    pairs += [(dice.choice(ids), dice.choice([*ids, "__end__", None])) for _ in range(dice.randint(0, len(ids)))]
    labels = ("", "", "yes", "no, not at all", "a label that is much longer than others")
    edges = [
        {
            "source": source,
            "target": target,
            "label": dice.choice(labels),
            "is_conditional": dice.random() < 0.4,
            "is_branch": dice.random() < 0.2,
        }
        for source, target in pairs
    ]
    return {"nodes": nodes, "edges": edges}


def overlap(one: list[float], other: list[float]) -> bool:
    width = min(one[2], other[2]) - max(one[0], other[0])
    return width > 0.5 and min(one[3], other[3]) - max(one[1], other[1]) > 0.5


def is_on(point: list[float], box: list[float]) -> bool:
    """Whether a point is on the border of a box."""
    x, y = point
    inside = box[0] - 1.5 <= x <= box[2] + 1.5 and box[1] - 1.5 <= y <= box[3] + 1.5
    return inside and min(abs(x - box[0]), abs(x - box[2]), abs(y - box[1]), abs(y - box[3])) < 1.5


def problems_of(graph: dict[str, Any]) -> list[str]:
    """What is wrong with one drawn graph; the graphs inside its nodes are measured on their own."""
    boxes, found = graph["boxes"], []
    named = [*boxes.items(), *((f"label {n}", edge["label"]) for n, edge in enumerate(graph["edges"]) if edge["label"])]
    for place, (name, box) in enumerate(named):
        found += [f"{name} lies over {other}" for other, more in named[place + 1 :] if overlap(box, more)]
    for edge in graph["edges"]:
        source, target = edge["ends"]
        if not is_on(edge["from"], boxes[source]):
            found.append(f"the edge {source} -> {target} begins elsewhere")
        if not is_on(edge["to"], boxes[target]):
            found.append(f"the edge {source} -> {target} ends elsewhere")
        goes_back = source == target or boxes[target][1] < boxes[source][1]
        if goes_back != ("back" in edge["kind"].split()):
            found.append(f"the edge {source} -> {target} is drawn as {edge['kind']}")
    for face, *texts in graph["texts"]:
        if any(text[0] < face[0] or text[2] > face[2] for text in texts):
            found.append("a text is wider than its node")
    return found


def page_of(open_page: Open) -> Any:
    page = open_page("about:blank", width=1600)
    page.set_content('<style></style><div id="drawing"></div><script type="application/json" id="graph"></script>')
    page.add_style_tag(path=str(STATIC / "console.css"))
    page.add_script_tag(path=str(STATIC / "dagre.min.js"))
    return page


def draw(page: Any, graph: dict[str, Any]) -> None:
    """Draw a graph, the first time with the script, then as after a change of the page."""
    page.evaluate("text => { document.getElementById('graph').textContent = text; }", json.dumps(graph))
    if not page.locator("#drawing > *").count():
        page.add_script_tag(path=str(STATIC / "graph.js"), type="module")
        page.locator("#drawing svg").wait_for()
    else:
        page.evaluate("dispatchEvent(new Event('console:swapped'))")


def test_nothing_overlaps_and_edges_meet_their_nodes_in_random_graphs(open_page: Open):
    page = page_of(open_page)
    wrong = {}
    for seed in range(30):
        draw(page, drawn_graph(random.Random(seed)))
        found = [problem for graph in page.evaluate(MEASURE) for problem in problems_of(graph)]
        if found:
            wrong[seed] = found
    assert {} == wrong


def chain(count: int, status: str = "") -> dict[str, Any]:
    nodes = [{"id": f"n{i}", "name": f"n{i}", "kind": "node", "status": "", "note": ""} for i in range(count)]
    if status:
        nodes[count // 2]["status"] = status
    ends = ["__start__", *(node["id"] for node in nodes), "__end__"]
    edges = [{"source": a, "target": b, "label": "", "is_conditional": False} for a, b in pairwise(ends)]
    return {"nodes": nodes, "edges": edges}


def test_a_large_graph_is_folded_around_the_place_of_the_run(open_page: Open):
    page = page_of(open_page)
    draw(page, chain(200, "failed"))
    assert [f"n{i}" for i in range(97, 104)] == sorted(
        page.locator(".node").evaluate_all("nodes => nodes.map((node) => node.dataset.node)"),
        key=lambda name: int(name[1:]),
    )
    page.get_by_role("button", name="Show all 200 nodes").click()
    assert 200 == page.locator(".node").count()
    page.get_by_role("button", name="Fold").click()
    assert 7 == page.locator(".node").count()
    draw(page, {**chain(160), "nodes": [{**node, "inner": chain(1)} for node in chain(80)["nodes"]]})
    assert 80 == page.locator(".node").count()


def test_a_large_graph_of_nodes_that_may_all_end_is_folded_and_has_an_end_for_each(open_page: Open):
    page = page_of(open_page)
    graph = chain(200)
    graph["edges"] += [
        {"source": f"n{i}", "target": "__end__", "label": "", "is_conditional": True} for i in range(199)
    ]
    draw(page, graph)
    assert 3 == page.locator(".node").count()
    page.get_by_role("button", name="Show all 200 nodes").click()
    assert (200, 200) == (page.locator(".node").count(), page.locator(".dot.__end__").count())
    assert 400 == page.locator(".edge").count()


def test_a_change_of_statuses_changes_classes_and_nothing_is_laid_out(open_page: Open):
    page = page_of(open_page)
    graph = chain(3)
    draw(page, graph)
    svg = page.locator("#drawing svg").element_handle()
    graph["nodes"][1] |= {"status": "running"}
    draw(page, graph)
    assert svg.evaluate("svg => svg.isConnected")
    assert "node is-node running" == page.locator("[data-node=n1]").get_attribute("class")
    assert "● n1 (running)" == page.locator("[data-node=n1] a").get_attribute("aria-label")
    page.get_by_role("button", name="Larger").click()
    assert float(svg.get_attribute("width")) > float(svg.get_attribute("viewBox").split()[2])
