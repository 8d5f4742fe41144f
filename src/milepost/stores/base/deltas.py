"""States that are kept as what changed: differences to an earlier record of the same run.

A difference is JSON, `{"base": 41, "since": 7, "edits": [[1042, 0, "text"]]}`: which record it builds on, from where on
all are that it may need, and where how many bytes of the base's state give way to which text. It is the record's payload; its
header, with the digest of the whole state, is as it would be otherwise. What reads a record gets it whole.

A whole one is written when a chain is long and holds more than the state does: by count alone storage would grow with the
square of the steps. Found by comparing places that must agree, not by a search for the least text, so that a state that was
replaced costs little more than its writing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from milepost.errors import DeserializeStateError
from milepost.model.agreement import agreeing, agreeing_back
from milepost.model.record import DIFFERENCE, UNPACKED, ZSTD, Record
from milepost.store import Token
from milepost.stores.base.fence import Row
from milepost.stores.base.process_fork import watch

__all__ = [
    "SMALLEST",
    "Base",
    "Bases",
    "Difference",
    "chained",
    "difference",
    "is_base",
    "lessened",
    "read_difference",
    "whole_of",
]

SMALLEST = 4096
"""Bytes of a state below which it is kept whole: what stands beside it in its record weighs as much."""
_LONG = 64
"""Differences in a chain before another whole state may be written."""
_BESIDE = 128
"""Bytes that a medium needs for a record beside its header and its payload, about."""
_MOST_EDITS = 128
_MOST_READ = 4096
"""Edits that are taken from a payload, each of which may move the whole state."""
_ANCHOR = 24
"""Bytes that must agree for two places to be taken for the same."""
_CLOSE = 256
"""How far the same place is looked for first."""
_NEAR = 16 * 1024
"""How far it is looked for then, at least."""
_FARTHEST = 64 * 1024
"""The longest text that may be gone for what follows it to be found again."""
_MOST_BRANCHES = 64
"""Of a run whose newest records are remembered."""
_MOST_BYTES = 64 * 1024 * 1024
"""Of states that a store remembers to build on; the runs that were written to longest ago are forgotten."""

Edit = tuple[int, int, int, int]
"""Where a text of the old state begins and ends, and where the one of the new state that takes its place."""


class Difference(msgspec.Struct):
    """What a payload says that is a difference."""

    base: int
    since: int
    edits: list[tuple[int, int, str]]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Difference).decode


class Base(NamedTuple):
    """A record that another one may build on, and the chain that it ends."""

    record: Record
    """With its state whole."""
    since: int
    """The sequence of the whole record that the chain began with when it was written: nothing before it is needed."""
    kept: int
    """Bytes of that record's state and of all differences after it."""
    links: int
    """How many differences there are."""


# -- out ---------------------------------------------------------------------------------------------------


def lessened(record: Record, base: Base | None) -> tuple[Record, Base]:
    """The record as a difference to `base`, or as it is where that is not worth while; and the base that it is itself.

    Its state must be whole, and its header as it was made or as it is sealed.
    """
    state = record.state()
    assert state is not None
    if base is not None and (base.links < _LONG or base.kept <= 2 * len(state)):
        edits = difference(base.record.state() or b"", state)
        payload = None if edits is None else _encode(Difference(base.record.sequence, base.since, edits))
        # A state that is packed when it is whole must gain more by far.
        if payload is not None and len(payload) <= len(state) // (8 if record.packing else 2):
            kept = base.kept + len(payload) + len(record.header or b"") + _BESIDE
            return (
                record._replace(payload=payload, packing=DIFFERENCE),
                Base(record, base.since, kept, base.links + 1),
            )
    return record, Base(record, record.sequence, len(state), 0)


def chained(records: Sequence[Record], bases: Mapping[bytes, Base]) -> tuple[Sequence[Record], dict[bytes, Base]]:
    """Records of one run that are to be kept next, as `lessened` has them; and the newest base of each branch then.

    A record builds on the one before it in its branch, or where that is not known on the newest of any.
    """
    less: list[Record] = []
    left = dict(bases)
    for record in records:
        kept = record
        if record.size >= SMALLEST and is_base(record):
            branch = _branch_of(record.header or b"")
            base = left.pop(branch, None) or next(reversed(left.values()), None)
            kept, left[branch] = lessened(record, base)
            if len(left) > _MOST_BRANCHES:
                del left[next(iter(left))]
        less.append(kept)
    return less, left


def _branch_of(header: bytes) -> bytes:
    """The text of a header's branch, or something else that stands for it: it only decides what is compared."""
    _, found, rest = header.partition(b'"branch":"')
    return rest.partition(b'"')[0] if found else b""


