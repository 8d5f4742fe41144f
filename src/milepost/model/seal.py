"""Seals: the proof that a record is unchanged since it was written, and that its writer had the key.

A seal is the last field of a record's header and covers the header's bytes up to the comma before the seal, so it
covers digests, place and every other field too. Without a key a seal is a digest: it finds damage. With a key it is an
HMAC: nobody without the key can make one, so it finds tampering as well.

The fields before the seal prove the payload, and are checked before it is unpacked:

* `digest`: the digest of the state. A record that is stored as a difference has none.
* `stored`: the digest of the payload as it is stored, if that is not the state itself.
* `base`: of a difference, the link of the record that it builds on, so that it can't be put on another one.

`life` is the random id of the life of the run: of the time from its creation to its deletion, in one store. A run that has
the same id later or in another store has another one, so that neither can be given a record of the other.

`prev` is the link of the record before it in the journal, so that a journal is a chain and no record of it can be
exchanged, left out or put elsewhere. The link of a record is its seal. A record that was written anew in another form
keeps its first seal as `link`.

`gap` stands in a record before which others were deleted: the number of the first of them, and the link of the record
before that one, "" if there is none. `prev` is the link of the last of them. So the deletion is named by a record that
stays, and the chain leads on across it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    CheckpointVersionError,
    DeserializeStateError,
    OptionError,
    shown,
)
from milepost.model.record import (
    CHECKPOINT,
    CHECKPOINT_VERSION,
    DIFFERENCE,
    ENCRYPTED,
    MISPLACED,
    NOT_JSON,
    REFUSED,
    STRIPPED,
    UNENCRYPTED,
    UNLINKED,
    UNPACKED,
    VERBATIM,
    ZSTD,
    Record,
    StepHead,
    difference_head,
    digest_of,
    step_head,
)

DIGESTS = ("digest", "stored", "base", "link", "life", "prev", "gap")
"""The fields with which a store proves a record's payload and its place in the journal; see above."""
KEYED = "hmac-sha256:"
"""The beginning of a seal that was made with a key; the key's id follows."""

SHORTEST_KEY = 16
ENCRYPTION_KEY = 32
"""Number of bytes of a key that encrypts."""
_BLOCK = hashlib.sha256().block_size
_KEYED = KEYED.encode()
_BEFORE_SEAL = b',"seal":"'
_BEFORE_STORED = b',"stored":"'
_BEFORE_PREV = b',"prev":"'
_BEFORE_LIFE = b',"life":"'
_TAIL = 1024
"""Number of bytes at a header's end in which `link` stands, if it is there: a few fields of digests follow it."""
_SEALED = -len(b',"seal":"sha256:"') - 64
"""The place, from the end, at which the seal begins in a header that is sealed without a key."""
_SEAL_NAME, _SEAL = slice(-81, -65), slice(-65, -1)
_PREV_NAME = slice(-245, -229)
"""The places of `seal` and `prev`, and of the seal's digits, in a header that ends with `prev`, `digest` and `seal`, all made
without a key.
"""
_AS_ENCODED = frozenset({"", UNPACKED})
_PACKED = frozenset({ZSTD, DIFFERENCE})
_KEY_ID = r"[A-Za-z0-9._-]{1,64}"
_LINK = re.compile(r"[A-Za-z0-9._:-]{1,256}")
_BEFORE_LINK = re.compile(rb'(?:,"gap":\[(\d{1,19}),"([A-Za-z0-9._:-]*)"\])?(,"life":"[^"]*")?\Z')
"""The end of a header before its `prev`: its gap, if it has one, and its life."""
_LONGEST = 512
"""Number of bytes in which the two stand."""


def check_keys(
    option: str, keys: Mapping[str, bytes], *, shortest: int, longest: int | None = None
) -> dict[str, bytes]:
    """Return a copy of `keys`: key ids and secrets. `OptionError` for anything else; no message shows a secret."""
    problem = ""
    if not isinstance(keys, Mapping):
        problem = f"is a mapping of key ids to bytes, not {type(keys).__name__}"
    elif not keys:
        problem = "has no key in it"
    for key_id, secret in keys.items() if not problem else ():
        if not isinstance(key_id, str) or not re.fullmatch(_KEY_ID, key_id):
            # A text that is no key id may be a secret in the wrong place.
            problem = "has a key id that is no text of 1 to 64 letters, digits and . _ -"
        elif not isinstance(secret, bytes):
            problem = f"has {type(secret).__name__} instead of bytes as key {shown(key_id)}"
        elif len(secret) < shortest or (longest is not None and len(secret) > longest):
            wanted = f"exactly {shortest}" if longest == shortest else f"at least {shortest}"
            problem = f"has {len(secret)} bytes as key {shown(key_id)}, not {wanted}"
        if problem:
            break
    if problem:
        raise OptionError(f"{option} {problem}: give {{key id: secret}}, the key to write with first", option=option)
    return dict(keys)


