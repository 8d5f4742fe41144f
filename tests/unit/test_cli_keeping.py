"""export, verify, delete, graph and doctor."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from cli_calls import Shop, shop

from milepost import SQLiteStore

__all__ = ["shop"]


@pytest.fixture
def done(shop: Shop) -> Shop:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    return shop


def damage() -> None:
    with closing(sqlite3.connect(".milepost/runs.db")) as connection, connection:
        connection.execute("UPDATE records SET payload = x'7b7d' WHERE node_id = 'price' AND visit = 1")


def test_export_writes_json_lines(done: Shop) -> None:
    lines = done.call_process("export", "a").events
    assert "a" == lines[0]["run"]["run_id"]
    assert [0, 1, 2, 3, 4, 5] == [line["sequence"] for line in lines[1:]]


def test_export_with_json_is_one_document(done: Shop) -> None:
    document = done.call("export", "a", "--json").json
    assert ("a", 7) == (document["run_id"], len(document["export"]))


def test_export_writes_a_file(done: Shop) -> None:
    assert 0 == done.call("export", "a", "-o", "a.jsonl").code
    with SQLiteStore(".milepost/runs.db") as store:
        assert store.export("a") == (done.folder / "a.jsonl").read_bytes()
    assert 7 == done.call("export", "a", "-o", "a.jsonl", "--json").json["lines"]
    assert 2 == done.call("export", "a", "-o", "no/such/folder").code


def test_verify_of_a_whole_run(done: Shop) -> None:
    answer = done.call("verify", "a")
    assert (0, "run 'a' is whole\n") == (answer.code, answer.out)
    assert {"run_id": "a", "ok": True, "problems": []} == done.call("verify", "a", "--json").json


def test_verify_tells_of_a_damaged_record(done: Shop) -> None:
    damage()
    answer = done.call("verify", "a")
    assert 1 == answer.code
    assert "record 1 of run 'a' at node 'price'" in answer.out
    document = done.call("verify", "a", "--json").json
    assert (False, 1) == (document["ok"], len(document["problems"]))


def test_delete_asks_before_it_deletes(done: Shop) -> None:
    answer = done.call_process("delete", "a")
    assert 2 == answer.code
    assert "pass --yes" in answer.err
    assert 0 == done.call("show", "a").code


def test_delete_removes_a_run(done: Shop) -> None:
    answer = done.call("delete", "a", "--yes")
    assert (0, "deleted run 'a'\n") == (answer.code, answer.out)
    assert 3 == done.call("show", "a").code


def test_delete_with_json(done: Shop) -> None:
    assert {"run_id": "a", "node_id": None, "deleted": True} == done.call("delete", "a", "--yes", "--json").json


def test_delete_removes_the_visits_of_a_node(done: Shop) -> None:
    assert 0 == done.call("delete", "a", "--node", "price", "--yes").code
    nodes = {record["node_id"] for record in done.call("history", "a", "--json").json["records"] if record["size"]}
    assert {"", "charge"} == nodes
    assert 3 == done.call("delete", "a", "--node", "price", "--yes").code


def test_graph_is_drawn_in_three_forms(shop: Shop) -> None:
    assert shop.call("graph", "shop:graph").out.startswith("flowchart TD\n")
    assert shop.call("graph", "shop:graph", "--format", "dot").out.startswith('digraph "orders" {\n')
    document = shop.call("graph", "shop:graph", "--format", "json").json
    assert ("orders", []) == (document["name"], document["warnings"])
    assert document == shop.call("graph", "shop:graph", "--json").json


def test_doctor_names_what_it_looked_at(done: Shop) -> None:
    answer = done.call("doctor")
    assert 0 == answer.code
    names = [line.split("  ")[0] for line in answer.out.splitlines()[1:]]
    assert ["milepost", "python", "sqlite", "store", "writable", "file mode", "extra cli"] == names


def test_doctor_with_json_tells_of_the_bug_of_an_old_sqlite(done: Shop) -> None:
    document = done.call("doctor", "--json").json
    assert document["ok"]
    found = {finding["name"]: finding for finding in document["findings"]}
    is_old = sqlite3.sqlite_version_info < (3, 51, 3)
    assert is_old == ("WAL-reset bug" in found["sqlite"]["note"])
    assert "0600" == found["file mode"]["value"]


def test_doctor_makes_no_files(shop: Shop) -> None:
    assert 0 == shop.call("doctor").code
    assert ["shop.py"] == [path.name for path in shop.folder.iterdir()]


def test_doctor_notes_a_store_that_others_may_read(done: Shop) -> None:
    (done.folder / ".milepost" / "runs.db").chmod(0o644)
    assert "chmod 600" in done.call("doctor").out


@pytest.mark.parametrize("url", ["sqlite:///no/folder/runs.db", "nonsense", "postgresql://me:secret@host/db"])
def test_doctor_finds_a_store_that_cannot_work_and_shows_no_secret(shop: Shop, url: str) -> None:
    answer = shop.call("doctor", "--store", url)
    assert 1 == answer.code
    assert "problem" in answer.out
    assert "secret" not in answer.out + answer.err


def test_doctor_finds_a_file_that_is_no_database(shop: Shop) -> None:
    (shop.folder / "text.db").write_text("no database, but long enough to be looked at" * 30, encoding="utf-8")
    document = shop.call("doctor", "--store", "sqlite:///text.db", "--json")
    assert 1 == document.code
    assert not json.loads(document.out)["ok"]
