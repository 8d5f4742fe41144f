"""What tests of all folders share: a PostgreSQL server, which the first test that asks for it starts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from milepost.heartbeat import heartbeat
from postgres_server import Database, Server, given_dsn

# How long an example takes is the machine's business, and no test's.
settings.register_profile("patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--freeze", action="store_true", help="write the golden journals again, after a change on purpose")


@pytest.fixture(scope="session")
def own_server() -> Iterator[Server]:
    """A server of these tests alone."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """The database of all tests: that which MILEPOST_TEST_POSTGRES names, or one of `own_server`."""
    database = Database(given_dsn() or request.getfixturevalue("own_server").dsn)
    yield database
    database.close()


@pytest.fixture
def postgres(database: Database) -> str:
    """The URL of a database in which there are no runs."""
    database.clear()
    return database.dsn


@pytest.fixture
def schema(database: Database) -> Iterator[str]:
    """The name of a schema that is not there; gone afterwards."""
    name = f"test {secrets.token_hex(4)}"
    yield name
    database.query(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture(autouse=True)
def nothing_left_to_renew() -> Iterator[None]:
    """Have the process forget leases and releases of stores that a test broke: their warnings are no other test's."""
    yield
    with heartbeat._lock:
        heartbeat._held.clear()
        heartbeat._owed.clear()
