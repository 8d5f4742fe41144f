"""The forms of a report, as files that were read by a person once. `--freeze` writes them again after a change on purpose."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from milepost.checking import CheckReport, Finding, check, lint
from milepost.checking.formats import github_commands, summary, to_junit

FOLDER = Path(__file__).parent.parent / "golden" / "check"


@pytest.fixture(scope="module")
def checked() -> tuple[CheckReport, tuple[Finding, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(FOLDER)
        patch.syspath_prepend(FOLDER)
        patch.delitem(sys.modules, "shop", raising=False)
        engine = import_module("shop").engine()
        patch.delitem(sys.modules, "shop")
        return check(engine), lint(engine.flows.values())


FORMS: dict[str, Callable[[CheckReport, tuple[Finding, ...]], str]] = {
    "report.txt": lambda report, findings: f"{report}\n",
    "report.json": lambda report, findings: json.dumps(report.to_dict(), indent=1) + "\n",
    "report.xml": to_junit,
    "strict.xml": lambda report, findings: to_junit(report, findings, strict=True, lint_error=True),
    "report.md": summary,
    "github.txt": lambda report, findings: "\n".join(github_commands(report, findings)) + "\n",
}


def test_a_report_is_as_it_was_in_each_form(checked: Any, request: pytest.FixtureRequest) -> None:
    for name, form in FORMS.items():
        text, file = form(*checked), FOLDER / name
        if request.config.getoption("--freeze"):
            file.write_text(text, encoding="utf-8")
        assert file.read_text(encoding="utf-8") == text, name


def test_junit_counts_its_cases_and_names_their_flows(checked: Any) -> None:
    for strict, expected in ((False, (6, 2, 0, 2)), (True, (6, 4, 0, 0))):
        suite = ET.fromstring(to_junit(*checked, strict=strict, lint_error=strict))
        counted = [len(suite.findall(f"testcase{tag}")) for tag in ("", "/failure", "/error", "/skipped")]
        assert [*expected] == counted
        assert [*map(str, expected)] == [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
        assert ("testsuite", {"orders", "ingest", "old::100%"}) == (
            suite.tag, {case.get("classname") for case in suite.findall("testcase")},
        )  # fmt: skip


def test_what_fails_a_check_is_an_error_for_github() -> None:
    nothing, finding = (
        CheckReport(checked=0, of=0, groups=()),
        Finding("MP001", "the time", "orders", "router", "shop.py", 3),
    )
    gone = CheckReport(checked=2, of=2, groups=(), unknown={"old": 1})
    for report, findings, level, verdict in (
        (nothing, (), {}, "Nothing was checked: "),
        (gone, (), {}, "All go on: "),
        (gone, (), {"strict": True}, "Some runs are of flows that the app does not have: "),
        (gone, (finding,), {"lint_error": True}, "The code may differ when it runs again: "),
    ):
        assert f"\n\n{verdict}" in summary(report, findings, **level)
    assert ["::warning", "::error"] == [
        line[: line.index("::1")] for level in (False, True) for line in github_commands(gone, strict=level)
    ]


def test_no_text_of_a_run_can_give_github_a_command(checked: Any) -> None:
    lines = [*github_commands(*checked)]
    assert all(line.startswith(("::error ", "::warning")) and "\n" not in line for line in lines)
    assert any("old::100%25" in line for line in lines)
    assert any("title=orders%3A 2 runs%3A refused" in line for line in lines)
