"""Large states that follow each other: what they have in common, what is kept of them, and what is recorded."""

from __future__ import annotations

import gc
import random
from contextlib import suppress
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost import END, Graph, MemoryStore, NodeError
from milepost.codec.codec import Succession
from milepost.model.record import CHECKPOINT, digest_of
from milepost.stores.base.comparing import agreeing, agreeing_back


@given(st.data())
def test_how_far_texts_agree(data: st.DataObject) -> None:
    old = data.draw(st.binary(max_size=4)) * data.draw(st.integers(0, 2000))
    changed = data.draw(st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 255)), max_size=3))
    text = bytearray(old + data.draw(st.binary(max_size=4)))
    for place, byte in changed:
        text[place : place + 1] = bytes([byte])
    new = bytes(text)
    i, j = data.draw(st.integers(0, len(old))), data.draw(st.integers(0, len(new)))
    pairs = list(zip(old[i:], new[j:], strict=False))
    assert _first_unlike(pairs) == agreeing(old, i, len(old), new, j, len(new))
    most = data.draw(st.integers(0, min(i, j)))
    pairs = list(zip(old[i - most : i][::-1], new[j - most : j][::-1], strict=True))
    assert _first_unlike(pairs) == agreeing_back(old, i, new, j, most)


def _first_unlike(pairs: list[tuple[int, int]]) -> int:
    return next((at for at, (mine, other) in enumerate(pairs) if mine != other), len(pairs))


class Log(msgspec.Struct, frozen=True):
    """A state that grows."""

    n: int = 0
    items: tuple[str, ...] = ()


def grow(state: Log) -> Log:
    if state.n == 60:
        raise ValueError("too much")
    return Log(state.n + 1, (*state.items, f"{state.n} " * 500))


@pytest.mark.parametrize("last", [50, 70])
def test_nothing_of_large_states_is_kept_for_others_that_follow_once_a_run_has_ended(last: int) -> None:
    graph: Graph[Log] = Graph(Log)
    graph.add_node("grow", grow).set_entry("grow")
    graph.add_conditional_edge("grow", lambda state: "grow" if state.n < last else END, ["grow", END])
    gc.disable()  # what cycles hold counts too
    try:
        with suppress(NodeError):
            graph.compile().run(Log(), store=MemoryStore(), run_id="r")
        left = [each for each in gc.get_objects() if isinstance(each, Succession)]
    finally:
        gc.enable()
    assert left
    assert not any(part.parts for each in left for part in each._lists or ())


class Chat(TypedDict):
    """A state that nodes change in place."""

    turn: int
    messages: list[dict[str, Any]]


def test_what_nodes_change_in_place_is_recorded() -> None:
    chance = random.Random(5)
    expected: list[bytes] = []

    def work(state: Chat) -> Chat:
        messages = state["messages"]
        state["turn"] += 1
        messages.append({"role": "user", "content": f"{state['turn']} " * 200, "calls": []})
        if state["turn"] > 100:
            deed, message = state["turn"] % 4, chance.choice(messages)
            if deed == 1:
                message["content"] += "!"
            elif deed == 2:
                message["calls"].append({"name": "look"})
            elif deed == 3:
                message["content"] = message.pop("content")
        expected.append(graph._definition.codec.encode(state))
        return state

    builder: Graph[Chat] = Graph(Chat)
    builder.add_node("work", work).set_entry("work")
    builder.add_conditional_edge("work", lambda state: "work" if state["turn"] < 200 else END, ["work", END])
    graph = builder.compile()
    store = MemoryStore()
    graph.run({"turn": 0, "messages": []}, store=store, run_id="r", max_iterations=None)
    records = store.read("r", kinds=(CHECKPOINT,))
    assert expected == [record.state() for record in records]
    assert [digest_of(state) for state in expected] == [record.fields()["digest"] for record in records]
