"""What the comparison with other libraries tells: ratios, table and chart. The libraries themselves are not needed."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.children import environment
from benchmarks.peers.__main__ import main
from benchmarks.peers.chart import to_svg
from benchmarks.peers.environment import installed
from benchmarks.peers.measuring import Bench, systems_of
from benchmarks.peers.report import BEGIN, END, Comparison, Line, filled, from_json, number, ratio, to_json, to_markdown
from benchmarks.peers.systems import LIMIT, OURS, SYSTEMS
from benchmarks.peers.tasks import TASKS, Turn
from benchmarks.setting import TINY, Setting

TIME = Line(
    "some work",
    "us",
    {LIMIT: [1.0, 2.0, 2.0], OURS: [2.0, 4.0, 8.0], "dbos": [8.0, 8.0, 8.0], "burr": [1.0, 1.0, 4.0]},
    notes={"dbos": "3 of 9 runs lost"},
    chart="some <work>",
)
RATE = Line("other work", "steps/s", {OURS: [10.0], "dbos": [2.0]}, is_rate=True)
FOUND = Comparison(
    {"cores": 2}, {"dbos": "3.4.0"}, {"dbos": {"SQLite": "journal_mode=WAL"}, "llama-index": {}}, [TIME, RATE]
)


def test_a_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    assert 2.0 == ratio(TIME, "dbos")
    assert 0.5 == ratio(TIME, "burr")


def test_a_rate_is_turned_over_so_that_more_is_dearer() -> None:
    assert 5.0 == ratio(RATE, "dbos")


def test_there_is_no_ratio_where_nothing_was_measured_or_done() -> None:
    assert ratio(TIME, "langgraph") is None
    assert ratio(replace(RATE, values={OURS: [10.0], "dbos": [0.0]}), "dbos") is None


def test_numbers_have_three_digits_and_no_exponent() -> None:
    assert ["0.0123", "1.23", "12.3", "123", "1,230", "123,000", "0"] == [
        number(value) for value in (0.01234, 1.234, 12.34, 123.4, 1234.5, 123456.0, 0.0)
    ]


def test_the_table_has_a_cell_for_each_system_and_says_none_where_a_work_has_no_counterpart() -> None:
    lines = to_markdown(FOUND).splitlines()
    assert "| work | no library | Milepost, graph | DBOS | Burr |" == lines[0]
    assert "| some work, us | 2 (0.5x) | 4 (2x no library) | 8 (2x), 3 of 9 runs lost | **1 (0.5x)** |" == lines[2]
    assert "| other work, steps/s | none | 10 | 2 (5x) | none |" == lines[3]


def test_the_table_says_where_a_peer_is_cheaper() -> None:
    assert "Where a peer costs less than Milepost's graph: **Burr** in some work (0.5x)." in to_markdown(FOUND)
    assert "No peer cost less" in to_markdown(replace(FOUND, lines=[RATE]))


def test_a_ratio_near_one_says_nothing() -> None:
    near = replace(TIME, values={OURS: [100.0], "dbos": [98.0]})
    assert "No peer cost less" in to_markdown(replace(FOUND, lines=[near]))


def test_the_settings_and_versions_of_each_system_are_told() -> None:
    told = to_markdown(replace(FOUND, failed=["burr: out of disk"], unmeasured=["the weather"]))
    assert "* **DBOS (dbos 3.4.0)**: SQLite: journal_mode=WAL" in told
    assert "* **LlamaIndex workflows**: keeps nothing durably by itself." in told
    assert "Measured on: cores 2." in told
    assert "Failed: burr: out of disk." in told
    assert "Not measured: the weather." in told


def test_the_json_gives_the_same_comparison_again() -> None:
    again = from_json(to_json(FOUND))
    assert to_json(FOUND) == to_json(again)
    assert to_markdown(FOUND) == to_markdown(again)


def test_a_page_keeps_what_stands_outside_the_marks() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert f"before\n{BEGIN}\nnew\n{END}\nafter\n" == filled(page, "new")
    assert f"{BEGIN}\nnew\n{END}\n" == filled("", "new")


def test_the_chart_is_well_formed_and_has_a_bar_for_each_system_beside_ours() -> None:
    root = ElementTree.fromstring(to_svg([TIME, RATE]))
    bars = {
        bar.get("class"): bar for bar in root.iter("{http://www.w3.org/2000/svg}rect") if bar.get("class") != "page"
    }
    assert {LIMIT, "dbos", "burr"} == set(bars)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"some <work>", "DBOS", "Burr", "2x", "0.5x"} <= set(texts)
    ones = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("class") == "one"]
    one = next(line for line in ones if line.get("x1") == bars["dbos"].get("x"))  # a dearer one's begins at 1x
    end = float(bars["burr"].get("x", 0)) + float(bars["burr"].get("width", 0))
    assert float(one.get("x1", 0)) == pytest.approx(end, abs=0.2), "a cheaper one's ends there"


def test_the_command_tells_again_what_was_measured(tmp_path: Path) -> None:
    found, page, chart = tmp_path / "found.json", tmp_path / "page.md", tmp_path / "chart.svg"
    found.write_text(to_json(FOUND))
    page.write_text(f"# Page\n{BEGIN}\n{END}\n")
    assert 0 == main(["--read", str(found), "--markdown", str(page), "--svg", str(chart)])
    assert page.read_text().startswith(f"# Page\n{BEGIN}\n| work |")
    ElementTree.fromstring(chart.read_text())


def test_an_environment_that_is_up_to_date_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("benchmarks.peers.environment.venv.create", lambda *args, **options: made.append(args))
    monkeypatch.setattr("benchmarks.peers.environment.subprocess.run", lambda *args, **options: None)
    python = installed(tmp_path)
    assert python == installed(tmp_path)
    assert 1 == len(made)
    (tmp_path / "installed").write_text("of another time")
    installed(tmp_path)
    assert 2 == len(made)


@pytest.mark.parametrize("name", TASKS)
def test_every_system_is_given_the_same_work(name: str) -> None:
    task = TASKS[name]
    turn = Turn(task)
    value = task.begin()
    for n in range(3):
        value = task.merged(value, turn(n))
    assert 3 == len(turn.stamps)
    assert 0 <= turn.per_step()
    assert task.is_untouched == (value == task.begin())


def test_no_item_of_the_growing_list_repeats_another() -> None:
    assert 600 == len({TASKS["list"].made(n) for n in range(600)})


def test_a_step_where_a_run_is_to_stop_is_told_so() -> None:
    stopped = []
    turn = Turn(TASKS["page"], stop=1, at_stop=lambda: stopped.append(len(turn.stamps)))
    for n in range(3):
        turn(n)
    assert [2] == stopped


@pytest.mark.slow
@pytest.mark.parametrize("system", [LIMIT, OURS, "milepost-steps"])
def test_children_do_the_works_of_what_is_installed_anyway(system: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        bench = Bench(Setting(TINY, {"disk": tmp_path}), environment(), stack)
        facts = {"place": {"path": str(tmp_path / "runs.db")}, "times": 4}
        assert 0 < bench.child("unsaved", system, "count", times=4)["seconds"]
        for task in ("page", "list", "changed"):
            told = bench.on_a_file("disk", "run", system, task, run_id="run", times=4)
            assert 0 < told["seconds"]
            assert 0 < told["size"]
        assert "synchronous=FULL" in bench.settings[system]["SQLite"]
        assert {} == bench.child("interrupted", system, "page", ends_with=-9, run_id="dead", **facts)
        for warm in ("warm", None):
            told = bench.child("resumed", system, "page", ends_with=-9, run_id="dead", warm_run_id=warm, **facts)
            assert 0 < told["seconds"]
        assert 0 < bench.child("together", system, "page", run_ids=["a", "b"], **facts)["rate"]
        beside = bench.children("beside", system, "page", [{**facts, "run_id": name} for name in ("c", "d")])
        assert ["", ""] == [child["lost"] for child in beside]


def test_a_system_that_fails_is_left_out_and_told(tmp_path: Path) -> None:
    def failing() -> dict[str, float]:
        raise RuntimeError("no room\non the disk")

    with ExitStack() as stack:
        bench = Bench(Setting(TINY, {"disk": tmp_path}), environment(), stack)
        told = bench.rounds(2, {"burr": failing, "dbos": lambda: {"seconds": 2.0}})
    assert {"dbos": [2.0, 2.0]} == systems_of(told, "seconds")
    assert ["burr: on the disk"] == bench.failed


def test_the_pinned_versions_are_those_of_the_systems() -> None:
    requirements = (Path(main.__code__.co_filename).parent / "requirements.txt").read_text()
    pinned = {line.split("==")[0].split("[")[0] for line in requirements.splitlines() if "==" in line}
    used = {name for system in SYSTEMS.values() for name in system.distributions} - {"milepost"}
    assert used <= pinned
