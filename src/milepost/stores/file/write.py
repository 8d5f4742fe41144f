"""The writing of changes to runs. All files are made first, then each run's commit is put in its place,
then the names are made durable.

If another process has taken a run's next number meanwhile, the run has not been changed. It is returned, so that the
caller decides anew. The changes of the other runs stay.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from milepost.model.record import CHECKPOINT, Record
from milepost.store import Signal
from milepost.stores.base.fence import Row
from milepost.stores.base.folders import make_folder, sync_folder
from milepost.stores.file.catalogue import Catalogue, Due, may_be_due
from milepost.stores.file.commit import VERSION, Damaged, Header, Lines, encode, text_of
from milepost.stores.file.fs import Files, Leases, read_regular, take_away
from milepost.stores.file.log import FOLDER, JOURNAL, Log, Logs, Pointer, Tail

_logger = logging.getLogger("milepost")

_A_COMMIT = 256
"""Greatest number of records in one commit of a new run. An import may have any number of records, and each read of a
commit reads its whole first line."""

_encode = msgspec.json.Encoder().encode

Gaps = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of a store."""

    root: str
    files: Files
    logs: Logs
    leases: Leases
    due: Due
    catalogue: Catalogue


@dataclass(frozen=True, slots=True)
class Removal:
    """Records to remove from a journal."""

    sequences: frozenset[int]
    commits: tuple[int, ...]
    """The numbers of the commits that have them."""
    size: int
    gaps: Gaps
    """All records that are missing from the journal after the removal."""
    checkpoint: int | None
    """The number of the commit with the newest checkpoint that stays."""


@dataclass(slots=True)
class Change:
    """The changes that a transaction makes to a run. Without a tail the run does not exist yet."""

    run_id: str
    log: Log | None
    tail: Tail | None
    row: Row | None = None
    """The new row; None if it does not change."""
    records: list[Record] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    removal: Removal | None = None
    rewritten: dict[int, tuple[int, Record]] = field(default_factory=dict)
    """By sequence, records to store in another form, with the numbers of their commits. Beside a removal they say the same
    as before, without the records that go. Otherwise they are sealed."""
    growth: int = 0
    """The number of bytes by which these are longer than what they replace."""
    rewritten_signals: dict[int, tuple[int, Signal]] = field(default_factory=dict)
    """The same for signals, by number."""
    is_deletion: bool = False

    @property
    def is_one(self) -> bool:
        """True if anything changes."""
        return self.row is not None or bool(self.records or self.signals or self.removal) or self.is_deletion

    @property
    def is_sealing(self) -> bool:
        """True if existing records and signals get seals that they did not have."""
        return self.removal is None and bool(self.rewritten or self.rewritten_signals)

    @property
    def head(self) -> Header | None:
        """The header of the commit on which the change builds."""
        return None if self.tail is None else self.tail.header


def write(parts: StoreParts, changes: Iterable[Change]) -> set[str]:
    """Write changes of different runs, each whole or not at all. Return the runs that others have changed meanwhile.

    An OSError before the first commit was put leaves everything as it was. After that, commits that were put stay,
    though they may not survive a loss of power.
    """
    commits: list[_NewRun | _NextCommit] = []
    try:
        for change in changes:
            commits.append(_NewRun(parts, change) if change.tail is None else _NextCommit(parts, change))
            commits[-1].make()
        put = [commit for commit in commits if commit.put()]
        for folder in dict.fromkeys(folder for commit in put for folder in commit.folders):
            # Another process may have removed what is left of a run that was deleted here.
            with suppress(FileNotFoundError):
                sync_folder(folder)
    finally:
        for commit in commits:
            commit.clean()
    for commit in put:
        commit.follow_up()
    return {commit.change.run_id for commit in commits} - {commit.change.run_id for commit in put}


