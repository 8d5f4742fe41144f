"""A year of hourly temperatures as a graph: a map over 8759 readings, a fork into three branches, a join, and a chart.

    python temperatures.py [STORE] [--pause SECONDS]

Kill it while it runs (`kill -9`, with --pause 0.2 there is time) and start it again: only the readings and the branches
that are not recorded yet are done, and the chart is the same.

The function of the map is async. It is called 8759 times and none of the calls takes long: async calls need no threads,
and all that were done while a write was on its way go into the next one.

The data is in `data/seattle-temps.csv`: NOAA, public domain, as distributed by vega-datasets.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import math
import time
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated

from milepost import END, Graph, SQLiteStore
from milepost.events import Progress
from milepost.reducers import append

DATA = Path(__file__).parent / "data" / "seattle-temps.csv"
PAUSE = 0.0
DONE = 0  # readings that this process converted


@dataclass(frozen=True)
class Line:
    """One line of the file: local time, and degrees Fahrenheit."""

    at: datetime
    fahrenheit: float


@dataclass(frozen=True)
class Reading:
    at: datetime
    celsius: float


@dataclass(frozen=True)
class Day:
    """The degrees Celsius of one day, an hour each. The day when summer time begins has one less."""

    date: date
    hours: tuple[float, ...]

    @property
    def span(self) -> float:
        return max(self.hours) - min(self.hours)


@dataclass(frozen=True)
class Temperatures:
    """The state. Each branch sets fields of its own, and adds to `findings`, which has a reducer."""

    source: str
    chart: str
    days: tuple[Day, ...] = ()
    months: tuple[float, ...] = ()
    coldest: Day | None = None
    warmest: Day | None = None
    spans: tuple[float, ...] = ()
    findings: Annotated[list[str], append] = field(default_factory=list)


def begin(what: str) -> None:
    print(f"  {what}\n", end="", flush=True)  # one write, for branches that run at once
    time.sleep(PAUSE)


def lines(state: Temperatures) -> list[Line]:
    """The items of the map. They are recorded before the first is converted, so the file is read once."""
    begin("read")
    with open(state.source, newline="", encoding="utf-8") as file:
        return [
            Line(datetime.strptime(row["date"], "%Y/%m/%d %H:%M"), float(row["temp"])) for row in csv.DictReader(file)
        ]


async def convert(line: Line) -> Reading:
    """What is done for each item. Every result is recorded for itself."""
    global DONE
    await asyncio.sleep(PAUSE)
    DONE += 1
    return Reading(line.at, (line.fahrenheit - 32) / 1.8)


def collect(state: Temperatures, readings: list[Reading]) -> Temperatures:
    """The state after the map; the readings come in the order of the lines."""
    begin("collect")
    by_day = groupby(readings, key=lambda reading: reading.at.date())
    return replace(state, days=tuple(Day(day, tuple(one.celsius for one in hours)) for day, hours in by_day))


def averages(state: Temperatures) -> Temperatures:
    begin("averages")
    hours = {
        month: [hour for day in state.days if day.date.month == month for hour in day.hours] for month in range(1, 13)
    }
    months = tuple(map(mean, hours.values()))
    year = mean([hour for of_month in hours.values() for hour in of_month])
    finding = f"averages: {year:.1f} C, {min(months):.1f} to {max(months):.1f} C by month"
    return replace(state, months=months, findings=[*state.findings, finding])


def extremes(state: Temperatures) -> Temperatures:
    begin("extremes")
    coldest = min(state.days, key=lambda day: min(day.hours))
    warmest = max(state.days, key=lambda day: max(day.hours))
    finding = f"extremes: {min(coldest.hours):.1f} C on {coldest.date}, {max(warmest.hours):.1f} C on {warmest.date}"
    return replace(state, coldest=coldest, warmest=warmest, findings=[*state.findings, finding])


def spans(state: Temperatures) -> Temperatures:
    begin("spans")
    return replace(state, spans=tuple(day.span for day in state.days))


def widest(state: Temperatures) -> Temperatures:
    """The second node of its branch: it is given what the first one made of the branch's copy."""
    begin("widest")
    most = max(state.spans)
    day = state.days[state.spans.index(most)]
    return replace(state, findings=[*state.findings, f"spans: {most:.1f} C between night and day on {day.date}"])


