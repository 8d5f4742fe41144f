"""A run of a graph as the tree of its visits, and as notes on a picture of the graph. The journal alone tells it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from milepost.cli.lines import wait_document, wait_text
from milepost.cli.text import clean, iso, plural, short, utc
from milepost.executor.flow import END
from milepost.graph.status import RunStatus, Visit
from milepost.model.info import Wait

__all__ = ["following", "graph_rows", "notes_of", "standing_document"]

_FOLDED = 20
"""How many visits of one way, and how many items of one map, are shown."""
_INSIDE = frozenset({"is_done", "failed_at", "fork"})
"""What of a visit is told by its status and by what it is made of."""


def following(standing: RunStatus, known: str | None) -> tuple[str | None, ...]:
    """Where a run goes on, in each branch that is open; `known` is what its newest record says of that.

    None where a router has yet to say, END, or "" where it is not known.
    """
    nodes = standing.next_nodes
    return nodes if len(nodes) > 1 or (nodes and known is not None) else (known,)


def graph_rows(visits: Sequence[Visit], depth: int = 0) -> Iterator[tuple[Visit | None, str, str]]:
    """Each visit with its name, indented below what it is part of, and what there is to tell of it.

    Without a visit: those that were left out.
    """
    shown, left_out = _shown(visits)
    margin = "  " * depth
    is_cut_before = bool(shown) and shown[0] is not visits[0] and visits[0].kind != "item"
    if is_cut_before:
        yield None, f"{margin}({left_out})", ""
    for visit in shown:
        number = f"#{visit.visit}" if visit.visit is not None and visit.kind != "item" else ""
        yield visit, margin + clean(visit.name) + number, _told(visit)
        yield from graph_rows(visit.steps, depth + 1)
    if left_out and not is_cut_before:
        yield None, f"{margin}({left_out})", ""


def _shown(visits: Sequence[Visit]) -> tuple[Sequence[Visit], str]:
    """The visits to show, and what is said of those that are not."""
    if len(visits) <= _FOLDED or visits[0].kind == "branch":
        return visits, ""
    if visits[0].kind != "item":
        return visits[-_FOLDED:], f"{plural(len(visits) - _FOLDED, 'visit')} before"
    open_items = [visit for visit in visits if visit.status != "done"]
    done, more = len(visits) - len(open_items), len(open_items) - _FOLDED
    told = ([f"{done} done"] if done else []) + ([f"{more} more"] if more > 0 else [])
    return open_items[:_FOLDED], ", ".join(told)


def _told(visit: Visit) -> str:
    """The one thing that people want to know of a visit, in a line."""
    if visit.wait is not None:
        refused = f"; {short(visit.reason, 100)}" if visit.reason else ""
        return f"for {wait_text(visit.wait)}{refused}"
    if visit.error:
        again = "" if visit.retry_at is None else f"; again at {utc(visit.retry_at)}"
        told = short(visit.error, 160)
        return told if visit.status == "failed" else f"attempt {visit.attempts} failed: {told}{again}"
    if visit.is_counted:
        return _progress(visit.progress)
    if visit.kind == "branch" and not visit.is_done:
        standing = next((row for row in reversed(visit.steps) if row.status != "done"), None)
        return "" if standing is None else f"at {clean(standing.name)}"
    if visit.fork:
        return plural(len(visit.fork), "branch").replace("branchs", "branches")
    return ""


def _progress(progress: tuple[int, int, int]) -> str:
    done, failed, total = progress
    return f"{done} of {plural(total, 'item')}" + (f", {failed} failed" if failed else "")


def notes_of(standing: RunStatus) -> dict[str, str]:
    """What is written on the nodes of a picture: how far maps are, and what those who answer are asked."""
    notes = {node_id: _progress(progress) for node_id, progress in standing.maps.items()}
    return notes | {node_id: _asked(wait) for node_id, wait in standing.waits.items()}


def _asked(wait: Wait) -> str:
    until = "" if wait.wake_at is None else f"until {utc(wait.wake_at)}"
    asked = wait.prompt if isinstance(wait.prompt, str) else "" if wait.prompt is None else str(wait.prompt)
    return ": ".join(filter(None, (until, asked))) or "waiting"


def standing_document(standing: RunStatus) -> dict[str, Any]:
    """Where a run of a graph stands, as JSON."""
    return {
        "statuses": standing.statuses,
        "next_nodes": [node for node in standing.next_nodes if node != END],
        "maps": {
            node_id: {"done": done, "failed": failed, "total": total}
            for node_id, (done, failed, total) in standing.maps.items()
        },
        "tree": [_document(visit) for visit in standing.visits],
        "superseded": [
            {"node_id": record.node_id, "visit": record.visit, "sequence": record.sequence}
            for record in standing.superseded
        ],
        "damaged": list(standing.damaged),
    }


def _document(visit: Visit) -> dict[str, Any]:
    told = {found.name: getattr(visit, found.name) for found in fields(visit) if found.name not in _INSIDE}
    return told | {
        "last_at": iso(visit.last_at),
        "retry_at": iso(visit.retry_at),
        "wait": None if visit.wait is None else wait_document(visit.wait),
        "steps": [_document(inner) for inner in visit.steps],
    }