def difference(old: bytes, new: bytes) -> list[tuple[int, int, str]] | None:
    """The edits that make `new` of `old`: where, how many bytes go, which text comes. None: too much differs."""
    found = [] if old is new else _edits(old, new)
    if found is None:
        return None
    try:
        return [(at, end - at, str(new[start:stop], "utf-8")) for at, end, start, stop in found]
    except UnicodeDecodeError:  # a state is JSON by its making; one that was brought from elsewhere may be anything
        return None


def _edits(old: bytes, new: bytes) -> list[Edit] | None:
    most = len(new) // 2
    tail = agreeing_back(old, len(old), new, len(new), min(len(old), len(new)))
    old_end, new_end = len(old) - tail, len(new) - tail
    edits: list[Edit] = []
    i = j = spent = 0
    while True:
        same = agreeing(old, i, old_end, new, j, new_end)
        i, j = i + same, j + same
        if i == old_end and j == new_end:
            return edits
        again = None
        if len(edits) < _MOST_EDITS:
            again = _found_again(old, i, old_end, new, j, new_end)
        at, start = again or (old_end, new_end)
        spent += start - j
        edits.append(_on_characters(old, i, at, new, j, start))
        # What is changed all over is noticed early.
        if spent > most or (len(edits) == _MOST_EDITS // 8 and j < new_end // 8):
            return None
        if again is None:
            return _disjoint(edits)
        i, j = at, start


def _found_again(old: bytes, i: int, old_end: int, new: bytes, j: int, new_end: int) -> tuple[int, int] | None:
    """The nearest places after two that differ from which both texts agree again, if they are found."""
    # Most changes are small: to look far for what is gone costs more than to look nearby for all that may come next.
    for near, farthest in ((_CLOSE, _CLOSE), (_NEAR, _FARTHEST)):
        skip = 0
        while i + skip + _ANCHOR <= old_end and skip <= farthest:
            found = new.find(old[i + skip : i + skip + _ANCHOR], j, min(new_end, j + skip + near))
            if found >= 0:
                back = agreeing_back(old, i + skip, new, found, min(skip, found - j))
                return i + skip - back, found - back
            skip = max(8, 2 * skip)
    # Much may have come in here.
    found = new.find(old[i : i + _ANCHOR], j, new_end) if i + _ANCHOR <= old_end else -1
    return (i, found) if found >= 0 else None


def _on_characters(old: bytes, i: int, old_end: int, new: bytes, j: int, new_end: int) -> Edit:
    """The edit widened to whole characters: what stands around it agrees, and is UTF-8."""
    while i > 0 and (_is_within(old, i) or _is_within(new, j)):
        i, j = i - 1, j - 1
    while _is_within(old, old_end) or _is_within(new, new_end):
        old_end, new_end = old_end + 1, new_end + 1
    return i, old_end, j, new_end


def _is_within(text: bytes, at: int) -> bool:
    """Whether a character of UTF-8 goes on at a place."""
    return at < len(text) and text[at] & 0xC0 == 0x80


def _disjoint(edits: list[Edit]) -> list[Edit]:
    """The edits with those joined that have grown into each other."""
    joined: list[Edit] = []
    for edit in edits:
        if joined and edit[0] < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], edit[1]), joined[-1][2], max(joined[-1][3], edit[3]))
        else:
            joined.append(edit)
    return joined


# -- in ----------------------------------------------------------------------------------------------------


