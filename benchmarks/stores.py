"""Stores to be measured past the verbs: a PostgreSQL server, a store in it, and runs that are held."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from milepost import Store
from milepost.model.record import START, format_time, make_record
from milepost.store import NewRun, Token

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # where the server and the pooler are started

__all__ = ["MOMENT", "begin", "opened", "server_of"]

MOMENT = format_time(1_767_225_600.0)


def server_of() -> Any:
    """A server of one's own with its default durability, to be entered and left; None where there is none in a wheel."""
    try:
        from postgres_server import Server
    except ImportError:
        return None
    return Server({})


@contextmanager
def opened(dsn: str) -> Iterator[Store]:
    """A store in a PostgreSQL database."""
    from milepost.stores.postgres.store import PostgresStore

    with PostgresStore(dsn) as store:
        yield store


def begin(store: Store, run_id: str) -> Token:
    """Make a run that is held for ten minutes."""
    start = make_record(run_id, 0, MOMENT, START, state=b"{}", fields={"flow": "loop", "entry": "work", "epoch": 1})
    return store.create(NewRun(run_id, "loop", "0" * 16, start, 600.0, {}))
