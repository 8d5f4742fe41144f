"""What the demo saw, as a table, a chart and a verdict."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from milepost.cli.tables import print_table
from milepost.views.text import clean

__all__ = ["Story", "tell_story"]

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_BAR = 40
"""Columns of the longest bar."""


@dataclass(frozen=True, slots=True)
class Story:
    """The facts. Visits are written node#visit; `begun_...` has one for each attempt."""

    run_id: str
    store: str
    killed_in: str
    before: tuple[str, ...]
    begun_before: tuple[str, ...]
    after: tuple[str, ...]
    begun_after: tuple[str, ...]
    undisturbed: tuple[str, ...]
    state: Any
    chart: Path
    is_equal: bool
    seconds: tuple[float, float, float]

    @property
    def repeated(self) -> tuple[str, ...]:
        """Visits that were finished before the kill and were begun again after it: there should be none."""
        return tuple(visit for visit in self.begun_after if visit in self.before)

    @property
    def is_good(self) -> bool:
        """Whether the run came to the same result, by the same way, without doing anything twice."""
        return self.is_equal and not self.repeated and (*self.before, *self.after) == self.undisturbed

    def to_dict(self) -> dict[str, Any]:
        """The story as JSON."""
        return {
            **asdict(self),
            "chart": str(self.chart),
            "skipped": list(self.before),
            "repeated": list(self.repeated),
            "ok": self.is_good,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """For each visit in order: what the killed process did, and what the resumed one did."""
        rows = [(visit, self._ran(visit, self.begun_before), "skipped: it is recorded") for visit in self.before]
        for visit in self.after:
            was_cut = visit == self.killed_in
            rows.append((visit, "KILLED in the middle" if was_cut else "", self._ran(visit, self.begun_after, was_cut)))
        return rows

    @staticmethod
    def _ran(visit: str, begun: tuple[str, ...], was_cut: bool = False) -> str:
        attempts = begun.count(visit)
        if was_cut:
            return "ran again"
        return "ran" if attempts == 1 else f"ran, {attempts} attempts"


def tell_story(story: Story) -> None:
    """Print the story."""
    print()
    styles = [
        "green" if visit in story.before else "yellow" if visit == story.killed_in else "" for visit, *_ in story.rows()
    ]
    print_table(("visit", "first process", "second process"), story.rows(), styles=styles)
    print()
    counts = (len(story.before), len(story.after), len(story.repeated))
    print("{} visits ran before the kill, {} after it, {} of the finished ones twice.".format(*counts))
    print()
    _tell_result(story.state)
    print()
    print(f"chart  {story.chart}")
    print(f"store  {clean(story.store)}")
    print(f"look   milepost show {story.run_id} --store {clean(story.store)}")
    print()
    if story.is_good:
        print("The killed run's result equals the undisturbed one's.")
    elif not story.is_equal:
        print("DIFFERENT: the killed run's result is not that of the undisturbed one.")
    else:
        print("WRONG: the result is right, but finished work ran again or was left out.")


def _tell_result(state: Any) -> None:
    years = sorted(state["years"].items())
    print_table(
        ("year", "rain mm", "rainy days", "warmest", "coldest", "wettest day"),
        [
            (year, f"{y['rain']:.1f}", y["rainy_days"], f"{y['warmest']:.1f}", f"{y['coldest']:.1f}", y["wettest_day"])
            for year, y in years
        ],
    )
    print()
    print(
        f"wettest year {state['ranking'][0]}, wettest month {state['wettest_month']}; rain by month, mean of the years:"
    )
    means = [sum(y["rain_by_month"][month] for _, y in years) / len(years) for month in range(12)]
    bar = _bar()
    for name, mean in zip(_MONTHS, means, strict=True):
        print(f"  {name} {bar * round(mean / max(means) * _BAR)} {mean:.0f} mm")


def _bar() -> str:
    """What bars are made of: a block where the output can show it."""
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#"
    return "█"
