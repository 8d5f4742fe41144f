"""`milepost console` as a process: the address, the token, the port, and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from console_runs import FLOWS, make_runs

from milepost import Engine, SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> str:
    with SQLiteStore(tmp_path / "runs.db") as store, Engine(store, flows=FLOWS) as engine:
        make_runs(engine)
    return f"sqlite:///{tmp_path / 'runs.db'}"


@contextmanager
def served(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A console's process, and what it printed when its port listened."""
    process = subprocess.Popen(
        [sys.executable, "-m", "milepost", "console", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def status_of(opener: urllib.request.OpenerDirector, address: str, data: bytes | None = None, **headers: str) -> int:
    request = urllib.request.Request(address, data, {name.replace("_", "-"): text for name, text in headers.items()})
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_the_console_lets_in_by_its_address_and_ends_with_ctrl_c(store: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with served(store, "--port", str(port)) as (process, told):
            assert told["address"].startswith("http://127.0.0.1:")
            assert f":{port}/" not in told["address"]
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            base = told["address"].partition("/?")[0]
            assert 401 == status_of(opener, f"{base}/runs")
            assert 200 == status_of(opener, told["address"])
            assert 200 == status_of(opener, f"{base}/runs/a%2Fb%20%3F%23")
            assert 421 == status_of(opener, f"{base}/runs", host="evil.example")
            assert 403 == status_of(opener, f"{base}/runs/failed/retry", b"", sec_fetch_site="same-origin")
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
    assert (0, "", "") == (process.returncode, output, errors)


def test_a_console_that_may_write_acts_as_whoever_started_it(store: str):
    token = "a token that outlives it"
    with served(store, "--write", "--port", "0", MILEPOST_CONSOLE_TOKEN=token, LOGNAME="grace") as (_, told):
        assert told["address"].endswith("?token=" + token.replace(" ", "%20"))
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        base = told["address"].partition("/?")[0]
        assert 200 == status_of(opener, told["address"])
        assert 200 == status_of(opener, f"{base}/runs/failed/retry", b"", sec_fetch_site="same-origin")
        with opener.open(f"{base}/runs/failed?format=json", timeout=60) as answer:
            values = json.load(answer)
    assert ("ready", [("requeue", "grace")]) == (
        values["run"]["status"],
        [(action["action"], action["by"]) for action in values["actions"]],
    )


@pytest.mark.parametrize(("options", "opened"), [((), "to read only"), (("--write",), "to read and write")])
def test_the_store_of_an_app_is_opened_to_write_only_if_people_may_act(
    store: str, tmp_path: Path, options: tuple[str, ...], opened: str
):
    app = tmp_path / "seen.py"
    app.write_text(f"from milepost import Engine\nengine = Engine({store!r})\n", encoding="utf-8")
    with served("--app", f"{app}:engine", "--port", "0", *options) as (_, told):
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        assert 200 == status_of(opener, told["address"])
        with opener.open(told["address"].partition("/?")[0] + "/store?format=json", timeout=60) as answer:
            facts = {fact["name"]: fact["value"] for fact in json.load(answer)["facts"]}
    assert opened == facts["opened"]


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "text"),
    [
        (["--host", "0.0.0.0"], {}, 2, "needs a token: set MILEPOST_CONSOLE_TOKEN (16 characters or more)"),
        ([], {"MILEPOST_CONSOLE_TOKEN": "short"}, 2, "MILEPOST_CONSOLE_TOKEN has 5 characters"),
        (["--hide", "card"], {}, 2, "a hidden path begins with state, inputs"),
        (["--base-path", "x"], {}, 2, "base_path begins with /"),
        (["--host", "no.such.host.invalid"], {"MILEPOST_CONSOLE_TOKEN": "x" * 16}, 2, "can't listen at host"),
        (["--store", "memory://"], {}, 2, "not both"),
    ],
)
def test_what_can_not_be_served_is_told(
    store: str, arguments: list[str], environment: dict[str, str], code: int, text: str
):
    done = subprocess.run(
        [sys.executable, "-m", "milepost", "console", store, *arguments],
        capture_output=True, text=True, env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert code == done.returncode
    assert text in done.stderr
    assert not re.search("Traceback", done.stderr)
