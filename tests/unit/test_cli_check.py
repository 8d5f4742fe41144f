"""`milepost check`: exit codes, files, and what it prints."""

from __future__ import annotations

import json
import runpy
import sqlite3
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from cli_calls import Shop, shop

from milepost import SQLiteStore
from milepost.errors import RunSuspended

__all__ = ["shop"]

APP = """
import os
from milepost import END, Engine, Graph, step, workflow


def same(order: dict) -> dict:
    return order


def onwards(order: dict) -> str:
    print("a router prints this")
    return os.environ.get("WAY", "ship")


def orders(*nodes):
    graph = Graph(dict)
    for node, after in zip(nodes, (*nodes[1:], END)):
        graph.add_node(node, same)
        if after == "ship":
            graph.add_conditional_edge(node, onwards, ["ship"])
        else:
            graph.add_edge(node, after)
    return graph.set_entry(nodes[0]).compile("orders")


before = orders("price", "charge", "ship")
now = orders("price", "pay", "ship")
other = Graph(dict).add_node("a", same).add_edge("a", END).set_entry("a").compile("other")
engine = Engine("sqlite:///.milepost/runs.db", flows=[before])
changed = Engine("sqlite:///.milepost/runs.db", flows=[now])
both = Engine("sqlite:///.milepost/runs.db", flows=[before, other])
"""


@pytest.fixture
def app(shop: Shop) -> Shop:
    (shop.folder / "app_shop.py").write_text(APP, encoding="utf-8")
    return shop


BODY = """
from milepost import Engine, step, workflow

@workflow("talks")
def talks():
    print("a body prints this")
    yield from step("a").python(lambda: 1)
    yield from step("b").wait_for("go")

engine = Engine("sqlite:///talks.db", flows=[talks])
"""


def begin(app: Shop, *run_ids: str, flow: str = "before") -> None:
    """Make runs that stopped after their first node."""
    graph = runpy.run_path(str(app.folder / "app_shop.py"))[flow]
    (app.folder / ".milepost").mkdir(exist_ok=True)
    for run_id in run_ids:
        options = {"stop_after": [graph.entry_point]} if flow == "before" else {"stop_before": [graph.entry_point]}
        graph.run({}, store="sqlite:///.milepost/runs.db", run_id=run_id, full=True, **options)


def test_the_exit_code_says_whether_all_runs_go_on(app: Shop) -> None:
    begin(app, "o-1")
    told = app.call("check", "--app", "app_shop.py:engine")
    assert (0, "  orders  1  go on: 1") == (told.code, told.out.splitlines()[1])
    told = app.call("check", "--app", "app_shop.py:changed", "--json")
    assert (1, False, ["o-1"]) == (told.code, told.json["ok"], told.json["groups"][0]["examples"])


@pytest.mark.wide
def test_a_check_of_nothing_is_no_success(app: Shop) -> None:
    assert 3 == app.call("check", "--app", "app_shop.py:engine").code
    assert not (app.folder / ".milepost").exists()
    assert 3 == app.call("check", "--app", "app_shop.py:engine", "sqlite:///nothing.db").code
    assert 3 == app.call("check", "--app", "app_shop.py:engine", "nothing.jsonl").code
    SQLiteStore(app.folder / "empty.db").close()
    assert 6 == app.call("check", "--app", "app_shop.py:engine", "sqlite:///empty.db").code
    assert 6 == app.call("check", "--app", "app_shop.py:engine", "sqlite:///empty.db", "--versions").code
    assert 0 == app.call("check", "--app", "app_shop.py:engine", "sqlite:///empty.db", "--allow-empty").code
    assert 6 == app.call("check", "--app", "app_shop.py:before", "--store", "sqlite:///empty.db").code


@pytest.mark.wide
def test_wrong_arguments_and_old_tables_are_usage_errors(app: Shop) -> None:
    begin(app, "o-1")
    assert 2 == app.call("check").code
    assert 2 == app.call("check", "--app", "app_shop.py:engine", "sqlite:///a.db", "sqlite:///b.db").code
    assert 2 == app.call("check", "--app", "app_shop.py:engine", "sqlite:///a.db", "--store", "sqlite:///b.db").code
    told = app.call("check", "--app", "app_shop.py:engine", ".milepost/runs.db")
    assert (2, True) == (told.code, "is no export; a store is named sqlite:///.milepost/runs.db" in told.err)
    for option in (["--lint-error"], ["-o", "x.json"], ["app_shop.py"]):
        assert 2 == app.call("check", "--app", "app_shop.py:engine", "--versions", *option).code
    for option in ("-o", "--junit"):
        told = app.call("check", "--app", "app_shop.py:engine", option, "nope/x")
        assert (2, True, True) == (told.code, "go on: 1" in told.out, "can't write 'nope/x'" in told.err)
    with closing(sqlite3.connect(app.folder / ".milepost" / "runs.db")) as connection:
        connection.execute("PRAGMA user_version = 2")
    told = app.call("check", "--app", "app_shop.py:engine")
    assert (2, True) == (told.code, "milepost db migrate" in told.err)


