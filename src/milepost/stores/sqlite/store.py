"""A store in one SQLite file, for one machine and any number of its processes.

A process has up to three connections: one writes, one reads (so that a reader never waits for a commit), one moves the
write-ahead log into the database. Threads that append at the same time share a commit.

No connection outlives a fork: SQLite would take the locks of the parent for the child's own, and a commit could be lost
when the parent exits. So connections are closed before a fork, and opened again when they are next needed.
Source: https://www.sqlite.org/howtocorrupt.html, on carrying an open database connection across a fork

Whoever removes or replaces the file leaves open connections with the old one, which ends with them. SQLite does not notice.
So before each use, but for appends in quick succession, the store looks whether its path still leads to the file that it
opened.
Source: the same page, on unlinking or renaming a database file while it is in use
"""

from __future__ import annotations

import builtins
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from milepost.errors import InvalidIDError, MilepostError, OptionError, StoreError, shown
from milepost.model.ids import this_process
from milepost.model.record import Record
from milepost.store import Append, Renewal, StoreOptions, Token, Verdict, check_id, check_run_id
from milepost.stores.base.deltas import SMALLEST
from milepost.stores.base.group_commit import GroupCommit
from milepost.stores.base.live import MemoryShelf
from milepost.stores.base.owner import has_statements
from milepost.stores.base.store import Runs
from milepost.stores.base.workers import MemoryWorkerShelf, WorkerTables
from milepost.stores.sqlite import schema as sqlite_schema
from milepost.stores.sqlite.live import LiveFile
from milepost.stores.sqlite.transaction import SQLiteTransaction
from milepost.stores.sqlite.write_ahead_log import WriteAheadLog, open_log
from milepost.stores.sqlite.write_queue import WriteQueue

if TYPE_CHECKING:
    from milepost.model.live import LiveBatch, LiveEvent, Place

_logger = logging.getLogger("milepost")

_CHECKPOINT_BYTES = 4 * 1024 * 1024
_LOOK_BYTES = _CHECKPOINT_BYTES // 16
"""The number of bytes that a process writes before it looks how long the log has become."""
_PAGE_BYTES = 4096
"""The size of a page. A commit writes about the file's first page, and for each record a leaf of
its table and of two indexes."""

_SECONDS_UNSEEN = 0.1
"""The seconds for which ordinary appends do not look at the path of the file again. A look takes some 2 us, a tenth of what
such an append takes without a disk."""

_STEPS_OF_ONE_COUNT = 10_000_000
_MOST_COUNTS = 400
"""The steps of SQLite's machine after which it counts once, and the counts after which a transaction is interrupted: pages
of a hostile or damaged file can lead to each other. A list of a million runs takes some 5 counts, and all of them a minute.
"""

_WRITTEN = Verdict("written")
_FAILURES = (sqlite3.Error, UnicodeDecodeError, OSError)
"""What is told as a failure of the store, unless it is one of our errors. UnicodeDecodeError: SQLite's message about a file
quotes its bytes."""

_RUN_NUMBER = "SELECT id FROM runs WHERE run_id = ?"
# The whole append of the ordinary case: the token is current, no cancel is open, the number is the next one. Otherwise
# `kind` becomes NULL, and the row is ignored. An INSERT from a SELECT would go through a temporary table.
_FAST_APPEND = """
INSERT OR IGNORE INTO records (run, sequence, kind, node_id, visit, size, packing, header, payload) VALUES (?, ?, (
    SELECT ? FROM runs WHERE id = ? AND run_id = ? AND epoch = ? AND nonce = ? AND cancel IS NULL
    AND (SELECT max(sequence) FROM records WHERE run = ?) = ? - 1
), ?, ?, ?, ?, ?, ?)
"""


