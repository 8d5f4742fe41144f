"""The layer between the verbs and a backend. It seals and encrypts records on their way in; on their way out it
decrypts them and restores whole states.

Entries, which have no payload, and counts pass unchanged: they reveal nothing that is hidden. Before a record is
deleted that later states build on, the next record that builds on it is rewritten. So is the next record that stays, which
names the deleted ones.
"""

from __future__ import annotations

import builtins
import functools
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Unpack

from milepost.errors import CheckpointIntegrityError, DeserializeStateError
from milepost.model.ranges import Ranges
from milepost.model.record import (
    DIFFERENCE,
    ENCRYPTED,
    MISPLACED,
    OWNER,
    REFUSED,
    STRIPPED,
    UNLINKED,
    UNPACKED,
    Record,
)
from milepost.model.seal import (
    KEYED,
    NumberGap,
    Seals,
    gap_of,
    has_keyed_seal,
    is_of_life,
    link_of,
    prev_of,
    with_digests,
    with_gap,
    without_digests,
    without_seal,
)
from milepost.store import Signal, Statement
from milepost.stores.base.deltas import (
    SMALLEST,
    Base,
    Difference,
    LinkedRecord,
    is_base,
    lessened,
    read_difference,
    whole_of,
)
from milepost.stores.base.encryption import RecordCipher
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import (
    RecordEntry,
    RowFilters,
    StatusCount,
    Transaction,
    UnprovenRow,
    Walk,
    row_to_show,
)

_PAGE = 256
_READ = 128
"""Number of records of a chain that are read at once."""
_NEAR = 8
"""Greatest distance between two links of a chain at which the records before them are read in the same query."""
_REMEMBERED = 16
"""Number of large records that a transaction remembers: about as many as a fork has branches."""


_MOST_ENDS = 1000
"""Number of runs of which a store remembers the record that it read last."""
_NOTHING = (-2, "")
_MOST_PASSED = 64
"""Number of damaged records that a claim names at most."""

ReadEnds = dict[str, tuple[int, str]]
"""For each run, the number and the link of the record that was read last, to prove that the next one follows it."""


