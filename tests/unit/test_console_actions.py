"""The actions of the console: each is one verb of the engine, and a worker does the work."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from html import unescape
from typing import Any, Literal

import pytest
from console_runs import FLOWS, adding, new_engine
from starlette.testclient import TestClient

from milepost import END, Engine, Graph, MemoryStore, SQLiteStore, parallel, step, workflow
from milepost.codec.schema import schema_of
from milepost.console import console
from milepost.console.forms import inputs_of, read_payload
from milepost.errors import RunSuspended
from milepost.model.info import RunInfo

OWN = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with new_engine() as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> TestClient:
    return writer(engine)


def writer(engine: Engine, **options: Any) -> TestClient:
    app = console(engine, user=lambda request: "ada", write=True, **options)
    return TestClient(app, base_url="http://localhost", headers=OWN, follow_redirects=False)


def info(engine: Engine, run_id: str) -> RunInfo:
    return engine.handle(run_id).info()


def actors(client: TestClient, run_id: str) -> list[tuple[str, str]]:
    return [(action["action"], action["by"]) for action in client.get(f"/runs/{run_id}?format=json").json()["actions"]]


# -- one run ---------------------------------------------------------------------------------------------------


def test_retry_leaves_a_run_to_the_workers_and_says_who_did_it(engine: Engine, client: TestClient):
    answer = client.post("/runs/failed/retry")
    assert (303, "/runs/failed") == (answer.status_code, answer.headers["location"])
    assert "ready" == info(engine, "failed").status
    assert [("requeue", "ada")] == actors(client, "failed")


def test_a_program_gets_json_for_an_action(client: TestClient):
    answer = client.post("/runs/failed/retry", headers={"accept": "application/json"})
    assert {"done": "retry", "run_id": "failed"} == answer.json()


def test_a_run_can_be_left_for_later(engine: Engine, client: TestClient):
    assert 303 == client.post("/runs/fork/requeue", data={"at": "2030-01-01T00:00:00Z"}).status_code
    assert datetime(2030, 1, 1, tzinfo=UTC) == info(engine, "fork").wake_at


def test_a_cancel_has_its_reason_and_a_cancelled_run_can_be_reopened(engine: Engine, client: TestClient):
    assert 303 == client.post("/runs/ready/cancel", data={"reason": "not wanted"}).status_code
    assert ("cancelled", "not wanted") == (info(engine, "ready").status, info(engine, "ready").reason)
    assert ["reopen", "fork", "delete"] == [
        button["action"] for button in client.get("/runs/ready?format=json").json()["buttons"]
    ]
    assert 303 == client.post("/runs/ready/reopen").status_code
    assert "ready" == info(engine, "ready").status


def test_a_deleted_run_is_gone(client: TestClient):
    answer = client.post("/runs/done/delete")
    assert (303, "/runs") == (answer.status_code, answer.headers["location"])
    assert 404 == client.get("/runs/done").status_code
    assert 404 == client.post("/runs/done/retry").status_code


def test_what_the_engine_refuses_is_told(client: TestClient):
    answer = client.post("/runs/done/retry")
    assert 409 == answer.status_code
    assert "has finished" in answer.text or "finished" in answer.text


# -- forks -----------------------------------------------------------------------------------------------------


def test_a_fork_needs_no_code(engine: Engine):
    client = writer(Engine(engine.store))
    page = client.get("/runs/failed/fork?node=add&format=json").json()
    assert not page["can_edit"]
    assert "--app" in page["why_not"]
    answer = client.post("/runs/failed/fork", data={"node": "add", "new_run_id": "a copy"})
    assert "/runs/a%20copy" == answer.headers["location"]
    assert "interrupted" == info(engine, "a copy").status
    values = client.get("/runs/a%20copy?format=json").json()
    assert ({"run_id": "failed", "sequence": 1}, [["fork", "ada"]]) == (
        values["origin"], [[action["action"], action["by"]] for action in values["actions"]],
    )  # fmt: skip


def test_a_fork_goes_on_with_an_edited_state(engine: Engine, client: TestClient):
    page = client.get("/runs/failed/fork?node=add&format=json").json()
    assert {"card": "4111", "n": 1} == json.loads(page["state"])
    data = {"node": "add", "state": '{"n": 1, "ok": true}', "new_run_id": "edited", "ready": "1"}
    checked = client.post("/runs/failed/fork?format=json", data={**data, "check": "1"}).json()
    assert ['- /card  "4111"', "+ /ok  true"] == [f"{each['sign']} {each['text']}" for each in checked["checked"]]
    assert 303 == client.post("/runs/failed/fork", data=data).status_code
    engine.worker().run(until_idle=True)
    assert {"n": 1, "ok": True, "price": 12} == engine.handle("edited").result()
    assert "failed" == info(engine, "failed").status


def roll(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "rolls": state.get("rolls", 0) + 1}


def rolled() -> Any:
    """A graph whose router decides otherwise each time that it is asked."""
    ways = iter(("high", "low", "low"))
    graph = (
        Graph(dict).add_node("roll", roll).add_node("high", adding_place("high")).add_node("low", adding_place("low"))
    )
    graph.add_conditional_edge("roll", lambda state: next(ways), ["high", "low"]).set_entry("roll")
    return graph.add_edge("high", END).add_edge("low", END).compile("rolled")


def adding_place(name: str) -> Any:
    return lambda state: {**state, "place": name}


def form_of(client: TestClient, run_id: str, node: str) -> dict[str, str]:
    """The form that forks a run, as a browser sends it when nobody has touched it."""
    page = client.get(f"/runs/{run_id}/fork?node={node}").text
    fields = dict(re.findall(r'<input type="hidden" name="(.*?)" value="(.*?)">', page))
    (text,) = re.findall(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    return {**fields, "state": unescape(text).replace("\n", "\r\n")}


@pytest.mark.parametrize("options", [{}, {"hide": ["state.card"]}])
def test_a_form_that_nobody_has_edited_forks_the_state_as_it_was_recorded(options: dict[str, Any]):
    flow, asked = rolled(), []
    with Engine(MemoryStore(), flows=[flow]) as engine:
        engine.run(flow, {"card": "4111"}, run_id="r")

        def write(user: str | None, action: str, run_id: str) -> bool:
            asked.append(action)
            return action != "override"

        app = console(engine, user=lambda request: "ada", write=write, **options)
        client = TestClient(app, base_url="http://localhost", headers=OWN, follow_redirects=False)
        form = {**form_of(client, "r", "roll"), "new_run_id": "copy"}
        assert 303 == client.post("/runs/r/fork", data=form).status_code
        assert ["fork"] == asked
        engine.resume(flow, "copy")
        assert {"card": "4111", "rolls": 1, "place": "high"} == engine.handle("copy").result()
        edited = {**form, "state": form["state"].replace("1", "2"), "new_run_id": "edited"}
        assert 403 == client.post("/runs/r/fork", data=edited).status_code
        checked = client.post("/runs/r/fork?format=json", data={**edited, "check": "1"})
        assert 403 == checked.status_code
        again = client.post("/runs/r/fork?format=json", data={**form, "check": "1"}).json()
        assert ([], form["shown"]) == (again["checked"], again["shown"])


def test_a_state_that_no_form_holds_is_forked_as_it_was_recorded(engine: Engine, client: TestClient):
    engine.run(adding, {"rows": ["äöü"] * 150_000}, run_id="large")
    page = client.get("/runs/large/fork?node=add&format=json").json()
    assert (False, "") == (page["can_edit"], page["state"])
    assert "too large to be edited in a form" in page["why_not"]
    assert "<textarea" not in client.get("/runs/large/fork?node=add").text
    assert 303 == client.post("/runs/large/fork", data={"node": "add", "new_run_id": "copy"}).status_code


def test_a_fork_is_made_once(engine: Engine, client: TestClient):
    page = client.get("/runs/done/fork").text
    (made,) = re.findall(r'name="new_run_id" value="([^"]+)"', page)
    before = len(engine.list_runs())
    statuses = [client.post("/runs/done/fork", data={"new_run_id": made}).status_code for _ in range(2)]
    assert ([303, 409], before + 1) == (statuses, len(engine.list_runs()))


@pytest.mark.parametrize("state", ["{", "[1]", "NaN", '{"n": 1e999}', '{"n": 1, "n": 2}', "[" * 100_000])
def test_a_text_that_is_no_state_makes_no_fork(engine: Engine, client: TestClient, state: str):
    answer = client.post("/runs/failed/fork", data={"node": "add", "state": state, "new_run_id": "bad"})
    assert 400 == answer.status_code
    assert 422 == client.post("/runs/failed/fork", data={"node": "add", "state": state, "check": "1"}).status_code
    assert "bad" not in [run.run_id for run in engine.list_runs()]


# -- answers ---------------------------------------------------------------------------------------------------


def test_an_answer_is_sent_once(engine: Engine, client: TestClient):
    page = client.get("/runs/wait").text
    assert 'name="field:" value="true"' in page
    data = {"wait": "ask#1", "signal_id": "s-1", "field:": "true"}
    for _ in range(2):
        answer = client.post("/runs/wait/answer", data=data)
        assert (303, "/runs/wait") == (answer.status_code, answer.headers["location"])
    assert 1 == len(engine.store.signals("wait"))
    engine.worker().run(until_idle=True)
    assert engine.handle("wait").result() is True
    assert [("signal", "ada")] == actors(client, "wait")


@workflow("twice")
def twice():
    yield parallel("both", *(step(name).wait_for("approval", payload=bool) for name in ("one", "two")))


def test_each_wait_of_a_run_is_answered_for_itself(engine: Engine, client: TestClient):
    with pytest.raises(RunSuspended):
        engine.run(twice, run_id="twice")
    page = client.get("/runs/twice").text
    assert 2 == len(set(re.findall(r'name="signal_id" value="(.*?)"', page)))
    places = re.findall(r'name="wait" value="(.*?)"', page)
    first, second = dict.fromkeys(places)
    assert (
        303 == client.post("/runs/twice/answer", data={"wait": first, "signal_id": "s", "field:": "true"}).status_code
    )
    answer = client.post("/runs/twice/answer", data={"wait": second, "signal_id": "s", "field:": "true"})
    assert 409 == answer.status_code
    assert "another wait" in answer.text


def test_a_wrong_answer_stays_at_its_form(engine: Engine, client: TestClient):
    answer = client.post("/runs/wait/answer", data={"wait": "ask#1", "payload": '"perhaps"'})
    assert 422 == answer.status_code
    assert "&#34;perhaps&#34;</textarea>" in answer.text
    assert '<p class="error" role="alert">' in answer.text
    assert "waiting" == info(engine, "wait").status
    assert 422 == client.post("/runs/wait/answer", data={"wait": "ask#1", "payload": "{"}).status_code
    assert 422 == client.post("/runs/wait/answer", data={"wait": "ask#1"}).status_code
    assert 409 == client.post("/runs/wait/answer", data={"wait": "other#1", "field:": "true"}).status_code


@dataclass
class Address:
    street: str
    number: int


@dataclass
class Order:
    name: str
    amount: int
    weight: float
    paid: bool
    size: Literal["S", "M"]
    to: Address
    due: date
    tags: list[str]
    note: str | None = None
    ratio: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def test_a_schema_makes_a_form_and_its_texts_a_payload():
    schema = schema_of(Order)
    kinds = {each.name.removeprefix("field:"): each.kind for each in inputs_of(schema)}
    assert {
        "name": "text", "amount": "integer", "weight": "number", "paid": "yesno", "size": "choice", "to/street": "text",
        "to/number": "integer", "due": "text", "tags": "list", "note": "text", "ratio": "number", "extra": "json",
    } == kinds  # fmt: skip
    typed = {
        "name": "Ada", "amount": "90071992547409931", "weight": "1.5", "paid": "false", "size": '"M"', "to/street": "Long",
        "to/number": "7", "due": "2026-11-28", "tags": "a\r\n\r\nb", "note": "", "ratio": "2", "extra": '{"x": [1]}',
    }  # fmt: skip
    form = {f"field:{name}": [text] for name, text in typed.items()}
    payload = read_payload(schema, form)
    assert not payload.errors
    assert {
        "name": "Ada", "amount": 90071992547409931, "weight": 1.5, "paid": False, "size": "M",
        "to": {"street": "Long", "number": 7}, "due": "2026-11-28", "tags": ["a", "b"], "ratio": 2, "extra": {"x": [1]},
    } == payload.value  # fmt: skip
    wrong = {**form, "field:amount": ["1.5"], "field:weight": ["NaN"], "field:size": ['"XL"'], "field:name": [""]}
    errors = read_payload(schema, wrong).errors
    assert {"field:amount", "field:weight", "field:size", "field:name"} == {*errors}
    again = inputs_of(schema, wrong, errors)
    assert ("1.5", "'1.5' is no whole number") == next(
        (each.value, each.error) for each in again if each.name == "field:amount"
    )


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        ({"type": "number"}, "-1e999", "-1e999 is beyond the largest number"),
        ({"type": "integer"}, "5" * 5000, "a number has 5000 digits, which are too many"),
        ({"type": "object"}, '{"a": 1, "a": 2}', "an object has the key 'a' twice"),
        ({"type": "array"}, "[" * 100_000, "it is nested too deep"),
        ({"type": "array"}, '[{"":' * 251 + "1" + "}]" * 251, "it is nested too deep"),
        ({"type": "array"}, "[", "this is no JSON: Expecting value: line 1 column 2 (char 1)"),
    ],
)
def test_json_that_would_not_be_taken_as_it_is_typed_is_refused(schema: dict[str, Any], text: str, why: str):
    assert {"field:": why} == read_payload(schema, {"field:": [text]}).errors


def test_json_as_deep_as_any_codec_takes_is_read():
    assert not read_payload({"type": "array"}, {"field:": ['[{"":' * 250 + "1" + "}]" * 250]}).errors


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "long"),
        ({"type": "boolean"}, "yesno"),
        ({"const": 3}, "choice"),
        ({"enum": ["a", None]}, "choice"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "datetime"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "json"),
        ({"type": ["object", "array"]}, "json"),
        ({"type": "array", "items": {"type": "integer"}}, "list"),
        ({"type": "array", "items": {"type": "array"}}, "json"),
        ({}, "json"),
        (None, "json"),
        ({"$ref": "#/$defs/x"}, "json"),
    ],
)
def test_any_schema_has_one_input_at_least(schema: Any, kind: str):
    assert [("field:", kind)] == [(each.name, each.kind) for each in inputs_of(schema)]
    read_payload(schema, {"field:": ["["]})
    read_payload(schema, {})


# -- many runs -------------------------------------------------------------------------------------------------


def posted(page: dict[str, Any]) -> dict[str, list[str]]:
    """The hidden inputs of a page's form."""
    data: dict[str, list[str]] = {}
    for each in page["fields"]:
        data.setdefault(each["name"], []).append(each["value"])
    return data


