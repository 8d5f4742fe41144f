"""The creation of a run in one statement instead of a transaction of five."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.model.record import Record
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import Note, WriteConflict
from milepost.stores.postgres.append import Appends
from milepost.stores.postgres.connection import Link, Preparing
from milepost.stores.postgres.statements import Tables
from milepost.stores.postgres.transaction import PostgresTransaction

__all__ = ["Creation"]


class Creation(PostgresTransaction):
    """A substitute for a transaction that creates a run, which most likely does not exist.

    `row` says that there is none, and `insert` writes the row together with the start record. It raises `WriteConflict`
    if the run exists after all.
    """

    def __init__(self, link: Link, tables: Tables, preparing: Preparing, appends: Appends) -> None:
        super().__init__(link, tables, preparing, lambda: None, list, is_write=True)
        self._link = link
        self._appends = appends
        self._row_to_add: Row | None = None

    def row(self, run_id: str) -> Row | None:
        return None

    def add_row(self, row: Row) -> None:
        self._row_to_add = row

    def insert(self, run_id: str, records: Sequence[Record], note: Note | None = None) -> None:
        (record,) = records
        assert self._row_to_add is not None
        number = self._appends.create(self._link, self._row_to_add, record)
        if number is None:
            raise WriteConflict
        self._numbers[run_id] = number
