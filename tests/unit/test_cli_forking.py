"""fork, and turns on the command line."""

from __future__ import annotations

import json

import pytest
from cli_calls import Shop, shop

from milepost import SQLiteStore

__all__ = ["shop"]


@pytest.fixture
def done(shop: Shop) -> Shop:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    return shop


def test_fork_prints_the_id_of_a_run_that_can_be_resumed(done: Shop) -> None:
    exported = done.call_process("export", "a").out
    answer = done.call("fork", "a", "--node", "charge", "--visit", "1", "--as", "b")
    assert (0, "b\n") == (answer.code, answer.out)
    assert 0 == done.call("verify", "b").code
    assert "forked from run 'a' at record 2" in done.call("history", "b").out
    assert "milepost.forked_from=a#2" in done.call("show", "b").out
    assert 0 == done.call("resume", "b", "shop:graph").code
    both = [json.loads(done.call("state", run_id, "--json").out)["state"] for run_id in ("a", "b")]
    assert both[0] == both[1]
    assert exported == done.call_process("export", "a").out


def test_fork_makes_an_id_and_takes_another_store(done: Shop) -> None:
    made = done.call("fork", "a").out.strip()
    assert 0 == done.call("resume", made, "shop:graph").code
    document = done.call("fork", "a", "--into", "sqlite:///other.db", "--as", "a", "--json").json
    assert ("a", "interrupted", "a") == (document["run_id"], document["status"], document["forked_from"])
    assert document["store"].endswith("other.db")
    with SQLiteStore("other.db") as store:
        assert {"milepost.forked_from": "a#4"} == store.get_run("a").info.tags
    assert "ready" == done.call("fork", "a", "--ready", "--json").json["status"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("no",), 3, "no run 'no'"),
        (("a", "--node", "no"), 3, "no"),
        (("a", "--node", "price", "--visit", "9"), 3, "no visit 9"),
        (("a", "--visit", "1"), 2, "--node"),
        (("a", "--as", "a"), 1, "choose another --as ID"),
        (("a", "--as", ".."), 2, ".."),
    ],
)
def test_fork_tells_what_is_wrong(done: Shop, arguments: tuple[str, ...], code: int, told: str) -> None:
    answer = done.call("fork", *arguments)
    assert (code, "") == (answer.code, answer.out)
    assert told in answer.err


def test_run_begins_a_new_turn_of_a_run_that_has_finished(done: Shop) -> None:
    answer = done.call("run", "shop:graph", "-i", "id=again", "--run-id", "a", "--if-exists", "continue")
    assert 0 == answer.code
    assert "a new turn begins at 'price'" in done.call("history", "a").out
    assert "again" == done.call("state", "a", "--json").json["state"]["id"]
    assert 0 == done.call("verify", "a").code


def test_show_says_where_a_turn_that_has_only_begun_goes_on(done: Shop) -> None:
    answer = done.call("start", "shop:graph", "-i", "id=again", "--run-id", "a", "--if-exists", "continue")
    assert (0, "a\n") == (answer.code, answer.out)
    assert "price" == done.call("show", "a", "--json").json["next_node"]
    answer = done.call("run", "shop:graph", "-i", "id=b", "--run-id", "a", "--if-exists", "continue")
    assert (0, "finished") == (answer.code, done.call("show", "a", "--json").json["run"]["status"])
    records = done.call("history", "a", "--json").json["records"]
    assert [*range(1, 7)] == [r["visit"] for r in records if (r["kind"], r["node_id"]) == ("checkpoint", "price")]
