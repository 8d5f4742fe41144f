"""The verbs that maintain a store: counting, checking, exporting and importing runs.

They are written once over the primitives of `Transaction`. `export.py` defines the format of an exported run.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from milepost.errors import DeserializeStateError, RunExistsError
from milepost.model.ids import is_gone
from milepost.model.record import ENCRYPTED, UNENCRYPTED, Record
from milepost.store import check_run_id
from milepost.stores.base import fence
from milepost.stores.base.deltas import Base, chained
from milepost.stores.base.export import Gaps
from milepost.stores.base.fence import Row
from milepost.stores.base.prune import Pruning
from milepost.stores.base.transaction import DamagedRow, Note, Transaction, seal_of

if TYPE_CHECKING:
    from milepost.model.info import Stats, VerifyReport
    from milepost.stores.base.export import Copy

__all__ = ["Keeping"]

_PAGE = 256
_MOST = 1 << 40
"""A limit that no number of runs reaches."""

_Group = tuple[tuple[Record, ...], Note | None]
"""Records that a backend inserts at once. A record from outside stands alone, with its note."""


class Keeping(Pruning):
    """A store's verbs for whole runs: `stats`, `verify`, `export` and `import_run`."""

    # -- counting and checking ---------------------------------------------------------------------

    def stats(self) -> Stats:
        gone = functools.cache(is_gone)
        with self._reading("stats") as tx:
            tallies = tx.tally()
            running = tx.page(
                flow=None,
                statuses=("running",),
                tags={},
                updated_before=None,
                updated_after=None,
                limit=_MOST,
                after=None,
            )
        now = self.clock.time()
        dead = sum(fence.shown_status(row, self._state(row, now, gone)) == "dead" for row in running)
        runs = {tally.status: tally.runs for tally in tallies}
        if dead:
            runs["running"] -= dead
            runs["dead"] = dead
        from milepost.model.info import Stats

        return Stats(
            {status: runs[status] for status in sorted(runs) if runs[status]},
            sum(tally.records for tally in tallies),
            sum(tally.size for tally in tallies),
            min((datetime.fromtimestamp(t.oldest, UTC) for t in tallies if t.oldest is not None), default=None),
        )

    def verify(self, run_id: str) -> VerifyReport:
        check_run_id(run_id)
        problems: builtins.list[str] = []
        before = self._row_to_verify(run_id, problems)
        gaps = Gaps(has_start=before is None or bool(before.flow))
        for record in self._all(run_id, problems):
            gaps.pass_over(record.sequence)
            try:
                self.seals.check(run_id, record)
                fields, state = record.fields(), record.state()
            except DeserializeStateError as exc:
                problems.append(str(exc))
                continue
            gaps.note_deletion(record.kind, fields)
            note = self._note(run_id, record.sequence) if record.is_foreign else None
            if len(state or b"") != record.size:
                problems.append(f"record {record.sequence} had {record.size} bytes and has {len(state or b'')} now")
            elif note is not None and note.seal != seal_of(run_id, record):
                problems.append(
                    f"record {record.sequence} at node {record.node_id!r} was saved from outside and was changed after that"
                )
        try:
            with self._reading("verify") as tx:
                problems += tx.strays(run_id)
                counted, there = self._row(tx, run_id).signals, len(tx.signals(run_id))
            if there != counted:
                problems.append(f"the run was sent {counted} signals, and there are {there}")
        except (DamagedRow, DeserializeStateError) as exc:
            problems.append(str(exc))
        # Records that were pruned while this read them are counted in the row as it is now.
        row = before and self._row_to_verify(run_id, problems)
        pruned = 0 if row is None else row.pruned
        newest, status = (-1, "") if before is None else (before.sequence, before.status)
        problems += gaps.problems(pruned=pruned, newest=newest, status=status)
        from milepost.model.info import VerifyReport

        return VerifyReport(not problems, tuple(dict.fromkeys(problems)))

    def _row_to_verify(self, run_id: str, problems: builtins.list[str]) -> Row | None:
        with self._reading("verify") as tx:
            try:
                return self._row(tx, run_id)
            except DamagedRow as exc:  # the records may be whole all the same
                problems.append(str(exc))
                return None

    def _note(self, run_id: str, sequence: int) -> Note | None:
        with self._reading("verify") as tx:
            entry = tx.newest_checkpoint(run_id, after=sequence - 1, before=sequence + 1)
        return None if entry is None else entry.note

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
        from milepost.stores.base.export import lines_of

        with self._reading("export") as tx:
            # The stored row may name an older newest record. With the current number an import can
            # check that nothing is missing.
            row = replace(self._row(tx, run_id), sequence=tx.newest(run_id))
            notes = {entry.record.sequence: entry.note for entry in tx.entries(run_id)}
            records = [(record, notes.get(record.sequence)) for record in tx.records(run_id)]
            lines = lines_of(row, records, tx.signals(run_id), functools.partial(self._envelope, run_id))
        return b"\n".join(lines) + b"\n"

    def _envelope(self, run_id: str, record: Record) -> bytes:
        """Return the envelope of a record. Raise `CheckpointIntegrityError` if the store lacks the key to open it."""
        if record.packing in {ENCRYPTED, UNENCRYPTED}:
            self.seals.check(run_id, record)
        return record.envelope()

    def import_run(self, data: bytes, *, run_id: str | None = None) -> str:
        from milepost.stores.base.export import read_run

        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"what an export wrote is bytes, not {type(data).__name__}")
        if run_id is not None:
            check_run_id(run_id)
        copy = read_run(bytes(data), self.seals, run_id)
        run_id = copy.row.run_id
        groups: builtins.list[_Group] = []
        bases: dict[bytes, Base] = {}
        for records, note in _groups(copy):
            less: Sequence[Record] = records
            if self.keeps_differences:
                less, bases = chained(records, bases)
            groups.append((tuple([self._sealed(run_id, record) for record in less]), note))
        self._change("import", functools.partial(self._keep_copy, copy, groups))
        return run_id

    def _keep_copy(self, copy: Copy, groups: builtins.list[_Group], tx: Transaction) -> None:
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
        for records, note in groups:
            tx.insert(run_id, records, note)
        for signal in copy.signals:
            tx.add_signal(run_id, signal)


def _groups(copy: Copy) -> Iterator[_Group]:
    """Group the records as a backend inserts them: each record from outside alone, the others in groups without a gap."""
    group: builtins.list[Record] = []
    for record, note in copy.records:
        if group and (note is not None or record.sequence != group[-1].sequence + 1):
            yield tuple(group), None
            group = []
        if note is None:
            group.append(record)
        else:
            yield (record,), note
    if group:
        yield tuple(group), None