def test_many_runs_are_acted_on_200_at_a_time(engine: Engine, client: TestClient):
    for number in range(250):
        engine.start(adding, {}, run_id=f"many-{number:03}", tags={"batch": "7"})
    engine.store.clock.advance(1)  # type: ignore[attr-defined]
    page = client.get("/bulk?what=cancel&tag=batch%3D7&format=json").json()
    assert ("250", 20) == (page["count"], len(page["runs"]))
    assert "milepost cancel --tag batch=7" == page["command"]
    engine.start(adding, {}, run_id="later", tags={"batch": "7"}, at=datetime.now(UTC) + timedelta(days=1))
    first = client.post("/bulk?format=json", data=posted(page)).json()
    assert (200, {}) == (len(first["done"]), first["refused"])
    second = client.post("/bulk?format=json", data=posted(first)).json()
    assert (50, None) == (len(second["done"]), second["fields"])


def test_chosen_runs_are_acted_on_and_refusals_are_told(engine: Engine, client: TestClient):
    asked = client.get("/bulk?what=requeue&id=failed&id=done&id=nowhere&format=json").json()
    assert "milepost requeue failed done nowhere" == asked["command"]
    result = client.post("/bulk?format=json", data=posted(asked)).json()
    assert (["failed"], ["done"], None) == (result["done"], [*result["refused"]], result["fields"])
    assert [("requeue", "ada")] == actors(client, "failed")


