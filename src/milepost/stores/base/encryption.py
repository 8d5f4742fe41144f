"""Encryption of what records hold: the keys, and the cipher that uses them.

Records. With a signing key they are sealed as in other stores.
With an encryption key the whole record, header and payload, is encrypted. A readable header stays, of those fields that
say where a record stands and how it went, not what it says. The two are bound together: the readable header is
associated data of the encryption, the seal covers it, and it holds a keyed digest of the encrypted header.

A reader gets the record as it was given, sealed as this store seals. A record that cannot be opened is returned as it
is stored, and `Seals.check` says why: one bad record must not hide others.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import CheckpointCorruptError, CheckpointIntegrityError, MissingExtraError
from milepost.model.live import LiveEvent
from milepost.model.record import (
    CHECKPOINT,
    CHECKPOINT_VERSION,
    ENCRYPTED,
    UNENCRYPTED,
    ZSTD,
    Record,
    digest_of,
    new_record,
)
from milepost.model.seal import (
    ENCRYPTION_KEY,
    KEYED,
    PLAIN,
    SEAL_IS_GONE,
    UNSEALED,
    Code,
    Flaw,
    Seals,
    changed,
    check_keys,
)
from milepost.store import Signal
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import UnprovenRow

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from milepost.model.info import RefusedAnswer, Wait

# -- Encryption: AES-256-GCM under keys that never leave this object -------------------------------
#
# Each run has a key of its own, derived from the store's key by HKDF-SHA256 over the run's id. So nonces can be random:
# no key encrypts so much that two of its nonces are likely to be the same. Ciphertext is bound to its place: the same
# bytes at another place do not decrypt.
#
# The package that encrypts is an extra. It is imported when a key ring is built, never later, because a process that is
# forked while another thread imports cannot import any more.
# Sources: NIST SP 800-38D on random nonces, RFC 5869 on HKDF


_NONCE_SIZE = 12


class _RunKeys(msgspec.Struct, frozen=True):
    """The cipher and the code that one key of the store yields for one run."""

    cipher: AESGCM
    code: Code


class KeyRing:
    """A cipher that encrypts with the first key of `keys` (key ids and secrets of 32 bytes)
    and decrypts with all of them.

    Raises `OptionError` if a key is invalid, `MissingExtraError` if the extra `crypto` is not installed.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = check_keys("encryption_key", keys, shortest=ENCRYPTION_KEY, longest=ENCRYPTION_KEY)
        self.key_id = next(iter(self._keys))
        """The id of the key that encrypts."""
        self._tools = _load()
        self._of_run = functools.lru_cache(maxsize=1024)(self._derived)

    @property
    def key_ids(self) -> frozenset[str]:
        """The ids of all keys."""
        return frozenset(self._keys)

    def lock(self, run_id: str, plain: bytes, place: bytes) -> bytes:
        """Encrypt `plain` with the first key, bound to the run and to `place`. Return a nonce followed by the
        ciphertext."""
        nonce = os.urandom(_NONCE_SIZE)
        return nonce + self._of_run(self.key_id, run_id).cipher.encrypt(nonce, plain, place)

    def unlock(self, key_id: object, run_id: str, locked: bytes, place: bytes) -> bytes | None:
        """Decrypt what `lock` returned. Return None if the key is missing, or if anything differs from then."""
        if not isinstance(key_id, str) or key_id not in self._keys:
            return None
        try:
            return self._of_run(key_id, run_id).cipher.decrypt(locked[:_NONCE_SIZE], locked[_NONCE_SIZE:], place)
        except (self._tools.invalid, ValueError):  # the latter: too short for a nonce
            return None

    def digest(self, key_id: str, run_id: str, content: bytes) -> str:
        """Return a digest that nobody can make or compare without the key. The key must be known."""
        return KEYED + self._of_run(key_id, run_id).code.of(content)

    def _derived(self, key_id: str, run_id: str) -> _RunKeys:
        tools, info = self._tools, b"milepost 1\0" + run_id.encode()
        both = tools.hkdf(tools.sha256(), 2 * ENCRYPTION_KEY, salt=None, info=info).derive(self._keys[key_id])
        return _RunKeys(tools.cipher(both[:ENCRYPTION_KEY]), Code(both[ENCRYPTION_KEY:]))


class _Tools(msgspec.Struct, frozen=True):
    """The parts of the extra's package that are used here."""

    cipher: type[AESGCM]
    hkdf: Any
    sha256: Any
    invalid: type[Exception]
    """The exception that is raised for what does not decrypt."""


