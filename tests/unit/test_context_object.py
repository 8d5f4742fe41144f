"""What user code sees of its run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

import pytest

from milepost.errors import LeaseLost, MilepostInterrupt
from milepost.executor.context import Context, RunScope, current, current_context
from milepost.testing import FakeClock

STAMP = "2026-01-01T00:00:05.000000Z"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def scope(clock: FakeClock) -> RunScope:
    return RunScope("r", clock=clock)


@pytest.fixture
def context(scope: RunScope) -> Context[Any]:
    return Context(scope, "a", 2, 3, STAMP)


@pytest.fixture
def entered(context: Context[Any]) -> Iterator[Context[Any]]:
    token = current_context.set(context)
    yield context
    current_context.reset(token)


def test_the_deadline_is_what_is_left(scope: RunScope, clock: FakeClock) -> None:
    context = Context[Any](scope, "a", timeout=10)
    clock.advance(seconds=4)
    assert 6.0 == context.deadline
    clock.advance(seconds=40)
    assert 0.0 == context.deadline


class Held:
    """Of a lease, what a context asks for."""

    def __init__(self, cancel: str | None = None, is_lost: bool = False) -> None:
        self.cancel, self.is_lost = cancel, is_lost
        self.is_over = is_lost or cancel is not None


def test_an_attempt_that_may_go_on_is_let_go_on(context: Context[Any], scope: RunScope) -> None:
    context.check_cancelled()
    scope.held = Held()  # type: ignore[assignment]
    assert not context.cancelled
    context.check_cancelled()


@pytest.mark.parametrize(
    ("held", "reason"), [(Held(cancel="enough"), "enough"), (Held(is_lost=True), None), (None, None)]
)
def test_an_attempt_that_is_to_stop_is_stopped(
    context: Context[Any], scope: RunScope, held: Any, reason: str | None
) -> None:
    scope.held = held
    context._stop = held is None
    assert context.cancelled
    with pytest.raises(MilepostInterrupt) as caught:
        try:
            context.check_cancelled()
        except Exception:
            pytest.fail("an interruption must not be caught as an Exception")
    assert ("r", "a") == (caught.value.error.run_id, caught.value.error.node_id)
    assert not isinstance(caught.value.error, LeaseLost)
    if reason is not None:
        assert reason in str(caught.value)


class Prefixing(logging.LoggerAdapter[Any]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"[mine] {msg}", kwargs


def test_an_adapter_given_as_logger_keeps_its_own_facts_and_ours(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Prefixing(logging.LoggerAdapter(logging.getLogger("app"), {"tenant": "t-1"}), {})
    context = Context[Any](RunScope("r", clock=clock, logger=mine), "a")
    context.logger.warning("hello", extra={"row": 5})
    (record,) = caplog.records
    facts = {name: record.__dict__[name] for name in ("run_id", "node_id", "attempt", "row", "tenant")}
    assert {"run_id": "r", "node_id": "a", "attempt": 1, "row": 5, "tenant": "t-1"} == facts
    assert ("app", "[mine] hello", "test_context_object.py") == (record.name, record.getMessage(), record.filename)


class Sends(Protocol):
    def send(self) -> None: ...


def test_a_type_that_cannot_be_asked_is_there_for_type_checkers(entered: Context[Any], scope: RunScope) -> None:
    scope.deps = {"a": 1}
    assert entered is current(Sends)  # type: ignore[type-abstract]
    assert entered is current(dict[str, int])
