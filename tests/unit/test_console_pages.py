"""The pages of the console, asked for over HTTP: as pages, as JSON, and of runs that are not there or damaged."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from console_runs import FLOWS, add, adding, make_runs, new_engine, orders
from starlette.testclient import TestClient

from milepost import Engine, Graph, MemoryStore, SQLiteStore, Store, open_store, step, workflow
from milepost.cli import main
from milepost.console import console
from milepost.console.pages import HANDLERS
from milepost.console.pages.run import show_run
from milepost.errors import MilepostError
from milepost.model.workers import ScheduleInfo, WorkerInfo
from milepost.testing import FakeClock

RUNS = ("done", "failed", "wait", "rolled", "fork", "ready", "a%2Fb%20%3F%23")
PAGES = [
    *(
        "/",
        "/runs",
        "/runs?status=failed&flow=orders",
        "/waits",
        "/workers",
        "/flows",
        "/flows/orders",
        "/flows/asking",
    ),
    *("/store", "/store?stats=1", "/bulk?what=requeue&status=failed", "/bulk?what=cancel&id=wait"),
    *(f"/runs/{run_id}{page}" for run_id in RUNS for page in ("", "/at/0", "/fork", "/cancel", "/delete", "?before=2")),
    *(
        "/runs/failed/at/1",
        "/runs/failed/at/1?against=input",
        "/runs/failed/at/2",
        "/runs/failed/plan",
        "/runs/done/plan",
    ),
    *("/runs/fork/at/2", "/runs/done/fork?node=add&visit=1"),
    *(f"/runs?{query}" for query in ("prefix=fa", "error=ValueError", "error_node=price", "created_after=2020-01-01")),
    *("/runs?after=wait", "/runs?status=waiting&status=dead&tag=team%3Dshop"),
]
FILES = ["/runs/failed/export", "/runs/failed/at/1?download=1", "/runs/wait/at/0?download=1"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with new_engine() as engine:
        yield engine


@pytest.fixture(params=["memory://", "sqlite:///runs.db", "file:runs", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    url = request.getfixturevalue("postgres") if request.param == "postgres" else request.param
    with open_store(url) as store:
        yield store


def test_every_page_can_be_shown_of_every_store(store: Store):
    with Engine(store, flows=FLOWS) as engine:
        make_runs(engine)
        now = datetime.now(UTC)
        store.beat(WorkerInfo("w-1", "host", 7, now, now, {"orders": "f" * 64}, 10, 2, {"failed": "other code"}, ()))
        reader = TestClient(console(engine), base_url="http://localhost")
        writer = TestClient(console(engine, user=lambda request: "ada", write=True), base_url="http://localhost")
        for path in PAGES:
            for client in (reader, writer):
                page = client.get(path)
                assert 200 == page.status_code, (path, page.text)
                assert 1 == page.text.count("<h1>"), path
            values = reader.get(path, headers={"accept": "application/json"})
            assert "application/json" == values.headers["content-type"]
            assert isinstance(values.json(), dict)
        for path in ("/", "/runs", "/workers", *(f"/runs/{run_id}" for run_id in RUNS)):
            assert "<html" not in reader.get(f"{path}?part=live").text, path
        for path in FILES:
            assert "attachment" in reader.get(path).headers["content-disposition"], path
        shown = reader.get("/runs?tag=milepost.forked_from%3Dfailed%231&format=json").json()["runs"]
        assert ["fork"] == [run["run_id"] for run in shown]
        found = {finding["name"]: finding["verdict"] for finding in reader.get("/store?format=json").json()["findings"]}
        assert "problem" not in {*found.values()} - ({"problem"} if "durable" in found else set()), found


def test_the_page_of_workers_has_those_that_beat_and_their_schedules(engine: Engine):
    store, now = engine.store, datetime.fromtimestamp(engine.store.clock.time(), UTC)
    client = TestClient(console(engine), base_url="http://localhost")
    assert "no worker has beaten" in client.get("/runs/ready?format=json").json()["workers_note"]
    schedule = ScheduleInfo("nightly", "orders", "0 2 * * *", "UTC", now, "done")
    store.beat(
        WorkerInfo("w-1", "host", 7, now, now, {"orders": "f" * 64}, 10, 2, {"failed": "other <code>"}, (schedule,))
    )
    store.pause_schedule("weekly", by="bea")  # no worker has it
    values = client.get("/workers?format=json").json()
    assert [("w-1", True, {"failed": "other <code>"})] == [
        (worker["name"], worker["is_alive"], worker["refused"]) for worker in values["workers"]
    ]
    assert [("nightly", "done", None), ("weekly", None, "bea")] == [
        (schedule["name"], schedule["last_run_id"], schedule["paused"] and schedule["paused"]["by"])
        for schedule in values["schedules"]
    ]
    assert "by bea" in client.get("/workers").text
    assert "other &lt;code&gt;" in client.get("/workers").text
    assert "" == client.get("/runs/failed?format=json").json()["workers_note"]
    assert "no worker that beats has flow 'adding'" in client.get("/runs/ready?format=json").json()["workers_note"]
    assert [{"run_id": "failed", "reason": "other <code>"}] == client.get("/?format=json").json()["refused"]
    hiding = TestClient(console(engine, hide_errors=True), base_url="http://localhost")
    assert "other &lt;code" not in hiding.get("/").text
    assert "other" not in hiding.get("/workers").text


@pytest.fixture
def client(engine: Engine) -> TestClient:
    return TestClient(console(engine), base_url="http://localhost")


@pytest.fixture
def writer(engine: Engine) -> TestClient:
    return TestClient(console(engine, user=lambda request: "ada", write=True), base_url="http://localhost")


def test_a_page_that_only_shows_has_no_button_that_acts(client: TestClient, writer: TestClient):
    for path in PAGES:
        assert '<form method="post"' not in client.get(path).text
    assert '<form method="post" action="/runs/failed/retry">' in writer.get("/runs/failed").text


def test_the_list_has_a_link_to_each_run(client: TestClient):
    assert 'href="/runs/a%2Fb%20%3F%23"' in client.get("/runs").text
    assert "a/b ?#" in [run["run_id"] for run in client.get("/runs.json").json()["runs"]]
    assert "a/b ?#" == client.get("/runs/a%2Fb%20%3F%23?format=json").json()["run"]["run_id"]


def test_the_page_of_a_run_that_failed_shows_its_error_and_escapes_it(client: TestClient):
    assert "ValueError: no price &lt;b&gt;for&lt;/b&gt; it" in client.get("/runs/failed").text
    values = client.get("/runs/failed?format=json").json()
    assert ("ValueError", "price", 1) == tuple(values["error"][name] for name in ("error_type", "node_id", "before"))
    assert ["done", "failed"] == [node["status"] for node in values["graph"]["nodes"]]
    assert ["retry", "fork", "delete"] == [button["action"] for button in values["buttons"]]


def test_the_state_before_a_failure_is_that_of_the_node_itself_if_it_comes_again():
    graph = Graph(dict).add_node("again", lambda state: {"n": 1 // (2 - state["n"]) + state["n"]}).set_entry("again")
    looping = graph.add_conditional_edge("again", lambda state: "again", ["again", "__end__"]).compile("looping")
    with Engine(MemoryStore()) as other:
        with pytest.raises(MilepostError):
            other.run(looping, {"n": 1}, run_id="r")
        values = TestClient(console(other), base_url="http://localhost").get("/runs/r?format=json").json()
    assert 1 == values["error"]["before"]


def test_a_fork_leads_to_its_origin_and_each_record_to_the_forks_that_begin_there(client: TestClient):
    assert {"run_id": "failed", "sequence": 1} == client.get("/runs/fork?format=json").json()["origin"]
    for page in ("/runs/failed", "/runs/failed/at/1"):
        forks = client.get(f"{page}?format=json").json()["forks"]
        assert 1 == forks["sequence"]
        address = f"/runs?{urlencode({'tag': forks['tag']})}"
        assert f'href="{address}"' in client.get(page).text
        assert ["fork"] == [run["run_id"] for run in client.get(f"{address}&format=json").json()["runs"]]
    assert client.get("/runs/failed/at/2?format=json").json()["forks"] is None


def test_a_run_leads_to_the_forks_that_begin_with_its_corrected_state():
    with new_engine() as engine:
        with suppress(MilepostError):
            engine.resume_from(orders, "failed", "add", state_override=lambda state: {**state, "n": 9})
        engine.fork_run(orders, "failed", new_run_id="again")
        client = TestClient(console(engine), base_url="http://localhost")
        tag = client.get("/runs/failed?format=json").json()["forks"]["tag"]
        assert ["again"] == [run["run_id"] for run in client.get("/runs.json", params={"tag": tag}).json()["runs"]]


def test_a_run_leads_to_its_plan_if_the_code_of_its_flow_is_known(engine: Engine, client: TestClient):
    assert 'href="/runs/failed/plan"' in client.get("/runs/failed").text
    assert "/plan" not in client.get("/runs/done").text
    without = TestClient(console(engine.store), base_url="http://localhost")
    assert "/plan" not in without.get("/runs/failed").text


def test_commands_to_copy_are_quoted(engine: Engine, client: TestClient):
    values = client.get("/runs/a%2Fb%20%3F%23?format=json").json()
    assert "`milepost show 'a/b ?#'`" in values["markdown"]


LOOKS: list[Any] = []


@workflow("lost")
def lost():
    yield step("look").python(lambda: LOOKS.pop()())


def test_a_workflow_without_an_owner_goes_on_without_a_router(monkeypatch: pytest.MonkeyPatch):
    pages: list[str] = []
    with Engine(MemoryStore()) as engine:
        client = TestClient(console(engine), base_url="http://localhost")

        def look() -> None:
            monkeypatch.setattr("milepost.stores.base.fence.shown_status", lambda row, state: "dead")
            monkeypatch.setattr("milepost.views.status.LONG", 1)
            pages.extend(client.get(f"{path}?format=json").text for path in ("/", "/runs", "/flows/lost"))

        LOOKS.append(look)
        with suppress(MilepostError):
            engine.run(lost, run_id="r")
    for page in pages:
        assert "milepost resume r [TARGET] goes on" in page
        assert "router" not in page
    assert 3 == len(pages)


@workflow("limited")
def limited():
    yield step("ask").wait_for("approval", timeout=60)


def test_the_end_of_a_wait_for_a_person_is_not_told_as_the_time_when_the_run_goes_on():
    clock = FakeClock()
    with Engine(MemoryStore(clock=clock), clock=clock) as engine:
        with suppress(MilepostError):
            engine.run(limited, run_id="r")
        (told,) = TestClient(console(engine), base_url="http://localhost").get("/runs/r?format=json").json()["next"]
    assert told.startswith("without an answer it goes on at ")


@pytest.mark.parametrize("url", ["sqlite:///runs.db", "file:runs"])
def test_the_page_of_the_store_shows_what_doctor_finds_and_writes_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    with open_store(url) as store, Engine(store) as engine:
        engine.run(adding, {}, run_id="r")
    place = tmp_path / url.rpartition("/")[2].removeprefix("file:")
    place.chmod(0o755)
    main(["doctor", "--json", "--store", url])
    told = json.loads(capsys.readouterr().out)["findings"]
    with open_store(url, read_only=True) as store:
        before = {path: path.stat().st_mtime_ns for path in place.parent.rglob("*")}
        client = TestClient(console(store), base_url="http://localhost")
        found = client.get("/store?format=json").json()["findings"]
        assert before == {path: path.stat().st_mtime_ns for path in place.parent.rglob("*")}
        assert ["note"] == [finding["verdict"] for finding in found if finding["name"].endswith(" mode")]
        assert "chmod" in client.get("/store").text
    free = "free space"  # others may write meanwhile
    assert [finding for finding in found if finding["name"] != free and finding not in told] == []
    assert free in {finding["name"] for finding in found}


def test_each_page_that_follows_says_where_it_is(client: TestClient):
    for path in ("/", "/runs", "/runs/done", "/workers"):
        part = client.get(path).text.partition(' id="live"')[2].partition(">")[0]
        assert f'data-here="{path}"' in part, path


def test_a_checkpoint_shows_what_changed(client: TestClient):
    values = client.get("/runs/failed/at/1?format=json").json()
    assert [{"sign": "+", "text": "/n  1"}] == values["changes"]
    assert {"card": "4111", "n": 1} == values["state"]
    download = client.get("/runs/failed/at/1?download=1")
    assert 'attachment; filename="record-1.json"' == download.headers["content-disposition"]
    assert download.headers["content-type"].startswith("text/plain")
    assert {"card": "4111", "n": 1} == download.json()


def test_a_run_is_exported_whole_or_not_at_all(engine: Engine, client: TestClient):
    answer = client.get("/runs/done/export")
    assert engine.store.export("done") == answer.content
    assert "attachment" in answer.headers["content-disposition"]
    assert "milepost record-test done" == client.get("/runs/done?format=json").json()["commands"]["test"]
    for options in ({"hide": ["state.card"]}, {"hide_errors": True}):
        hiding = TestClient(console(engine, **options), base_url="http://localhost")
        assert 403 == hiding.get("/runs/done/export").status_code
        assert "" == hiding.get("/runs/done?format=json").json()["commands"]["test"]
    assert 404 == client.get("/runs/nowhere/export").status_code


def test_a_part_that_has_not_changed_is_204(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.console.app._FRESH", 0.0)
    with new_engine() as engine:
        client = TestClient(console(engine), base_url="http://localhost")
        for path in ("/runs", "/runs/ready", "/"):
            mark = client.get(path).text.partition('data-mark="')[2].partition('"')[0]
            part = f"{path}?part=live&mark={mark}"
            assert 204 == client.get(part).status_code, path
            if path.startswith("/runs"):
                engine.cancel("ready")
                engine.run(adding, {}, run_id="another", if_exists="return")
                changed = client.get(part)
                assert 200 == changed.status_code, path
                assert "<html" not in changed.text
                engine.requeue("ready", reopen=True)
        assert 404 == client.get("/runs?part=nothing").status_code


def test_one_look_a_second_serves_all_who_ask_for_a_part(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    looks: list[str] = []
    now = [100.0]

    def look(site: Any, asked: Any) -> Any:
        looks.append(asked.ids[0])
        return show_run(site, asked)

    monkeypatch.setitem(HANDLERS, "run", look)  # type: ignore[arg-type]
    monkeypatch.setattr("milepost.console.app.monotonic", lambda: now[0])
    client = TestClient(console(engine), base_url="http://localhost")
    for _ in range(3):
        assert 200 == client.get("/runs/done?part=live").status_code
    assert 200 == client.get("/runs/failed?part=live").status_code
    now[0] += 1
    assert 200 == client.get("/runs/done?part=live").status_code
    assert ["done", "failed", "done"] == looks


def test_a_run_that_is_not_there_is_404_and_near_ids_are_shown(client: TestClient):
    page = client.get("/runs/fail")
    assert 404 == page.status_code
    assert 'href="/runs/failed"' in page.text
    for path in (
        "/nothing/of/this",
        "/runs/done/at/99",
        "/runs/done/at/x",
        "/runs/done/at/%D9%A1",
        "/runs/done/at/%D9%A1?download=1",
        "/flows/none",
        "/runs/%ff",
        "/static/x/y.js",
    ):
        assert 404 == client.get(path).status_code, path


@pytest.mark.parametrize("query", ["status=odd", "tag=x", "created_after=soon", "flow=a&flow=b", "tag=%ff"])
def test_a_filter_that_makes_no_sense_is_400(client: TestClient, query: str):
    assert 400 == client.get(f"/runs?{query}").status_code


def test_a_page_that_began_at_a_run_that_was_deleted_begins_anew(client: TestClient):
    for path in ("/runs", "/waits"):
        values = client.get(f"{path}?after=gone&format=json").json()
        assert "was deleted" in values["note"], path
        assert "was deleted" in client.get(f"{path}?after=gone").text
        assert values[path[1:]], path


def test_the_list_has_where_each_run_stands_and_its_error(client: TestClient):
    rows = {run["run_id"]: run for run in client.get("/runs?format=json").json()["runs"]}
    assert ("price", "ValueError") == (rows["failed"]["where"], rows["failed"]["error_type"])
    assert ("(end)", "ask", "add") == tuple(rows[run_id]["where"] for run_id in ("done", "wait", "ready"))
    page = client.get("/runs?status=failed&flow=orders").text
    assert '<td data-label="Where">price <small>ValueError</small></td>' in page


def test_a_run_shows_the_code_with_which_it_began_even_if_it_was_started_by_name():
    with new_engine() as engine:
        Engine(engine.store).start("adding", {}, run_id="named")
        client = TestClient(console(engine), base_url="http://localhost")
        assert client.get("/runs/named?format=json").json()["fingerprint"] is None
        engine.worker(FLOWS).run(until_idle=True)
        for run_id in ("named", "done"):
            assert adding.fingerprint == client.get(f"/runs/{run_id}?format=json").json()["fingerprint"]
            assert adding.fingerprint[:8] in client.get(f"/runs/{run_id}").text


def test_the_first_page_groups_failures(client: TestClient):
    groups = client.get("/?format=json").json()["failures"]
    assert ("orders", "price", "ValueError", 1) in [
        (group["flow"], group["node_id"], group["error_type"], group["count"]) for group in groups
    ]


def test_groups_of_failures_stand_beside_the_code_of_their_runs_and_of_the_workers():
    with new_engine() as engine:
        now = datetime.fromtimestamp(engine.store.clock.time(), UTC)
        for number, code in enumerate((orders.fingerprint, "e" * 64, "e" * 64)):
            began = now + timedelta(minutes=number)
            flows = {"orders": code, "other": "f" * 64}
            engine.store.beat(WorkerInfo(f"w-{number}", "host", 7, began, now, flows, 1, 0, {}, ()))
        client = TestClient(console(engine), base_url="http://localhost")
        groups = {group["flow"]: group for group in client.get("/?format=json").json()["failures"]}
        assert orders.fingerprint == groups["orders"]["fingerprint"]
        assert [("e" * 64, "01"), (orders.fingerprint, "00")] == [
            (code["fingerprint"], code["since"][14:16]) for code in groups["orders"]["code"]
        ]
        assert [] == groups["paying"]["code"]
        assert f"began with <code>{orders.fingerprint[:8]}" in client.get("/").text


@pytest.mark.parametrize(
    "damage", ["records SET header = 'x'", "records SET payload = x'00'", "runs SET status = 'odd'"]
)
def test_damage_is_shown_and_hides_nothing_else(tmp_path: Path, damage: str):
    place = tmp_path / "runs.db"
    with SQLiteStore(place) as store, Engine(store) as engine:
        for run_id in ("sound", "broken"):
            engine.run(adding, {}, run_id=run_id)
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute(
            f"UPDATE {damage} WHERE id = (SELECT max(id) FROM {damage.split()[0]})"
            if "runs" in damage
            else f"UPDATE {damage} WHERE sequence = 1 AND run = (SELECT max(run) FROM records)"
        )
    with SQLiteStore(place) as store:
        engine = Engine(store, flows=[adding])
        for options in ({}, {"user": lambda request: "ada", "write": True}):
            client = TestClient(console(engine, **options), base_url="http://localhost")
            for path in ("/", "/runs", "/waits", "/flows/adding", "/runs/sound", "/runs/sound/at/1", "/store?stats=1"):
                assert 200 == client.get(path).status_code, path
            for path in (
                "",
                "/at/0",
                "/at/1",
                "/at/1?download=1",
                "/at/2",
                "/fork",
                "/fork?node=add",
                "/cancel",
                "/plan",
            ):
                page = client.get(f"/runs/broken{path}")
                assert page.status_code in {200, 409}, (path, page.text)
                assert "<h1>" in page.text or path.endswith("download=1")
            assert "broken" in client.get("/runs").text
        shown = "".join(client.get(path).text for path in ("/runs/broken", "/runs/broken/at/1", "/runs"))
        assert "damaged" in shown or "can&#39;t be read" in shown or "unknown status" in shown


def test_a_record_is_compared_with_the_state_before_it_on_its_own_path():
    graph = Graph(dict).add_node("begin", add).add_node("left", add).add_node("right", add)
    graph.add_node("join", add, merge=lambda before, states: before).set_entry("begin")
    graph.add_map("each", lambda state: [{"n": 1}, {"n": 2}], add, merge=lambda state, results: state)
    graph.add_edge("begin", "left").add_edge("begin", "right").add_edge("left", "join").add_edge("right", "join")
    parted = graph.add_edge("join", "each").add_edge("each", "__end__").compile("parted")
    with Engine(MemoryStore(), flows=[parted]) as engine:
        engine.run(parted, {}, run_id="r")
        client = TestClient(console(engine), base_url="http://localhost")
        numbers = {record.node_id: record.sequence for record in engine.store.read("r", kinds=("checkpoint",))}
        pages = {name: client.get(f"/runs/r/at/{at}?format=json").json() for name, at in numbers.items()}
        page = client.get(f"/runs/r/at/{numbers['each/0']}?against=0&format=json").json()
    compared = {"begin": 0, "left": 1, "right": 1, "join": 1, "each/0": None, "each/1": None, "each": numbers["join"]}
    assert compared == {name: page["against"] for name, page in pages.items()}
    assert 0 == page["against"]


def test_the_result_of_a_step_is_compared_with_nothing():
    @workflow("steps")
    def steps(n: int):
        yield from step("one").python(lambda: {"x": 1})
        return (yield from step("two").python(lambda: {"x": 2}))

    with Engine(MemoryStore(), flows=[steps]) as engine:
        engine.run(steps, 1, run_id="r")
        client = TestClient(console(engine), base_url="http://localhost")
        records = client.get("/runs/r?format=json").json()["history"]["records"]
        against = [client.get(f"/runs/r/at/{number}?format=json").json()["against"] for number in range(4)]
    assert [""] * 4 == [record["changed"] for record in records]
    assert [None] * 4 == against
