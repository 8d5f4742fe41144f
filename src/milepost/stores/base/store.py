"""Everything that stores have in common, over the transactions of one of them.

They are written once over the primitives of `Transaction`, and build on `OwnerStore`, `Pruning` and `Keeping`.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, Unpack

from msgspec.structs import replace

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    DeserializeStateError,
    OptionError,
    RunExistsError,
    RunNotFoundError,
    RunNotResumableError,
    SignalRefusedError,
    shown,
)
from milepost.model.ids import is_gone
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import ENCRYPTED, OWNER, REFUSED, Record, format_time, make_record
from milepost.model.seal import gap_of, with_gap
from milepost.store import (
    ENDED,
    MAX_REASON_BYTES,
    MOST,
    MOST_WALKED,
    Signal,
    StoreOptions,
    check_id,
    check_moment,
    check_number,
    check_run_id,
    read_cancel,
    shortened,
)
from milepost.stores.base import fence
from milepost.stores.base.decoding_transaction import DecodingTransaction
from milepost.stores.base.deltas import chained
from milepost.stores.base.fence import Row
from milepost.stores.base.links import Chaining
from milepost.stores.base.owner import check_wanted_tags
from milepost.stores.base.prune import Pruning
from milepost.stores.base.transaction import DamagedRow, RowFilters, Transaction, Walk, saved_record

if TYPE_CHECKING:
    from milepost.model.info import CheckpointInfo, RunInfo, RunPage
    from milepost.model.upkeep import Stats, VerifyReport
    from milepost.stores.base.export import Copy

# -- The verbs that maintain a store: counting, checking, exporting and importing runs -------------
#
# They are written once over the primitives of `Transaction`. `export.py` defines the format of an exported run.


_logger = logging.getLogger("milepost")

_PAGE = 256
_NEAR = 256
"""Number of a run's newest records in which a listing looks for what the run failed with."""


