"""Every example runs as a script, twice, and says what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_example(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_every_example_is_tested_and_told_of() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert {"order.py", "agent_loop.py", "fix_and_resume.py", "weather_pipeline.py"} == names
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


def test_weather_pipeline_gives_the_result_of_the_demo(tmp_path: Path) -> None:
    out = run_example("weather_pipeline.py", tmp_path)
    assert "wettest month 2015-12; 2 storms" in out
    assert (tmp_path / "seattle-rain.svg").read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.parametrize("name", ["order.py", "agent_loop.py", "fix_and_resume.py", "weather_pipeline.py"])
def test_an_example_is_short_enough_to_read(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 300
