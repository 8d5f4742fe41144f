"""The judgement of crashed runs: what differs from the undisturbed run, and which node is to blame for it.

Two undisturbed runs must record the same, or a node is not deterministic, and nothing can be learned from a crash. A
crashed run must end like an undisturbed one. The world beside the run, which a probe looks at, must end the same too:
a difference is blamed on the node that ran again in that scenario.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from milepost.errors import MissingExtraError
from milepost.model.record import CHECKPOINT, ROUTE
from milepost.testing.scenarios import Output, Problem, Scenario, text_of, why

__all__ = ["CrashReport", "Disagreement", "Judge", "NodeReport", "NonDeterministicNode", "check_repeatable", "names_of"]

NodeVerdict = Literal["safe", "not idempotent", "not looked at", "not tried"]
HINT = "take random numbers from ctx.random(), the time from ctx.now(), and sort what comes from a set"


class NonDeterministicNode(AssertionError):
    """The error for a node or step that did not do the same in two undisturbed runs.

    `node` and `visit` say which. `values` are the two values, as JSON, that were recorded: results, arguments, or names
    of nodes where the runs went different ways.
    """

    def __init__(self, text: str, node: str, visit: int, values: tuple[Any, Any]) -> None:
        super().__init__(text)
        self.node = node
        self.visit = visit
        self.values = values


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The findings about one node or step, of a rollback (`rollback of ...`), or of other code of the flow."""

    node: str
    ran_again: int
    """The number of its calls beyond those of the undisturbed run, over all disturbed runs."""
    world_difference: tuple[dict[str, Any], ...]
    """The JSON Patch (RFC 6902) from the undisturbed world to the first one that its second call has changed."""
    verdict: NodeVerdict
    """"safe": it ran again, or has nothing to run, and the world was the same each time. "not looked at": without
    `world=` nobody knows. "not tried": it never ran again, since too few places were tried, or only beside another node
    that changes the world, so that nobody can tell."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The scenarios that did not end like the undisturbed run, and for which one node is to blame."""

    node: str
    what: str
    """The difference in the first of them."""
    places: tuple[str, ...]
    """Descriptions of the moments at which processes died."""


@dataclass(frozen=True, slots=True)
class CrashReport:
    """A report of the runs that were tried. `crashtest` returns it only if all of them have ended alike."""

    effects: tuple[str, ...]
    """The names of the effects of the undisturbed run, in order."""
    calls: tuple[str, ...]
    """The node visits that the undisturbed run called, in order, as `node#visit`, one for each attempt."""
    scenarios: int
    """The number of disturbed runs."""
    crashes: int
    """The number of processes that died in them."""
    nodes: tuple[NodeReport, ...] = ()
    """The findings about each node or step, in the order of the undisturbed run."""
    disagreements: tuple[Disagreement, ...] = ()
    """The scenarios that ended otherwise: none in a report that `crashtest` returns."""

    @property
    def not_idempotent(self) -> tuple[str, ...]:
        """The nodes that changed the world by running again."""
        return tuple(node.node for node in self.nodes if node.verdict == "not idempotent")


@dataclass(frozen=True, slots=True)
class _Case:
    """The effect of a disturbed run on the world."""

    nodes: tuple[str, ...]
    """The nodes that ran again in it."""
    deaths: int
    patch: tuple[dict[str, Any], ...]
    change: frozenset[tuple[Any, int]]
    """The values that the world has more and less often than undisturbed: the same in whatever order they came."""


