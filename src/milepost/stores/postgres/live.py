"""Live events of a PostgreSQL store: rows of an unlogged table, which readers poll.

Nothing is bound to a session, so a pooler may stand in between. No statement touches the tables of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import astuple

from milepost.model.live import LiveBatch, LiveEvent, Place
from milepost.stores.base.live import beyond
from milepost.stores.postgres.driver import psycopg

if TYPE_CHECKING:
    from milepost.stores.postgres.connection import Link
    from milepost.stores.postgres.statements import Tables

_PUT = """
INSERT INTO {live_events} (run_id, epoch, number, follows, time, node_id, visit, attempt, body)
SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::text[], %s::bigint[],
    %s::bigint[], %s::bytea[])
ON CONFLICT (run_id, epoch, number) DO UPDATE SET
    follows = excluded.follows, time = excluded.time, node_id = excluded.node_id, visit = excluded.visit,
    attempt = excluded.attempt, body = excluded.body
"""
_FORGET = """
DELETE FROM {live_events} USING unnest(%s::text[], %s::bigint[], %s::bigint[]) AS gone (run_id, epoch, number)
WHERE live_events.run_id = gone.run_id AND (live_events.epoch, live_events.number) <= (gone.epoch, gone.number)
"""
_GET = """
SELECT epoch, number, follows, time, node_id, visit, attempt, body FROM {live_events}
WHERE run_id = %s AND (epoch, number) > (%s, %s) ORDER BY epoch, number LIMIT %s
"""
_SIZES = "SELECT run_id, max(time), sum(length(body)) FROM {live_events} GROUP BY run_id"

Ask = Callable[[str, "Callable[[Link], Any]"], Any]
"""A function that asks a question over a connection of the store, again if the connection is lost."""


class LiveTable:
    """The table of live events."""

    def __init__(self, ask: Ask, tables: Tables) -> None:
        self._ask = ask
        self._tables = tables

    def put(self, batches: Sequence[LiveBatch]) -> None:
        """Keep the events of `batches`."""
        rows = [(run_id, *astuple(event)) for run_id, events, _ in batches for event in events]
        forgotten = [(run_id, *place) for run_id, _, place in batches if place[1]]
        if rows:
            self.execute("write_live", _PUT, [list(column) for column in zip(*rows, strict=True)])
        if forgotten:
            self.execute("write_live", _FORGET, [list(column) for column in zip(*forgotten, strict=True)])

    def get(self, run_id: str, after: Place, limit: int) -> list[LiveEvent]:
        """Return events above `after`."""
        return [LiveEvent(*values) for values in self.execute("read_live", _GET, (run_id, *after, limit))]

    def sweep(self, before: float, most_bytes: int) -> None:
        """Delete old events."""
        self.execute("write_live", "DELETE FROM {live_events} WHERE time < %s", (before,))
        sizes = {run_id: (time, int(size)) for run_id, time, size in self.execute("write_live", _SIZES, ())}
        if gone := beyond(sizes, most_bytes):
            self.execute("write_live", "DELETE FROM {live_events} WHERE run_id = ANY(%s)", (gone,))

    def drop(self, run_id: str) -> None:
        """Delete the events of a run."""
        self.execute("write_live", "DELETE FROM {live_events} WHERE run_id = %s", (run_id,))

    def execute(self, op: str, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute a statement of its own, and return its rows."""
        statement = self._tables(query)

        def question(link: Link) -> list[tuple[Any, ...]]:
            try:
                with link.timer:
                    cursor = link.cursor.execute(statement, values, prepare=False, binary=True)
                return cursor.fetchall() if cursor.description is not None else []
            except psycopg.Error as exc:
                link.note_error(exc)
                raise

        rows: list[tuple[Any, ...]] = self._ask(op, question)
        return rows
