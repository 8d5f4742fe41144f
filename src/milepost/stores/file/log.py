"""The log of a run: its commits in order, and the index that finds one.

The process that gives the next number to a file has changed the run, and all others that tried have not: that is the
whole fence. Nothing is ever locked, so a process that is frozen at any point blocks nobody, and loses when it wakes.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from milepost.model.record import NOT_JSON
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import DamagedRow, NewerRow
from milepost.stores.file.commit import (
    ONE_FILE,
    VERSION,
    Commit,
    Damaged,
    Depth,
    Header,
    RowText,
    is_whole,
    load,
    row_of,
    summed,
)
from milepost.stores.file.fs import below, exists, open_in_place, place_of, read_regular

# An index of the commits that may have records of a node or a kind, so that a search need not read them all.
#
# 16 commits in a row make a block, 16 blocks a larger one, and so on. A small file for each complete block names its
# nodes and kinds. A search begins at the largest blocks and goes down into those that may have a match: it reads some
# dozens of files in a journal of a hundred thousand commits.
#
# These files only save time. The process that completes a block writes its file, without waiting for the
# disk. Where a file is missing or torn, the search goes down into the block's parts. A block may also name
# records that were removed since.


_BLOCK = 16
_LARGEST_BLOCK = 256 << 20
"""The largest size in bytes of the file of a block."""
_MOST_READ = 4096
"""Number of nodes of blocks that are remembered, so that successive searches do not read the largest blocks anew."""


class Sought(NamedTuple):
    """The criteria of a search. None matches anything."""

    node_id: str | None = None
    kinds: Collection[str] | None = None
    visit: int | None = None


class _Summary(msgspec.Struct):
    """The content of a block: its nodes, each with its lowest and highest visit, and its kinds."""

    nodes: dict[str, tuple[int, int]]
    kinds: set[str]

    def add(self, header: Header) -> None:
        """Add the records of a commit."""
        for placed in header.records:
            self.kinds.add(placed.kind)
            if placed.node_id:
                self._add_visits(placed.node_id, placed.visit, placed.visit)

    def join(self, other: _Summary) -> None:
        """Add the content of another block."""
        self.kinds |= other.kinds
        for node_id, (lowest, highest) in other.nodes.items():
            self._add_visits(node_id, lowest, highest)

    def _add_visits(self, node_id: str, lowest: int, highest: int) -> None:
        known = self.nodes.get(node_id)
        self.nodes[node_id] = (lowest, highest) if known is None else (min(lowest, known[0]), max(highest, known[1]))

    def may_have(self, sought: Sought) -> bool:
        if sought.kinds is not None and not any(kind in self.kinds for kind in sought.kinds):
            return False
        if not sought.node_id:  # records of no node are in no summary
            return True
        visits = self.nodes.get(sought.node_id)
        return visits is not None and (sought.visit is None or visits[0] <= sought.visit <= visits[1])


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Summary).decode


class Index:
    """The blocks of one log, whose commits are in `folder` and are read by `load`."""

    def __init__(self, folder: str, load: Callable[[int], Commit]) -> None:
        self._folder = folder
        self._load = load
        self._growing: tuple[int, _Summary] = (-1, _Summary({}, set()))
        """The newest commit of the last block that this process has seen, and the block's content so far."""
        self._known: dict[tuple[int, int], _Summary] = {}
        self._room = _MOST_READ

    def numbers(self, low: int, high: int, sought: Sought, *, newest: bool) -> Iterator[int]:
        """Yield the commits from `low` to `high`, both included, that may match, in order or from the newest back."""
        if sought == Sought():
            yield from range(high, low - 1, -1) if newest else range(low, high + 1)
            return
        level = 0
        while _BLOCK ** (level + 1) <= high + 1:
            level += 1
        blocks = range(high // _BLOCK**level + 1)
        for block in reversed(blocks) if newest else blocks:
            yield from self._within(level, block, low, high, sought, newest)

    def _within(self, level: int, block: int, low: int, high: int, sought: Sought, newest: bool) -> Iterator[int]:
        first = block * _BLOCK**level
        last = first + _BLOCK**level - 1
        if last < low or first > high:
            return
        if level == 0:
            yield block
            return
        if last <= high:
            summary = self._read(level, block)
            if summary is not None and not summary.may_have(sought):
                return
        parts = range(block * _BLOCK, (block + 1) * _BLOCK)
        for part in reversed(parts) if newest else parts:
            yield from self._within(level - 1, part, low, high, sought, newest)

    def nodes(self, high: int) -> set[str]:
        """Return the nodes of which the commits up to `high` have or had records."""
        found: set[str] = set()
        first = 0
        while first <= high:
            level, summary = 0, None
            while first % _BLOCK ** (level + 1) == 0 and first + _BLOCK ** (level + 1) - 1 <= high:
                level += 1
            while level > 0 and (summary := self._read(level, first // _BLOCK**level)) is None:
                level -= 1
            if summary is None:
                summary = self._of_commit(first)
            if summary is not None:
                found.update(summary.nodes)
            first += _BLOCK**level
        return found

    def note(self, header: Header) -> None:
        """Add a commit that this process wrote, and write the files of blocks that it
        completes. A failed write is skipped."""
        number = header.commit
        newest, growing = self._growing
        if number % _BLOCK == 0:
            growing = _Summary({}, set())
        if number % _BLOCK == 0 or newest == number - 1:
            growing.add(header)
            self._growing = (number, growing)
        level, summary = 1, growing if self._growing[0] == number else None
        while (number + 1) % _BLOCK**level == 0:
            block = number // _BLOCK**level
            with suppress(OSError):
                summary = summary or self._described(level, block)
                if summary is None:
                    return
                self._write(self._path(level, block), summed(_encode(summary)))
            level, summary = level + 1, None

    def _described(self, level: int, block: int) -> _Summary | None:
        """Build a block's summary from those of its parts; None if one is missing."""
        whole = _Summary({}, set())
        for number in range(block * _BLOCK, (block + 1) * _BLOCK):
            part = self._of_commit(number) if level == 1 else None
            if level > 1:
                part = self._read(level - 1, number) or self._described(level - 1, number)
            if part is None:
                return None
            whole.join(part)
        return whole

    def _of_commit(self, number: int) -> _Summary | None:
        summary = _Summary({}, set())
        try:
            summary.add(self._load(number).header)
        except (Damaged, FileNotFoundError):
            return None
        return summary

    def _path(self, level: int, block: int) -> str:
        return f"{self._folder}/block-{level}-{block:012d}"

    def _write(self, path: str, data: bytes) -> None:
        # The file is written in its place: a reader of a torn one goes on as if it were missing.
        descriptor = open_in_place(path, _LARGEST_BLOCK)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def _read(self, level: int, block: int) -> _Summary | None:
        known = self._known.get((level, block))
        if known is not None:
            return known
        try:
            data = read_regular(self._path(level, block), _LARGEST_BLOCK)
            summary = _decode(data)
        except (OSError, *NOT_JSON):
            return None
        if not is_whole(data):
            return None
        self._room -= len(summary.nodes) + 1
        if self._room < 0:
            self._known, self._room = {}, _MOST_READ
        else:
            self._known[level, block] = summary
        return summary


# -- A run's folder: commits under consecutive numbers, whose newest is found without a listing ----


JOURNAL = "journal"
"""The file in a run's folder that names the folder with the commits."""

FOLDER = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}")
"""The name of the folder with a run's commits: the run's number in the order of creation, and a random part."""

_MOST_LOGS = 4096
"""Number of runs whose logs a store remembers. Those of other runs are searched for again."""


_OVER = (2, 3, 5, 9)
"""How far beyond the end of consecutive numbers to look for more of them."""


class Pointer(msgspec.Struct):
    """The content of `journal`."""

    version: int
    run_id: str
    folder: str
    created_at: float


class Tail(NamedTuple):
    """The end of a log: the number of its newest commit, and the first line of that commit if it can be read."""

    number: int
    header: Header | None
    damage: str = ""


class Log:
    """The commits of one run, from its creation to its deletion."""

    def __init__(self, run_id: str, place: str, folder: str) -> None:
        self.run_id = run_id
        self.place = place
        """The run's folder."""
        self.folder = folder
        """The folder within it that has the commits."""
        self._newest = -1
        """The highest number that is known to be taken."""
        self._header: Header | None = None
        """The header of the newest commit that was read."""
        self.signal_ids: set[str] = set()
        """The ids of the signals up to `newest_signal`."""
        self.newest_signal = 0
        self.index = Index(folder, self.load)
        self._row: tuple[RowText, Row] | None = None

    def path(self, number: int) -> str:
        """Return the path of a commit."""
        return f"{self.folder}/{number:012d}"

    def load(self, number: int, depth: Depth = "line") -> Commit:
        """Read a commit. Raise `Damaged`, also if its file is missing, or FileNotFoundError if the log is gone."""
        try:
            return load(self.path(number), self.run_id, number, depth)
        except FileNotFoundError:
            if not exists(self.folder):
                raise
            raise Damaged(self.path(number), "is missing") from None

    def note(self, header: Header) -> None:
        """Note that this commit was written, or was read as the newest."""
        if header.commit >= self._newest:
            self._newest, self._header = header.commit, header

    @property
    def last_tail(self) -> Tail | None:
        """The end of the log as this process last saw it, None if it has not."""
        header = self._header
        return None if header is None else Tail(header.commit, header)

    def row(self, header: Header) -> Row:
        """Return the row of a commit. Most commits have the row of the one before."""
        known = self._row
        if known is None or known[0] is not header.row:
            known = self._row = (header.row, row_of(header.row))
        return known[1]

    def newest(self) -> int:
        """Return the number of the newest commit, -1 if there is none. Numbers that are being
        taken now may or may not count."""
        while True:
            known = self._newest
            low = self._last_from(max(known, 0))
            if known < 0:
                # Nothing was known before: a lost file must not count as the end.
                while (over := next((n for n in _OVER if exists(self.path(low + n))), 0)) > 0:
                    low = self._last_from(low + over)
            # If the folder was removed meanwhile, the search has proved nothing.
            if exists(self.path(low)):
                self._newest = max(self._newest, low)
                return low
            if known < 0:
                return -1
            self._newest, self._header = -1, None

    def _last_from(self, low: int) -> int:
        """Return the last consecutive number from `low` on: it doubles its steps, then bisects the last one."""
        step = 1
        while exists(self.path(low + step)):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if exists(self.path(middle)):
                low = middle
            else:
                high = middle
        return low

    def tail(self) -> Tail | None:
        """Find the end of the log; None if the run was deleted."""
        while True:
            number = self.newest()
            if number < 0:
                return Tail(0, None, f"{self.path(0)} is missing") if exists(self.folder) else None
            header = self._header
            if header is None or header.commit != number:
                try:
                    header = self.load(number).header
                except FileNotFoundError:
                    return None
                except Damaged as exc:
                    if exists(self.path(number + 1)):
                        continue
                    return Tail(number, None, str(exc))
            if header.is_deleted:
                return None
            self.note(header)
            return Tail(number, header)


class Logs:
    """The logs of a store, by run."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Log] = OrderedDict()

    def place(self, run_id: str) -> str:
        """Return the run's folder, which may not exist."""
        return str(below(self._root, place_of(run_id)))

    def known(self, run_id: str) -> Log | None:
        """Return the run's log if it is remembered. Its folder may be gone."""
        with self._lock:
            log = self._known.get(run_id)
            if log is not None:
                self._known.move_to_end(run_id)
            return log

    def find(self, run_id: str) -> Log | None:
        """Find the run's log. Raise `DamagedRow` if `journal` is damaged.

        A remembered log may be gone. Return None if there is no such run.
        """
        log = self.known(run_id)
        if log is not None:
            return log
        place = self.place(run_id)
        pointer = read_pointer(place)
        if pointer is None:
            return None
        if pointer.run_id != run_id:
            raise damaged_pointer(f"{place}/{JOURNAL}", f"it is of run {pointer.run_id!r}")
        return self.add(Log(run_id, place, f"{place}/{pointer.folder}"))

    def add(self, log: Log) -> Log:
        """Remember a log."""
        with self._lock:
            self._known[log.run_id] = log
            while len(self._known) > _MOST_LOGS:
                self._known.popitem(last=False)
        return log

    def forget(self, log: Log) -> None:
        """Forget a log, so that the next call searches for it again."""
        with self._lock:
            if self._known.get(log.run_id) is log:
                del self._known[log.run_id]


def damaged_pointer(path: str, why: str) -> DamagedRow:
    """Return the error of a run whose folder does not say where its commits are."""
    return DamagedRow(
        f"{path} is damaged ({why}): restore it from a copy, or delete the run with force=True", store=path, op="read"
    )


_decode_pointer = msgspec.json.Decoder(Pointer).decode


def read_pointer(place: str) -> Pointer | None:
    """Read `journal` in a run's folder; None if it is missing. Raise `DamagedRow` if it can't be read, or if a link leads to
    it or to the commits: they may be of another store."""
    path = f"{place}/{JOURNAL}"
    try:
        pointer = _decode_pointer(read_regular(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, *NOT_JSON) as exc:
        if isinstance(exc, OSError) and exc.errno not in ONE_FILE:
            raise
        raise damaged_pointer(path, str(exc)) from exc
    if pointer.version > VERSION:
        raise NewerRow(
            f"{path} has version {pointer.version}; this library reads up to {VERSION}: upgrade milepost",
            store=path,
            op="read",
            found=pointer.version,
            supported=VERSION,
        )
    if not FOLDER.fullmatch(pointer.folder):
        raise damaged_pointer(path, f"it names the folder {pointer.folder[:200]!r}")
    for folder in (place, f"{place}/{pointer.folder}"):
        if os.path.islink(folder):
            raise damaged_pointer(path, f"{folder} is a link")
    return pointer
