"""The verbs of a run's owner, written once over the primitives of `Transaction`.

A verb reads the row inside a write, asks the fence, and writes what the fence decided in the same write. This module
holds what the fence can't know: the tokens that this store object handed out, and which processes are gone.
"""

from __future__ import annotations

import abc
import builtins
import functools
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar, Unpack

import msgspec

from milepost.errors import (
    DeserializeStateError,
    OptionError,
    RunExistsError,
    RunLockedError,
    RunNotFoundError,
    StoreClosedError,
    StoreError,
    shown,
)
from milepost.model.beginning import PAGE, find_start, start_in
from milepost.model.durations import as_seconds
from milepost.model.ids import describe_owner, is_gone, this_process
from milepost.model.ranges import is_live
from milepost.model.record import (
    CHECKPOINT,
    FAILURE,
    FINISH,
    START,
    Record,
    format_time,
    make_record,
    new_record,
    packed,
)
from milepost.model.seal import NumberGap, digests_of, link_of, with_gap
from milepost.store import (
    MOST,
    Append,
    Claim,
    Claimed,
    LeaseState,
    NewRun,
    Release,
    Renewal,
    RunRow,
    RunSnapshot,
    Store,
    StoreOptions,
    Token,
    Verdict,
    check_number,
    check_run_id,
    check_tags,
    read_cancel,
)
from milepost.stores.base import fence
from milepost.stores.base.decoding_transaction import DecodingTransaction, ReadEnds
from milepost.stores.base.deltas import SMALLEST, Base, Bases
from milepost.stores.base.encryption import keeper_of
from milepost.stores.base.fence import Row, TokenState, why
from milepost.stores.base.links import Chaining, Links
from milepost.stores.base.process_fork import watch
from milepost.stores.base.transaction import DamagedRow, RecordEntry, Transaction, WriteConflict
from milepost.stores.base.workers import WorkerStore

IsGone = Callable[[str], bool]
T = TypeVar("T")

_logger = logging.getLogger("milepost")

_PASSED_OVER = 60.0
"""Seconds for which a run that could not be claimed is skipped."""
_TRIES = 20
"""Number of times that a write is tried while other writers are faster."""