def _load() -> _Tools:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as exc:
        raise MissingExtraError(
            "encryption_key needs the package cryptography: pip install 'milepost[crypto]'", extra="crypto"
        ) from exc
    return _Tools(AESGCM, HKDF, SHA256, InvalidTag)


# -- The sealing and encryption of records, signals and texts on their way into a keyed store, and -


READABLE = {
    *("version", "run_id", "node_id", "sequence", "timestamp", "kind", "visit", "next_node", "attempt", "prev_node_id"),
    *("iteration", "duration_ms", "branch", "outcome", "missed", "epoch", "tags", "compressed", "size"),
    *("flow", "flow_version", "fingerprint", "shape", "entry", "verb", "from", "was", "crashed", "live", "removed"),
    *(
        "op",
        "error_type",
        "final",
        "given_up",
        "retry_at",
        "max_attempts",
        "status",
        "result",
        "trunk",
        "fork",
        "overrides",
        "reroute",
        "count",
    ),
    *("front", "step_type", "signal", "wake_at", "link", "life"),
}
"""The header fields that stay readable. Any other may hold what a user's code said, and is encrypted."""

_MARK = b"\0milepost "
"""The first bytes of a signal's payload that is sealed or encrypted. No JSON text begins so."""
_LOCKED = re.compile(r"aesgcm:([A-Za-z0-9._-]+):([A-Za-z0-9+/]{38,}=*)")
"""The form of an encrypted text in a row: the key's id, then at least a nonce and a tag."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def keeper_of(seals: Seals, encryption_key: Mapping[str, bytes] | None, *, allow_plain: bool) -> RecordCipher | None:
    """Build the cipher of a store, None for a store without a signing key and without an encryption key."""
    vault = None if encryption_key is None else KeyRing(encryption_key)
    return RecordCipher(seals, vault, allow_plain=allow_plain) if vault is not None or seals.is_keyed else None


class RecordCipher:
    """A cipher that seals with `seals` and, if there is a `vault`, encrypts with it.
    `allow_plain`: accept plain records."""

    __slots__ = ("_accepts_plain", "_seals", "_vault")

    def __init__(self, seals: Seals, vault: KeyRing | None, *, allow_plain: bool = False) -> None:
        self._seals = seals
        self._vault = vault
        self._accepts_plain = allow_plain or vault is None

    # -- records -----------------------------------------------------------------------------------

    def keep(self, run_id: str, record: Record, *, is_verified: bool = True) -> Record:
        """Seal or encrypt `record` for the backend.

        With `is_verified` False it gets no seal of a key: it stands for one that had none.
        """
        sequence, kind, node_id, visit, size, inner, state, packing = record
        vault = self._vault
        assert inner is not None
        if vault is None:
            header = self._seals.seal_again(inner, is_verified=is_verified)
            return new_record((sequence, kind, node_id, visit, size, header, state, packing))
        try:
            fields = record.header_fields()
        except CheckpointCorruptError:  # a store accepts any header; its reader gets the error
            fields = {}
        readable = {name: value for name, value in fields.items() if name in READABLE} or _place_of(run_id, record)
        readable["encoding"] = "zstd+aesgcm+base64" if packing == ZSTD else "aesgcm+base64"
        readable["encryption_key"] = vault.key_id
        readable["digest"] = vault.digest(vault.key_id, run_id, inner)
        header = _encode(readable)[:-1]
        shape = b"%s %d %d\n" % (packing.encode(), len(inner), state is not None)
        payload = vault.lock(run_id, b"".join((shape, inner, state or b"")), header)
        header = self._seals.seal_again(header, is_verified=is_verified)
        return new_record((sequence, kind, node_id, visit, size, header, payload, ENCRYPTED))

    def opened(self, run_id: str, record: Record) -> Record:
        """Return the record that `keep` was given, sealed. If it can't be opened, return it so
        that `Seals.check` refuses it."""
        vault = self._vault
        if record.packing != ENCRYPTED:
            return record if self._accepts_plain else record._replace(packing=UNENCRYPTED)
        if vault is None or record.header is None or record.payload is None:
            return record
        try:
            is_verified = self._seals.check_seal(run_id, record)
            fields = record.header_fields()
        except CheckpointCorruptError:
            return record
        key_id, header = fields.get("encryption_key"), record.header.rpartition(b',"seal":"')[0]
        plain = vault.unlock(key_id, run_id, record.payload, header)
        if plain is None:
            return record
        shape, _, rest = plain.partition(b"\n")
        packing, length, has_payload = shape.decode().split(" ")
        inner, payload = rest[: int(length)], rest[int(length) :]
        if vault.digest(str(key_id), run_id, inner) != fields.get("digest"):
            return record
        header = self._seals.seal_again(inner, is_verified=is_verified)
        return record._replace(header=header, payload=payload if has_payload == "1" else None, packing=packing)

    # -- signals -----------------------------------------------------------------------------------

    def keep_signal(self, run_id: str, life: str, signal: Signal) -> Signal:
        """Seal or encrypt `signal` for the backend."""
        place, vault = _place_of_signal(run_id, life, signal), self._vault
        content = b"" if signal.payload is None else b"=" + signal.payload
        if signal.by is not None:
            by = signal.by.encode()
            content = b"@%d %s%s" % (len(by), by, content)
        if vault is not None:
            content = b"%s %s" % (vault.key_id.encode(), vault.lock(run_id, content, place))
        form = b"aesgcm" if vault is not None else b"plain"
        seal = self._seals.seal_of(b"%s %s %s" % (form, place, content))
        return signal._replace(payload=b"%s%s %s %s" % (_MARK, seal, form, content), by=None)

    def opened_signal(self, run_id: str, life: str, signal: Signal, *, must_be_sealed: bool = False) -> Signal:
        """Return the signal that `keep_signal` was given. Raise `CheckpointIntegrityError` for
        another: no run may act on it. `must_be_sealed`: one without a seal of a key is not accepted either."""
        payload, place = signal.payload or b"", _place_of_signal(run_id, life, signal)
        if must_be_sealed and not payload.startswith(_MARK + KEYED.encode()):
            raise _refusal(run_id, signal, SEAL_IS_GONE)
        if not payload.startswith(_MARK):
            if not self._seals.accepts_unsealed:
                raise _refusal(run_id, signal, UNSEALED)
            if not self._accepts_plain:
                raise _refusal(run_id, signal, PLAIN)
            return signal
        seal, form, content = (*payload[len(_MARK) :].split(b" ", 2), b"", b"")[:3]
        flaw = self._seals.flaw_of(b"%s %s %s" % (form, place, content), seal)
        if flaw is None and form == b"aesgcm":
            key_id, _, locked = content.partition(b" ")
            name = key_id.decode("utf-8", "replace")
            plain = None if self._vault is None else self._vault.unlock(name, run_id, locked, place)
            flaw, content = (self._seals.locked(name), b"") if plain is None else (None, plain)
        elif flaw is None and not self._accepts_plain:
            flaw = PLAIN
        if flaw is not None:
            raise _refusal(run_id, signal, flaw)
        by: str | None = None
        if content.startswith(b"@"):
            size, _, rest = content[1:].partition(b" ")
            by, content = rest[: int(size)].decode(), rest[int(size) :]
        return signal._replace(payload=content[1:] if content else None, by=by)

    # -- live events -------------------------------------------------------------------------------

    def keep_live(self, run_id: str, event: LiveEvent) -> LiveEvent:
        """Seal or encrypt what a live event says for the backend; its place and its node stay readable."""
        place, vault, content = _place_of_live(run_id, event), self._vault, event.body
        if vault is not None:
            content = b"%s %s" % (vault.key_id.encode(), vault.lock(run_id, content, place))
        form = b"aesgcm" if vault is not None else b"plain"
        seal = self._seals.seal_of(b"%s %s %s" % (form, place, content))
        return msgspec.structs.replace(event, body=b"%s%s %s %s" % (_MARK, seal, form, content))

    def opened_live(self, run_id: str, event: LiveEvent) -> LiveEvent | None:
        """Return the event that `keep_live` was given; None for another: nobody is shown what is not proven."""
        if not event.body.startswith(_MARK):
            return event if self._seals.accepts_unsealed and self._accepts_plain else None
        place = _place_of_live(run_id, event)
        seal, form, content = (*event.body[len(_MARK) :].split(b" ", 2), b"", b"")[:3]
        if self._seals.flaw_of(b"%s %s %s" % (form, place, content), seal) is not None:
            return None
        if form == b"plain":
            return msgspec.structs.replace(event, body=content) if self._accepts_plain else None
        key_id, _, locked = content.partition(b" ")
        name = key_id.decode("utf-8", "replace")
        plain = None if self._vault is None else self._vault.unlock(name, run_id, locked, place)
        return None if plain is None else msgspec.structs.replace(event, body=plain)

    # -- the row's texts ----------------------------------------------------------------------------

    def seal_row(self, row: Row) -> Row:
        """Return `row` as the backend stores it: its texts encrypted, and with a seal.

        The seal covers the number of the newest record. A row that was put back is older than its journal.
        """
        cancel = None if row.cancel is None else _storable(row.cancel)
        row = self.keep_row(msgspec.structs.replace(row, reason=_storable(row.reason), cancel=cancel))
        content = _sealed_part_of(row)
        if self._seals.is_keyed:
            seal = self._seals.seal_of(content).decode()
        else:
            seal = self._lock(row.run_id, "seal", digest_of(content))
        return msgspec.structs.replace(row, seal=seal)

    def proven_row(self, row: Row, newest: int, *, must_be_sealed: bool = False) -> Row:
        """Return the row that `seal_row` was given, for a journal whose newest record is `newest`.

        Raise `UnprovenRow` for any other: nothing of it may be shown. `must_be_sealed`: one without a seal of a key is not
        accepted either.
        """
        is_stripped = must_be_sealed and not row.seal.startswith(KEYED)
        flaw = SEAL_IS_GONE if is_stripped else self._flaw_of_row(row)
        if flaw is None and row.seal and not row.owner and row.sequence < newest:
            flaw = changed(f"the row after record {newest}", f"an older one, after record {row.sequence}")
        if flaw is not None:
            act = flaw.act or "restore the store from a copy, or delete the run with force=True"
            raise UnprovenRow(
                f"the row of run {row.run_id!r} {flaw.what}: {act}",
                op="read",
                run_id=row.run_id,
                expected=flaw.expected,
                found=flaw.found,
            )
        return self.opened_row(row)

    def _flaw_of_row(self, row: Row) -> Flaw | None:
        content, seal, seals = _sealed_part_of(row), row.seal, self._seals
        if not self._accepts_plain and not all(map(_is_locked, _every_text(row))):
            return PLAIN
        if seal.startswith(KEYED):
            return seals.flaw_of(content, seal.encode())
        if _is_locked(seal):
            digest = self._unlock(row.run_id, "seal", seal)
            if digest is None:
                return seals.locked(seal.split(":")[1])
            if digest != digest_of(content):
                return changed("the seal of its content", "another")
        elif not seals.is_keyed:
            return None if self._accepts_plain else PLAIN
        return None if seals.accepts_unsealed else UNSEALED

    def keep_row(self, row: Row) -> Row:
        """Return `row` with its texts encrypted: reason, its cancel's reason, and those of each wait."""
        if self._vault is None or not (row.reason or row.cancel or row.waiting):
            return row
        return msgspec.structs.replace(
            row,
            reason=self._lock(row.run_id, "reason", row.reason),
            cancel=None if row.cancel is None else self._lock(row.run_id, "cancel", row.cancel),
            waiting=tuple(self._locked_wait(row.run_id, wait) for wait in row.waiting),
        )

    def opened_row(self, row: Row) -> Row:
        """Return the row that `keep_row` was given. A text that does not decrypt stays as it is stored."""
        if self._vault is None or not (row.reason or row.cancel or row.waiting):
            return row
        return msgspec.structs.replace(
            row,
            reason=self._unlock(row.run_id, "reason", row.reason) or row.reason,
            cancel=row.cancel and (self._unlock(row.run_id, "cancel", row.cancel) or row.cancel),
            waiting=tuple(self._opened_wait(row.run_id, wait) for wait in row.waiting),
        )

    def _locked_wait(self, run_id: str, wait: Wait) -> Wait:
        """Return `wait` with its texts encrypted together, in the place of its prompt."""
        prompt, schema, refused = wait.prompt, wait.schema, wait.refused
        if prompt is None and schema is None and refused is None:
            return wait
        place = f"wait {wait.wait_id}"
        is_alone = schema is None and (refused is None or not (refused.text or refused.by))
        if is_alone and _is_locked(prompt) and self._unlock(run_id, place, prompt) is None:
            return wait  # it was read as it is stored, see `_lock`
        said = None if refused is None else (refused.text, refused.by)
        text = self._lock(run_id, place, _encode((prompt, schema, said)).decode())
        return _with_texts(wait, text, None, None if refused is None else replace(refused, text="", by=None))

    def _opened_wait(self, run_id: str, wait: Wait) -> Wait:
        text = self._unlock(run_id, f"wait {wait.wait_id}", wait.prompt) if isinstance(wait.prompt, str) else None
        if text is None:
            return wait
        prompt, schema, said = _decode(text)
        refused = wait.refused
        if refused is not None and said is not None:
            refused = replace(refused, text=said[0], by=said[1])
        return _with_texts(wait, prompt, schema, refused)

    def _lock(self, run_id: str, what: str, text: str) -> str:
        vault = self._vault
        # A text that could not be decrypted was read as it is stored, and is stored again unchanged.
        if vault is None or not text or (_LOCKED.fullmatch(text) and self._unlock(run_id, what, text) is None):
            return text
        locked = vault.lock(run_id, text.encode("utf-8", "replace"), _encode(("text", run_id, what)))
        return f"aesgcm:{vault.key_id}:{base64.b64encode(locked).decode()}"

    def _unlock(self, run_id: str, what: str, text: str) -> str | None:
        """Return the plain text of an encrypted one, None if it is not encrypted or does not decrypt."""
        match = _LOCKED.fullmatch(text) if text else None
        if self._vault is None or match is None:
            return None
        try:
            locked = binascii.a2b_base64(match[2], strict_mode=True)
        except ValueError:
            return None
        plain = self._vault.unlock(match[1], run_id, locked, _encode(("text", run_id, what)))
        return None if plain is None else plain.decode()


