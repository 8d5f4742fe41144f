"""run, resume and retry."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest
from cli_calls import Shop, shop

__all__ = ["shop"]


def last(lines: list[dict]) -> dict:
    return lines[-1]


def test_run_tells_each_node_and_prints_the_result(shop: Shop) -> None:
    answer = shop.call("run", "shop:graph", '{"id": "a"}', "--run-id", "a")
    assert 0 == answer.code
    lines = answer.out.splitlines()
    assert "run 'a' of flow 'orders' starts" == lines[0]
    assert "a node prints this" in lines
    assert any(line.startswith("  done    charge#2") and line.endswith("-> end") for line in lines)
    result = json.loads("\n".join(lines[lines.index("{") : -1]))
    assert {"id": "a", "total": "25.00", "paid": True, "fails": False, "holds": False} == result


def test_run_with_json_prints_a_line_for_each_event_and_the_result_last(shop: Shop) -> None:
    answer = shop.call("run", "shop:graph", '{"id": "a"}', "--run-id", "a", "--json")
    assert 0 == answer.code
    events = answer.events
    assert "RunStarted" == events[0]["event"]
    assert {"id": "a", "total": "0", "paid": False, "fails": False, "holds": False} == events[0]["input"]
    assert ["price", "charge", "price", "charge"] == [e["node_id"] for e in events if e["event"] == "NodeCompleted"]
    assert "Result" == last(events)["event"]
    assert "25.00" == last(events)["state"]["total"]
    assert "finished" == last(events)["status"]
    assert all(event["timestamp"].endswith("Z") for event in events[:-1])
    assert "a node prints this" in answer.err


def test_run_makes_the_folders_of_its_store_for_its_owner_alone(shop: Shop) -> None:
    assert 0 == shop.call("run", "shop:graph", "-i", "id=a").code
    assert 0 == shop.call("run", "shop:graph", "-i", "id=a", "--store", "sqlite:///no/such/runs.db").code
    for file in (".milepost/runs.db", "no/such/runs.db"):
        assert 0o700 == stat.S_IMODE((shop.folder / file).parent.stat().st_mode)


def test_fields_are_json_where_they_parse_and_text_elsewhere(shop: Shop) -> None:
    answer = shop.call("run", "shop:graph", "-i", "id=007x", "-i", "paid=true", "-i", 'total="100"', "--json")
    assert 0 == answer.code
    assert "112.50" == last(answer.events)["state"]["total"]
    assert "007x" == last(answer.events)["state"]["id"]


def test_input_is_read_from_the_standard_input(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"id": "piped"}'))
    answer = shop.call("run", "shop:graph", "-", "--json")
    assert "piped" == last(answer.events)["state"]["id"]


def test_a_target_may_be_a_file(shop: Shop) -> None:
    (shop.folder / "sub").mkdir()
    (shop.folder / "shop.py").rename(shop.folder / "sub" / "shop2.py")
    answer = shop.call("run", "sub/shop2.py:graph", "-i", "id=a", "--json")
    assert (0, "finished") == (answer.code, last(answer.events)["status"])


def test_a_graph_of_coroutines_runs(shop: Shop) -> None:
    answer = shop.call("run", "shop:async_graph", "-i", "id=a", "--json")
    assert (0, "finished") == (answer.code, last(answer.events)["status"])


def test_tags_are_kept(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--tag", "team=red")
    shop.call("run", "shop:graph", "-i", "id=b")
    assert [{"team": "red"}] == [run["tags"] for run in shop.call("runs", "--tag", "team=red", "--json").json["runs"]]


def test_a_failed_run_has_exit_code_1_and_one_line(shop: Shop) -> None:
    answer = shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", "a")
    assert 1 == answer.code
    assert 1 == len([line for line in answer.err.splitlines() if line.startswith("milepost: ")])
    assert "failed: RuntimeError: card refused" in answer.err
    assert "Traceback" not in answer.err + answer.out
    assert 1 == answer.err.count("\n")


def test_a_failed_run_with_json_ends_with_the_error(shop: Shop) -> None:
    answer = shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", "a", "--json")
    assert "Error" == last(answer.events)["event"]
    error = last(answer.events)["error"]
    assert ("NodeError", 1, "a", "charge") == (error["type"], error["exit_code"], error["run_id"], error["node_id"])


def test_a_run_id_that_is_taken_is_refused_or_resumed(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    assert 1 == shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a").code
    answer = shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a", "--if-exists", "resume", "--json")
    assert (0, True) == (answer.code, last(answer.events)["resumed"]["already_completed"])


def test_resume_of_a_finished_run_gives_its_result(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    answer = shop.call("resume", "a", "shop:graph")
    assert 0 == answer.code
    assert "run 'a' of flow 'orders' has finished before: nothing runs, its result stands" == answer.out.splitlines()[0]
    result, _, onwards = answer.out.partition("\n")[2].rpartition("next: ")
    assert "25.00" == json.loads(result)["total"]
    assert "milepost show a\n" == onwards


LARGE = """
from milepost import END, Graph


def grow(state):
    return {**state, "numbers": list(range(state["count"]))}


def double(item):
    return item * 2


