"""start, worker, recover, signal and cancel: what is left to others, and who takes it up."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from test_cli_looking import make_run
from workshop_calls import STORE, Workshop, shop, workshop

from milepost import SQLiteStore
from milepost.model.info import Wait
from milepost.model.workers import ScheduleInfo, WorkerInfo
from milepost.store import Release
from milepost.testing.tables import trying

__all__ = ["shop", "workshop"]

APP = ("--app", "workshop:engine")
WRONG = [
    (2, ["worker"]),
    (2, ["worker", "--app", "workshop"]),
    (2, ["worker", "--app", "workshop:nothing"]),
    (2, ["worker", "--app", "workshop:Own"]),
    (2, ["worker", "--app", "workshop:later"]),
    (2, ["worker", "--app", "workshop:fails"]),
    (2, ["worker", "--app", "workshop:unnamed", *STORE]),
    (2, ["worker", "--app", "workshop:idle"]),
    (2, ["worker", "--app", "shop:number"]),
    (2, ["worker", *APP, "--flow", "nothing"]),
    (2, ["worker", *APP, "--limit", "orders"]),
    (2, ["worker", *APP, "--limit", "orders=0"]),
    (2, ["worker", *APP, "--limit", "orders=many"]),
    (2, ["worker", *APP, "--limit", "nothing=1"]),
    (2, ["worker", *APP, "--concurrency", "0"]),
    (2, ["worker", "--app", "workshop:worker", "--concurrency", "2"]),
    (2, ["worker", "--app", "workshop:worker", "--flow", "orders"]),
    (2, ["worker", *APP, "--poll", "0s"]),
    (2, ["worker", *APP, "--poll", "1"]),
    (2, ["worker", *APP, "--grace", "30"]),
    (2, ["recover", "--app", "workshop:own"]),
    (3, ["recover", "--app", "shop:graph"]),
    (3, ["watch", "a", "--app", "shop:graph"]),
    (2, ["start", "orders"]),
    (2, ["start", "nothing", *APP]),
    (2, ["start", "orders", "--app", "workshop:own"]),
    (2, ["start", "orders", *APP, "-i", "id=a", "--at", "tomorrow"]),
    (2, ["start", "orders", *APP, "-i", "id=a", "--at", "2026-12-24T18:00:00"]),
    (2, ["start", "orders", *APP, "-i", "id=a", "--run-id", ""]),
    (2, ["start", "orders", *APP, '{"id": 3}']),
    (1, ["start", "orders", *APP, "-i", "id=a", "--run-id", "a"]),
    (1, ["start", "orders", *APP, "-i", "id=other", "--run-id", "a", "--if-exists", "return"]),
    (2, ["signal", "a", "paid", "{", *STORE]),
    (2, ["signal", "a", "paid", "NaN", *STORE]),
    (2, ["signal", "a", "paid", '{"sum": -1e999}', *STORE]),
    (2, ["signal", "a", "paid", '{"sum": 1, "sum": 2}', *STORE]),
    (2, ["signal", "a", "paid", "5" * 5000, *STORE]),
    (2, ["signal", "a", "paid", "[" * 100_000, *STORE]),
    (2, ["start", "orders", *APP, "-i", "id=" + "[" * 100_000]),
    (2, ["start", "orders", *APP, "-i", "id=" + "5" * 5000]),
    (2, ["start", "orders", *APP, '{"id": "a", "id": "b"}']),
    (2, ["signal", "a", "", *STORE]),
    (1, ["signal", "a", "paid", "--to", "price#1", *STORE]),
    (2, ["signal", "a", "paid", "--app", "workshop:own"]),
    (3, ["signal", "nobody", "paid", *APP]),
    (3, ["cancel", "nobody", *STORE]),
    (3, ["cancel", "nobody"]),
    (2, ["requeue", "--yes", *STORE]),
    (2, ["requeue", "a", "--status", "failed", "--yes", *STORE]),
    (2, ["cancel", *STORE]),
    (2, ["cancel", "a", "--prefix", "a", *STORE]),
    (2, ["cancel", "--created-before", "2026-12-24T18:00:00", "--yes", *STORE]),
    (2, ["runs", "--created-after", "tomorrow", *STORE]),
    (3, ["requeue", "nobody", "--yes", *STORE]),
    (3, ["watch", "nobody", *STORE]),
    (3, ["watch", "nobody", *APP]),
]


def test_what_is_wrong_is_told_in_one_line(workshop: Workshop) -> None:
    workshop.start("a")
    for code, arguments in WRONG:
        with trying(arguments=arguments):
            answer = workshop.call(*arguments)
            assert (code, "") == (answer.code, answer.out)
            told = [line for line in answer.err.splitlines() if line != "made" and ": app " not in line]
            assert 1 == len(told)
            assert told[0].startswith("milepost: ")
            assert not (workshop.folder / ".milepost").exists()


# -- requeue -----------------------------------------------------------------------------------------------


def test_requeue_leaves_runs_to_the_workers(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        workshop.start(name, "-i", f"id={name}", "-i", "fails=true")
    workshop.start("fine")
    workshop.call("worker", "--until-idle", *APP)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    questions: list[str] = []
    monkeypatch.setattr("click.confirm", lambda question, err: questions.append(question))
    answer = workshop.call("requeue", "--flow", "orders", "--error", "RuntimeError", *STORE)
    shown = ["would requeue c", "would requeue b", "would requeue a", "nothing was requeued"]
    assert (1, shown, ["requeue 3 runs?"]) == (answer.code, answer.err.splitlines(), questions)
    assert "requeued 1 run\n" == workshop.call("requeue", "a", "--yes", *STORE).out
    document = workshop.call("requeue", "b", "fine", "--yes", "--json", *STORE).json
    assert (["b"], "run 'fine' is finished") == (document["done"], document["refused"]["fine"].partition(":")[0])
    assert ["ready", "ready", "failed", "finished"] == [workshop.status(name) for name in ("a", "b", "c", "fine")]
    assert "no runs match\n" == workshop.call("requeue", "--error", "TypeError", "--yes", *STORE).out


def test_runs_that_match_are_shown_before_they_are_touched(workshop: Workshop) -> None:
    for name in ("a-1", "a-2", "b-1"):
        workshop.start(name, "-i", f"id={name}", "-i", "fails=true")
    for command in ("requeue", "cancel"):
        answer = workshop.call(command, "--prefix", "a-", "--status", "ready", *STORE)
        shown = [
            *(f"would {command} a-{n}" for n in (2, 1)),
            f"milepost: pass --yes to {command} where nobody can be asked (see: milepost {command} --help)",
        ]
        assert (2, "", shown) == (answer.code, answer.out, answer.err.splitlines())
    answer = workshop.call("cancel", "--prefix", "a-", "--yes", "--reason", "old", *STORE)
    assert (0, "cancelled 2 runs\n") == (answer.code, answer.out)
    assert ["cancelled", "cancelled", "ready"] == [workshop.status(name) for name in ("a-1", "a-2", "b-1")]
    document = workshop.call("cancel", "--tag", "team=red", "--yes", "--json", *STORE).json
    assert {"outcomes": {}, "refused": {}, "stopped_after": None} == document


def test_runs_are_listed_by_the_same_filters(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a-1", "a-2", "b-1"):
        workshop.start(name, "-i", f"id={name}", "-i", "fails=true")
    workshop.start("fine")
    workshop.call("worker", "--until-idle", *APP)

    def listed(*options: str) -> list[str]:
        return [run["run_id"] for run in workshop.call("runs", "--json", *options, *STORE).json["runs"]]

    assert ["a-2", "a-1"] == listed("--prefix", "a-")
    assert ["b-1", "a-2", "a-1"] == listed("--error", "RuntimeError")
    assert [] == listed("--error-node", "nowhere") == listed("--created-after", "2099-01-01T00:00:00Z")
    assert ["fine"] == listed("--created-before", "2099-01-01T00:00:00Z", "--limit", "1")
    monkeypatch.setattr("milepost.engine.matching.MOST_ERRORS", 2)
    told = workshop.call("runs", "--error", "TypeError", *STORE).out
    assert "no runs match\nthe errors of 2 runs were compared; more: milepost runs --after a-2\n" == told


# -- start -------------------------------------------------------------------------------------------------


def test_start_runs_nothing_and_prints_the_id_alone(workshop: Workshop) -> None:
    answer = workshop.call("start", "orders", '{"id": "a"}', "--run-id", "o-1", "--tag", "team=red", *APP)
    assert (0, "o-1\n") == (answer.code, answer.out)
    assert ["made", f"milepost: app workshop:engine is in {workshop.folder / 'workshop.py'}"] == answer.err.splitlines()
    shown = workshop.call("show", "o-1", "--json", *STORE).json
    assert ("ready", {"team": "red"}, []) == (shown["run"]["status"], shown["run"]["tags"], shown["steps"])


def test_start_takes_a_target_and_a_store(workshop: Workshop) -> None:
    document = workshop.call("start", "shop.py:graph", "-i", "id=a", "--json", *STORE).json
    assert ("ready", None) == (document["status"], document["wake_at"])
    assert "ready" == workshop.status(document["run_id"])
    assert 0 == workshop.call("start", "shop:graph", "-i", "id=a").code
    assert (workshop.folder / ".milepost" / "runs.db").exists()


def test_start_by_name_needs_no_code(workshop: Workshop) -> None:
    assert "n-1\n" == workshop.call("start", "orders", '{"id": "a"}', "--run-id", "n-1", *STORE).out
    assert "n-2\n" == workshop.call("start", "orders", "-i", "id=5", "--run-id", "n-2", *STORE).out
    for shown in (workshop.call("show", "n-1", *STORE).out, workshop.call("show", "n-1", "--json", *STORE).json["why"]):
        assert "it was started by name, and no worker knows flow 'orders' so far" in shown
    assert 0 == workshop.call("worker", "--until-idle", *APP).code
    assert ("finished", "blocked") == (workshop.status("n-1"), workshop.status("n-2"))
    shown = workshop.call("show", "n-2", "--json", *STORE).json
    assert "input.id should be str, but it is an integer" in shown["why"]
    assert "mend the cause, then milepost resume n-2 [TARGET] goes on" in shown["why"]
    assert 2 == workshop.call("start", "orders", "{", *STORE).code


def test_start_waits_for_its_time(workshop: Workshop) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    workshop.start("later", "-i", "id=a", "--at", moment.isoformat())
    workshop.start("now", "-i", "id=a", "--at", "2026-01-01T00:00:00+01:00")
    assert 0 == workshop.call("worker", "--until-idle", *APP).code
    assert ("ready", "finished") == (workshop.status("later"), workshop.status("now"))
    why = workshop.call("show", "later", "--json", *STORE).json["why"]
    assert why.startswith(f"starts at {moment:%Y-%m-%d %H:%M:%S} UTC; milepost worker or milepost resume later")


def test_start_of_a_run_that_is_there_gives_its_id(workshop: Workshop) -> None:
    workshop.start("a")
    assert "a\n" == workshop.call("start", "orders", "-i", "id=a", "--run-id", "a", "--if-exists", "return", *APP).out


# -- worker ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("app", ["workshop:engine", "workshop:worker", "workshop:make", "workshop.py:engine"])
def test_a_worker_runs_what_was_started(workshop: Workshop, app: str) -> None:
    workshop.start("a")
    assert 0 == workshop.call("start", "parcels", "--run-id", "p", *APP).code
    answer = workshop.call("worker", "--app", app, "--until-idle")
    assert 0 == answer.code
    assert "a node prints this" in answer.out
    assert ("finished", {"weight": 7}) == (workshop.status("a"), json.loads(workshop.call("state", "p", *STORE).out))


def test_a_worker_may_be_made_of_a_graph_and_a_store(workshop: Workshop) -> None:
    workshop.start("a")
    assert 0 == workshop.call("worker", "--app", "shop:graph", "--until-idle", *STORE).code
    assert "finished" == workshop.status("a")


def test_a_worker_of_the_users_own_kind_is_run(workshop: Workshop) -> None:
    answer = workshop.call("worker", "--app", "workshop:own", "--until-idle")
    assert (0, "runs, until idle: True\n") == (answer.code, answer.out)


def test_a_worker_logs_a_line_for_each_run_that_is_taken_and_ends(workshop: Workshop) -> None:
    workshop.start("good")
    workshop.start("bad", "-i", "id=a", "-i", "fails=true")
    log, traced, frames = workshop.call("worker", "--until-idle", *APP).err.partition(
        "Traceback (most recent call last):\n"
    )
    assert traced
    frames, told_by, rest = frames.partition("by the bank\n")
    assert "in charge" in frames
    assert told_by
    told = [line for line in (log + rest).splitlines() if line != "made" and ": app " not in line]
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z (info|warning): ", line) for line in told)
    text = "\n".join(line.partition("Z ")[2] for line in told)
    assert re.match(r"info: worker \d+ takes up runs of 'orders', 'parcels' in .*runs\.db, 10 at once\n", text)
    for line in (
        "info: run 'good' of flow 'orders' goes on at 'price'",
        "info: run 'good' of flow 'orders' is finished after ",
        "warning: run 'bad': attempt 1 of node 'charge' failed: RuntimeError: card refused",
        "info: run 'bad' of flow 'orders' is failed after ",
    ):
        assert 1 == text.count(line)
    assert "node 'price' completed" not in text
    assert re.search(r"info: worker \d+ has ended$", text)


def test_a_worker_with_json_logs_documents_and_nothing_else(workshop: Workshop) -> None:
    workshop.start("a")
    answer = workshop.call("worker", "--until-idle", "--json", *APP)
    lines = answer.events
    assert {"info"} == {line["level"] for line in lines}
    assert [None, "a", "a", None] == [line["run_id"] for line in lines]
    assert all(datetime.fromisoformat(line["time"]).tzinfo is not None for line in lines)
    assert "a node prints this" in answer.err


def test_debug_shows_what_nodes_do(workshop: Workshop) -> None:
    workshop.start("a")
    err = workshop.call("worker", "--until-idle", "--debug", *APP).err
    assert 1 == err.count("node 'price' starts: visit 1, attempt 1")


def test_a_worker_takes_the_flows_that_are_named_and_no_more_than_the_limits(workshop: Workshop) -> None:
    workshop.start("a")
    assert 0 == workshop.call("start", "parcels", "--run-id", "p", *APP).code
    options = ("--flow", "parcels", "--limit", "parcels=1", "--poll", "0.1s", "--grace", "1s", "--concurrency", "2")
    assert 0 == workshop.call("worker", *APP, "--until-idle", *options).code
    assert ("ready", "finished") == (workshop.status("a"), workshop.status("p"))


# -- recover -----------------------------------------------------------------------------------------------


def test_recover_tells_what_became_of_each_run(workshop: Workshop) -> None:
    workshop.start("gone-on")
    workshop.start("fails", "-i", "id=a", "-i", "fails=true")
    foreign = ("start", "shop:async_graph", "-i", "id=a", "--run-id", "foreign", *STORE)
    assert 0 == workshop.call(*foreign).code
    answer = workshop.call("recover", *APP)
    assert 1 == answer.code
    rows = [re.split(r"  +", line) for line in answer.out.splitlines() if line != "a node prints this"]
    assert ["run", "flow", "became", "why"] == rows[0]
    assert {
        ("gone-on", "orders", "finished", "-"),
        ("foreign", "async_orders", "left", "this app has no flow 'async_orders'"),
    } < {tuple(row) for row in rows[1:]}
    failed = next(row for row in rows if row[0] == "fails")
    assert ["fails", "orders", "failed"] == failed[:3]
    assert failed[3].startswith("node 'charge' of run 'fails' failed: RuntimeError: card refused")
    assert ["3 runs: 1 finished, 1 failed, 1 left"] == rows[-1]


def test_recover_names_the_difference_that_refuses_a_run(workshop: Workshop) -> None:
    workshop.start("a")
    workshop.change('"price"', '"cost"')
    answer = workshop.call("recover", "--json", *APP)
    assert 1 == answer.code
    (told,) = answer.json["runs"]
    assert ("refused", "ready") == (told["became"], told["status"])
    assert "'price'" in told["why"]
    assert "--rename price=NEW" in told["why"]
    shown = workshop.call("show", "a", "--json", *STORE).json
    assert shown["why"].startswith("ready since ")
    assert "(refused: " in shown["why"]
    assert "'price'" in shown["why"]
    workshop.change('"cost"', '"price"')
    answer = workshop.call("recover", "--json", *APP)
    assert (0, {"finished": 1}) == (answer.code, answer.json["counts"])


def test_recover_with_nothing_to_do_says_so(workshop: Workshop) -> None:
    assert (0, "nothing was due\n") == (workshop.call("recover", *APP).code, workshop.call("recover", *APP).out)
    assert {"runs": [], "counts": {}} == workshop.call("recover", "--json", "--app", "workshop:worker").json


def test_recover_leaves_what_is_not_due(workshop: Workshop) -> None:
    workshop.start("later", "-i", "id=a", "--at", "2200-01-01T00:00:00Z")
    assert "nothing was due\n" == workshop.call("recover", *APP).out


# -- signal and cancel -------------------------------------------------------------------------------------


def waiting_run() -> None:
    with SQLiteStore("runs.db") as store:
        wait = Wait("approve#1", "approval", prompt="is it good?")
        store.release(make_run(store, "w"), Release("waiting", waiting_for=(wait,), signals=0))


def test_a_signal_reaches_the_wait_that_show_tells_of(workshop: Workshop) -> None:
    waiting_run()
    why = workshop.call("show", "w", "--json", *STORE).json["why"]
    assert "waits for signal 'approval' at 'approve#1' (is it good?); milepost signal w approval [JSON] sends it" == why
    answer = workshop.call("signal", "w", "approval", '{"ok": true}', "--signal-id", "s-1", "--to", "approve#1", *STORE)
    assert (0, "signal 'approval' of run 'w': taken: the run waits for it\n") == (answer.code, answer.out)
    again = workshop.call("signal", "w", "approval", "--signal-id", "s-1", "--json", *STORE)
    assert {"run_id": "w", "signal": "approval", "outcome": "duplicate"} == again.json
    with SQLiteStore("runs.db") as store:
        assert [('{"ok":true}', "s-1")] == [(s.payload.decode(), s.signal_id) for s in store.signals("w") if s.payload]
    assert "ready" == workshop.status("w")


def test_the_payload_of_a_signal_is_read_from_the_standard_input(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.start("a")
    monkeypatch.setattr("sys.stdin", io.StringIO("[1]"))
    answer = workshop.call("signal", "a", "paid", "-", *APP)
    assert (0, "signal 'paid' of run 'a': kept: nobody waits for it yet\n") == (answer.code, answer.out)
    with SQLiteStore("runs.db") as store:
        assert [b"[1]"] == [signal.payload for signal in store.signals("a")]


def test_a_cancel_ends_a_run_that_nobody_executes(workshop: Workshop) -> None:
    workshop.start("a")
    answer = workshop.call("cancel", "a", "--reason", "no money", *APP)
    assert (0, "cancel of run 'a': cancelled: the run is cancelled\n") == (answer.code, answer.out)
    assert "no money" in workshop.call("show", "a", *STORE).out
    assert {"run_id": "a", "outcome": "ended"} == workshop.call("cancel", "a", "--json", *STORE).json


def test_a_cancel_is_asked_of_an_owner(workshop: Workshop) -> None:
    with SQLiteStore("runs.db") as store:
        make_run(store, "live")
        assert "cancel of run 'live': requested" in workshop.call("cancel", "live", *STORE).out
        why = workshop.call("show", "live", "--json", *STORE).json["why"]
    assert why.startswith("executed by process ")
    assert why.endswith("; a cancel is open")


def test_an_engine_may_forbid_what_the_command_line_asks(workshop: Workshop) -> None:
    path = workshop.folder / "workshop.py"
    path.write_text(
        path.read_text(encoding="utf-8").replace("deps=7)", "deps=7, authorize=lambda *asked: False)"), encoding="utf-8"
    )
    workshop.start("a")
    assert 1 == workshop.call("cancel", "a", *APP).code
    assert 1 == workshop.call("signal", "a", "paid", *APP).code
    assert "ready" == workshop.status("a")


# -- workers and schedules ---------------------------------------------------------------------------------


def test_workers_and_their_schedules_are_listed(workshop: Workshop) -> None:
    assert 3 == workshop.call("workers", *STORE).code
    workshop.start("fine")
    told = workshop.call("workers", *STORE)
    assert (0, True) == (told.code, told.out.startswith("not known"))
    assert {"workers": None} == workshop.call("workers", "--json", *STORE).json
    assert {"schedules": None} == workshop.call("schedules", "--json", *STORE).json
    workshop.call("worker", "--until-idle", "--concurrency", "3", *APP)
    (shown,) = workshop.call("workers", "--json", *STORE).json["workers"]
    assert (3, [], {}) == (shown["concurrency"], shown["schedules"], shown["refused"])
    assert "orders" in shown["flows"]
    header, row = workshop.call("workers", *STORE).out.splitlines()
    assert ["worker", "beat", "runs", "flows", "refused"] == header.split()
    assert (True, True) == (row.startswith(shown["name"]), "0 of 3" in row)
    assert "no worker has a schedule\n" == workshop.call("schedules", *STORE).out


def test_schedules_are_paused_and_resumed(workshop: Workshop) -> None:
    workshop.start("fine")
    now = datetime.now(UTC)
    schedule = ScheduleInfo("nightly", "orders", "0 3 * * *", "Europe/Berlin", now, "nightly@1")
    with SQLiteStore("runs.db") as store:
        store.beat(WorkerInfo("w", "host", 1, now, now, {"orders": "f"}, 10, 0, schedules=(schedule,)))
    assert "paused nightly\n" == workshop.call("schedules", "pause", "nightly", "--by", "ann", *STORE).out
    assert 0 == workshop.call("schedules", "pause", "weekly", *STORE).code
    header, nightly, weekly = workshop.call("schedules", *STORE).out.splitlines()
    assert ["schedule", "flow", "cron", "zone", "next", "last", "run", "paused"] == header.split()
    assert (True, True) == ("nightly@1" in nightly and "by ann" in nightly, weekly.startswith("weekly"))
    first, second = workshop.call("schedules", "--json", *STORE).json["schedules"]
    assert ("0 3 * * *", "ann", None) == (first["cron"], first["paused"]["by"], second["paused"]["by"])
    answer = workshop.call("schedules", "resume", "nightly", "--json", *STORE)
    assert (0, {"schedule": "nightly", "outcome": "resumed"}) == (answer.code, answer.json)
    assert ["weekly"] == [
        shown["name"] for shown in workshop.call("schedules", "--json", *STORE).json["schedules"] if shown["paused"]
    ]
