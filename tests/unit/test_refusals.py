"""What a refusal says: of which run, which field, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

import pydantic
import pytest

from milepost import END, Graph, MemoryStore, SerializeStateError, step, workflow


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
