"""The demo, and its pipeline as a script, killed with a real SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from milepost import Retry, SQLiteStore
from milepost.demo.weather import Weather, graph

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "weather_pipeline.py"
YEAR = ("read_year", "audit", "summarise")
BEFORE = ["survey#1", "read_year#1", "audit#1", "summarise#1", "inspect_storm#1", "read_year#2", "audit#2",
          "summarise#2", "read_year#3", "audit#3"]  # fmt: skip


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "milepost", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, call(folder, "demo")


def test_the_demo_survives_and_says_so(plain: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = plain
    assert (0, "") == (done.returncode, done.stderr)
    assert "The killed run's result equals the undisturbed one's." == done.stdout.splitlines()[-1]


def test_the_demo_shows_what_ran_what_was_skipped_and_what_ran_after(
    plain: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    rows = {
        line.split()[0]: line.split(None, 1)[1] for line in plain[1].stdout.splitlines() if "#" in line.split("  ")[0]
    }
    assert all(rows[visit].endswith("skipped: it is recorded") for visit in BEFORE)
    assert rows["audit#2"].startswith("ran, 2 attempts")
    assert ["KILLED", "in", "the", "middle", "ran", "again"] == rows["summarise#3"].split()
    assert ["-", "ran"] == rows["draw#1"].split()
    assert "10 visits ran before the kill, 7 after it, 0 of the finished ones twice." in plain[1].stdout


def test_the_demo_draws_a_chart_that_is_valid(
    plain: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = plain
    chart = folder / "milepost-demo" / "killed" / "seattle-rain.svg"
    assert f"chart  {chart}" in done.stdout
    assert 48 + 1 + 4 == len(ElementTree.parse(chart).getroot().findall("{http://www.w3.org/2000/svg}rect"))


def test_the_demos_run_can_be_looked_at(plain: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = plain
    look = next(line.split()[2:] for line in done.stdout.splitlines() if line.startswith("look"))
    shown = json.loads(call(folder, *look, "--json").stdout)
    assert ("finished", 17) == (shown["run"]["status"], sum(step["visits"] for step in shown["steps"]))


def test_the_demo_with_json_is_one_document(tmp_path: Path) -> None:
    done = call(tmp_path, "demo", "--json", "--keep", "here", "--store", "sqlite:///own.db")
    document: Any = json.loads(done.stdout)
    assert (0, True, []) == (done.returncode, document["ok"], document["repeated"])
    assert (BEFORE, "summarise#3") == (document["before"], document["killed_in"])
    assert document["undisturbed"] == document["before"] + document["after"]
    assert [2014, 2012, 2015, 2013] == document["state"]["ranking"]
    assert str(tmp_path / "here" / "killed" / "seattle-rain.svg") == document["chart"]
    assert {"here", "own.db"} <= {path.name for path in tmp_path.iterdir()}


def test_the_example_goes_on_after_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE), "weather.db"]
    with subprocess.Popen([*command, "--pause", "0.2"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.strip() == "summarise#2")
        os.kill(process.pid, signal.SIGKILL)
        told_before = process.stdout.read()
    assert -signal.SIGKILL == process.returncode
    assert "mm on" not in told_before
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert 0 == done.returncode, done.stderr
    assert done.stdout.startswith("goes on at 'read_year'")
    assert "summarise#2\n" not in done.stdout
    with SQLiteStore(tmp_path / "weather.db") as store:
        visits = [(info.node_id, info.visit) for info in store.history("seattle")]
    assert len(set(visits)) == len(visits) == 17


def test_the_example_and_the_demo_come_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, str(EXAMPLE), "weather.db"], check=True, capture_output=True, timeout=60)
    shown = json.loads(call(tmp_path, "state", "seattle", "--json", "--store", "sqlite:///weather.db").stdout)
    state = graph.run(Weather(), retry=Retry(max_attempts=1))
    assert json.loads(graph._definition.codec.encode(state)) == shown["state"]
