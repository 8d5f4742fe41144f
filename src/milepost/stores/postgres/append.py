"""Appends: one record, a batch, and the creation of a run.

Each is one round trip and one commit. None waits for a lock: a row that somebody else has locked counts as unusual, and
an unusual append is judged in a transaction under the row's lock. So a stuck row holds up nobody but its own run.

An append reads the token `FOR SHARE`. A weaker lock, or none, would let a claim commit between the check of the token
and the end of the append, and two owners' writes would count.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from milepost.model.ids import this_process
from milepost.model.record import Record
from milepost.store import Append, Release, Renewal, Token
from milepost.stores.base import fence
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import WriteConflict, record_values
from milepost.stores.postgres.connection import Frequent, Link, Preparing, pack_int
from milepost.stores.postgres.statements import ROW_NAMES, Tables, columns_of_row
from milepost.stores.postgres.transaction import PostgresTransaction

# -- The most frequent statements of a store: one append, many appends, renewals -------------------


# Nothing is inserted unless the token is current, no cancel is open, and nobody has locked the row.
_NEXT = """
INSERT INTO {records} (run, sequence, kind, node_id, visit, size, packing, header, payload)
SELECT id, $4, $5, $6, $7, $8, $9, $10, $11 FROM {runs}
WHERE run_id = $1 AND epoch = $2 AND nonce = $3 AND cancel IS NULL
FOR SHARE SKIP LOCKED
"""
_NEXT_TYPES = "text int8 text int8 text text int8 int8 text text bytea"

# The same, with a check that the number is the next one. The search for the newest number begins at the expected one,
# because a scan of the index reads all matches on a page before it returns the first.
_ONE = _NEXT.replace(
    "FOR SHARE",
    "    AND (SELECT max(sequence) FROM {records} WHERE run = runs.id AND sequence >= $12) = $12\nFOR SHARE",
)
_ONE_TYPES = f"{_NEXT_TYPES} int8"

# A run's row and its start record. If there is a run of that id, nothing is inserted and nothing is returned.
_CREATE = f"""
WITH run AS (
    INSERT INTO {{runs}} ({", ".join(ROW_NAMES)})
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20::jsonb, $21, $22, $23,
        $24, $25, $26)
    ON CONFLICT (run_id) DO NOTHING RETURNING id
)
INSERT INTO {{records}} (run, sequence, kind, node_id, visit, size, packing, header, payload)
SELECT id, $27, $28, $29, $30, $31, $32, $33, $34 FROM run
RETURNING run
"""  # noqa: S608
_CREATE_TYPES = (
    "text text text float8 float8 int8 text text float8 float8 text float8 text "
    "int8 int8 int8 text bool text text text bool int8 text text text "
    "int8 text text int8 int8 text text bytea"
)

# Rows are looked up one by one, in the order in which they are given: a join might read the whole table instead. Each
# array is behind a SELECT, which hides its length from the planner. Otherwise the planner would make a plan for each
# batch, which takes longer than to write the batch.
#
# $1 to $6 are the appends: their numbers in the batch, run ids, epochs, nonces, the number before their first record
# (NULL without records), and the count of signals that must not have grown (NULL: it may). $8 to $16 are their records.
# What fits is written, or with $7 all or nothing. The numbers of the appends that were written are returned.
_MANY = """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        (SELECT $1::bigint[]), (SELECT $2::text[]), (SELECT $3::bigint[]), (SELECT $4::text[]), (SELECT $5::bigint[]),
        (SELECT $6::bigint[])
    ) AS given (append, run_id, epoch, nonce, before, signals)
), locked AS MATERIALIZED (
    SELECT append, id, before FROM given CROSS JOIN LATERAL (
        SELECT id FROM {runs}
        WHERE run_id = given.run_id AND epoch = given.epoch AND nonce = given.nonce AND cancel IS NULL
            AND (given.signals IS NULL OR signals = given.signals)
        FOR SHARE SKIP LOCKED
    ) AS run
), known AS MATERIALIZED (
    SELECT append, id, before, (
        SELECT max(sequence) FROM {records} WHERE run = locked.id AND sequence >= coalesce(before, 0)
    ) AS newest FROM locked
), fitting AS MATERIALIZED (
    SELECT append, id, newest FROM known WHERE before IS NULL OR before = newest
), written AS MATERIALIZED (
    SELECT append, id, newest FROM fitting WHERE NOT $7 OR (SELECT count(*) FROM fitting) = (SELECT count(*) FROM given)
), inserted AS (
    INSERT INTO {records} (run, sequence, kind, node_id, visit, size, packing, header, payload)
    SELECT id, sequence, kind, node_id, visit, size, packing, header, payload
    FROM unnest(
        (SELECT $8::bigint[]), (SELECT $9::bigint[]), (SELECT $10::text[]), (SELECT $11::text[]), (SELECT $12::bigint[]),
        (SELECT $13::bigint[]), (SELECT $14::text[]), (SELECT $15::text[]), (SELECT $16::bytea[])
    ) AS record (append, sequence, kind, node_id, visit, size, packing, header, payload) JOIN written USING (append)
)
SELECT append FROM written
"""
_MANY_TYPES = (
    "int8[] text[] int8[] text[] int8[] int8[] bool int8[] int8[] text[] text[] int8[] int8[] text[] text[] bytea[]"
)

# The same with releases, $17 to $26: the new values of the rows of their runs.
_MANY_RELEASED = _MANY.replace(
    "\n)\nSELECT append FROM written",
    """
), ending AS MATERIALIZED (
    SELECT * FROM unnest(
        (SELECT $17::bigint[]), (SELECT $18::text[]), (SELECT $19::text[]), (SELECT $20::float8[]), (SELECT $21::float8[]),
        (SELECT $22::text[]), (SELECT $23::boolean[]), (SELECT $24::text[]), (SELECT $25::bigint[]),
        (SELECT $26::text[])
    ) AS ending (append, status, reason, updated_at, wake_at, waiting, degraded, missed, sequence, seal)
    JOIN written USING (append)
), released AS (
    UPDATE {runs} SET status = ending.status, reason = ending.reason, updated_at = ending.updated_at, nonce = '',
        owner = '', lease = 0, lease_until = NULL, wake_at = ending.wake_at, waiting = ending.waiting,
        degraded = ending.degraded, missed = ending.missed, sequence = coalesce(ending.sequence, ending.newest, 0),
        seal = ending.seal
    FROM ending WHERE runs.id = ending.id
)
SELECT append FROM written""",
)
_MANY_RELEASED_TYPES = f"{_MANY_TYPES} int8[] text[] text[] float8[] float8[] text[] bool[] text[] int8[] text[]"

# Leases are extended where nobody has locked the row. The state of each run before the statement is returned.
_RENEW = """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[]) AS given (number, run_id, epoch, nonce)
), locked AS MATERIALIZED (
    SELECT number, id FROM given CROSS JOIN LATERAL (
        SELECT id FROM {runs} WHERE run_id = given.run_id AND epoch = given.epoch AND nonce = given.nonce
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS run
), renewed AS (
    UPDATE {runs} SET lease_until = $5 + lease - least($6, 0.1 * lease), updated_at = $5
    FROM locked WHERE runs.id = locked.id RETURNING number
)
SELECT given.number, runs.epoch = given.epoch AND runs.nonce = given.nonce, renewed.number IS NOT NULL, cancel
FROM given LEFT JOIN {runs} USING (run_id) LEFT JOIN renewed USING (number)
"""
_RENEW_TYPES = "int8[] text[] int8[] text[] float8 float8"

_CANCELS = "SELECT run_id, cancel FROM {runs} WHERE run_id = ANY($1) AND cancel IS NOT NULL"

_TRUE = b"\1"
_int_of = struct.Struct("!q").unpack
_BLANK = Row("", "", "running", created_at=0.0, updated_at=0.0, epoch=0)


def is_ordinary(append: Append, *, is_keyed: bool) -> bool:
    """Return whether one statement may write `append`, if the database agrees. Any other append is
    judged under the row's lock: with keys also a release without records, whose seal covers the number of the newest."""
    token, records, release, tags, statements = append
    if is_keyed and release is not None and not records:
        return False
    if tags is not None or statements or not token.nonce or not token.is_ours or (release is None and not records):
        return False
    if release is not None and (release.crash_count is not None or release.blocked_by):
        return False
    first = records[0].sequence if records else 0
    return all(
        record.sequence == expected and record.header is not None for expected, record in enumerate(records, first)
    )


class Appends:
    """The statements for the tables of one schema."""

    def __init__(self, tables: Tables) -> None:
        self._create = Frequent(tables(_CREATE), _CREATE_TYPES)
        self._one = Frequent(tables(_ONE), _ONE_TYPES)
        self._next = Frequent(tables(_NEXT), _NEXT_TYPES)
        self._many = Frequent(tables(_MANY), _MANY_TYPES)
        self._many_released = Frequent(tables(_MANY_RELEASED), _MANY_RELEASED_TYPES)
        self._renew = Frequent(tables(_RENEW), _RENEW_TYPES)
        self._cancels = Frequent(tables(_CANCELS), "text[]")

    def create(self, link: Link, row: Row, record: Record) -> int | None:
        """Write a run's row and its start record. Return the row's `id`, or None if there is a run of that id."""
        found = link.run(self._create, (*columns_of_row(row), *record_values(record)))
        if not found:
            return None
        link.note_written(Token(row.run_id, row.epoch, row.nonce, this_process().key), record.sequence)
        number: int = _int_of(found[0][0] or b"")[0]
        return number

    def one(self, link: Link, token: Token, record: Record) -> bool:
        """Write one ordinary record. Return False, with nothing written, if it is not ordinary.

        Raise OverflowError if a number is too large.
        """
        run_id, epoch, nonce, _ = token
        sequence, kind, node_id, visit, size, header, payload, packing = record
        before = sequence - 1
        encoded = [
            run_id.encode(), pack_int(epoch), nonce.encode(), pack_int(sequence), kind.encode(), node_id.encode(),
            pack_int(visit), pack_int(size), packing.encode(), (header or b"") + b"}", payload,
        ]  # fmt: skip
        if link.wrote(token, before):
            result = link.execute(self._next, encoded)
        else:
            encoded.append(pack_int(before))
            result = link.execute(self._one, encoded)
        if not result.command_tuples:
            return False
        link.note_written(token, sequence)
        return True

    def many(
        self, link: Link, appends: Sequence[Append], now: float, keep: Callable[[Row], Row], *, is_whole: bool
    ) -> set[int]:
        """Write ordinary appends of different runs. Return the places in `appends` of those that were written.

        With `is_whole` all are written, or none. `keep` converts a row to what the tables store.
        """
        given: list[tuple[Any, ...]] = []
        records: list[tuple[Any, ...]] = []
        releases: list[tuple[Any, ...]] = []
        for place in sorted(range(len(appends)), key=lambda place: appends[place].token.run_id):
            token, its_records, release, _, _ = appends[place]
            run_id, epoch, nonce, _ = token
            before = its_records[0].sequence - 1 if its_records else None
            given.append((place, run_id, epoch, nonce, before, None if release is None else _signals(release)))
            records += [(place, *record_values(record)) for record in its_records]
            if release is not None:
                newest = its_records[-1].sequence if its_records else None
                releases.append((place, *_released(run_id, release, newest, now, keep)))
        values = [*_columns(given, 6), is_whole, *_columns(records, 9)]
        statement = self._many
        if releases:
            statement = self._many_released
            values += _columns(releases, 10)
        return {_int_of(place or b"")[0] for (place,) in link.run(statement, values)}

    def renew(self, link: Link, tokens: Sequence[Token], now: float, margin: float) -> list[Renewal]:
        """Extend leases whose rows are free, by their length less `margin`. Cancels are returned as stored."""
        given = [
            (place, token.run_id, token.epoch, token.nonce if token.is_ours and token.nonce else None)
            for place, token in sorted(enumerate(tokens), key=lambda numbered: numbered[1].run_id)
        ]
        renewals = [Renewal("lost")] * len(tokens)
        for place, is_current, is_kept, cancel in link.run(self._renew, [*_columns(given, 4), now, margin]):
            outcome: Literal["kept", "lost", "unknown"] = "lost"
            if is_current == _TRUE:
                outcome = "kept" if is_kept == _TRUE else "unknown"
            renewals[_int_of(place or b"")[0]] = Renewal(outcome, None if cancel is None else cancel.decode())
        return renewals

    def cancels(self, link: Link, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the open cancels, as stored."""
        found = link.run(self._cancels, [list(run_ids)])
        return {(run_id or b"").decode(): (cancel or b"").decode() for run_id, cancel in found}


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _signals(release: Release) -> int | None:
    return release.signals if release.status == "waiting" else None


def _released(
    run_id: str, release: Release, newest: int | None, now: float, keep: Callable[[Row], Row]
) -> tuple[Any, ...]:
    """Return the values that a release writes to its row, for a run without an open cancel."""
    row = keep(fence.end_ownership(replace(_BLANK, run_id=run_id), release, newest=newest or 0, now=now))
    values = dict(zip(ROW_NAMES, columns_of_row(row), strict=True))
    return (
        values["status"], values["reason"], now, values["wake_at"], values["waiting"], values["degraded"], values["missed"],
        newest, values["seal"],
    )  # fmt: skip


# -- The creation of a run in one statement instead of a transaction of five -----------------------


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

    def insert(self, run_id: str, records: Sequence[Record]) -> None:
        (record,) = records
        assert self._row_to_add is not None
        number = self._appends.create(self._link, self._row_to_add, record)
        if number is None:
            raise WriteConflict
        self._numbers[run_id], self._lives[run_id] = number, self._row_to_add.life
