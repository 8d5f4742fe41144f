"""What keys cost: appends that are signed or encrypted, and the refusal of a small payload that was made to cost much."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import busy_seconds, interleave
from benchmarks.saving import append_each, records_of, state_of
from benchmarks.setting import Setting
from milepost import MemoryStore
from milepost.errors import CheckpointCorruptError
from milepost.model.record import compress, decompress

__all__ = ["keys"]

_MICRO = 1e6
_MEGABYTE = 1_000_000
_KEYS: dict[str, dict[str, Any]] = {
    "unsealed": {},
    "signed": {"signing_key": {"s": b"signing key, 24 bytes..."}},
    "encrypted": {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}},
}


def keys(setting: Setting) -> Iterator[Figure]:
    """Appends of 1 KB to stores in memory, and the refusal of a payload of a megabyte that unpacks to nearly a gigabyte."""
    records = records_of(state_of(1024), max(setting.size.nodes // 5, 2))

    def appending(name: str) -> float:
        return append_each(MemoryStore(**_KEYS[name]), records, busy_seconds)

    found = interleave(setting.size.rounds, {name: lambda name=name: appending(name) for name in _KEYS})  # type: ignore[misc]
    for name, most in (("signed", 10), ("encrypted", 20)):
        yield compare(
            f"append of 1 KB, {name}", found, measure="beyond", unit="us", scale=_MICRO, ours=name, limit="unsealed",
            limit_is="the same without keys", goal=at_most(most),
        )  # fmt: skip

    size = setting.size.nodes * _MEGABYTE
    dense = compress(b"milepost" * (size // 8))[:-4] + bytes(4)  # another checksum than that of its content
    dense += bytes(max(0, size // 999 - len(dense)))

    def refuse() -> None:
        with suppress(CheckpointCorruptError):
            decompress(dense, size, header=lambda: {"digest": "sha256:" + "0" * 64})
            raise AssertionError("it was not refused")

    def memory() -> float:
        tracemalloc.start()
        try:
            refuse()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    refused = interleave(1, {"seconds": lambda: busy_seconds(refuse), "memory": memory})
    what = f"a payload of {len(dense) / _MEGABYTE:.2g} MB that says it unpacks to {size // _MEGABYTE} MB"
    yield compare(f"refusal of {what}", refused, measure="ours", unit="s", ours="seconds", goal=at_most(1))
    yield compare(
        f"memory for the refusal of {what}", refused, measure="ours", unit="MB", scale=1 / _MEGABYTE, ours="memory",
        goal=at_most(64),
    )  # fmt: skip
