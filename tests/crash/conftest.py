"""Where processes that crash keep their runs, and the process that forks them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from processes import Forks

URLS = {"sqlite": "sqlite:///{}/runs.db", "file": "file://{}/runs"}
"""Of the stores that live in a folder."""


@pytest.fixture(params=[*URLS, "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that several processes can open, each of them in turn; there are no runs in it."""
    if request.param in URLS:
        return URLS[request.param].format(quote(str(tmp_path)))
    postgres: str = request.getfixturevalue("postgres")
    return postgres


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The path of the log that nodes write to."""
    return str(tmp_path / "log")


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks
