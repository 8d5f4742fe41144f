"""A graph as data: what changed between two shapes, and that the analyses stand large graphs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from counting import calls_of
from milepost.executor.flow import END
from milepost.graph.topology import Topology
from milepost.testing.tables import for_each


def topology(
    edges: Mapping[str, str] | None = None,
    routes: Mapping[str, Any] | None = None,
    nodes: str = "abc",
    entry: str = "a",
) -> Topology:
    """Nodes a, b, c; `edges` as in {"a": "b"} and `routes` as in {"c": ["a", END]} or {"c": None}."""
    return Topology(
        nodes=tuple(nodes),
        edges={source: tuple(targets.split()) for source, targets in (edges or {}).items()},
        routes={
            source: (None if targets is None else {target: target for target in targets},)
            for source, targets in (routes or {}).items()
        },
        entry=entry,
    )


LINE = topology({"a": "b", "b": "c", "c": END})
LOOP = topology({"a": "b", "b": "c"}, {"c": ["a", END]})


@pytest.mark.parametrize("same", [LINE, LOOP, topology(), topology({"a": END}, nodes="a")])
def test_a_shape_does_not_differ_from_itself(same: Topology) -> None:
    assert () == same.differences(json.loads(json.dumps(same.shape)))


@for_each(
    "expected, old, new",
    [
        (["node 'd' is new"], LINE, topology({"a": "b", "b": "c", "c": END, "d": END}, nodes="abcd")),
        (
            ["node 'c' is gone", "the edge b -> c now goes to END"],
            LINE,
            topology({"a": "b", "b": END}, nodes="ab"),
        ),
        (["the edge b -> c now goes to a"], LINE, topology({"a": "b", "b": "a", "c": END})),
        (["the edge c -> END is gone"], LINE, topology({"a": "b", "b": "c"})),
        (["the edge a -> b is new"], topology({"b": "c", "c": END}), LINE),
        (["the edge a -> c is new"], LINE, topology({"a": "b c", "b": "c", "c": END})),
        (
            ["the edges of a come in another order: c, b instead of b, c"],
            topology({"a": "b c"}),
            topology({"a": "c b"}),
        ),
        (["the entry is now 'b' instead of 'a'"], LINE, topology({"a": "b", "b": "c", "c": END}, entry="b")),
        (["the edge c -> END is gone", "c now has a router"], LINE, LOOP),
        (["the edge c -> END is new", "c no longer has a router"], LOOP, LINE),
        (
            ["the router of c no longer goes to a", "the router of c now also goes to b"],
            LOOP,
            topology({"a": "b", "b": "c"}, {"c": ["b", END]}),
        ),
        (
            ["the router of c now may go anywhere instead of only to END, a"],
            LOOP,
            topology({"a": "b", "b": "c"}, {"c": None}),
        ),
        (
            ["the router of c now goes only to END, a"],
            topology({"a": "b", "b": "c"}, {"c": None}),
            LOOP,
        ),
    ],
)
def test_a_change_is_told_by_name(expected: list[str], old: Topology, new: Topology) -> None:
    assert expected == list(new.differences(json.loads(json.dumps(old.shape))))
    assert old.fingerprint != new.fingerprint


def test_the_order_of_declaration_is_no_difference() -> None:
    other = topology({"c": END, "b": "c", "a": "b"}, nodes="cab")
    assert () == other.differences(LINE.shape)
    assert LINE.fingerprint == other.fingerprint


def test_a_shape_with_unknown_or_missing_parts_can_be_compared() -> None:
    assert () == LINE.differences({**LINE.shape, "forks": [], "waits": {}})
    assert "node 'a' is new" in LINE.differences({})


def test_a_fingerprint_does_not_change_between_releases() -> None:
    assert "b1104a8a9803c8a17bb46e3c1520535cf5b3bf3131f667fb7213d09532a63775" == LOOP.fingerprint


def test_a_long_chain_needs_no_recursion() -> None:
    ids = [f"n{number}" for number in range(20_000)]
    edges = {source: (target,) for source, target in zip(ids, [*ids[1:], END], strict=True)}
    chain = Topology(nodes=tuple(ids), edges=edges, routes={}, entry="n0")
    assert [] == chain.problems()
    assert not chain.has_cycle


@pytest.mark.parametrize("kind", ["chain", "routers to anywhere"])
def test_the_work_grows_with_the_size_and_not_with_its_square(kind: str) -> None:
    def check(length: int) -> None:
        ids = [f"n{number}" for number in range(length)]
        if kind == "chain":
            edges = {source: (target,) for source, target in zip(ids, [*ids[1:], END], strict=True)}
            topology = Topology(nodes=tuple(ids), edges=edges, routes={}, entry="n0")
        else:
            topology = Topology(nodes=tuple(ids), edges={}, routes=dict.fromkeys(ids, (None,)), entry="n0")
        assert [] == topology.problems()
        assert (0 if kind == "chain" else length) == len(topology.warnings())

    check(100)  # what is made at the first call counts for neither
    assert calls_of(lambda: check(1000)) < 15 * calls_of(lambda: check(100))
