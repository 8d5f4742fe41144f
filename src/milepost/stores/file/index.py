"""An index of the commits that may have records of a node or a kind, so that a search need not read them all.

16 commits in a row make a block, 16 blocks a larger one, and so on. A small file for each complete block names its
nodes and kinds. A search begins at the largest blocks and goes down into those that may have a match: it reads some
dozens of files in a journal of a hundred thousand commits.

These files only save time. The process that completes a block writes its file, without waiting for the
disk. Where a file is missing or torn, the search goes down into the block's parts. A block may also name
records that were removed since.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from milepost.stores.file.commit import Commit, Damaged, Header, is_whole, summed

__all__ = ["Index", "Sought"]

_BLOCK = 16
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
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def _read(self, level: int, block: int) -> _Summary | None:
        known = self._known.get((level, block))
        if known is not None:
            return known
        try:
            with open(self._path(level, block), "rb") as file:
                data = file.read()
            summary = _decode(data)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if not is_whole(data):
            return None
        self._room -= len(summary.nodes) + 1
        if self._room < 0:
            self._known, self._room = {}, _MOST_READ
        else:
            self._known[level, block] = summary
        return summary
