"""The GitHub workflow in the docs: its steps are taken from the page and run, over a local store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from milepost import SQLiteStore

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "deploy-without-breaking-runs.md").read_text(encoding="utf-8")


@pytest.mark.wide
def test_the_workflow_of_the_docs_lets_only_code_pass_that_open_runs_go_on_with(tmp_path: Path) -> None:
    (shop,) = re.findall(r"```python\n(# shop\.py\n.*?)```", PAGE, re.DOTALL)
    (workflow,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    steps = re.findall(r"- run: (.*)", workflow)
    assert ["pip", "milepost", "./deploy.sh"] == [step.split()[0] for step in steps]
    commands = tmp_path / "bin"
    commands.mkdir()
    for path, lines in (
        (commands / "pip", "exit 0"),
        (commands / "milepost", f'exec {sys.executable} -m milepost "$@"'),
        (tmp_path / "deploy.sh", "touch deployed"),
    ):
        path.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
        path.chmod(0o755)

    def push(code: str) -> tuple[list[int], bool]:
        """Run the steps until one fails; return their exit codes, and whether the code was deployed."""
        (tmp_path / "shop.py").write_text(code, encoding="utf-8")
        (tmp_path / "deployed").unlink(missing_ok=True)
        codes: list[int] = []
        for step in steps:
            done = subprocess.run(
                ["bash", "-e", "-c", step],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "PATH": f"{commands}:{os.environ['PATH']}",
                    "RUNS_URL": "sqlite:///runs.db",
                    "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
                },
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            codes.append(done.returncode)
            if done.returncode:
                break
        return codes, (tmp_path / "deployed").exists()

    SQLiteStore(tmp_path / "runs.db").close()
    assert ([0, 6], False) == push(shop)
    namespace: dict[str, object] = {"__name__": "shop"}
    exec(shop, namespace)
    engine = namespace["engine"]()  # type: ignore[operator]
    with SQLiteStore(tmp_path / "runs.db") as store:
        engine.flows["orders"].run({}, store=store, run_id="o-1", stop_after=["price"], full=True)
    assert ([0, 0, 0], True) == push(shop)
    assert ([0, 1], False) == push(shop.replace('"charge"', '"pay"'))
    assert "o-1" in (tmp_path / "check.json").read_text(encoding="utf-8")
    assert (tmp_path / "check.xml").exists()
    assert "| orders | 1 run | refused |" in (tmp_path / "summary.md").read_text(encoding="utf-8")