@pytest.mark.wide
def test_nothing_is_written_while_others_write(app: Shop) -> None:
    begin(app, "o-1")
    file = app.folder / ".milepost" / "runs.db"
    before = file.read_bytes()
    with SQLiteStore(file) as store:
        assert 0 == app.call("check", "--app", "app_shop.py:engine").code
        store.put_signal("o-1", "go", b"1")
        assert 0 == app.call("check", "--app", "app_shop.py:engine", "--versions").code
    assert before != file.read_bytes()


@pytest.mark.wide
def test_a_store_that_the_app_makes_is_not_opened(app: Shop) -> None:
    begin(app, "o-1")
    with (app.folder / "app_shop.py").open("a", encoding="utf-8") as file:
        file.write("\nfrom milepost import SQLiteStore\nown = Engine(SQLiteStore('own.db'), flows=[before])\n")
        file.write("\nfrom milepost import MemoryStore\nheld = Engine(MemoryStore(), flows=[before])\n")
    for options in ((), ("--lint",), ("--versions",)):
        told = app.call("check", "--app", "app_shop.py:own", *options)
        assert (2, True) == (told.code, "give the store's URL" in told.err)
    assert 0 == app.call("check", "--app", "app_shop.py:own", "sqlite:///.milepost/runs.db").code
    assert 6 == app.call("check", "--app", "app_shop.py:held").code
    assert 0 == app.call("check", "--app", "app_shop.py:held", "--lint").code


@pytest.mark.wide
def test_runs_of_unknown_flows_are_an_error_where_it_is_strict(app: Shop) -> None:
    begin(app, "o-1")
    begin(app, "y-1", flow="other")
    told = app.call("check", "--app", "app_shop.py:engine")
    assert (0, True) == (told.code, "not checked: 1 run of flow 'other'" in told.out)
    assert 1 == app.call("check", "--app", "app_shop.py:engine", "--strict").code
    assert 6 == app.call("check", "--app", "app_shop.py:other", "--flow", "orders").code


@pytest.mark.wide
def test_exported_runs_are_checked_without_a_store(app: Shop) -> None:
    begin(app, "o-1", "o-2")
    for run_id in ("o-1", "o-2"):
        app.call("export", run_id, "-o", f"{run_id}.jsonl")
    (app.folder / ".milepost" / "runs.db").unlink()
    told = app.call("check", "--app", "app_shop.py:engine", "o-1.jsonl", "o-2.jsonl")
    assert (0, "2 of 2 runs of 1 flow") == (told.code, told.out.partition(",")[0])
    assert 1 == app.call("check", "--app", "app_shop.py:changed", "o-1.jsonl").code
    assert 0 == app.call("check", "--app", "app_shop.py:before", "o-1.jsonl").code
    (app.folder / "o-1.jsonl").write_text("{", encoding="utf-8")
    told = app.call("check", "--app", "app_shop.py:engine", "o-1.jsonl", "o-2.jsonl")
    assert (1, True) == (told.code, "not read: 1" in told.out)


@pytest.mark.wide
def test_the_report_is_written_in_all_forms(app: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(app, "o-1")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(app.folder / "summary.md"))
    forms = ("-o", "check.json", "--junit", "check.xml", "--github", "--lint")
    told = app.call("check", "--app", "app_shop.py:changed", "--store", "sqlite:///.milepost/runs.db", *forms)
    assert 1 == told.code
    lines = told.out.splitlines()
    assert lines[0].startswith("1 of 1 open run of 1 flow")
    assert 1 == sum(line.startswith("::error file=app_shop.py,line=") for line in lines)
    assert 1 == sum(line.startswith("::warning file=app_shop.py,line=12,title=MP003") for line in lines)
    document = json.loads((app.folder / "check.json").read_text(encoding="utf-8"))
    assert ("refuse", "MP003") == (document["groups"][0]["verdict"], document["lint"][0]["code"])
    suite = ET.parse(app.folder / "check.xml").getroot()
    assert ("2", "1") == (suite.get("tests"), suite.get("failures"))
    assert "| orders | 1 run | refused |" in (app.folder / "summary.md").read_text(encoding="utf-8")
    told = app.call("check", "--app", "app_shop.py:changed", "--json", "--github")
    assert ("refuse", True) == (told.json["groups"][0]["verdict"], "::error file=" in told.err)