def draw(state: Temperatures) -> Temperatures:
    """The join. It may run twice if its process dies, so it writes beside the file and then replaces it."""
    begin("draw")
    path = Path(state.chart)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(svg(state), encoding="utf-8")
    beside.replace(path)
    return state


def svg(state: Temperatures) -> str:
    """A bar for each day, from its coldest to its warmest hour, and a line through the averages of the months."""

    def x(number: float) -> float:
        return 40 + number * 2

    def y(celsius: float) -> float:
        return 260 - celsius * 8

    width, parts = x(len(state.days)) + 20, []
    for level in range(0, 31, 5):
        parts.append(f'<line x1="40" x2="{width - 20}" y1="{y(level)}" y2="{y(level)}" stroke="#dddddd"/>')
        parts.append(f'<text x="34" y="{y(level) + 4}" text-anchor="end" fill="#555555">{level}</text>')
    for number, day in enumerate(state.days):
        colour = "#d94801" if day == state.warmest else "#08519c" if day == state.coldest else "#9ecae1"
        parts.append(
            f'<line x1="{x(number)}" x2="{x(number)}" y1="{y(min(day.hours)):.1f}" y2="{y(max(day.hours)):.1f}" '
            f'stroke="{colour}" stroke-width="2"><title>{day.date}</title></line>'
        )
    month = len(state.days) / 12
    middles = " ".join(f"{x((n + 0.5) * month):.1f},{y(celsius):.1f}" for n, celsius in enumerate(state.months))
    parts.append(f'<polyline points="{middles}" fill="none" stroke="#252525" stroke-width="2"/>')
    for n, name in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]):
        parts.append(f'<text x="{x((n + 0.5) * month):.1f}" y="278" text-anchor="middle" fill="#555555">{name}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 290" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="290" fill="#ffffff"/>',
            '<text x="40" y="16" font-size="14">Temperatures in Seattle, 2010: days and monthly averages, in Celsius</text>',
            *parts,
            "</svg>\n",
        ]
    )


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


graph = (
    Graph(Temperatures)
    .add_map("hours", lines, convert, merge=collect, max_parallel=250)
    .add_node("averages", averages)
    .add_node("extremes", extremes)
    .add_node("spans", spans)
    .add_node("widest", widest)
    .add_node("draw", draw)
    .set_entry("hours")
    .add_edge("hours", "averages")  # three edges from one node: a fork
    .add_edge("hours", "extremes")
    .add_edge("hours", "spans")
    .add_edge("spans", "widest")
    .add_edge("averages", "draw")  # where the branches meet: the join
    .add_edge("extremes", "draw")
    .add_edge("widest", "draw")
    .add_edge("draw", END)
    .compile("temperatures")
)


def tell(event: object) -> None:
    """A hook: says how far the map is."""
    if isinstance(event, Progress) and event.done % 1000 == 0:
        print(f"  {event.done} of {event.total}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description="A year of hourly temperatures, durably.")
    parser.add_argument("store", nargs="?", default="temperatures.db")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each reading and each node takes longer")
    arguments = parser.parse_args()
    global PAUSE
    PAUSE = arguments.pause
    begins = Temperatures(str(DATA), "seattle-temperatures.svg")
    async with SQLiteStore(arguments.store) as store:
        state = await graph.arun(begins, store=store, run_id="seattle-2010", if_exists="resume", hooks=[tell])
    print(
        f"{sum(len(day.hours) for day in state.days)} readings of {len(state.days)} days; {DONE} converted by this process"
    )
    print("\n".join(state.findings))
    print(f"chart in {state.chart}")


if __name__ == "__main__":
    asyncio.run(main())
