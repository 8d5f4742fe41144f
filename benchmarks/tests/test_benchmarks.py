"""The benchmarks run from end to end on tiny sizes, and their report has its shape. Nothing here is about speed."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import scale
from benchmarks.__main__ import BENCHMARKS, main, measure
from benchmarks.report import Figure, as_json, as_table, at_least, at_most, compare
from benchmarks.rounds import Rounds, interleave
from benchmarks.setting import TINY, Setting

ROUNDS = Rounds({"ours": (3.0, 4.0, 9.0), "limit": (1.0, 2.0, 3.0), "aside": (1.0, 1.0, 1.0)})


@pytest.fixture(autouse=True)
def little_to_collect() -> Iterator[None]:
    """Garbage is collected before each turn of each side: what other tests have left does not take part in that."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def figure(**changes) -> Figure:
    given = {"measure": "ratio", "unit": "ms", "limit": "limit", "limit_is": "raw"} | changes
    return compare("some work", ROUNDS, **given)


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_tells_whole_figures(name: str, tmp_path: Path) -> None:
    places = {"disk": tmp_path / "a", "tmpfs": tmp_path / "b"}
    for folder in places.values():
        folder.mkdir()
    figures, unmeasured = measure(Setting(TINY, places), [name])
    assert figures or unmeasured
    for found in figures:
        assert found.name
        assert found.place in {"memory", *places}
        assert found.value.low <= found.value.median <= found.value.high
        assert found.ours.low <= found.ours.median <= found.ours.high
        assert (found.limit is None) == (found.limit_is == "")
    assert len(figures) == len({(found.name, found.place) for found in figures})
    assert [] == [*(tmp_path / "a").iterdir(), *(tmp_path / "b").iterdir()]


def test_sides_are_taken_in_turn_and_the_first_turn_does_not_count() -> None:
    turns = []

    def side(name: str) -> float:
        turns.append(name)
        return float(len(turns))

    found = interleave(2, {"a": lambda: side("a"), "b": lambda: side("b")})
    assert ["a", "b"] * 3 == turns
    assert {"a": (3.0, 5.0), "b": (4.0, 6.0)} == found.sides


def test_a_ratio_is_computed_within_each_round() -> None:
    value = figure().value
    assert (3.0, 2.0, 3.0) == (value.median, value.low, value.high)


def test_what_is_set_aside_is_subtracted_before_the_limit_counts() -> None:
    assert 2.0 == figure(aside="aside").value.median
    assert 1.5 == figure(aside="aside").value.low
    assert 1.0 == figure(aside="aside", measure="beyond").value.median


def test_a_goal_is_about_the_median_of_the_value() -> None:
    assert figure(goal=at_most(3)).is_reached is True
    assert figure(goal=at_most(2.9)).is_reached is False
    assert figure(aim=at_least(3.1)).is_aim_reached is False
    assert figure().is_reached is None


def test_the_table_has_a_line_for_each_figure_and_names_what_was_not_measured() -> None:
    lines = as_table([figure(goal=at_most(2)), figure(place="disk")], ["the weather"]).splitlines()
    assert "figure" in lines[0]
    assert ["some work", "memory"] == [cell.strip() for cell in lines[2].split("|")[1:3]]
    assert "3x [2..3]" in lines[2]
    assert "no" in lines[2]
    assert "WAL" in lines[-2]
    assert "Not measured: the weather." == lines[-1]


def test_the_json_says_the_same_as_the_table() -> None:
    told = json.loads(as_json([figure(goal=at_most(2))], ["the weather"]))
    assert {"machine", "figures", "unmeasured"} == set(told)
    (only,) = told["figures"]
    assert {"median": 3.0, "low": 2.0, "high": 3.0} == only["value"]
    assert ("<= 2", False, None, None) == (only["goal"], only["reached"], only["aim"], only["aim_reached"])


@pytest.mark.slow
def test_the_command_measures_only_what_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "compile", "--quick", "--json", "--dir", str(tmp_path), "--tmpfs", str(tmp_path / "none")]
    assert 0 == main(arguments)
    told = json.loads(capsys.readouterr().out)
    assert "compile 10 nodes" in {found["name"] for found in told["figures"]}
    assert any("tmpfs" in what for what in told["unmeasured"])


def test_the_command_refuses_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--dir", str(tmp_path / "none")])
    assert 2 == refused.value.code
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SQLite", "PostgreSQL"])
def test_a_large_store_is_measured_beside_a_small_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dsn = "" if kind == "SQLite" else request.getfixturevalue("own_server").dsn
    figures = [*scale.stores(scale.TINY, kind, tmp_path, dsn)]
    names = {found.name for found in figures}
    assert len(names) == len(figures)
    for verb in (
        "resume of a run",
        "append of a node",
        "a page of runs",
        "claim of 5 due runs",
        "prune of old runs, each",
    ):
        assert f"{verb}, {kind}, {scale.TINY.large} checkpoints" in names


@pytest.mark.slow
def test_worker_processes_do_each_run_once_and_are_told_by_their_number(request: pytest.FixtureRequest) -> None:
    figures = [*scale.workers(scale.TINY, request.getfixturevalue("own_server").dsn)]
    units = {"runs/s", "nodes/s", "bytes on disk a node", "bytes of log a node"}
    units |= {f"us of CPU of {who} a node" for who in ("workers", "the server")}
    assert units == {found.unit for found in figures}
    assert len(scale.TINY.processes) * len(units) == len(figures)
