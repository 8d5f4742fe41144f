"""What the demo makes of what it saw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cli_calls import Shop, shop

from milepost.cli.demo import Story, tell_story

__all__ = ["shop"]

MONTHS = [float(month) for month in range(1, 13)]
YEAR = {
    "rain": 78.0,
    "rainy_days": 9,
    "warmest": 30.0,
    "coldest": -2.0,
    "wettest_day": "2012-01-01",
    "rain_by_month": MONTHS,
}
GOOD = Story(
    run_id="demo",
    store="sqlite:///runs.db",
    killed_in="b#1",
    before=("a#1",),
    begun_before=("a#1", "a#1", "b#1"),
    after=("b#1", "c#1"),
    begun_after=("b#1", "c#1"),
    undisturbed=("a#1", "b#1", "c#1"),
    state={"years": {"2012": YEAR}, "ranking": [2012], "wettest_month": "2012-12"},
    chart=Path("rain.svg"),
    is_equal=True,
    seconds=(1.0, 1.0, 1.0),
)


def test_a_good_story_has_a_row_for_each_visit() -> None:
    assert GOOD.is_good
    assert [
        ("a#1", "ran, 2 attempts", "skipped: it is recorded"),
        ("b#1", "KILLED in the middle", "ran again"),
        ("c#1", "", "ran"),
    ] == GOOD.rows()


@pytest.mark.parametrize(
    ("story", "verdict"),
    [
        (replace(GOOD, is_equal=False), "DIFFERENT"),
        (replace(GOOD, begun_after=("a#1", "b#1", "c#1")), "WRONG"),
        (replace(GOOD, after=("c#1",)), "WRONG"),
    ],
)
def test_a_story_that_is_not_good_says_so(story: Story, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not story.is_good
    tell_story(story)
    assert capsys.readouterr().out.splitlines()[-1].startswith(verdict)


def test_a_demo_that_cannot_begin_says_why_in_one_line(shop: Shop) -> None:
    Path("file").write_text("")
    answer = shop.call("demo", "--store", "sqlite:///file/demo.db")
    assert 1 == answer.code
    assert 1 == answer.err.count("\n")
    assert "look at its folder" in answer.err


def test_a_demo_that_differs_has_exit_code_1(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.cli.demo._act", lambda *arguments: replace(GOOD, is_equal=False))
    assert 1 == shop.call("demo").code
    assert 1 == shop.call("demo", "--json").code
