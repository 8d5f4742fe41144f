"""A chat whose process dies at any point of a turn: the call of the next message finishes that turn and begins its own."""

from __future__ import annotations

import operator
from itertools import count
from typing import Annotated, Any, TypedDict

import pytest
from processes import Forks, Log, calls_of, die

from milepost import END, CompiledGraph, Context, Graph, MemoryStore
from milepost.stores.url import open_store
from milepost.testing import FakeClock, Stepper
from milepost.verbs import Job, flow_of


class Chat(TypedDict):
    messages: Annotated[list[str], operator.add]


def answering(log: Log | None = None, *, dies: bool = False) -> CompiledGraph[Any]:
    """A chat of two nodes. The process dies in the second one if it is to."""

    def think(ctx: Context[Any], chat: Chat) -> dict[str, Any]:
        if log is not None:
            log.add(ctx)
        return {}

    def answer(ctx: Context[Any], chat: Chat) -> dict[str, Any]:
        if log is not None:
            log.add(ctx)
        if dies:
            die()
        return {"messages": [f"re: {chat['messages'][-1]}"]}

    graph = Graph(Chat, partial=True).add_node("think", think).add_node("answer", answer)
    return graph.add_edge("think", "answer").add_edge("answer", END).set_entry("think").compile("chat")


def said(*texts: str) -> list[str]:
    return [line for text in texts for line in (text, f"re: {text}")]


class Talk:
    """A chat in one store, and the processes that die while they say something in it."""

    def __init__(self) -> None:
        self.graph, self.clock = answering(), FakeClock()
        self.store = MemoryStore(clock=self.clock)

    def _options(self, text: str) -> dict[str, Any]:
        return {"if_exists": "continue", "turn_id": text}

    def say(self, text: str) -> list[str]:
        told: Chat = self.graph.run({"messages": [text]}, store=self.store, run_id="r1", **self._options(text))
        return told["messages"]

    def die(self, text: str, effect: int) -> bool:
        """Say something and die before this effect; False if it has come to its end before."""
        job = Job(flow_of(self.graph), self.store, "r1", self._options(text), {"clock": self.clock}, None)
        stepper = Stepper(job.routine({"messages": [text]}), clock=self.clock)
        for _ in range(effect):
            if not stepper.is_done:
                stepper.step()
        is_dead = not stepper.is_done
        stepper.kill()
        for token in stepper.tokens:
            self.store.abandon(token)
        return is_dead

    def visits(self) -> list[tuple[str, int]]:
        return [(info.node_id, info.visit) for info in self.store.history("r1")]


@pytest.mark.parametrize("begun", [(), ("one",)], ids=["first", "later"])
def test_a_turn_that_dies_at_any_effect_is_finished_by_the_next_message_or_never_began(begun: tuple[str, ...]) -> None:
    outcomes: list[bool] = []
    for effect in count():
        talk = Talk()
        for text in begun:
            talk.say(text)
        if not talk.die("two", effect):
            break
        messages = talk.say("three")
        outcomes.append("two" in messages)
        texts = (*begun, *(("two",) if "two" in messages else ()), "three")
        assert said(*texts) == messages
        assert [(name, visit + 1) for visit in range(len(texts)) for name in ("think", "answer")] == talk.visits()
        assert talk.store.verify("r1").ok
    assert (False, True) == (outcomes[0], outcomes[-1])
    assert sorted(outcomes) == outcomes


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.wide), 5])
def test_calls_that_die_at_any_effect_and_are_repeated_begin_each_turn_once(step: int) -> None:
    for first in count(0, step):
        for second in count(0, step):
            talk = Talk()
            talk.say("one")
            is_first_dead = talk.die("two", first)
            is_second_dead = talk.die("two", second)
            assert said("one", "two") == talk.say("two")
            if not is_second_dead:
                is_second_dead = talk.die("three", second)
            assert said("one", "two", "three") == talk.say("three")
            assert [(name, visit) for visit in (1, 2, 3) for name in ("think", "answer")] == talk.visits()
            assert talk.store.verify("r1").ok
            if not is_second_dead:
                break
        if not is_first_dead:
            break


def say(url: str, log: str, text: str, dies: bool) -> None:
    """Say something in the chat, and die in the middle of the turn if told to."""
    graph = answering(Log(log), dies=dies)
    with open_store(url) as store:
        graph.run({"messages": [text]}, store=store, run_id="r1", if_exists="continue")


@pytest.mark.parametrize(
    "url", ["sqlite", *(pytest.param(kind, marks=pytest.mark.wide) for kind in ("file", "postgres"))], indirect=True
)
@pytest.mark.parametrize("dying", [pytest.param("one", marks=pytest.mark.wide), "two"])
def test_after_a_kill_in_the_middle_of_a_turn_both_turns_are_there_and_none_twice(
    dying: str, forks: Forks, url: str, log: str
) -> None:
    for text in ("one", "two"):
        assert (text == dying) == forks.call(say, url, log, text, text == dying).was_killed
    with open_store(url) as store:
        told = answering(Log(log)).run({"messages": ["three"]}, store=store, run_id="r1", if_exists="continue")
        assert said("one", "two", "three") == told["messages"]
        visits = [(info.node_id, info.visit) for info in store.history("r1")]
        assert [(name, visit) for visit in (1, 2, 3) for name in ("think", "answer")] == visits
        assert store.verify("r1").ok
    again = ("answer", 1 if dying == "one" else 2)
    assert sorted([*visits, again]) == sorted((call.node_id, call.visit) for call in calls_of(log, "r1"))
