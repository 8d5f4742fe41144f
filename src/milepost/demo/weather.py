"""Four years of Seattle's weather, a year at a time: which was the wettest, and which month?

A graph like one that people write: seven nodes, a loop over the years, a conditional edge (only a year with a storm has
it looked into), and a node that fails now and then under a retry policy. `graph` is a target for the command line:
`milepost run milepost.demo.weather:graph`.

The data: NOAA, public domain, as distributed by vega-datasets.
"""

from __future__ import annotations

import csv
import hashlib
import os
import time
from dataclasses import dataclass, field, replace
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from milepost import END, Context, Graph, Retry
from milepost.demo.chart import rain_chart

STORM = 50.0
"""Millimetres of rain in a day that make a storm."""
HOLD = "MILEPOST_DEMO_HOLD"
"""An environment variable that names a visit, such as summarise#3: it says so and then waits to be killed."""


@dataclass(frozen=True)
class Day:
    """One line of the data: millimetres, degrees Celsius, metres per second."""

    date: date
    rain: float
    high: float
    low: float
    wind: float
    kind: str


@dataclass(frozen=True)
class Year:
    """The figures of one year."""

    days: int
    rain: float
    rainy_days: int
    warmest: float
    coldest: float
    rain_by_month: list[float]
    wettest_day: date


@dataclass(frozen=True)
class Storm:
    """The wettest day of a year that had a storm, with the rain of the week around it."""

    date: date
    rain: float
    rain_of_week: float


@dataclass(frozen=True)
class Weather:
    """The state. `days` are those of the year that is being worked on."""

    source: str | None = None
    chart: str = "seattle-rain.svg"
    pending: tuple[int, ...] = (2012, 2013, 2014, 2015)
    rows: int = 0
    digest: str = ""
    year: int | None = None
    days: list[Day] = field(default_factory=list)
    years: dict[int, Year] = field(default_factory=dict)
    storms: list[Storm] = field(default_factory=list)
    ranking: list[int] = field(default_factory=list)
    wettest_month: str = ""


def read_data(source: str | None) -> bytes:
    """The data: of a file, or what comes with the package."""
    if source is not None:
        return Path(source).read_bytes()
    return resources.files("milepost.demo").joinpath("data", "seattle-weather.csv").read_bytes()


def survey(state: Weather) -> Weather:
    """Note which data this is about."""
    data = read_data(state.source)
    return replace(state, rows=data.count(b"\n") - 1, digest=hashlib.sha256(data).hexdigest())


def read_year(ctx: Context[Any], state: Weather) -> Weather:
    """Take the next year off the list and read its days."""
    year, *later = state.pending
    lines = csv.DictReader(read_data(state.source).decode("utf-8").splitlines())
    days = [
        Day(
            date=date.fromisoformat(line["date"].replace("/", "-")),
            rain=float(line["precipitation"]),
            high=float(line["temp_max"]),
            low=float(line["temp_min"]),
            wind=float(line["wind"]),
            kind=line["weather"],
        )
        for line in lines
        if line["date"].startswith(f"{year}/")
    ]
    ctx.progress(len(days), len(days), f"days of {year}")
    return replace(state, year=year, pending=tuple(later), days=days)


def audit(ctx: Context[Any], state: Weather) -> Weather:
    """Check the year's days. Stands in for a service that is busy at times: in odd years the first attempt fails."""
    if ctx.attempt == 1 and state.year is not None and state.year % 2:
        raise ConnectionError(f"the audit service is busy with {state.year}")
    for before, day in zip(state.days, state.days[1:], strict=False):
        if (day.date - before.date).days != 1:
            raise ValueError(f"days are missing between {before.date} and {day.date}")
    wrong = [day.date for day in state.days if day.low > day.high or day.rain < 0]
    if wrong:
        raise ValueError(f"days that can't be: {wrong}")
    return state


def summarise(ctx: Context[Any], state: Weather) -> Weather:
    """Sum the year up."""
    _hold(ctx)
    assert state.year is not None
    months = [0.0] * 12
    for day in state.days:
        months[day.date.month - 1] += day.rain
    summary = Year(
        days=len(state.days),
        rain=round(sum(months), 1),
        rainy_days=sum(day.rain > 0 for day in state.days),
        warmest=max(day.high for day in state.days),
        coldest=min(day.low for day in state.days),
        rain_by_month=[round(month, 1) for month in months],
        wettest_day=max(state.days, key=lambda day: day.rain).date,
    )
    return replace(state, years={**state.years, state.year: summary})


def inspect_storm(state: Weather) -> Weather:
    """Look into the year's wettest day and the week around it."""
    wettest = max(state.days, key=lambda day: day.rain)
    around = sum(day.rain for day in state.days if abs((day.date - wettest.date).days) <= 3)
    storm = Storm(wettest.date, wettest.rain, round(around, 1))
    return replace(state, storms=[*state.storms, storm])


def rank(state: Weather) -> Weather:
    """Put the years in order, the wettest first, and find the wettest month of all."""
    ranking = sorted(state.years, key=lambda year: -state.years[year].rain)
    months = [(rain, year, month + 1) for year in ranking for month, rain in enumerate(state.years[year].rain_by_month)]
    _, year, month = max(months)
    return replace(state, ranking=ranking, wettest_month=f"{year}-{month:02}", days=[], year=None)


def draw(state: Weather) -> Weather:
    """Write the chart. It may run twice if its process dies, so it writes beside the file and then replaces it."""
    svg = rain_chart({year: summary.rain_by_month for year, summary in sorted(state.years.items())})
    path = Path(state.chart)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(svg, encoding="utf-8")
    beside.replace(path)
    return state


def next_year(state: Weather) -> str:
    """Go on with the next year, or to the end."""
    return "read_year" if state.pending else "rank"


def after_summary(state: Weather) -> str:
    """Look into a year with a storm; else go on."""
    if max(day.rain for day in state.days) >= STORM:
        return "inspect_storm"
    return next_year(state)


def _hold(ctx: Context[Any]) -> None:
    if os.environ.get(HOLD) == f"{ctx.node_id}#{ctx.visit}":
        ctx.emit("held")
        time.sleep(60)


graph = (
    Graph(Weather)
    .add_node("survey", survey)
    .add_node("read_year", read_year)
    .add_node("audit", audit, retry=Retry(max_attempts=3, backoff=0.1))
    .add_node("summarise", summarise)
    .add_node("inspect_storm", inspect_storm)
    .add_node("rank", rank)
    .add_node("draw", draw)
    .set_entry("survey")
    .add_edge("survey", "read_year")
    .add_edge("read_year", "audit")
    .add_edge("audit", "summarise")
    .add_conditional_edge("summarise", after_summary, ["inspect_storm", "read_year", "rank"])
    .add_conditional_edge("inspect_storm", next_year, ["read_year", "rank"])
    .add_edge("rank", "draw")
    .add_edge("draw", END)
    .compile("seattle_weather")
)
