"""What type checkers must refuse of workflows of steps: read by mypy and pyright, never run.

Each error is expected by a comment, and a comment that expects too much is an error itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_type

from milepost import (
    Bound,
    Context,
    Engine,
    Graph,
    Reply,
    RunResult,
    SkipMarker,
    StepResult,
    Steps,
    WorkflowContext,
    WorkflowEngine,
    WorkflowResult,
    branch,
    current,
    parallel,
    step,
    workflow,
)
from milepost.stores.memory import MemoryStore


@dataclass
class Receipt:
    number: str
    cents: int = 0


@dataclass
class Clients:
    url: str


def nothing() -> None: ...
async def nothing_later() -> None: ...
def charge(cents: int) -> Receipt:
    return Receipt("r-1", cents)


async def charge_later(cents: int) -> Receipt:
    return Receipt("r-1", cents)


def ship(address: str, days: int = 1, *, express: bool = False) -> None: ...
def ship_by(address: str, *, express: bool) -> None: ...


class Bank:
    def __init__(self, url: str) -> None: ...
    def pay(self, cents: int) -> Receipt:
        return Receipt("r-1", cents)


# -- what a function is called with ----------------------------------------------------------------------

step("a").python(charge)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge, args=())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge, args=("1",))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge, args=(1, 2))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge, args=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge, args=[1])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge_later)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge_later, args=())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge_later, args=("1",))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge_later, args=(1, 2))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(nothing, args=(1,))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(nothing_later, args=(1,))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(ship, args=(1,))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(ship, args=("Rome", "1"))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(ship, args=("Rome", 1, True))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(ship_by, args=("Rome",))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(ship_by, args=("Rome",), kwargs=["express"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(Bank, args=(1,))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(Bank)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(Bank("https://bank").pay, args=("1",))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
# mypy does not see that a partial takes no more arguments
step("a").python(partial(charge, 1), args=(2,))  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(lambda cents: cents, args=(1, 2))  # type: ignore[misc, arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python("charge")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(charge(1))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").when(lambda ctx: True).python(charge, args=("1",))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").skip_on_error().python(charge_later, args=("1",))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").as_result().python(charge)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").as_result().python(charge, args=("1",))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").as_result().python(charge_later, args=(1, 2))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").as_result().python(ship_by, args=("Rome",))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

step("a").map(charge, ["1"])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").map(charge_later, ["1"])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").map(charge, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").map(nothing, [1])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").map(charge, [1], key=len)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").as_result().map(charge, ["1"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# -- the other kinds and the modifiers ---------------------------------------------------------------------

step(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").when(True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").when(lambda ctx: "yes")  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
step("a").python(nothing).when(lambda: True)  # type: ignore[misc, arg-type]  # pyright: ignore[reportArgumentType]
step("a").python(nothing).retry("3")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(nothing).timeout("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").python(nothing).on_error(lambda ctx, failed: 1)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(nothing).on_error(lambda ctx: step("b").python(nothing))  # type: ignore[misc, arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").python(nothing).with_rollback("undo")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").python(nothing).python(nothing)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
branch("a", (lambda ctx: True, step("b")))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
branch("a", (lambda ctx: "yes", step("b").python(nothing)))  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
branch("a", step("b").python(nothing))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
parallel("a", step("b"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
parallel("a", nothing)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").parallel([step("b")])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
step("a").wait_for(1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
step("a").wait_for("go", timeout="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
step("a").sleep("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
step("a").sleep_until(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def outputs() -> Steps[None]:
    assert_type((yield from step("a").python(charge, args=(1,))), Any)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    assert_type((yield from step("a").python(charge, args=(1,)).when(lambda ctx: True)), Receipt)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    assert_type((yield from step("a").python(charge, args=(1,)).as_result()), Receipt)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    assert_type((yield from step("a").as_result().when(lambda ctx: True).python(nothing)), StepResult | SkipMarker)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    assert_type((yield from step("a").wait_for("go", payload=int)), Reply[str])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    assert_type((yield from step("a").sleep(1)), Reply[Any])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    _number: int = yield from step("a").python(charge, args=(1,))  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    _receipt: Receipt = yield from step("a").python(charge_later, args=(1,)).skip_on_error()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    yield from step("a")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    yield from step("a").python(charge, args=("1",))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def awaited() -> None:
    await step("a")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    _number: int = await step("a").python(charge_later, args=(1,))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]


# -- workflows -----------------------------------------------------------------------------------------------


@workflow("order")
def order(ctx: WorkflowContext[Clients], cents: int, currency: str = "EUR") -> Steps[Receipt]:
    assert_type(ctx.deps.port, Any)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert_type(current(Clients), Context[Any])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    return (yield from step("charge").python(charge, args=(cents,)))


@workflow("order later")
async def order_later(cents: int, *, address: str = "") -> str:
    return (await step("charge").python(charge_later, args=(cents,))).number


@workflow("any")
def any_input(ctx: WorkflowContext[Any], given: dict[str, Any]) -> Steps[int]:
    yield step("a").python(nothing)
    return 1


@workflow("returns something else")
def something_else() -> Steps[int]:
    yield step("a").python(nothing)
    return "1"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@workflow("no step")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def no_step() -> int:
    return 1


@workflow("no return type")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def no_return_type() -> Iterator[Any]:
    yield step("a").python(nothing)


@workflow  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def without_name() -> Steps[None]:
    yield step("a").python(nothing)


order.bind()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
order.bind("1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
order.bind(1, 2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
order.bind(1, address="Rome")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
order.bind(euros=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
order.bind(cents="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
order("1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
order_later.bind()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
order_later.bind("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
order_later.bind(1, "Rome")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
order_later.bind(cents=1, city="Rome")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
any_input.bind()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
any_input.bind([])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
any_input.bind(given={}, then=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
assert_type(order.bind(1), Bound[str, WorkflowResult[str]])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
bound: Bound[str] = order.bind(1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
assert_type(order.run(cents=1), Any)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
assert_type(order.resume(MemoryStore(), "r1", full=True), RunResult[Receipt])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]

order(cents="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
order.bind(cents="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
order.resume(MemoryStore(), "r1", 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

graph = Graph(Receipt).add_node("find", lambda receipt: receipt).set_entry("find").compile("receipts")
step("a").subworkflow(nothing)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").subworkflow(graph)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").subworkflow(graph, Clients(""))  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").subworkflow(order, [1])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").subworkflow(order.bind(1), {"cents": 1})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step("a").as_result().subworkflow(graph)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]

# -- engines -------------------------------------------------------------------------------------------------

engine = Engine(MemoryStore())
engine.run(order.bind(1), 1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
engine.run(graph)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
engine.run(graph, Clients(""))  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
engine.run(order.bind(1), cents=1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
engine.run(nothing)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
engine.start(graph)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
engine.stream(graph, Clients(""))  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
assert_type(engine.run(order.bind(1)), Any)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
assert_type(engine.run(order.bind(1), full=True), RunResult[Receipt])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
assert_type(engine.resume(order, "r1", full=True), RunResult[Receipt])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
WorkflowEngine().run(graph.bind(Receipt("r-1")))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(WorkflowEngine().run(order, cents=1), Receipt)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