graph = (
    Graph(dict).add_node("grow", grow).add_map("each", lambda state: state["numbers"], double, merge=lambda state, made: state)
    .add_edge("grow", "each").add_edge("each", END).set_entry("grow").compile("large")
)
"""


def test_a_large_result_is_cut_to_a_screen_unless_all_is_asked_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop.folder / "large.py").write_text(LARGE, encoding="utf-8")
    monkeypatch.setenv("LINES", "24")
    run = ("run", "large.py:graph", "-i", "count=44")
    told = shop.call(*run, "--run-id", "a").out.splitlines()
    begun = next(number for number, line in enumerate(told) if line.startswith("run 'a' finished after "))
    assert "… 31 more lines: --full prints all, as does milepost state a" == told[-2]
    assert "next: milepost show a" == told[-1]
    assert 18 == len(told[begun + 1 : -2])
    whole = shop.call(*run, "--run-id", "b", "--full").out.partition("finished after ")[2]
    result = whole.partition("\n")[2].rpartition("next: ")[0]
    assert list(range(44)) == json.loads(result)["numbers"]
    shop.call("state", "a")
    again = shop.call("resume", "a", "large.py:graph", "--full").out
    assert "    43\n  ]" in again


def test_the_progress_of_a_map_is_told(shop: Shop) -> None:
    (shop.folder / "large.py").write_text(LARGE, encoding="utf-8")
    told = shop.call("run", "large.py:graph", "-i", "count=44", "--run-id", "a").out.splitlines()
    progress = [line.strip() for line in told if line.startswith("  each: ")]
    assert ["each: 5/44", "each: 9/44"] == progress[:2]
    assert "each: 44/44" == progress[-1]
    assert not [line for line in told if line.startswith("  done    each/") and "->" in line]
    watched = shop.call("watch", "a").out.splitlines()
    assert progress == [line.strip() for line in watched if line.startswith("  each: ")]


def test_a_run_that_failed_says_what_to_type_next(shop: Shop) -> None:
    run = ("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", "a", "--store", "sqlite:///s.db")
    told = shop.call(*run).out.splitlines()
    store = "--store sqlite:///s.db"
    assert f"next: milepost show a {store}, then milepost retry a shop:graph {store}" == told[-1]


def test_resume_goes_on_where_the_records_end(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", "a")
    source = (shop.folder / "shop.py").read_text(encoding="utf-8")
    (shop.folder / "shop.py").write_text(source.replace("if order.fails", "if False"), encoding="utf-8")
    plan = shop.call("resume", "a", "shop:graph", "--plan", "--json").json
    assert ("continue", "price", "charge") == (plan["verdict"], plan["from_node"], plan["next_node"])
    answer = shop.call("resume", "a", "shop:graph", "--json")
    assert 0 == answer.code
    assert "charge" == next(e["node_id"] for e in answer.events if e["event"] == "NodeStarted")


def test_plan_says_what_would_happen_and_runs_nothing(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", "a")
    before = shop.call("history", "a", "--json").json
    answer = shop.call("resume", "a", "shop:graph", "--plan")
    assert 0 == answer.code
    assert answer.out.startswith("run 'a': continue: goes on at node 'charge'")
    assert before == shop.call("history", "a", "--json").json


def test_resume_from_a_visit_supersedes_what_came_later(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    answer = shop.call("resume", "a", "shop:graph", "--from", "price", "--visit", "1", "--json")
    assert 0 == answer.code
    assert ["charge", "price", "charge"] == [e["node_id"] for e in answer.events if e["event"] == "NodeCompleted"]
    records = shop.call("history", "a", "--json").json["records"]
    assert [2, 3, 4] == [r["sequence"] for r in records if r["superseded"]]


def test_resume_from_with_rerun_runs_the_node_itself(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    answer = shop.call("resume", "a", "shop:graph", "--from", "charge", "--rerun", "--json")
    assert ["charge"] == [e["node_id"] for e in answer.events if e["event"] == "NodeCompleted"]


def test_retry_runs_again_what_failed(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", "a")
    answer = shop.call("retry", "a", "shop:graph", "--json")
    assert 1 == answer.code
    assert ["charge"] == [e["node_id"] for e in answer.events if e["event"] == "NodeStarted"]


def test_retry_of_a_run_that_did_not_fail_is_refused(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    answer = shop.call("retry", "a", "shop:graph")
    assert (1, "") == (answer.code, answer.out)
    assert "retry is for a run that failed" in answer.err


def test_an_iteration_limit_can_be_given_and_raised(shop: Shop) -> None:
    answer = shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a", "--max-iterations", "2")
    assert 1 == answer.code
    assert 0 == shop.call("resume", "a", "shop:graph", "--max-iterations", "10").code


def test_a_renamed_node_is_mapped(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", "a")
    source = (shop.folder / "shop.py").read_text(encoding="utf-8").replace("if order.fails", "if False")
    (shop.folder / "shop.py").write_text(source.replace('"charge"', '"pay"'), encoding="utf-8")
    assert 1 == shop.call("resume", "a", "shop:graph").code
    assert 0 == shop.call("resume", "a", "shop:graph", "--rename", "charge=pay").code


def test_a_node_that_exits_has_not_finished_its_run(shop: Shop) -> None:
    source = (shop.folder / "shop.py").read_text(encoding="utf-8")
    told = 'raise RuntimeError("card refused\\nby the bank")'
    assert told in source
    for run_id, exit_code in (("a", 0), ("b", 3), ("c", 5)):
        (shop.folder / "shop.py").write_text(source.replace(told, f"sys.exit({exit_code})"), encoding="utf-8")
        answer = shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", run_id)
        assert 1 == answer.code
        assert f"milepost resume {run_id} [TARGET] goes on" in answer.err
    assert "interrupted" == shop.call("show", "a", "--json").json["run"]["status"]


def test_the_store_is_named_by_option_or_environment(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_STORE", "sqlite:///env.db")
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "in-env")
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "in-option", "--store", "sqlite:///option.db")
    assert ["in-env"] == [run["run_id"] for run in shop.call("runs", "--json").json["runs"]]
    named = shop.call("--store", "sqlite:///option.db", "runs", "--json").json["runs"]
    assert ["in-option"] == [run["run_id"] for run in named]
    assert not Path(".milepost").exists()
