"""The addresses of the console: what a path means, and the path of a page.

Ids are percent-encoded segments, and may hold `/`. So paths are read as they came over the wire (`raw_path`), and each
segment is decoded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urlencode

from milepost.console.page_errors import PageError

ID = "*"
"""Any one segment."""

PAGES: Mapping[tuple[str, ...], str] = {
    (): "home",
    ("runs",): "runs",
    ("runs", ID): "run",
    ("runs", ID, "at", ID): "record",
    ("runs", ID, "fork"): "fork",
    ("runs", ID, "plan"): "plan",
    ("runs", ID, "export"): "export",
    ("runs", ID, "cancel"): "confirm-cancel",
    ("runs", ID, "delete"): "confirm-delete",
    ("bulk",): "confirm-bulk",
    ("waits",): "waits",
    ("workers",): "workers",
    ("flows",): "flows",
    ("flows", ID): "flow",
    ("store",): "store",
}
"""The page at each path."""
ACTION_PATHS: Mapping[tuple[str, ...], str] = {
    **{("runs", ID, name): name for name in ("retry", "requeue", "reopen", "cancel", "answer", "fork", "delete")},
    ("bulk",): "bulk",
}
"""The action at each path, for POST."""


class Place(NamedTuple):
    """A page or an action, the ids in its path, and whether the path itself asks for JSON."""

    name: str
    ids: tuple[str, ...]
    is_json: bool = False


def read_segments(base_path: str | None, scope: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Return the decoded segments of a request's path below the console, and whether each is what was sent.

    `base_path` may still be there or not. A server that gives no `raw_path` has decoded the path, so
    that a `/` of an id can't be told from the path's own.
    """
    raw = scope.get("raw_path")
    if raw is None:
        path = below(below(scope["path"], scope.get("root_path", "")), base_path or "")
        return tuple(path.split("/")[1:]) if path != "/" else (), False
    path = below(below(raw.decode("latin-1"), quote(scope.get("root_path", ""))), base_path or "")
    try:
        parts = [unquote_to_bytes(part).decode() for part in path.split("/")[1:]]
    except UnicodeDecodeError as exc:
        raise PageError(404, "No such page", "the address is no UTF-8") from exc
    return tuple(parts) if parts != [""] else (), True


def below(path: str, root: str) -> str:
    """Return the part of a path below the root. A proxy may have taken off the first segments of both."""
    while root:
        if path == root or path.startswith(root + "/"):
            return path[len(root) :] or "/"
        _, slash, rest = root[1:].partition("/")
        root = slash + rest
    return path


def find_place(segments: Sequence[str], table: Mapping[tuple[str, ...], str]) -> Place | None:
    """Find what is at a path; None: nothing. A path without ids may end with `.json`."""
    for pattern, name in table.items():
        ids = _match(segments, pattern)
        if ids is not None:
            return Place(name, ids)
    if segments and segments[-1].endswith(".json"):
        plain = (*segments[:-1], segments[-1].removesuffix(".json"))
        if plain in table:
            return Place(table[plain], (), True)
    return None


def _match(segments: Sequence[str], pattern: Sequence[str]) -> tuple[str, ...] | None:
    if len(segments) != len(pattern) or not all(
        part == wanted or (wanted == ID and part) for part, wanted in zip(segments, pattern, strict=True)
    ):
        return None
    return tuple(part for part, wanted in zip(segments, pattern, strict=True) if wanted == ID)


def link(base: str, /, *segments: object, **query: object) -> str:
    """Return the address of a page: each segment is quoted, and values of the query that are None or empty are left out."""
    path = "/".join(quote(str(segment), safe="") for segment in segments)
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"{base}/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")
