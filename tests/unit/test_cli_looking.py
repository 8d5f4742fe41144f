"""runs, show, history, state and diff: they read the store and nothing else."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cli_calls import Shop, shop

from milepost import END, Checkpoint, Graph, SQLiteStore
from milepost.model.ids import new_nonce
from milepost.model.info import RunInfo, Wait
from milepost.model.record import format_time, make_record
from milepost.model.tracebacks import error_place, fold_frames
from milepost.store import Append, NewRun, Release, Store, Token
from milepost.stores.file.store import FileStore
from milepost.testing import FakeClock
from milepost.testing.tables import for_each
from milepost.views.rows import why_it_stands

__all__ = ["shop"]


def make_run(store: Store, run_id: str, **fields: Any) -> Token:
    """A run that this process owns, with its input recorded."""
    record = make_record(
        run_id,
        0,
        format_time(1.8e9),
        "start",
        state=b'{"id":"x"}',
        fields={"flow": "orders", "entry": "price", "epoch": 1, **fields},
    )
    return store.create(NewRun(run_id, "orders", new_nonce(), record, 30.0, {}))


@pytest.fixture
def done(shop: Shop) -> Shop:
    """A shop with a run that finished and one that failed; their code is gone."""
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "good", "--tag", "team=red")
    shop.call("run", "shop:graph", "-i", "id=b", "-i", "fails=true", "--run-id", "bad")
    (shop.folder / "shop.py").unlink()
    return shop


def test_runs_lists_newest_first_without_the_users_code(done: Shop) -> None:
    answer = done.call("runs")
    assert 0 == answer.code
    header, first, second = answer.out.splitlines()
    assert ["run", "flow", "status", "next", "records", "updated", "why"] == header.split()
    assert ["bad", "orders", "failed", "charge"] == first.split()[:4]
    assert ["good", "orders", "finished", "(end)"] == second.split()[:4]


def test_runs_with_json_has_iso_times_and_a_page(done: Shop) -> None:
    page = done.call("runs", "--json", "--limit", "1").json
    assert ["bad"] == [run["run_id"] for run in page["runs"]]
    assert datetime.fromisoformat(page["runs"][0]["created_at"]).tzinfo is not None
    page = done.call("runs", "--json", "--limit", "1", "--after", page["after"]).json
    assert (["good"], None) == ([run["run_id"] for run in page["runs"]], page["after"])


def test_runs_says_how_to_see_the_next_page(done: Shop) -> None:
    assert "more: milepost runs --after bad" == done.call("runs", "--limit", "1").out.splitlines()[-1]


def test_runs_counts_up_to_a_limit(done: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"count": "2"} == done.call("runs", "--json", "--count").json
    assert "1\n" == done.call("runs", "--count", "--status", "failed").out
    assert (1, 0) == (done.call("runs", "--count", "--fail-if-any").code, done.call("runs", "--count").code)
    assert 2 == done.call("runs", "--count", "--prefix", "g").code
    monkeypatch.setattr("milepost.views.runs.MOST_COUNTED", 1)
    assert "1+\n" == done.call("runs", "--count").out


def test_runs_can_be_an_alarm(done: Shop) -> None:
    alarm = ("runs", "--fail-if-any", "--status", "failed")
    assert (1, True) == ((told := done.call(*alarm, "--since", "10m")).code, "bad" in told.out)
    assert 1 == done.call(*alarm, "--json").code
    with SQLiteStore(".milepost/runs.db") as store:
        store.delete_run("bad")
    assert (0, "no runs match\n") == ((told := done.call(*alarm)).code, told.out)
    old = "UPDATE runs SET updated_at = updated_at - 1000"
    with closing(sqlite3.connect(".milepost/runs.db")) as connection, connection:
        connection.execute(old)
    assert [0, 1] == [done.call("runs", "--fail-if-any", "--since", since).code for since in ("10m", "1h")]
    assert 2 == done.call("runs", "--since", "10").code


def test_runs_says_how_far_it_looked(done: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("milepost.stores.base.store", "milepost.engine.matching"):
        monkeypatch.setattr(f"{name}.MOST_WALKED", 1)
    asked = ("runs", "--tag", "team=red", "--tag", "shift=late")
    assert "no runs match\n1 runs were looked at; more: milepost runs --after good\n" == done.call(*asked).out
    assert "no runs match\n" == done.call(*asked, "--after", "good").out
    assert (0, "no runs match\n") == ((told := done.call(*asked, "--fail-if-any")).code, told.out)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--status", "failed"], ["bad"]),
        (["--status", "failed", "--status", "finished"], ["bad", "good"]),
        (["--flow", "other"], []),
        (["--flow", "orders", "--tag", "team=red"], ["good"]),
    ],
)
def test_runs_filters(done: Shop, options: list[str], expected: list[str]) -> None:
    assert expected == [run["run_id"] for run in done.call("runs", "--json", *options).json["runs"]]


def test_runs_without_a_store_is_empty_and_makes_no_file(shop: Shop) -> None:
    answer = shop.call("runs")
    assert (3, True) == (answer.code, answer.out.startswith("no runs yet"))
    document = shop.call("runs", "--json")
    assert (3, {"runs": [], "after": None}) == (document.code, document.json)
    assert ["shop.py"] == [path.name for path in shop.folder.iterdir()]


def test_show_says_why_a_failed_run_does_not_move(done: Shop) -> None:
    answer = done.call("show", "bad")
    assert 0 == answer.code
    facts = dict(line.split(None, 1) for line in answer.out.splitlines() if line and not line.startswith(" "))
    assert "failed" == facts["status"]
    assert facts["why"].startswith("it failed: node 'charge' of run 'bad' failed: RuntimeError: card refused")
    assert "charge" == facts["next"]


def test_show_with_json_has_a_step_for_each_node(done: Shop) -> None:
    shown = done.call("show", "good", "--json").json
    assert ("finished", "it has finished", "__end__") == (shown["run"]["status"], shown["why"], shown["next_node"])
    assert [("price", 2, 2), ("charge", 2, 2)] == [(s["node_id"], s["visits"], s["attempts"]) for s in shown["steps"]]
    assert all(step["duration_ms"] >= 0 for step in shown["steps"])
    failed = done.call("show", "bad", "--json").json["steps"][1]
    assert ("charge", 0, 1, 1) == (failed["node_id"], failed["visits"], failed["attempts"], failed["failures"])


def test_show_of_a_run_that_only_began_says_where_it_goes_on(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        store.release(make_run(store, "begun"), Release("interrupted", "stopped by hand"))
    shown = shop.call("show", "begun", "--json", "--store", "sqlite:///s.db").json
    assert ("price", []) == (shown["next_node"], shown["steps"])
    assert "(stopped by hand)" in shown["why"]
    assert "resume begun [TARGET] goes on at 'price'" in shown["why"]


def test_show_tells_who_executes_a_run(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        make_run(store, "live")
        why = shop.call("show", "live", "--json", "--store", "sqlite:///s.db").json["why"]
    assert why.startswith(f"executed by process {os.getpid()} on this machine, lease until ")


def test_show_tells_what_a_run_waits_for(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        store.release(make_run(store, "w"), Release("waiting", waiting_for=(Wait("w#1", "approval"),), signals=0))
    why = shop.call("show", "w", "--json", "--store", "sqlite:///s.db").json["why"]
    assert "waits for signal 'approval' at 'w#1'; milepost signal w approval [JSON] sends it" == why


def test_runs_tells_where_a_run_waits(shop: Shop) -> None:
    waits = (Wait("trip/visa#1", "stamped"), Wait("rest#2", None))
    with SQLiteStore("s.db") as store:
        store.release(make_run(store, "w"), Release("waiting", waiting_for=waits, signals=0))
    assert "trip/visa, rest " in shop.call("runs", "--store", "sqlite:///s.db").out


def test_show_tells_that_no_worker_takes_a_flow(shop: Shop) -> None:
    with SQLiteStore("s.db", clock=FakeClock()) as store:
        store.release(make_run(store, "old"), Release("ready"))
    why = shop.call("show", "old", "--json", "--store", "sqlite:///s.db").json["why"]
    assert why.startswith("ready since 2026-01-01 00:00:00 UTC; no worker has taken flow 'orders'; milepost worker or ")


def test_runs_shortens_why_and_json_does_not(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        store.release(make_run(store, "r"), Release("interrupted", "x" * 100))
    url = ("--store", "sqlite:///s.db")
    assert f"{'x' * 57}..." in shop.call("runs", *url).out
    (run,) = shop.call("runs", "--json", *url).json["runs"]
    assert ("x" * 100, str(shop.folder / "s.db")) == (run["reason"], run["store"])
    assert f"it was interrupted ({'x' * 100}): milepost resume r [TARGET] goes on at 'price'" == run["why"]
    assert "x" * 100 in shop.call("show", "r", *url).out


def test_runs_lists_each_default_store_that_is_there(shop: Shop) -> None:
    folder = Path(".milepost/checkpoints")
    folder.parent.mkdir()
    with FileStore(folder, clock=FakeClock()) as store:
        store.clock.advance(days=1)
        make_run(store, "in-folder")
        assert ["in-folder"] == [run["run_id"] for run in shop.call("runs", "--json").json["runs"]]
    with SQLiteStore(".milepost/runs.db", clock=(clock := FakeClock())) as store:
        for number in range(3):
            make_run(store, f"in-file-{number}")
            clock.advance(days=0.75)
    answer = shop.call("runs", "--limit", "2")
    assert ["run", "flow", "status", "next", "records", "updated", "why", "store"] == answer.out.splitlines()[0].split()
    shown = [line.split() for line in answer.out.splitlines()[1:-1]]
    assert [("in-file-2", "runs.db"), ("in-folder", "checkpoints")] == [
        (line[0], Path(line[-1]).name) for line in shown
    ]
    page = shop.call("runs", "--limit", "2", "--after", "in-folder", "--json").json
    assert (["in-file-1", "in-file-0"], None) == ([run["run_id"] for run in page["runs"]], page["after"])
    assert 3 == shop.call("runs", "--after", "nobody").code


def test_a_folder_of_something_else_gets_no_files_by_being_looked_at(shop: Shop) -> None:
    (shop.folder / "other").mkdir()
    for url in ("file:other", "file:nowhere", "file:no/such", "sqlite:///no/such/runs.db"):
        assert 3 == shop.call("runs", "--store", url).code
        assert 3 == shop.call("show", "a", "--store", url).code
    assert ["other", "shop.py"] == sorted(path.name for path in shop.folder.rglob("*"))


@for_each("status", ["ready", "dead", "cancelled", "blocked", "interrupted", "failed"])
def test_why_names_the_next_act_for_every_status_that_stands(status: str) -> None:
    moment = datetime.fromisoformat("2027-01-01T00:00:00Z")
    info = RunInfo(
        run_id="r",
        flow="f",
        status=status,
        reason="",
        degraded=False,
        missed=(),
        created_at=moment,
        updated_at=moment,
        sequence=1,
        next_node="n",
        size=0,
        owner="host:boot:12:99",
        lease_until=moment,
        wake_at=None,
        waiting_for=(),
        crash_count=0,
        tags={},
    )
    why = why_it_stands(info, "n")
    assert "milepost resume r" in why
    assert "'n'" in why


def test_history_lists_every_record(done: Shop) -> None:
    answer = done.call("history", "bad")
    assert 0 == answer.code
    assert ["start", "checkpoint", "failure", "finish"] == [line.split()[1] for line in answer.out.splitlines()[1:]]
    assert "RuntimeError: card refused" in answer.out


def test_history_with_json_has_visits_and_times(done: Shop) -> None:
    records = done.call("history", "good", "--json").json["records"]
    visits = [(r["node_id"], r["visit"]) for r in records if r["kind"] == "checkpoint"]
    assert [("price", 1), ("charge", 1), ("price", 2), ("charge", 2)] == visits
    assert all(datetime.fromisoformat(record["timestamp"]).tzinfo is not None for record in records)


def test_state_is_the_recorded_json(done: Shop) -> None:
    answer = done.call("state", "good")
    assert (0, "25.00") == (answer.code, json.loads(answer.out)["total"])
    assert "25.00" == json.loads(done.call("state", "good", "price").out)["total"]
    assert "12.50" == json.loads(done.call("state", "good", "price", "--visit", "1").out)["total"]


def test_state_takes_a_visit_as_it_is_written_elsewhere(done: Shop) -> None:
    assert done.call("state", "a", "price", "--visit", "1").out == done.call("state", "a", "price#1").out


def test_an_empty_store_is_named_where_it_is(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    SQLiteStore("named.db").close()
    monkeypatch.setenv("MILEPOST_STORE", "sqlite:///named.db")
    assert "no runs yet in sqlite:///named.db: try milepost demo\n" == shop.call("runs").out


def test_state_with_json_says_where_it_stands(done: Shop) -> None:
    document = done.call("state", "good", "charge", "--visit", "1", "--json").json
    assert (2, "charge", 1) == (document["sequence"], document["node_id"], document["visit"])
    assert document["state"]["paid"] is False


def test_state_of_a_run_that_only_began_is_its_input(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        make_run(store, "begun")
        assert {"id": "x"} == json.loads(shop.call("state", "begun", "--store", "sqlite:///s.db").out)


def test_state_that_was_saved_from_outside_is_shown(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        store.save("out", "here", Checkpoint("out", "here", "next", {"n": 1}).encode())
        store.save("raw", "here", b"\x00 no envelope")
    url = ("--store", "sqlite:///s.db")
    assert {"n": 1} == json.loads(shop.call("state", "out", *url).out)
    assert "next" == shop.call("show", "out", "--json", *url).json["next_node"]
    assert 1 == shop.call("state", "raw", *url).code
    assert "no envelope" in shop.call("history", "raw", *url).out


def test_diff_shows_what_changed(done: Shop) -> None:
    answer = done.call("diff", "good", "0", "charge")
    assert 0 == answer.code
    assert [
        "from the input (record 0) to charge#2 (record 4)",
        '~ /total  "0" -> "25.00"',
        "~ /paid  false -> true",
    ] == answer.out.splitlines()


def test_diff_with_json_is_a_json_patch(done: Shop) -> None:
    document = done.call("diff", "good", "price#1", "price#2", "--json").json
    assert [{"op": "replace", "path": "/total", "value": "25.00"}] == document["patch"]
    assert (1, 3) == (document["from"]["sequence"], document["to"]["sequence"])


def test_diff_tells_old_values_of_lists_that_shrink_and_grow(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        store.save("r", "a", Checkpoint("r", "a", "b", {"items": [1, 2, 3], "gone": 1}).encode())
        store.save("r", "b", Checkpoint("r", "b", None, {"items": [1, 3], "new": "x"}).encode())
    lines = shop.call("diff", "r", "a", "b", "--store", "sqlite:///s.db").out.splitlines()
    assert {"- /items/1  2", "- /gone  1", '+ /new  "x"'} == set(lines[1:])


def test_diff_of_equal_states_says_so(done: Shop) -> None:
    assert "no difference" == done.call("diff", "good", "charge", "4").out.splitlines()[-1]


def test_text_from_the_store_cannot_command_a_terminal(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        store.release(make_run(store, "evil"), Release("failed", "\x1b[2Jgone\u202e"))
    out = (
        shop.call("runs", "--store", "sqlite:///s.db").out + shop.call("show", "evil", "--store", "sqlite:///s.db").out
    )
    assert "\x1b" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize("arguments", [("state", "evil"), ("state", "evil", "--json"), ("history", "evil", "--json")])
def test_a_state_gives_a_terminal_no_commands_and_stays_the_same_json(shop: Shop, arguments: tuple[str, ...]) -> None:
    told = "\x9b2J\x7f\u202e\u2028\U000e0001 ü"
    with SQLiteStore("runs.db") as store:
        envelope = {"version": 1, "run_id": "evil", "node_id": "a", "state": {told: told}, "next_node": None}
        store.save("evil", "a", json.dumps(envelope).encode())
    out = shop.call(*arguments, "--store", "sqlite:///runs.db").out
    assert out.replace("\n", "").isprintable()
    document = json.loads(out)
    if arguments[0] == "state":
        assert {told: told} == document.get("state", document)


def test_show_and_history_give_the_traceback_of_a_failed_run(done: Shop) -> None:
    shown = done.call("show", "bad").out
    assert "Traceback (most recent call last):" in shown
    document = done.call("show", "bad", "--json").json["run"]["error"]
    assert document["traceback"].rstrip() in shown
    records = done.call("history", "bad", "--json").json["records"]
    errors = [record["error"] for record in records if record["kind"] == "failure"]
    assert [document["error_type"], document["traceback"]] == [errors[-1]["error_type"], errors[-1]["traceback"]]
    assert {None} == {record["error"] for record in records if record["kind"] != "failure"}


def test_state_shows_what_a_finished_run_was_overridden_with(shop: Shop) -> None:
    graph = Graph(dict).add_node("a", lambda state: state).add_edge("a", END).set_entry("a").compile("a")
    with SQLiteStore("s.db") as store:
        graph.run({"n": 1}, store=store, run_id="r")
        graph.resume(store, "r", state_override=lambda state: {"n": 9})
    assert {"n": 9} == shop.call("--store", "sqlite:///s.db", "state", "r", "--json").json["state"]


# -- a run that failed, hangs or waits for its next attempt ------------------------------------------------------------


FIRST = """
import json
from milepost import END, Graph, step, workflow


