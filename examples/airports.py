"""A pipeline over airports as a workflow: read, mend, measure several things at once, describe each state, write a summary.

    python airports.py [STORE] [--pause SECONDS]

Kill it while it runs (`kill -9`, with --pause 1 there is time) and start it again: it goes on where it was, with the parts
of `measure` and the states that are not recorded yet, and writes the same summary.

The data is in `data/airports.csv`: ourairports.com, public domain, as distributed by vega-datasets.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from milepost import SQLiteStore, Steps, branch, parallel, step, workflow

DATA = Path(__file__).parent / "data" / "airports.csv"
PAUSE = 0.0


@dataclass(frozen=True)
class Airport:
    code: str
    name: str
    state: str
    country: str
    latitude: float
    longitude: float


@dataclass(frozen=True)
class Pair:
    """Two airports, and the kilometres between them."""

    first: str
    second: str
    kilometres: float


@dataclass(frozen=True)
class State:
    code: str
    airports: list[Airport]


@dataclass(frozen=True)
class Described:
    code: str
    count: int
    closest: Pair | None


def begin(what: str) -> None:
    print(f"  {what}\n", end="", flush=True)  # one write, for steps that run at once
    time.sleep(PAUSE)


def read(path: str) -> list[Airport]:
    begin("read")
    with open(path, newline="", encoding="utf-8") as file:
        return [
            Airport(
                row["iata"],
                row["name"],
                "" if row["state"] == "NA" else row["state"],
                row["country"],
                float(row["latitude"]),
                float(row["longitude"]),
            )
            for row in csv.DictReader(file)
        ]


def fill(airports: list[Airport]) -> list[Airport]:
    """Give an airport of the USA whose state is missing the state of the nearest one that has it."""
    begin("fill")
    known = [airport for airport in airports if airport.state]
    return [
        replace(airport, state=min(known, key=lambda other: distance(airport, other)).state)
        if not airport.state and airport.country == "USA"
        else airport
        for airport in airports
    ]


def keep(airports: list[Airport]) -> list[Airport]:
    begin("keep")
    return airports


def northernmost(airports: list[Airport]) -> str:
    begin("northernmost")
    return max(airports, key=lambda airport: airport.latitude).name


def middle(airports: list[Airport]) -> tuple[float, float]:
    begin("middle")
    count = len(airports)
    return (
        round(math.fsum(airport.latitude for airport in airports) / count, 2),
        round(math.fsum(airport.longitude for airport in airports) / count, 2),
    )


def farthest(airports: list[Airport]) -> Pair:
    begin("farthest")
    return max((pair(*both) for both in combinations(airports, 2)), key=lambda found: found.kilometres)


def describe(state: State) -> Described:
    begin(f"describe {state.code}")
    pairs = (pair(*both) for both in combinations(state.airports, 2))
    return Described(
        state.code, len(state.airports), min(pairs, key=lambda found: found.kilometres) if state.airports[1:] else None
    )


def write(lines: list[str], path: str) -> int:
    begin("write")
    return Path(path).write_text("\n".join([*lines, ""]), encoding="utf-8")


def distance(one: Airport, other: Airport) -> float:
    """Kilometres along the earth."""
    north, south = math.radians(one.latitude), math.radians(other.latitude)
    east = math.radians(one.longitude - other.longitude)
    cosine = math.sin(north) * math.sin(south) + math.cos(north) * math.cos(south) * math.cos(east)
    return 6371 * math.acos(max(-1.0, min(1.0, cosine)))


def pair(one: Airport, other: Airport) -> Pair:
    return Pair(one.code, other.code, round(distance(one, other), 1))


@workflow("airports")
def summarise(source: str, target: str) -> Steps[list[str]]:
    """Each step is recorded when it is done, each part of `measure` and each state for itself."""
    airports = yield from step("read").python(read, args=(source,)).checkpoint()

    mended = yield from branch(
        "mend",
        (lambda ctx: any(not airport.state for airport in airports), step("fill").python(fill, args=(airports,))),
        (lambda ctx: True, step("keep").python(keep, args=(airports,))),
    )
    airports = mended.inner_output

    measured = yield from parallel(
        "measure",
        step("northernmost").python(northernmost, args=(airports,)),
        step("middle").python(middle, args=(airports,)),
        step("farthest").python(farthest, args=(airports,)),
    ).must_succeed()
    far: Pair = measured.get_output("farthest")

    codes = sorted({airport.state for airport in airports if airport.state})
    states = [State(code, [airport for airport in airports if airport.state == code]) for code in codes]
    described = yield from step("states").map(describe, states, key=lambda state: state.code, max_parallel=2)

    lines = [
        f"{len(airports)} airports, {mended.selected_step_name} was chosen",
        f"northernmost: {measured.get_output('northernmost')}",
        f"middle: {measured.get_output('middle')}",
        f"farthest from each other: {far.first} and {far.second}, {far.kilometres} km",
    ]
    for state in described:
        near = state.closest
        told = f", closest {near.first} and {near.second}, {near.kilometres} km" if near else ""
        lines.append(f"{state.code}: {state.count} airports{told}")
    yield from step("write").python(write, args=(lines, target))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Summarise airports, durably.")
    parser.add_argument("store", nargs="?", default="airports.db")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
    arguments = parser.parse_args()
    global PAUSE
    PAUSE = arguments.pause
    with SQLiteStore(arguments.store) as store:
        lines = summarise.run(
            store=store, run_id="airports-1", if_exists="resume", source=str(DATA), target="airports.txt"
        )
        print("\n".join(lines))


if __name__ == "__main__":
    main()
