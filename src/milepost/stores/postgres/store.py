"""A store in a PostgreSQL database, for any number of machines.

An ordinary append is one statement, one round trip and one commit. Once a few appends are in flight, those of other
threads share the next statement and commit. An unusual append takes a transaction that locks the run's row. The
isolation level is READ COMMITTED throughout. Nothing is bound to a session, so a pooler in transaction mode may stand in
between.

If the connection is lost during an append, its outcome is unknown. The store then locks the run's row, looks for the
record in the journal, and writes it only if it isn't there. The creation of a run is handled in the same way. Any other
verb raises StoreError, and its caller finds out what happened.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from msgspec.structs import replace

from milepost.errors import StoreError
from milepost.model.ids import SYSTEM, this_process
from milepost.model.record import ZSTD, Record, compress, unpacked_limit
from milepost.model.seal import link_of
from milepost.store import Append, Claim, Claimed, NewRun, Renewal, RunRow, StoreOptions, Token, Verdict
from milepost.stores.base.decoding_transaction import DecodingTransaction
from milepost.stores.base.fence import Row, TokenState
from milepost.stores.base.group_commit import GroupCommit
from milepost.stores.base.owner import has_statements
from milepost.stores.base.transaction import Transaction, WriteConflict
from milepost.stores.postgres.append import Appends, Creation, is_ordinary
from milepost.stores.postgres.backend import UNDONE, OutcomeUnknown, PostgresBackend
from milepost.stores.postgres.connection import Link
from milepost.stores.postgres.driver import psycopg
from milepost.stores.postgres.schema import SCHEMA

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

    from milepost.stores.base.encryption import RecordCipher

T = TypeVar("T")

_logger = logging.getLogger("milepost")

_LANES = 3
"""Number of commits of appends that are in flight at once. Appends that come later wait, and share the next commit."""
_CROWD = 4
"""Number of appends in a commit from which on only one commit is in flight: one large commit is less work than three."""
_LOCKED_SECONDS = 2.0
"""Seconds that one heartbeat waits for locked rows in all, so that a stuck row costs no other run its lease."""
_PACKED_BYTES = 4096
"""Size in bytes above which payloads are compressed, which takes less time than to write them whole."""

_WRITTEN = Verdict("written")
_UNJUDGED = Verdict("refused")
"""The verdict of an append that the statement did not write, for whatever reason. It is recognised by identity."""


class PostgresStore(PostgresBackend):
    """A store in the schema `schema` of the database that a URL or connection string of libpq names.
    A missing schema is created.

    A `psycopg_pool.ConnectionPool` may take the place of the URL. The store then uses the pool's connections; if there
    are several, it keeps one to renew leases for as long as the store is open. The caller closes the pool, and after a
    fork the child needs a store of its own. With a URL the store opens what it needs, at most nine connections.

    A statement may take a third of the shortest lease in use: as a rule 10 seconds, and never less than 1. The store sets
    `statement_timeout` for transactions everywhere, and for single statements on direct connections that it has opened
    itself. On a caller's pool and behind a pooler, set it there. The transaction of a frozen process ends after the same
    time. A server that does not answer at all is given up a little later, on every connection: by TCP and
    `connect_timeout`, unless the URL says otherwise, and by the store itself if packets are lost on the way.

    Leases are measured by the server's clock, unless `clock` is given, so the machines' own clocks need not agree.

    The schema and its tables must belong to the current user, to a role that it is a member of, to a superuser or to the
    role `owner`, and have no triggers of others, which would be executed with the rights of the store's user.

    Statements are prepared unless `prepare` is False, or a pooler stands before the server. Raises
    `StoreError` if the database can't be used, `StoreVersionError` for tables of a newer release,
    `OptionError` for a URL that can't be read.

    >>> with PostgresStore("postgresql://localhost/shop") as store:  # doctest: +SKIP
    ...     doubling.run(21, store=store, run_id="r-1")
    42
    """

    def __init__(
        self,
        dsn_or_pool: str | ConnectionPool[Any],
        *,
        schema: str = SCHEMA,
        prepare: bool = True,
        owner: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        super().__init__(dsn_or_pool, schema, is_prepared=prepare, owner=owner, **options)
        self._appends = Appends(self._tables)
        self._lanes = self._make_lanes()

    def __repr__(self) -> str:
        return f"PostgresStore({self.place!r})"

    def _make_lanes(self) -> tuple[GroupCommit, ...]:
        return tuple(GroupCommit(self._commit_together, _is_backend_at_fault) for _ in range(_LANES))

    def _lanes_in_use(self) -> tuple[GroupCommit, ...]:
        lanes = self._lanes
        return lanes if lanes[0].crowd < _CROWD else lanes[:1]

    def _after_fork(self, is_child: bool) -> None:
        super()._after_fork(is_child)
        if is_child:
            self._lanes = self._make_lanes()

    # -- appends -----------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> builtins.list[Verdict]:
        is_written: bool | None = None
        is_in_doubt = False
        has_surplus = self._find_surplus(batch)
        if len(batch) == 1 and not has_surplus:
            try:
                is_written = self._append_alone(batch[0])
            except OutcomeUnknown:
                is_written, is_in_doubt = False, True
            if is_written:
                return [_WRITTEN]
        appends = [self._prepared(append) for append in batch]
        verdicts: builtins.list[Verdict] | None = None
        try:
            if has_surplus or has_statements(appends):
                verdicts = self._append_under_locks(appends, is_in_doubt=False)
            elif is_written is None and all(
                is_ordinary(append, is_keyed=self._keeper is not None) for append in appends
            ):
                verdicts = self._append_at_once(appends)
        except OutcomeUnknown as exc:
            if exc.interrupted == get_ident() and exc.__cause__ is not None:
                raise exc.__cause__ from None
            is_in_doubt = True
        except psycopg.Error as exc:
            raise self._failure("append", exc) from exc
        if verdicts is None:
            verdicts = self._append_under_locks(appends, is_in_doubt=is_in_doubt)
        self._settle(appends, verdicts)
        if is_in_doubt and self._bases is not None:
            for append in appends:  # nor is it known in which form the state was written
                self._bases.forget(append.token.run_id)
        return verdicts

    def _append_alone(self, append: Append) -> bool | None:
        """Append one ordinary record while few others write, which is the usual case. Return whether it was written.

        Return None, and try nothing, if the append is unusual or if many others write. This does what the rest of
        `append` does, without the steps that this case does not need.
        """
        token, records, release, tags, statements = append
        if release is not None or tags is not None or statements or len(records) != 1 or records[0][5] is None:
            return None
        for lane in self._lanes_in_use():
            if not lane.queue and lane.lock.acquire(False):
                break
        else:
            return None
        try:
            if token[3] != this_process().key or not token[2]:
                return False
            (record,) = self._kept(token, records)
            link = self._take("append", self._connections)
            try:
                is_written = self._appends.one(link, token, record)
                if is_written:
                    self._note_kept(token, (record,))
                return is_written
            except psycopg.Error as exc:
                if link.is_lost:
                    raise self._unknown("append", exc) from exc
                if isinstance(exc, UNDONE):
                    return False
                raise self._failure("append", exc) from exc
            finally:
                self._connections.give(link)
        finally:
            lane.lock.release()
            if lane.queue:
                lane.wake_first()

    def _append_at_once(self, appends: builtins.list[Append]) -> builtins.list[Verdict] | None:
        """Write the appends in one statement. Return None unless it wrote all of them."""
        verdicts: builtins.list[Verdict] = []
        if len(appends) != 1:
            if len({append.token.run_id for append in appends}) == len(appends):
                self._commit_together(appends, verdicts, is_whole=True)
        else:
            lanes = self._lanes_in_use()
            lane = next((lane for lane in lanes if not lane.is_busy), None)
            if lane is None:
                verdicts = min(lanes, key=len).append(appends)
            else:
                try:
                    with lane.lock:
                        self._commit_together(appends, verdicts)
                finally:
                    lane.wake_first()
        return None if any(verdict is _UNJUDGED for verdict in verdicts) or len(verdicts) < len(appends) else verdicts

    def _commit_together(
        self, appends: Sequence[Append], verdicts: builtins.list[Verdict], *, is_whole: bool = False
    ) -> None:
        """Write the ordinary ones of `appends` in one commit. Add a verdict for each to `verdicts` once the commit
        has taken place."""
        link = self._take("append", self._connections)
        try:
            written = self._insert(link, appends, is_whole=is_whole)
        except UNDONE:  # others wrote the same numbers just now, or locked the same rows
            written = set()
        except BaseException as exc:
            # No interrupt reaches a statement, but one may reach the code before or after it.
            if link.is_lost or not isinstance(exc, Exception):
                raise self._unknown("append", exc) from exc
            raise
        finally:
            self._connections.give(link)
        verdicts += [_WRITTEN if index in written else _UNJUDGED for index in range(len(appends))]

    def _insert(self, link: Link, appends: Sequence[Append], *, is_whole: bool) -> set[int]:
        """Write the ordinary ones of `appends`. Return the indexes of those that were written."""
        if len(appends) == 1 and appends[0].release is None and len(appends[0].records) == 1:
            return {0} if self._appends.one(link, appends[0].token, appends[0].records[0]) else set()
        keep = _as_it_is if self._keeper is None else partial(self._sealed_row, self._keeper)
        # The second of two appends to one run fits only once the first is written.
        first_of_run: dict[str, int] = {}
        for index, append in enumerate(appends):
            first_of_run.setdefault(append.token.run_id, index)
        first = [*first_of_run.values()]
        chosen = [appends[index] for index in first]
        written = self._appends.many(link, chosen, self.clock.time(), keep, is_whole=is_whole)
        return {first[index] for index in written}

    def _sealed_row(self, keeper: RecordCipher, row: Row) -> Row:
        """Seal a row of which only the end of an ownership is known, and the run whose records were just sealed."""
        return keeper.seal_row(replace(row, life=self._links.life_of(row.run_id)))

    def _append_under_locks(self, appends: builtins.list[Append], *, is_in_doubt: bool) -> builtins.list[Verdict]:
        """Lock the rows, judge each append, and write those that are valid, in one commit.

        If `is_in_doubt` is true, the appends may be written already, so each is looked for in the journal first.
        """
        waiting = self._waiting()
        while True:
            try:
                return self._change("append", partial(self._append_each, appends, is_in_doubt))
            except OutcomeUnknown as exc:
                if not waiting.goes_on():
                    raise
                _logger.debug("an append to %s is looked for in the journal: %s", self.place, exc)
                is_in_doubt = True

    def _append_each(
        self, appends: builtins.list[Append], is_in_doubt: bool, tx: Transaction
    ) -> builtins.list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        for index in sorted(range(len(appends)), key=lambda index: appends[index].token.run_id):
            append = appends[index]
            earlier = self._written_before(tx, append) if is_in_doubt else None
            verdicts[index] = earlier or self._append(tx, append)
        return [verdicts[index] for index in range(len(appends))]

    def _written_before(self, tx: Transaction, append: Append) -> Verdict | None:
        """Return the verdict on an append whose answer was lost; None if it did not take place."""
        token, records, release, _, _ = append
        row = tx.row(token.run_id)
        if row is None:
            return None
        if records:
            is_there = tx.link(token.run_id, records[0].sequence) == link_of(records[0].header)
        else:
            # The epoch is still this owner's and the nonce is gone: the owner itself has released the run.
            is_there = release is not None and row.epoch == token.epoch and not row.nonce
        return Verdict("written", row.cancel) if is_there else None

    def _packed(self, record: Record) -> Record:
        return super()._packed(_smaller(record))

    # -- ownership ---------------------------------------------------------------------------------

    def create(self, new: NewRun) -> Token:
        self._heed(new.lease)
        waiting = self._waiting()
        while True:
            try:
                return super().create(new)
            except OutcomeUnknown as exc:
                if not waiting.goes_on():
                    raise
                _logger.debug("run %r is looked for: %s", new.run_id, exc, extra={"run_id": new.run_id})
            if self._is_begun(new):
                break
        token = Token(new.run_id, 1, new.nonce, this_process().key)
        if new.status == "running":
            self._held[new.run_id] = TokenState(token)
        return token

    def _is_begun(self, new: NewRun) -> bool:
        with self._reading("create") as tx:
            row = tx.row(new.run_id)
            records = tx.records(new.run_id, before=1)
        if new.status == "running":
            return row is not None and row.nonce == new.nonce
        header = None if not records else records[0].header
        return header is not None and header.startswith(new.record.header or b"\0")

    def _change(self, op: str, body: Callable[[DecodingTransaction], T]) -> T:
        if op == "create":
            try:
                return self._create_at_once(body)
            except WriteConflict:  # the run exists: a transaction finds out what to report
                pass
        return super()._change(op, body)

    def _create_at_once(self, body: Callable[[DecodingTransaction], T]) -> T:
        """Run `body`, which creates a run in one statement, and return its result. Raise `WriteConflict` if it exists."""
        link = self._take("create", self._connections)
        try:
            return body(self._guard(Creation(link, self._tables, self._preparing, self._appends)))
        except UNDONE as exc:
            raise WriteConflict from exc
        except psycopg.Error as exc:
            raise (self._unknown if link.is_lost else self._failure)("create", exc) from exc
        finally:
            self._connections.give(link)

    def claim(self, claim: Claim) -> Claimed:
        self._heed(claim.lease)
        return super().claim(claim)

    def _claim_due(
        self, flows: Collection[str], limit: int, skip: Collection[str], lease: float, max_crashes: int | None
    ) -> builtins.list[tuple[Token, RunRow]]:
        self._heed(lease)
        return super()._claim_due(flows, limit, skip, lease, max_crashes)

    def renew(self, tokens: Sequence[Token]) -> builtins.list[Renewal]:
        self._check_open()
        if not tokens:
            return []
        now = self.clock.time()
        renewals = self._ask("renew", self._renewing, lambda link: self._appends.renew(link, tokens, now, self._margin))
        end = SYSTEM.monotonic() + _LOCKED_SECONDS
        for index, (token, renewal) in enumerate(zip(tokens, renewals, strict=True)):
            if renewal.outcome == "unknown" and SYSTEM.monotonic() < end:
                renewals[index] = self._renew_locked(token)
            elif renewal.outcome == "lost":
                self._drop(token)
        told = [(token.run_id, renewal) for token, renewal in zip(tokens, renewals, strict=True)]
        cancels = self._proven_cancels({run_id: it.cancel for run_id, it in told if it.cancel is not None})
        return [Renewal(renewal.outcome, cancels.get(run_id)) for run_id, renewal in told]

    def _renew_locked(self, token: Token) -> Renewal:
        """Renew a lease whose row was locked a moment ago. The outcome is "unknown" if it is still locked."""
        try:
            return super().renew([token])[0]
        except StoreError as exc:
            if isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
                return Renewal("unknown")
            raise

    def cancels(self, run_ids: Sequence[str]) -> dict[str, str]:
        requests = self._ask("cancels", self._connections, lambda link: self._appends.cancels(link, run_ids))
        return dict(self._proven_cancels(requests))


def _smaller(record: Record) -> Record:
    """Return the record with its payload compressed if that saves more than a tenth."""
    payload = record.payload
    if payload is None or record.packing or record.header is None or not _PACKED_BYTES < len(payload) == record.size:
        return record
    packed = compress(payload)
    is_fair = len(packed) < 0.9 * len(payload) and len(payload) <= unpacked_limit(len(packed))
    return record._replace(payload=packed, packing=ZSTD) if is_fair else record


def _as_it_is(row: Row) -> Row:
    return row


def _is_backend_at_fault(exc: Exception) -> bool:
    return isinstance(exc, StoreError | psycopg.OperationalError)