def _storable(text: str) -> str:
    """Return a text as every backend gives it back: without what UTF-8 or a column of a database can't carry."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _every_text(row: Row) -> list[Any]:
    """Return what an encrypted row holds of people's texts, without the empty ones."""
    texts: list[Any] = [text for text in (row.reason, row.cancel) if text]
    for wait in row.waiting:
        texts += [text for text in (wait.prompt, wait.schema) if text is not None]
        if wait.refused is not None:
            texts += [text for text in (wait.refused.text, wait.refused.by) if text]
    return texts


def _with_texts(wait: Wait, prompt: Any, schema: Any, refused: RefusedAnswer | None) -> Wait:
    from milepost.model.info import Wait as WaitInfo  # few programs encrypt

    # `dataclasses.replace` takes several times as long, which lists of runs would show.
    return WaitInfo(wait.wait_id, wait.signal, prompt, wait.wake_at, schema, wait.since, refused)


def _is_locked(text: Any) -> bool:
    return isinstance(text, str) and _LOCKED.fullmatch(text) is not None


def _sealed_part_of(row: Row) -> bytes:
    """Return what the seal of a row covers, as it is stored: its place, how the run stands and what people are told.

    The other fields change without a new seal: a renewal of a lease, for one, writes no whole row.
    """
    place = ("row", *_run(row.run_id, row.life), row.sequence, row.status, row.blocked_by)
    wake_at = None if row.wake_at is None else float(row.wake_at)
    return _encode((*place, row.reason, row.cancel, row.waiting, wake_at, bool(row.degraded), row.missed))


