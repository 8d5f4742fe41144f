"""Groups of runs that a resume would treat alike, made of the plans of single runs.

The text of a refusal names the run and its data, so that no two texts are equal. Runs are grouped by facts instead: the
flow, the verdict, the class of the refusal, the node or step without visit and item, and what has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from milepost.checking.report import BAD, Group, GroupVerdict, Source
from milepost.checking.sources import place_of
from milepost.errors import CheckpointCorruptError, CheckpointVersionError, NonDeterminismError, StoreError
from milepost.executor.flow import Flow, GraphFlow, find_node
from milepost.model.reports import ResumePlan

_REMEDY = re.compile(
    r"[:;] (?=(?:if (?:a node|it) was renamed|add|begin|branch|bring|call|choose|compile|create|give|go on|lift|mark|mend|open|"
    r"pass|put|raise|rename|restore|resume|retry|return|send|turn|upgrade milepost|use|wait)\b)"
)
"""The place in a refusal's text where the advice begins."""
_STEP = re.compile(r"^(.*? step (?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")).*$", re.DOTALL)
_ITEM = re.compile(r"(?<=/)\d+(?=/|$)|#\d+")
EXAMPLES = 20
"""The number of run ids that a group keeps."""


class RunVerdict(NamedTuple):
    """The answer for one run: whether it could go on, and why."""

    verdict: GroupVerdict
    reason: str
    error: BaseException | None = None
    differences: tuple[str, ...] = ()
    node_id: str | None = None

    @property
    def is_bad(self) -> bool:
        """True if the run can't go on."""
        return self.verdict in BAD

    @classmethod
    def of(cls, plan: ResumePlan) -> RunVerdict:
        """Return the verdict of a plan."""
        if plan.error is not None and is_unreadable(plan.error):
            return cls("not read", plan.reason, plan.error)
        node_id = getattr(plan.error, "node_id", None) or plan.next_node or plan.from_node
        return cls(plan.verdict, plan.reason, plan.error, plan.differences, node_id)


def is_unreadable(error: BaseException) -> bool:
    """Return whether an error says that a run's records can't be read, whatever the code is."""
    return isinstance(error, (CheckpointCorruptError, CheckpointVersionError, StoreError))


@dataclass(slots=True)
class GrowingGroup:
    """A group while it grows."""

    run_id: str
    first: RunVerdict
    checked: int = 0
    estimate: float = 0.0
    examples: list[str] = field(default_factory=list)


class Groups:
    """The groups of the runs that were checked so far."""

    def __init__(self, find_flow: Callable[[str], Flow | None]) -> None:
        self._find_flow = find_flow
        self._growing: dict[tuple[Any, ...], GrowingGroup] = {}

    def add(self, flow: str, run_id: str, verdict: RunVerdict, weight: float = 1.0) -> None:
        """Add a run that stands for `weight` runs."""
        group = self._growing.setdefault((flow, *key_of(verdict)), GrowingGroup(run_id, verdict))
        group.checked += 1
        group.estimate += weight
        if len(group.examples) < EXAMPLES:
            group.examples.append(run_id)

    def in_order(self) -> tuple[Group, ...]:
        """Return the groups: flows by name, and of each what is refused first."""
        groups = [self._group(key[0], growing) for key, growing in self._growing.items()]
        return tuple(sorted(groups, key=lambda group: (group.flow, not group.is_bad, -group.runs, group.reason)))

    def _group(self, flow: str, growing: GrowingGroup) -> Group:
        error, known = growing.first.error, self._find_flow(flow)
        is_bad = growing.first.is_bad
        reason, remedy = split_reason(growing.first.reason, growing.run_id) if is_bad else (growing.first.reason, "")
        return Group(
            flow=flow,
            verdict=growing.first.verdict,
            reason=reason,
            error_type=None if error is None or not is_bad else type(error).__name__,
            differences=growing.first.differences,
            runs=max(round(growing.estimate), growing.checked),
            checked=growing.checked,
            examples=tuple(growing.examples),
            remedy=remedy,
            source=None if known is None else source_of(known, growing.first.node_id),
        )


def key_of(verdict: RunVerdict) -> tuple[Any, ...]:
    """Return what runs of a flow have in common that a resume would treat alike."""
    error = verdict.error
    if isinstance(error, NonDeterminismError):
        return verdict.verdict, type(error), error.index, bare_step(error.recorded), bare_step(error.found)
    if not verdict.is_bad:
        return verdict.verdict, verdict.differences
    return verdict.verdict, type(error), bare_node(verdict.node_id), verdict.differences


def bare_node(node_id: str | None) -> str | None:
    """Return the id of a node or wait without the numbers of its visit and of items."""
    return None if node_id is None else _ITEM.sub("*", node_id)


def bare_step(described: str) -> str:
    """Return the description of a step without its arguments."""
    return _STEP.sub(r"\1", described)


def split_reason(text: str, run_id: str) -> tuple[str, str]:
    """Split the text of a refusal into what is wrong, without the run's id, and what to do about it."""
    problem, remedy = (*_REMEDY.split(text, maxsplit=1), "")[:2]
    name = re.escape(repr(run_id))
    problem = re.sub(rf" of run {name}(?= |,|$)", "", problem)
    return re.sub(rf"^run {name}:? ", "", problem), remedy


def source_of(flow: Flow, node_id: str | None) -> Source | None:
    """Return where the function of a node, or of a workflow, is defined; of a node that is gone, where the entry is."""
    if flow.front != "graph":
        return place_of(cast("Any", flow).fn)
    graph = cast("GraphFlow", flow)
    known = None if node_id is None else find_node(graph, node_id)
    unit = graph.units.get(graph.entry) if known is None else known[1]
    return None if unit is None else place_of(unit.fn)
