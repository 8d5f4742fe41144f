"""Deltas: a state stored as its difference from the state of an earlier record of the same run.

A difference is JSON, `{"base": 41, "since": 7, "edits": [[1042, 0, "text"]]}`. It names the record that it builds on,
the first record that it may need, and for each edit a place in the base's state, the number of bytes to remove there
and the text to put in. It is the record's payload. The record's header has the digest of the payload and the link of the
record that it builds on, so that writing and proving cost what has changed. Readers are given the whole state.

A whole state is written once a chain is long and holds more bytes than the state does: a limit on the count alone would
let storage grow with the square of the steps. Differences are found by comparing places that should agree. A search for
the shortest text would cost more: this way a state that was replaced costs little more than its writing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from milepost.errors import DeserializeStateError
from milepost.model.record import DIFFERENCE, NOT_JSON, UNPACKED, ZSTD, Record, compress, is_compressed, unpacked
from milepost.model.rope import Rope
from milepost.model.seal import Seals, has_link, link_of
from milepost.store import Token
from milepost.stores.base.comparing import agreeing, agreeing_back
from milepost.stores.base.fence import Row
from milepost.stores.base.process_fork import watch

SMALLEST = 4096
"""Size of a state in bytes below which it is stored whole: the rest of its record weighs as much."""
_LONG = 64
"""Number of differences in a chain before another whole state may be written."""
_COMPRESSED = 1024
"""Size of a difference in bytes from which on it is compressed: a smaller one leaves room for others in its page anyway."""
_BESIDE = 128
"""Approximate number of bytes that a backend needs for a record beside its header and its payload."""
_MOST_UNPACKED = 4 * 1024 * 1024
"""Largest size in bytes of a difference that is compressed. A reader would need far more memory for the edits of a larger
one, before it can count them."""
_MOST_EDITS = 128
_MOST_READ = 4096
"""Greatest number of edits that a reader accepts in a payload."""
_FEW = 8
"""Number of edits of a difference up to which each moves the rest of the state in place. More of them move it once."""
_ANCHOR = 24
"""Number of bytes that must agree for two places to count as the same."""
_CLOSE = 256
"""Distance in bytes within which the same place is looked for first."""
_NEAR = 16 * 1024
"""Least distance in bytes within which it is looked for after that."""
_FARTHEST = 64 * 1024
"""Length in bytes of the longest removed text after which the following text is still recognised."""
_SHORT = 64
"""Length in bytes of the longest text between shared pieces of two ropes that is replaced by a longer one without a search."""
_MOST_BRANCHES = 64
"""Number of branches of a run whose newest records are remembered."""
_MOST_BYTES = 64 * 1024 * 1024
"""Total bytes of states that a store remembers as bases. The runs that were written to longest ago are forgotten first."""

Edit = tuple[int, int, int, int]
"""Begin and end of a text in the old state, then begin and end of the text in the new state that replaces it."""


class Difference(msgspec.Struct, gc=False):
    """The content of a payload that is a difference."""

    base: int
    since: int
    edits: list[tuple[int, int, str]]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Difference).decode


class Base(msgspec.Struct, frozen=True):
    """A record that others may build on, and facts about the chain that it ends."""

    record: Record
    """The record with its whole state."""
    link: str
    """The text by which records that build on it name it; see `milepost.model.seal`."""
    since: int
    """The sequence of the whole record that began the chain when it was written. Nothing before it is needed."""
    kept: int
    """Total bytes of that record's state and of all differences after it."""
    length: int
    """Number of differences in the chain."""
    is_verified: bool | None = None
    """True if all records of the chain were proven, False if one was accepted without proof; None: not checked yet."""

    def checked(self, run_id: str, seals: Seals) -> Base:
        """Return the base with `is_verified` set. Raises as `Seals.check` does."""
        if self.is_verified is not None:
            return self
        return msgspec.structs.replace(self, is_verified=seals.check(run_id, self.record))


Seal = Callable[[Record, str], Record]
"""A function that makes a record as it is stored, with digests and seal. It is given the link of the record's base, or ""."""


# -- out ---------------------------------------------------------------------------------------------------


