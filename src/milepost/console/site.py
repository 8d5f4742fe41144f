"""The values that every page of a console works with: the engine, who may do what, and what is hidden."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qs

from starlette.requests import Request

from milepost.console.page_errors import PageError
from milepost.console.veil import Veil
from milepost.engine.engine import Engine
from milepost.errors import RunNotFoundError
from milepost.model.info import RunInfo
from milepost.store import Store

User = Callable[[Request], "str | Awaitable[str | None] | None"]
Write = Callable[["str | None", str, str], "bool | Awaitable[bool]"]


@dataclass(frozen=True, slots=True)
class Site:
    """One console: its engine, and the options that it was made with."""

    engine: Engine
    user: User | None = None
    write: Write | bool = False
    base_path: str | None = None
    veil: Veil = field(default_factory=Veil)
    store_words: tuple[str, ...] = ()
    """The option that names the store in commands that are shown."""

    @property
    def store(self) -> Store:
        """The store whose runs are shown."""
        return self.engine.store

    @property
    def now(self) -> datetime:
        """The time, by the store's clock."""
        return datetime.fromtimestamp(self.store.clock.time(), UTC)

    def find(self, run_id: str) -> RunInfo | None:
        """Return a run's row; None: there is no such run."""
        try:
            return self.store.get_run(run_id).info
        except RunNotFoundError:
            return None

    @property
    def is_read_only(self) -> bool:
        """True if the console only shows. Whether somebody may act is asked at each action."""
        return self.write is False


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as pages see it: the ids in its path, its query, its form, and who asks."""

    ids: tuple[str, ...] = ()
    query: Mapping[str, list[str]] = field(default_factory=dict)
    form: Mapping[str, list[str]] = field(default_factory=dict)
    user: str | None = None
    base: str = ""
    is_let_in: bool = False
    """True from when nothing keeps the one who asks out: only then is he told where the store is."""

    def all(self, name: str) -> list[str]:
        """Return all values of the query or the form that are not empty."""
        return [value for value in (*self.query.get(name, ()), *self.form.get(name, ())) if value]

    def text(self, name: str) -> str:
        """Return a value of the query or the form; "" if it was left out. Given twice it is a mistake."""
        values = self.all(name)
        if len(values) > 1:
            raise PageError(400, "Wrong filter", f"{name} is given {len(values)} times: give it once")
        return values[0] if values else ""

    def number(self, name: str, least: int = 0) -> int | None:
        """Return a number of the query; None if it was left out."""
        text = self.text(name)
        if not text:
            return None
        if not text.isdecimal() or int(text[:20]) < least:
            raise PageError(400, "Wrong filter", f"{name} takes a whole number from {least} on, not {text[:40]!r}")
        return int(text[:20])


def parse_fields(text: str) -> dict[str, list[str]]:
    """Read an urlencoded query or form. Raises `PageError` for one that makes no sense."""
    try:
        return parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=10_000)
    except ValueError as exc:
        raise PageError(400, "Wrong form", f"what was sent is no urlencoded form: {exc}") from exc
