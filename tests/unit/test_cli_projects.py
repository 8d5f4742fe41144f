"""The settings of a project: which app and which store a command takes where none is typed."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import pytest
from cli_calls import Answer
from workshop_calls import Workshop, shop, workshop

from milepost import FileStore, SQLiteStore

__all__ = ["shop", "workshop"]


@pytest.fixture
def project(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A project whose pyproject.toml names its app and its store, seen from a folder inside it."""
    settings = '[tool.milepost]\napp = "workshop:engine"\nstore = "sqlite:///kept/here/runs.db"\n'
    (workshop.folder / "pyproject.toml").write_text(settings, encoding="utf-8")
    (workshop.folder / "sub").mkdir()
    monkeypatch.chdir(workshop.folder / "sub")
    return workshop


def test_a_run_is_resumed_by_its_id_alone(project: Workshop) -> None:
    answer = project.call("run", "orders", "-i", "id=a", "-i", "fails=true", "--run-id", "a")
    assert 1 == answer.code
    assert answer.out.endswith("next: milepost show a, then milepost retry a\n")
    assert f"milepost: app workshop:engine is in {project.folder / 'workshop.py'}" in answer.err.splitlines()
    assert 1 == project.call("resume", "a").code
    assert 1 == project.call("retry", "a").code
    plan = project.call("resume", "a", "--plan", "--json").json
    assert ("a", "continue") == (plan["run_id"], plan["verdict"])
    assert 3 == project.call("resume", "nobody").code


def test_the_flow_is_named_where_the_app_has_several(project: Workshop) -> None:
    answer = project.call("run", '{"id": "a"}')
    assert 2 == answer.code
    assert "the app has many flows: name one of orders, parcels" in answer.err
    assert "the app has no flow 'nothing': it has orders, parcels" in project.call("start", "nothing").err
    assert "name the flow" in project.call("graph").err or "many flows" in project.call("graph").err
    assert project.call("graph", "orders").out.startswith("flowchart")


def test_the_only_flow_of_an_app_needs_no_name(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_APP", "shop:graph")
    assert 0 == workshop.call("run", '{"id": "a"}', "--run-id", "a").code
    assert "b\n" == workshop.call("start", "-i", "id=b", "--run-id", "b").out
    assert 0 == workshop.call("worker", "--until-idle").code
    assert "finished" == workshop.call("show", "b", "--json").json["run"]["status"]


def test_a_command_that_only_looks_imports_nothing_and_makes_nothing(project: Workshop) -> None:
    (project.folder / "workshop.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    before = sorted(project.folder.rglob("*"))
    for words in (["runs"], ["show", "a"], ["history", "a"], ["signal", "a", "go"], ["cancel", "a"], ["watch", "a"]):
        answer = project.call(*words)
        assert (3, "") == (answer.code, answer.out)
        assert "there is no store at" in answer.err
        assert "kept/here/runs.db" in answer.err
    assert before == sorted(project.folder.rglob("*"))


def test_who_writes_makes_the_folders_of_the_store_for_its_owner_alone(project: Workshop) -> None:
    assert 0 == project.call("start", "orders", "-i", "id=a").code
    assert [0o700, 0o700] == [(project.folder / name).stat().st_mode & 0o777 for name in ("kept", "kept/here")]


def test_the_environment_wins_over_the_project_and_an_option_over_both(
    project: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILEPOST_STORE", "sqlite:///env.db")
    monkeypatch.setenv("MILEPOST_APP", "shop:graph")
    assert 0 == project.call("run", "-i", "id=a", "--run-id", "a").code
    option = ("--store", "sqlite:///option.db", "--app", "workshop:engine")
    assert 0 == project.call("start", "parcels", "-i", "weight=1", "--run-id", "b", *option).code
    with SQLiteStore("env.db") as environment, SQLiteStore("option.db") as chosen:
        assert ["a"] == [run.run_id for run in environment.list_runs()]
        assert ["b"] == [run.run_id for run in chosen.list_runs()]
    assert not (project.folder / "kept").exists()


@pytest.mark.parametrize("store", [(), ("--store", "sqlite:///runs.db")], ids=["of the app", "named"])
def test_a_command_that_only_looks_through_an_app_opens_its_store_to_read_only(
    shop: Workshop, store: tuple[str, ...]
) -> None:
    text = 'from shop import graph\nfrom milepost import Engine\nengine = Engine("sqlite:///runs.db", flows=[graph])\n'
    (shop.folder / "seen.py").write_text(text, encoding="utf-8")

    def call(*words: str) -> Answer:
        sys.modules.pop("seen", None)  # its engine was closed
        return shop.call(*words, "--app", "seen:engine", *store)

    assert 0 == call("run", "-i", "id=a", "--run-id", "a").code
    assert 0 == call("graph", "--run", "a").code
    with closing(sqlite3.connect("runs.db")) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version - 1}")
        for words in (["graph", "--run", "a"], ["watch", "a"]):
            answer = call(*words)
            assert (2, True) == (answer.code, "milepost db migrate" in answer.err), answer
        assert (version - 1,) == connection.execute("PRAGMA user_version").fetchone()


KEYED = """
from shop import graph
from milepost import Engine, FileStore

KEY = {"k": b"k" * 32}


def engine():
    return Engine(FileStore("own", encryption_key=KEY), flows=[graph])
"""


def test_a_named_store_takes_the_keys_of_the_engines_own(shop: Workshop) -> None:
    (shop.folder / "keyed.py").write_text(KEYED, encoding="utf-8")
    app = ("--app", "keyed:engine", "--store", "sqlite:///named.db")
    assert 0 == shop.call("run", "orders", "-i", "id=a", "--run-id", "a", *app).code
    with FileStore("own", encryption_key={"k": b"k" * 32}) as own:
        assert [] == own.list_runs()
    with SQLiteStore("named.db", encryption_key={"k": b"k" * 32}) as named:
        assert b'"25.00"' in (named.latest("a").point.state() or b"")
    answer = shop.call("state", "a", "--store", "sqlite:///named.db")
    assert (1, "") == (answer.code, answer.out)
    assert "read only through a store that has its key" in answer.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tool.milepost", "can't be read"),
        ("[tool.milepost]\napp = 3\n", "takes texts as app and store"),
        ('[tool.milepost]\nstor = "x"\n', "takes texts as app and store"),
        ("[tool]\nmilepost = 3\n", "takes texts as app and store"),
        ("tool = 3\n", "takes texts as app and store"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(shop: Workshop, text: str, told: str) -> None:
    (shop.folder / "pyproject.toml").write_text(text, encoding="utf-8")
    answer = shop.call("runs")
    assert (2, "") == (answer.code, answer.out)
    assert told in answer.err