class Code:
    """HMAC-SHA256 under one key: a digest of a padded key and a digest of content after another padded key.

    `hmac.digest` takes a lock of OpenSSL while other threads run: a process that is forked at that moment hangs at its next
    use. Once made, this object takes no such lock, and it takes half the time of a copied `hmac.HMAC`.
    Source: RFC 2104
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        padded = (key if len(key) <= _BLOCK else hashlib.sha256(key).digest()).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def of(self, content: bytes) -> str:
        """Return the code of `content`: 64 hex digits."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.hexdigest()


class Flaw(msgspec.Struct, frozen=True):
    """A flaw of something that was stored; `what` follows the thing's name in a sentence, `act` says what to do.

    Without an `act`, the thing was changed, and the advice depends on what it is.
    """

    what: str
    expected: str
    found: str = "none"
    act: str = ""


UNSEALED = Flaw("was written without a key", "a seal with a key", act="pass allow_unsealed=True if that is meant")
UNFOLLOWED = Flaw(
    "does not follow the record before it, one of the two was exchanged", "the link of the record before it", "another"
)
ELSEWHERE = Flaw(
    "belongs to another run, which had this id before or has it in another store", "a record of this run", "another"
)
SEAL_IS_GONE = Flaw("has no seal of a key, although other records of the run have one", "a seal with a key")
PLAIN = Flaw("was written without encryption", "encryption", act="pass allow_plain=True if that is meant")


def digests_of(record: Record, stored: Record, base: str = "", prev: str | None = None, life: str = "") -> bytes:
    """Return the header fields that prove the payload of `stored`, the form in which `record` is stored, and its place.

    `base` is the link of the record that a difference builds on, `prev` that of the record before it in the journal, `life`
    the id of the run's life.
    """
    payload = stored.payload
    before = f',"life":"{life}"' if life else ""
    if prev is not None:
        before = f'{before},"prev":"{prev}"'
    if payload is None:
        fields = before
    elif stored.packing == DIFFERENCE:
        fields = f'{before},"stored":"{digest_of(payload)}","base":"{base}"'
    elif stored.packing == ZSTD:
        fields = f'{before},"digest":"{digest_of(record.state() or b"")}","stored":"{digest_of(payload)}"'
    else:
        fields = f'{before},"digest":"{digest_of(payload)}"'
    return fields.encode()


def with_digests(record: Record, stored: Record, base: str = "") -> Record:
    """Return `stored`, the form in which `record` is stored, with its digests in the header; see `digests_of`."""
    if stored.header is None:
        return stored
    return stored._replace(header=stored.header + digests_of(record, stored, base))


def link_of(header: bytes | None) -> str:
    """Return the link of a record, from its header as it is stored.

    Of a header that has none, because it is damaged, it is a digest: the next record takes the link into its own header.
    """
    if header is None:
        return ""
    if header[_SEAL_NAME] == b',"seal":"sha256:' and header[_PREV_NAME] == b',"prev":"sha256:':
        # Nearly all records end so, and each one has its link found: a search takes longer than to make the record.
        # Between the two there is room for a digest, and for no other link.
        digits = header[_SEAL]
        if digits.isalnum():
            return f"sha256:{digits.decode()}"
    link = _link_in(header)
    return link if _LINK.fullmatch(link) else digest_of(header)


def is_link(text: str) -> bool:
    """Return whether a text has the form of a link, so that it can stand in a header, or is "", for none."""
    return not text or _LINK.fullmatch(text) is not None


def has_link(header: bytes | None, link: str) -> bool:
    """Return whether `link` names the record with this header, as it is stored."""
    return (header or b"").endswith(f',"seal":"{link}"'.encode()) or link_of(header) == link


def _link_in(header: bytes) -> str:
    """Return what a header has as the record's link."""
    if header.rfind(b'"link":"', -_TAIL) >= 0:
        with suppress(*NOT_JSON):
            link = _decode_link(header + b"}").link
            if link is not None:
                return link
    return header[header.rfind(_BEFORE_SEAL) + len(_BEFORE_SEAL) : -1].decode("utf-8", "replace")


