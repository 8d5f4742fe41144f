"""The transaction of a store with keys: the medium's own, with a keeper between it and the verbs.

What goes in is sealed and encrypted, what comes out is opened. Entries, which have no payload, and what is only counted or
deleted pass as they are: they show nothing that is hidden.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence

from milepost.fence import Row
from milepost.record import Record
from milepost.store import Ranges, Signal, Statement
from milepost.stores.keeper import Keeper
from milepost.stores.transaction import Entry, Note, Tally, Transaction

__all__ = ["Guarded"]


class Guarded(Transaction):
    """`tx`, with what `keeper` does on the way in and out."""

    def __init__(self, tx: Transaction, keeper: Keeper) -> None:
        self._tx = tx
        self._keeper = keeper

    # -- rows --------------------------------------------------------------------------------------

    def row(self, run_id: str) -> Row | None:
        row = self._tx.row(run_id)
        return None if row is None else self._keeper.opened_row(row)

    def add_row(self, row: Row) -> None:
        self._tx.add_row(self._keeper.keep_row(row))

    def put_row(self, row: Row) -> None:
        self._tx.put_row(self._keeper.keep_row(row))

    def page(
        self,
        *,
        flow: str | None,
        statuses: Collection[str] | None,
        tags: Mapping[str, str],
        updated_before: float | None,
        updated_after: float | None,
        limit: int,
        after: str | None,
    ) -> builtins.list[Row]:
        rows = self._tx.page(
            flow=flow,
            statuses=statuses,
            tags=tags,
            updated_before=updated_before,
            updated_after=updated_after,
            limit=limit,
            after=after,
        )
        return [self._keeper.opened_row(row) for row in rows]

    def rested(
        self, status: str, *, after: tuple[float, str], until: float, limit: int
    ) -> builtins.list[tuple[float, str]]:
        return self._tx.rested(status, after=after, until=until, limit=limit)

    def candidates(self, flow: str, now: float, limit: int) -> builtins.list[Row]:
        return [self._keeper.opened_row(row) for row in self._tx.candidates(flow, now, limit)]

    def tally(self) -> builtins.list[Tally]:
        return self._tx.tally()

    # -- records -----------------------------------------------------------------------------------

    def insert(self, run_id: str, records: Sequence[Record], note: Note | None = None) -> None:
        # All but saves from outside were kept before: the fast ways of media insert without coming here.
        kept = [self._keeper.keep(run_id, record, note) if record.header is None else record for record in records]
        self._tx.insert(run_id, kept)

    def newest(self, run_id: str) -> int:
        return self._tx.newest(run_id)

    def records(
        self,
        run_id: str,
        *,
        after: int = -1,
        before: int | None = None,
        kinds: Collection[str] | None = None,
        node_id: str | None = None,
        newest: bool = False,
        limit: int | None = None,
    ) -> builtins.list[Record]:
        found = self._tx.records(
            run_id, after=after, before=before, kinds=kinds, node_id=node_id, newest=newest, limit=limit
        )
        return [self._keeper.opened(run_id, record) for record in found]

    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> Entry | None:
        return self._tx.newest_checkpoint(run_id, after=after, before=before, node_id=node_id)

    def find_visit(self, run_id: str, node_id: str, visit: int) -> Record | None:
        found = self._tx.find_visit(run_id, node_id, visit)
        return None if found is None else self._keeper.opened(run_id, found)

    def last_visit(self, run_id: str, node_id: str) -> int:
        return self._tx.last_visit(run_id, node_id)

    def entries(self, run_id: str) -> builtins.list[Entry]:
        return self._tx.entries(run_id)

    def node_ids(self, run_id: str) -> builtins.list[str]:
        return self._tx.node_ids(run_id)

    def remove_node(self, run_id: str, node_id: str) -> int:
        return self._tx.remove_node(run_id, node_id)

    def remove_records(self, run_id: str, sequences: Sequence[int]) -> int:
        return self._tx.remove_records(run_id, sequences)

    def remove_run(self, run_id: str) -> None:
        self._tx.remove_run(run_id)

    # -- signals -----------------------------------------------------------------------------------

    def signals(self, run_id: str, after: int = 0) -> builtins.list[Signal]:
        return [self._keeper.opened_signal(run_id, signal) for signal in self._tx.signals(run_id, after)]

    def has_signal(self, run_id: str, signal_id: str) -> bool:
        return self._tx.has_signal(run_id, signal_id)

    def add_signal(self, run_id: str, signal: Signal) -> None:
        self._tx.add_signal(run_id, self._keeper.keep_signal(run_id, signal))

    # -- statements of users -----------------------------------------------------------------------

    def perform(self, statements: Sequence[Statement]) -> None:
        self._tx.perform(statements)

    # -- what media may do in fewer steps than the parts that it is made of ------------------------------

    def live_checkpoint(
        self, run_id: str, live: Ranges, *, before: int | None = None, node_id: str | None = None
    ) -> Record | None:
        found = self._tx.live_checkpoint(run_id, live, before=before, node_id=node_id)
        return None if found is None else self._keeper.opened(run_id, found)

    def live_nodes(self, run_id: str, live: Ranges, before: int) -> tuple[str, ...]:
        return self._tx.live_nodes(run_id, live, before)

    def live_entry(self, run_id: str, live: Ranges) -> Entry | None:
        return self._tx.live_entry(run_id, live)
