"""The report of a check, as a value: for code, as text for people, and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from milepost.views.text import clean, duration, number, plural, short

GroupVerdict = Literal["continue", "waiting", "roll_back", "finished", "refuse", "not read"]

WORDS: Mapping[str, str] = {
    "continue": "go on",
    "waiting": "wait",
    "roll_back": "roll back",
    "finished": "finished",
    "refuse": "refused",
    "not read": "not read",
}
"""The verdicts as people are told them."""
BAD = frozenset({"refuse", "not read"})
"""The verdicts with which a report is not ok."""
_SHOWN = 5
"""The number of run ids that the text names for a group."""
_WIDTH = 160
"""The number of characters of a reason that the text shows."""


class Source(NamedTuple):
    """A place in the user's code. `file` is relative to the working directory if it is below it."""

    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The runs of a flow that a resume would treat alike."""

    flow: str
    verdict: GroupVerdict
    reason: str
    """The outcome of a resume of the first example, or the reason for which it would be refused."""
    error_type: str | None
    """The class of the refusal; None without one."""
    differences: tuple[str, ...]
    """A sentence for each change of the flow's code since these runs began, as far as it is known."""
    runs: int
    """The number of runs; an estimate from the sample if not all runs were checked."""
    checked: int
    """The number of these runs that were checked."""
    examples: tuple[str, ...]
    """The ids of some of them."""
    remedy: str
    """The advice about a refusal; "" without one."""
    source: Source | None
    """The function of the node or workflow; None if it is not known."""

    @property
    def is_bad(self) -> bool:
        """True if these runs can't go on."""
        return self.verdict in BAD

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain values."""
        document = {name: getattr(self, name) for name in self.__slots__}
        document["differences"], document["examples"] = [*self.differences], [*self.examples]
        document["source"] = None if self.source is None else self.source._asdict()
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The outcome that a resume of each run in a store would have with the present code; `str` gives it as text."""

    checked: int
    """The number of runs that were checked."""
    of: int
    """The number of runs that were found, without those of unknown flows."""
    groups: tuple[Group, ...]
    kinds: int = 0
    """The number of kinds of runs that a sample was taken of: by flow, fingerprint, place and error. Each was seen."""
    seed: int | None = None
    """The seed of the sample; None if all runs were checked."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """The flows that the engine does not have, with the number of their runs, which were not checked."""
    what: str = "open run"
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if no run that was checked would be refused, and each could be read. Also True if there was none."""
        return not any(group.is_bad for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "ok": self.ok,
            "checked": self.checked,
            "of": self.of,
            "kinds": self.kinds,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "unknown_flows": dict(self.unknown),
            "groups": [group.to_dict() for group in self.groups],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        flows = dict.fromkeys(group.flow for group in self.groups)
        time = duration(self.seconds * 1000)
        yield f"{number(self.checked)} of {plural(self.of, self.what)} of {plural(len(flows), 'flow')}, {time}"
        if self.seed is not None:
            yield f"  a sample of {plural(self.kinds, 'kind')} of runs, all seen; --seed {self.seed} takes the same one"
        width = max((len(clean(flow)) for flow in flows), default=0)
        for flow in flows:
            mine = [group for group in self.groups if group.flow == flow]
            counts = {
                verdict: sum(group.runs for group in mine if group.verdict == verdict)
                for verdict in WORDS
                if any(group.verdict == verdict for group in mine)
            }
            parts = "   ".join(f"{WORDS[verdict]}: {number(count)}" for verdict, count in counts.items())
            yield f"  {clean(flow).ljust(width)}  {number(sum(counts.values()))}  {parts}"
        for title, groups in (
            ("refused:", [group for group in self.groups if group.verdict == "refuse"]),
            ("not read:", [group for group in self.groups if group.verdict == "not read"]),
        ):
            yield from _listed(title, groups, width)
        changed = [group for group in self.groups if not group.is_bad and group.differences]
        if changed:
            yield "changed, but they go on:"
        for group in changed:
            yield f"  {clean(group.flow).ljust(width)}  {_count(group)}: {short('; '.join(group.differences), _WIDTH)}"
        for flow, count in self.unknown.items():
            yield f"not checked: {plural(count, 'run')} of flow {clean(flow)!r}, which the app does not have"


def _listed(title: str, groups: Iterable[Group], width: int) -> Iterator[str]:
    for place, group in enumerate(groups):
        if place == 0:
            yield title
        examples = ", ".join(clean(example) for example in group.examples[:_SHOWN])
        indent = " " * (width + 4)
        yield f"  {clean(group.flow).ljust(width)}  {_count(group)}: {short(group.reason, _WIDTH)}"
        more = ", ..." if group.runs > min(len(group.examples), _SHOWN) else ""
        yield f"{indent}such as {examples}{more}"
        if group.remedy:
            yield f"{indent}remedy: {clean(group.remedy)}"
        if group.source is not None:
            yield f"{indent}at {clean(group.source.file)}:{group.source.line}"


def _count(group: Group) -> str:
    return ("" if group.runs == group.checked else "about ") + plural(group.runs, "run")