class _Link(msgspec.Struct):
    link: str | None = None


class _Life(msgspec.Struct):
    life: str = ""


_decode_link = msgspec.json.Decoder(_Link).decode
_decode_life = msgspec.json.Decoder(_Life).decode


def prev_of(header: bytes | None) -> str | None:
    """Return the link of the record before, from a header that is not encrypted; None if it has none."""
    _, is_there, rest = (header or b"").rpartition(_BEFORE_PREV)
    return rest.partition(b'"')[0].decode("utf-8", "replace") if is_there else None


class NumberGap(NamedTuple):
    """The numbers before a record that a deletion took away."""

    first: int
    """The first of them. The last one is the number before the record."""
    link: str = ""
    """The link of the record before the first of them; "" if there is none, or if those numbers were never used."""


def gap_of(header: bytes | None) -> NumberGap | None:
    """Return the gap before a record, from a header that is not encrypted; None if it names none."""
    if header is None or b',"gap":[' not in header:  # as nearly all
        return None
    match, _ = _before_link(header)
    return NumberGap(int(match[1]), match[2].decode()) if match[1] else None


def with_gap(record: Record, gap: NumberGap) -> Record:
    """Return a record whose header, which has no seal yet, names the gap before it, and no other one."""
    header = record.header or b""
    match, end = _before_link(header)
    named = b',"gap":[%d,"%s"]' % (gap.first, gap.link.encode())
    return record._replace(header=b"".join((header[: match.start()], named, match[3] or b"", header[end:])))


def as_first_written(record: Record) -> Record:
    """Return a record with the header that it had before a deletion made it name a gap."""
    header = record.header or b""
    if gap_of(header) is None:
        return record
    match, end = _before_link(header)
    link = _link_in(header).encode()
    content = b"".join((header[: match.start()], match[3] or b"", header[end:])).rpartition(_BEFORE_SEAL)[0]
    content = content.removesuffix(b',"link":"%s"' % link)
    return record._replace(header=b'%s%s%s"' % (content, _BEFORE_SEAL, link))


def _before_link(header: bytes) -> tuple[re.Match[bytes], int]:
    end = header.rfind(_BEFORE_PREV)
    end = len(header) if end < 0 else end
    match = _BEFORE_LINK.search(header[:end], max(0, end - _LONGEST))
    assert match is not None  # all of it may be empty
    return match, end


def has_keyed_seal(header: bytes | None) -> bool:
    """Return whether a header, as it is stored, ends with a seal that was made with a key, whichever it is."""
    return (header or b"").rpartition(_BEFORE_SEAL)[2].startswith(_KEYED)


def is_of_life(record: Record, life: str) -> bool:
    """Return whether a record says that it belongs to this life of its run. Records of older releases belong to none."""
    header = record.header or b""
    at = header.rfind(_BEFORE_LIFE)
    if header.startswith(b'%s"' % life.encode(), at + len(_BEFORE_LIFE)) if at >= 0 else not life:
        return True
    with suppress(*NOT_JSON):
        # The same bytes may also stand before the name of a tag.
        return _decode_life(header + b"}").life == life
    return True  # it is damaged, and told as such


def without_seal(record: Record, link: str) -> Record:
    """Return a stored record with its header as it was before its seal, and with its link."""
    header, field = (record.header or b"").rpartition(_BEFORE_SEAL)[0], f',"link":"{link}"'.encode()
    return record._replace(header=header if field in header else header + field)


def without_digests(record: Record, link: str) -> Record:
    """Return a record that is stored as a difference with its header as it was before its digests, and with its link."""
    header = record.header or b""
    header = header[: header.rfind(_BEFORE_STORED)]
    if b'"link":"' not in header or "link" not in record.header_fields():
        header += f',"link":"{link}"'.encode()
    return record._replace(header=header)


