"""File names for ids, and paths that stay below their root.

An ordinary id is its own file name, so that people can read a folder. Any other is replaced by its percent form and a
part of its digest. Two ids never share a name, even on file systems that fold case, and the exact id is in the file's
content. Nothing here touches a file.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import quote

from milepost.errors import StoreError

__all__ = ["below", "place_of"]

_LONGEST = 100
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789")}
)
"""Names that Windows takes for a device, whatever extension follows.

Source: https://learn.microsoft.com/windows/win32/fileio/naming-a-file
"""


def place_of(id: str) -> str:
    """Return the file name, without extension, that stands for `id`. Equal ids have the same
    name, different ids never do."""
    if _PLAIN.fullmatch(id) and len(id) <= _LONGEST and not id.endswith(".") and not _is_reserved(id):
        return id
    form = quote(id, safe="")
    if form.startswith(".") or _is_reserved(form):
        form = f"%{ord(form[0]):02X}{form[1:]}"
    return f"{form[:_LONGEST]}~{hashlib.sha256(id.encode()).hexdigest()[:16]}"


def below(root: Path, *names: str) -> Path:
    """Return the path of `names`, one component each, below `root`. Raise `StoreError` if one
    of them leads anywhere else."""
    for name in names:
        if name in {"", ".", ".."} or any(letter in name for letter in "/\\:\0"):
            raise StoreError(
                f"{name!r} names no file below {root}: what names it was changed; restore it from a copy",
                store=str(root),
                op="open",
            )
    return root.joinpath(*names)


def _is_reserved(name: str) -> bool:
    return name.partition(".")[0].lower() in _RESERVED
