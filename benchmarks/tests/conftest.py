"""The PostgreSQL server of the tests of benchmarks: the same as that of the library's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from postgres_server import Server


@pytest.fixture(scope="session")
def own_server() -> Iterator[Server]:
    """Start a server for these tests alone."""
    with Server() as server:
        yield server
