"""The pictures of the console in the documentation: what they show is what the pages are now.

A picture is old if its page, its style sheet or the script that draws graphs is another one than when it was taken. Then
`pytest tests/browser/test_console_pictures.py --freeze` takes it again, for somebody to look at.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import NamedTuple

import console_shop as shop
import pytest
from browsing import Open, served

import milepost.console

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
DIGESTS = FOLDER / "pictures.json"
STATIC = Path(milepost.console.__file__).parent / "static"


class Picture(NamedTuple):
    path: str
    width: int
    height: int
    scheme: str


PICTURES = {
    "console-run": Picture("/runs/o-17", 1280, 1180, "light"),
    "console-runs": Picture("/runs", 1280, 800, "dark"),
    "console-waits": Picture("/waits", 390, 780, "dark"),
}


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch):
    """A console in UTC that looks the same each time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield milepost.console.console(shop.full_engine(), user=lambda request: "bea", write=lambda *asked: True)
    monkeypatch.undo()
    time.tzset()


def digest_of(application: object, picture: Picture) -> str:
    """A digest of what a picture shows: the page without what is random, and how it is drawn."""
    from starlette.testclient import TestClient

    page = TestClient(application, base_url="http://localhost").get(picture.path).text  # type: ignore[arg-type]
    page = re.sub(r'(/static/|name="signal_id" value="|data-mark=")\w+', r"\1", page)
    drawn = [(STATIC / name).read_bytes() for name in ("console.css", "graph.js")]
    return hashlib.sha256(b"\0".join([page.encode(), repr(picture).encode(), *drawn])).hexdigest()[:16]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_new(name: str, application: object, request: pytest.FixtureRequest):
    digest, known = digest_of(application, PICTURES[name]), json.loads(DIGESTS.read_text())
    if request.config.getoption("--freeze"):
        take(name, application, request.getfixturevalue("open_page"))
        DIGESTS.write_text(json.dumps({**known, name: digest}, indent=2) + "\n")
        pytest.fail(f"docs/pictures/{name}.png is written: look at it")
    assert digest == known.get(name), f"docs/pictures/{name}.png is old: take it again with --freeze, and look at it"
    assert 150_000 > (FOLDER / f"{name}.png").stat().st_size > 10_000


def take(name: str, application: object, open_page: Open) -> None:
    picture = PICTURES[name]
    with served(application) as address:
        page = open_page(
            address + picture.path,
            width=picture.width,
            height=picture.height,
            color_scheme=picture.scheme,
            reduced_motion="reduce",
        )
        page.screenshot(path=FOLDER / f"{name}.png")
