"""Graphs with forks, maps, graphs inside and waits on the command line: graph --run, show, history, signal, cancel, resume."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cli_calls import Answer, Shop, shop
from test_cli_edges import in_terminal

from milepost import SQLiteStore
from milepost.graph.status import Visit
from milepost.views.tree import graph_rows

__all__ = ["shop"]

SOURCE = """
import atexit
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from milepost import END, Engine, Graph
from milepost.reducers import append


@dataclass
class Trip:
    cities: list[str] = field(default_factory=list)
    told: Annotated[list[str], append] = field(default_factory=list)
    full: bool = False
    rounds: int = 0


@dataclass
class City:
    name: str


def keep(state):
    return state


def seats(trip):
    if trip.full:
        raise ValueError("no seats\\\\nleft")
    return trip


def look(city):
    if city == "nowhere":
        raise ValueError("no such city")
    return city.upper()


def see(city):
    return City(look(city.name))


def tell(trip, found):
    trip.told.extend(map(str, found))
    return trip


def answered(trip, reply):
    trip.told.append(f"{reply.payload}")
    return trip


def count(trip):
    trip.rounds += 1
    return trip


def hold(trip):
    print("held\\n", end="", flush=True)  # in one piece, whoever else prints
    while not Path("go").exists():
        time.sleep(0.01)
    return trip


cars = (
    Graph(Trip).add_node("find", keep).add_node("book", keep).add_edge("find", "book").add_edge("book", END)
    .set_entry("find").compile("cars")
)
visit = (
    Graph(City).add_node("go", keep).add_node("see", see).add_edge("go", "see").add_edge("see", END)
    .set_entry("go").compile("visit")
)


def forked(name, join=keep, hotels=keep):
    return (
        Graph(Trip).add_node("plan", keep).add_node("flights", keep).add_node("seats", seats).add_subgraph("cars", cars)
        .add_node("hotels", hotels).add_node("meet", join).set_entry("plan")
        .add_edge("plan", "flights").add_edge("plan", "hotels").add_edge("plan", "cars")
        .add_edge("flights", "seats").add_edge("seats", "meet").add_edge("hotels", "meet").add_edge("cars", "meet")
    )


trips = forked("trips").add_edge("meet", END).compile("trips")
held = forked("held", hotels=hold).add_edge("meet", END).compile("held")
looped = (
    forked("looped", count)
    .add_conditional_edge("meet", lambda trip: END if trip.rounds > 1 else "plan", {"again": "plan", END: END, "plan": "plan"})
    .compile("looped")
)
mapped = (
    Graph(Trip).add_map("cities", lambda trip: trip.cities, look, merge=tell).add_edge("cities", END)
    .set_entry("cities").compile("mapped")
)
toured = (
    Graph(Trip).add_map("cities", lambda trip: [City(name) for name in trip.cities], visit, merge=tell)
    .add_edge("cities", END).set_entry("cities").compile("toured")
)
asked = (
    Graph(Trip).add_node("plan", keep).add_node("hotels", keep).add_node("meet", keep)
    .add_wait("ask", "approval", apply=answered, prompt="is it good?", payload=bool)
    .add_edge("plan", "hotels").add_edge("plan", "ask").add_edge("hotels", "meet").add_edge("ask", "meet")
    .add_edge("meet", END).set_entry("plan").compile("asked")
)
asked_twice = (
    Graph(Trip).add_node("plan", keep).add_node("meet", keep)
    .add_wait("one", "approval", apply=answered, prompt={"of": 1}).add_wait("two", "approval", apply=answered)
    .add_edge("plan", "one").add_edge("plan", "two").add_edge("one", "meet").add_edge("two", "meet")
    .add_edge("meet", END).set_entry("plan").compile("asked_twice")
)
rested = (
    Graph(Trip).add_timer("rest", duration=86400).add_edge("rest", END).set_entry("rest").compile("rested")
)


def loose():
    return Graph(Trip).add_node("a", keep).add_node("b", keep).add_node("c", keep).set_entry("a")


