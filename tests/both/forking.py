"""What the suites of forks have in common: graphs written as edges of two letters each (`"fa fb aj bj"`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from milepost import END, Graph
from milepost.model.record import CHECKPOINT
from milepost.reducers import append, largest, last, smallest, total, union

few = pytest.mark.stores("memory", "sqlite")
"""Stores for what is no store's business."""


@dataclass
class Basket:
    n: int = 0
    seen: Annotated[list[str], append] = field(default_factory=list)
    sums: Annotated[int, total] = 0
    peak: Annotated[int, largest] = 0
    low: Annotated[int, smallest] = 0
    who: Annotated[str, last] = ""
    tags: Annotated[set[int], union] = field(default_factory=set)
    any: Any = None
    note: str = ""


def noting(name: str) -> Callable[[Basket], Basket]:
    def note(state: Basket) -> Basket:
        state.seen.append(name)
        return state

    return note


def builder(verbs: Any, log: list[str]) -> Callable[..., Any]:
    """Build a graph from edges; `bodies`, `options` of `add_node` and `routes` (router, targets) go by node."""

    def build(
        edges: str,
        bodies: Mapping[str, Callable[..., Any]] | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        routes: Mapping[str, tuple[Callable[..., Any], list[str]]] | None = None,
        state: Any = Basket,
        flow: str = "forks",
        **of_graph: Any,
    ) -> Any:
        routes = routes or {}
        nodes = dict.fromkeys("".join(edges.split()))
        built = Graph(state, **of_graph)

        def logged(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
            def called(state: Any) -> Any:
                log.append(name)
                return body(state)

            return verbs.node(called)

        for node in nodes:
            body = (bodies or {}).get(node, noting(node))
            built.add_node(node, logged(node, body), **(options or {}).get(node, {}))
        for source, target in edges.split():
            built.add_edge(source, target)
        for source, (router, targets) in routes.items():
            built.add_conditional_edge(source, verbs.node(router), targets)
        for node in nodes:
            if node not in routes and not any(edge[0] == node for edge in edges.split()):
                built.add_edge(node, END)
        return built.set_entry(edges[0]).compile(flow)

    return build


class Once:
    """Fails, or does something, the first time only."""

    def __init__(self, error: BaseException, then: Callable[[Basket], Basket]) -> None:
        self.error, self.then, self.is_broken = error, then, True

    def __call__(self, state: Basket) -> Basket:
        if self.is_broken:
            self.is_broken = False
            raise self.error
        return self.then(state)


def visits(store: Any, run_id: str = "r", kinds: tuple[str, ...] = (CHECKPOINT,)) -> list[str]:
    return sorted(f"{record.node_id}#{record.visit}" for record in store.read(run_id, kinds=kinds))
