"""Large states that follow each other: what they have in common, what is kept of them, and what is recorded."""

from __future__ import annotations

import gc
import random
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost import END, FileStore, Graph, MemoryStore, NodeError, Retry, SQLiteStore
from milepost.codec.codec import Succession
from milepost.model.record import CHECKPOINT, Record, digest_of
from milepost.model.rope import Rope
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


class Line(msgspec.Struct, frozen=True):
    """An item that can't change, unless its content can."""

    text: str
    more: Any = None


class Lines(TypedDict):
    """A state with two lists, one in front of the other in the JSON by the order of its keys."""

    turn: int
    lines: list[Any]
    texts: list[str]


@pytest.mark.parametrize("kind", [MemoryStore, SQLiteStore, FileStore])
@pytest.mark.parametrize("options", [{}, {"compress": True}, {"isolate": True}])
def test_what_is_recorded_of_long_lists_is_what_the_codec_writes(
    kind: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    """Items are replaced, removed, swapped, doubled and changed inside, and a node that fails is given the same again."""
    chance = random.Random(7)
    expected: list[bytes] = []
    failed: set[int] = set()

    def work(state: Lines) -> Lines:
        if state["turn"] % 9 == 8 and state["turn"] not in failed:
            failed.add(state["turn"])
            state["lines"].clear()
            raise OSError("try again")
        turn, lines, texts = state["turn"] + 1, state["lines"], state["texts"]
        lines.append(Line(f"{turn} ä" * 300, (turn, None)))
        texts = [*texts, f"{turn}" * 100]
        if turn > 60:
            at = chance.randrange(len(lines) - 1)
            match turn % 7:
                case 0:
                    lines[at] = Line("y" * chance.randrange(900))
                case 1:
                    lines[at], lines[-1] = lines[-1], lines[at]
                case 2:
                    del texts[at % len(texts)]
                case 3:
                    lines.insert(at, lines[-1])
        if 90 < turn < 100:
            lines[-1] = Line("z", [turn])
            for line in lines[:-1]:
                if isinstance(line.more, list):
                    line.more.append(turn)
        if turn == 110:
            lines[:] = [line for line in lines if not isinstance(line.more, list)]
        names: Any = {"turn": turn, "lines": lines, "texts": texts}
        after: Any = names if turn % 20 else {name: names[name] for name in reversed(names)}
        expected.append(graph._definition.codec.encode(after))
        return after  # type: ignore[no-any-return]

    builder: Graph[Lines] = Graph(Lines, types=[Line])
    builder.add_node("work", work, retry=Retry(max_attempts=2, backoff=0)).set_entry("work")
    builder.add_conditional_edge("work", lambda state: "work" if state["turn"] < 150 else END, ["work", END])
    graph = builder.compile()
    place = () if kind is MemoryStore else (tmp_path / "runs",)
    first: Lines = {"turn": 0, "lines": [], "texts": []}
    with kind(*place) as store:
        graph.run(first, store=store, run_id="r", max_iterations=None, **options)
        if kind is MemoryStore:
            assert expected == [record.state() for record in store.read("r", kinds=(CHECKPOINT,))]
            return
    assert len(failed) == 16
    with kind(*place) as store:
        assert expected == [record.state() for record in store.read("r", kinds=(CHECKPOINT,))]
        assert store.verify("r").ok


def test_only_stores_that_keep_differences_are_given_ropes() -> None:
    """The record of any other store holds bytes, and the state of each record is bytes."""

    class Watching(SQLiteStore):
        def append(self, batch: Any) -> Any:
            given.extend(record for append in batch for record in append.records if record.payload is not None)
            return super().append(batch)

    class Copying(MemoryStore):
        def append(self, batch: Any) -> Any:
            given.extend(record for append in batch for record in append.records if record.payload is not None)
            return super().append(batch)

    graph: Graph[Log] = Graph(Log)
    graph.add_node("grow", grow).set_entry("grow")
    graph.add_conditional_edge("grow", lambda state: "grow" if state.n < 55 else END, ["grow", END])
    for store, kinds in ((Watching(":memory:"), {bytes, Rope}), (Copying(), {bytes})):
        given: list[Record] = []
        with store:
            graph.compile().run(Log(), store=store, run_id="r")
        assert kinds == {type(record.payload) for record in given}
        assert all(type(record.state()) is bytes for record in given)
        assert all(record.size == len(record.state() or b"") for record in given)