class Seals:
    """The seals of a store: they seal the headers of records, and prove that a record is unchanged.

    With `signing_key` (key ids and secrets of at least 16 bytes) the first key seals and all verify; a record without a
    seal of such a key is refused, or with `allow_unsealed` accepted as unproven. Without keys seals are digests.
    `encryption_ids` are the ids of the store's encryption keys; errors about a record that stays encrypted need them.
    """

    __slots__ = ("_encryption_ids", "_first", "_keys", "_prefix", "accepts_unsealed", "unsealed")

    def __init__(
        self,
        signing_key: Mapping[str, bytes] | None = None,
        *,
        allow_unsealed: bool = False,
        encryption_ids: Collection[str] = (),
        unsealed: Flaw = UNSEALED,
    ) -> None:
        keys = {} if signing_key is None else check_keys("signing_key", signing_key, shortest=SHORTEST_KEY)
        self._keys = {key_id: Code(secret) for key_id, secret in keys.items()}
        self._first = next(iter(self._keys.values()), None)
        self._prefix = f"{KEYED}{next(iter(self._keys), '')}:".encode()
        self.accepts_unsealed = allow_unsealed or not self._keys
        """True if records without a seal of a key are accepted."""
        self._encryption_ids = frozenset(encryption_ids)
        self.unsealed = unsealed
        """The flaw of something without a seal of a key, where that is not accepted."""

    @property
    def is_keyed(self) -> bool:
        """True if seals prove who wrote a record, and not only that it is undamaged."""
        return self._first is not None

    @property
    def encrypts(self) -> bool:
        """True if records are encrypted, and their keys are here."""
        return bool(self._encryption_ids)

    def seal_of(self, content: bytes) -> bytes:
        """Make the seal of any bytes: `sha256:<hex>`, or with a key `hmac-sha256:<key id>:<hex>`."""
        if self._first is None:
            return b"sha256:" + hashlib.sha256(content).hexdigest().encode()
        return self._prefix + self._first.of(content).encode()

    def seal(self, header: bytes) -> bytes:
        """Return `header` (without closing brace) with its seal as the last field."""
        return b"".join((header, _BEFORE_SEAL, self.seal_of(header), b'"'))

    def sealed(self, record: Record) -> Record:
        """Return a record that the core has made with its digest and its seal."""
        record = with_digests(record, record)
        return record._replace(header=self.seal(record.header or b""))

    def restored(self, record: Record, state: bytes, *, is_verified: bool) -> Record:
        """Return a record that was stored as a difference with its whole state, whose parts were checked.

        It gets a digest and a seal as if it had been stored whole; a seal of the key only if all parts had one.
        """
        header = record.header or b""
        header = b'%s,"digest":"%s"' % (header[: header.rfind(_BEFORE_STORED)], digest_of(state).encode())
        return record._replace(header=self.seal_again(header, is_verified=is_verified), payload=state, packing="")

    def seal_again(self, header: bytes, *, is_verified: bool) -> bytes:
        """Seal what was stored before in another form, with a key only if it had a seal of a key."""
        return (self if is_verified else _UNKEYED).seal(header)

    def check_difference(self, run_id: str, record: Record) -> tuple[bool, str]:
        """Check a record that is stored as a difference as `check` does, without what it builds on.

        Returns whether it was proven, and the link of the record that it builds on.
        """
        sequence, kind, node_id, visit, _, header, payload, _ = record
        header = header or b""
        head = difference_head(header)
        if (
            head is not None
            and head.sequence == sequence
            and head.visit == visit
            and head.node_id == node_id
            and head.run_id == run_id
            and head.kind == kind
            and head.stored == digest_of(payload or b"")
            and self._is_sealed(header)
        ):
            return True, head.base
        is_verified, fields = self._checked_header(run_id, record)
        flaw = _flaw_of_stored(record, fields)
        if flaw is not None:
            raise _refusal(run_id, record, flaw)
        return is_verified, str(fields.get("base"))

    def flaw_of(self, content: bytes, seal: bytes) -> Flaw | None:
        """Return the flaw of the seal of some bytes; None if it fits and is a seal that this store accepts."""
        if not seal.startswith(_KEYED):
            if not self.accepts_unsealed:
                return self.unsealed
            expected = b"sha256:%s" % hashlib.sha256(content).hexdigest().encode()
            return None if hmac.compare_digest(expected, seal) else changed("the seal of its content", _shown(seal))
        key_id, _, code_text = seal[len(KEYED) :].decode("utf-8", "replace").partition(":")
        code = self._keys.get(key_id)
        if code is None:
            return self._unprovable(key_id, _shown(seal))
        fits = hmac.compare_digest(code.of(content).encode(), code_text.encode())
        return None if fits else changed(f"a seal of key {shown(key_id)}", _shown(seal))

    def check_seal(self, run_id: str, record: Record) -> bool:
        """Return whether the seal proves the header; `CheckpointIntegrityError` if it does not fit or is not accepted.

        False means that the record was written without a key, or from outside, and is accepted all the same.
        """
        header = record.header
        if not header:
            raise _refusal(run_id, record, UNSEALED if not self.accepts_unsealed else changed("a header", "none"))
        at = header.rfind(_BEFORE_SEAL)
        seal = header[at + len(_BEFORE_SEAL) : -1]
        is_there = at >= 0 and header.endswith(b'"')
        flaw = self.flaw_of(header[:at], seal) if is_there else changed("a seal as its header's end", "none")
        if flaw is not None:
            raise _refusal(run_id, record, flaw)
        return not self._keys or seal.startswith(_KEYED)

    def _unprovable(self, key_id: str, found: str) -> Flaw:
        what = f"is sealed with key {key_id[:64]!r}, which this store does not have"
        act = "add it to signing_key" if self._keys else "open the store with signing_key"
        return Flaw(what, "a seal that can be proven", found, act)

    def check_key(self, run_id: str, record: Record) -> None:
        """Raise `CheckpointIntegrityError` if `record` was written with a key that this store does not have.

        A store that has this key would refuse the records that this store adds to the run. The record's own integrity
        is not checked.
        """
        _, is_keyed, seal = (record.header or b"").rpartition(_BEFORE_SEAL + _KEYED)
        key_id = seal.partition(b":")[0].decode("utf-8", "replace")
        flaw = None
        if is_keyed and key_id not in self._keys:
            flaw = self._unprovable(key_id, key_id)
        elif record.packing == ENCRYPTED:
            with suppress(CheckpointCorruptError):
                flaw = self.locked(record.fields().get("encryption_key"))
        if flaw is not None and flaw.act:
            raise _refusal(run_id, record, flaw)

    def check(self, run_id: str, record: Record) -> bool:
        """Raise unless `record` is whole and at its place in `run_id`; return whether all of that was proven.

        Raises `CheckpointIntegrityError` if seal, place or digest do not fit or the key to check them is missing,
        `CheckpointCorruptError` if header or payload cannot be read, `CheckpointVersionError` if a newer release wrote
        the record. False means that the record is accepted without proof: it is from outside and has nothing to check,
        or it was written without a key.
        """
        return self.checked_fields(run_id, record)[0]

    def checked_fields(self, run_id: str, record: Record) -> tuple[bool, Mapping[str, Any]]:
        """Check a record as `check` does; return its answer and the header's fields, for readers of many records."""
        if record.packing in REFUSED:
            raise _refusal(run_id, record, _FLAWS[record.packing])
        if not record.header:
            return self.check_seal(run_id, record), {}
        is_proven, fields = self._checked_header(run_id, record)
        flaw = self.locked(fields.get("encryption_key")) if record.packing == ENCRYPTED else None
        if flaw is None:
            flaw = _flaw_of_state(record, fields)
        if flaw is not None:
            raise _refusal(run_id, record, flaw)
        # Without a key anybody may have saved bytes, and the store's digest says nothing about where they come from.
        return is_proven and (record.packing != VERBATIM or bool(self._keys or self._encryption_ids)), fields

    def has_sound_header(self, run_id: str, record: Record) -> bool:
        """Return whether the header of a record, as it is stored, has its seal and its place."""
        try:
            self._checked_header(run_id, record)
        except DeserializeStateError:
            return False
        return True

    def _checked_header(self, run_id: str, record: Record) -> tuple[bool, Mapping[str, Any]]:
        """Check version, seal and place. Return whether the seal proves them, and the header's fields."""
        fields = record.header_fields()
        version = fields.get("version")
        if isinstance(version, int) and version > CHECKPOINT_VERSION:
            # This comes first, because this release does not know what a newer one seals, and how.
            raise CheckpointVersionError(
                f"record {record.sequence} of run {run_id!r} at node {record.node_id!r} has format version {version}; "
                f"this library reads up to {CHECKPOINT_VERSION}: upgrade milepost",
                run_id=run_id,
                node_id=record.node_id,
                found=version,
                supported=CHECKPOINT_VERSION,
            )
        is_proven = self.check_seal(run_id, record)
        flaw = _misplacement(run_id, record, fields)
        if flaw is not None:
            raise _refusal(run_id, record, flaw)
        return is_proven, fields

    def checked_step(self, run_id: str, record: Record) -> StepHead | None:
        """Check a step's completion as `check` does, and return the header fields that a replay needs.

        None for every other record, damaged or not: `checked_fields` finds out what that is.
        """
        sequence, kind, node_id, visit, _, header, state, packing = record
        if kind != CHECKPOINT or header is None or state is None or packing not in _AS_ENCODED:
            return None
        head = step_head(header)
        if (
            head is None
            or head.sequence != sequence
            or head.node_id != node_id
            or head.run_id != run_id
            or head.visit != visit
            or head.digest != digest_of(state)
            or not self._is_sealed(header)
        ):
            return None
        return head

    def _is_sealed(self, header: bytes) -> bool:
        """Return whether a header ends with a seal that fits; it must be a seal of a key if this store has keys."""
        if self._first is None:
            digest = hashlib.sha256(header[:_SEALED]).hexdigest()
            return header[_SEALED:] == f',"seal":"sha256:{digest}"'.encode()
        content, _, seal = header.rpartition(_BEFORE_SEAL)
        return seal.endswith(b'"') and seal.startswith(_KEYED) and self.flaw_of(content, seal[:-1]) is None

    def locked(self, key_id: Any) -> Flaw:
        """Make the flaw of something that could not be decrypted."""
        quoted = shown(key_id)[:80]
        if isinstance(key_id, str) and key_id in self._encryption_ids:
            return changed(f"what key {quoted} decrypts", "something else")
        what = f"is encrypted with key {quoted}, which this store does not have"
        act = "add it to encryption_key" if self._encryption_ids else "open the store with encryption_key"
        return Flaw(what, "a key that decrypts it", act=act)