class Judge:
    """The comparison of disturbed runs with the undisturbed one."""

    def __init__(
        self, plain: Scenario, flow: str, front: str, nondeterministic: Collection[str], *, looks: bool
    ) -> None:
        self._plain = plain
        self._flow = flow
        self._front = front
        self._nondeterministic = nondeterministic
        self._looks = looks
        self._tried = self._crashes = 0
        self._again: Counter[str] = Counter()
        self._cases: list[_Case] = []
        self._disagreeing: dict[str, list[tuple[str, Scenario]]] = {}
        self.first_error: Exception | None = None
        """The error of the first scenario that disagrees; None if it has ended."""

    def add(self, scenario: Scenario) -> None:
        """Compare one disturbed run."""
        self._tried += 1
        self._crashes += len(scenario.died)
        again = scenario.called - self._plain.called
        self._again += again
        problem = self._problem_of(scenario)
        if problem is not None:
            if not self._disagreeing:
                self.first_error = scenario.error
            self._disagreeing.setdefault(self._differs_at(scenario, again), []).append((problem, scenario))
        if self._looks and scenario.error is None:
            # The code of a workflow runs again in each process.
            blamed = tuple(again) if again and self._front == "graph" else (*again, self._unseen(scenario))
            patch = difference(self._plain.world, scenario.world)
            change = _change(self._plain.world, scenario.world)
            self._cases.append(_Case(blamed, len(scenario.died), patch, change))

    def report(self) -> CrashReport:
        """Return what was found."""
        found = [
            Disagreement(node, cases[0][0], tuple(scenario.place for _, scenario in cases))
            for node, cases in self._disagreeing.items()
        ]
        calls = tuple(f"{node_id}#{visit}" for node_id, visit in self._plain.calls)
        nodes = tuple(self._nodes())
        return CrashReport(tuple(self._plain.effects), calls, self._tried, self._crashes, nodes, tuple(found))

    def _problem_of(self, scenario: Scenario) -> str | None:
        """Return how a run differs from the undisturbed one; None if it ended like it, with no call too many."""
        if scenario.error is not None:
            return why(scenario.error)
        try:
            self._compare(scenario)
        except Problem as exc:
            return str(exc)
        return None

    def _compare(self, scenario: Scenario) -> None:
        plain, is_in_line = self._plain, scenario.is_in_line and self._plain.is_in_line
        if scenario.status != plain.status or (scenario.data != plain.data and not self._nondeterministic):
            raise Problem(
                f"the run ended {scenario.status} with {text_of(scenario.data)}; undisturbed it ends {plain.status} with "
                f"{text_of(plain.data)}"
            )
        is_other = is_in_line and scenario.visits != plain.visits
        if is_other or sorted(scenario.visits) != sorted(plain.visits):
            raise Problem(f"the run's history is {scenario.visits}; undisturbed it is {plain.visits}")
        extra = Counter(scenario.calls) - Counter(plain.calls)
        # A crash may interrupt one call in each open branch.
        most = extra.total() if is_in_line else max(extra.values(), default=0)
        if most > len(scenario.died):
            raise Problem(
                f"{dict(extra)} were called more often than undisturbed: at most one call more for each crash is due"
            )

    def _differs_at(self, scenario: Scenario, again: Counter[str]) -> str:
        """Return the node that is to blame for a run that ended otherwise: the first one with another result."""
        known = {output.key: output for output in scenario.outputs}
        for output in self._plain.outputs:
            found = known.get(output.key)
            if found is not None and found != output and output.kind in {CHECKPOINT, ROUTE}:
                return output.node_id
        return next(iter(again), None) or self._unseen(scenario)

    def _unseen(self, scenario: Scenario) -> str:
        """Return a name for what has run where no call was made again: a workflow's own code, or what came next."""
        return f"code of {self._flow}" if self._front == "workflow" else scenario.first_after or self._flow

    def _nodes(self) -> Iterator[NodeReport]:
        culprits, cleared = self._culprits()
        known = [node_id for node_id, _ in self._plain.visits]
        known += [node_id for node_id, _ in self._plain.calls]
        known += [name for name in self._plain.called if name.startswith("rollback of ")]
        for node in dict.fromkeys([*known, *culprits]):
            patch = culprits.get(node, ())
            verdict: NodeVerdict = "safe"
            if patch:
                verdict = "not idempotent"
            elif not self._looks:
                verdict = "not looked at"
            elif node in self._plain.called and (not self._again[node] or node not in cleared):
                verdict = "not tried"
            yield NodeReport(node, self._again[node], patch, verdict)

    def _culprits(self) -> tuple[dict[str, tuple[dict[str, Any], ...]], set[str]]:
        """Return the first change of the world by each node that is to blame for one, and the nodes that changed nothing.

        Where several ran again in one scenario, that one is to blame which has changed the world alone, and the others if
        the world has changed by more than that; else those that have not run alone without a change.
        """
        single = [case for case in self._cases if len(case.nodes) == 1]
        alone = {case.nodes[0] for case in single if not case.patch}
        own: dict[tuple[str, int], set[Any]] = {}
        for case in single:
            own.setdefault((case.nodes[0], case.deaths), set()).add(case.change)
        culprits: dict[str, tuple[dict[str, Any], ...]] = {}
        cleared: set[str] = set()
        for case in sorted(self._cases, key=lambda case: len(case.nodes)):
            known = [node for node in case.nodes if node in culprits] if len(case.nodes) > 1 else []
            changes = [own.get((node, case.deaths), set()) for node in known]
            if not case.patch or any(case.change in found for found in changes):
                cleared.update(case.nodes)
            elif all(changes):
                others = [node for node in case.nodes if node not in alone and node not in known]
                for node in others if others or known else case.nodes:
                    culprits.setdefault(node, case.patch)
        return culprits, cleared


def _change(before: Any, after: Any) -> frozenset[tuple[Any, int]]:
    """Return how much more often each value is in the one world than in the other, by its path without places in lists."""
    counts = Counter(_values(after))
    counts.subtract(_values(before))
    return frozenset((value, count) for value, count in counts.items() if count)