def read_difference(record: Record) -> Difference | None:
    """What the payload of a record says that is kept as a difference; None if it can't be read."""
    try:
        found = _decode(record.payload or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    is_sound = 0 <= found.since <= found.base < record.sequence and len(found.edits) <= _MOST_READ
    return found if is_sound else None


def whole_of(record: Record, base_of: Callable[[Difference], Record | None], known: Mapping[int, Base]) -> Base | None:
    """The record with its state whole, and the chain that it ends; None if that can't be had.

    `base_of` gives the record that a difference builds on as it is kept, and is asked along the chain; `known` are records
    that are whole already, by sequence, of which one may stand in the chain.
    """
    chain: list[tuple[Record, Difference]] = []
    member: Record | None = record
    nearest: Base | None = None
    while nearest is None:
        if member is None:
            return None
        if member.packing != DIFFERENCE:
            if not is_base(member):
                return None
            nearest = Base(member, member.sequence, member.size, 0)
            break
        said = read_difference(member)
        if said is None:
            return None
        chain.append((member, said))
        nearest = known.get(said.base)
        member = None if nearest is not None else base_of(said)
    try:
        state = bytearray(nearest.record.state() or b"")
    except DeserializeStateError:
        return None
    kept = nearest.kept
    for member, said in reversed(chain):
        if not _edit(state, said.edits) or len(state) != member.size:
            return None
        kept += len(member.payload or b"") + len(member.header or b"") + _BESIDE
    whole = record._replace(payload=bytes(state), packing="")
    return Base(whole, nearest.since, kept, nearest.links + len(chain))


def _edit(state: bytearray, edits: Sequence[tuple[int, int, str]]) -> bool:
    """Make the edits; False, with some of them made, if they do not fit."""
    bound = len(state)
    for at, count, text in reversed(edits):
        if at < 0 or count < 0 or at + count > bound:
            return False
        state[at : at + count] = text.encode()
        bound = at
    return True


def is_base(record: Record) -> bool:
    """Whether a record that is kept whole has a state that others may build on."""
    return record.header is not None and record.payload is not None and record.packing in {"", UNPACKED, ZSTD}


# -- what a store remembers --------------------------------------------------------------------------------


Reign = tuple[int, str | float]
"""An epoch of a run and its owner's nonce, or without an owner the time at which the run was made: another run of the same
id has the same epochs.
"""


class _Known(NamedTuple):
    """What is remembered of a run."""

    reign: Reign
    """In which its records are in the journal: whatever takes records out begins another."""
    bases: dict[bytes, Base]
    """By branch, the newest last."""
    last: int
    """The number of the run's newest record then, as far as is known."""
    size: int
    """Of the states, in bytes."""


class Bases:
    """For each run that a store writes to, what its next records may build on, as long as those are sure to be there."""

    def __init__(self) -> None:
        self._begin()
        watch(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._next: dict[str, _Known] = {}
        """What is on its way to the medium."""
        self._size = 0

    def _before_fork(self) -> None:
        """Nothing is shared with a child: it begins with none."""

    def _after_fork(self, is_child: bool) -> None:
        if is_child:
            self._begin()

    def lessened(self, token: Token, records: Sequence[Record]) -> Sequence[Record]:
        """The records of an append as they are to be kept. Call `settle` once they are."""
        self._next.pop(token.run_id, None)  # of an append that failed
        if all(record.size < SMALLEST for record in records):
            return records
        known, reign = self._known.get(token.run_id), _reign_of(token)
        less, bases = chained(records, known.bases if known is not None and known.reign == reign else {})
        self._next[token.run_id] = _Known(
            reign, bases, records[-1].sequence, sum([base.record.size for base in bases.values()])
        )
        return less

    def settle(self, token: Token, records: Sequence[Record]) -> None:
        """Tell that `records` are kept, which are what `lessened` was given last or what it gave."""
        coming = self._next.get(token.run_id)
        # One batch may have several appends of a run, of which not all were written.
        if coming is not None and records and (_reign_of(token), records[-1].sequence) == (coming.reign, coming.last):
            del self._next[token.run_id]
            self._remember(token.run_id, coming)

    def know(self, run_id: str, owned: Token | Row, base: Base) -> None:
        """Remember a record that is kept and stands in the journal under this owner, or as of this row."""
        branch = _branch_of(base.record.header or b"")
        self._remember(run_id, _Known(_reign_of(owned), {branch: base}, base.record.sequence, base.record.size))

    def hand_over(self, row: Row, token: Token) -> None:
        """Tell that whoever has `token` takes the run as it is in `row`."""
        known = self._known.get(token.run_id)
        if known is not None and known.reign == _reign_of(row):
            self._remember(token.run_id, known._replace(reign=_reign_of(token)))

    def part_from(self, run_id: str, unwanted: Collection[int]) -> None:
        """Tell that these records are about to go: nothing is to build on them."""
        known = self._known.get(run_id)
        if known is not None and any(base.record.sequence in unwanted for base in known.bases.values()):
            self.forget(run_id)

    def forget(self, run_id: str) -> None:
        """Remember nothing of a run."""
        self._next.pop(run_id, None)
        if run_id in self._known:
            with self._lock:
                self._forget(run_id)

    def _remember(self, run_id: str, known: _Known) -> None:
        with self._lock:
            self._forget(run_id)
            self._known[run_id] = known
            self._size += known.size
            while self._size > _MOST_BYTES and self._known:
                self._forget(next(iter(self._known)))

    def _forget(self, run_id: str) -> None:
        known = self._known.pop(run_id, None)
        if known is not None:
            self._size -= known.size


def _reign_of(owned: Token | Row) -> Reign:
    return owned.epoch, owned.nonce or (owned.created_at if isinstance(owned, Row) else "")