class Keeping(Pruning):
    """A store's verbs for whole runs: `stats`, `verify`, `export` and `import_run`."""

    # -- counting and checking ---------------------------------------------------------------------

    def stats(self) -> Stats:
        gone = functools.cache(is_gone)
        with self._reading("stats") as tx:
            tallies = tx.tally()
            running = tx.page(statuses=("running",), limit=_MOST)
        now = self.clock.time()
        dead = sum(fence.shown_status(row, self._state(row, now, gone)) == "dead" for row in running)
        runs = {tally.status: tally.runs for tally in tallies}
        if dead:
            runs["running"] -= dead
            runs["dead"] = dead
        from milepost.model.upkeep import Stats

        return Stats(
            {status: runs[status] for status in sorted(runs) if runs[status]},
            sum(tally.records for tally in tallies),
            sum(tally.size for tally in tallies),
            min((datetime.fromtimestamp(t.oldest, UTC) for t in tallies if t.oldest is not None), default=None),
        )

    def verify(self, run_id: str) -> VerifyReport:
        from milepost.model.upkeep import VerifyReport
        from milepost.stores.base.export import Gaps

        check_run_id(run_id)
        problems: builtins.list[str] = []
        before = self._row_to_verify(run_id, problems)
        gaps = Gaps(has_start=before is None or bool(before.flow))
        for record in self._all(run_id, problems):
            try:
                self.seals.check(run_id, record)
                state = record.state()
            except DeserializeStateError as exc:
                problems.append(str(exc))
                gaps.pass_over(record.sequence, None)
                continue
            gaps.pass_over(record.sequence, gap_of(record.header))
            if len(state or b"") != record.size:
                problems.append(f"record {record.sequence} had {record.size} bytes and has {len(state or b'')} now")
        try:
            with self._reading("verify") as tx:
                problems += tx.strays(run_id)
                counted, there = self._row(tx, run_id).signals, len(tx.signals(run_id))
            if there != counted:
                problems.append(f"the run was sent {counted} signals, and there are {there}")
        except (DamagedRow, DeserializeStateError) as exc:
            problems.append(str(exc))
        newest, status = (-1, "") if before is None else (before.sequence, before.status)
        problems += gaps.problems(newest=newest, status=status)
        return VerifyReport(not problems, tuple(dict.fromkeys(problems)))

    def _row_to_verify(self, run_id: str, problems: builtins.list[str]) -> Row | None:
        with self._reading("verify") as tx:
            try:
                return self._row(tx, run_id)
            except DamagedRow as exc:  # the records may be whole all the same
                problems.append(str(exc))
                return None

    def _all(self, run_id: str, problems: builtins.list[str]) -> Iterator[Record]:
        """Yield all records in order. Read them page by page, so that memory stays small and nobody waits for long."""
        after = -1
        while True:
            try:
                with self._reading("verify") as tx:
                    page = tx.records(run_id, after=after, limit=_PAGE)
            except DamagedRow as exc:  # the damaged row does not say where the records are
                problems.append(str(exc))
                return
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].sequence

    # -- moving ------------------------------------------------------------------------------------

    def export(self, run_id: str) -> bytes:
        check_run_id(run_id)
        from milepost.stores.base.export import joined, lines_of

        with self._reading("export") as tx:
            # The stored row may name an older newest record. With the current number an import can
            # check that nothing is missing.
            row = replace(self._row(tx, run_id), sequence=tx.newest(run_id))
            records = tx.records(run_id)
            lines = lines_of(row, records, tx.signals(run_id), functools.partial(self._envelope, run_id))
        is_keyed = self.export_seals.is_keyed
        proofs = [self.seals.check(run_id, record) for record in records] if is_keyed else [False]
        return joined(lines, self.export_seals, is_verified=all(proofs))

    def _envelope(self, run_id: str, record: Record) -> bytes:
        """Return the envelope of a record. Raise `CheckpointIntegrityError` if the store lacks the key to open it."""
        if record.packing == ENCRYPTED or record.packing in REFUSED:
            self.seals.check(run_id, record)
        return record.envelope()

    def import_run(self, data: bytes, *, run_id: str | None = None) -> str:
        from milepost.stores.base.export import read_run

        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"what an export wrote is bytes, not {type(data).__name__}")
        if run_id is not None:
            check_run_id(run_id)
        copy = self._in_new_life(read_run(bytes(data), self.export_seals, run_id))
        self._change("import", functools.partial(self._keep_copy, copy))
        return copy.row.run_id

    def _in_new_life(self, copy: Copy) -> Copy:
        """Return a copy with its records as they are stored: in a life of their own, and sealed if it is verified."""
        life = self.draw_life()

        def sealed(record: Record, base: str, prev: str) -> Record:
            if record.sequence in copy.gaps:
                gap, link = copy.gaps[record.sequence]
                record = with_gap(record, gap._replace(link=prev))
                # What no key vouches for names no record with a seal of a key either.
                prev = link if copy.is_verified and link else prev
            seal = functools.partial(self._sealed, copy.row.run_id, life, is_verified=copy.is_verified)
            return seal(record, base, prev)

        seal = Chaining(sealed, "")
        if self.keeps_differences:
            stored, _ = chained(copy.records, {}, seal, compressing=self.compresses_differences)
        else:
            stored = tuple([seal(record, "") for record in copy.records])
        return copy._replace(row=replace(copy.row, life=life), records=stored)

    def seal_run(self, run_id: str) -> None:
        check_run_id(run_id)
        if self._keeper is None:
            raise OptionError(
                f"the store {self.place} has no keys to seal run {run_id!r} with: open it with signing_key",
                option="signing_key",
            )

        def body(tx: Transaction) -> None:
            assert isinstance(tx, DecodingTransaction)
            row = self._row(tx, run_id)
            self._refuse_live(row, self._state(row, self.clock.time()), "sealed")
            tx.seal_again(run_id)
            tx.put_row(row)

        self._change("seal_run", body)
        _logger.info("run %r was sealed anew in %s", run_id, self.place, extra={"run_id": run_id})

    def _keep_copy(self, copy: Copy, tx: Transaction) -> None:
        run_id = copy.row.run_id
        there = tx.row(run_id)
        if there is not None:
            status = fence.shown_status(there, self._state(there, self.clock.time()))
            raise RunExistsError(
                f"run {run_id!r} exists and is {status}: give the import another run_id, or delete the run that is there",
                run_id=run_id,
                status=status,
            )
        tx.add_row(copy.row)
        for group in _groups(copy.records):
            tx.insert(run_id, group)
        for signal in copy.signals:
            tx.add_signal(run_id, signal)


