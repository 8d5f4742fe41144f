"""States whose keys come one by one, as LangGraph's users write them."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

import pytest

from milepost import END, Graph, MemoryStore
from milepost.codec import Codec
from milepost.errors import StateTypeError


class Chat(TypedDict):
    messages: Annotated[list[str], operator.add]
    summary: str


def answer(chat: Chat) -> dict[str, object]:
    return {"messages": ["hello"]}


def summarise(chat: Chat) -> dict[str, object]:
    return {"summary": " ".join(chat["messages"])}


def test_a_partial_graph_over_a_typeddict_begins_with_some_of_its_keys() -> None:
    graph = (
        Graph(Chat, partial=True)
        .add_node("answer", answer)
        .add_node("summarise", summarise)
        .add_edge("answer", "summarise")
        .add_edge("summarise", END)
        .set_entry("answer")
        .compile("chat")
    )
    store = MemoryStore()
    began: Chat = {"messages": ["hi"]}  # type: ignore[typeddict-item]
    final = graph.run(began, store=store, run_id="r")
    assert {"messages": ["hi", "hello"], "summary": "hi hello"} == final
    assert final == graph.resume(store, "r")
    assert graph.run({}, store=store, run_id="empty") == {  # type: ignore[typeddict-item]
        "messages": ["hello"],
        "summary": "hello",
    }


def test_a_graph_of_whole_states_refuses_a_missing_key() -> None:
    graph = Graph(Chat).add_node("only", lambda chat: chat).add_edge("only", END).set_entry("only").compile("chat")
    with pytest.raises(StateTypeError):
        graph.run({"messages": []}, store=MemoryStore(), run_id="r")  # type: ignore[typeddict-item]


def test_a_codec_that_is_not_total_takes_and_gives_states_without_some_keys() -> None:
    codec = Codec(Chat, total=False)
    assert {"summary": "x"} == codec.decode(codec.encode({"summary": "x"}))  # type: ignore[arg-type]
    with pytest.raises(StateTypeError):
        codec.encode({"summary": 1})  # type: ignore[arg-type]