class _NextCommit:
    """The next commit of an existing run."""

    def __init__(self, parts: StoreParts, change: Change) -> None:
        assert change.log is not None
        assert change.head is not None
        self.change = change
        self._parts = parts
        self._log = change.log
        self._head = change.head
        self._lines = Lines(change.records, change.signals)
        self._header = _following(change.head, change, self._lines)
        self._made = ""
        self.folders = (self._log.folder,)
        """The folders that have new names."""

    def make(self) -> None:
        """Write all that must be there before the commit is."""
        header, old, new = self._header, self._head.row, self.change.row
        if new is not None:
            if not may_be_due(new):
                header.due = None
            elif header.due is None:
                header.due = header.commit
                self._parts.due.add(new.flow, self._log.folder, header.commit)
            if new.nonce and (new.epoch, new.nonce) != (old.epoch, old.nonce):
                self._parts.leases.renew(self._parts.leases.path(self._log.folder, new.epoch))
        if not self.change.is_sealing:
            # These rewrites say the same as before, so they do no harm if this commit comes too late.
            _rewrite_all(self._parts, self._log, self.change)
        self._made = self._parts.files.write(encode(header, self._lines))

    def put(self) -> bool:
        """Put the commit in its place. Return whether it is there now, and not another's."""
        return self._parts.files.put(self._made, self._log.path(self._header.commit))

    def clean(self) -> None:
        """Remove what was only needed on the way."""
        if self._made:
            self._parts.files.discard(self._made)

    def follow_up(self) -> None:
        """Do what may as well be left to others, or not be done."""
        parts, header, old, new = self._parts, self._header, self._head.row, self.change.row
        if self._head.due is not None and header.due is None:
            parts.due.drop(old.flow, self._log.folder, self._head.due)
        if self.change.is_deletion:
            bury(parts, self._log)
            return
        self._log.note(header)
        if new is not None and old.nonce and (new.epoch, new.nonce) != (old.epoch, old.nonce):
            with suppress(OSError):
                os.unlink(parts.leases.path(self._log.folder, old.epoch))
        if self.change.removal is not None:
            _empty(parts, self._log, self.change.removal)
        self._log.index.note(header)
        if self.change.is_sealing:
            _seal(parts, self._log, self.change)


class _NewRun:
    """The first commits of a run, in a folder that nobody knows until `journal` names it."""

    def __init__(self, parts: StoreParts, change: Change) -> None:
        self.change = change
        self._parts = parts
        place = parts.logs.place(change.run_id)
        name = f"{parts.catalogue.next_number():016x}-{secrets.token_hex(4)}"
        self._log = Log(change.run_id, place, f"{place}/{name}")
        self._filled = parts.files.new_name()
        """The folder that becomes the log's. It is swept away if this process ends before."""
        self._made = ""
        self._is_put = False
        self.folders = (place, parts.root)

    def make(self) -> None:
        """Fill the folder, and write the file that will name it."""
        parts, row = self._parts, self.change.row
        assert row is not None
        make_folder(self._filled)
        filled = Log(self.change.run_id, self._log.place, self._filled)
        is_due = may_be_due(row)
        header: Header | None = None
        for part in _parts(self.change):
            lines = Lines(part.records, part.signals)
            header = _following(header, part, lines)
            header.due = 0 if is_due else None
            parts.files.write(encode(header, lines), filled.path(header.commit))
            filled.index.note(header)
            self._log.note(header)
        if row.nonce:
            parts.leases.renew(parts.leases.path(self._filled, row.epoch))
        sync_folder(self._filled)
        if is_due:
            parts.due.add(row.flow, self._log.folder, 0)
        pointer = Pointer(VERSION, self.change.run_id, os.path.basename(self._log.folder), row.created_at)
        self._made = parts.files.write(_encode(pointer) + b"\n")

    def put(self) -> bool:
        """Put the run in its place. Return whether it is there now, and not another's."""
        make_folder(self._log.place)
        try:
            os.rename(self._filled, self._log.folder)
        except FileNotFoundError:  # the id's former run was removed just now, with its folder
            return False
        self._is_put = self._parts.files.put(self._made, f"{self._log.place}/{JOURNAL}")
        return self._is_put

    def clean(self) -> None:
        """Remove what was only needed on the way."""
        # If the thread was interrupted while it put the file, it does not know whether that succeeded.
        is_put = self._is_put or (self._made and self._parts.files.is_put(self._made, f"{self._log.place}/{JOURNAL}"))
        if self._made:
            self._parts.files.discard(self._made)
        if is_put:
            return
        self._parts.files.discard(self._filled, self._log.folder)
        if self.change.row is not None:
            self._parts.due.drop(self.change.row.flow, self._log.folder, 0)
        with suppress(OSError):
            os.rmdir(self._log.place)

    def follow_up(self) -> None:
        """Remember the run's log."""
        self._parts.logs.add(self._log)


def _parts(change: Change) -> Iterator[Change]:
    """Split the change of a new run into parts of a bounded size."""
    records = change.records
    for begin in range(0, max(len(records), 1), _A_COMMIT):
        is_last = begin + _A_COMMIT >= len(records)
        signals = change.signals if is_last else []
        yield Change(change.run_id, None, None, change.row, records[begin : begin + _A_COMMIT], signals)


def _following(head: Header | None, change: Change, lines: Lines) -> Header:
    """Build the header of the commit after `head`, except what `encode` fills in; `due` stays as it was."""
    count = len(lines.records)
    first, last = (lines.records[0].sequence, lines.records[-1].sequence) if count else (0, 0)
    if head is None:
        assert change.row is not None
        return Header(VERSION, 0, text_of(change.row), first, last, count=count, size=lines.size)
    header = Header(
        VERSION,
        head.commit + 1,
        head.row if change.row is None else text_of(change.row),
        first if count else head.last + 1,
        last if count else head.last,
        checkpoint=head.commit if any(placed.kind == CHECKPOINT for placed in head.records) else head.checkpoint,
        signalled=head.commit if head.signals else head.signalled,
        removal=head.removal,
        due=None if change.is_deletion else head.due,
        count=head.count + count,
        size=head.size + lines.size + change.growth,
        is_deleted=change.is_deletion,
    )
    removal = change.removal
    if removal is not None:
        header.checkpoint, header.removal, header.removed = removal.checkpoint, header.commit, removal.gaps
        header.count -= len(removal.sequences)
        header.size -= removal.size
    return header


