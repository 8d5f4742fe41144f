"""The timeline of a run: work, waits and pauses, as rows of bars in percent of a line. Only records are needed.

A record has the time at which something ended. A visit's last attempt began `duration_ms` before its checkpoint; an
attempt that failed began when the one before it was to be tried again, or else with the newest record on its path.

Times in which no node worked and nothing else happened are short on the line if they are long: each of them, if it takes
more than 30 seconds and a tenth of the whole, becomes a gap of a fixed width.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from milepost.errors import DeserializeStateError
from milepost.executor.history_values import parent_of
from milepost.graph.status import time_of
from milepost.model.beginning import BEGIN
from milepost.model.checkpoint import read_envelope
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import (
    CHECKPOINT,
    CONTINUE,
    FAILURE,
    FINISH,
    ITEMS,
    OWNER,
    REPLY,
    ROLLBACK,
    START,
    WAIT,
    Record,
    segments_of,
)
from milepost.store import ENDED
from milepost.views.text import clean, duration, iso, plural

_MOST_BARS = 100
_MOST_ITEMS = 8
_SHORTEST_GAP = 30.0
_GAP_SHARE = 0.1
_GAP_WIDTH = 4.0

_OWNERS = {"worker": "taken by a worker", CONTINUE: "a new turn begins", BEGIN: "", "delete": "", "rename": ""}
"""The texts for the verbs of owner records, where they are not the verb itself. "": the owner stays the same."""

_WORK = frozenset({"done", "failed", "running"})
"""The kinds of bars in which code of the user runs."""


class Bar(NamedTuple):
    """A stretch of time of one node. `x` and `width` are percents of the line.

    `kind` is done, failed (an attempt), running, pause (before the next attempt), wait, ready (nobody had taken the run)
    or rollback.
    """

    kind: str
    x: float
    width: float
    text: str
    is_superseded: bool = False


class Lane(NamedTuple):
    """The bars of one node, step, branch or item, oldest first. `node_id` is "" for the run's own row."""

    node_id: str
    label: str
    depth: int
    bars: Sequence[Bar]
    took: str
    """The time that its code ran, for people; "" if it did not."""


class Mark(NamedTuple):
    """A change of the run's owner: its place on the line in percent, the time, and what happened."""

    x: float
    at: datetime
    text: str


class Gap(NamedTuple):
    """A time without work that is drawn short, and the text of its length."""

    x: float
    width: float
    text: str


class Timeline(NamedTuple):
    """The rows of a run, in the order in which they began, inner ones after the one that contains them."""

    begin: datetime | None
    """The time at the left end of the line; None if no record has a time."""
    end: datetime | None
    rows: Sequence[Lane]
    marks: Sequence[Mark]
    gaps: Sequence[Gap]
    left_out: int
    """The number of older bars that are not here."""


class _Span(NamedTuple):
    node_id: str
    kind: str
    begin: float
    end: float
    text: str
    is_superseded: bool = False


