"""The rules by which `milepost check --lint` reads the code of flows."""

# ruff: noqa: B007, C416, SIM105, SIM115 - code as people write it

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import os
import random
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from asyncio import gather
from collections.abc import Callable
from functools import lru_cache, partial
from operator import itemgetter
from os import environ
from pathlib import Path
from typing import Any

import pytest

from milepost import END, Graph, StepError, step, workflow
from milepost.checking.lint import Finding, lint

ask = step("ask").wait_for("go")


def found(fn: Callable[..., Any]) -> list[str]:
    """The rules that a workflow's code breaks, in order of lines."""
    return [finding.code for finding in lint([workflow("w")(fn)])]


def clock():
    yield ask
    return dt.datetime.now(), dt.date.today(), time.time()


def chance():
    yield ask
    return random.random(), uuid.uuid4()


def surroundings():
    yield ask
    return environ["HOME"] + os.environ.get("HOME", "") + str(os.getenv("HOME"))


def outside():
    yield ask
    with open("/etc/hosts") as file:
        return file.read(), subprocess.run(["true"], check=True)


def orders():
    names = {"a", "b"}
    for name in names | {"c"}:
        yield step(name).python(str)
    return [name for name in list(set(names))]


def pauses():
    time.sleep(1)
    yield ask


async def tasks():
    threading.Thread(target=print).start()
    return await gather(ask, asyncio.create_task(ask))


def wide():
    try:
        yield ask
    except (ValueError, Exception):
        yield step("other").python(str)
    try:
        yield ask
    except:  # noqa: E722
        pass


def local():
    from time import time as now

    yield ask
    return now()


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        pytest.param(clock, ["MP001"], id="time"),
        pytest.param(chance, ["MP002"], id="chance"),
        pytest.param(surroundings, ["MP003"], id="environment"),
        pytest.param(outside, ["MP004", "MP004"], id="io"),
        pytest.param(orders, ["MP005", "MP005"], id="sets"),
        pytest.param(pauses, ["MP006"], id="sleep"),
        pytest.param(tasks, ["MP007", "MP007"], id="tasks"),
        pytest.param(wide, ["MP010", "MP010"], id="except"),
        pytest.param(local, ["MP001"], id="a name that is imported inside"),
    ],
)
def test_what_differs_when_code_runs_again_is_found(fn: Callable[..., Any], expected: list[str]) -> None:
    assert expected == found(fn)


def good(ctx: Any, time: Any):
    """None of this differs, or it is in a step, or it is allowed."""
    now = ctx.now(), ctx.random().random(), time.time(), random.Random(7).random()
    names = {"b", "a"}
    for name in sorted(names):
        yield step(name).python(time.sleep, args=(1,))
    yield step("fetch").python(lambda: (os.environ["HOME"], open("/etc/hosts").read()))

    def inner() -> float:
        return random.random()

    yield step("draw").python(inner)
    names = list(names)
    for name in names:
        yield ask
    home = os.environ["HOME"]  # milepost: ignore[MP001, MP003]
    try:
        yield ask
    except StepError:
        pass
    except Exception:
        yield step("last").python(str)
    try:
        yield ask
    except Exception:
        raise
    try:
        int("x")
    except Exception:
        pass
    return now, home


def test_what_is_recorded_or_comes_from_the_record_is_not_found() -> None:
    assert [] == found(good)


def test_the_functions_of_a_graph_that_may_run_again_are_read() -> None:
    def route(state: dict[str, Any]) -> str:
        return "b" if random.random() > 1 else "c"

    def both(state: dict[str, Any], branches: Any) -> dict[str, Any]:
        return {**state, "at": time.time()}

    def same(state: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0)
        return state

    inner = Graph(dict[str, Any]).add_node("x", same).add_conditional_edge("x", route, {"b": END, "c": END})
    graph = (
        Graph(dict[str, Any])
        .add_node("a", same)
        .add_node("b", same)
        .add_subgraph("c", inner.set_entry("x").compile("inner"))
        .add_wait("d", "go", apply=lambda state, reply: state, prompt=lambda state: time.time(), merge=both)
        .add_edge("a", "b").add_edge("a", "c").add_edge("b", "d").add_edge("c", "d").add_edge("d", END)
        .set_entry("a").compile("orders")
    )  # fmt: skip
    findings = lint([graph])
    expected = [("MP002", "router after 'x'"), ("MP001", "merge at 'd'"), ("MP001", "prompt of wait 'd'")]
    assert expected == [(finding.code, finding.subject) for finding in findings]
    assert findings[0].line == route.__code__.co_firstlineno + 1


def test_a_finding_says_where_it_is_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    (finding,) = lint([workflow("w")(pauses)])
    line = pauses.__code__.co_firstlineno + 1
    assert Finding("MP006", finding.message, "w", "workflow", "test_check_lint.py", line) == finding
    assert (
        f"test_check_lint.py:{line}: MP006 workflow of flow 'w': this sleep is done again on every resume: use "
        "step(...).sleep(...) or a timer"
    ) == str(finding)


class Chance:
    """A router that is an object."""

    def __call__(self, state: dict[str, Any]) -> str:
        return "b" if random.random() > 1 else "c"

    def method(self, state: dict[str, Any]) -> str:
        return self(state) if time.time() else "c"


class OnlyADict(dict[str, str]):
    """A router whose call is none of Python code: a class."""


def routed(router: Any) -> Any:
    graph = Graph(dict[str, Any]).add_node("x", dict).add_conditional_edge("x", router, {"b": END, "c": END})
    return graph.set_entry("x").compile("orders")


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        pytest.param(Chance(), ["MP002"], id="object"),
        pytest.param(partial(Chance()), ["MP002"], id="partial of an object"),
        pytest.param(Chance().method, ["MP001"], id="method"),
        pytest.param(lru_cache(Chance.__call__.__get__(Chance())), ["MP002"], id="decorated method"),
        pytest.param(OnlyADict, ["MP000"], id="no Python code"),
        pytest.param(itemgetter("next"), [], id="Python's own"),
    ],
)
def test_whatever_can_be_called_is_read(router: Any, expected: list[str]) -> None:
    assert expected == [finding.code for finding in lint([routed(router)])]


def test_code_whose_source_is_not_there_is_named() -> None:
    names: dict[str, Any] = {"ask": ask}
    exec("import time\ndef made():\n    yield ask\n    time.sleep(1)\n", names)
    (finding,) = lint([workflow("w")(names["made"])])
    assert ("MP000", "<string>", 2) == (finding.code, finding.file, finding.line)
    assert finding.message.startswith("made: its source can't be read")


def test_source_in_an_archive_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("zipped_flow.py", "import time\n\n\ndef paying():\n    yield time.sleep(1)\n")
    monkeypatch.syspath_prepend(tmp_path / "code.zip")
    paying = importlib.import_module("zipped_flow").paying
    monkeypatch.delitem(sys.modules, "zipped_flow")
    (finding,) = lint([workflow("w")(paying)])
    assert ("MP006", 5) == (finding.code, finding.line)
