"""A store in a folder that processes share, on several machines too: text files, which people can read with cat and jq.

Each change of a run is one new file in the run's folder, under the next number. The process that puts it there has made
the change; all others start theirs again. No lock stands between writers of several processes, no file that counts is
ever rewritten, and what a process leaves half done when it dies is in nobody's way.
"""

from __future__ import annotations

import builtins
import errno
import functools
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from milepost.errors import MilepostError, RunNotFoundError, StoreClosedError, StoreError, StoreVersionError
from milepost.model.ids import is_gone
from milepost.model.record import NOT_JSON, Record
from milepost.store import Append, Claimed, LeaseState, Renewal, RunRow, Signal, StoreOptions, Token, Verdict
from milepost.stores.base import fence
from milepost.stores.base.decoding_transaction import DecodingTransaction
from milepost.stores.base.fence import Row, TokenState
from milepost.stores.base.folders import make_folders
from milepost.stores.base.owner import IsGone
from milepost.stores.base.store import Runs
from milepost.stores.base.transaction import DamagedRow, Transaction, WriteConflict
from milepost.stores.file.catalogue import Catalogue, Due
from milepost.stores.file.commit import ONE_FILE, VERSION
from milepost.stores.file.fs import Attempts, Files, Leases, Locks, read_regular
from milepost.stores.file.live import LiveFolder
from milepost.stores.file.log import Logs
from milepost.stores.file.transaction import FileTransaction
from milepost.stores.file.workers import WorkerFolder
from milepost.stores.file.write import Change, StoreParts, write

if TYPE_CHECKING:
    from milepost.model.info import CheckpointInfo
    from milepost.model.live import LiveBatch

_OWN = ".milepost"
"""The folder of the store's own files. No run's name begins with a dot."""

_FAILURES = (OSError, OverflowError, UnicodeEncodeError)
"""The exceptions of the file system. The last two are for values that no file can hold."""

_OF_A_RUN: tuple[type[Exception], ...] = (*Runs.errors_of_one_run, StoreError)

_WRITTEN = Verdict("written")

T = TypeVar("T")


def _is_of_one_run(exc: Exception) -> bool:
    """Tell whether a claim failed by what one run's files say, and not because the folder cannot be used."""
    if not isinstance(exc, StoreError) or exc.is_of_one_run:
        return True
    return isinstance(exc.__cause__, OSError) and exc.__cause__.errno in ONE_FILE


