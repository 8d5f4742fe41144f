"""A password is never shown: not by an error or what caused it, not by a repr, a log, or the command line."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from cli_calls import Shop, shop

from milepost.engine.engine import Engine
from milepost.errors import MilepostError, StoreError
from milepost.stores.postgres.store import PostgresStore
from milepost.stores.url import open_store
from milepost.testing.tables import for_each

__all__ = ["shop"]  # a fixture

SECRET = "s3cr-word"
NOWHERE = "connect_timeout=2"
"""Port 1 of this machine has no server, and no name ends in .invalid. Source: RFC 2606"""

URLS = [
    f"postgresql://user:{SECRET}@127.0.0.1:1/db?{NOWHERE}",
    f"postgres://user:{SECRET}@127.0.0.1:1/db?{NOWHERE}",
    f"postgresql://127.0.0.1:1/db?password={SECRET}&{NOWHERE}",
    f"postgresql://user:{SECRET}@host.invalid/db?{NOWHERE}",
    f"postgresql://user:{SECRET}@/db?host=/no/such/folder",
    f"postgresql://user:{SECRET}@[::1/db",
    f"postgresql://user:{SECRET}@127.0.0.1:port/db",
    f"postgresql://user:{SECRET}@127.0.0.1:1/db?no_such_option=1",
    f"postgresql://user:{SECRET}@127.0.0.1:1/db?sslmode=no_such_mode",
    f"postgresql://user:%zz{SECRET}@127.0.0.1:1/db",
    f"postgresql://{SECRET}@@127.0.0.1:1/db?{NOWHERE}&password={SECRET}",
    f"postgresql:/user:{SECRET}@127.0.0.1/db",
    f"mysql://user:{SECRET}@127.0.0.1/db",
    f"sqlite://user:{SECRET}@127.0.0.1/x.db",
    f"file://user:{SECRET}@127.0.0.1/runs",
    f"user:{SECRET}@127.0.0.1/db",
    f"postgresql://user:pass@{SECRET}@127.0.0.1:1/db?{NOWHERE}",
    f"postgresql://user:pass/{SECRET}@127.0.0.1:1/db?{NOWHERE}",
    f"postgresql://user:1/{SECRET}@127.0.0.1:1/db?{NOWHERE}",
    f"host=127.0.0.1 port=1 user=user password={SECRET}",
    f"password={SECRET}",
    f"sqlite:///x.db?password={SECRET}",
    f"file:runs?password={SECRET}",
]
COMMANDS = [
    ("runs",),
    ("runs", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("show", "r1"),
    ("verify", "r1"),
    ("export", "r1"),
    ("stats",),
    ("prune", "--older-than", "1d", "--yes"),
    ("db", "status"),
    ("db", "migrate"),
]
CONNECTION_STRINGS = [
    f"host=127.0.0.1 port=1 user=user password={SECRET} {NOWHERE}",
    f"host=127.0.0.1 port=1 password='{SECRET}",
    f"password={SECRET} no_such_option=1",
    f"{SECRET}",
]


def all_that_is_told(exc: BaseException) -> str:
    """The error with everything that led to it, as any handler, log or debugger may show it."""
    told = "".join(traceback.format_exception(exc))
    seen: list[BaseException] = []
    pending: list[BaseException | None] = [exc]
    while pending:
        found = pending.pop()
        if found is None or found in seen:
            continue
        seen.append(found)
        told += repr(found) + str(found) + repr(found.args)
        if isinstance(found, MilepostError):
            told += repr(vars(found))
        pending += [found.__cause__, None if found.__suppress_context__ else found.__context__]
    return told


@pytest.fixture(autouse=True)
def _logs_show_nothing(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert SECRET not in caplog.text


@for_each("url", URLS)
def test_no_error_of_a_store_shows_the_password_in_its_url(url: str):
    with pytest.raises(MilepostError) as caught:
        open_store(url)
    assert SECRET not in all_that_is_told(caught.value)
    with pytest.raises(MilepostError) as caught:
        Engine(url).list_runs()
    assert SECRET not in all_that_is_told(caught.value)


@for_each("text", CONNECTION_STRINGS)
def test_no_error_shows_the_password_of_a_connection_string(text: str):
    with pytest.raises(MilepostError) as caught:
        PostgresStore(text)
    assert SECRET not in all_that_is_told(caught.value)


@for_each("url", URLS)
def test_the_command_line_shows_no_password(shop: Shop, url: str):
    for command in COMMANDS if url == URLS[0] else COMMANDS[:3]:  # which all open the store in one place
        answer = shop.call(*command, "--store", url)
        assert answer.code != 0
        assert SECRET not in answer.out + answer.err


def test_a_password_in_the_environment_is_not_shown_either(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILEPOST_STORE", URLS[0])
    for command in (("doctor",), ("runs",), ("run", "shop:graph", "--input", '{"id": "1"}')):
        answer = shop.call(*command)
        assert answer.code != 0
        assert SECRET not in answer.out + answer.err


def test_a_store_that_is_open_shows_neither_user_nor_password(postgres: str, shop: Shop):
    socket = postgres.partition("host=")[2]
    url = f"postgresql://postgres:{SECRET}@/postgres?host={quote(socket, safe='/')}"
    shown = [shop.call(*command, "--store", url) for command in COMMANDS]
    shown.append(shop.call("run", "shop:graph", '{"id":"1"}', "--run-id", "r0", "--store", url))
    assert shown[-1].code == 0, shown[-1]
    shown += [shop.call(*command, "--store", url) for command in (*COMMANDS, ("show", "r0"), ("history", "r0"))]
    with open_store(url) as store:
        store.save("r1", "a", b"1")
        assert SECRET not in repr(store) + str(store) + store.place
        assert "@" not in store.place
        with pytest.raises(LookupError) as missing:
            store.load("r2", "a")
    with pytest.raises(ValueError) as closed:
        store.save("r1", "a", b"1")
    assert SECRET not in all_that_is_told(missing.value) + all_that_is_told(closed.value)
    assert SECRET not in "".join(answer.out + answer.err for answer in shown)
    assert "postgresql:///postgres" in shown[0].out + shown[0].err  # with tables of other tests, or without


def test_an_error_of_the_server_shows_no_password(postgres: str):
    socket = postgres.partition("host=")[2]
    with pytest.raises(StoreError) as caught:
        open_store(f"postgresql://postgres:{SECRET}@/no_such_database?host={quote(socket, safe='/')}")
    assert SECRET not in all_that_is_told(caught.value)