def lessened(record: Record, base: Base | None, seal: Seal, *, compressing: bool = False) -> tuple[Record, Base]:
    """Return the record as it is stored, as a difference to `base` if that saves enough; and the record as a new base.

    A large difference is compressed if `compressing`.

    Its state must be whole, and may be a rope; its header must have no digest and no seal.
    """
    state = _state_of(record)
    if base is not None and (base.length < _LONG or base.kept <= 2 * len(state)):
        edits = difference(_state_of(base.record), state)
        payload = None if edits is None else _encode(Difference(base.record.sequence, base.since, edits))
        # A state that is compressed when it is whole must gain far more.
        if payload is not None and len(payload) <= len(state) // (8 if record.packing else 2):
            if compressing and _COMPRESSED <= len(payload) <= _MOST_UNPACKED:
                payload = min(payload, compress(payload), key=len)
            less = seal(record._replace(payload=payload, packing=DIFFERENCE), base.link)
            size = base.kept + len(payload) + len(less.header or b"") + _BESIDE
            return less, Base(record, link_of(less.header), base.since, size, base.length + 1, base.is_verified)
    whole = seal(record._replace(payload=bytes(state)) if isinstance(state, Rope) else record, "")
    return whole, Base(record, link_of(whole.header), record.sequence, len(state), 0, True)


def _state_of(record: Record) -> bytes | Rope:
    """Return the state of a record that is whole; a rope as it is."""
    state = record.payload if record.packing in {"", UNPACKED} else record.state()
    assert state is not None
    return state


def chained(
    records: Sequence[Record], bases: Mapping[bytes, Base], seal: Seal, *, compressing: bool = False
) -> tuple[tuple[Record, ...], dict[bytes, Base]]:
    """Convert the records of one run that are written next as `lessened` does, and return the newest base of each
    branch.

    A record builds on the one before it in its branch. If that one is not known, it builds on
    the newest one of any branch.
    """
    less: list[Record] = []
    left = dict(bases)
    for record in records:
        if record.size >= SMALLEST and is_base(record):
            branch = _branch_of(record.header or b"")
            base = left.pop(branch, None) or next(reversed(left.values()), None)
            stored, left[branch] = lessened(record, base, seal, compressing=compressing)
            if len(left) > _MOST_BRANCHES:
                del left[next(iter(left))]
        else:
            stored = seal(record, "")
        less.append(stored)
    return tuple(less), left


def _branch_of(header: bytes) -> bytes:
    """Return the text of a header's branch, or another text in its place: it only decides which states are compared."""
    _, mark, rest = header.partition(b'"branch":"')
    return rest.partition(b'"')[0] if mark else b""


def difference(old: bytes | Rope, new: bytes | Rope) -> list[tuple[int, int, str]] | None:
    """Return the edits that turn `old` into `new`: place, number of bytes to remove, text to put
    in. None if too much differs.

    Of two ropes only the pieces that they do not share are compared.
    """
    if old is new:
        return []
    most = len(new) // 2
    rows: list[tuple[int, bytes, bytes]] = []
    if isinstance(old, Rope) and isinstance(new, Rope):
        rows += new.changes_from(old)
    is_whole = not rows or sum([len(after) for _, _, after in rows]) > most
    if is_whole:
        rows = [(0, bytes(old), bytes(new))]
    found: list[tuple[int, int, str]] = []
    try:
        for place, before, after in rows:
            is_new = not is_whole and len(before) <= _SHORT < len(after)
            edits = None if is_new else _edits(before, after, most)
            if edits is None and is_whole:
                return None
            for at, end, start, stop in [(0, len(before), 0, len(after))] if edits is None else edits:
                found.append((place + at, end - at, str(after[start:stop], "utf-8")))
    except UnicodeDecodeError:  # our states are JSON; one that was saved from outside may be anything
        return None
    return found if len(found) <= _MOST_READ else None


