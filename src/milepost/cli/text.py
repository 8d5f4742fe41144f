"""Values as text for people and as JSON for programs. Nothing here prints."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from math import isfinite
from typing import Any

__all__ = ["ago", "clean", "duration", "error_text", "iso", "plural", "pretty", "short", "size", "to_json", "utc"]

_ENCRYPTED = re.compile(r"aesgcm:([A-Za-z0-9._-]+):[A-Za-z0-9+/]{38,}=*")
"""A text of a run's row as a store without its key gives it."""


def clean(text: object) -> str:
    """Text from a store or from user code, without what a terminal would take for a command, or nobody could read."""
    readable = _ENCRYPTED.sub(r"encrypted with key '\1'", str(text))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in readable)


def short(text: object, limit: int = 60) -> str:
    """At most `limit` characters of cleaned text."""
    cleaned = clean(text)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 3] + "..."


def error_text(error: BaseException) -> str:
    """Type and message of an error in one line."""
    return short(f"{type(error).__name__}: {error}", 160)


def iso(moment: datetime | float | None) -> str | None:
    """A time (POSIX seconds or an aware datetime) as ISO 8601 in UTC; None stays None."""
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def ago(moment: datetime) -> str:
    """A time for people, in their own zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def utc(moment: datetime) -> str:
    """A time for people of several zones, as the reasons of runs have it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(milliseconds: float | None) -> str:
    """A duration in the unit that people would choose."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def size(count: int) -> str:
    """A number of bytes."""
    if count < 1024:
        return f"{count} B"
    if count < 1024 * 1024:
        return f"{count / 1024:.1f} KB"
    if count < 1024 * 1024 * 1024:
        return f"{count / 1024 / 1024:.1f} MB"
    return f"{count / 1024 / 1024 / 1024:.1f} GB"


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def to_json(document: Any, *, is_line: bool = False) -> str:
    """A document as JSON: indented for a terminal, in one line elsewhere or with `is_line`."""
    indent = 2 if sys.stdout.isatty() and not is_line else None
    try:
        return _dumped(document, indent, allow_nan=False)
    except ValueError:
        return _dumped(_finite(document), indent)


def _dumped(value: Any, indent: int | None, **options: Any) -> str:
    # What an output of another encoding lacks, it would write with escapes that JSON does not know.
    is_utf8 = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not is_utf8, indent=indent, default=clean, **options)
    # Outside of its texts JSON has nothing that a terminal could take for a command.
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _finite(value: Any) -> Any:
    """What a node emitted, with text for the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def pretty(value: Any) -> str:
    """A JSON value, indented."""
    return _dumped(value, 2)