def _place_of(run_id: str, record: Record) -> dict[str, Any]:
    place: dict[str, Any] = {"version": CHECKPOINT_VERSION, "run_id": run_id, "node_id": record.node_id}
    place["sequence"] = record.sequence
    if record.kind != CHECKPOINT:
        place["kind"] = record.kind
    return {**place, "visit": record.visit}


def _place_of_signal(run_id: str, life: str, signal: Signal) -> bytes:
    number, name, _, signal_id, to, sent_at, _ = signal
    return _encode(("signal", *_run(run_id, life), number, name, signal_id, to, float(sent_at)))


def _run(run_id: str, life: str) -> tuple[str, ...]:
    return (run_id, life) if life else (run_id,)


def _place_of_live(run_id: str, event: LiveEvent) -> bytes:
    return _encode(("live", run_id, *event.place, event.after, event.time, event.node_id, event.visit, event.attempt))


def _refusal(run_id: str, signal: Signal, flaw: Flaw) -> CheckpointIntegrityError:
    act = flaw.act or "find out who did that; delete the run, or restore the store from a copy"
    return CheckpointIntegrityError(
        f"signal {signal.number} ({signal.name!r}) of run {run_id!r} {flaw.what}: {act}",
        run_id=run_id,
        expected=flaw.expected,
        found=flaw.found,
    )
