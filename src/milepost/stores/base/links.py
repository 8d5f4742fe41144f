"""The links of the newest records of the runs that a store writes to, and the lives of those runs.

Each record's header has the link of the record before it. An owner knows that link without reading, because nobody else
writes to its run as long as its token is current. It is noted before a write whose outcome is not known yet: if that write
does not take place, its number is taken again, and the link before it is still here.
"""

from __future__ import annotations

from collections.abc import Callable

from milepost.model.record import Record
from milepost.model.seal import link_of
from milepost.store import Token

_Known = tuple[Token, str, int, str, int, str]
"""The life of a token's run, and the links around the records that were sealed last for it: the number of the first of them
and the link of the one before it, the number of the last of them and its link.
"""


class Links:
    """For each run, by its owner's token, its life and the link that its next record begins with."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def before(self, token: Token, sequence: int) -> tuple[str, str] | None:
        """Return the run's life and the link of the record before the one with this number; None if that is not known."""
        known = self._known.get(token[0])
        if known is None:
            return None
        owner, life, first, prev, last, link = known
        if owner is not token and owner != token:
            return None
        if sequence == last + 1:
            return life, link
        return (life, prev) if sequence == first else None

    def life_of(self, run_id: str) -> str:
        """Return the life of a run whose records were noted last, "" if none were."""
        known = self._known.get(run_id)
        return "" if known is None else known[1]

    def note(self, token: Token, life: str, first: int, prev: str, last: int, link: str) -> None:
        """Note records of a token's owner that are about to be written."""
        self._known[token[0]] = token, life, first, prev, last, link

    def forget(self, run_id: str) -> None:
        """Forget the links of a run."""
        self._known.pop(run_id, None)


class Chaining:
    """A function that seals records of one run which follow each other. It is given the link of a record's base, or ""."""

    __slots__ = ("_seal", "link")

    def __init__(self, seal: Callable[[Record, str, str], Record], prev: str) -> None:
        self._seal = seal
        self.link = prev
        """The link of the record that was sealed last."""

    def __call__(self, record: Record, base: str) -> Record:
        """Return the record as it is stored."""
        stored = self._seal(record, base, self.link)
        self.link = link_of(stored.header)
        return stored