@pytest.mark.wide
def test_the_lint_needs_no_store(app: Shop) -> None:
    told = app.call("check", "--app", "app_shop.py:engine", "--lint")
    assert (0, True) == (
        told.code,
        told.out.startswith("app_shop.py:12: MP003 router after 'charge' of flow 'orders': "),
    )
    assert 1 == app.call("check", "--app", "app_shop.py:engine", "--lint-error").code
    told = app.call("check", "--app", "app_shop.py:other", "--lint")
    assert (0, "lint: nothing found in 1 flow\n") == (told.code, told.out)
    told = app.call("check", "--app", "app_shop.py:both", "--lint", "--flow", "other")
    assert (0, "lint: nothing found in 1 flow\n") == (told.code, told.out)
    assert 0 == app.call("check", "--app", "app_shop.py:before", "--lint").code
    assert not (app.folder / ".milepost").exists()
    assert 3 == app.call("check", "--app", "app_shop.py:engine", "--lint", "sqlite:///nothing.db").code


@pytest.mark.wide
def test_the_lint_takes_no_place_of_the_check(app: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(app, "o-1")
    told = app.call("check", "--app", "app_shop.py:changed", "--lint")
    assert (1, True, True) == (told.code, "refused: 1" in told.out, "MP003" in told.out)
    assert 0 == app.call("check", "--app", "app_shop.py:engine", "--lint").code
    (app.folder / ".milepost" / "runs.db").rename(app.folder / "moved.db")
    monkeypatch.setenv("MILEPOST_STORE", "sqlite:///moved.db")
    for name in ("changed", "now"):
        assert 1 == app.call("check", "--app", f"app_shop.py:{name}", "--lint").code


@pytest.mark.wide
def test_what_a_body_prints_is_no_part_of_the_report(app: Shop) -> None:
    (app.folder / "talks.py").write_text(BODY, encoding="utf-8")
    flow = runpy.run_path(str(app.folder / "talks.py"))["talks"]
    with pytest.raises(RunSuspended):
        flow.run(store="sqlite:///talks.db", run_id="t-1", on_wait="suspend")
    told = app.call("check", "--app", "talks.py:engine", "sqlite:///talks.db", "--json")
    assert (0, 1, True) == (told.code, told.json["checked"], "a body prints this" in told.err)


@pytest.mark.wide
def test_versions_are_listed(app: Shop) -> None:
    begin(app, "o-1", "o-2")
    told = app.call("check", "--app", "app_shop.py:changed", "--versions")
    assert (0, ["orders", "1", "2"]) == (told.code, [told.out.splitlines()[1].split()[at] for at in (0, 1, 3)])
    assert told.out.rstrip().endswith("o-1      older code")
    (version,) = app.call("check", "--app", "app_shop.py:engine", "--versions", "--json").json["versions"]
    assert (1, True, 2, "o-1") == (version["version"], version["is_current"], version["runs"], version["example"])


@pytest.mark.wide
def test_a_damaged_row_is_told_and_hides_no_other(app: Shop) -> None:
    begin(app, "o-1", "o-2")
    with closing(sqlite3.connect(app.folder / ".milepost" / "runs.db")) as connection, connection:
        connection.execute("UPDATE runs SET tags = '[]' WHERE run_id = 'o-2'")
    told = app.call("check", "--app", "app_shop.py:engine", "--json")
    groups = {group["verdict"]: group["examples"] for group in told.json["groups"]}
    assert (1, {"not read": ["o-2"], "continue": ["o-1"]}) == (told.code, groups)


@pytest.mark.wide
def test_each_change_of_code_has_its_exit_code(app: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Path(__file__).parent.parent / "both"
    monkeypatch.syspath_prepend(both)
    from changed_code import begin as begin_all
    from changed_code import changes

    with SQLiteStore(app.folder / "changes.db") as store:
        begin_all(store, changes())
    (app.folder / "changed_shop.py").write_text(
        "import changed_code\nfrom milepost import Engine\n"
        "flows = [change.now for change in changed_code.changes()]\n"
        "def engine():\n    return Engine('sqlite:///changes.db', flows=flows)\n",
        encoding="utf-8",
    )
    for change in changes():
        told = app.call("check", "--app", "changed_shop:engine", "--flow", change.name)
        assert (change.name, int(change.verdict == "refuse")) == (change.name, told.code), told.out + told.err