class DecodingTransaction(Transaction):
    """A transaction that passes values of `tx` through `keeper` in both directions.

    `seals` prove what is restored of several records. `packed` compresses a record as the backend stores it. `ends` are
    shared by all transactions of a store.
    """

    def __init__(
        self,
        tx: Transaction,
        keeper: RecordCipher | None,
        seals: Seals,
        packed: Callable[[Record], Record],
        ends: ReadEnds,
        *,
        compressing: bool = False,
    ) -> None:
        self._tx = tx
        self._keeper = keeper
        self._seals = seals
        self._packed = packed
        self._ends = ends
        self._compressing = compressing
        self._given: OrderedDict[tuple[str, int], Base] = OrderedDict()
        """The large records that were read last, by run and number. The next records may build on them."""
        self._lost: set[tuple[str, int]] = set()
        """The records that could not be made whole. No record that builds on them can be made whole either."""
        self._newest: dict[str, int] = {}
        """The newest record of each run of a page, for its proof and its view. Who reads a page writes nothing."""

    # -- rows --------------------------------------------------------------------------------------

    def row(self, run_id: str) -> Row | None:
        row = self._tx.row(run_id)
        return None if row is None else self.proven(row)

    def row_of_owner(self, run_id: str) -> Row | None:
        return self._tx.row(run_id)

    def proven(self, row: Row, newest: int | None = None) -> Row:
        if self._keeper is None:
            return row
        if newest is None:
            newest = self._tx.newest(row.run_id) if row.seal else 0
        must_be_sealed = not row.seal.startswith(KEYED) and self._has_seals(row.run_id)
        return self._keeper.proven_row(row, newest, must_be_sealed=must_be_sealed)

    def add_row(self, row: Row) -> None:
        self._tx.add_row(row if self._keeper is None else self._keeper.seal_row(row))

    def put_row(self, row: Row) -> None:
        self._tx.put_row(row if self._keeper is None else self._keeper.seal_row(row))

    def take(self, row: Row, record: Record) -> None:
        self._tx.take(row if self._keeper is None else self._keeper.seal_row(row), record)

    def page(self, *, limit: int, after: str | int | None = None, **filters: Unpack[RowFilters]) -> builtins.list[Row]:
        return [self._proven_or_damaged(row) for row in self._tx.page(limit=limit, after=after, **filters)]

    def walk(self, after: str | int | None, most: int, **filters: Unpack[RowFilters]) -> Walk:
        return self._tx.walk(after, most, **filters)

    def count(self, limit: int, **filters: Unpack[RowFilters]) -> int:
        return self._tx.count(limit, **filters)

    def flows(self, limit: int) -> builtins.list[str]:
        return self._tx.flows(limit)

    def _proven_or_damaged(self, row: Row) -> Row:
        """Return the row, or what is left of one whose texts can't be proven."""
        newest = None
        if row.seal:
            newest = self._newest[row.run_id] = self._tx.newest(row.run_id)
        try:
            return self.proven(row, newest)
        except UnprovenRow as exc:
            return row_to_show((row.run_id, row.flow, row.status, row.created_at, row.updated_at), exc)

    def position(self, run_id: str) -> int | None:
        return self._tx.position(run_id)

    def rested(
        self, status: str, *, after: tuple[float, str], until: float, limit: int
    ) -> builtins.list[tuple[float, str]]:
        return self._tx.rested(status, after=after, until=until, limit=limit)

    def candidates(self, flow: str, now: float, limit: int, skip: Collection[str] = ()) -> builtins.list[Row]:
        passed = {*skip}
        while True:
            known = len(passed)
            proven: builtins.list[Row] = []
            for row in self._tx.candidates(flow, now, limit, passed):
                try:
                    proven.append(self.proven(row))
                except UnprovenRow:  # it keeps no other run from being taken; who reads it gets the error
                    passed.add(row.run_id)
            # There may be more behind damaged ones.
            if len(passed) == known or len(proven) >= limit:
                return proven

    def tally(self) -> builtins.list[StatusCount]:
        return self._tx.tally()

    # -- records -----------------------------------------------------------------------------------

    def insert(self, run_id: str, records: Sequence[Record]) -> None:
        self._tx.insert(run_id, records)

    def put_payload(self, run_id: str, record: Record) -> None:
        self._tx.put_payload(run_id, record)

    def link(self, run_id: str, sequence: int) -> str:
        return self._tx.link(run_id, sequence)

    def life(self, run_id: str) -> str | None:
        return self._tx.life(run_id)

    def newest(self, run_id: str) -> int:
        known = self._newest.pop(run_id, None)
        return self._tx.newest(run_id) if known is None else known

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
        records = self._tx.records(
            run_id, after=after, before=before, kinds=kinds, node_id=node_id, newest=newest, limit=limit
        )
        # Read in order, because each record builds on the one before it.
        opened = self._opened_all(run_id, records[::-1] if newest else records)
        return opened[::-1] if newest else opened

    def _opened_all(self, run_id: str, stored: Sequence[Record]) -> builtins.list[Record]:
        if self._keeper is None:
            opened = [
                record if record.size < SMALLEST and record.packing != DIFFERENCE else self._opened(run_id, record)
                for record in stored
            ]
        else:
            opened = [self._opened(run_id, record) for record in stored]
        return self._mark(run_id, stored, opened)

    def _mark(self, run_id: str, stored: Sequence[Record], opened: builtins.list[Record]) -> builtins.list[Record]:
        """Mark the records that belong to another life, and those that do not cover the one before them, if that was read too.

        Return `opened`, so changed.
        """
        self._mark_refused(run_id, stored, opened)
        before, link = self._ends.get(run_id, _NOTHING)
        for at, record in enumerate(opened):
            if record.sequence == before + 1 and prev_of(record.header) != link:
                if self._passes_over_the_one_before(run_id, record):
                    if at and self._is_whole(run_id, opened[at - 1]):
                        opened[at - 1] = opened[at - 1]._replace(packing=UNLINKED)
                elif not self._follows(run_id, record, before, prev_of(record.header)):
                    opened[at] = record._replace(packing=UNLINKED)
            elif record.sequence > before + 1 >= 0 and (gap := gap_of(record.header)) is not None:
                is_next = gap.first == before + 1 and gap.link not in {"", link}
                if is_next and not self._follows(run_id, record, before, gap.link):
                    opened[at] = record._replace(packing=UNLINKED)
            before, link = record.sequence, link_of(stored[at].header)
        if opened:
            if len(self._ends) > _MOST_ENDS:
                self._ends.clear()
            self._ends[run_id] = before, link
        return opened

    def _mark_refused(self, run_id: str, stored: Sequence[Record], opened: builtins.list[Record]) -> None:
        """Mark the records of another life, and those whose seal was taken off.

        Where records without a seal of a key are accepted, one that follows a record with such a seal is none of them:
        nobody but a forger takes it off.
        """
        if not opened:
            return
        life = self._tx.life(run_id)
        for at, record in enumerate(opened):
            if life is not None and not is_of_life(record, life):
                opened[at] = record._replace(packing=MISPLACED)
            elif self._finds_stripped and not has_keyed_seal(stored[at].header):
                before = stored[at - 1] if at else None
                if self._follows_a_seal(run_id, record, before):
                    opened[at] = record._replace(packing=STRIPPED)

    @property
    def _finds_stripped(self) -> bool:
        return self._seals.is_keyed and self._seals.accepts_unsealed

    def _follows_a_seal(self, run_id: str, record: Record, before: Record | None) -> bool:
        """Return whether the record before this one has a seal of a key, or had one when this one was written.

        `before` is the one that was read before it, if there is such.
        """
        if (prev_of(record.header) or "").startswith(KEYED):
            return True
        if before is None or before.sequence != record.sequence - 1:
            before = self.newest_stored(run_id, before=record.sequence)
        return before is not None and has_keyed_seal(before.header)

    def _has_seals(self, run_id: str, *, from_its_start: bool = False) -> bool:
        """Return whether a store that accepts what has no seal of a key must not accept it for this run: its first record
        has such a seal, or its newest one."""
        if not self._finds_stripped:
            return False
        ends = self._tx.records(run_id, limit=1)
        if not from_its_start:
            ends += self._tx.records(run_id, newest=True, limit=1)
        return any(has_keyed_seal(record.header) for record in ends)

    def _follows(self, run_id: str, record: Record, before: int, link: str | None) -> bool:
        """Return whether `link`, of a record's header, is that of the record with the number `before` now, or one of the two
        is damaged, which is told as such.
        """
        for stored in self._tx.records(run_id, after=before - 1, before=before + 1):
            is_linked = link == link_of(stored.header)
            return is_linked or not all(self._is_whole(run_id, each) for each in (record, self._opened(run_id, stored)))
        return True

    def _passes_over_the_one_before(self, run_id: str, record: Record) -> bool:
        """Return whether a record names the one before it as damaged, and covers the last one before the damage."""
        if b'"passed":' not in (record.header or b"") or not self._is_whole(run_id, record):
            return False
        passed = record.fields().get("passed")
        if not isinstance(passed, builtins.list) or record.sequence - 1 not in passed:
            return False
        proven = self._tx.records(run_id, before=min(passed), newest=True, limit=1)
        return prev_of(record.header) == (link_of(proven[0].header) if proven else "")

    def newest_stored(self, run_id: str, before: int | None = None) -> Record | None:
        """Return the newest record below `before` as the backend stores it, or None."""
        return next(iter(self._tx.records(run_id, before=before, newest=True, limit=1)), None)

    def proven_end(self, run_id: str, newest: Record | None) -> tuple[str, builtins.list[int]]:
        """Return the link of the newest record whose header is proven, and the numbers of the damaged ones after it.

        `newest` is the newest record as it is stored. A store that can prove none of the newest records lacks the keys:
        then it is the link of the newest one.
        """
        passed: builtins.list[int] = []
        record = newest
        while record is not None and len(passed) < _MOST_PASSED:
            if self._seals.has_sound_header(run_id, record):
                return link_of(record.header), passed[::-1]
            try:
                self._seals.check_key(run_id, record)
            except CheckpointIntegrityError:
                break  # it may be as good as any
            passed.append(record.sequence)
            record = self.newest_stored(run_id, before=record.sequence)
        return "" if newest is None else link_of(newest.header), []

    def _is_whole(self, run_id: str, record: Record) -> bool:
        try:
            self._seals.check(run_id, record)
        except DeserializeStateError:
            return False
        return True

    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> RecordEntry | None:
        return self._tx.newest_checkpoint(run_id, after=after, before=before, node_id=node_id)

    def find_visit(self, run_id: str, node_id: str, visit: int) -> Record | None:
        return self._opened_alone(run_id, self._tx.find_visit(run_id, node_id, visit))

    def _opened_alone(self, run_id: str, record: Record | None) -> Record | None:
        if record is None:
            return None
        return self._mark(run_id, [record], [self._opened(run_id, record)])[0]

    def last_visit(self, run_id: str, node_id: str) -> int:
        return self._tx.last_visit(run_id, node_id)

    def strays(self, run_id: str) -> builtins.list[str]:
        return self._tx.strays(run_id)

    def entries(self, run_id: str) -> builtins.list[RecordEntry]:
        return self._tx.entries(run_id)

    def node_ids(self, run_id: str) -> builtins.list[str]:
        return self._tx.node_ids(run_id)

    def remove_node(self, run_id: str, node_id: str) -> int:
        self._tx.hold(run_id)
        of_node = self._tx.records(run_id, node_id=node_id)
        self._part_from(run_id, frozenset(record.sequence for record in of_node if record.kind != OWNER))
        return self._tx.remove_node(run_id, node_id)

    def remove_records(self, run_id: str, sequences: Sequence[int]) -> int:
        self._tx.hold(run_id)
        self._part_from(run_id, frozenset(sequences))
        return self._tx.remove_records(run_id, sequences)

    def remove_run(self, run_id: str) -> None:
        self._tx.remove_run(run_id)

    def ends_of(self, runs: Mapping[str, int]) -> dict[str, builtins.list[Record]]:
        ends = {}
        for run_id, records in self._tx.ends_of(runs).items():
            stored = records[::-1]
            opened = [self._opened(run_id, record) for record in stored]
            self._mark_refused(run_id, stored, opened)
            ends[run_id] = opened[::-1]
        return ends

    # -- signals -----------------------------------------------------------------------------------

    def signals(self, run_id: str, after: int = 0) -> builtins.list[Signal]:
        signals = self._tx.signals(run_id, after)
        if self._keeper is None or not signals:
            return signals
        life = self._tx.life(run_id) or ""
        # Signals from before there was a key stay without a seal when the run goes on with one.
        must_be_sealed = self._has_seals(run_id, from_its_start=True)
        opened = self._keeper.opened_signal
        return [opened(run_id, life, signal, must_be_sealed=must_be_sealed) for signal in signals]

    def has_signal(self, run_id: str, signal_id: str) -> bool:
        return self._tx.has_signal(run_id, signal_id)

    def put_signals(self, run_id: str, signals: Sequence[Signal]) -> None:
        self._tx.put_signals(run_id, signals)

    def add_signal(self, run_id: str, signal: Signal) -> None:
        if self._keeper is not None:
            signal = self._keeper.keep_signal(run_id, self._tx.life(run_id) or "", signal)
        self._tx.add_signal(run_id, signal)

    # -- statements of users -----------------------------------------------------------------------

    def perform(self, statements: Sequence[Statement]) -> None:
        self._tx.perform(statements)

    # -- what backends may do in fewer steps than the primitives above ----------------------------------------------

    def live_checkpoint(
        self, run_id: str, live: Ranges, *, before: int | None = None, node_id: str | None = None
    ) -> Record | None:
        return self._opened_alone(run_id, self._tx.live_checkpoint(run_id, live, before=before, node_id=node_id))

    def point(
        self, run_id: str, live: Ranges, *, before: int | None = None
    ) -> tuple[Record | None, builtins.list[Record]]:
        checkpoint, later = self._tx.point(run_id, live, before=before)
        if checkpoint is None:
            return None, self._opened_all(run_id, later)
        checkpoint, *later = self._opened_all(run_id, [checkpoint, *later])
        return checkpoint, later

    def live_nodes(self, run_id: str, live: Ranges, before: int) -> tuple[str, ...]:
        return self._tx.live_nodes(run_id, live, before)

    def live_entries(self, run_id: str, live: Ranges) -> builtins.list[RecordEntry]:
        return self._tx.live_entries(run_id, live)

    def live_entry(self, run_id: str, live: Ranges) -> RecordEntry | None:
        return self._tx.live_entry(run_id, live)

    # -- whole records -----------------------------------------------------------------------------

    def proven_base_of(self, run_id: str, sequence: int) -> Base | None:
        """Return a record as a base for others; None if it was not read lately, is too small, or is damaged."""
        base = self._given.get((run_id, sequence))
        try:
            return None if base is None else base.checked(run_id, self._seals)
        except DeserializeStateError:
            return None

    def _opened(self, run_id: str, record: Record) -> Record:
        """Return the record as it was given to `insert`, with its whole state if that can be restored."""
        opened = record if self._keeper is None else self._keeper.opened(run_id, record)
        if opened.packing != DIFFERENCE:
            if opened.size >= SMALLEST and is_base(opened):
                self._note(run_id, Base(opened, link_of(record.header), opened.sequence, opened.size, 0))
            return opened
        base = self._whole(run_id, (opened, record.header))
        if base is None and self._tx.reread(run_id):
            # The base may have been deleted since this record was read. This record was rewritten before that.
            for again in self._tx.records(run_id, after=record.sequence - 1, before=record.sequence + 1):
                if again != record:
                    return self._opened(run_id, again)
        if base is None:
            self._lost.add((run_id, opened.sequence))
            return opened
        self._note(run_id, base)
        return base.record

    def _note(self, run_id: str, base: Base) -> None:
        self._given[run_id, base.record.sequence] = base
        if len(self._given) > _REMEMBERED:
            self._given.popitem(last=False)

    def _whole(self, run_id: str, last: LinkedRecord) -> Base | None:
        known = {sequence: base for (of, sequence), base in self._given.items() if of == run_id}
        page: dict[int, Record] = {}

        def base_of(said: Difference) -> LinkedRecord | None:
            """Return a record of the chain. Read the records before it that are likely to be needed next along with it."""
            nonlocal page
            if self._lost and (run_id, said.base) in self._lost:
                return None
            if said.base not in page:
                is_near = not page or min(page) - said.base <= _NEAR
                first = max(said.since, said.base + 1 - _READ) if is_near else said.base
                first = max([first, *(sequence + 1 for sequence in known if sequence < said.base)])
                records = self._tx.records(run_id, after=first - 1, before=said.base + 1)
                page = {record.sequence: record for record in records}
            record = page.get(said.base)
            if record is None:
                return None
            return (record if self._keeper is None else self._decrypted(run_id, record)), record.header

        return whole_of(run_id, last, base_of, known, self._seals)

    def _decrypted(self, run_id: str, record: Record) -> Record:
        """Return the record as it was before its encryption, if it is encrypted."""
        is_plain = self._keeper is None or record.packing != ENCRYPTED
        return record if is_plain or self._keeper is None else self._keeper.opened(run_id, record)

    def _part_from(self, run_id: str, unwanted: frozenset[int]) -> None:
        """Rewrite the records that stay and build on records in `unwanted`, and let those that follow them name the gap.

        Raise `CheckpointIntegrityError` if a record that stays can't be decrypted, because nobody could tell what it
        builds on, or proven for want of a key.
        """
        if not unwanted:
            return
        newest, after = self._tx.newest(run_id), min(unwanted) - 1
        moved: Base | None = None
        gaps = _GapsToName(self.newest_stored(run_id, before=min(unwanted)))
        while after < newest:
            for stored in self._tx.records(run_id, after=after, before=after + 1 + _PAGE):
                other = stored
                known = self._proven_gap(run_id, other) if gaps.are_missing_before(other) else None
                gap = gaps.pass_over(other, known, is_unwanted=other.sequence in unwanted)
                if gap is not None:
                    other = self._name_gap(run_id, other, gap)
                record = self._decrypted(run_id, other)
                if record.size < SMALLEST or record.sequence in unwanted:
                    continue
                if record.packing == ENCRYPTED:
                    record.state()
                said = read_difference(record) if record.packing == DIFFERENCE else None
                if said is None or said.base not in unwanted:
                    continue
                self._seals.check_key(run_id, record)
                whole = self._whole(run_id, (record, other.header))
                if whole is None:  # damaged: its base may go all the same
                    continue
                self._note(run_id, whole)
                # Records that build on this one look for nothing before the whole record that they were written with.
                nearest = moved if moved is not None and moved.since >= said.since else None
                again = without_digests(whole.record._replace(header=record.header), whole.link)
                if again.says_compressed:
                    again = again._replace(packing=UNPACKED)
                seal = functools.partial(self._sealed, run_id, is_encrypted=other.packing == ENCRYPTED, of=whole)
                less, moved = lessened(again, nearest, seal, compressing=self._compressing)
                self._tx.put_payload(run_id, less)
            after += _PAGE

    def _proven_gap(self, run_id: str, stored: Record) -> NumberGap | None:
        """Return the gap that a record names; None if it names none, or if its header is not proven."""
        record = self._decrypted(run_id, stored)
        gap = gap_of(record.header)
        return gap if gap is not None and self._seals.has_sound_header(run_id, record) else None

    def _name_gap(self, run_id: str, stored: Record, gap: NumberGap) -> Record:
        """Rewrite a record that stays, so that it names the gap before it. Return it as it is stored then.

        A damaged one is left as it is: nothing proves the gap before it any more, which `verify` reports.
        """
        self._seals.check_key(run_id, stored)
        record, link = self._decrypted(run_id, stored), link_of(stored.header)
        if record.packing in REFUSED or record.packing == ENCRYPTED or not self._seals.has_sound_header(run_id, record):
            return stored
        again, is_verified = with_gap(without_seal(record, link), gap), self._seals.check_seal(run_id, record)
        if stored.packing == ENCRYPTED and self._keeper is not None:
            again = self._keeper.keep(run_id, again, is_verified=is_verified)
        else:
            again = again._replace(header=self._seals.seal_again(again.header or b"", is_verified=is_verified))
        self._tx.put_payload(run_id, again)
        return again

    @staticmethod
    def _every(read: Callable[..., builtins.list[Record]], run_id: str) -> Iterator[Record]:
        """Yield all records of a run in order, a page at a time."""
        page = read(run_id, limit=_PAGE)
        while page:
            yield from page
            page = read(run_id, after=page[-1].sequence, limit=_PAGE)

    def seal_again(self, run_id: str) -> None:
        """Seal and encrypt all records and signals of a run with the store's first keys, if all can be proven or accepted."""
        assert self._keeper is not None
        self._tx.hold(run_id)
        signals = self.signals(run_id)
        for record in self._every(self.records, run_id):
            self._seals.check(run_id, record)
        for stored in self._every(self._tx.records, run_id):
            record = without_seal(self._decrypted(run_id, stored), link_of(stored.header))
            self._tx.put_payload(run_id, self._keeper.keep(run_id, record))
        life = self._tx.life(run_id) or ""
        kept = [self._keeper.keep_signal(run_id, life, signal) for signal in signals]
        if kept:
            self._tx.put_signals(run_id, kept)

    def _sealed(self, run_id: str, record: Record, base: str, *, is_encrypted: bool, of: Base) -> Record:
        """Return a record that takes the place of another one, as it is stored: as proven as the record `of` is."""
        record, is_verified = with_digests(record, self._packed(record), base), of.is_verified is True
        if is_encrypted and self._keeper is not None:
            return self._keeper.keep(run_id, record, is_verified=is_verified)
        assert record.header is not None
        return record._replace(header=self._seals.seal_again(record.header, is_verified=is_verified))