def _edits(old: bytes, new: bytes, most: int) -> list[Edit] | None:
    """Return the edits that turn `old` into `new`. None if too much differs, above all more than `most` bytes."""
    tail = agreeing_back(old, len(old), new, len(new), min(len(old), len(new)))
    old_end, new_end = len(old) - tail, len(new) - tail
    edits: list[Edit] = []
    i = j = steps = 0
    while True:
        same = agreeing(old, i, old_end, new, j, new_end)
        i, j = i + same, j + same
        if i == old_end and j == new_end:
            return edits
        again = None
        if len(edits) < _MOST_EDITS:
            again = _found_again(old, i, old_end, new, j, new_end)
        at, start = again or (old_end, new_end)
        steps += start - j
        edits.append(_on_characters(old, i, at, new, j, start))
        # Stop early if the state has changed all over.
        if steps > most or (len(edits) == _MOST_EDITS // 8 and j < new_end // 8):
            return None
        if again is None:
            return _disjoint(edits)
        i, j = at, start


def _found_again(old: bytes, i: int, old_end: int, new: bytes, j: int, new_end: int) -> tuple[int, int] | None:
    """Find the nearest places after a difference from which both texts agree again. Return None if there are none."""
    # Most changes are small. A search far ahead in the old text costs more than a close search for all that may come next.
    for near, farthest in ((_CLOSE, _CLOSE), (_NEAR, _FARTHEST)):
        skip = 0
        while i + skip + _ANCHOR <= old_end and skip <= farthest:
            place = new.find(old[i + skip : i + skip + _ANCHOR], j, min(new_end, j + skip + near))
            if place >= 0:
                back = agreeing_back(old, i + skip, new, place, min(skip, place - j))
                return i + skip - back, place - back
            skip = max(8, 2 * skip)
    # A long text may have been inserted here.
    place = new.find(old[i : i + _ANCHOR], j, new_end) if i + _ANCHOR <= old_end else -1
    return (i, place) if place >= 0 else None


def _on_characters(old: bytes, i: int, old_end: int, new: bytes, j: int, new_end: int) -> Edit:
    """Widen an edit to whole characters of UTF-8. The bytes around the edit agree on both sides, and are UTF-8."""
    while i > 0 and (_is_within(old, i) or _is_within(new, j)):
        i, j = i - 1, j - 1
    while _is_within(old, old_end) or _is_within(new, new_end):
        old_end, new_end = old_end + 1, new_end + 1
    return i, old_end, j, new_end


def _is_within(text: bytes, at: int) -> bool:
    """Return whether the byte at a place continues a character of UTF-8."""
    return at < len(text) and text[at] & 0xC0 == 0x80


def _disjoint(edits: list[Edit]) -> list[Edit]:
    """Join edits that overlap now that they are widened to whole characters."""
    joined: list[Edit] = []
    for edit in edits:
        if joined and edit[0] < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], edit[1]), joined[-1][2], max(joined[-1][3], edit[3]))
        else:
            joined.append(edit)
    return joined


# -- in ----------------------------------------------------------------------------------------------------


def read_difference(record: Record) -> Difference | None:
    """Decode a record's payload as a difference; None if it can't be read."""
    payload = record.payload or b""
    try:
        fields = _decode(unpacked(payload, _MOST_UNPACKED) if is_compressed(payload) else payload)
    except (*NOT_JSON, DeserializeStateError):
        return None
    if 0 <= fields.since <= fields.base < record.sequence and len(fields.edits) <= _MOST_READ:
        return fields
    return None


LinkedRecord = tuple[Record, bytes | None]
"""One stored record of a chain, decrypted, and the header with which it is stored, which has the record's link."""


def whole_of(
    run_id: str,
    last: LinkedRecord,
    base_of: Callable[[Difference], LinkedRecord | None],
    known: Mapping[int, Base],
    seals: Seals,
) -> Base | None:
    """Restore a record's whole state, and return it with the chain that it ends; None if that is impossible.

    `base_of` returns the stored record that a difference builds on; it is called along the chain. `known` maps
    sequences to records that are whole already; one of them may be part of the chain. All records of the chain are
    proven, and that each builds on the one before it, before anything is applied.
    """
    chain: list[tuple[int, list[tuple[int, int, str]]]] = []
    member: LinkedRecord | None = last
    nearest: Base | None = None
    claimed, kept = "", 0
    is_verified = True
    try:
        while nearest is None:
            if member is None:
                return None
            record, stored = member
            if chain and not has_link(stored, claimed):
                return None
            if record.packing != DIFFERENCE:
                if not is_base(record):
                    return None
                nearest = Base(record, link_of(stored), record.sequence, record.size, 0)
                break
            is_proven, claimed = seals.check_difference(run_id, record)
            is_verified = is_verified and is_proven
            difference = read_difference(record)
            if difference is None:
                return None
            chain.append((record.size, difference.edits))
            kept += len(record.payload or b"") + len(record.header or b"") + _BESIDE
            nearest = known.get(difference.base)
            member = None if nearest is not None else base_of(difference)
        if nearest.link != claimed:
            return None
        nearest = nearest.checked(run_id, seals)
        state = bytearray(nearest.record.state() or b"")
    except DeserializeStateError:
        return None
    for size, edits in reversed(chain):
        if not _edit(state, edits, size):
            return None
    is_verified = is_verified and nearest.is_verified is True
    record, stored = last
    whole = seals.restored(record, bytes(state), is_verified=is_verified)
    link, kept = link_of(stored), nearest.kept + kept
    return Base(whole, link, nearest.since, kept, nearest.length + len(chain), is_verified)