def _values(world: Any, path: tuple[str, ...] = ()) -> Iterator[Any]:
    if isinstance(world, Mapping):
        for name, value in world.items():
            yield from _values(value, (*path, str(name)))
    elif isinstance(world, (list, tuple)):
        for value in world:
            yield from _values(value, path)
    else:
        yield path, repr(world)


# -- Two undisturbed runs ----------------------------------------------------------------------------------


def check_repeatable(one: Scenario, other: Scenario, flow: str, front: str, nondeterministic: Collection[str]) -> None:
    """Raise `NonDeterministicNode` for the first record of the first run that differs in the other.

    From the first visit of a node in `nondeterministic` on, only the way that the run takes is compared.
    """
    what = "node" if front == "graph" else "step"
    known = dict(_numbered(other.outputs))
    is_free = False
    for number, (key, output) in enumerate(_numbered(one.outputs)):
        found = known.pop(key, None)
        where = f"{what} {output.node_id!r}" + (f" (visit {output.visit})" if output.visit > 1 else "")
        if found is None:
            raise _parted(one.outputs, other.outputs, number)
        is_free |= not names_of(output.node_id).isdisjoint(nondeterministic)
        pairs = [("the way after " if output.kind in {CHECKPOINT, ROUTE} else "", output.way, found.way)]
        if not is_free:
            both = zip(output.value, found.value, strict=True)
            arguments, results = (tuple(map(_json, pair)) for pair in both)
            pairs = [("the arguments of ", *arguments), ("", *results), *pairs]
        for before, mine, theirs in pairs:
            if mine != theirs:
                text = f"{before}{where} is not deterministic: {describe_difference(mine, theirs)}; {HINT}"
                raise NonDeterministicNode(text, output.node_id, output.visit, (mine, theirs))
    if known:
        raise _parted(one.outputs, other.outputs, len(one.outputs))
    if (one.status, one.data) != (other.status, other.data) and not is_free:
        values = _json(one.data), _json(other.data)
        text = f"flow {flow!r} is not deterministic: its result is {describe_difference(*values)}; {HINT}"
        raise NonDeterministicNode(text, flow, 1, values)


def names_of(node_id: str) -> set[str]:
    """Return the names by which a node or step may be meant: its own, and those of the map or group that it is part of."""
    parts = node_id.split("/")
    return {"/".join(parts[: number + 1]) for number in range(len(parts))}


def _numbered(outputs: Iterable[Output]) -> Iterator[tuple[tuple[Any, ...], Output]]:
    """Yield outputs with keys that differ: a visit may have failed several times."""
    seen: Counter[Any] = Counter()
    for output in outputs:
        seen[output.key] += 1
        yield (*output.key, seen[output.key]), output


def _parted(one: Sequence[Output], other: Sequence[Output], number: int) -> NonDeterministicNode:
    """Make the error for two runs that went different ways at or before record `number`."""
    pairs = zip(one, other, strict=False)
    at = next(
        (i for i, (mine, theirs) in enumerate(pairs) if mine.key != theirs.key), min(len(one), len(other), number)
    )
    names = [f"{found[at].node_id}#{found[at].visit}" if at < len(found) else None for found in (one, other)]
    known = one[at] if at < len(one) else other[at]
    shown = [name or "its end" for name in names]
    text = f"two undisturbed runs go different ways: one comes to {shown[0]}, the other to {shown[1]}; {HINT}"
    return NonDeterministicNode(text, known.node_id, known.visit, (names[0], names[1]))


def _json(data: Any) -> Any:
    """Return bytes as the JSON that they are, or as text; anything else as it is."""
    try:
        return json.loads(data) if isinstance(data, bytes) else data
    except ValueError:
        return data.decode("utf-8", "replace")


def describe_difference(one: Any, other: Any, path: str = "") -> str:
    """Describe the first difference of two JSON values that are not equal: its place, and both values there."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in [*one, *(name for name in other if name not in one)]:
            if name not in one or name not in other or one[name] != other[name]:
                return describe_difference(one.get(name), other.get(name), f"{path}.{name}" if path else str(name))
    if isinstance(one, list) and isinstance(other, list):
        for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            if mine != theirs:
                return describe_difference(mine, theirs, f"{path}.{number}" if path else str(number))
    shown = [text_of(json.dumps(value, ensure_ascii=False).encode()) for value in (one, other)]
    return f"{path} {shown[0]} / {shown[1]}".lstrip()


def difference(before: Any, after: Any) -> tuple[dict[str, Any], ...]:
    """Return the JSON Patch from one world to the other. Raises `MissingExtraError` where jsonpatch is not installed."""
    if before == after:
        return ()
    try:
        import jsonpatch
    except ModuleNotFoundError as exc:
        raise MissingExtraError("world= needs jsonpatch: pip install 'milepost[cli]'", extra="cli") from exc
    return tuple(jsonpatch.make_patch(before, after).patch)
