"""Every statement, by name, and pages of rows.

Values are always bound, never put into a statement's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import RowFilters, row_values
from milepost.stores.postgres.driver import sql

# -- The query for a page of runs ------------------------------------------------------------------
#
# Each part of a page is asked for in an order that only one index has. Several indexes have the order of `id` alone, and
# with a wrong one the server would read all rows that it does not return: it cannot know where the runs of a flow or a
# status stand among all runs.


# Run by run: OFFSET keeps the planner from joining all of them, because it cannot know how many match.
_TAGGED = "{run_tags} AS found CROSS JOIN LATERAL (SELECT * FROM {runs} WHERE id = found.run OFFSET 0) AS runs"
_FEW = "(SELECT * FROM {runs} WHERE id = ANY (ARRAY(SELECT id FROM {runs} WHERE CONDITION)) OFFSET 0) AS runs"
_LAST = (1 << 63) - 1


def page_of(
    status: str | None, filters: RowFilters, *, limit: int, below: int | None, few: tuple[str, Sequence[Any]] | None
) -> tuple[str, list[Any]]:
    """Build the query for the newest `limit` runs that match all filters and have an `id` below `below`, and its values.

    `few` is a condition, and its values, by which an index leads to few rows among which all are that match.
    """
    tags = filters.get("tags") or {}
    named = {name: value for name, value in (("flow", filters.get("flow")), ("status", status)) if value is not None}
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
        if few is not None:
            table = _FEW.replace("CONDITION", few[0])
            values += few[1]
    begin = ", ".join([*["%s"] * len(given), "%s"])
    end = ", ".join([*["%s"] * len(given), "%s"])
    terms.append(f"({', '.join(order)}) BETWEEN ({begin}) AND ({end})")
    above = filters.get("above")
    values += [*given, 0 if above is None else min(above + 1, _LAST), *given, _LAST if below is None else below - 1]
    for tag in tags.items():
        terms.append("runs.tags ->> %s = %s")
        values += tag
    for term, value in (
        ("updated_at < %s", filters.get("updated_before")),
        ("updated_at > %s", filters.get("updated_after")),
        ("created_at < %s", filters.get("created_before")),
        ("created_at > %s", filters.get("created_after")),
        ("starts_with(run_id, %s)", filters.get("run_id_prefix") or None),
    ):
        if value is not None:
            terms.append(term)
            values.append(value)
    newest_first = ", ".join(f"{column} DESC" for column in order)
    query = f"(SELECT runs.* FROM {table} WHERE {' AND '.join(terms)} ORDER BY {newest_first} LIMIT %s)"  # noqa: S608
    return query, [*values, limit]


# -- The statements of a PostgreSQL store's transactions, and the names of its tables in them ------


_ROW_NAMES = (
    "run_id, flow, status, created_at, updated_at, epoch, nonce, owner, lease, lease_until, reason, wake_at, waiting, "
    "crash_count, crashed_at, signals, cancel, degraded, missed, tags, live, worked, sequence, blocked_by, "
    "seal, life"
)
ROW_NAMES = tuple(_ROW_NAMES.split(", "))
ROW_COLUMNS = (
    "run_id, flow, status, created_at, updated_at, epoch, nonce, owner, lease, lease_until, reason, wake_at, waiting, "
    "crash_count, crashed_at, signals, cancel, degraded::int, missed, tags::text, live, worked::int, sequence, "
    "blocked_by, seal, life, id"
)
ROW_WIDTH = 27
INSERT_ROW = (
    f"INSERT INTO {{runs}} ({_ROW_NAMES}) VALUES ({', '.join(['%s'] * 26)}) "  # noqa: S608
    "ON CONFLICT (run_id) DO NOTHING RETURNING id"
)
UPDATE_ROW = f"UPDATE {{runs}} SET ({_ROW_NAMES}) = ({', '.join(['%s'] * 26)}) WHERE id = %s"  # noqa: S608

_HEADER = "coalesce(convert_to(header, 'UTF8'), ''::bytea)"
ENTRY_COLUMNS = f"sequence, kind, node_id, visit, size, {_HEADER}, packing"
RECORD_COLUMNS = f"sequence, kind, node_id, visit, size, {_HEADER}, packing, payload"
_INSERT_COLUMNS = "(run, sequence, kind, node_id, visit, size, packing, header, payload)"
INSERT_RECORD = f"INSERT INTO {{records}} {_INSERT_COLUMNS} VALUES ({', '.join(['%s'] * 9)})"  # noqa: S608
INSERT_RECORDS = f"""
INSERT INTO {{records}} {_INSERT_COLUMNS}
SELECT %s, sequence, kind, node_id, visit, size, packing, header, payload
FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::bytea[])
AS given (sequence, kind, node_id, visit, size, packing, header, payload)
"""  # noqa: S608

# A row with a new owner and the owner record. Neither is written if the newest number is not the expected one. The tags
# stay as they are, because a trigger would look at them otherwise.
OWNER_NAMES = tuple(
    name for name in ROW_NAMES if name not in {"run_id", "flow", "created_at", "signals", "tags", "life"}
)
TAKE = f"""
WITH taken AS (
    UPDATE {{runs}} SET ({", ".join(OWNER_NAMES)}) = ({", ".join(["%s"] * len(OWNER_NAMES))}) WHERE id = %s AND coalesce(
        (SELECT max(sequence) FROM {{records}} WHERE run = %s AND sequence >= %s), 0
    ) = %s RETURNING id
)
INSERT INTO {{records}} (run, sequence, kind, node_id, visit, size, packing, header, payload)
SELECT id, %s, %s, %s, %s, %s, %s, %s, %s FROM taken
"""  # noqa: S608

BY_NUMBER = "FROM {records} WHERE run = %s AND sequence BETWEEN %s AND %s"
BY_NODE = f"{BY_NUMBER} AND node_id <> '' AND node_id = %s"

# As `NODE_IDS` below.
FLOWS = """
WITH RECURSIVE names (flow) AS (
    (SELECT flow FROM {runs} WHERE flow > '' ORDER BY flow LIMIT 1)
    UNION ALL
    SELECT (SELECT flow FROM {runs} WHERE flow > names.flow ORDER BY flow LIMIT 1) FROM names WHERE names.flow IS NOT NULL
)
SELECT flow FROM names WHERE flow IS NOT NULL LIMIT %s
"""

# The facts that `_view` needs about each run, in the same statement as its row: a page is one round trip.
NEWEST = f"""
LEFT JOIN LATERAL (
    SELECT sequence AS newest FROM {{records}} WHERE run = runs.id ORDER BY sequence DESC LIMIT 1
) AS newest ON true
LEFT JOIN LATERAL (
    SELECT {ENTRY_COLUMNS} FROM {{records}} WHERE run = runs.id AND kind = 'checkpoint' ORDER BY sequence DESC LIMIT 1
) AS entry (e1, e2, e3, e4, e5, e6, e7) ON true
"""  # noqa: S608
NEWEST_COLUMNS = "newest, e1, e2, e3, e4, e5, e6, e7"
FACTS = f"SELECT {NEWEST_COLUMNS} FROM (SELECT %s::bigint AS id) AS runs {NEWEST}"  # noqa: S608

# The newest records of several runs that say how each ended: one round trip for a page of runs.
ENDS_OF = f"""
SELECT place, {RECORD_COLUMNS} FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (number, after, place)
CROSS JOIN LATERAL (
    SELECT * FROM {{records}} WHERE run = number AND sequence > after AND kind = ANY(%s) ORDER BY sequence DESC LIMIT 2
) AS ends ORDER BY place, sequence DESC
"""  # noqa: S608

# One step of the index from each node to the next, however many records a node has: PostgreSQL has no loose index scan.
# Source: https://wiki.postgresql.org/wiki/Loose_indexscan
NODE_IDS = """
WITH RECURSIVE nodes (id) AS (
    (SELECT node_id FROM {records} WHERE run = %s AND node_id <> '' ORDER BY node_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT node_id FROM {records} WHERE run = %s AND node_id <> '' AND node_id > nodes.id ORDER BY node_id LIMIT 1
    )
    FROM nodes WHERE nodes.id IS NOT NULL
)
SELECT id FROM nodes WHERE id IS NOT NULL
"""
_LIVE_NODES = """FROM nodes CROSS JOIN LATERAL (
    SELECT * FROM {records} WHERE run = %s AND node_id <> '' AND node_id = nodes.id AND sequence BETWEEN %s AND %s
    AND kind = 'checkpoint' ORDER BY node_id DESC, sequence DESC LIMIT 1
) AS newest WHERE nodes.id IS NOT NULL"""
LIVE_ENTRIES, LIVE_NODES = (
    NODE_IDS.replace("SELECT id FROM nodes WHERE id IS NOT NULL", f"SELECT {columns} {_LIVE_NODES}")
    for columns in (ENTRY_COLUMNS, "nodes.id")
)

TALLY = """
SELECT status, count(*)::bigint, coalesce(sum(records), 0)::bigint, coalesce(sum(bytes), 0)::bigint,
    min(CASE WHEN updated_at BETWEEN -62135596800 AND 253402300799 THEN updated_at END)
