"""What a refusal says: of which run, which field, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

import pydantic
import pytest

from milepost import END, Engine, Graph, MemoryStore, MilepostError, SerializeStateError, WorkflowError, step, workflow
from milepost.testing.tables import for_each


@dataclass
class Host:
    addr: IPv4Address | None = None


@dataclass
class Login:
    key: pydantic.SecretStr | None = None


@workflow("hosts")
def hosts(h: Host) -> Any:
    yield step("s").python(int)


@workflow("logins")
def logins(h: Login) -> Any:
    yield step("s").python(int)


@pytest.mark.parametrize(
    ("declared", "flow", "path", "type_name", "advice"),
    [
        (Host, hosts, "addr", "ipaddress.IPv4Address", "use codec.register"),
        (Login, logins, "key", "pydantic.types.SecretStr", "pass it by deps="),
    ],
)
def test_a_field_that_cannot_be_recorded_is_named_with_its_type_and_what_to_do(
    declared: Any, flow: Any, path: str, type_name: str, advice: str
) -> None:
    graph = Graph(declared).add_node("a", lambda state: state).add_edge("a", END).set_entry("a").compile("g")
    for run, place in (
        (lambda: graph.run(declared(), store=MemoryStore(), run_id="r"), f"state.{path}"),
        (lambda: flow.run(store=MemoryStore(), run_id="r", h=declared()), f"input.h.{path}"),
    ):
        with pytest.raises(SerializeStateError, match=re.escape(f"{place}: ")) as caught:
            run()
        assert (place, type_name, "r") == (caught.value.path, caught.value.type_name, caught.value.run_id)
        assert advice in str(caught.value)


LINE = (
    Graph(dict)
    .add_node("a", lambda state: state)
    .add_node("b", lambda state: state)
    .add_edge("a", "b")
    .add_edge("b", END)
    .set_entry("a")
    .compile("line")
)
DAMAGED = {
    "newer": b'{"version": 7, "run_id": "run-1", "node_id": "a", "next_node": "b", "state": {}}',
    "trailing": b'{"version": 1, "state": {}} more',
    "no state": b'{"version": 1, "run_id": "run-1", "node_id": "a", "next_node": "b"}',
}


ACTS: dict[str, Callable[[Any, Any], Any]] = {
    "resume": lambda store, handle: LINE.resume(store, "run-1"),
    "retry": lambda store, handle: LINE.retry(store, "run-1"),
    "resume_from": lambda store, handle: LINE.resume_from(store, "run-1", "a"),
    "fork": lambda store, handle: LINE.fork_run(store, "run-1", "a"),
    "run": lambda store, handle: LINE.run({}, store=store, run_id="run-1", if_exists="resume"),
    "state": lambda store, handle: handle.state(),
}


@for_each("data", DAMAGED.values())
@for_each("act", ACTS.values())
def test_a_refusal_of_a_record_says_of_which_run_it_is(data: bytes, act: Callable[[Any, Any], Any]) -> None:
    store = MemoryStore()
    store.save("run-1", "a", data)
    with pytest.raises(MilepostError, match="run 'run-1'") as caught:
        act(store, Engine(store, flows=[LINE]).handle("run-1", LINE))
    assert "run-1" == caught.value.run_id


def test_what_a_workflow_raises_itself_keeps_its_words() -> None:
    @workflow("ends")
    def ends() -> Any:
        yield step("s").python(int)
        raise WorkflowError("sold out")

    with pytest.raises(WorkflowError) as caught:
        ends.run(store=MemoryStore(), run_id="r")
    assert ("sold out", "r") == (str(caught.value), caught.value.run_id)
