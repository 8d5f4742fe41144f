"""The query for a page of runs.

Each part of a page is asked for in an order that only one index has. Several indexes have the order of `id` alone, and
with a wrong one the server would read all rows that it does not return: it cannot know where the runs of a flow or a
status stand among all runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

__all__ = ["page_of"]

# Run by run: OFFSET keeps the planner from joining all of them, because it cannot know how many match.
_TAGGED = "{run_tags} AS found CROSS JOIN LATERAL (SELECT * FROM {runs} WHERE id = found.run OFFSET 0) AS runs"
_LAST = (1 << 63) - 1


def page_of(
    flow: str | None,
    status: str | None,
    tags: Mapping[str, str],
    updated_before: float | None,
    updated_after: float | None,
    *,
    limit: int,
    below: int | None,
) -> tuple[str, list[Any]]:
    """Build the query for the newest `limit` runs that match all filters and have an `id` below `below`, and its values."""
    named = {name: value for name, value in (("flow", flow), ("status", status)) if value is not None}
    terms: list[str] = []
    values: list[Any] = []
    if tags:  # the index finds one tag, in the order of runs; other filters check these runs
        table, order = _TAGGED, ["found.run"]
        terms.append("found.tag = %s")
        values.append(sha256("=".join(next(iter(tags.items()))).encode("utf-8", "replace")).digest()[:8])
        terms += [f"{name} = %s" for name in named]
        values += named.values()
        given: list[str] = []
    else:
        table, order = "{runs} AS runs", [*named, "id"]
        given = [*named.values()]
    begin = ", ".join([*["%s"] * len(given), "0"])
    end = ", ".join([*["%s"] * len(given), "%s"])
    terms.append(f"({', '.join(order)}) BETWEEN ({begin}) AND ({end})")
    values += [*given, *given, _LAST if below is None else below - 1]
    for tag in tags.items():
        terms.append("runs.tags ->> %s = %s")
        values += tag
    for term, value in (("updated_at < %s", updated_before), ("updated_at > %s", updated_after)):
        if value is not None:
            terms.append(term)
            values.append(value)
    newest_first = ", ".join(f"{column} DESC" for column in order)
    query = f"(SELECT runs.* FROM {table} WHERE {' AND '.join(terms)} ORDER BY {newest_first} LIMIT %s)"  # noqa: S608
    return query, [*values, limit]