def test_each_of_many_runs_is_asked_about(engine: Engine):
    app = console(engine, user=lambda request: "ada", write=lambda user, action, run_id: run_id != "failed")
    client = TestClient(app, base_url="http://localhost", headers=OWN)
    asked = client.get("/bulk?what=delete&id=failed&id=done&format=json").json()
    result = client.post("/bulk?format=json", data=posted(asked)).json()
    assert (["done"], {"failed": "ada may not delete it"}) == (result["done"], result["refused"])


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"what": "burn"},
        {"what": "cancel"},
        {"what": "cancel", "before": "2026-01-01"},
        {"what": "cancel", "before": "2026-01-01", "id": "\x00"},
    ],
)
def test_a_form_that_names_no_runs_does_nothing(client: TestClient, data: dict[str, str]):
    assert 400 == client.post("/bulk", data=data).status_code


# -- stores with keys ------------------------------------------------------------------------------------------


@workflow("secretive")
def secretive():
    reply = yield from step("ask").wait_for("approval", payload=bool, prompt="a secret question")
    return reply.payload


@workflow("secret_step")
def secret_step(card: str):
    return (yield from step("take").python(lambda: {"card": card}))


KEYS = {"signing_key": {"s1": b"x" * 24}, "encryption_key": {"e1": b"k" * 32}}


