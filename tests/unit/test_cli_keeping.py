"""export, import, verify, delete, prune, stats, graph and doctor."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
from collections import Counter
from contextlib import closing

import pytest
from cli_calls import Shop, shop

from milepost import END, Graph, RunSuspended, SQLiteStore, StepError, Steps, parallel, step, workflow

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


def test_an_export_tells_a_terminal_nothing_to_obey(done: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with SQLiteStore(".milepost/runs.db") as store:
        Graph(dict).add_node("n", dict).add_edge("n", END).set_entry("n").compile("g").run(
            {"text": "\u009b2J \u202e"}, store=store, run_id="r"
        )
        exported = [json.loads(line) for line in store.export("r").splitlines()]
    assert "\u009b" in done.call("export", "r").out
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda self: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = done.call("export", "r").out
    assert (exported, True) == (
        [json.loads(line) for line in shown.splitlines()],
        shown.replace("\n", "").isprintable(),
    )


def test_an_export_is_for_its_owner_alone(done: Shop) -> None:
    path = done.folder / "a.jsonl"
    path.write_bytes(bytes(1_000_000))
    path.chmod(0o644)
    for _ in range(2):
        assert 0 == done.call("export", "a", "-o", "a.jsonl").code
        with SQLiteStore(".milepost/runs.db") as store:
            assert (store.export("a"), 0o600) == (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        path.unlink()
    assert 0 == done.call("export", "a", "-o", "/dev/null").code


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


def test_verify_of_all_runs(done: Shop) -> None:
    done.call("run", "shop:graph", "-i", "id=b", "--run-id", "b")
    answer = done.call("verify", "--all")
    assert (0, "2 runs verified, nothing is wrong\n") == (answer.code, answer.out)
    damage()
    answer = done.call("verify", "--all")
    assert 1 == answer.code
    assert ["run 'b' has 1 problem:", "run 'a' has 1 problem:"] == answer.out.splitlines()[::2]
    document = done.call("verify", "--all", "--json").json
    assert (False, 2, ["b", "a"]) == (document["ok"], document["runs"], [d["run_id"] for d in document["damaged"]])


@pytest.mark.parametrize("arguments", [[], ["a", "--all"]])
def test_verify_needs_either_a_run_or_all(done: Shop, arguments: list[str]) -> None:
    answer = done.call("verify", *arguments)
    assert 2 == answer.code
    assert "--all" in answer.err


def test_import_takes_in_what_export_wrote(done: Shop) -> None:
    done.call("export", "a", "-o", "a.jsonl")
    answer = done.call("import", "a.jsonl")
    assert (1, True) == (answer.code, "run 'a' exists" in answer.err)
    answer = done.call("import", "a.jsonl", "--run-id", "copy")
    assert (0, "imported run 'copy', which is finished\n") == (answer.code, answer.out)
    document = done.call("import", "a.jsonl", "--store", "sqlite:///other.db", "--json").json
    assert ("a", "finished", 7) == (document["run_id"], document["status"], document["lines"])
    for place in (("copy",), ("a", "--store", "sqlite:///other.db")):
        assert 0 == done.call("verify", *place).code
        assert 0 == done.call("resume", place[0], "shop:graph", *place[1:]).code


def test_import_reads_the_standard_input(done: Shop) -> None:
    exported = done.call_process("export", "a").out
    with done.spawn("import", "-", "--run-id", "b", stdin=subprocess.PIPE) as process:
        out, err = process.communicate(exported, timeout=60)
    assert (0, "imported run 'b', which is finished\n", "") == (process.returncode, out, err)


def test_import_of_a_damaged_file_names_the_line(done: Shop) -> None:
    done.call("export", "a", "-o", "a.jsonl")
    path = done.folder / "a.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"id":"a"', b'"id":"b"', 1))
    answer = done.call("import", "a.jsonl", "--run-id", "b")
    assert 1 == answer.code
    assert "line 2 of the run to import" in answer.err
    assert 3 == done.call("show", "b").code
    assert 2 == done.call("import", "no such file").code


def test_prune_deletes_old_runs_and_thins_the_others(done: Shop) -> None:
    document = done.call("prune", "--older-than", "1h", "--keep-last", "1", "--dry-run", "--json").json
    assert {"dry_run": True, "deleted": [], "thinned": ["a"], "records": 2} == document
    answer = done.call("prune", "--keep-last", "1", "--dry-run")
    assert "would thin a\nwould take 2 records out of 1 run\n" == answer.out
    assert "took 2 records out of 1 run\n" == done.call("prune", "--keep-last", "1", "--yes").out
    assert "there is nothing to prune\n" == done.call("prune", "--keep-last", "1", "--older-than", "4w", "-y").out
    assert 0 == done.call("verify", "a").code
    assert "would delete a\nwould delete 1 run\n" == done.call("prune", "--older-than", "0s", "--dry-run").out
    assert "deleted 1 run\n" == done.call("prune", "--older-than", "0s", "--yes").out
    assert 3 == done.call("show", "a").code


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_prune_deletes_nothing_without_yes_where_nobody_can_be_asked(done: Shop, more: tuple[str, ...]) -> None:
    answer = done.call_process("prune", "--older-than", "0s", *more)
    assert 2 == answer.code
    assert "pass --yes to prune where nobody can be asked" in answer.err
    assert 0 == done.call("show", "a").code


def test_prune_spares_runs_of_a_status_that_is_not_named(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=bad", "-i", "fails=true", "--run-id", "bad")
    assert "there is nothing to prune\n" == shop.call("prune", "--older-than", "0s", "--yes").out
    assert "there is nothing to prune\n" == shop.call("prune", "--older-than", "0s", "--status", "waiting", "-y").out
    statuses = ("--status", "waiting", "--status", "failed")
    document = shop.call("prune", "--older-than", "0s", *statuses, "--yes", "--json").json
    assert ["bad"] == document["deleted"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--dry-run",),
        ("--status", "finished"),
        ("--older-than", "soon"),
        ("--older-than", "-1d"),
        ("--older-than", "1y"),
        ("--older-than", "1"),
        ("--older-than", "0"),
        ("--keep-last", "0"),
        ("--older-than", "1d", "--status", "done"),
    ],
)
def test_prune_by_nothing_or_by_nonsense_is_refused(done: Shop, arguments: tuple[str, ...]) -> None:
    answer = done.call("prune", *arguments, "--yes")
    assert (2, "") == (answer.code, answer.out)
    assert 0 == done.call("show", "a").code


def test_stats_count_what_a_store_has(done: Shop) -> None:
    done.call("run", "shop:graph", "-i", "id=bad", "-i", "fails=true", "--run-id", "bad")
    answer = done.call("stats")
    assert 0 == answer.code
    lines = [line.split() for line in answer.out.splitlines()]
    assert [["status", "runs"], ["failed", "1"], ["finished", "1"], [], ["runs", "2"]] == lines[:5]
    assert ["records", "oldest", "store"] == [line[0] for line in lines[5:]]
    document = done.call("stats", "--json").json
    assert ({"failed": 1, "finished": 1}, 10) == (document["runs"], document["records"])
    assert 1000 < document["bytes"] < 10_000
    assert document["oldest"].endswith("Z")


def test_stats_of_an_empty_store_and_of_none(done: Shop) -> None:
    done.call("delete", "a", "--yes")
    assert "runs     none" in done.call("stats").out
    document = done.call("stats", "--json").json
    assert ({}, 0, 0, None) == (document["runs"], document["records"], document["bytes"], document["oldest"])
    assert 3 == done.call("stats", "--store", "sqlite:///none.db").code
    assert 3 == done.call("prune", "--older-than", "0s", "--store", "sqlite:///none.db").code


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
    extras = [name for name in names if name.startswith("extra ")]
    assert ["milepost", "python", "sqlite", "store", "writable", "file mode", "free space", *extras] == names
    assert "extra cli" in extras


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


@pytest.mark.parametrize("url", ["sqlite:////dev/null/runs.db", "nonsense", "postgresql://me:secret@host/db"])
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


@workflow("asked")
def asked(secret: str) -> Steps[str]:
    yield from parallel("both", step("len").python(len, args=(secret,)), step("int").python(int, args=(secret,)))
    answer = yield from step("ask").wait_for("answer", prompt=f"is it {secret}?")
    yield from step("end").python(int, args=(secret + answer.payload,))
    return secret


def test_of_an_encrypted_run_the_command_line_tells_what_is_readable_and_no_more(shop: Shop) -> None:
    with SQLiteStore("locked.db", encryption_key={"k": bytes(32)}) as store:
        for run_id in ("r", "s"):
            with pytest.raises(RunSuspended):
                asked.run(store=store, run_id=run_id, secret="s3cr-word")
        asked.signal(store, "r", "answer", "!")
        with pytest.raises(StepError):
            asked.resume(store, "r")
    here = ("--store", "sqlite:///locked.db")
    told = {name: shop.call(name, "r", *here) for name in ("show", "history", "state", "export")}
    told |= {"runs": shop.call("runs", *here), "waits": shop.call("show", "s", *here)}
    told["signal"] = shop.call("signal", "s", "answer", '"?"', *here)
    told["cancel"] = shop.call("cancel", "s", *here)
    assert {0: 4, 1: 4} == Counter(answer.code for answer in told.values())
    text = "".join(answer.out + answer.err for answer in told.values())
    assert not any(unwanted in text for unwanted in ("s3cr-word", "aesgcm:", "router", "its time has come", "None"))
    assert "why      it failed: encrypted with key 'k'; milepost resume r [TARGET]" in told["show"].out
    assert "waits for signal 'answer' at 'ask#1' (encrypted with key 'k')" in told["waits"].out
    assert "signal number 1 came" in told["history"].out
    kinds = [line.split()[:2] for line in told["show"].out.splitlines()]
    assert ["both", "parallel"] in kinds
    assert ["ask", "wait"] in kinds
    assert "which this store does not have" in told["signal"].err
