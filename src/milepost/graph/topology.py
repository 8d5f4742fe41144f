"""A graph as data: its nodes, their edges, and the problems in them.

A `Topology` knows ids and arrows, no functions: checks, fingerprint and differences need no more than that. Only
`walk`, which yields the units of a run, has to do with functions.

A conditional edge without declared targets counts as able to reach anything. In the analyses such an edge leads to one
made-up place, `_ANYWHERE`, which leads to every node; so the work stays linear in nodes and edges.

`Forks` finds the nodes that run side by side, and those where they meet. A node with several simple edges is a fork,
and each edge begins a branch, which is named by its first node. The join is the nearest node that every branch reaches.
Three things make that safe to run, and are proved here: no branch passes its join or ends the run, no node is in two
branches of one fork, and nothing outside leads into the middle of one. So a node inside a fork is always in the same
branch, whatever the routers say, and its id is enough to find its records.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.errors import GraphProblem
from milepost.executor.flow import END, START, Fork, Unit, Walk

Targets = Mapping[Any, str] | None
"""The answers that a router may give, each with the node or END that it means. None: any node or END."""

_ANYWHERE = ""


def walk(units: Mapping[str, Unit], forks: Mapping[str, Fork], node_id: str, until: str, is_split: bool) -> Walk:
    """Yield the units and forks from `node_id` on; the caller sends back the node to go on at after each.

    Ends at `until`. Assumes that every id is END or in `units`. `is_split`: the node itself has completed.
    """
    while node_id != until:
        here = node_id
        if not is_split:
            node_id = yield units[here]
        is_split = False
        if here in forks:
            node_id = yield forks[here]


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes in the order of their declaration, and the edges that leave each.

    The keys of `edges` and `routes` are sources. Both may contain what `problems` reports: unknown ids, an edge twice,
    several conditional edges of one node.
    """

    nodes: tuple[str, ...]
    edges: Mapping[str, tuple[str, ...]]
    routes: Mapping[str, tuple[Targets, ...]]
    entry: str | None
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The descriptions of maps, graphs, waits and timers, as JSON; they are compared like the edges."""
    _known: frozenset[str] = field(init=False, repr=False, compare=False)
    _next: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _components: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    _forks: Forks = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", frozenset(self.nodes))
        # Unknown ids are left out, and END too: nothing leaves them.
        inner = {
            node: tuple(t for t in self._targets(node) if t in self._known or t == _ANYWHERE) for node in self.nodes
        }
        if any(_ANYWHERE in targets for targets in inner.values()):
            inner[_ANYWHERE] = self.nodes
        object.__setattr__(self, "_next", inner)
        object.__setattr__(self, "_components", tuple(_components(inner)))
        simple = {node: targets for node, targets in self.edges.items() if node not in self.routes}
        object.__setattr__(self, "_forks", Forks(self.nodes, simple, self._targets, self.entry))

    @classmethod
    def of(cls, shape: Mapping[str, Any]) -> Topology:
        """Make the topology of a recorded `shape`.

        A shape lacks the answers of routers: the targets' own ids replace them.
        """
        routes = shape.get("conditional") or {}
        return cls(
            nodes=tuple(shape.get("nodes") or ()),
            edges={source: tuple(targets) for source, targets in _by_source(shape.get("edges") or ()).items()},
            routes={
                source: (None if targets is None else {target: target for target in targets},)
                for source, targets in routes.items()
            },
            entry=shape.get("entry"),
            kinds=shape.get("kinds") or {},
        )

    # -- what leads where ----------------------------------------------------------------------------

    def successors(self, node_id: str) -> tuple[str, ...]:
        """Return the nodes that may follow a node, END included, each once, in the order of declaration."""
        targets = self._targets(node_id) if node_id in self._known else ()
        return (*self.nodes, END) if _ANYWHERE in targets else targets

    def predecessors(self, node_id: str) -> tuple[str, ...]:
        """Return the nodes that `node_id` may follow, in the order of declaration."""
        if node_id not in self._known:
            return ()
        return tuple(node for node in self.nodes if node_id in self._next[node] or _ANYWHERE in self._next[node])

    def only_successor(self, node_id: str) -> str | None:
        """Return the target of a node's only simple edge; None if it has several, none, or a conditional one."""
        simple = self.edges.get(node_id, ())
        return simple[0] if len(simple) == 1 and node_id not in self.routes else None

    @property
    def forks(self) -> Mapping[str, Fork]:
        """The forks, each by the id of the node before it, in the order of declaration."""
        return self._forks.found

    def allowed(self, node_id: str) -> frozenset[str]:
        """Return the nodes that a router of `node_id` may answer with: none inside a branch that it is not in itself."""
        return self._forks.allowed(node_id)

    @property
    def has_cycle(self) -> bool:
        """True if a run can come to one node twice."""
        return any(map(self._is_cycle, self._components))

    def _targets(self, node_id: str) -> tuple[str, ...]:
        """Return all declared targets of a node's edges; `_ANYWHERE` stands for undeclared ones."""
        found = dict.fromkeys(self.edges.get(node_id, ()))
        for targets in self.routes.get(node_id, ()):
            found.update(dict.fromkeys((_ANYWHERE,) if targets is None else targets.values()))
        return tuple(found)

    # -- what is wrong -------------------------------------------------------------------------------

    def problems(self) -> list[GraphProblem]:
        """Return all problems that keep the graph from running, in a fixed order."""
        return [*self._wrong_names(), *self._wrong_edges(), *self._forks.problems, *self._wrong_paths()]

    def warnings(self) -> list[GraphProblem]:
        """Return the problems that do not keep the graph from running, and which somebody should look at."""
        reached = self._reached()
        found = [
            GraphProblem(
                "unreachable_node",
                node,
                f"node {node!r} cannot be reached from the entry {self.entry!r}: add an edge to it or remove it",
            )
            for node in self.nodes
            if node not in reached
        ]
        found += [
            GraphProblem(
                "undeclared_targets",
                node,
                f"the conditional edge from {node!r} declares no targets, so that it counts as able to reach anything: "
                "give targets=[...] to have it checked",
            )
            for node in self.nodes
            if None in self.routes.get(node, ())
        ]
        return found

    def _wrong_names(self) -> Iterator[GraphProblem]:
        if self.entry is None:
            yield GraphProblem("entry_not_set", "", "the graph has no entry: call set_entry(id)")
        elif self.entry not in self._known:
            yield GraphProblem("entry_unknown", self.entry, f"the entry {self.entry!r} is no node: {self._hint()}")
        for source in dict.fromkeys((*self.edges, *self.routes)):
            if source == END:
                text = "an edge leaves END, where a run is over: remove it"
            elif source == START:
                text = "a conditional edge leaves START: make a node the entry, and let the edge leave that"
            elif source not in self._known:
                text = f"an edge leaves {source!r}, which is no node: {self._hint()}"
            else:
                continue
            yield GraphProblem("edge_source_unknown", source, text)
        for source, targets in self.edges.items():
            for target in dict.fromkeys(targets):
                if not self._is_target(target):
                    text = f"the edge {source} -> {target} leads to no node: {self._hint(target)}"
                    yield GraphProblem("edge_target_unknown", source, text)
        for source, routes in self.routes.items():
            for target in dict.fromkeys(target for targets in routes for target in (targets or {}).values()):
                if not self._is_target(target):
                    text = f"the router of {source!r} declares {target!r}, which is no node: {self._hint(target)}"
                    yield GraphProblem("router_target_unknown", source, text)

    def _wrong_edges(self) -> Iterator[GraphProblem]:
        for source, targets in self.edges.items():
            once = dict.fromkeys(targets)
            for target in once:
                if targets.count(target) > 1:
                    text = f"the edge {source} -> {target} is there {targets.count(target)} times: keep one"
                    yield GraphProblem("duplicate_edge", source, text)
            if source in self.routes:
                text = f"{source!r} has simple edges and a conditional one: let its router decide, or remove the router"
                yield GraphProblem("mixed_edges", source, text)
        for source, routes in self.routes.items():
            if len(routes) > 1:
                text = f"{source!r} has {len(routes)} conditional edges: keep one router that decides it all"
                yield GraphProblem("several_routers", source, text)

    def _wrong_paths(self) -> Iterator[GraphProblem]:
        """Yield a problem for each cause of nodes that cannot reach END.

        Such a node leads to a node without an edge out, or into a cycle without one. Only those, and the entry, are
        reported: the nodes that merely lead there are right once they are mended.
        """
        reached = self._reached()
        if reached and not any(map(self._may_end, reached)):
            text = f"no path leads from the entry {self.entry!r} to END: add add_edge(id, END) where the run is over"
            yield GraphProblem("no_path_to_end", self.entry or "", text)
        for node in self.nodes:
            if node in reached and node != self.entry and not self._targets(node):
                text = f"{node!r} has no edge out and so cannot reach END: add add_edge({node!r}, END)"
                yield GraphProblem("dead_end", node, text)
        for part in self._components:
            inside = set(part)
            if self._is_cycle(part) and not any(self._leaves(node, inside) for node in part):
                names = _listed(node for node in self.nodes if node in inside)
                first = next(node for node in self.nodes if node in inside)
                text = f"no conditional edge leaves the cycle of {names}: let a router end it"
                yield GraphProblem("endless_cycle", first, text)

    def _is_cycle(self, component: tuple[str, ...]) -> bool:
        first, *others = component
        return bool(others) or first in self._next[first]

    def _leaves(self, node_id: str, inside: set[str]) -> bool:
        routes = self.routes.get(node_id, ())
        return any(targets is None or not inside.issuperset(targets.values()) for targets in routes)

    def _may_end(self, node_id: str) -> bool:
        # An unknown target is a problem of its own: assume that END may lie beyond it.
        return node_id == _ANYWHERE or any(t not in self._known for t in self._targets(node_id))

    def _is_target(self, node_id: str) -> bool:
        return node_id == END or node_id in self._known

    def _hint(self, target: str = "") -> str:
        if target == START:
            return "nothing leads back to START"
        if target.lower() in {"end", END}:
            return "did you mean END?"
        return f"the nodes are {_listed(self.nodes)}" if self.nodes else "add it with add_node"

    def _reached(self) -> set[str]:
        """Return the nodes that a run can come to, `_ANYWHERE` included; none without a valid entry."""
        found: set[str] = set()
        waiting = [self.entry] if self.entry in self._known else []
        while waiting:
            node = waiting.pop()
            if node is not None and node not in found:
                found.add(node)
                waiting.extend(self._next[node])
        return found

    # -- what is compared ----------------------------------------------------------------------------

    @property
    def shape(self) -> dict[str, Any]:
        """The topology as JSON; the targets of a conditional edge are sorted, or null if none are declared."""
        shape: dict[str, Any] = {
            "nodes": list(self.nodes),
            "edges": [[source, target] for source, targets in self.edges.items() for target in targets],
            "conditional": {
                source: None if targets is None else sorted(set(targets.values()))
                for source, (targets, *_) in self.routes.items()
            },
            "entry": self.entry,
        }
        if self.kinds:
            shape["kinds"] = {node: dict(kind) for node, kind in self.kinds.items()}
        return shape

    @property
    def described(self) -> dict[str, Any]:
        """The shape, completed with the forks that follow from it, also in the graphs inside."""
        found = self.shape
        if self.forks:
            found["forks"] = [
                {
                    "node": fork.node_id,
                    "branches": list(fork.branches),
                    "join": fork.join,
                    "inside": {
                        branch: [node for node in self.nodes if node in nodes] for branch, nodes in fork.inside.items()
                    },
                }
                for fork in self.forks.values()
            ]
        for kind in found.get("kinds", {}).values():
            if kind.get("shape"):
                kind["shape"] = Topology.of(kind["shape"]).described
        return found

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the shape as 64 hex digits. The order of declarations does not count, with one exception.

        The order of the edges of one node counts: they are the branches of a fork, and their order decides how results
        merge.
        """
        shape = self.shape
        shape["nodes"].sort()
        shape["edges"].sort(key=lambda edge: edge[0])
        return hashlib.sha256(json.dumps(shape, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def differences(self, recorded: Mapping[str, Any]) -> tuple[str, ...]:
        """Describe the changes since `recorded`, an earlier `shape`: a sentence for each, () for none."""
        return tuple(_differences(recorded, self.shape))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    old_nodes, new_nodes = list(old.get("nodes", ())), list(new["nodes"])
    kept = set(old_nodes) & set(new_nodes)
    yield from (f"node {node!r} is gone" for node in old_nodes if node not in kept)
    yield from (f"node {node!r} is new" for node in new_nodes if node not in kept)
    if old.get("entry") != new["entry"]:
        yield f"the entry is now {new['entry']!r} instead of {old.get('entry')!r}"
    before, after = _by_source(old.get("edges", ())), _by_source(new["edges"])
    for node in new_nodes:
        # For a node that is gone or new, the sentence about the node itself is enough.
        if node in kept:
            yield from _changed_edges(node, before.get(node, []), after.get(node, []))
    before, after = old.get("conditional", {}), new["conditional"]
    for node in new_nodes:
        if node in kept:
            yield from _changed_route(node, before, after)
    before, after = old.get("kinds", {}), new.get("kinds", {})
    for node in new_nodes:
        if node in kept:
            yield from _changed_kind(node, before.get(node) or {}, after.get(node) or {})


def _changed_kind(node: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    was, now = old.get("kind", "function"), new.get("kind", "function")
    if was != now:
        yield f"{node} is now a {now} instead of a {was}"
        return
    for name in sorted({*old, *new} - {"shape"}):
        if old.get(name) != new.get(name):
            yield f"the {name} of {node} is now {new.get(name)!r} instead of {old.get(name)!r}"
    before, after = old.get("shape"), new.get("shape")
    if before and after:
        yield from (f"in {node}: {difference}" for difference in _differences(before, after))
    elif before or after:
        by, instead = ("a graph", "a function") if after else ("a function", "a graph")
        yield f"the items of {node} are now done by {by} instead of {instead}"


def _by_source(edges: Iterable[Iterable[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for source, target in edges:
        found.setdefault(source, []).append(target)
    return found


def _changed_edges(node: str, old: list[str], new: list[str]) -> Iterator[str]:
    gone = [target for target in old if target not in new]
    added = [target for target in new if target not in old]
    if len(gone) == 1 and len(added) == 1:
        yield f"the edge {node} -> {_place(gone[0])} now goes to {_place(added[0])}"
    else:
        yield from (f"the edge {node} -> {_place(target)} is gone" for target in gone)
        yield from (f"the edge {node} -> {_place(target)} is new" for target in added)
    if not gone and not added and old != new:
        yield f"the edges of {node} come in another order: {_arrows(new)} instead of {_arrows(old)}"


def _changed_route(node: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if node not in old and node not in new:
        return
    if node not in old:
        yield f"{node} now has a router"
    elif node not in new:
        yield f"{node} no longer has a router"
    elif old[node] is None and new[node] is not None:
        yield f"the router of {node} now goes only to {_arrows(new[node])}"
    elif new[node] is None and old[node] is not None:
        yield f"the router of {node} now may go anywhere instead of only to {_arrows(old[node])}"
    elif old[node] != new[node]:
        gone = [target for target in old[node] if target not in new[node]]
        added = [target for target in new[node] if target not in old[node]]
        yield from (f"the router of {node} no longer goes to {_place(target)}" for target in gone)
        yield from (f"the router of {node} now also goes to {_place(target)}" for target in added)


def _place(node_id: str) -> str:
    return "END" if node_id == END else node_id


def _arrows(targets: Iterable[str]) -> str:
    return ", ".join(map(_place, targets)) or "nothing"


def _listed(ids: Iterable[str]) -> str:
    """List ids for a message; after the first eight, give only the number of the others."""
    names = list(ids)
    shown = ", ".join(repr(name) for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _components(graph: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the strongly connected components. There is no recursion, so that a long chain of nodes is no trouble.

    Source: R. Tarjan, "Depth-first search and linear graph algorithms", 1972.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: dict[str, None] = {}
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        open_[root] = None
        path = [(root, iter(graph[root]))]
        while path:
            node, rest = path[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    open_[target] = None
                    path.append((target, iter(graph[target])))
                    break
                if target in open_:
                    low[node] = min(low[node], index[target])
            else:
                path.pop()
                if path:
                    parent = path[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    part = []
                    while True:
                        member, _ = open_.popitem()
                        part.append(member)
                        if member == node:
                            break
                    yield tuple(part)


# -- forks and joins ---------------------------------------------------------------------------------------


Reach = Callable[[str], Sequence[str]]
"""A function that returns the nodes that may follow a node, END included; "" stands for anywhere."""


class Forks:
    """The forks of a graph, and their problems.

    `edges` are the simple edges of each node that has no router; `targets` gives all targets of a node's edges.
    """

    def __init__(
        self, nodes: Sequence[str], edges: Mapping[str, Sequence[str]], targets: Reach, entry: str | None
    ) -> None:
        self.problems: list[GraphProblem] = []
        self._order = {node: number for number, node in enumerate(nodes)}
        self._targets = targets
        self._allowed: dict[frozenset[tuple[str, str]], frozenset[str]] = {}
        found: dict[str, Fork] = {}
        for node in nodes:
            branches = tuple(dict.fromkeys(edges.get(node, ())))
            if len(branches) > 1 and all(branch == END or branch in self._order for branch in branches):
                fork = self._fork(node, branches)
                if fork is not None:
                    found[node] = fork
        self.found: Mapping[str, Fork] = found
        if not self.problems:
            self.problems += self._entered(entry)

    def allowed(self, node_id: str) -> frozenset[str]:
        """Return the nodes that may follow `node_id` as far as forks decide it: none inside a branch that it is not in."""
        around = frozenset(
            (fork.node_id, branch)
            for fork in self.found.values()
            for branch, nodes in fork.inside.items()
            if node_id in nodes
        )
        if around not in self._allowed:
            closed: set[str] = set()
            for fork in self.found.values():
                closed.update(*(nodes for branch, nodes in fork.inside.items() if (fork.node_id, branch) not in around))
            self._allowed[around] = frozenset(self._order.keys() - closed)
        return self._allowed[around]

    # -- finding the join ------------------------------------------------------------------------------

    def _fork(self, node: str, branches: tuple[str, ...]) -> Fork | None:
        who = f"the fork after {node!r}"
        if END in branches:
            self._problem(
                node, f"{who} has an edge to END: let all of its branches meet in a join, and end the run there"
            )
            return None
        distances = [self._distances(branch, node) for branch in branches]
        common = set(distances[0]).intersection(*distances[1:])
        if not common:
            # If routers may answer anything, the node where their branches meet cannot be determined.
            undeclared = [
                other
                for other in self._order
                if "" in self._targets(other) and any(other in reached for reached in distances)
            ]
            if undeclared:
                found = (self._undeclared(other, f"what follows the fork after {node!r}") for other in undeclared)
                self.problems += [problem for problem in found if problem not in self.problems]
                return None
            self._problem(node, f"{who} has no join: there is no node that every branch ({_quoted(branches)}) reaches")
            return None
        join = min(
            common,
            key=lambda place: (
                max(reached[place] for reached in distances),
                sum(reached[place] for reached in distances),
                self._order[place],
            ),
        )
        inside = {branch: frozenset(self._before(branch, node, join)) for branch in branches}
        wrong = [*self._wrong_branches(node, join, inside)]
        self.problems += wrong
        return None if wrong else Fork(node, branches, join, inside)

    def _distances(self, start: str, fork: str) -> dict[str, int]:
        """Return the distance of each node that can be reached from `start` without coming to the fork again."""
        found = {start: 0}
        waiting = deque([start] if start != fork else [])
        while waiting:
            node = waiting.popleft()
            for target in self._targets(node):
                if target in self._order and target != fork and target not in found:
                    found[target] = found[node] + 1
                    waiting.append(target)
        return found

    def _before(self, start: str, fork: str, join: str) -> set[str]:
        """Return the nodes of the branch that begins with `start`; the fork itself too if the branch leads back to it."""
        found: set[str] = set()
        waiting = [start]
        while waiting:
            node = waiting.pop()
            if node in found or node == join or node not in self._order:
                continue
            found.add(node)
            if node != fork:
                waiting.extend(self._targets(node))
        return found

    # -- what is wrong ---------------------------------------------------------------------------------

    def _wrong_branches(self, fork: str, join: str, inside: Mapping[str, frozenset[str]]) -> Iterator[GraphProblem]:
        seen: dict[str, str] = {}
        for branch, nodes in inside.items():
            who = f"branch {branch!r} of the fork after {fork!r}"
            if fork in nodes:
                text = f"{who} leads back to {fork!r} without passing the join {join!r}: let the join's router do that"
                yield GraphProblem("fork_without_join", fork, text)
            for node in self._in_order(nodes - {fork}):
                targets = self._targets(node)
                if "" in targets:
                    yield self._undeclared(node, who)
                if END in targets:
                    text = f"{who} can reach END from {node!r} without the join {join!r}: lead it to the join"
                    yield GraphProblem("fork_without_join", node, text)
                if node in seen:
                    text = (
                        f"{node!r} is in two branches of the fork after {fork!r}, {seen[node]!r} and {branch!r}, and not "
                        f"all of them meet there: give each a node of its own, or let those two be a fork of their own"
                    )
                    yield GraphProblem("branches_overlap", node, text)
                seen[node] = branch

    def _entered(self, entry: str | None) -> Iterator[GraphProblem]:
        """Yield a problem for each edge into a branch from outside. Along it a run would be in this branch alone."""
        for fork in self.found.values():
            for branch, nodes in fork.inside.items():
                for node in self._in_order(nodes):
                    sources = [
                        other
                        for other in self._order
                        if other not in nodes
                        and node in self._targets(other)
                        and (other, node) != (fork.node_id, branch)
                    ]
                    if node == entry:
                        sources.insert(0, "START")
                    for source in sources:
                        text = (
                            f"the edge {source} -> {node} leads into branch {branch!r} of the fork after {fork.node_id!r}: "
                            f"a branch begins at its fork only"
                        )
                        yield GraphProblem("branch_entered_from_outside", node, text)

    def _undeclared(self, node: str, who: str) -> GraphProblem:
        text = f"{who} has a router after {node!r} without declared targets: give targets=[...]"
        return GraphProblem("undeclared_targets_in_branch", node, text)

    def _problem(self, node: str, text: str) -> None:
        self.problems.append(GraphProblem("fork_without_join", node, text))

    def _in_order(self, nodes: Iterable[str]) -> list[str]:
        return sorted(nodes, key=self._order.__getitem__)


def _quoted(ids: Iterable[str]) -> str:
    return ", ".join(map(repr, ids))