def _groups(records: tuple[Record, ...]) -> Iterator[tuple[Record, ...]]:
    """Group the records as a backend inserts them: in groups without a gap."""
    group: builtins.list[Record] = []
    for record in records:
        if group and record.sequence != group[-1].sequence + 1:
            yield tuple(group)
            group = []
        group.append(record)
    if group:
        yield tuple(group)


# The verbs for everybody but the owner: saving and loading by node, listing, deleting, signalling.


_MOST_ENDS = 10_000

_MOST = 1 << 40
"""A limit that no number of runs reaches. A caller may give any limit."""


class Runs(Keeping):
    """A complete store, except for its backend."""

    def __init__(self, **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self._ends: OrderedDict[str, int] = OrderedDict()
        """The positions of the runs that ended a page, so that the next page can begin there even if the run is gone."""

    # -- by run and node ---------------------------------------------------------------------------

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        check_run_id(run_id)
        check_id(node_id)
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data to save must be bytes, not {type(data).__name__}")
        copied = bytes(data)

        def body(tx: Transaction) -> None:
            row = tx.row(run_id)
            now = self.clock.time()  # after the row: a backend may wait for it
            if row is not None:
                self._refuse_live(row, self._state(row, now), "saved to")
            self._save_from_outside(tx, run_id, node_id, copied, now, row)

        self._change("save", body)

    def _save_from_outside(
        self, tx: Transaction, run_id: str, node_id: str, data: bytes, timestamp: float, row: Row | None
    ) -> None:
        """Add a visit from outside, with the run's next number and next epoch. Create the run if `row` is None."""
        if row is None:
            row = Row(run_id, "", "interrupted", timestamp, timestamp, epoch=0, life=self.draw_life())
            tx.add_row(row)
        sequence = tx.newest(run_id) + 1
        visit = tx.last_visit(run_id, node_id) + 1
        record = self._following(tx, row, saved_record(run_id, sequence, node_id, visit, data, timestamp))
        new = fence.intruded(row, sequence, timestamp)
        tx.put_row(replace(new, status="interrupted", reason="") if row.status in ENDED else new)
        tx.insert(run_id, (record,))

    def load(self, run_id: str, node_id: str, visit: int | None = None) -> bytes:
        check_run_id(run_id)
        check_id(node_id)
        if visit is not None:
            check_number(visit, "visit")
        with self._reading("load") as tx:
            row = tx.row(run_id)
            record = None
            if row is not None and visit is None:
                record = tx.live_checkpoint(run_id, row.live, node_id=node_id)
            elif row is not None and visit is not None and 0 < visit < MOST:
                record = tx.find_visit(run_id, node_id, visit)
        if record is None:
            what = "there is none" if visit is None else f"there is no visit {shown(visit)}"
            if row is None:
                what = "there is no such run"
            raise CheckpointNotFoundError(run_id, node_id, f"{what} in {self.place}")
        if self._keeper is not None or record.is_foreign:
            # The caller that gets the bytes has no key, or no header, to check them with.
            self.seals.check(run_id, record)
        return self._envelope(run_id, record)

    def list(self, run_id: str) -> builtins.list[CheckpointInfo]:
        check_run_id(run_id)
        with self._reading("list") as tx:
            row = tx.row(run_id)
            entries = [] if row is None else tx.live_entries(run_id, row.live)
        return [entry.info(run_id, superseded=False) for entry in entries]

    def history(self, run_id: str) -> builtins.list[CheckpointInfo]:
        check_run_id(run_id)
        with self._reading("history") as tx:
            row = tx.row(run_id)
            entries = [] if row is None else tx.entries(run_id)
        live: Ranges = () if row is None else row.live
        return [entry.info(run_id, not is_live(entry.record.sequence, live)) for entry in entries]

    def delete(self, run_id: str, node_id: str, *, force: bool = False) -> None:
        check_run_id(run_id)
        check_id(node_id)
        for record in self.read(run_id, newest=True, limit=1):
            self.seals.check_key(run_id, record)

        def body(tx: Transaction) -> bool:
            row = tx.row(run_id)
            now = self.clock.time()  # after the row: a backend may wait for it
            if row is None or tx.newest_checkpoint(run_id, node_id=node_id) is None:
                return False
            if not force:
                self._refuse_live(row, self._state(row, now), "deleted from")
            newest = tx.newest(run_id)
            visit = tx.last_visit(run_id, node_id)
            point = tx.live_entry(run_id, row.live)
            first = _first_of_step(tx, row, node_id)
            used = [record.fields().get("signal") for record in tx.records(run_id, kinds=("reply",), node_id=node_id)]
            removed = sum(record.kind != OWNER for record in tx.records(run_id, node_id=node_id))
            fields = {"verb": "delete", "epoch": row.epoch + 1, "removed": removed}
            new = fence.intruded(row, newest + 1, now)
            if first is not None:
                new = _without_what_follows(new, node_id, first, newest + 1)
                fields["live"] = [list(span) for span in new.live]
                fields["used"] = [number for number in used if number is not None]
            record = make_record(run_id, newest + 1, format_time(now), "owner", node_id, visit, fields=fields)
            record = self._following(tx, row, record)
            if first is None and row.status == "finished" and point is not None and point.record.node_id == node_id:
                new = replace(new, status="interrupted", reason=f"its result, of node {node_id!r}, was deleted")
            tx.put_row(new)
            tx.insert(run_id, (record,))
            tx.remove_node(run_id, node_id)  # at last, because each record that follows a deleted one names it
            return True

        if self._change("delete", body):
            extra = {"run_id": run_id, "node_id": node_id}
            _logger.info("node %r of run %r was deleted from %s", node_id, run_id, self.place, extra=extra)

    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        check_run_id(run_id)

        def body(tx: Transaction) -> bool:
            try:
                row = tx.row(run_id)
            except DamagedRow:
                if not force:  # nobody can tell whether somebody owns it
                    raise
            else:
                if row is None:
                    return False
                if not force:
                    self._refuse_live(row, self._state(row, self.clock.time()), "deleted")
            tx.remove_run(run_id)
            return True

        if self._change("delete_run", body):
            _logger.info("run %r was deleted from %s", run_id, self.place, extra={"run_id": run_id})
        self._held.pop(run_id, None)
        self._drop_live(run_id)

    # -- listing -----------------------------------------------------------------------------------

    def list_runs(
        self,
        *,
        flow: str | None = None,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        created_before: datetime | None = None,
        created_after: datetime | None = None,
        run_id_prefix: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RunPage:
        from milepost.model.info import RunPage

        limit = min(check_number(limit, "limit", least=1), _MOST)
        _check_flow(flow)
        moments = {
            "updated_before": updated_before,
            "updated_after": updated_after,
            "created_before": created_before,
            "created_after": created_after,
        }
        for name, moment in moments.items():
            if moment is not None:
                check_moment(moment, name)
        if run_id_prefix is not None and not isinstance(run_id_prefix, str):
            raise TypeError(f"run_id_prefix must be a str, not {shown(run_id_prefix)}")
        if after is not None:
            check_run_id(after)
        check_wanted_tags(tags or {})
        wanted = _wanted(status)
        # A row does not say whether a running run is dead: each is checked. A damaged row may say anything, and is shown
        # as blocked: each is read.
        statuses = None if wanted is None else {"running" if s == "dead" else s for s in wanted}
        page_size = limit
        if statuses is not None and "blocked" in statuses:
            statuses, page_size = None, max(limit, _PAGE)
        filters: RowFilters = {
            "flow": flow,
            "statuses": statuses,
            "tags": tags,
            "updated_before": _seconds(updated_before),
            "updated_after": _seconds(updated_after),
            "created_before": _seconds(created_before),
            "created_after": _seconds(created_after),
            "run_id_prefix": run_id_prefix,
        }
        gone = functools.cache(is_gone)
        runs: builtins.list[tuple[RunInfo, int | None]] = []
        walk: Walk | None = None
        passed = 0
        end: tuple[str, int | None] | None = None
        while len(runs) < limit:
            held = self._held.copy()
            with self._reading("list_runs") as tx:
                if walk is None:
                    walk = tx.walk(None if after is None else self._position(tx, after), MOST_WALKED, **filters)
                    filters["above"], below = walk.above, walk.below
                rows = tx.page(limit=page_size, after=below, **filters)
                views = [
                    (self._view(tx, row, tx.newest(row.run_id), gone=gone, held=held), tx.position(row.run_id))
                    for row in rows
                ]
                meant = [(view, place) for view, place in views if wanted is None or view.status in wanted]
                meant = meant[: limit - len(runs)]
                shown_rows = self._with_errors(tx, [view for view, _ in meant], near=_NEAR)
                runs += [(_in_a_line(view.info), place) for view, (_, place) in zip(shown_rows, meant, strict=True)]
            if len(rows) < page_size:
                # A page that is full may have left out rows that match: the next one begins after its last run.
                end = None if walk.end is None or len(runs) == limit else (walk.end, (walk.above or 0) + 1)
                break
            # The next page begins at a position, not at a run, which may be deleted meanwhile.
            below = views[-1][1]
            passed += len(rows) - len(meant)
            if len(runs) < limit and passed >= MOST_WALKED:
                end = rows[-1].run_id, below
                break
        page = RunPage(info for info, _ in runs)
        if end is not None:
            page.stopped_after = end[0]
            self._note_end(*end)
        elif runs:
            self._note_end(page[-1].run_id, runs[-1][1])
        return page

    def count_runs(
        self,
        *,
        flow: str | None = None,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 1001,
    ) -> int:
        limit = min(check_number(limit, "limit", least=1), _MOST)
        _check_flow(flow)
        check_wanted_tags(tags or {})
        wanted = _wanted(status)
        filters: RowFilters = {"flow": flow, "tags": tags, "statuses": wanted}
        if wanted is None or (("running" in wanted) == ("dead" in wanted)):
            with self._reading("count_runs") as tx:
                return tx.count(limit, **filters)
        # A row does not say whether a running run is dead: each is checked.
        shown_as = wanted & {"running", "dead"}
        gone = functools.cache(is_gone)
        with self._reading("count_runs") as tx:
            filters["statuses"] = wanted - shown_as
            count = tx.count(limit, **filters)
            filters["statuses"] = ("running",)
            after: int | None = None
            while count < limit:
                rows = tx.page(limit=_PAGE, after=after, **filters)
                now = self.clock.time()
                count += sum(fence.shown_status(row, self._state(row, now, gone)) in shown_as for row in rows)
                if len(rows) < _PAGE:
                    break
                after = tx.position(rows[-1].run_id)
        return min(count, limit)

    def flows(self, limit: int = 200) -> tuple[str, ...]:
        limit = min(check_number(limit, "limit", least=1), _MOST)
        with self._reading("flows") as tx:
            return tuple(tx.flows(limit))

    def _position(self, tx: Transaction, run_id: str) -> int:
        """Return the position of a run that ended a page, even if it was deleted since."""
        known = self._ends.get(run_id)
        if known is None:
            known = tx.position(run_id)
        if known is None:
            raise RunNotFoundError(run_id, self.place)
        return known

    def _note_end(self, run_id: str, position: int | None) -> None:
        if position is not None:
            self._ends[run_id] = position
            self._ends.move_to_end(run_id)
            if len(self._ends) > _MOST_ENDS:
                self._ends.popitem(last=False)

    # -- signals and cancels -----------------------------------------------------------------------

    def put_signal(
        self,
        run_id: str,
        name: str,
        payload: bytes | None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
        by: str | None = None,
    ) -> Literal["taken", "kept", "duplicate"]:
        check_run_id(run_id)
        check_id(name, "signal name")
        if signal_id is not None:
            check_id(signal_id, "signal id")
        if by is not None:
            check_id(by, "by")

        from milepost.codec.schema import flaw_of  # few programs send signals

        def body(tx: Transaction) -> Literal["taken", "kept", "duplicate"]:
            row = self._row(tx, run_id)
            now = self.clock.time()  # after the row: a backend may wait for it
            if signal_id is not None and tx.has_signal(run_id, signal_id):
                return "duplicate"
            if row.status in {"finished", "cancelled"}:
                raise RunNotResumableError(
                    f"run {run_id!r} is {row.status} and takes no signal {name!r} any more: signals are for runs that "
                    f"go on",
                    run_id=run_id,
                    status=row.status,
                    reason=row.reason,
                )
            if row.cancel is not None:
                asked, _ = read_cancel(row.cancel)
                raise SignalRefusedError(
                    f"run {run_id!r} takes no signal {name!r} any more: its cancel is requested"
                    f"{f' ({asked})' if asked else ''}, and it only goes on to end",
                    run_id=run_id,
                    wait_id=to or "",
                )
            match, new = fence.place_signal(row, name, to, now)
            if to is not None and match is None:
                open_waits = ", ".join(repr(wait.wait_id) for wait in row.waiting) or "nothing"
                raise SignalRefusedError(
                    f"run {run_id!r} does not wait for signal {name!r} at {to!r}, it waits for {open_waits}: leave "
                    f"out `to` to have the signal kept for the next wait of its name",
                    run_id=run_id,
                    wait_id=to,
                )
            copied = None if payload is None else bytes(payload)
            if match is not None and match.schema and (flaw := flaw_of(copied or b"null", match.schema)):
                raise SignalRefusedError(
                    f"the payload of signal {name!r} is refused: {flaw}: run {run_id!r} waits on at {match.wait_id!r}, "
                    f"send what it waits for",
                    run_id=run_id,
                    wait_id=match.wait_id,
                )
            tx.add_signal(run_id, Signal(new.signals, name, copied, signal_id, to, now, by))
            tx.put_row(new)
            return "kept" if match is None else "taken"

        return self._change("put_signal", body)

    def signals(self, run_id: str, *, after: int = 0) -> builtins.list[Signal]:
        check_run_id(run_id)
        after = min(max(check_number(after, "after"), 0), MOST)
        with self._reading("signals") as tx:
            return tx.signals(run_id, after)

    def request_cancel(
        self, run_id: str, reason: str = "", sequence: int | None = None, *, by: str | None = None
    ) -> Literal["cancelled", "requested", "ended"]:
        check_run_id(run_id)
        if sequence is not None:
            check_number(sequence, "sequence")
        if by is not None:
            check_id(by, "by")
        # A reason is shown, never compared, so characters that UTF-8 cannot hold become their escapes.
        reason = shortened(reason[:MAX_REASON_BYTES].encode("utf-8", "backslashreplace").decode())

        def body(tx: Transaction) -> Literal["cancelled", "requested", "ended"]:
            row = self._row(tx, run_id)
            now = self.clock.time()  # after the row: a backend may wait for it
            newest = tx.newest(run_id)
            state = self._state(row, now)
            outcome, new = fence.cancel(row, reason, sequence, by, state=state, newest=newest, now=now)
            if new is not None:
                tx.put_row(new)
            if new is not None and outcome == "cancelled":
                fields = {"status": "cancelled", "reason": reason, "by": by, "epoch": new.epoch}
                record = make_record(run_id, newest + 1, format_time(now), "finish", fields=fields)
                tx.insert(run_id, (self._following(tx, row, record),))
            return outcome

        return self._change("request_cancel", body)


def _wanted(status: str | Iterable[str] | None) -> set[str] | None:
    return None if status is None else {status} if isinstance(status, str) else set(status)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _check_flow(flow: object) -> None:
    if flow is not None and not isinstance(flow, str):
        raise TypeError(f"flow must be a str, not {shown(flow)}")


def _in_a_line(info: RunInfo) -> RunInfo:
    """Return the info with the type, the node and the first line of a failed run's error."""
    if info.error is None:
        return info
    error = dataclasses.replace(info.error, message=info.error.message.partition("\n")[0], traceback="")
    return dataclasses.replace(info, error=error)


def _first_of_step(tx: Transaction, row: Row, node_id: str) -> int | None:
    """Return the number of the first live record of a step or of a part of it. None if the run is not a workflow's."""
    start = tx.records(row.run_id, kinds=("start",), limit=1)
    try:
        if not start or start[0].fields().get("front") != "workflow":
            return None
    except CheckpointCorruptError:  # nodes of a damaged run can be deleted all the same
        return None
    ids = [name for name in tx.node_ids(row.run_id) if name == node_id or name.startswith(f"{node_id}/")]
    records = (record for name in ids for record in tx.records(row.run_id, node_id=name))
    numbers = (record.sequence for record in records if record.kind != "owner")
    return min((number for number in numbers if is_live(number, row.live)), default=None)


def _without_what_follows(row: Row, node_id: str, first: int, sequence: int) -> Row:
    """Return the row of a workflow in which records from `first` on are superseded and those from `sequence` on count."""
    spans = row.live or (("", 0, None),)
    remaining = [
        (name, begin, first - 1 if end is None else min(end, first - 1)) for name, begin, end in spans if begin < first
    ]
    new = replace(row, live=(*remaining, ("", sequence, None)), waiting=(), wake_at=None)
    if row.status in {"cancelled", "blocked", "ready"}:
        return new
    return replace(
        new, status="interrupted", reason=f"its step {node_id!r} was deleted, and what followed counts no more"
    )