class FileStore(Runs):
    """A store in the folder `path`. The folder and all above it are created if they are missing.

    Raises `StoreError` if the folder can't be used, or if its file system has no hard links or no file locks,
    `StoreVersionError` for a store of a newer release.

    >>> with FileStore("runs") as store:
    ...     doubling.run(21, store=store, run_id="r-1")
    ...     store.get_run("r-1").info.status
    42
    'finished'
    """

    keeps_differences = True

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self.place = str(Path(path).absolute())
        if "\0" in self.place:
            raise StoreError(f"no folder can be called {self.place!r}: choose another", store=self.place, op="open")
        own = f"{self.place}/{_OWN}"
        self._files = Files(f"{own}/temporary")
        self._reset()
        with self._failing_as("open"):
            for folder in (own, f"{own}/due"):
                if os.path.islink(folder):
                    raise OSError(errno.ELOOP, "is a link, and files would be written where it leads", folder)
            if self.is_read_only:
                self._check_version(f"{own}/version.json")
            else:
                for folder in (f"{own}/temporary", f"{own}/due"):
                    make_folders(folder)
                self._files.check()
                self._check_version(f"{own}/version.json")
                self._files.sweep()
        self._live_folder = LiveFolder(f"{own}/live")
        self._keep_live_in(self._live_folder)
        self._worker_shelf = WorkerFolder(own, self._files, self._failing_as)

    def __repr__(self) -> str:
        return f"FileStore({self.place!r})"

    def _reset(self) -> None:
        own = f"{self.place}/{_OWN}"
        self._parts = StoreParts(
            self.place,
            self._files,
            Logs(self.place),
            Leases(self.clock, f"{own}/time"),
            Due(f"{own}/due", self.place),
            Catalogue(self.place, f"{own}/time"),
        )
        self._idle = threading.Condition()
        self._at_work = 0
        self._locks = Locks()

    def _check_version(self, path: str) -> None:
        """Write the store's version, or check that this release knows it."""
        try:
            found = msgspec.json.decode(read_regular(path), type=dict[str, int])["version"]
        except FileNotFoundError:
            if self.is_read_only:
                raise
            made = self._files.write(msgspec.json.encode({"version": VERSION}) + b"\n")
            self._files.put(made, path)
            self._files.discard(made)
            return
        except (*NOT_JSON, KeyError) as exc:
            raise StoreError(f"{path} is damaged ({exc}): restore it from a copy", store=self.place, op="open") from exc
        if found > VERSION:
            raise StoreVersionError(
                f"the store {self.place} has version {found}; this library reads up to {VERSION}: upgrade milepost",
                store=self.place,
                op="open",
                found=found,
                supported=VERSION,
            )

    def close(self) -> None:
        self.flush_live()
        with self._idle:
            self._is_closed = True
            self._idle.wait_for(lambda: not self._at_work)

    def _after_fork(self, is_child: bool) -> None:
        # The child lacks the threads that would release the locks or finish the work.
        if is_child:
            self._reset()
            self._live_folder.after_fork()

    # -- transactions ------------------------------------------------------------------------------

    @contextmanager
    def _failing_as(self, op: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as exc:
            if isinstance(exc, MilepostError):
                raise
            raise self._failure(op, exc) from exc

    def _failure(self, op: str, exc: BaseException) -> StoreError:
        return StoreError(
            f"the store {self.place} failed to {op.replace('_', ' ')}: {exc or type(exc).__name__}: look at the disk, the "
            f"folder's rights and who else uses it, then try again",
            store=self.place,
            op=op,
        )

    def _begin(self) -> None:
        """Prevent the store from being closed until `_end`."""
        with self._idle:
            self._check_open()
            self._at_work += 1

    def _end(self) -> None:
        with self._idle:
            self._at_work -= 1
            if not self._at_work:
                self._idle.notify_all()

    def _read(self, op: str) -> AbstractContextManager[Transaction]:
        return _Use(self, op)

    def _write(self, op: str) -> AbstractContextManager[Transaction]:
        return _Use(self, op, is_write=True, commits=True)

    def _change(self, op: str, body: Callable[[DecodingTransaction], T]) -> T:
        attempts = Attempts(self.place, op)
        while True:
            try:
                with self._write(op) as tx:
                    return body(self._guard(tx))
            except WriteConflict as exc:
                attempts.wait(exc)

    # -- verbs that take more than one write, or less --------------------------------------------------

    def append(self, batch: Sequence[Append]) -> builtins.list[Verdict]:
        has_surplus = self._find_surplus(batch)
        appends = [self._prepared(append) for append in batch]
        if len(appends) == 1 and not has_surplus and self._append_alone(appends[0]):
            self._note_kept(appends[0].token, appends[0].records)
            return [_WRITTEN]
        self._check_open()
        left: dict[str, builtins.list[int]] = {}
        for number, append in enumerate(appends):
            left.setdefault(append.token.run_id, []).append(number)
        verdicts: dict[int, Verdict] = {}
        attempts = Attempts(self.place, "append")
        while left:
            try:
                with _Use(self, "append", is_write=True) as tx:
                    guarded = self._guard(tx)
                    # In the order of their ids, so that two batches never wait for each other.
                    for run_id in sorted(left):
                        verdicts |= {number: self._append(guarded, appends[number]) for number in left[run_id]}
                    overtaken = tx.commit()
            except WriteConflict:  # none of its commits was put
                overtaken = set(left)
            left = {run_id: left[run_id] for run_id in overtaken}
            if left:
                attempts.wait(WriteConflict())
        answers = [verdicts[number] for number in range(len(appends))]
        self._settle(appends, answers)
        return answers

    def _append_alone(self, append: Append) -> bool:
        """Append to a run that has not changed since this process last saw it, as nearly all appends do.

        Return False if nothing was written. Whether the run has changed shows when the commit is
        put, so there is no look before.
        """
        token, records, release, tags, statements = append
        if release is not None or tags is not None or statements or not records:
            return False
        use = _Use(self, "append", is_write=True)
        with use:
            use.take(token.run_id)
            log = self._parts.logs.known(token.run_id)
            tail = None if log is None else log.last_tail
            if log is None or tail is None or tail.header is None:
                return False
            row = log.row(tail.header)
            if row.cancel is not None or fence.judge(row, append, tail.header.last) != "written":
                return False
            change = Change(token.run_id, log, tail, records=[*records])
            return not write(self._parts, (change,))

    def _claim_due(
        self, flows: Collection[str], limit: int, skip: Collection[str], lease: float, max_crashes: int | None
    ) -> builtins.list[tuple[Token, RunRow]]:
        claims: builtins.list[tuple[Token, RunRow]] = []
        seen, gone = {*skip, *self._passed_over()}, functools.cache(is_gone)
        owners: builtins.list[Token] = []
        with self._abandoning(owners):
            while len(claims) < limit:
                with self._reading("claim_due") as tx:
                    due = [row.run_id for row in self._due(tx, flows, limit - len(claims), seen, gone)]
                if not due:
                    break
                seen.update(due)
                for run_id in due:
                    tokens: builtins.list[Token] = []
                    claim = functools.partial(self._claim_if_due, run_id, lease, max_crashes, gone, tokens)
                    try:
                        with self._abandoning(tokens):
                            claimed = self._change("claim_due", claim)
                    except StoreClosedError:
                        raise
                    except _OF_A_RUN as exc:
                        if _is_of_one_run(exc):
                            self._pass_over(run_id, exc)
                            continue
                        if claims:  # they are claimed, and somebody must go on with them
                            return claims
                        raise
                    if claimed is not None and claimed.token is not None:
                        self._held[run_id] = fence.TokenState(claimed.token)
                        owners.append(claimed.token)
                        claims.append((claimed.token, claimed.row))
        return claims

    def _claim_if_due(
        self,
        run_id: str,
        lease: float,
        max_crashes: int | None,
        gone: IsGone,
        tokens: builtins.list[Token],
        tx: DecodingTransaction,
    ) -> Claimed | None:
        row, now = tx.row(run_id), self.clock.time()
        if row is None or not fence.is_due(row, self._state(row, now, gone), now):
            return None
        request = self._worker_claim(row, tx.newest(run_id), lease, max_crashes, gone)
        claimed = self._claim(tx, row, request, worked=True, gone=gone)
        if claimed.token is not None:
            tokens.append(claimed.token)
        return claimed

    def renew(self, tokens: Sequence[Token]) -> builtins.list[Renewal]:
        # A renewal is the time of a file, not a commit.
        with self._reading("renew") as tx:
            renewals = [self._renew(tx, token) for token in tokens]
        for token, renewal in zip(tokens, renewals, strict=True):
            if renewal.outcome == "lost":
                self._drop(token)
        return renewals

    def _renew(self, tx: Transaction, token: Token) -> Renewal:
        try:
            row, log = tx.row(token.run_id), self._parts.logs.find(token.run_id)
        except DamagedRow:  # it must not keep others from being renewed
            return Renewal("unknown")
        if row is None or log is None or not fence.is_current(row, token):
            return Renewal("lost", None if row is None else row.cancel)
        self._parts.leases.renew(self._parts.leases.path(log.folder, token.epoch))
        return Renewal("kept", row.cancel)

    def _state(
        self, row: Row, now: float, gone: IsGone | None = None, held: Mapping[str, TokenState] | None = None
    ) -> LeaseState:
        # The lease may have been renewed after `now` was read, which does not mean that a clock was set back.
        if row.lease_until is not None:
            renewed = row.lease_until - row.lease
            if now < renewed <= now + self._parts.leases.slack:
                now = renewed + 1e-6
        return super()._state(row, now, gone, held)

    def write_live(self, batches: Sequence[LiveBatch]) -> None:
        with self._failing_as("write_live"):
            super().write_live(batches)

    # -- a run that is deleted while it is read -------------------------------------------------------

    def read(self, run_id: str, **options: Any) -> builtins.list[Record]:
        try:
            return super().read(run_id, **options)
        except RunNotFoundError:
            return []

    def list(self, run_id: str) -> builtins.list[CheckpointInfo]:
        try:
            return super().list(run_id)
        except RunNotFoundError:
            return []

    def history(self, run_id: str) -> builtins.list[CheckpointInfo]:
        try:
            return super().history(run_id)
        except RunNotFoundError:
            return []

    def signals(self, run_id: str, *, after: int = 0) -> builtins.list[Signal]:
        try:
            return super().signals(run_id, after=after)
        except RunNotFoundError:
            return []


class _Use(AbstractContextManager[FileTransaction]):
    """One use of a store, which converts failures to the store's. Runs that are written to are locked until it ends."""

    __slots__ = ("_commits", "_locked", "_op", "_store", "_tx")

    def __init__(self, store: FileStore, op: str, *, is_write: bool = False, commits: bool = False) -> None:
        self._store = store
        self._op = op
        self._tx = FileTransaction(store._parts, self.take if is_write else None)
        self._commits = commits
        self._locked: builtins.list[str] = []

    def take(self, run_id: str) -> None:
        """Wait until no other thread of this process writes to the run."""
        if run_id in self._locked:
            return
        self._store._locks.acquire(run_id)
        self._locked.append(run_id)

    def __enter__(self) -> FileTransaction:
        self._store._begin()
        return self._tx

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed = exc
        try:
            if exc is None and self._commits and self._tx.commit():
                raise WriteConflict
        except _FAILURES as raised:
            failed = raised
        finally:
            self._tx.close()
            for run_id in self._locked:
                self._store._locks.release(run_id)
            self._store._end()
        if isinstance(failed, _FAILURES) and not isinstance(failed, MilepostError):
            raise self._store._failure(self._op, failed) from failed
        if failed is not None and failed is not exc:
            raise failed