class _Unclaimable(Exception):
    """A run that could not be claimed; its cause says why. It ends the write, which is tried again without that run."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


class OwnerStore(WorkerStore):
    """A store of rows and journals under the fence. A backend adds `_read`, `_write` and `close`."""

    can_encrypt = True
    keeps_differences = False
    """True if the backend stores states as differences. One that only holds the bytes that it is given need not."""
    compresses_differences = False
    """True if it compresses large differences: not where people are to read them."""
    errors_of_one_run: tuple[type[Exception], ...] = (ArithmeticError, LookupError, TypeError, ValueError, DamagedRow)
    """Exceptions that a run's row or records cause while the backend itself is well."""
    has_one_writer = True
    """True if a write makes all other writes wait, not only those of the same runs."""

    def __init__(self, **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self._keeper = keeper_of(
            self.seals, options.get("encryption_key"), allow_plain=options.get("allow_plain", False)
        )
        self._bases = Bases(compressing=self.compresses_differences) if self.keeps_differences else None
        self.takes_ropes = self.keeps_differences
        self._links = Links()
        self._read_ends: ReadEnds = {}
        self._held: dict[str, TokenState] = {}
        self._unclaimable: dict[str, float] = {}
        """For each run that could not be claimed, the time on the monotonic clock until which it is skipped."""
        self._is_closed = False
        if self.is_read_only:
            # Everything that a store writes goes through one of these.
            for name in ("append", "renew", "claim_due"):
                setattr(self, name, functools.partial(self._refuse, name))
            setattr(self, "_write", self._refuse)  # noqa: B010  # a method is no variable to type checkers
        watch(self)

    def _take_options(self, other: Store) -> None:
        """Take the keys, the retention and the clock of another store instead of its own, before anything is done."""
        super()._take_options(other)
        self._keeper = other._keeper if isinstance(other, OwnerStore) else None

    # -- the backend --------------------------------------------------------------------------------

    @abc.abstractmethod
    def _write(self, op: str) -> AbstractContextManager[Transaction]:
        """Open an atomic write. It is durable when its block ends, and undone if the block raises.

        All that the block reads must still be so when it is written. Where the backend finds that it is not, it undoes
        the write and raises `WriteConflict`, from the block or from its end.
        """

    @abc.abstractmethod
    def _read(self, op: str) -> AbstractContextManager[Transaction]:
        """Open a view of one moment. It never waits for a commit, if the backend allows that."""

    def _change(self, op: str, body: Callable[[DecodingTransaction], T]) -> T:
        """Run `body` in one atomic write and return its result. Try again if another writer was faster.

        Raise `StoreError` after `_TRIES` tries.
        """
        for _ in range(_TRIES):
            try:
                with self._write(op) as tx:
                    return body(self._guard(tx))
            except WriteConflict as exc:
                overtaken = exc
        raise StoreError(
            f"the store {self.place} could not {op.replace('_', ' ')}: others were faster {_TRIES} times in a row: try again",
            store=self.place,
            op=op,
        ) from overtaken

    def _refuse(self, op: str, *args: Any, **options: Any) -> NoReturn:
        raise StoreError(
            f"the store {self.place} is opened to read only, and can't {op.replace('_', ' ')}: open it without read_only",
            store=self.place,
            op=op,
        )

    @contextmanager
    def _reading(self, op: str) -> Iterator[DecodingTransaction]:
        with self._read(op) as tx:
            yield self._guard(tx)

    def _guard(self, tx: Transaction) -> DecodingTransaction:
        """Wrap `tx` in the layer that decrypts records and makes states whole."""
        return DecodingTransaction(
            tx, self._keeper, self.seals, self._packed, self._read_ends, compressing=self.compresses_differences
        )

    def _lease_end(self, now: float, lease: float) -> float | None:
        """Return when a lease taken now ends, None if it does not end by itself."""
        return now + lease

    def _before_fork(self) -> None:
        """Bring all that a child process would share into a state from which both processes can go on."""

    def _after_fork(self, is_child: bool) -> None:
        """Undo `_before_fork`."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(f"the store {self.place} is closed: open it again to use it")

    # -- ownership ---------------------------------------------------------------------------------

    def create(self, new: NewRun) -> Token:
        check_run_id(new.run_id)
        check_tags(new.tags)
        if new.record.sequence != 0:
            raise ValueError(f"a start record has sequence 0, not {new.record.sequence}")
        me = this_process()
        token = Token(new.run_id, 1, new.nonce, me.key)
        life = self.draw_life()
        record = self._sealed(new.run_id, life, new.record, "", "")
        is_owned = new.status == "running"

        def body(tx: Transaction) -> None:
            there = tx.row(new.run_id)
            now = self.clock.time()
            if there is not None:
                status = fence.shown_status(there, self._state(there, now))
                raise RunExistsError(
                    f"run {new.run_id!r} exists and is {status}: choose another run_id, or resume it",
                    run_id=new.run_id,
                    status=status,
                )
            row = Row(
                new.run_id,
                new.flow,
                new.status,
                created_at=now,
                updated_at=now,
                epoch=1,
                nonce=new.nonce if is_owned else "",
                owner=me.name if is_owned else "",
                lease=new.lease if is_owned else 0.0,
                lease_until=self._lease_end(now, new.lease) if is_owned else None,
                wake_at=new.wake_at,
                tags=dict(new.tags),
                life=life,
            )
            tx.add_row(row)
            tx.insert(new.run_id, (record,))

        self._change("create", body)
        if is_owned:
            self._held[new.run_id] = TokenState(token)
            link = link_of(record.header)
            self._links.note(token, life, 0, "", 0, link)
            if self._bases is not None and new.record.size >= SMALLEST:
                self._bases.know(new.run_id, token, Base(new.record, link, 0, new.record.size, 0, True))
        return token

    def claim(self, claim: Claim) -> Claimed:
        check_run_id(claim.run_id)
        if claim.finish is not None and claim.finish.sequence != claim.sequence + 2:
            raise ValueError(f"an end after {claim.sequence + 1} can't have number {claim.finish.sequence}")
        if claim.record.sequence != claim.sequence + 1:
            raise ValueError(f"an owner record after {claim.sequence} can't have number {claim.record.sequence}")
        claimed = self._change("claim", lambda tx: self._claim(tx, self._row(tx, claim.run_id), claim))
        if claimed.token is not None:
            self._held[claim.run_id] = TokenState(claimed.token)
        return claimed

    def _claim(
        self, tx: DecodingTransaction, row: Row, request: Claim, *, worked: bool = False, gone: IsGone | None = None
    ) -> Claimed:
        now = self.clock.time()
        state = self._state(row, now, gone)
        last = tx.newest_stored(row.run_id)
        newest = 0 if last is None else last.sequence
        if last is not None and last.kind == CHECKPOINT:
            checkpoint: RecordEntry | None = RecordEntry(last)
        else:
            checkpoint = tx.newest_checkpoint(row.run_id)
        me = this_process()
        ruling = fence.claim(
            row,
            request,
            state=state,
            newest=newest,
            newest_checkpoint=-1 if checkpoint is None else checkpoint.record.sequence,
            now=now,
            owner=me.name,
            until=self._lease_end(now, request.lease),
            worked=worked,
        )
        if ruling.row is None:
            return Claimed(ruling.outcome, None, self._view_of(tx, row, state, checkpoint, newest))
        if ruling.outcome != "claimed":
            tx.put_row(ruling.row)
            return Claimed(ruling.outcome, None, self._view_of(tx, ruling.row, "free", checkpoint, newest))
        owner = self._owner_record(tx, row, request.record, last)
        tx.take(ruling.row, owner)
        if request.finish is not None:
            release = Release("finished", degraded=row.degraded, missed=row.missed)
            ended = fence.end_ownership(ruling.row, release, newest=request.finish.sequence, now=now)
            tx.put_row(ended)
            finish = self._sealed(row.run_id, row.life, request.finish, "", link_of(owner.header))
            tx.insert(row.run_id, (finish,))
            return Claimed("claimed", None, self._view_of(tx, ended, "free", checkpoint, request.finish.sequence))
        token = Token(row.run_id, request.epoch, request.nonce, me.key)
        self._links.note(token, row.life, owner.sequence, "", owner.sequence, link_of(owner.header))
        if self._bases is not None:
            self._bases.hand_over(row, token)
        return Claimed("claimed", token, self._view_of(tx, ruling.row, "ours", checkpoint, request.record.sequence))

    def claim_due(
        self,
        flows: Collection[str],
        limit: int,
        skip: Collection[str] = (),
        *,
        lease: float = 30.0,
        max_crashes: int | None = 5,
    ) -> builtins.list[tuple[Token, RunRow]]:
        check_names(flows, "flows")
        check_names(skip, "skip")
        limit = min(check_number(limit, "limit", least=1), MOST)
        lease = as_seconds(lease, "lease")
        if max_crashes is not None:
            check_number(max_crashes, "max_crashes", least=1)
        return self._claim_due(flows, limit, skip, lease, max_crashes) if flows else []

    def _claim_due(
        self, flows: Collection[str], limit: int, skip: Collection[str], lease: float, max_crashes: int | None
    ) -> builtins.list[tuple[Token, RunRow]]:
        gone = functools.cache(is_gone)

        tokens: builtins.list[Token] = []

        def body(tx: DecodingTransaction) -> builtins.list[tuple[Token, RunRow]]:
            claims = []
            tokens.clear()
            for row in self._due(tx, flows, limit, passed, gone):
                try:
                    request = self._worker_claim(row, tx.newest(row.run_id), lease, max_crashes, gone)
                    claimed = self._claim(tx, row, request, worked=True, gone=gone)
                except self.errors_of_one_run as exc:
                    raise _Unclaimable(row.run_id) from exc
                if claimed.token is not None:
                    tokens.append(claimed.token)
                    claims.append((claimed.token, claimed.row))
            return claims

        with self._abandoning(tokens):
            while True:
                passed = {*skip, *self._passed_over()}
                if self.has_one_writer:  # most polls find nothing: look first, without keeping others from writing
                    with self._reading("claim_due") as tx:
                        if not self._due(tx, flows, 1, passed, gone):
                            return []
                try:
                    claims = self._change("claim_due", body)
                    break
                except _Unclaimable as exc:
                    self._pass_over(exc.run_id, exc.__cause__)
        for token, _ in claims:
            self._held[token.run_id] = TokenState(token)
        return claims

    def _pass_over(self, run_id: str, cause: BaseException | None) -> None:
        """Skip a run that could not be claimed for a while, so that it does not keep others from being claimed."""
        self._unclaimable[run_id] = self.clock.monotonic() + _PASSED_OVER
        _logger.warning("run %r can't be claimed, and others go on: %s", run_id, cause, extra={"run_id": run_id})

    def _passed_over(self) -> builtins.list[str]:
        """Return the ids of the runs that are skipped now."""
        now = self.clock.monotonic()
        for run_id in [run_id for run_id, until in [*self._unclaimable.items()] if until <= now]:
            self._unclaimable.pop(run_id, None)
        return [*self._unclaimable]

    @contextmanager
    def _abandoning(self, tokens: builtins.list[Token]) -> Iterator[None]:
        """Abandon `tokens` if the block fails: they may have been written all the same, and no caller learns of them."""
        try:
            yield
        except BaseException:
            self._held.update({token.run_id: TokenState(token, is_abandoned=True) for token in tokens})
            raise

    def _due(
        self, tx: Transaction, flows: Collection[str], limit: int, skip: Collection[str], gone: IsGone
    ) -> builtins.list[Row]:
        now = self.clock.time()
        queues = [self._due_of(tx, flow, now, limit, skip, gone) for flow in dict.fromkeys(flows)]
        longest = max(map(len, queues), default=0)
        in_turn = [queue[i] for i in range(longest) for queue in queues if i < len(queue)]
        return in_turn[:limit]

    def _due_of(
        self, tx: Transaction, flow: str, now: float, limit: int, skip: Collection[str], gone: IsGone
    ) -> builtins.list[Row]:
        """List the first `limit` runs of a flow that are due. Rows that only look due, as damaged ones may, hide no others."""
        passed = {*skip}
        while True:
            rows = [row for row in tx.candidates(flow, now, limit, passed) if row.run_id not in passed]
            due = [row for row in rows if fence.is_due(row, self._state(row, now, gone), now)]
            resting = {row.run_id for row in rows if row.status != "running" and row.cancel is None}
            resting.difference_update(row.run_id for row in due)
            if len(due) >= limit or not resting:
                return due
            passed |= resting

    def _worker_claim(self, row: Row, newest: int, lease: float, max_crashes: int | None, gone: IsGone) -> Claim:
        now = self.clock.time()
        is_crash = self._state(row, now, gone) == "ended"
        if row.cancel is not None:
            reason = "a cancel is open"
        elif is_crash:
            reason = "its owner stopped without a word"
        else:
            reason = f"it was {row.status}"
        fields = {"verb": "worker", "epoch": row.epoch + 1, "from": newest, "crashed": is_crash}
        fields |= {"was": row.status, "reason": reason}
        record = make_record(row.run_id, newest + 1, format_time(now), "owner", fields=fields)
        nonce = os.urandom(8).hex()
        return Claim(row.run_id, newest, row.epoch + 1, nonce, record, lease, is_crash, max_crashes=max_crashes)

    def append(self, batch: Sequence[Append]) -> builtins.list[Verdict]:
        self._find_surplus(batch)
        return self._append_together(batch)

    def _append_together(self, batch: Sequence[Append]) -> builtins.list[Verdict]:
        """Write any batch in one atomic write."""
        appends = [self._prepared(append) for append in batch]
        verdicts = self._change("append", lambda tx: [self._append(tx, append) for append in appends])
        self._settle(appends, verdicts)
        return verdicts

    def _prepared(self, append: Append) -> Append:
        token, records, release, tags, statements = append
        check_tags(tags or {})
        if statements and not self.runs_statements:
            raise OptionError(f"the store {self.place} executes no statements with a checkpoint", option="statements")
        return Append(token, self._kept(token, records), release, tags, statements)

    def _kept(self, token: Token, records: Sequence[Record]) -> tuple[Record, ...]:
        """Convert an owner's records to the form that the backend stores. Call `_note_kept` once they are written."""
        if not records:
            return ()
        first = records[0].sequence
        life, prev = self._links.before(token, first) or self._life_and_link(token.run_id, first - 1)
        if len(records) == 1 and records[0].size < SMALLEST:  # as nearly all are
            if self._bases is not None:
                self._bases.take_back(token.run_id)
            stored = self._sealed(token.run_id, life, records[0], "", prev)
            self._links.note(token, life, first, prev, first, link_of(stored.header))
            return (stored,)
        chaining = Chaining(functools.partial(self._sealed, token.run_id, life), prev)
        if self._bases is not None:
            kept = self._bases.lessened(token, records, chaining)
        else:
            kept = tuple([chaining(record, "") for record in records])
        self._links.note(token, life, first, prev, records[-1].sequence, chaining.link)
        return kept

    def _life_and_link(self, run_id: str, sequence: int) -> tuple[str, str]:
        """Return the life of a run and the link of a record, "" if there is none: then nothing is written after it either."""
        with suppress(DamagedRow, RunNotFoundError), self._read("append") as tx:
            return tx.life(run_id) or "", tx.link(run_id, sequence)
        return "", ""

    def _owner_record(self, tx: DecodingTransaction, row: Row, record: Record, last: Record | None) -> Record:
        """Return the record of a claim as the backend stores it. `last` is the run's newest one, as it is stored.

        It covers the last record that is proven, and names the damaged ones after it.
        """
        link, passed = tx.proven_end(row.run_id, last)
        if passed:
            text = ",".join(map(str, passed))
            record = record._replace(header=b'%s,"passed":[%s]' % (record.header or b"", text.encode()))
        return self._sealed(row.run_id, row.life, record, "", link)

    def _following(self, tx: Transaction, row: Row, record: Record, unused: int | None = None) -> Record:
        """Return the record, which is the next one of its run, as the backend stores it.

        `unused` is the first of the numbers before it, if there are such, that were never used.
        """
        link = tx.link(row.run_id, tx.newest(row.run_id))
        if unused is not None and unused < record.sequence:
            record = with_gap(record, NumberGap(unused, link))
        return self._sealed(row.run_id, row.life, record, "", link)

    def _note_kept(self, token: Token, records: Sequence[Record]) -> None:
        if self._bases is not None:
            self._bases.settle(token, records)

    def _append(self, tx: Transaction, append: Append) -> Verdict:
        token, records, release, tags, statements = append
        row = tx.row_of_owner(token.run_id)
        if row is not None and (release is not None or tags is not None or row.cancel is not None):
            row = tx.proven(row)
        newest = tx.newest(token.run_id)
        outcome = fence.judge(row, append, newest)
        if row is None or outcome != "written":
            return Verdict(outcome, None if row is None else row.cancel)
        if records:
            tx.insert(token.run_id, records)
            self._take_out_surplus(tx, token.run_id, records)
            newest = records[-1].sequence
        if release is not None or tags is not None:
            now = self.clock.time()
            new = row if release is None else fence.end_ownership(row, release, newest=newest, now=now)
            tx.put_row(fence.tagged(new, tags or {}, newest=newest, now=now))
        if statements:
            tx.perform(statements)
        return Verdict("written", row.cancel)

    def _find_surplus(self, batch: Sequence[Append]) -> bool:
        """Find the records to prune when `batch` is written. Return whether there are any: such appends need `_append`."""
        return False

    def _take_out_surplus(self, tx: Transaction, run_id: str, records: Sequence[Record]) -> None:
        """Prune the records that were marked for removal when `records` are appended."""

    def _settle(self, appends: Sequence[Append], verdicts: Sequence[Verdict]) -> None:
        """Update this object after a write: note the written records, and drop tokens that no longer count."""
        for append, verdict in zip(appends, verdicts, strict=True):
            if verdict.outcome == "written":
                self._note_kept(append.token, append.records)
            else:
                self._links.forget(append.token.run_id)
            if verdict.outcome == "lost" or (append.release is not None and verdict.outcome == "written"):
                self._drop(append.token)

    def renew(self, tokens: Sequence[Token]) -> builtins.list[Renewal]:
        if not tokens:
            self._check_open()
            return []

        def body(tx: Transaction) -> builtins.list[Renewal]:
            renewals = []
            now = self.clock.time()
            for token in tokens:
                try:
                    row = tx.row(token.run_id)
                except DamagedRow:  # it must not keep others from being renewed
                    renewals.append(Renewal("unknown"))
                    continue
                if row is None or not fence.is_current(row, token):
                    renewals.append(Renewal("lost", None if row is None else row.cancel))
                    continue
                tx.put_row(fence.renewed(row, self._lease_end(now, row.lease), now))
                renewals.append(Renewal("kept", row.cancel))
            return renewals

        renewals = self._change("renew", body)
        for token, renewal in zip(tokens, renewals, strict=True):
            if renewal.outcome == "lost":
                self._drop(token)
        return renewals

    def release(self, token: Token, release: Release) -> Verdict:
        return self.append([Append(token, (), release)])[0]

    def abandon(self, token: Token) -> None:
        held = self._held.get(token.run_id)
        if held is not None and held.token == token:
            self._held[token.run_id] = TokenState(token, is_abandoned=True)

    def _drop(self, token: Token) -> None:
        held = self._held.get(token.run_id)
        if held is not None and held.token == token:
            self._held.pop(token.run_id, None)
            if self._bases is not None:
                self._bases.forget(token.run_id)
            self._links.forget(token.run_id)

    # -- reading -----------------------------------------------------------------------------------

    def read(
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
        check_run_id(run_id)
        after = min(max(check_number(after, "after"), -1), MOST)
        before = None if before is None else min(max(check_number(before, "before"), -1), MOST)
        limit = None if limit is None else min(check_number(limit, "limit", least=1), MOST)
        if node_id is not None and not isinstance(node_id, str):
            raise TypeError(f"node_id must be a str, not {shown(node_id)}")
        if isinstance(kinds, str):
            raise TypeError(f"kinds must be a collection of kinds, not the str {shown(kinds)}")
        with self._reading("read") as tx:
            return tx.records(
                run_id, after=after, before=before, kinds=kinds, node_id=node_id, newest=newest, limit=limit
            )

    def latest(self, run_id: str, *, before: int | None = None, with_nodes: bool = False) -> RunSnapshot:
        check_run_id(run_id)
        before = None if before is None else min(max(check_number(before, "before"), -1), MOST)
        held = self._holding(run_id)
        with self._reading("latest") as tx:
            row = self._row(tx, run_id)
            point, tail = tx.point(run_id, row.live, before=before)
            is_newest = before is None and not row.live and point is not None and not point.is_foreign
            if point is None and tail and (tail[0].sequence, tail[0].kind) == (0, START):
                point = tail.pop(0)
            after = -1 if point is None else point.sequence
            newest = tx.newest(run_id) if before is not None else tail[-1].sequence if tail else max(after, 0)
            view = self._view(tx, row, newest, held=held, checkpoint=point if is_newest else None)
            if self._bases is not None:
                # An owner that goes on from here writes its states as differences to this one.
                base = tx.proven_base_of(run_id, after)
                if base is not None and base.is_verified:
                    self._bases.know(run_id, row, base)
            live_tail = tuple(r for r in tail if is_live(r.sequence, row.live))
            if not with_nodes:
                return RunSnapshot(view, point, live_tail, newest, (), row.sequence)
            nodes = tx.live_nodes(run_id, row.live, after + 1)
            start = next(iter(tx.records(run_id, before=1, kinds=("start",))), None)
            return RunSnapshot(view, point, live_tail, newest, nodes, row.sequence, start)

    def get_run(self, run_id: str) -> RunRow:
        check_run_id(run_id)
        held = self._holding(run_id)
        with self._reading("get_run") as tx:
            row = self._view(tx, self._row(tx, run_id), tx.newest(run_id), held=held)
            (row,) = self._with_errors(tx, [row])
            if row.error is not None:
                return msgspec.structs.replace(row, fingerprint=self._fingerprint(tx, run_id))
            return row

    def _fingerprint(self, tx: Transaction, run_id: str) -> str | None:
        """Return the fingerprint with which the run began; None if there is none, or if its seal does not prove it."""
        search = find_start()
        kind, after = next(search)
        with suppress(DeserializeStateError):
            while True:
                page = tx.records(run_id, after=after, kinds=(kind,), limit=PAGE)
                try:
                    kind, after = search.send(page)
                except StopIteration as found:
                    start = start_in(found.value, functools.partial(self.seals.check, run_id))
                    return None if start is None else start.fields().get("fingerprint")
        return None

    def _with_errors(self, tx: Transaction, rows: Sequence[RunRow], *, near: int = MOST) -> list[RunRow]:
        """Return the rows of runs, those that failed or that a bug holds with their errors.

        A run has none if the record of its failure is damaged, or not among its newest `near` records.
        """
        failed = {row.run_id: max(row.sequence - near, -1) for row in rows if _has_failed(row)}
        ends = tx.ends_of(failed) if failed else {}
        return [self._with_error(row, ends.get(row.run_id, ())) if row.run_id in failed else row for row in rows]

    def _with_error(self, row: RunRow, ends: Sequence[Record]) -> RunRow:
        from milepost.model.info import RunFailure  # few runs have failed

        error = None
        try:
            for record in ends:
                self.seals.check(row.run_id, record)
                fields = record.fields()
                is_end = record.kind == FINISH and error is None
                if is_end or (record.kind == FAILURE and any(map(fields.get, ("final", "given_up", "held")))):
                    kind, message, frames = (str(fields.get(n) or "") for n in ("error_type", "message", "traceback"))
                    error = RunFailure(kind, message, record.node_id, frames)
                if not is_end:
                    break
        except DeserializeStateError:
            pass  # verify reports damage
        return msgspec.structs.replace(row, error=error)

    def cancels(self, run_ids: Sequence[str]) -> dict[str, str]:
        cancels: dict[str, str] = {}
        with self._reading("cancels") as tx:
            for run_id in run_ids:
                with suppress(DamagedRow):  # it hides no other run's; its owner gets the error at its next write
                    row = tx.row(run_id)
                    if row is not None and row.cancel is not None:
                        cancels[run_id] = row.cancel
        return cancels

    def _proven_cancels(self, stored: Mapping[str, str]) -> Mapping[str, str]:
        """Return the open cancels that a backend read without their rows, which prove them, in plain text."""
        return stored if self._keeper is None or not stored else OwnerStore.cancels(self, [*stored])

    def _row(self, tx: Transaction, run_id: str) -> Row:
        row = tx.row(run_id)
        if row is None:
            raise RunNotFoundError(run_id, self.place)
        return row

    def _state(
        self, row: Row, now: float, gone: IsGone | None = None, held: Mapping[str, TokenState] | None = None
    ) -> LeaseState:
        """Return who owns the run. Pass `held`, taken before the row was read, if another thread
        may release the run meanwhile."""
        known = self._held if held is None else held
        return fence.lease_state(row, now, known.get(row.run_id), gone or is_gone)

    def _holding(self, run_id: str) -> dict[str, TokenState]:
        """Return this object's token of a run. Call it before the run's row is read.

        If another thread releases the run in between, the row still names the token, but this object no longer knows
        it.
        """
        held = self._held.get(run_id)
        return {} if held is None else {run_id: held}

    def _view(
        self,
        tx: Transaction,
        row: Row,
        newest: int,
        gone: IsGone | None = None,
        held: Mapping[str, TokenState] | None = None,
        checkpoint: Record | None = None,
    ) -> RunRow:
        """Build the row that others see. `newest` is the number of the newest record, `checkpoint` the newest checkpoint of
        all; None: it is read.
        """
        state = self._state(row, self.clock.time(), gone, held)
        entry = tx.newest_checkpoint(row.run_id) if checkpoint is None else RecordEntry(checkpoint)
        return self._view_of(tx, row, state, entry, newest)

    def _view_of(
        self, tx: Transaction, row: Row, state: LeaseState, newest_checkpoint: RecordEntry | None, newest: int
    ) -> RunRow:
        """Build the row that others see, from the newest checkpoint and the number of the newest record."""
        shown, now = newest_checkpoint, self.clock.time()
        if shown is not None and not is_live(shown.record.sequence, row.live):
            shown = tx.live_entry(row.run_id, row.live)
        cancel, by = (None, None) if row.cancel is None else read_cancel(row.cancel)
        return RunRow(
            run_id=row.run_id,
            flow=row.flow,
            status=fence.shown_status(row, state),
            reason=why(row, state, now),
            degraded=row.degraded,
            missed=row.missed,
            created_at=_moment(row.created_at),
            updated_at=_moment(row.updated_at),
            sequence=newest,
            next_node=None if shown is None else shown.next_node(),
            size=0 if shown is None else shown.record.size,
            owner=row.owner,
            lease_until=None if row.lease_until is None else _moment(row.lease_until),
            wake_at=None if row.wake_at is None else _moment(row.wake_at),
            waiting_for=row.waiting if row.status in {"waiting", "ready", "failed", "interrupted"} else (),
            crash_count=fence.crashes(row, -1 if newest_checkpoint is None else newest_checkpoint.record.sequence),
            tags=dict(row.tags),
            blocked_by=row.blocked_by or "damage" if row.status == "blocked" else None,
            epoch=row.epoch,
            lease=state,
            cancel=cancel,
            signals=row.signals,
            live=row.live,
            cancel_by=by,
        )

    # -- shared ------------------------------------------------------------------------------------

    def _sealed(
        self, run_id: str, life: str, record: Record, base: str, prev: str, *, is_verified: bool = True
    ) -> Record:
        """Return `record` as the backend stores it: compressed, with its digests, and sealed or encrypted.

        `base` is the link of the record that a difference builds on, `prev` that of the record before it in the journal; a
        start record has none. Without `is_verified` no key seals the record.
        """
        assert record.header is not None
        sequence, kind, node_id, visit, size, _, payload, packing = stored = self._packed(record)
        # Every record passes here, so it is made once.
        header = record.header + digests_of(record, stored, base, prev if sequence else None, life)
        if self._keeper is not None:
            stored = new_record((sequence, kind, node_id, visit, size, header, payload, packing))
            return self._keeper.keep(run_id, stored, is_verified=is_verified)
        return new_record((sequence, kind, node_id, visit, size, self.seals.seal(header), payload, packing))

    def _packed(self, record: Record) -> Record:
        """Return `record` with its payload compressed if its header says so. Some backends compress more."""
        return packed(record)

    def _refuse_live(self, row: Row, state: LeaseState, deed: str) -> None:
        """Raise `RunLockedError` if somebody owns the run."""
        if state in {"live", "ours"}:
            until = None if row.lease_until is None else _moment(row.lease_until)
            end = "" if until is None else f" until {until:%Y-%m-%d %H:%M:%S} UTC"
            raise RunLockedError(
                f"run {row.run_id!r} is owned by {describe_owner(row.owner)}{end} and can't be {deed}: wait for it to end, "
                f"or stop it",
                run_id=row.run_id,
                owner=row.owner,
                lease_until=until,
            )


def has_statements(appends: Sequence[Append]) -> bool:
    """Return whether the batch is one append with statements. Raise ValueError if it has other appends too."""
    if not any(append.statements for append in appends):
        return False
    if len(appends) > 1:
        raise ValueError("an append with statements has a commit of its own: hand it over in a batch of its own")
    return True


def check_names(names: Any, what: str) -> None:
    """Raise TypeError unless `names` is a collection of str, and not a str itself."""
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} must be a collection of str, not {shown(names)}")


def check_wanted_tags(tags: Mapping[Any, Any]) -> None:
    """Raise TypeError unless `tags` maps str to str."""
    if not isinstance(tags, Mapping):
        raise TypeError(f"tags are a mapping of str to str, not {shown(tags)}")
    for key, value in tags.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"tags are str to str, not {shown(key)}: {shown(value)}")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _has_failed(row: RunRow) -> bool:
    return row.status == "failed" or row.blocked_by == "bug"