def timeline_document(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as JSON."""
    return {
        "begin": iso(timeline.begin),
        "end": iso(timeline.end),
        "rows": [{**row._asdict(), "bars": [bar._asdict() for bar in row.bars]} for row in timeline.rows],
        "marks": [{**mark._asdict(), "at": iso(mark.at)} for mark in timeline.marks],
        "gaps": [gap._asdict() for gap in timeline.gaps],
        "left_out": timeline.left_out,
    }


def read_timeline(
    records: Iterable[Record],
    live: Ranges,
    status: str,
    now: datetime,
    *,
    running: Iterable[str] = (),
    has_gaps: bool = True,
) -> Timeline:
    """Make the timeline of a run from its records, or from the newest of them, its live ranges and its status.

    `running` are the whole ids of the nodes that somebody executes now. With `has_gaps=False` the line is true to scale.
    """
    reader = _Reader(live)
    for record in records:
        reader.read(record)
    reader.end(status, now.timestamp(), frozenset(running))
    spans = sorted(reader.spans, key=lambda span: (span.begin, span.end))
    shown = spans[-_MOST_BARS:]
    left_out = len(spans) - len(shown)
    begin = min((span.begin for span in shown), default=reader.newest)
    marks = [(at, text) for at, text in reader.marks if at >= begin]
    end = max([begin, *(span.end for span in shown), *(at for at, _ in marks)])
    line = _Line(begin, end, _gaps(shown, [at for at, _ in marks], begin, end) if has_gaps else [])
    return Timeline(
        None if reader.tz is None else datetime.fromtimestamp(begin, reader.tz),
        None if reader.tz is None else datetime.fromtimestamp(end, reader.tz),
        [*_rows(shown, reader.maps, line)],
        [Mark(line.place(at), datetime.fromtimestamp(at, reader.tz), text) for at, text in marks],
        [Gap(line.place(first), _GAP_WIDTH, duration((last - first) * 1000)) for first, last in line.gaps],
        left_out,
    )


# -- from records to spans -----------------------------------------------------------------------------------


class _Reader:
    """The spans and owners that a run's records tell of, read in order."""

    def __init__(self, live: Ranges) -> None:
        self.live = live
        self.spans: list[_Span] = []
        self.marks: list[tuple[float, str]] = []
        self.maps: set[str] = set()
        self.tz: Any = None
        self.newest = 0.0
        """The time of the newest record."""
        self._is_taken = False
        self._started: float | None = None
        self._at: dict[str, float] = {}
        """The time of the newest record on each path."""
        self._again: dict[str, float] = {}
        """When a node that failed is to be tried again."""
        self._waits: dict[str, tuple[float, str]] = {}

    def read(self, record: Record) -> None:
        try:
            fields = read_envelope(record.state() or b"")[0] if record.is_foreign else record.fields()
        except DeserializeStateError:
            return
        moment = time_of(fields.get("timestamp"))
        if moment is None:
            return
        self.tz, at = moment.tzinfo, moment.timestamp()
        self.newest = max(self.newest, at)
        branch = str(fields.get("branch") or "")
        if record.kind == START:
            self._started = at
        elif record.kind == OWNER:
            self._owner(at, fields)
        elif record.kind == ITEMS and "count" in fields:
            self.maps.add(record.node_id)
        elif record.kind == WAIT:
            signal = fields.get("signal")
            self._waits[record.node_id] = at, "waited" if signal is None else f"waited for {signal}"
        elif record.kind == REPLY and not fields.get("refused"):
            self._replied(record, at)
        elif record.kind == ROLLBACK:
            failed = "" if fields.get("message") is None else ": it failed"
            self._add(record, "rollback", at, at, f"rolled back{failed}")
        elif record.kind == FAILURE and record.node_id:
            self._failed(record, at, branch, fields)
        elif record.kind == CHECKPOINT:
            self._done(record, at, fields)
        self._is_taken = self._is_taken or record.kind not in {START, FINISH}
        self._at[branch] = at

    def _owner(self, at: float, fields: Mapping[str, Any]) -> None:
        verb = str(fields.get("verb"))
        what = "taken over after a crash" if fields.get("crashed") else _OWNERS.get(verb, clean(verb))
        by = "" if fields.get("by") is None else f" by {clean(fields['by'])}"
        if not self._is_taken and self._started is not None and not fields.get("crashed"):
            text = _lasting("ready, nobody had taken it", self._started, at)
            self.spans.append(_Span("", "ready", self._started, at, text))
        self.marks += [(at, what + by)] if what else []

    def _replied(self, record: Record, at: float) -> None:
        begin, text = self._waits.pop(record.node_id, (at, "waited"))
        self._add(record, "wait", begin, at, _lasting(text, begin, at))

    def _failed(self, record: Record, at: float, branch: str, fields: Mapping[str, Any]) -> None:
        before = [self._at.get(path, 0.0) for path in ("", *_paths(branch))]
        begin = min(max(self._again.get(record.node_id, 0.0), *before) or at, at)
        attempt = fields.get("attempt") or 1
        error = clean(fields.get("error_type"))
        self._add(record, "failed", begin, at, _lasting(f"attempt {attempt} failed: {error}", begin, at))
        self._again.pop(record.node_id, None)
        retry_at = time_of(fields.get("retry_at"))
        if retry_at is not None:
            again = self._again[record.node_id] = retry_at.timestamp()
            self._add(record, "pause", at, again, _lasting(f"pause before attempt {attempt + 1}", at, again))

    def _done(self, record: Record, at: float, fields: Mapping[str, Any]) -> None:
        begin = at - float(fields.get("duration_ms") or 0.0) / 1000
        attempt = int(fields.get("attempt") or 1)
        text = f"visit {record.visit}" + (f", attempt {attempt}" if attempt > 1 else "")
        self._add(record, "done", begin, at, _lasting(text, begin, at))
        self._again.pop(record.node_id, None)
        self._waits.pop(record.node_id, None)

    def _add(self, record: Record, kind: str, begin: float, end: float, text: str) -> None:
        superseded = not is_live(record.sequence, self.live)
        self.spans.append(_Span(record.node_id, kind, begin, end, text, superseded))

    def end(self, status: str, now: float, running: frozenset[str]) -> None:
        """Add what goes on: unanswered waits, work in flight, and a run that nobody has taken."""
        now = self.newest if status in ENDED else max(now, self.newest)
        self.spans = [span._replace(end=min(span.end, now)) for span in self.spans]
        if status in ENDED:
            return
        for node_id, (begin, text) in self._waits.items():
            waiting = text.replace("waited", "waits", 1)
            self.spans.append(_Span(node_id, "wait", begin, now, _lasting(waiting, begin, now)))
        for node_id in sorted(running - self._waits.keys()):
            begin = min(max(self._again.get(node_id, 0.0), self.newest), now)
            self.spans.append(_Span(node_id, "running", begin, now, _lasting("runs", begin, now)))
        if not self._is_taken and self._started is not None and status == "ready":
            text = _lasting("ready, nobody has taken it", self._started, now)
            self.spans.append(_Span("", "ready", self._started, now, text))


def _paths(branch: str) -> Iterator[str]:
    """Yield a path and those around it."""
    if branch:
        yield branch
        yield from (segment.outer for segment in segments_of(branch))


def _lasting(text: str, begin: float, end: float) -> str:
    return f"{text}, {duration((end - begin) * 1000)}"


# -- the line ------------------------------------------------------------------------------------------------


def _gaps(spans: Sequence[_Span], marks: Sequence[float], begin: float, end: float) -> list[tuple[float, float]]:
    """Return the times to draw short, oldest first: nothing works in them, and nothing begins or ends."""
    least = max(_SHORTEST_GAP, _GAP_SHARE * (end - begin))
    changes: defaultdict[float, int] = defaultdict(int)
    for span in spans:
        is_work = span.kind in _WORK
        changes[span.begin] += is_work
        changes[span.end] -= is_work
    for at in marks:
        changes[at] += 0
    found, working, since = [], 0, begin
    for at, change in sorted(changes.items()):
        if working == 0 and at - since > least:
            found.append((since, at))
        working, since = working + change, at
    return found


class _Line:
    """A line of 100 percent for the times between `begin` and `end`, on which each gap has the same width."""

    def __init__(self, begin: float, end: float, gaps: Sequence[tuple[float, float]]) -> None:
        self.gaps = gaps
        long = (end - begin) - sum(last - first for first, last in gaps)
        scale = (100 - _GAP_WIDTH * len(gaps)) / (long or 1.0)
        self._times, self._places = [begin], [0.0]
        for first, last in gaps:
            self._places.append(self._places[-1] + (first - self._times[-1]) * scale)
            self._places.append(self._places[-1] + _GAP_WIDTH)
            self._times += [first, last]
        self._times.append(end)
        self._places.append(100.0 if long else self._places[-1])

    def place(self, at: float) -> float:
        """Return the place of a time on the line, in percent."""
        after = min(max(bisect_right(self._times, at), 1), len(self._times) - 1)
        first, last = self._times[after - 1], self._times[after]
        left, right = self._places[after - 1], self._places[after]
        share = (at - first) / (last - first) if last > first else 0.0
        return round(left + (right - left) * min(max(share, 0.0), 1.0), 3)


# -- rows ----------------------------------------------------------------------------------------------------


def _rows(spans: Sequence[_Span], maps: set[str], line: _Line) -> Iterator[Lane]:
    """Yield the row of each node, and then those inside it."""
    by_node: dict[str, list[_Span]] = {}
    for span in spans:
        by_node.setdefault(span.node_id, []).append(span)
    inside: defaultdict[str, list[str]] = defaultdict(list)
    for node_id in [*by_node]:
        inner = node_id
        while inner:
            outer = parent_of(inner)
            siblings = inside[outer]
            if inner in siblings:
                break
            siblings.append(inner)
            inner = outer
    if "" in by_node:
        yield _row("", "", 0, by_node[""], line)
    yield from _rows_inside("", 0, by_node, inside, maps, line)


def _rows_inside(
    outer: str,
    depth: int,
    by_node: dict[str, list[_Span]],
    inside: dict[str, list[str]],
    maps: set[str],
    line: _Line,
) -> Iterator[Lane]:
    nodes = inside.get(outer, [])
    folded: list[_Span] = []
    text = ""
    if outer in maps and len(nodes) > _MOST_ITEMS:
        # Items that are plainly done are less interesting than those that failed, wait or run.
        spans = {node: [*_spans_within(node, by_node, inside)] for node in nodes}
        plain = [node for node in nodes if all(span.kind == "done" for span in spans[node])]
        odd = [node for node in nodes if any(span.kind != "done" for span in spans[node])][:_MOST_ITEMS]
        shown = {*odd, *plain[: _MOST_ITEMS - len(odd)]}
        folded = [span for node in nodes if node not in shown for span in spans[node]]
        text = plural(len(nodes) - len(shown), "more item")
        nodes = [node for node in nodes if node in shown]
    for node_id in nodes:
        name = clean(node_id.rpartition("/")[2])
        label = f"item {name}" if outer in maps else name
        yield _row(node_id, label, depth, by_node.get(node_id, ()), line)
        yield from _rows_inside(node_id, depth + 1, by_node, inside, maps, line)
    if folded:
        first, last = min(span.begin for span in folded), max(span.end for span in folded)
        yield _row(outer, text, depth, [_Span(outer, "done", first, last, _lasting(text, first, last))], line)


def _spans_within(node_id: str, by_node: dict[str, list[_Span]], inside: dict[str, list[str]]) -> Iterator[_Span]:
    """Yield the spans of a node and of all nodes inside it."""
    yield from by_node.get(node_id, ())
    for inner in inside.get(node_id, ()):
        yield from _spans_within(inner, by_node, inside)


def _row(node_id: str, label: str, depth: int, spans: Sequence[_Span], line: _Line) -> Lane:
    bars = []
    for span in spans:
        x = line.place(span.begin)
        bars.append(Bar(span.kind, x, round(line.place(span.end) - x, 3), span.text, span.is_superseded))
    seconds = sum(span.end - span.begin for span in spans if span.kind in _WORK)
    took = duration(seconds * 1000) if any(span.kind in _WORK for span in spans) else ""
    return Lane(node_id, label, depth, bars, took)