def seals_of_exports(seals: Seals, encryption_key: Mapping[str, bytes] | None, *, allow_plain: bool) -> Seals:
    """Return the seals of whole exports: those of the records, or in a store that only encrypts, seals of keys that are
    derived from its own.
    """
    if seals.is_keyed or encryption_key is None:
        return seals
    keys = check_keys("encryption_key", encryption_key, shortest=ENCRYPTION_KEY, longest=ENCRYPTION_KEY)
    derived = {key_id: hmac.new(key, b"milepost 1 export", "sha256").digest() for key_id, key in keys.items()}
    return Seals(derived, allow_unsealed=allow_plain, unsealed=PLAIN)


def changed(expected: str, found: str) -> Flaw:
    """Make the flaw of something that was changed after it was written."""
    return Flaw(f"was changed after it was written (expected {expected}, found {found})", expected, found)


def _misplacement(run_id: str, record: Record, fields: Mapping[str, Any]) -> Flaw | None:
    place = (run_id, record.node_id, record.sequence, record.kind, record.visit)
    found = (
        fields.get("run_id"),
        fields.get("node_id"),
        fields.get("sequence"),
        fields.get("kind", CHECKPOINT),
        fields.get("visit", 1),
    )
    return None if place == found else changed(f"place {place}", f"{found}")


