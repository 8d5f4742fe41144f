"""Forks and joins: the nodes that run side by side, and those where they meet. Ids and arrows only, like the topology.

A node with several simple edges is a fork, and each edge begins a branch, which is named by its first node. The join is
the nearest node that every branch reaches. Three things make that safe to run, and are proved here: no branch passes
its join or ends the run, no node is in two branches of one fork, and nothing outside leads into the middle of one. So a
node inside a fork is always in the same branch, whatever the routers say, and its id is enough to find its records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from milepost.errors import GraphProblem
from milepost.executor.flow import END, Fork

Targets = Callable[[str], Sequence[str]]
"""A function that returns the nodes that may follow a node, END included; "" stands for anywhere."""


class Forks:
    """The forks of a graph, and their problems.

    `edges` are the simple edges of each node that has no router; `targets` gives all targets of a node's edges.
    """

    def __init__(
        self, nodes: Sequence[str], edges: Mapping[str, Sequence[str]], targets: Targets, entry: str | None
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
            self._problem(node, f"{who} has no join: there is no node that every branch ({_listed(branches)}) reaches")
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


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(map(repr, ids))
