"""The hints of refusals: what each advises to do is done here, and succeeds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from forking import Basket, builder, noting

from milepost import END, Graph, NodeError, Retry, RunNotResumableError
from milepost.errors import OptionError, ResumeNodeCompletedError, RunStopped


def noted(state: Basket) -> Basket:
    return dataclasses.replace(state, note="amended")


AMENDED = {"state_override": noted}
SAME = {"state_override": lambda item: item}
CHANGED = {"state_override": lambda state: dataclasses.replace(state, any=[7])}


class Stand:
    """A run "r" of a graph that stopped where a row of the table says, and the verbs that are called on it."""

    def __init__(self, verbs: Any, store: Any, log: list[str]) -> None:
        self.verbs = verbs
        self.store = store
        self.broken = {"x"}
        edges = "ef fa fb ap aq pj qj bx xk jk"
        merge = {node: {"merge": lambda before, ends: ends.popitem()[1]} for node in "jk"}
        self.forked = builder(verbs, log)(edges, {"x": self.at("x")}, merge)
        self.mapped = self.inside(
            Graph(Basket).add_map("m", lambda s: [1, 2], verbs.node(self.item), merge=lambda s, r: s)
        )
        inner = Graph(Basket).add_node("y", verbs.node(noting("y"))).add_node("x", verbs.node(self.at("x")))
        inner.add_edge("y", "x").add_edge("x", END).set_entry("y")
        self.nested = self.inside(Graph(Basket).add_subgraph("m", inner.compile("inner")))
        own = {"any": lambda before, more: [*(before or ()), more]}
        self.parts = builder(verbs, log)(
            "ef fa fb aj bj", {"b": lambda s: {"any": 1}, "j": self.at("x")}, partial=True, reducers=own
        )

    def inside(self, graph: Any) -> Any:
        graph.add_node("e", self.verbs.node(noting("e"))).add_edge("e", "m").add_edge("m", END)
        return graph.set_entry("e").compile("inside")

    def at(self, name: str) -> Any:
        def body(state: Any) -> Any:
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return noting(name)(state) if isinstance(state, Basket) else state

        return body

    def item(self, number: int) -> int:
        self.at("x")(number) if number == 2 else None
        return number

    def call(self, verb: str, flow: str, *args: Any, **options: Any) -> Any:
        return self.verbs.call(getattr(self, flow), verb, self.store, "r", *args, **options)

    def begin(self, flow: str, **options: Any) -> None:
        with pytest.raises(NodeError):
            self.verbs.run(getattr(self, flow), Basket(), store=self.store, run_id="r", **options)
        self.broken.clear()


def do(verb: str, *args: Any, **options: Any) -> tuple[Any, ...]:
    return verb, args, options


HINTS = [
    (do("resume", **AMENDED), "forked", "a node of that branch", do("resume_from", "a", **AMENDED)),
    (do("resume", **AMENDED), "forked", "a node of that branch", do("resume_from", "p", **AMENDED)),
    (do("resume", **AMENDED), "forked", "with node 'f'", do("resume_from", "f", **AMENDED)),
    (do("resume_from", "b", rerun=True, **AMENDED), "forked", "before the fork, 'f'", do("resume_from", "f", **AMENDED)),
    (do("resume_from", "b", rerun=True, **AMENDED), "forked", "leave rerun out", do("resume_from", "b", **AMENDED)),
    (do("resume_from", "p", rerun=True, **AMENDED), "forked", "before the fork, 'a'", do("resume_from", "a", **AMENDED)),
    (do("resume_from", "p", rerun=True, **AMENDED), "forked", "leave rerun out", do("resume_from", "p", **AMENDED)),
    (do("resume", update={"note": "amended"}), "mapped", "the node before it", do("resume_from", "e", **AMENDED)),
    (do("resume", **AMENDED), "mapped", "the node before it", do("resume_from", "e", **AMENDED)),
    (do("resume", **AMENDED), "nested", "the node before it", do("resume_from", "e", **AMENDED)),
    (do("resume_from", "e", update={"note": "amended"}), "mapped", "give state_override=", do("resume_from", "e", **AMENDED)),
    (do("fork_run", new_run_id="n", **AMENDED), "mapped", "'m/0'", do("fork_run", "m/0", new_run_id="n", **SAME)),
    (do("fork_run", new_run_id="n", **AMENDED), "nested", "'m/y'", do("fork_run", "m/y", new_run_id="n", **AMENDED)),
    (do("fork_run", new_run_id="n", **AMENDED), "forked", "", do("fork_run", "p", new_run_id="n", **AMENDED)),
    (do("fork_run", "m/0", update={}), "mapped", "state_override", do("fork_run", "m/0", new_run_id="n", **SAME)),
    (do("resume_from", "a", **CHANGED), "parts", "update=", do("resume_from", "a", update={"any": 7})),
    (do("resume", retry=Retry(1)), "forked", "use retry", do("retry", retry=Retry(1))),
    (do("resume", retry=Retry(1)), "mapped", "use retry", do("retry", retry=Retry(1))),
    (do("resume", retry=Retry(1)), "nested", "use retry", do("retry", retry=Retry(1))),
]  # fmt: skip


ENDED = [
    (do("resume_from", "k", **AMENDED), "pass rerun=True", do("resume_from", "k", rerun=True)),
    (do("resume_from", "k", **AMENDED), "resume the run", do("resume", **AMENDED)),
    (do("retry"), "use resume or resume_from", do("resume")),
    (do("retry"), "use resume or resume_from", do("resume_from", "a")),
    (do("resume"), "pass reopen=True", do("resume", reopen=True)),
    (do("resume_from", "a"), "pass reopen=True", do("resume_from", "a", reopen=True)),
    (do("retry"), "resume_from, with reopen=True", do("resume", reopen=True)),
    (do("retry"), "resume_from, with reopen=True", do("resume_from", "a", reopen=True)),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "hint", "advice"), ENDED)
def test_what_a_refusal_of_a_run_that_has_ended_advises_can_be_done(verbs, store, log, refused, hint, advice):
    stand = Stand(verbs, store, log)
    stand.broken.clear()
    if "reopen" in hint:
        with pytest.raises(RunStopped):
            verbs.run(stand.forked, Basket(), store=store, run_id="r", stop_before="k")
        stand.call("cancel", "forked")
    else:
        verbs.run(stand.forked, Basket(), store=store, run_id="r")
    verb, args, options = refused
    with pytest.raises((RunNotResumableError, ResumeNodeCompletedError)) as caught:
        stand.call(verb, "forked", *args, **options)
    assert hint in str(caught.value)
    verb, args, options = advice
    stand.call(verb, "forked", *args, **options)
    assert "finished" == store.get_run("r").info.status


@pytest.mark.parametrize(("refused", "flow", "hint", "advice"), HINTS)
def test_what_a_refusal_advises_can_be_done(verbs, store, log, refused, flow, hint, advice):
    stand = Stand(verbs, store, log)
    stand.begin(flow)
    verb, args, options = refused
    with pytest.raises((OptionError, RunNotResumableError)) as caught:
        stand.call(verb, flow, *args, **options)
    assert hint in str(caught.value)
    verb, args, options = advice
    stand.call(verb, flow, *args, **options)
    if verb == "fork_run":
        verbs.resume(getattr(stand, flow), store, "n")
    assert "finished" == store.get_run("n" if verb == "fork_run" else "r").info.status