engine = Engine("sqlite:///.milepost/runs.db", flows=[trips, asked])
atexit.register(engine.close)
"""


class Travel(Shop):
    """A working directory with `travel.py` in it."""

    def call(self, *arguments: str) -> Answer:
        found = sys.modules.pop("travel", None)
        try:
            return super().call(*arguments)
        finally:
            for module in (found, sys.modules.pop("travel", None)):
                if module is not None:
                    module.engine.close()

    def start(self, target: str, state: str = "{}") -> Answer:
        """Run a graph as run `a`, and take the code away."""
        answer = self.call("run", f"travel:{target}", state, "--run-id", "a")
        (self.folder / "travel.py").rename(self.folder / "gone.txt")
        return answer

    def bring_back(self) -> None:
        """Have the code there again."""
        (self.folder / "gone.txt").rename(self.folder / "travel.py")

    def rows(self) -> list[list[str]]:
        """The tree that show prints: name as it stands, kind, status, and what is told."""
        parts = self.call("show", "a").out.split("\n\n")
        header, *rows = next(part for part in parts if " kind " in part).splitlines()
        at = [header.index(column) for column in ("kind", "status", "attempts", "detail")]
        return [
            [row[: at[0]].rstrip(), row[at[0] : at[1]].strip(), row[at[1] : at[2]].strip(), row[at[3] :]]
            for row in rows
        ]

    def json(self, *options: str) -> Any:
        """What show tells as JSON."""
        return self.call("show", "a", "--json", *options).json


@pytest.fixture
def travel(shop: Shop) -> Iterator[Travel]:
    (shop.folder / ".milepost").mkdir()
    (shop.folder / "travel.py").write_text(SOURCE, encoding="utf-8")
    yield Travel(shop.folder, shop.capsys)
    sys.modules.pop("travel", None)


# -- show ----------------------------------------------------------------------------------------------------


def test_show_has_branches_below_their_fork_and_nodes_of_a_graph_below_theirs(travel: Travel) -> None:
    assert 0 == travel.start("trips").code
    assert [
        ["plan#1", "fork", "done", "3 branches"],
        ["  flights", "branch", "done", "-"],
        ["    flights#1", "-", "done", "-"],
        ["    seats#1", "-", "done", "-"],
        ["  hotels", "branch", "done", "-"],
        ["    hotels#1", "-", "done", "-"],
        ["  cars", "branch", "done", "-"],
        ["    cars#1", "subgraph", "done", "-"],
        ["      find#1", "-", "done", "-"],
        ["      book#1", "-", "done", "-"],
        ["meet#1", "-", "done", "-"],
    ] == travel.rows()
    assert "next     (end)" in travel.call("show", "a").out


def test_show_tells_where_each_branch_of_an_open_fork_stands(travel: Travel) -> None:
    assert 1 == travel.start("trips", '{"full": true}').code
    rows = travel.rows()
    assert ["  flights", "branch", "failed", "at seats"] in rows
    assert ["    seats#1", "-", "failed", "ValueError: no seats\\nleft"] in rows
    assert ["  hotels", "branch", "done", "-"] in rows
    shown = travel.json()
    assert ("seats", ["seats"]) == (shown["next_node"], shown["next_nodes"])
    assert ("failed", "done") == (shown["statuses"]["seats"], shown["statuses"]["cars/book"])
    assert ["flights", "hotels", "cars"] == [branch["node_id"] for branch in shown["tree"][0]["steps"]]
    assert [] == shown["superseded"]
    (seats,) = [step for step in shown["steps"] if step["node_id"] == "seats"]
    assert (0, 1) == (seats["visits"], seats["failures"])
    assert "next     seats" in travel.call("show", "a").out


def test_show_tells_how_far_a_map_is_with_its_items_below_it(travel: Travel) -> None:
    travel.start("mapped", '{"cities": ["rome", "nowhere", "oslo"]}')
    assert [
        ["cities#1", "map", "failed", "2 of 3 items, 1 failed"],
        ["  0", "item", "done", "-"],
        ["  1", "item", "failed", "ValueError: no such city"],
        ["  2", "item", "done", "-"],
    ] == travel.rows()
    shown = travel.json()
    assert {"cities": {"done": 2, "failed": 1, "total": 3}} == shown["maps"]
    assert "1" == str(shown["tree"][0]["steps"][1]["failures"])


def test_the_nodes_of_the_items_of_a_map_of_a_graph_stand_below_them(travel: Travel) -> None:
    travel.start("toured", '{"cities": ["rome", "nowhere"]}')
    names = [row[0].partition("#")[0] for row in travel.rows()]
    assert ["cities", "  0", "    go", "    see", "  1", "    go", "    see"] == names
    assert ["cities/1/see"] == travel.json()["next_nodes"]


def test_a_long_map_shows_what_is_not_done(travel: Travel) -> None:
    cities = ", ".join(f'"{"nowhere" if number % 10 == 3 else "rome"}"' for number in range(40))
    travel.start("mapped", f'{{"cities": [{cities}]}}')
    rows = travel.rows()
    assert ["cities#1", "map", "failed", "36 of 40 items, 4 failed"] == rows[0]
    assert ["  3", "  13", "  23", "  33", "  (36 done)"] == [row[0] for row in rows[1:]]
    assert 40 == len(travel.json()["tree"][0]["steps"])


def test_long_lists_are_cut_to_what_counts() -> None:
    items = [Visit(f"m/{number}", "item", "failed" if number % 2 else "done") for number in range(100)]
    rows = [name for _, name, _ in graph_rows([Visit("m", "map", visit=1, total=100, steps=items)])]
    assert (22, "  1", "  (50 done, 30 more)") == (len(rows), rows[1], rows[-1])
    visits = [Visit("n", "node", "done", number) for number in range(1, 101)]
    rows = [name for _, name, _ in graph_rows(visits)]
    assert ["(80 visits before)", "n#81", "n#100"] == [*rows[:2], rows[-1]]


def test_show_keeps_superseded_visits_apart(travel: Travel) -> None:
    travel.call("run", "travel:looped", "{}", "--run-id", "a")
    travel.call("resume", "a", "travel:looped", "--from", "meet", "--visit", "1")
    shown = travel.json()
    assert ["plan", "meet", "plan", "meet"] == [visit["node_id"] for visit in shown["tree"]]
    assert [1, 1, 3, 3] == [visit["visit"] for visit in shown["tree"]]
    assert {2} == {visit["visit"] for visit in shown["superseded"]}
    assert re.search(r"superseded  8 visits: plan#2, ", travel.call("show", "a").out)
    lines = travel.call("history", "a").out.splitlines()
    assert 8 == sum(line.rstrip().endswith("superseded") for line in lines)


def test_history_tells_the_branch_of_each_record(travel: Travel) -> None:
    travel.start("trips", '{"full": true}')
    answer = travel.call("history", "a")
    assert "branch" in answer.out.splitlines()[0].split()
    (line,) = [line for line in answer.out.splitlines() if " failure " in line]
    assert ["seats#1", "plan#1/flights"] == line.split()[2:4]
    records = travel.call("history", "a", "--json").json["records"]
    assert {"plan#1/flights", "plan#1/hotels", "plan#1/cars", None} == {record["branch"] for record in records}


def test_history_of_a_graph_without_branches_has_no_column_for_them(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    assert "branch" not in shop.call("history", "a").out


def test_failures_that_are_superseded_are_told_as_such(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", "a")
    (shop.folder / "shop.py").write_text((shop.folder / "shop.py").read_text().replace("if order.fails", "if False"))
    assert 0 == shop.call("resume", "a", "shop:graph", "--from", "price").code
    (failure,) = [r for r in shop.call("history", "a", "--json").json["records"] if r["kind"] == "failure"]
    assert failure["superseded"]
    assert "superseded: execute failed: RuntimeError" in shop.call("history", "a").out


def test_a_run_that_waits_has_exit_code_4_and_its_commands_go_on_with_it(travel: Travel) -> None:
    answer = travel.call("run", "travel:asked", "{}", "--run-id", "a")
    assert (4, "") == (answer.code, answer.err)
    told = answer.out.splitlines()[-3:]
    assert [
        "ask#1 waits for signal 'approval': is it good?",
        "  milepost signal a approval [JSON]",
        "then a worker, or: milepost resume a travel:asked",
    ] == told
    assert 4 == travel.call("resume", "a", "travel:asked").code
    assert ["    ask#1", "wait", "waiting", "for signal 'approval': is it good?"] in travel.rows()
    shown = travel.json()
    assert "milepost signal a approval [JSON] sends it" in shown["why"]
    assert ("waiting", ["ask"]) == (shown["statuses"]["ask"], shown["next_nodes"])
    send, resume = (shlex.split(line.partition("milepost ")[2].replace("[JSON]", "true")) for line in told[1:])
    assert "signal 'approval' of run 'a': taken: the run waits for it\n" == travel.call(*send).out
    done = travel.call(*resume, "--json")
    assert (0, ["True"]) == (done.code, done.events[-1]["state"]["told"])
    assert "done" == travel.json()["statuses"]["ask"]


def test_an_answer_that_is_refused_leaves_the_run_waiting_and_is_told(travel: Travel) -> None:
    travel.call("start", "travel:asked", "{}", "--run-id", "a")
    travel.call("signal", "a", "approval", '"maybe"')
    assert 4 == travel.call("resume", "a", "travel:asked").code
    (row,) = [row for row in travel.rows() if row[0] == "    ask#1"]
    assert "for signal 'approval': is it good?; the payload of signal 'approval' is refused" in row[3]


def test_several_waits_for_one_signal_are_told_apart(travel: Travel) -> None:
    answer = travel.call("run", "travel:asked_twice", "{}", "--run-id", "a")
    assert (4, 2) == (answer.code, answer.out.count(" [JSON] --to "))
    why = travel.json()["why"]
    assert "milepost signal a approval [JSON] --to 'one#1' sends it; " in why
    assert why.endswith("milepost signal a approval [JSON] --to 'two#1' sends it")
    assert ["one", "two"] == travel.json()["next_nodes"]
    assert 0 == travel.call("signal", "a", "approval", "1", "--to", "two#1").code
    assert 4 == travel.call("resume", "a", "travel:asked_twice").code
    assert ("waiting", "done") == tuple(travel.json()["statuses"][node] for node in ("one", "two"))
    assert 0 == travel.call("signal", "a", "approval", "2").code
    assert 0 == travel.call("resume", "a", "travel:asked_twice").code


def test_a_timer_is_shown_with_its_time(travel: Travel) -> None:
    assert 4 == travel.start("rested").code
    (row,) = travel.rows()
    assert ["rest#1", "timer", "waiting"] == row[:3]
    assert re.fullmatch(r"for its time until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", row[3])


def test_a_retry_runs_the_branch_that_failed_and_no_other(travel: Travel) -> None:
    travel.start("trips", '{"full": true}')
    travel.bring_back()
    source = (travel.folder / "travel.py").read_text()
    (travel.folder / "travel.py").write_text(source.replace("if trip.full", "if False"))
    answer = travel.call("retry", "a", "travel:trips", "--json")
    assert (0, ["seats", "meet"]) == (
        answer.code,
        [event["node_id"] for event in answer.events if event["event"] == "NodeCompleted"],
    )


def test_problems_of_forks_are_told_like_any_other(travel: Travel) -> None:
    with (travel.folder / "travel.py").open("a") as source:
        source.write("loose().add_edge('a', 'b').add_edge('a', 'c').add_edge('b', END).add_edge('c', END).compile()\n")
    for command in (["graph", "travel:trips"], ["run", "travel:trips", "{}"]):
        answer = travel.call(*command)
        assert (2, "", 1) == (answer.code, answer.out, answer.err.count("\n"))
        assert "the graph in target 'travel:trips' is wrong" in answer.err
        assert "the fork after 'a' has no join: there is no node that every branch ('b', 'c') reaches" in answer.err


# -- graph ---------------------------------------------------------------------------------------------------


def test_a_picture_with_a_run_says_where_it_stands(travel: Travel) -> None:
    travel.call("run", "travel:trips", '{"full": true}', "--run-id", "a")
    drawing = travel.call("graph", "travel:trips", "--run", "a").out
    assert drawing.startswith(travel.call("graph", "travel:trips").out)
    names = dict(re.findall(r'(\w+)\["([\w/]+)"\]', drawing))
    classes = {
        kind: {names[name] for name in ids.split(",")} for ids, kind in re.findall(r" class (\S+) (\w+)", drawing)
    }
    assert {
        "done": {"plan", "flights", "hotels", "cars", "cars/find", "cars/book"},
        "failed": {"seats"},
    } == classes


def test_a_picture_of_a_run_needs_no_code(travel: Travel) -> None:
    travel.call("run", "travel:looped", "{}", "--run-id", "a")
    with_code = travel.call("graph", "travel:looped", "--run", "a").out
    travel.start("mapped")
    without = travel.call("graph", "--run", "a")
    assert (0, "") == (without.code, without.err)
    assert '-.->|"again"|' in with_code
    assert sorted(line for line in with_code.splitlines() if "-.->" not in line) == sorted(
        line for line in without.out.splitlines() if "-.->" not in line
    )
    assert '    n4["hotels"]' in without.out
    assert travel.call("graph", "--run", "a", "--format", "dot").out.startswith('digraph "looped" {\n')


def test_a_picture_tells_how_far_maps_are_and_what_is_asked(travel: Travel) -> None:
    travel.call("run", "travel:mapped", '{"cities": ["rome", "nowhere", "oslo"]}', "--run-id", "a")
    assert '[["cities<br/>for each item<br/>2 of 3 items, 1 failed"]]' in travel.call("graph", "--run", "a").out
    travel.call("run", "travel:asked", "{}", "--run-id", "w")
    dot = travel.call("graph", "travel:asked", "--run", "w", "--format", "dot").out
    assert 'label="ask\\nwaits for approval\\nis it good?", shape=parallelogram' in dot


def test_a_picture_of_a_run_is_json_too(travel: Travel) -> None:
    travel.call("run", "travel:trips", '{"full": true}', "--run-id", "a")
    told = travel.call("graph", "travel:trips", "--run", "a", "--json").json
    assert ({"run_id": "a", "status": "failed"}, ["seats"]) == (told["run"], told["next_nodes"])
    assert ("failed", "meet") == (told["statuses"]["seats"], told["forks"][0]["join"])
    without = travel.call("graph", "--run", "a", "--format", "json").json
    assert told == without


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "name the graph, as module:graph or path.py:graph, or a run with --run RUN"),
        (["travel:mapped", "--run", "a"], 2, "run 'a' is one of flow 'trips', and the target is 'mapped'"),
        (["--run", "nobody"], 3, "no run 'nobody'"),
    ],
)
def test_a_picture_that_cannot_be_drawn_says_why(travel: Travel, arguments: list[str], code: int, told: str) -> None:
    travel.call("run", "travel:trips", "{}", "--run-id", "a")
    answer = travel.call("graph", *arguments)
    assert (code, "", 1) == (answer.code, answer.out, answer.err.count("\n"))
    assert told in answer.err


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_graphviz_takes_the_drawing(travel: Travel) -> None:
    for target in ("trips", "toured", "asked", "looped"):
        travel.call("run", f"travel:{target}", '{"cities": ["rome"]}', "--run-id", target)
        drawing = travel.call("graph", f"travel:{target}", "--run", target, "--format", "dot").out
        done = subprocess.run(["dot", "-Tsvg"], input=drawing, capture_output=True, text=True, check=False)
        assert (0, "") == (done.returncode, done.stderr)


# -- show --watch --------------------------------------------------------------------------------------------


def test_show_watch_tells_what_watch_tells(travel: Travel) -> None:
    travel.start("trips", '{"full": true}')
    for options in ((), ("--json",)):
        shown, watched = travel.call("show", "a", "--watch", *options), travel.call("watch", "a", *options)
        assert watched == shown
        assert 1 == shown.code


def test_show_watch_draws_the_tree_in_a_terminal(travel: Travel) -> None:
    travel.start("trips")
    told = in_terminal(travel, "show", "a", "--watch")
    assert "\x1b[?25h" in told  # the cursor is back
    assert "seats#1" in told
    assert "it has finished" in told


def test_show_watch_redraws_when_a_run_moves(travel: Travel) -> None:
    travel.call("run", "travel:asked", "{}", "--run-id", "a")
    master, slave = pty.openpty()
    with travel.spawn("show", "a", "--watch", stdout=slave, env={**os.environ, "COLUMNS": "200"}) as process:
        os.close(slave)
        told = b""
        while b"is it good?" not in told:
            told += os.read(master, 65536)
        with SQLiteStore(".milepost/runs.db") as store:
            store.put_signal("a", "approval", b"true")
        assert 0 == travel.call("resume", "a", "travel:asked").code
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            told += part
        _, err = process.communicate(timeout=60)
    os.close(master)
    assert (0, "") == (process.returncode, err)
    assert b"meet#1" in told