FROM {runs} LEFT JOIN (
    SELECT run, count(*) AS records, sum(octet_length(coalesce(header, '')) + octet_length(coalesce(payload, ''))) AS bytes
    FROM {records} GROUP BY run
) AS kept ON kept.run = runs.id
GROUP BY status ORDER BY status
"""

# Ended or waiting runs by the time of their last change, by index. Runs that somebody owns are few.
RESTED = """
SELECT rested_at, run_id FROM {runs} WHERE status = %s AND (rested_at, run_id) > (%s::float8, %s::text)
    AND rested_at <= %s::float8 ORDER BY rested_at, run_id LIMIT %s
"""
RUNNING = RESTED.replace("rested_at", "updated_at")

# Each value of a poll is behind a SELECT, which hides it from the planner. So the planner makes one plan. Otherwise it
# would make one for each poll, which takes longer than the poll.
_FLOW = "flow = (SELECT %(flow)s::text)"
_NOW = "(SELECT %(now)s::float8)"
_IS_WANTED = "id <> ALL ((SELECT %(passed)s)::bigint[]) AND run_id <> ALL ((SELECT %(skip)s)::text[])"

# A run with an owner is due only if the ownership is over: its lease has ended, the clock went back, its verb in
# this process has ended without a release, or its process is gone. The server cannot know the last, so this
# machine's owners are returned.
_IS_OVER = (
    "(owner = '' OR run_id = ANY ((SELECT %(abandoned)s)::text[]) "
    f"OR lease_until <= {_NOW} OR lease_until > {_NOW} + lease)"
)
_MACHINE = "(SELECT %(machine)s::text)"
OWNED = f"""
SELECT CASE WHEN {_IS_OVER} THEN '' ELSE owner END AS owner_to_ask, array_agg(id), array_agg(epoch) FROM {{runs}}
WHERE {_FLOW} AND status = 'running' AND ({_IS_OVER} OR (owner > {_MACHINE} || ':' AND owner < {_MACHINE} || ';'))
GROUP BY owner_to_ask
"""  # noqa: S608

# The same condition as in the index runs_queued.
_IS_QUEUED = """owner = '' AND (
    (status = 'ready' AND wake_at IS NULL) OR (status = 'interrupted' AND worked)
    OR (cancel IS NOT NULL AND status NOT IN ('finished', 'cancelled'))
)"""

# Runs that nobody owns, and those of `over` that have the given epochs. Each is locked as it is read, so that a poll
# skips those that others are about to take. The facts about its records may be older than its lock.
DUE = f"""
SELECT {ROW_COLUMNS}, {NEWEST_COLUMNS} FROM (
    SELECT * FROM (
        SELECT * FROM {{runs}} WHERE {_FLOW} AND {_IS_QUEUED} AND {_IS_WANTED}
        ORDER BY id NULLS FIRST LIMIT (SELECT %(limit)s::bigint) FOR UPDATE OF runs SKIP LOCKED
    ) AS queued
    UNION ALL
    SELECT * FROM (
        SELECT * FROM {{runs}} WHERE {_FLOW} AND status IN ('ready', 'waiting') AND wake_at <= {_NOW} AND {_IS_WANTED}
        ORDER BY wake_at LIMIT (SELECT %(limit)s::bigint) FOR UPDATE OF runs SKIP LOCKED
    ) AS timed
    UNION ALL
    SELECT * FROM (
        SELECT runs.* FROM unnest((SELECT %(over)s)::bigint[], (SELECT %(epochs)s)::bigint[]) AS over (number, epoch)
        JOIN {{runs}} AS runs ON runs.id = over.number AND runs.epoch = over.epoch WHERE {_IS_WANTED}
        FOR UPDATE OF runs SKIP LOCKED
    ) AS over
) AS runs {NEWEST}
"""  # noqa: S608


class Tables:
    """The tables of one schema, and statements about them."""

    def __init__(self, schema: str) -> None:
        names = ("runs", "records", "signals", "run_tags", "live_events", "workers", "paused_schedules")
        self._names = {name: sql.Identifier(schema, name) for name in names}
        self._statements: dict[str, bytes] = {}

    def __call__(self, text: str) -> bytes:
        """Put the full, quoted names of the tables in for `{runs}`, `{records}` and the like in `text`.

        A `?` becomes the `%s` that psycopg wants.
        """
        found = self._statements.get(text)
        if found is None:
            found = self._statements[text] = sql.SQL(text.replace("?", "%s")).format(**self._names).as_bytes()
        return found


def columns_of_row(row: Row) -> tuple[Any, ...]:
    """Return the values to bind for a row, without its `id`. A reason may quote NUL, which no
    text can hold: it is replaced."""
    if "\0" in row.reason or "\0" in (row.cancel or ""):
        cancel = None if row.cancel is None else row.cancel.replace("\0", "\ufffd")
        row = replace(row, reason=row.reason.replace("\0", "\ufffd"), cancel=cancel)
    return row_values(row)
