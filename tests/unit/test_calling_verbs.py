"""What the verbs take: inputs by position, options by name, and nothing that has a wrong name or type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from milepost import (
    Engine,
    Graph,
    InputMismatchError,
    MemoryCheckpointStore,
    MemoryStore,
    StepError,
    Steps,
    WorkflowEngine,
    step,
    workflow,
)
from milepost.errors import OptionError, StateTypeError


@dataclass
class Order:
    total: int = 0


ran: list[object] = []


def count(order: Order) -> Order:
    ran.append(order)
    return Order(order.total + 1)


def written(what: str, times: int) -> str:
    ran.append(what)
    if times < 0:
        raise ValueError("fewer than none")
    return what * times


orders = Graph(Order).add_node("count", count).set_entry("count").add_edge("count", "__end__").compile("orders")


@workflow("buying")
def buying(what: str, times: int = 1) -> Steps[str]:
    return (yield from step("write").python(written, (what, times)))


def streamed(events: Any) -> Any:
    return [event.result.output for event in events if type(event).__name__ == "WorkflowCompleted"][-1]


def started(engine: Engine, *args: Any) -> Any:
    handle = engine.start(*args)
    engine.worker([buying]).run(until_idle=True)
    return handle.result()


WAYS: dict[str, Callable[..., Any]] = {
    "call": lambda *args: buying(*args),
    "run": lambda *args: buying.run(*args, store=MemoryStore()),
    "run, without a store": lambda *args: buying.run(*args),
    "stream": lambda *args: streamed(buying.stream(*args)),
    "Engine.run": lambda *args: Engine(MemoryStore()).run(buying, *args),
    "Engine.stream": lambda *args: streamed(Engine(MemoryStore()).stream(buying, *args)),
    "Engine.start": lambda *args: started(Engine(MemoryStore(), flows=[buying]), buying, *args),
    "WorkflowEngine.run": lambda *args: WorkflowEngine(MemoryCheckpointStore()).run(buying, *args).output,
}
"""Ways to begin a run of the workflow with inputs by position, each of which gives its output."""


@pytest.mark.parametrize("way", WAYS)
def test_inputs_go_by_position_too(way: str) -> None:
    assert "presspress" == WAYS[way]("press", 2)


async def test_inputs_go_by_position_in_the_twins_too() -> None:
    engine = Engine(MemoryStore())
    assert "presspress" == await buying.arun("press", 2)
    assert "presspress" == await engine.arun(buying, "press", 2)
    workflows = WorkflowEngine(MemoryCheckpointStore())
    assert "presspress" == (await workflows.arun(buying, "press", 2)).output
    assert "presspress" == [event async for event in workflows.execute(buying, "press", 2)][-1].result.output
    assert "presspress" == [event async for event in buying.astream("press", 2)][-1].result.output
    assert "presspress" == [event async for event in engine.astream(buying, "press", 2)][-1].result.output


AGAIN: dict[str, Callable[..., Any]] = {
    "resume": lambda store, given: buying.resume(store, "r", **given),
    "aresume": lambda store, given: asyncio.run(buying.aresume(store, "r", **given)),
    "retry": lambda store, given: buying.retry(store, "r", **given),
    "aretry": lambda store, given: asyncio.run(buying.aretry(store, "r", **given)),
    "resume_stream": lambda store, given: [*buying.resume_stream(store, "r", **given)],
    "the engine's resume": lambda store, given: Engine(store, flows=[buying]).resume(buying, "r", **given),
}
"""Ways to go on with a run of the workflow, with inputs to compare."""


@pytest.mark.parametrize("way", AGAIN)
@pytest.mark.parametrize("wrap", [dict, lambda **inputs: {"inputs": inputs}], ids=["by name", "inputs="])
def test_inputs_by_name_are_compared_where_a_run_goes_on(way: str, wrap: Callable[..., Any]) -> None:
    store = MemoryStore()
    with pytest.raises(StepError, match="fewer than none"):
        buying.run("press", -1, store=store, run_id="r")
    with pytest.raises(StepError, match="fewer than none"):
        AGAIN[way](store, wrap(what="press", times=-1))
    with pytest.raises(InputMismatchError, match=r'recorded "press", given "pen"'):
        AGAIN[way](store, wrap(what="pen", times=-1))


def test_a_word_that_is_given_is_not_offered_as_its_own_correction() -> None:
    with pytest.raises(OptionError, match=r"^no option is called 'inputs': it is a keyword of some verbs"):
        orders.resume(MemoryStore(), "r", inputs={})


def test_inputs_do_not_go_by_position_where_a_run_goes_on() -> None:
    store = MemoryStore()
    buying.run("press", store=store, run_id="r")
    with pytest.raises(TypeError):
        buying.resume(store, "r", "press")
    with pytest.raises(TypeError):
        Engine(store).retry(buying, "r", "press")


@pytest.mark.parametrize("way", WAYS)
def test_inputs_are_checked_before_anything_runs(way: str) -> None:
    ran.clear()
    with pytest.raises(StateTypeError, match=r"input\.times is str where int is declared"):
        WAYS[way]("press", "twice")
    with pytest.raises(TypeError, match=r"workflow 'buying': .*its inputs are: what, times"):
        WAYS[way]("press", 2, 3)
    assert [] == ran


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_a_state_of_another_class_is_refused_before_anything_runs(store: MemoryStore | None) -> None:
    ran.clear()
    with pytest.raises(StateTypeError, match=r"the input of run .* where .*Order is declared"):
        orders.run(3, store=store)
    assert [] == ran


def test_an_input_without_a_json_form_needs_no_store() -> None:
    @workflow("calling")
    def calling(call: Callable[[], int]) -> Steps[int]:
        return (yield from step("call").python(call))

    assert 3 == calling.run(lambda: 3)


@pytest.mark.parametrize(
    ("misspelled", "meant"),
    [("thread_id", "run_id"), ("max_iteration", "max_iterations"), ("run_timeot", "run_timeout")],
)
def test_a_misspelled_option_is_named_in_one_line(misspelled: str, meant: str) -> None:
    wrong, engine, store = {misspelled: "x"}, Engine(MemoryStore()), MemoryStore()
    text = rf"^no option is called '{misspelled}': did you mean '{meant}'\?$"
    calls: list[Callable[[], object]] = [
        lambda: orders.run(Order(), **wrong),
        lambda: orders.resume(store, "r", **wrong),
        lambda: engine.run(orders, Order(), **wrong),
        lambda: engine.run(buying.bind("press"), **wrong),
        lambda: engine.start(orders, Order(), **wrong),
        lambda: Engine(store, **wrong),
        lambda: WorkflowEngine(store, **wrong),
    ]
    for call in calls:
        with pytest.raises(OptionError, match=text):
            call()
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{misspelled}'.*the option '{meant}'\?$"):
        buying.run("press", **wrong)


def test_an_unknown_keyword_of_a_retry_names_no_internal_class() -> None:
    with pytest.raises(OptionError, match=r"^\.retry\(\) of step 'a' was given 'max_attempt': it takes max_attempts"):
        step("a").retry(max_attempt=3)
