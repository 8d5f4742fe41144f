"""Encryption: AES-256-GCM under keys that never leave this object.

Each run has a key of its own, derived from the store's key by HKDF-SHA256 over the run's id. So nonces can be random:
no key encrypts so much that two of its nonces are likely to be the same. Ciphertext is bound to its place: the same
bytes at another place do not decrypt.

The package that encrypts is an extra. It is imported when a key ring is built, never later, because a process that is
forked while another thread imports cannot import any more.
Sources: NIST SP 800-38D on random nonces, RFC 5869 on HKDF
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from milepost.errors import MissingExtraError
from milepost.model.seal import KEYED, Code, check_keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["KeyRing"]

KEY_SIZE = 32
_NONCE_SIZE = 12


class _RunKeys(NamedTuple):
    """The cipher and the code that one key of the store yields for one run."""

    cipher: AESGCM
    code: Code


class KeyRing:
    """A cipher that encrypts with the first key of `keys` (key ids and secrets of 32 bytes)
    and decrypts with all of them.

    Raises `OptionError` if a key is invalid, `MissingExtraError` if the extra `crypto` is not installed.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = check_keys("encryption_key", keys, shortest=KEY_SIZE, longest=KEY_SIZE)
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
        both = tools.hkdf(tools.sha256(), 2 * KEY_SIZE, salt=None, info=info).derive(self._keys[key_id])
        return _RunKeys(tools.cipher(both[:KEY_SIZE]), Code(both[KEY_SIZE:]))


class _Tools(NamedTuple):
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