def fails(value):
    return json.loads("{")


graph = Graph(dict).add_node("fails", fails).add_edge("fails", END).set_entry("fails").compile("first")


@workflow("steps")
def steps():
    yield from step("before").python(str, args=(1,))
    yield from step("fails").python(fails, args=(1,))
"""


@pytest.mark.parametrize(("name", "part"), [("graph", "node"), ("steps", "step")])
def test_show_of_a_failed_run_begins_with_what_failed_where_and_what_to_type(shop: Shop, name: str, part: str) -> None:
    (shop.folder / "first.py").write_text(FIRST, encoding="utf-8")
    assert 1 == shop.call("run", f"first.py:{name}", "--run-id", "a").code
    answer = shop.call("show", "a")
    failed, at, act, empty = answer.out.splitlines()[:4]
    assert failed.startswith(f"failed  {part} 'fails' with json.decoder.JSONDecodeError: Expecting property name")
    assert f"in      {shop.folder / 'first.py'}:7, in fails" == at
    assert ("do      mend the cause, then: milepost retry a [TARGET]", "") == (act, empty)
    named = shop.call("show", "a", "--store", "sqlite:///.milepost/runs.db").out.splitlines()[2]
    assert named.endswith(" milepost retry a [TARGET] --store sqlite:///.milepost/runs.db")
    assert not shop.call("show", "a", "--json").out.startswith("failed")


@pytest.mark.parametrize("name", ["graph", "steps"])
def test_runs_and_show_name_the_same_place_where_a_run_goes_on(shop: Shop, name: str) -> None:
    (shop.folder / "first.py").write_text(FIRST, encoding="utf-8")
    shop.call("run", f"first.py:{name}", "--run-id", "a")
    header, row = (line.split() for line in shop.call("runs").out.splitlines())
    facts = dict(line.split(None, 1) for line in shop.call("show", "a").out.splitlines() if re.match(r"\w+  ", line))
    assert "fails" == row[header.index("next")] == facts["next"]
    assert shop.call("runs", "--json").json["runs"][0]["why"] == shop.call("show", "a", "--json").json["why"]


def test_a_place_in_the_code_is_that_of_the_user_and_of_the_error_that_ended_the_run() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/app/a.py", line 1, in first\n    x\nKeyError: 1\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/app/b.py", line 22, in second\n    y\n'
        '  File "/usr/lib/python3.12/json/decoder.py", line 355, in raw_decode\n    z\n'
        '  File "/venv/lib/python3.12/site-packages/requests/api.py", line 9, in get\n    z\nOSError: no\n'
    )
    assert "/app/b.py:22, in second" == error_place(text)
    foreign = text.partition("    y\n")[2]
    assert "/venv/lib/python3.12/site-packages/requests/api.py:9, in get" == error_place(foreign)
    assert "" == error_place("OSError: no")


def test_frames_of_libraries_are_folded() -> None:
    own = '  File "/app/a.py", line 1, in first\n    x()\n    ^^^\n'
    library = "".join(
        f'  File "{path}", line 9, in get\n    y\n  [Previous line repeated 3 more times]\n'
        for path in ("/v/lib/python3.12/json/api.py", "/v/src/milepost/drivers/blocking.py", "<frozen os>")
    )
    begin, end = "Traceback (most recent call last):\n", "KeyError: 1\n  more of it"
    folded = "  ... 3 frames of libraries, to <frozen os>:9, in get\n"
    assert f"{begin}{own}{folded}{end}" == fold_frames(f"{begin}{own}{library}{end}")
    assert f"{begin}{folded}{own}{folded}{own}{end}" == fold_frames(f"{begin}{library}{own}{library}{own}{end}")
    for whole in (f"{begin}{library}{end}", f"{begin}{own}{end}", "OSError: no", ""):
        assert whole == fold_frames(whole)
    group = ' |   File "/app/a.py", line 1, in a\n |     x\n |   File "<string>", line 2, in b\n | KeyError: 1'
    assert " |   ... 1 frame of libraries, to <string>:2, in b\n | KeyError: 1" in fold_frames(group)


def test_show_tells_since_when_a_node_runs_how_its_attempt_failed_and_when_the_next_attempt_begins(shop: Shop) -> None:
    url = ("--store", "sqlite:///s.db")
    with SQLiteStore("s.db") as store:
        token = make_run(store, "live")
        told = shop.call("show", "live", *url).out
        assert re.search(r"^price +- +running +- +- +since \d.* UTC at the earliest$", told, re.MULTILINE)
        assert re.search(r"^newest +\d.* ago$", told, re.MULTILINE)
        fields = {"error_type": "OSError", "message": "no", "op": "execute", "attempt": 1,
                  "duration_ms": 1500.0, "max_attempts": 5, "retry_at": "2099-01-01T00:00:00.000000Z"}  # fmt: skip
        record = make_record(
            "live", 1, "2026-11-28T00:00:00.000000Z", "failure", node_id="price", visit=1, fields=fields
        )
        store.append([Append(token, (record,))])
        told = shop.call("show", "live", *url).out
        failed = "attempt 1 of 5 failed after 1.5 s: OSError: no; attempt 2 of 5 begins at 2099-01-01 00:00:00 UTC"
        assert re.search(rf"^price#1 +- +running +1 of 5 +1\.5 s +{failed}$", told, re.MULTILINE)
        assert re.search(
            r"^1 +failure +price#1 +1 of 5 .* 1\.5 s ", shop.call("history", "live", *url).out, re.MULTILINE
        )


LOOKING = (
    "runs",
    "history r",
    "show r",
    "watch r",
    "state r",
    "diff r 0 0",
    "verify r",
    "export r",
    "stats",
    "graph --run r",
)


def test_looking_at_a_file_of_an_older_version_leaves_it_as_it_is(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        make_run(store, "r")
    with closing(sqlite3.connect("s.db")) as connection:
        connection.execute("PRAGMA user_version = 3")
        connection.execute("PRAGMA journal_mode = DELETE")
    before = Path("s.db").read_bytes()
    for command in LOOKING:
        answer = shop.call(*command.split(), "--store", "sqlite:///s.db")
        assert "milepost db migrate" in answer.err, command
        assert before == Path("s.db").read_bytes()