def _edit(state: bytearray, edits: Sequence[tuple[int, int, str]], size: int) -> bool:
    """Apply the edits to `state`, which has `size` bytes then. Return False if they do not fit: it is of no use then."""
    end, is_moved_once = len(state), len(edits) > _FEW
    parts: list[bytes | bytearray] = []
    for at, count, text in reversed(edits):
        if at < 0 or count < 0 or at + count > end:
            return False
        if is_moved_once:
            parts += state[at + count : end], text.encode()
        else:
            state[at : at + count] = text.encode()
        end = at
    if parts:
        state[end:] = b"".join(reversed(parts))
    return len(state) == size


def is_base(record: Record) -> bool:
    """Return whether the state of a record, which is stored whole, may be the base of others."""
    return record.header is not None and record.payload is not None and record.packing in {"", UNPACKED, ZSTD}


# -- what a store remembers --------------------------------------------------------------------------------


Reign = tuple[int, str | float]
"""An epoch of a run, and its owner's nonce. Without an owner it is the run's creation time instead of the nonce,
because another run of the same id has the same epochs.
"""


class _Known(msgspec.Struct, frozen=True):
    """The bases that a store remembers for one run."""

    reign: Reign
    """The reign in which these records are in the journal. A new reign begins whenever records are removed."""
    bases: dict[bytes, Base]
    """The bases by branch, the newest last."""
    last: int
    """The number of the run's newest record at that time, as far as this store knows."""
    size: int
    """Total size of the states in bytes."""


class Bases:
    """For each run that a store writes to, the bases of its next records, as long as those are sure to be in the
    journal."""

    def __init__(self, *, compressing: bool = False) -> None:
        self._compressing = compressing
        self._begin()
        watch(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._next: dict[str, _Known] = {}
        """The bases that are being written to the backend."""
        self._size = 0

    def _before_fork(self) -> None:
        """Do nothing: a child starts without bases, so there is nothing to share."""

    def _after_fork(self, is_child: bool) -> None:
        if is_child:
            self._begin()

    def lessened(self, token: Token, records: Sequence[Record], seal: Seal) -> tuple[Record, ...]:
        """Return the records of an append as they are to be stored. Call `settle` once they are written."""
        self.take_back(token.run_id)
        if all(record.size < SMALLEST for record in records):
            return tuple([seal(record, "") for record in records])
        known, reign = self._known.get(token.run_id), _reign_of(token)
        less, bases = chained(
            records,
            known.bases if known is not None and known.reign == reign else {},
            seal,
            compressing=self._compressing,
        )
        self._next[token.run_id] = _Known(
            reign, bases, records[-1].sequence, sum([base.record.size for base in bases.values()])
        )
        return less

    def take_back(self, run_id: str) -> None:
        """Forget the bases of an append of a run that has failed, if there is one."""
        self._next.pop(run_id, None)

    def settle(self, token: Token, records: Sequence[Record]) -> None:
        """Confirm that `records` are written. They are what `lessened` was given last, or what it returned."""
        coming = self._next.get(token.run_id)
        # A batch may hold several appends of one run, and some of them may have been refused.
        if coming is not None and records and (_reign_of(token), records[-1].sequence) == (coming.reign, coming.last):
            del self._next[token.run_id]
            self._remember(token.run_id, coming)

    def know(self, run_id: str, owned: Token | Row, base: Base) -> None:
        """Remember a record that is in the journal under this owner, or as of this row."""
        branch = _branch_of(base.record.header or b"")
        self._remember(run_id, _Known(_reign_of(owned), {branch: base}, base.record.sequence, base.record.size))

    def hand_over(self, row: Row, token: Token) -> None:
        """Carry the bases over from the run as it is in `row` to the owner with `token`."""
        known = self._known.get(token.run_id)
        if known is not None and known.reign == _reign_of(row):
            self._remember(token.run_id, msgspec.structs.replace(known, reign=_reign_of(token)))

    def part_from(self, run_id: str, unwanted: Collection[int]) -> None:
        """Forget a run's bases if one of them is about to be deleted, so that nothing builds on it."""
        known = self._known.get(run_id)
        if known is not None and any(base.record.sequence in unwanted for base in known.bases.values()):
            self.forget(run_id)

    def forget(self, run_id: str) -> None:
        """Forget all bases of a run."""
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