@pytest.mark.parametrize("option", KEYS)
def test_without_the_key_nothing_is_shown_that_is_not_proven(tmp_path: Any, option: str):
    place = tmp_path / "runs.db"
    with SQLiteStore(place, **{option: KEYS[option]}) as store, new_engine_over(store) as keyed:
        assert "a secret question" in writer(keyed).get("/runs/wait").text
    with SQLiteStore(place) as store:
        client = writer(Engine(store))
        paths = ["/", "/runs", "/waits", "/runs/wait", "/runs/failed", "/flows/orders", "/runs/failed/fork"]
        paths += [f"/runs/{run}/at/{number}" for run in ("failed", "wait") for number in (0, 1, 2)]
        for path in paths:
            for accept in ("text/html", "application/json"):
                answer = client.get(path, headers={"accept": accept})
                for secret in ("secret question", "no price", "ValueError", "4111", "Traceback", "aesgcm:"):
                    assert secret not in answer.text, (path, secret)
                assert 'name="payload"' not in answer.text
        page = client.get("/runs/wait").text
        assert ("s1" if option == "signing_key" else "e1") in page
        for path in ("/runs/wait/answer", "/runs/wait/cancel", "/runs/failed/retry"):
            assert 409 == client.post(path, data={"wait": "ask#1", "payload": "true"}).status_code
        assert 409 == client.get("/runs/failed/at/1?download=1").status_code


