"""New run ids and nonces: the only place where the library draws real randomness.

Source: for the layout of a run id, RFC 9562 (UUID version 7): 48 bits of milliseconds, then random bits, so that ids
made later sort later.
"""

from __future__ import annotations

import os
import uuid

__all__ = ["new_nonce", "new_run_id"]


def new_run_id(seconds: float) -> str:
    """Make a UUIDv7 for a run that begins at this POSIX time."""
    value = (int(seconds * 1000) & ((1 << 48) - 1)) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return str(uuid.UUID(int=value))


def new_nonce() -> str:
    """Make 128 random bits, as hex text."""
    return os.urandom(16).hex()