class _GapsToName:
    """The gaps that a deletion leaves, found by passing over the records around it, as they are stored, in order.

    A number that is missing without a deletion that says so stays so: it is no part of a gap that a record names.
    """

    def __init__(self, before: Record | None) -> None:
        self._place = -1 if before is None else before.sequence
        """The number of the record that was passed over last."""
        self._first = self._place + 1
        """The first number of the gap that ends there; the number after it, if that record stays."""
        self._end = (self._place, "" if before is None else link_of(before.header))
        """The number and the link of the last record that stays."""
        self._is_new = False
        """True if a record that goes now is in the gap."""

    def are_missing_before(self, stored: Record) -> bool:
        """Return whether there are no records with the numbers between the last one and this one."""
        return stored.sequence > self._place + 1

    def pass_over(self, stored: Record, known: NumberGap | None, *, is_unwanted: bool) -> NumberGap | None:
        """Pass over the next record, which names the gap `known`. Return the one that it has to name instead."""
        sequence = stored.sequence
        if self.are_missing_before(stored):
            explained = sequence if known is None else known.first
            if explained > self._place + 1:
                self._first = explained
        self._place = sequence
        if is_unwanted:
            self._is_new = True
            return None
        number, link = self._end
        gap = NumberGap(self._first, link if number == self._first - 1 else "")
        is_new = self._is_new and gap.first < sequence
        self._first, self._end, self._is_new = sequence + 1, (sequence, link_of(stored.header)), False
        return gap if is_new else None