class SQLiteStore(Runs):
    """A store in the file `path`, or in the file that a link there leads to. The file and its folders are created if
    missing. `":memory:"` stores nothing permanently.

    With `durability` "full" every write survives the loss of power, with "normal" only the end of the
    process. Raises `StoreError` if the file can't be opened or SQLite is older than 3.35, `StoreVersionError`
    for a file of a newer release.

    >>> with SQLiteStore("runs.db") as store:
    ...     doubling.run(21, store=store, run_id="r-1")
    ...     store.get_run("r-1").info.status
    42
    'finished'
    """

    runs_statements = True
    keeps_differences = True
    compresses_differences = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["full", "normal"] = "full",
        **options: Unpack[StoreOptions],
    ) -> None:
        super().__init__(**options)
        if durability not in {"full", "normal"}:
            raise OptionError(f"durability must be 'full' or 'normal', not {shown(durability)}", option="durability")
        self._synchronous = durability.upper()
        self._is_memory = os.fspath(path) == ":memory:"
        self.place = ":memory:" if self._is_memory else sqlite_schema.resolve(str(Path(path).absolute()))
        if sqlite3.sqlite_version_info < (3, 35):
            raise StoreError(
                f"the store {self.place} needs SQLite 3.35, this Python has {sqlite3.sqlite_version}: use a newer one",
                store=self.place,
                op="open",
            )
        self._live_file: LiveFile | None = None
        self._identity: tuple[int, int] | None = None
        """The file that the store opened first; None before that and for a database in memory."""
        self._seen_until = 0.0
        """The time, by `time.monotonic`, until which ordinary appends do not look whether it is still there."""
        self._reset()
        with self._failing_as("open"), self._group.lock:
            if not self.is_read_only:
                self._open()
            else:
                try:
                    if not Path(self.place).exists():
                        raise FileNotFoundError(f"there is no file {self.place}")
                    sqlite_schema.check(self._open_reader(), self.place)
                except BaseException:
                    self._close_connections()
                    raise
        if not self._is_memory:
            self._live_file = LiveFile(f"{self.place}-live", is_read_only=self.is_read_only)
        self._keep_live_in(self._live_file or MemoryShelf())
        if self._live_file is None:
            self._worker_shelf = MemoryWorkerShelf()
        else:
            self._worker_shelf = WorkerTables(self._beat_by, self._pause_by)

    def __repr__(self) -> str:
        return f"SQLiteStore({self.place!r})"

    def _reset(self) -> None:
        self._group = GroupCommit(self._commit_together, lambda exc: isinstance(exc, sqlite3.OperationalError))
        self._read_lock = self._group.lock if self._is_memory else threading.Lock()
        self._run_numbers: dict[str, int] = {}
        self._writer: sqlite3.Connection | None = None
        self._inserter: sqlite3.Cursor | None = None
        """The writing connection's cursor for all appends, so that no append creates one."""
        self._reader: sqlite3.Connection | None = None
        self._read_as: tuple[int, int] | None = None
        """Size and time of the file that is read as if nobody wrote to it; None: it is read as others are."""
        self._checkpointer: sqlite3.Connection | None = None
        self._log: WriteAheadLog | None = None
        self._queue: WriteQueue | None = None
        self._turn: AbstractContextManager[object] = nullcontext()
        """The queue again, to wait for this process's turn to write; a database in memory has none."""
        self._until_look = _LOOK_BYTES
        """The approximate number of bytes that this process puts into the log before it looks how long that is."""

    # -- live events, workers and schedules --------------------------------------------------------

    def write_live(self, batches: Sequence[LiveBatch]) -> None:
        with self._failing_as("write_live"):
            super().write_live(batches)

    def read_live(self, run_id: str, *, after: Place = (0, 0), limit: int = 1000) -> builtins.list[LiveEvent]:
        with self._failing_as("read_live"):
            return super().read_live(run_id, after=after, limit=limit)

    def _beat_by(self, op: str, query: str, values: Sequence[Any]) -> builtins.list[Any]:
        """Execute a statement in the file beside the database, which is written without syncs and has locks of its own."""
        assert self._live_file is not None
        with self._failing_as(op):
            return self._live_file.execute(query, values)

    def _pause_by(self, op: str, query: str, values: Sequence[Any]) -> builtins.list[Any]:
        with self._read(op) if query.startswith("SELECT") else self._write(op) as tx:
            return tx._fetch(query, values)

    # -- connections -------------------------------------------------------------------------------

    def _check_file(self) -> None:
        """Raise StoreError if the path does not lead to the file that the store opened: writes to that one would be lost."""
        if self._identity is None:
            return
        try:
            is_there = sqlite_schema.identity_of(self.place) == self._identity
        except OSError:  # nobody can tell
            is_there = True
        if is_there:
            self._seen_until = time.monotonic() + _SECONDS_UNSEEN
            return
        raise StoreError(
            f"the file {self.place} was removed or replaced while it was open: stop all processes that use it before you "
            f"do that, and open the store again",
            store=self.place,
            op="open",
        )

    def _connect(self) -> sqlite3.Connection:
        if not self._is_memory:
            sqlite_schema.refuse_links(self.place)
            self._identity = self._identity or sqlite_schema.identity_of(self.place)
        connection = sqlite3.connect(
            self.place if self._is_memory else f"{Path(self.place).as_uri()}?mode={self._mode()}",
            uri=not self._is_memory,
            timeout=sqlite_schema.BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            # A log that grew while a reader was in the way shrinks again when it starts anew.
            connection.execute(f"PRAGMA journal_size_limit = {2 * _CHECKPOINT_BYTES}")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            sqlite_schema.distrust(connection)
            connection.execute("PRAGMA secure_delete = ON")
            if self.is_read_only and not self._is_memory:
                connection.execute("PRAGMA query_only = ON")
            self._check_file()
        except BaseException:
            connection.close()
            raise
        return connection

    def _mode(self) -> str:
        """Return how the file is opened. To be read only, it is taken as one that nobody changes if it can't be else.

        SQLite shares the log of a database by files beside it. Where these are not there and can't be made, it opens the
        database only as `immutable`.
        """
        if not self.is_read_only:
            return "rw"
        self._read_as = None
        if os.access(Path(self.place).parent, os.W_OK) or Path(f"{self.place}-wal").exists():
            return "ro"
        self._read_as = _size_and_time(self.place)
        logging.getLogger("milepost").warning(
            "the folder of %s can't be written, so the store is read as if nobody wrote to it meanwhile", self.place
        )
        return "ro&immutable=1"

    def _count_steps(self, connection: sqlite3.Connection) -> None:
        """Give the connection's transaction the steps that one may take, and interrupt it after them."""
        left = iter(range(_MOST_COUNTS))
        connection.set_progress_handler(lambda: next(left, None) is None, _STEPS_OF_ONE_COUNT)

    def _open(self) -> sqlite3.Connection:
        """Open the writing connection unless it is open. The caller holds the lock."""
        self._check_open()
        self._check_file()
        if self._writer is not None:
            return self._writer
        if not self._is_memory:
            sqlite_schema.create_file(Path(self.place))
            sqlite_schema.share_rights(Path(self.place))
        writer = self._connect()
        try:
            sqlite_schema.prepare(writer, self.place, self._take_over)
            if not self._is_memory:
                self._log = WriteAheadLog(self.place)
                self._turn = self._queue = WriteQueue(open_log(self.place))
                self._until_look = 0  # processes that write little each would never look
        except BaseException:
            self._close_log()
            writer.close()
            raise
        # `patiently` waits for the lock instead.
        writer.execute("PRAGMA busy_timeout = 0")
        self._writer, self._inserter = writer, writer.cursor()
        return writer

    def _open_reader(self) -> sqlite3.Connection:
        """Open the reading connection unless it is open. The caller holds its lock."""
        self._check_open()
        if self._is_memory:
            return self._open()
        if self._reader is not None and self._read_as is not None and self._is_written_now():
            self._reader.close()
            self._reader = self._identity = None
        self._check_file()
        if self._reader is None:
            self._reader = self._connect()
        return self._reader

    def _is_written_now(self) -> bool:
        """Return whether somebody writes to a file that was opened as one that nobody changes."""
        return Path(f"{self.place}-wal").exists() or _size_and_time(self.place) != self._read_as

    def close(self) -> None:
        self.flush_live()
        try:
            with self._group.lock:
                self._is_closed = True
                if self._live_file is not None:
                    self._live_file.close()
                with self._reading_alone():
                    self._close_connections()
        finally:
            self._group.wake_first()

    def _reading_alone(self) -> AbstractContextManager[object]:
        return nullcontext() if self._is_memory else self._read_lock

    def _close_connections(self) -> None:
        """Close all connections. The caller holds both locks."""
        self._close_log()
        for connection in (self._reader, self._checkpointer, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._checkpointer = self._writer = self._inserter = None
        if self._read_as is not None:
            self._identity = None  # what is read as if nobody wrote may be replaced, and is opened anew then

    def _close_log(self) -> None:
        for file in (self._log, self._queue):
            if file is not None:
                file.close()
        self._log = self._queue = None
        self._turn = nullcontext()

    def _before_fork(self) -> None:
        self._group.lock.acquire()
        if self._live_file is not None:
            self._live_file.before_fork()
        if not self._is_memory:
            self._read_lock.acquire()
            self._close_connections()

    def _after_fork(self, is_child: bool) -> None:
        if self._live_file is not None:
            self._live_file.after_fork(is_child)
        if is_child:
            # After a fork without notice there are connections. The child must neither use nor close them.
            _inherited.extend(c for c in (self._writer, self._reader, self._checkpointer) if c is not None)
            if self._log is not None and self._queue is not None:
                self._log.close()
                self._queue.close_in_child()
            self._reset()
            self._is_closed |= self._is_memory
            return
        if not self._is_memory:
            self._read_lock.release()
        self._group.lock.release()
        self._group.wake_first()

    # -- transactions ------------------------------------------------------------------------------

    @contextmanager
    def _failing_as(self, op: str) -> Iterator[None]:
        try:
            yield
        except MilepostError:
            raise
        except _FAILURES as exc:
            raise self._failure(op, exc) from exc

    def _failure(self, op: str, exc: BaseException) -> StoreError:
        return StoreError(
            f"the store {self.place} failed to {op.replace('_', ' ')}: {exc or type(exc).__name__}: look at the disk, "
            f"the file's rights and who else uses it, then try again",
            store=self.place,
            op=op,
        )

    @contextmanager
    def _write(self, op: str) -> Iterator[SQLiteTransaction]:
        try:
            with self._group.lock:
                writer = self._open()
                self._count_steps(writer)
                before = writer.total_changes
                with self._immediate(writer):
                    yield SQLiteTransaction(writer)
                # A run that is deleted or imported whole changes about as many pages as it has.
                self._until_look -= (writer.total_changes - before) * _PAGE_BYTES
                self._note_written(writer)
        except MilepostError:
            raise
        except _FAILURES as exc:
            raise self._failure(op, exc) from exc
        finally:
            self._group.wake_first()

    @contextmanager
    def _read(self, op: str) -> Iterator[SQLiteTransaction]:
        try:
            with self._read_lock:
                reader = self._open_reader()
                self._count_steps(reader)
                try:
                    reader.execute("BEGIN")
                    yield SQLiteTransaction(reader)
                finally:
                    if reader.in_transaction:
                        reader.execute("COMMIT")
        except MilepostError:
            raise
        except _FAILURES as exc:
            raise self._failure(op, exc) from exc
        finally:
            if self._is_memory:
                self._group.wake_first()

    @contextmanager
    def _immediate(self, writer: sqlite3.Connection) -> Iterator[None]:
        """Open a write transaction, which is undone if its block raises."""
        with self._turn:
            try:
                sqlite_schema.patiently(lambda: writer.execute("BEGIN IMMEDIATE"))
                yield
                writer.execute("COMMIT")
            except BaseException:
                _roll_back(writer)
                raise

    def _note_written(self, writer: sqlite3.Connection, appends: Sequence[Append] = ()) -> None:
        """Count what was written, and now and then look whether the log is long."""
        self._until_look -= _PAGE_BYTES
        for append in appends:
            for record in append.records:
                self._until_look -= len(record.payload or b"") + 3 * _PAGE_BYTES
        if self._until_look <= 0:
            self._look_at_log(writer)

    def _look_at_log(self, writer: sqlite3.Connection) -> None:
        """Move the log into the database once all processes have made it long. A short log is written anew from its
        beginning, and a file that does not grow is flushed in a part of the time."""
        self._until_look = _LOOK_BYTES
        if self._log is not None and self._log.has(_CHECKPOINT_BYTES):
            # It stays long while a reader is in the way: try again after another quarter.
            self._until_look = _CHECKPOINT_BYTES // 4
            self._move_log(writer)

    def _move_log(self, writer: sqlite3.Connection) -> None:
        """Move the log into the database. Written data stay written if that fails."""
        try:
            if self._checkpointer is None:
                self._checkpointer = self._connect()
            # No write may begin during a checkpoint: SQLite before 3.51.3 can lose it when the log starts anew.
            # Source: https://www.sqlite.org/wal.html, on the WAL-reset bug
            with self._immediate(writer):
                self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except _FAILURES as exc:
            _logger.warning("the log of %s could not be moved into the database: %s", self.place, exc)

    # -- appends -----------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> builtins.list[Verdict]:
        group = self._group
        has_surplus = self._find_surplus(batch)
        if len(batch) == 1 and not has_surplus and self._append_alone(batch[0]):
            return [_WRITTEN]
        if has_surplus or has_statements(batch):
            return self._append_together(batch)
        appends = [self._prepared(append) for append in batch]
        try:
            if group.is_busy:
                verdicts = group.append(appends)
            else:
                try:
                    with group.lock:
                        verdicts = self._commit(appends)
                finally:
                    group.wake_first()
        except MilepostError:
            raise
        except _FAILURES as exc:
            raise self._failure("append", exc) from exc
        self._settle(appends, verdicts)
        return verdicts

    def _drop(self, token: Token) -> None:
        super()._drop(token)
        self._run_numbers.pop(token.run_id, None)

    def _commit_together(self, appends: Sequence[Append], verdicts: builtins.list[Verdict]) -> None:
        """Write `appends` in one commit. Add their verdicts to `verdicts` if and only if the commit took place."""
        writer = self._open()
        with self._turn:
            try:
                sqlite_schema.patiently(lambda: writer.execute("BEGIN IMMEDIATE"))
                tx = self._guard(SQLiteTransaction(writer))
                verdicts += [_WRITTEN if self._append_fast(a) else self._append(tx, a) for a in appends]
                writer.execute("COMMIT")
            except BaseException as exc:
                if writer.in_transaction or isinstance(exc, Exception):
                    verdicts.clear()
                    _roll_back(writer)
                raise
        self._note_written(writer, appends)

    def _commit(self, appends: builtins.list[Append]) -> builtins.list[Verdict]:
        """Write `appends` in one commit, without those of others. The caller holds the lock."""
        writer = self._open()
        if len(appends) == 1:
            with self._turn:
                is_written = self._append_fast(appends[0])
            if is_written:
                self._note_written(writer, appends)
                return [_WRITTEN]
        verdicts: builtins.list[Verdict] = []
        self._commit_together(appends, verdicts)
        return verdicts

    def _append_alone(self, append: Append) -> bool:
        """Append one ordinary record while nobody else writes, as nearly all appends do. Return
        False if nothing was written.

        This does the same as `append`, without the steps that this case does not need.
        """
        token, records, release, tags, statements = append
        writer, group = self._writer, self._group
        if release is not None or tags is not None or statements or len(records) != 1 or writer is None:
            return False
        record = records[0]
        header = record[5]
        if header is None or self._links.before(token, record[0]) is None:
            return False  # the link before it has to be read, which takes a lock that may be the same
        if group.queue or not group.lock.acquire(False):
            return False
        try:
            # Nobody closes or replaces the connection while the lock is held.
            if writer is not self._writer:
                return False
            if time.monotonic() > self._seen_until:
                self._check_file()
            is_large = record[4] >= SMALLEST
            kept = self._kept(token, records)[0]
            with self._turn:
                if not self._insert_current(token, kept):
                    return False
            self._until_look -= 4 * _PAGE_BYTES
            if is_large:
                self._note_kept(token, records)
                self._until_look -= len(kept[6] or b"")
            if self._until_look <= 0:
                self._look_at_log(writer)
        except MilepostError:
            raise
        except _FAILURES as exc:
            raise self._failure("append", exc) from exc
        finally:
            group.lock.release()
            if group.queue:
                group.wake_first()
        return True

    def _append_fast(self, append: Append) -> bool:
        """Write `append` if it is an ordinary one. If it returns False nothing was written, and
        `_append` gives the verdict."""
        token, records, release, tags, _ = append
        if len(records) != 1 or release is not None or tags is not None:
            return False
        return self._insert_current(token, records[0])

    def _insert_current(self, token: Token, record: Record) -> bool:
        """Insert the next record of a run, which is sealed, in one statement. The caller holds the
        lock of the open connection.

        Return False, and insert nothing, unless the token is current, the number is the next, and no cancel is open.
        """
        run_id, epoch, nonce, process = token
        if process != this_process().key or not nonce:
            return False
        assert self._inserter is not None
        execute = self._inserter.execute
        number = self._run_numbers.get(run_id)
        if number is None:
            found = sqlite_schema.patiently(lambda: execute(_RUN_NUMBER, (run_id,)).fetchone())
            if found is None:
                return False
            number = self._run_numbers[run_id] = found[0]
        sequence, kind, node_id, visit, size, header, payload, packing = record
        text = None if header is None else (header + b"}").decode()
        # The sqlite3 module looks for an adapter for bytes, but not for bytearray. A short copy costs less than that.
        state = bytearray(payload) if payload is not None and len(payload) < SMALLEST else payload
        place = (number, sequence, kind, number, run_id, epoch, nonce, number, sequence)
        values = (*place, node_id, visit, size, packing, text, state)
        if sqlite_schema.patiently(lambda: execute(_FAST_APPEND, values)).rowcount == 1:
            return True
        self._run_numbers.pop(run_id, None)
        return False

    # -- leases ------------------------------------------------------------------------------------

    def renew(self, tokens: Sequence[Token]) -> builtins.list[Renewal]:
        if not tokens:
            return super().renew(tokens)
        with self._write("renew") as tx:
            kept = tx.renew([token for token in tokens if token.nonce and token.is_ours], self.clock.time())
        # The rows of the other runs tell what has become of them.
        others = [token for token in tokens if token[:3] not in kept]
        renewals = dict(zip(others, super().renew(others), strict=True))
        cancels = self._proven_cancels({run_id: cancel for (run_id, *_), cancel in kept.items() if cancel is not None})
        return [renewals[t] if t in renewals else Renewal("kept", cancels.get(t.run_id)) for t in tokens]

    def cancels(self, run_ids: Sequence[str]) -> dict[str, str]:
        with self._read("cancels") as tx:
            found = tx.cancels(run_ids)
        return dict(self._proven_cancels(found))

    # -- files of the first form -------------------------------------------------------------------

    def _take_over(self, connection: sqlite3.Connection) -> None:
        """Turn the rows of `checkpoints_v0` into saves from outside."""
        tx = SQLiteTransaction(connection)
        left: builtins.list[object] = []
        for run_id, node_id, timestamp, data in sqlite_schema.first_rows(connection):
            try:
                check_run_id(run_id)
                check_id(node_id)
            except (TypeError, InvalidIDError):
                left.append((run_id, node_id))
                continue
            self._save_from_outside(tx, run_id, node_id, data, self._parse(timestamp), tx.row(run_id))
        if left:
            _logger.warning(
                "%d rows of %s stay in its table checkpoints_v0, for no run can have their ids: the first is %.200r",
                len(left),
                self.place,
                left[0],
            )

    def _parse(self, timestamp: Any) -> float:
        """Parse the time of a row. SQLite's own times have no zone and are UTC. A time that can't be read becomes now."""
        try:
            if isinstance(timestamp, str) and not timestamp.replace(".", "").isdigit():
                moment = datetime.fromisoformat(timestamp)
                return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)).timestamp()
            return datetime.fromtimestamp(float(timestamp), UTC).timestamp()
        except (TypeError, ValueError, OverflowError, OSError):
            return self.clock.time()


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite has undone the transaction by itself after some errors, such as a full disk.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


_inherited: list[sqlite3.Connection] = []


def _size_and_time(path: str) -> tuple[int, int]:
    """Return the size of a file and when it was changed."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns
