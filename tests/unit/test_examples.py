"""Every example runs as a script and says what it promises; a second run does not do again what is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from milepost.testing.tables import for_each

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = [
    "order.py",
    "agent_loop.py",
    "fix_and_resume.py",
    "transfer.py",
    "weather_pipeline.py",
    "long_running.py",
    "airports.py",
    "temperatures.py",
    "agent_graph.py",
]
SERVICES = [
    "service.py",
    "order_service.py",
    "streaming.py",
    "console_in_fastapi.py",
]  # they are started for real by the tests in tests/crash


def run_example(name: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        cwd=folder,
        env={**os.environ, "PACE": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_every_example_is_tested_and_told_of() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert {*SCRIPTS, *SERVICES} == names
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in told for name in names)


def test_order_runs_resumes_and_streams(tmp_path: Path) -> None:
    out = run_example("order.py", tmp_path)
    assert "resume_from: Order(id='o-17', total=Decimal('10.00'), paid=True)" in out
    assert "stream:      charge Order(id='o-19', total=Decimal('12.50'), paid=True)" in out
    again = run_example("order.py", tmp_path)
    assert "o-18, key" in out
    assert "o-18, key" not in again


def test_agent_loop_stops_for_approval_and_goes_on(tmp_path: Path) -> None:
    out = run_example("agent_loop.py", tmp_path)
    assert "stopped before 'tools': approve multiply([17, 23])" in out
    assert "after 3 calls of the model: It is 782." == out.splitlines()[-1]
    assert 3 == out.count("the model reads")
    assert "after 3 calls of the model: It is 782.\n" == run_example("agent_loop.py", tmp_path)


def test_fix_and_resume_loads_once(tmp_path: Path) -> None:
    out = run_example("fix_and_resume.py", tmp_path)
    assert 1 == out.count("load: slow and expensive")
    assert "refused, and nothing ran" in out
    assert "report: 3 lines, 75 in all" in out
    assert "report: 3 lines, 70 in all" in out
    assert 2 == out.count("superseded")


def test_transfer_moves_money_once_and_refuses_what_the_account_refuses(tmp_path: Path) -> None:
    out = run_example("transfer.py", tmp_path)
    balances = [line for line in out.splitlines() if "in all" in line]
    assert [
        "ada 100, ben 100, eve 100; in all 300",
        "ada 112, ben 94, eve 94; in all 300",
        "ada 112, ben 89, eve 99; in all 300",
    ] == balances
    assert "refused at 'transfer', op 'commit': CHECK constraint failed: balance >= 0" in out
    assert 20 == out.count("  transfer ")
    again = run_example("transfer.py", tmp_path)
    assert [balances[-1]] * 3 == [line for line in again.splitlines() if "in all" in line]
    assert ["  transfer 2: 1000000 from ada to eve"] == [line for line in again.splitlines() if line.startswith("  ")]


def test_weather_pipeline_gives_the_result_of_the_demo(tmp_path: Path) -> None:
    out = run_example("weather_pipeline.py", tmp_path)
    assert "wettest month 2015-12; 2 storms" in out
    assert (tmp_path / "seattle-rain.svg").read_text(encoding="utf-8").startswith("<svg ")


def test_long_running_tells_its_events_and_its_result(tmp_path: Path) -> None:
    lines = run_example("long_running.py", tmp_path).splitlines()
    assert ["WorkflowStarted", "StepStarted", "CheckpointSaved", "StepCompleted"] == [
        line.partition("(")[0] for line in lines[:4]
    ]
    assert "i1 n1 p1 t1 u1" == lines[-1]
    assert (tmp_path / ".milepost" / "checkpoints").is_dir()


def test_airports_chooses_measures_maps_and_writes_a_summary(tmp_path: Path) -> None:
    out = run_example("airports.py", tmp_path)
    summary = (tmp_path / "airports.txt").read_text(encoding="utf-8")
    assert out.endswith(summary)
    assert "208 airports, fill was chosen\nnorthernmost: International Peace Garden\n" in summary
    assert {"northernmost", "middle", "farthest", "describe ND"} < {line.strip() for line in out.splitlines()}
    assert summary == run_example("airports.py", tmp_path)


@pytest.mark.wide
def test_temperatures_maps_all_readings_and_draws_a_day_as_a_bar(tmp_path: Path) -> None:
    out = run_example("temperatures.py", tmp_path)
    assert [
        "8759 readings of 365 days; 8759 converted by this process",
        "averages: 11.1 C, 4.7 to 18.4 C by month",
        "extremes: 3.1 C on 2010-12-24, 24.4 C on 2010-07-28",
        "spans: 10.3 C between night and day on 2010-07-28",
        "chart in seattle-temperatures.svg",
    ] == out.splitlines()[-5:]
    chart = ElementTree.parse(tmp_path / "seattle-temperatures.svg")
    assert 365 == len(chart.findall(".//{*}line/{*}title"))
    assert (
        "8759 readings of 365 days; 0 converted by this process"
        == run_example("temperatures.py", tmp_path).splitlines()[0]
    )


def test_agent_graph_waits_for_approval_and_uses_its_tools_once(tmp_path: Path) -> None:
    out = run_example("agent_graph.py", tmp_path).splitlines()
    assert "waits at approve#1 for 'approval': [{'tool': 'refund', 'order': 'o-17'}]" in out
    assert "assistant: I asked for it: o-17 is refunded." == out[-1]
    assert {"weather Seattle", "weather Portland", "find_order o-17", "refund o-17"} < {line.strip() for line in out}
    assert "Let me look." in {line.strip() for line in out}  # token by token
    again = run_example("agent_graph.py", tmp_path).splitlines()
    assert [] == [line for line in again if line.startswith("  ")]
    assert out[-1] == again[-1]


def test_agent_graph_ends_while_it_waits_and_is_answered_by_another_process(tmp_path: Path) -> None:
    asked = run_example("agent_graph.py", tmp_path, "--answer", "later").splitlines()
    assert "waits at approve#1 for 'approval': [{'tool': 'refund', 'order': 'o-17'}]" == asked[-1]
    out = run_example("agent_graph.py", tmp_path, "--answer", "no").splitlines()
    assert "assistant: I asked for it: not approved: bea said no." == out[-1]
    assert ["  model reads 10 messages"] == [line for line in out if line.startswith("  ")]


@for_each("name", [*SCRIPTS, *SERVICES])
def test_an_example_is_short_enough_to_read(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 300
