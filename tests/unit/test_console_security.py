"""The security of the console: who is let in, from which page, by which host, and what no answer may hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from console_runs import FLOWS, adding, new_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from milepost import END, Engine, Graph, MemoryStore, step, workflow
from milepost.console import Console, console
from milepost.console.app import make_site
from milepost.console.guard import TokenAccess
from milepost.errors import OptionError, RunSuspended

TOKEN = "a token of 24 characters"
OWN = {"sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with new_engine() as engine:
        yield engine


def served(engine: Engine, host: str = "localhost", **options: Any) -> TestClient:
    return TestClient(console(engine, **options), base_url=f"http://{host}", follow_redirects=False)


def writing(engine: Engine, **options: Any) -> TestClient:
    return served(engine, **{"user": lambda request: "ada", "write": True, **options})


def alone(engine: Engine, *, base_path: str | None = None, **options: Any) -> tuple[TestClient, TokenAccess]:
    """A console as `milepost console` serves it."""
    access = TokenAccess(TOKEN, 8600)
    site = make_site(engine, user=lambda request: "ada", write=False, base_path=base_path, hide=(), hide_errors=False)
    app = Console(site, {"runs.example"}, access=access, takes_addresses=True)
    return TestClient(app, base_url="http://127.0.0.1:8600", follow_redirects=False, **options), access


# -- headers ---------------------------------------------------------------------------------------------------


def test_every_answer_has_the_headers(engine: Engine):
    client = served(engine)
    for path in ("/runs", "/runs.json", "/nowhere", "/runs/done/at/1?download=1"):
        headers = client.get(path).headers
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert ("nosniff", "same-origin", "no-store") == (
            headers["x-content-type-options"], headers["referrer-policy"], headers["cache-control"]
        )  # fmt: skip


def test_files_have_their_digest_in_their_path_and_never_change(engine: Engine):
    client = served(engine)
    path = client.get("/runs").text.partition('rel="icon" href="')[2].partition('"')[0]
    assert "public, max-age=31536000, immutable" == client.get(path).headers["cache-control"]
    assert 404 == client.get(path.replace("/static/", "/static/0")).status_code
    assert 200 == client.get("/favicon.ico").status_code


def test_no_page_has_code_or_style_in_it(engine: Engine):
    client = writing(engine)
    for path in ("/", "/runs", "/runs/failed", "/runs/wait", "/waits", "/runs/failed/fork"):
        text = client.get(path).text
        assert " style=" not in text
        assert "<style" not in text
        assert " onclick" not in text
        assert "hx-on" not in text
        scripts = [part.partition(">")[0] for part in text.split("<script")[1:]]
        assert all("src=" in part or 'type="application/json"' in part for part in scripts), scripts


# -- hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "options", "status"),
    [
        ("localhost", {}, 200),
        ("127.0.0.1:8000", {}, 200),
        ("[::1]:8000", {}, 200),
        ("app.localhost", {}, 200),
        ("shop.example", {}, 421),
        ("localhost.evil.example", {}, 421),
        ("10.0.0.7", {}, 421),
        ("shop.example", {"allow_hosts": ["shop.example"]}, 200),
        ("shop.example", {"allow_hosts": ["Shop.Example"]}, 200),
        ("shop.example", {"user": lambda request: "ada"}, 200),
        ("evil.example", {"user": lambda request: "ada", "allow_hosts": ["shop.example"]}, 421),
    ],
)
def test_only_known_hosts_are_answered(engine: Engine, host: str, options: dict[str, Any], status: int):
    assert status == served(engine, **options).get("/runs", headers={"host": host}).status_code


def test_a_console_that_stands_alone_answers_for_addresses_and_its_own_names(engine: Engine):
    client, _ = alone(engine)
    client.get(f"/?token={TOKEN}")
    for host, status in (("10.0.0.7:8600", 200), ("runs.example", 200), ("evil.example", 421)):
        assert status == client.get("/runs", headers={"host": host, "cookie": _cookie(client)}).status_code


def _cookie(client: TestClient) -> str:
    return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


# -- where an action comes from --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 303),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost"}, 403),
        ({"origin": "http://localhost"}, 303),
        ({"origin": "http://localhost:81"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({}, 403),
    ],
)
def test_an_action_must_be_sent_by_a_page_of_the_console(headers: dict[str, str], status: int):
    with new_engine() as engine:
        assert status == writing(engine).post("/runs/failed/retry", headers=headers).status_code


def test_no_get_changes_anything(engine: Engine):
    before = [(info.run_id, info.status, info.sequence) for info in engine.list_runs()]
    client = writing(engine)
    for action in ("retry", "requeue", "reopen", "answer"):
        assert 405 == client.get(f"/runs/failed/{action}").status_code
    for action in ("cancel", "delete", "fork"):
        assert 200 == client.get(f"/runs/ready/{action}").status_code
    assert 405 == client.post("/runs", headers=OWN).status_code
    for method in ("PUT", "DELETE", "PATCH"):
        assert 405 == client.request(method, "/runs/failed/retry", headers=OWN).status_code
    assert before == [(info.run_id, info.status, info.sequence) for info in engine.list_runs()]


def test_a_large_form_is_413(engine: Engine):
    data = {"reason": "x" * (5 * 1024 * 1024)}
    assert 413 == writing(engine).post("/runs/ready/cancel", data=data, headers=OWN).status_code


@pytest.mark.parametrize("body", [b"reason=%ff", b"reason=\xff", b"&".join(b"a=1" for _ in range(10_001))])
def test_a_form_that_is_none_is_400(engine: Engine, body: bytes):
    assert 400 == writing(engine).post("/runs/ready/cancel", content=body, headers=OWN).status_code


# -- who may do what -------------------------------------------------------------------------------------------


def test_write_without_user_is_refused(engine: Engine):
    with pytest.raises(OptionError, match="write needs user"):
        console(engine, write=True)


@pytest.mark.parametrize(
    "options",
    [
        {"base_path": "x"},
        {"base_path": "/x/"},
        {"hide": ["card"]},
        {"hide": ["state."]},
        {"allow_hosts": "shop.example"},
    ],
)
def test_options_that_make_no_sense_are_refused(engine: Engine, options: dict[str, Any]):
    with pytest.raises(OptionError):
        console(engine, **options)


def test_a_console_that_only_shows_refuses_every_action(engine: Engine):
    client = served(engine, user=lambda request: "ada")
    for action in ("retry", "requeue", "reopen", "cancel", "answer", "fork", "delete"):
        assert 403 == client.post(f"/runs/failed/{action}", headers=OWN).status_code
    assert 403 == client.post("/bulk", data={"what": "cancel", "id": "ready"}, headers=OWN).status_code


@pytest.mark.parametrize("name", [None, ""])
def test_nobody_sees_anything_if_user_knows_him_not(engine: Engine, name: str | None):
    async def user(request: Request) -> str | None:
        return name

    client = served(engine, user=user, write=True)
    for path in ("/", "/runs", "/runs/failed", "/runs.json", "/nowhere"):
        answer = client.get(path)
        assert 401 == answer.status_code
        assert engine.store.place not in answer.text
    assert 401 == client.post("/runs/failed/retry", headers=OWN).status_code


def test_a_stranger_is_not_told_where_the_store_is(engine: Engine):
    for client in (alone(engine)[0], served(engine, user=lambda request: None)):
        for path in ("/static/x/y", "/%ff", "/?x=%ff", "/nowhere"):
            assert engine.store.place not in client.get(path).text, path
        assert engine.store.place not in client.post("/runs/failed/retry").text
    known = served(engine, user=lambda request: "ada")
    for path in ("/nowhere", "/?x=%ff"):
        assert f'class="store">{engine.store.place}' in known.get(path).text, path


@pytest.mark.parametrize("answer", [False, None, 1, "yes"])
def test_only_true_lets_an_action_pass(engine: Engine, answer: Any):
    asked = []

    async def write(user: str | None, action: str, run_id: str) -> Any:
        asked.append((user, action, run_id))
        return answer

    client = writing(engine, write=write)
    fork = {"state": '{"n": 1}', "ready": "1"}
    for path, data in (("failed/retry", {}), ("ready/cancel", {}), ("wait/answer", {}), ("done/fork", fork)):
        assert 403 == client.post(f"/runs/{path}", data=data, headers=OWN).status_code
    assert ["requeue", "cancel", "signal", "fork"] == [action for _, action, _ in asked]


def test_a_fork_with_a_state_asks_about_override_and_with_ready_about_requeue(engine: Engine):
    asked = []

    def write(user: str | None, action: str, run_id: str) -> bool:
        asked.append(action)
        return True

    data = {"state": '{"n": 1}', "ready": "1", "new_run_id": "copy"}
    assert 303 == writing(engine, write=write).post("/runs/done/fork", data=data, headers=OWN).status_code
    assert ["fork", "override", "requeue"] == asked


def test_the_engines_authorize_is_asked_too():
    with new_engine() as first:
        guarded = Engine(first.store, authorize=lambda action, run_id, flow: action != "requeue")
        assert 403 == writing(guarded).post("/runs/failed/retry", headers=OWN).status_code
        assert 303 == writing(guarded).post("/runs/ready/cancel", headers=OWN).status_code


# -- the token -------------------------------------------------------------------------------------------------


def test_a_token_in_the_address_becomes_a_cookie(engine: Engine):
    client, access = alone(engine)
    assert 401 == client.get("/runs").status_code
    assert 401 == client.get("/runs?token=wrong").status_code
    answer = client.get(f"/runs?token={TOKEN}&flow=orders")
    assert (303, "/runs?flow=orders") == (answer.status_code, answer.headers["location"])
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("milepost_8600=")
    assert cookie.endswith("; HttpOnly; SameSite=Lax; Path=/")
    assert TOKEN not in cookie
    assert 200 == client.get("/runs").status_code
    # The same token makes the same proof, so the cookie outlives a restart.
    assert TokenAccess(TOKEN, 8600).cookie_header("") == access.cookie_header("")
    assert TokenAccess("another token, 24 letters", 8600).cookie_header("") != access.cookie_header("")


def test_a_token_leads_to_no_other_host(engine: Engine):
    client, _ = alone(engine)
    answer = client.get(f"http://127.0.0.1:8600//evil.example/?token={TOKEN}")
    assert (303, "/evil.example/") == (answer.status_code, answer.headers["location"])


def test_any_word_may_stand_in_an_address_with_a_token(engine: Engine):
    client, _ = alone(engine)
    answer = client.get(f"/runs?base=1&token={TOKEN}&segments=2")
    assert (303, "/runs?base=1&segments=2") == (answer.status_code, answer.headers["location"])


def test_a_ticket_is_good_once(engine: Engine):
    client, access = alone(engine)
    ticket = access.new_ticket()
    assert 303 == client.get(f"/?token={ticket}").status_code
    client.cookies.clear()
    assert 401 == client.get(f"/?token={ticket}").status_code


def test_without_the_token_nothing_is_told(engine: Engine):
    client, _ = alone(engine)
    answer = client.get("/runs/failed")
    assert "where the console was started" in answer.text
    assert engine.store.place not in answer.text
    assert 401 == client.get("/runs/failed?format=json").status_code
    assert 401 == client.post("/runs/failed/retry", headers=OWN).status_code


def test_the_cookie_holds_below_the_base_path(engine: Engine):
    client, _ = alone(engine, base_path="/milepost")
    answer = client.get(f"/runs?token={TOKEN}")
    assert "/milepost/runs" == answer.headers["location"]
    assert answer.headers["set-cookie"].endswith("Path=/milepost")
    for path in ("/", "/milepost", "/milepost/"):
        assert "/milepost/" == client.get(f"{path}?token={TOKEN}").headers["location"], path
    assert 200 == client.get("/milepost/").status_code


# -- addresses -------------------------------------------------------------------------------------------------


def test_a_console_can_be_mounted_behind_prefixes(engine: Engine):
    app = Starlette(routes=[Mount("/tools/milepost", console(engine)), Mount("/other", console(engine))])
    for root in ("", "/api"):
        client = TestClient(app, base_url="http://localhost", root_path=root)
        for prefix in ("/tools/milepost", "/other"):
            for path in (f"{prefix}/runs/a%2Fb%20%3F%23", f"{root}{prefix}/runs/a%2Fb%20%3F%23"):
                page = client.get(path)
                assert 200 == page.status_code, path
                assert f'href="{root}{prefix}/runs"' in page.text


def test_a_server_without_raw_path_says_why_an_id_with_a_slash_is_not_found(engine: Engine):
    inner = console(engine)

    async def without(scope: Any, receive: Any, send: Any) -> None:
        await inner({name: value for name, value in scope.items() if name != "raw_path"}, receive, send)

    client = TestClient(without, base_url="http://localhost")
    assert 200 == client.get("/runs/failed").status_code
    page = client.get("/runs/a%2Fb%20%3F%23")
    assert 404 == page.status_code
    assert "raw_path" in page.text


# -- what is hidden --------------------------------------------------------------------------------------------


def test_hidden_values_are_in_no_answer(engine: Engine):
    client = writing(engine, hide=["state.card", "prompt"])
    paths = ["/", "/runs", "/waits", "/runs/wait", "/runs/failed", "/runs/done", "/runs/failed/fork"]
    paths += [f"/runs/{run}/at/{n}" for run in ("failed", "done", "wait") for n in (0, 1)]
    paths += ["/runs/failed/at/1?against=input", "/runs/failed/at/1?download=1", "/flows/orders", "/flows/asking"]
    for path in paths:
        for accept in ("text/html", "application/json"):
            text = client.get(path, headers={"accept": accept}).text
            assert "4111" not in text, path
            assert "pay 12" not in text, path
    assert "•••" in client.get("/runs/failed/at/1").text


@workflow("cards")
def cards():
    yield from step("take").python(lambda: {"card": "4111"})
    yield from step("odd").python(lambda: {"card": "4111", 1: "x"})
    reply = yield from step("ask").wait_for("approval", payload=dict)
    yield from step("last").wait_for("approval", payload=bool)
    return reply.payload


def told(client: TestClient, run_id: str, newest: int) -> Iterator[tuple[str, str]]:
    """The answers that tell of a run and its records."""
    paths = [f"/runs/{run_id}", *(f"/runs/{run_id}/at/{n}{end}" for n in range(newest) for end in ("", "?download=1"))]
    for path in ("/", "/runs", "/waits", *paths):
        for accept in ("text/html", "application/json"):
            yield path, client.get(path, headers={"accept": accept}).text


@pytest.mark.parametrize("path", ["output.card", "state.*", "payload.k", "payload"])
def test_hidden_values_are_in_no_step_and_in_no_answer_to_a_wait(path: str):
    with Engine(MemoryStore(), flows=[cards]) as engine:
        with pytest.raises(RunSuspended):
            engine.run(cards, run_id="cards")
        engine.signal("cards", "approval", {"k": "5222"})
        with pytest.raises(RunSuspended):
            engine.resume(cards, "cards")
        secret = "5222" if path.startswith("payload") else "4111"
        newest = engine.handle("cards").info().sequence
        for place, text in told(served(engine, hide=[path]), "cards", newest + 1):
            assert secret not in text, place


@workflow("passing")
def passing(order):
    yield from step("look").python(lambda: {"order": order})
    return {"order": order}


@pytest.mark.parametrize("path", ["inputs.order.card", "output.order.card", "state.order.card"])
def test_a_value_is_hidden_at_the_same_path_of_every_input_and_output(path: str):
    with Engine(MemoryStore(), flows=[passing]) as engine:
        engine.run(passing, {"card": "4111"}, run_id="passed")
        newest = engine.handle("passed").info().sequence
        for place, text in told(served(engine, hide=[path]), "passed", newest + 1):
            assert "4111" not in text, place


@dataclass
class Card:
    number: str


@dataclass
class Shop:
    cards: list[Card]
    total: int = 0


def paid(number: str) -> int:
    return len(number)


def add_up(shop: Shop, lengths: list[int]) -> Shop:
    return Shop(shop.cards, sum(lengths))


def numbers(shop: Shop) -> list[str]:
    return [card.number for card in shop.cards]


paying = Graph(Shop).add_map("pay", numbers, paid, merge=add_up).set_entry("pay").add_edge("pay", END).compile("paying")


@pytest.mark.parametrize("path", ["state.cards.number", "state.cards.*.number", "state.cards", "*.cards.number"])
def test_a_value_that_is_hidden_in_the_state_is_hidden_among_the_items_of_a_map(path: str):
    with Engine(MemoryStore(), flows=[paying]) as engine:
        engine.run(paying, Shop([Card("4111"), Card("5222")]), run_id="paid")
        newest = engine.handle("paid").info().sequence
        for place, text in told(served(engine, hide=[path]), "paid", newest + 1):
            assert "4111" not in text, place
            assert "5222" not in text, place


@pytest.mark.parametrize(
    ("hide", "first", "items"),
    [
        (["items"], "4111", "•••"),
        (["items.0"], "4111", ["•••", "5222"]),
        (["state.total"], "4111", "•••"),
        (["state.total", "items.1"], "4111", ["4111", "•••"]),
        (["state.cards.0.number", "items.0"], "•••", ["•••", "5222"]),
        (["prompt"], "4111", ["4111", "5222"]),
    ],
)
def test_a_path_says_what_is_hidden_among_the_items_of_a_map(hide: list[str], first: str, items: Any):
    with Engine(MemoryStore(), flows=[paying]) as engine:
        engine.run(paying, Shop([Card("4111"), Card("5222")]), run_id="paid")
        client = served(engine, hide=hide)
        (given,) = [record.sequence for record in engine.store.read("paid", kinds=("items",))]
        assert items == client.get(f"/runs/paid/at/{given}?format=json").json()["state"]
        assert items == client.get(f"/runs/paid/at/{given}?download=1").json()
        assert first == client.get("/runs/paid/at/0?format=json").json()["state"]["cards"][0]["number"]


def charging(ending: str) -> Any:
    @workflow("charging")
    def flow(card):
        yield from step("charge").python(len, args=(card + ending,))
        yield from step("ask").wait_for("approval", payload=bool)

    return flow


@pytest.mark.parametrize("options", [{"hide": ["inputs.card"]}, {"hide_errors": True}])
def test_a_plan_quotes_no_argument_of_a_step_where_values_or_errors_are_hidden(options: dict[str, Any]):
    with Engine(MemoryStore(), flows=[charging("")]) as engine:
        with pytest.raises(RunSuspended):
            engine.run(engine.flows["charging"], "4111", run_id="r")
        changed = Engine(engine.store, flows=[charging(" 2")])
        assert "4111" in served(changed).get("/runs/r/plan").text
        plan = served(changed, **options).get("/runs/r/plan?format=json")
        assert ("refuse", "refuse") == (plan.json()["plan"]["verdict"], plan.json()["plan"]["reason"])
        assert "4111" not in plan.text


@workflow("picky")
def picky():
    yield from step("ask").wait_for("approval", payload=bool, early=True)


def test_the_refusal_of_a_hidden_answer_is_hidden_too():
    with Engine(MemoryStore(), flows=[picky]) as engine:
        engine.start(picky, run_id="picky")
        engine.signal("picky", "approval", "5222")
        with pytest.raises(RunSuspended):
            engine.resume(picky, "picky")
        newest = engine.handle("picky").info().sequence
        assert "5222" in dict(told(served(engine), "picky", newest + 1))["/runs/picky"]
        for place, text in told(served(engine, hide=["payload"]), "picky", newest + 1):
            assert "5222" not in text, place


def test_a_fork_keeps_hidden_values_and_refuses_others_for_them():
    with new_engine() as engine:
        client = writing(engine, hide=["state.card"])
        assert "card" not in client.get("/runs/failed/fork?node=add&format=json").json()["state"]
        data = {"node": "add", "state": '{"n": 5, "card": "1"}', "new_run_id": "edited"}
        refused = client.post("/runs/failed/fork", data=data, headers=OWN)
        assert 400 == refused.status_code
        assert "card is hidden" in refused.text
        data["state"] = '{"n": 5, "ok": true}'
        checked = client.post("/runs/failed/fork", data={**data, "check": "1"}, headers=OWN)
        assert "+ /ok  true" in checked.text
        assert "4111" not in checked.text
        assert "edited" not in [info.run_id for info in engine.list_runs()]
        assert 303 == client.post("/runs/failed/fork", data=data, headers=OWN).status_code
        assert b'"card":"4111"' in engine.store.export("edited")


@pytest.mark.parametrize(
    ("hide", "recorded", "typed", "status"),
    [
        ("state.lines.*.card", {"lines": [{"card": "a"}, {"card": "b"}]}, '{"lines": [{"n": 1}, {}]}', 303),
        ("state.lines.*.card", {"lines": [{"card": "a"}, {"card": "b"}]}, '{"lines": [{}]}', 400),
        ("state.lines.*.card", {"lines": [{"card": "a"}]}, '{"lines": [{}, {}]}', 400),
        ("state.lines.*.card", {"lines": [{"card": "a"}]}, '{"lines": {"x": {}}}', 400),
        ("state.lines.card", {"lines": [{"card": "a"}, {"card": "b"}]}, '{"lines": [{"n": 1}, {}]}', 303),
        ("state.lines.card", {"lines": [{"card": "a"}, {"card": "b"}]}, '{"lines": [{}]}', 400),
        ("state.c.x", {"c": {"x": "a", 1: 2}}, '{"c": {"$mp": "dict", "v": [["x", null], [1, 3]]}}', 303),
        ("state.c.x", {"c": {"x": "a", 1: 2}}, '{"c": {"$mp": "dict", "v": [["y", null], [1, 2]]}}', 400),
        ("state.card", {"card": "a"}, "[1]", 400),
    ],
)
def test_a_hidden_value_stays_with_its_item(hide: str, recorded: dict[str, Any], typed: str, status: int):
    with Engine(MemoryStore(), flows=FLOWS) as engine:
        engine.run(adding, recorded, run_id="r")
        data = {"node": "add", "state": typed, "new_run_id": "edited"}
        assert status == writing(engine, hide=[hide]).post("/runs/r/fork", data=data, headers=OWN).status_code
        assert (status == 303) == ("edited" in [info.run_id for info in engine.list_runs()])


def test_hidden_errors_show_type_and_node_alone(engine: Engine):
    client = served(engine, hide_errors=True)
    for path in (
        "/",
        "/runs",
        "/runs/failed",
        "/runs/failed/at/2",
        "/runs/failed/at/3",
        "/runs/rolled",
        "/flows/orders",
    ):
        for accept in ("text/html", "application/json"):
            text = client.get(path, headers={"accept": accept}).text
            assert "no price" not in text, path
            assert "division by zero" not in text, path
            assert "Traceback" not in text, path
    assert ("ValueError", "price") == tuple(
        client.get("/runs/failed?format=json").json()["error"][name] for name in ("error_type", "node_id")
    )


# -- texts that hide others ------------------------------------------------------------------------------------


def test_what_can_not_be_seen_or_turns_the_writing_is_an_escape_in_texts():
    with new_engine() as engine:
        evil, run_id = "\x1b[2J\x9b\u202egone\u2028\u200b", "o\u202ed"
        engine.start(adding, {"text": evil + "\0"}, run_id=run_id, tags={"t\u202e": evil})
        engine.cancel(run_id, evil + "\0")
        client = writing(engine)
        for path in ("/runs", *(f"/runs/o%E2%80%AEd{end}" for end in ("", "/at/0", "/at/1", "/fork", "/cancel"))):
            page = client.get(path).text
            assert r"\u202e" in page, path
            assert re.sub(r"<[^>]*>|\n", "", page).isprintable(), path
            document = client.get(path, headers={"accept": "application/json"}).text
            assert document.replace("\n", "").isprintable(), path
        assert f'name="id" value="{run_id}"' in client.get("/runs").text
        assert evil + "\0" == client.get("/runs/o%E2%80%AEd?format=json").json()["run"]["reason"]


def test_spaces_and_joiners_stay_in_texts():
    with new_engine() as engine:
        text = "12\u00a0000 \u200d\u200c\u3000\tx"
        engine.cancel("ready", text)
        assert text in served(engine).get("/runs/ready").text


# -- odd requests ----------------------------------------------------------------------------------------------

QUERIES = [
    *(
        "part=live&mark=x",
        "before=x",
        "before=99999999999999999999999",
        "against=9",
        "against=-1",
        "against=x",
        "node=nope",
    ),
    *("visit=0", "visit=3&node=add", "after=nope", "created_after=9999-12-31T23:59:59%2B00:00", "tag=a%3Db&tag=c%3D"),
    *(
        "created_before=0001-01-01T00:00:00%2B14:00",
        "prefix=%00",
        "flow=%ED%A0%80",
        "what=requeue",
        "what=delete&id=%00",
    ),
    *("prefix=" + "x" * 2000, "=", "&&&", "a[]=1", "error=%27", "scale=true", "visit=%C2%B2", "before=%D9%A3"),
]
FORMS: list[dict[str, str]] = [
    {"at": "x"},
    {"at": "9999-12-31T23:59:59+00:00"},
    {"wait": "ask#1", "payload": "[" * 5000},
    {"wait": "ask#1", "payload": "1e999"},
    {"wait": "ask#1", "payload": '"\\ud800"'},
    {"wait": "ask#1", "payload": "true", "signal_id": "x" * 600},
    {"node": "add", "state": "[" * 100_000},
    {"node": "add", "state": '{"a": 1e400}'},
    {"node": "add", "state": '{"a": "\\ud800"}', "new_run_id": "odd"},
    {"node": "add", "visit": "9"},
    {"new_run_id": "failed"},
    {"new_run_id": "\x00"},
    {"reason": "\x1f\x00" * 2000},
    {"what": "cancel", "before": "2026-01-01", "id": "\x00"},
]


def test_odd_requests_are_answered_with_less_than_500():
    with new_engine() as engine:
        client = writing(engine)
        for path in ("/runs", "/runs/failed", "/runs/failed/at/1", "/runs/failed/fork", "/bulk", "/waits"):
            for query in QUERIES:
                assert client.get(f"{path}?{query}").status_code < 500, (path, query)
        for path in ("/runs/failed/retry", "/runs/wait/answer", "/runs/failed/fork", "/runs/ready/cancel", "/bulk"):
            for form in FORMS:
                assert client.post(path, data=form, headers=OWN).status_code < 500, (path, form)
        for path in ("/runs/%00", "/runs/.", "/runs/..%2F..", "/runs/%00/retry"):
            assert client.get(path).status_code < 500, path
