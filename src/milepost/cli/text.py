"""Values as text for people and as JSON for programs. Nothing here prints."""

from __future__ import annotations

import json
import sys
from math import isfinite
from typing import Any

from milepost.views.text import clean


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