def joined(gaps: Gaps, sequences: Iterable[int]) -> Gaps:
    """Return the gaps after the removal of more records."""
    spans: list[tuple[int, int]] = []
    for first, last in sorted([*gaps, *((sequence, sequence) for sequence in sequences)]):
        if spans and first <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))
    return tuple(spans)


def _rewrite_all(parts: StoreParts, log: Log, change: Change) -> None:
    """Rewrite existing records in a form that says the same."""
    for number in sorted({number for number, _ in change.rewritten.values()}):
        _rewrite(parts, log, number, change.rewritten)
    if change.rewritten:
        sync_folder(log.folder)


def _seal(parts: StoreParts, log: Log, change: Change) -> None:
    """Rewrite existing signals and records with their seals, after the commit with the sealed row.

    A process may end after any file, and others must still be able to read the run, go on with it and seal it again. A
    store that accepts what has no seal accepts it up to the first record with a seal, and signals and rows without one
    as long as the first record has none. So the signals come first, then the records from the newest back, and each name
    is durable before the next one changes.
    """
    for number in sorted({number for number, _ in change.rewritten_signals.values()}):
        _rewrite(parts, log, number, {}, change.rewritten_signals)
    if change.rewritten_signals:
        sync_folder(log.folder)
    for number in sorted({number for number, _ in change.rewritten.values()}, reverse=True):
        _rewrite(parts, log, number, change.rewritten)
        sync_folder(log.folder)


def _rewrite(
    parts: StoreParts,
    log: Log,
    number: int,
    rewritten: Mapping[int, tuple[int, Record]],
    sent: Mapping[int, tuple[int, Signal]] = MappingProxyType({}),
) -> None:
    """Rewrite a commit with some of its records and signals in another form."""
    commit = log.load(number, "whole")
    records = [
        rewritten[placed.sequence][1] if placed.sequence in rewritten else commit.record(at, placed)
        for at, placed in commit.places()
    ]
    signals = [sent[signal.number][1] if signal.number in sent else signal for signal in commit.signals()]
    made = parts.files.write(encode(commit.header, Lines(records, signals)))
    os.replace(made, log.path(number))


def _empty(parts: StoreParts, log: Log, removal: Removal) -> None:
    """Remove the bytes of removed records from their files. They count as removed even if this fails.

    The newest go first. So no removed record outlives another one that it builds on, not even in a copy of the files that
    is made meanwhile in the order of their names.
    """
    for number in reversed(removal.commits):
        try:
            commit = log.load(number, "whole")
            left = [
                commit.record(at, placed) for at, placed in commit.places() if placed.sequence not in removal.sequences
            ]
            made = parts.files.write(encode(commit.header, Lines(left, [*commit.signals()])))
            os.replace(made, log.path(number))
        except (OSError, Damaged) as exc:
            _logger.warning("removed records of run %r still stand in %s: %s", log.run_id, log.path(number), exc)
    with suppress(OSError):
        sync_folder(log.folder)


def bury(parts: StoreParts, log: Log) -> None:
    """Remove the rest of a deleted run. Any process that meets it may do so, several at once too."""
    parts.logs.forget(log)
    buried = parts.files.new_name()
    with suppress(FileNotFoundError):
        os.rename(log.folder, buried)
    path = f"{log.place}/{JOURNAL}"
    with suppress(FileNotFoundError):
        content = read_regular(path)
        if f'"{os.path.basename(log.folder)}"'.encode() in content:
            take_away(path, content)
        sync_folder(log.place)
    parts.files.discard(buried)
    with suppress(OSError):
        os.rmdir(log.place)
        sync_folder(parts.root)


def raze(parts: StoreParts, run_id: str) -> None:
    """Remove the files of a run that can't be read. Files of others in its folder stay."""
    log = parts.logs.known(run_id)
    if log is not None:
        parts.logs.forget(log)
    place = parts.logs.place(run_id)
    if os.path.islink(place):  # its target belongs to somebody else
        os.unlink(place)
    else:
        for name in (JOURNAL, *filter(FOLDER.fullmatch, os.listdir(place))):
            removed = parts.files.new_name()
            with suppress(FileNotFoundError):
                os.rename(f"{place}/{name}", removed)
            parts.files.discard(removed)
        sync_folder(place)
        with suppress(OSError):
            os.rmdir(place)
    sync_folder(parts.root)