@pytest.mark.parametrize("forged", [0, 1])
def test_a_record_that_was_changed_is_not_shown(tmp_path: Any, forged: int):
    place = tmp_path / "runs.db"
    with SQLiteStore(place, signing_key=KEYS["signing_key"]) as store:
        engine = Engine(store, flows=FLOWS)
        engine.run(adding, {"card": "true"}, run_id="graph")
        engine.run(secret_step, "true", run_id="steps")
    with closing(sqlite3.connect(place)) as connection, connection:
        changed = "CAST(replace(CAST(payload AS TEXT), 'true', 'lies') AS BLOB)"
        connection.execute(f"UPDATE records SET payload = {changed} WHERE sequence = ?", (forged,))
    with SQLiteStore(place, signing_key=KEYS["signing_key"]) as store:
        client = writer(Engine(store, flows=[*FLOWS, secret_step]))
        for run in ("graph", "steps"):
            pages = [
                f"/runs/{run}",
                *(f"/runs/{run}/at/{number}{end}" for number in (0, 1) for end in ("", "?download=1")),
            ]
            for path in (*pages, f"/runs/{run}/fork?node=add"):
                assert "lies" not in client.get(path).text, path
                assert "lies" not in client.get(path, headers={"accept": "application/json"}).text, path
            assert 409 == client.get(f"/runs/{run}/at/{forged}?download=1").status_code
            note = client.get(f"/runs/{run}/at/{forged}?format=json").json()["note"]
            assert "changed" in note
        assert "Not shown" in client.get("/runs/steps").text


def new_engine_over(store: Any) -> Engine:
    from console_runs import orders

    engine = Engine(store, flows=[orders, secretive])
    with pytest.raises(RunSuspended):
        engine.run(secretive, run_id="wait")
    with pytest.raises(Exception, match="no price"):
        engine.run(orders, {"card": "4111"}, run_id="failed")
    return engine


def test_a_store_that_does_not_answer_is_503():
    store = MemoryStore()
    client = writer(Engine(store))
    store.close()
    for path in ("/", "/runs", "/runs/x", "/waits", "/flows", "/store?stats=1"):
        answer = client.get(path)
        assert 503 == answer.status_code, path
        assert "Try again" in answer.text
    assert (
        'href="/runs?flow=a&amp;base=1&amp;status=failed&amp;status=ready"'
        in client.get("/runs?flow=a&base=1&status=failed&status=ready").text
    )
    answer = client.post("/runs/x/retry")
    assert 503 == answer.status_code
    assert '<a href="/runs/x">Try again</a>' in answer.text