def _flaw_of_state(record: Record, fields: Mapping[str, Any]) -> Flaw | None:
    if (fields.get("encoding") == VERBATIM) != (record.packing == VERBATIM):
        # Bytes saved from outside are read as an envelope. They must never pass for a state, nor a state for them.
        return changed(f"the encoding {fields.get('encoding')!r}", f"the packing {record.packing!r}")
    if record.packing in _PACKED:
        flaw = _flaw_of_stored(record, fields)
        if flaw is not None or record.packing == ZSTD:
            return flaw
    expected, state = fields.get("digest"), record.state()
    if (state is None) != (expected is None):
        return changed("a state with its digest", "one without the other")
    if state is None or digest_of(state) == expected:
        return None
    return changed(str(expected), digest_of(state))


def _flaw_of_stored(record: Record, fields: Mapping[str, Any]) -> Flaw | None:
    expected, found = str(fields.get("stored")), digest_of(record.payload or b"")
    return None if expected == found else changed(expected, found)


def _shown(seal: bytes) -> str:
    return seal.decode("utf-8", "replace")[:120]


def _refusal(run_id: str, record: Record, flaw: Flaw) -> CheckpointIntegrityError:
    act = flaw.act or "go on from the record before it with on_corrupt='previous', or restore the store from a copy"
    return CheckpointIntegrityError(
        f"record {record.sequence} of run {run_id!r} at node {record.node_id!r} {flaw.what}: {act}",
        run_id=run_id,
        node_id=record.node_id,
        sequence=record.sequence,
        expected=flaw.expected,
        found=flaw.found,
    )


_FLAWS = {UNENCRYPTED: PLAIN, UNLINKED: UNFOLLOWED, MISPLACED: ELSEWHERE, STRIPPED: SEAL_IS_GONE}
_UNKEYED = Seals()
