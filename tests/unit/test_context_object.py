"""What user code sees of its run."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator, MutableMapping
from datetime import UTC, datetime
from typing import Any, Protocol

import pytest

from milepost.errors import LeaseLost, MilepostInterrupt, OptionError
from milepost.events import Emitted, Event, Progress
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


def test_ids_and_numbers_are_told(context: Context[Any]) -> None:
    assert ("r", "a", 2, 3) == (context.run_id, context.node_id, context.visit, context.attempt)
    assert (None, None, None) == (context.deps, context.store, context.deadline)
    assert "Context('r', 'a', visit=2, attempt=3)" == repr(context)


@pytest.mark.parametrize("name", ["run_id", "node_id", "visit", "attempt", "deps", "logger", "other"])
def test_a_context_cannot_be_changed(context: Context[Any], name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(context, name, 1)


def test_the_key_is_that_of_the_visit(scope: RunScope) -> None:
    key = Context[Any](scope, "a", 2, 3).idempotency_key
    assert 32 == len(key)
    assert int(key, 16) >= 0
    assert key == Context[Any](scope, "a", 2, 1, STAMP).idempotency_key
    others = {Context[Any](scope, "a", 3).idempotency_key, Context[Any](scope, "b", 2).idempotency_key}
    assert key not in others
    assert 2 == len(others)
    assert key != Context[Any](RunScope("s", clock=scope.clock), "a", 2).idempotency_key


def test_time_and_chance_are_the_same_again(scope: RunScope, context: Context[Any]) -> None:
    again = Context[Any](scope, "a", 2, 4, STAMP)
    assert datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC) == context.now() == again.now()
    first, second = context.uuid4(), context.uuid4()
    assert 4 == first.version
    assert first != second
    assert (first, second) == (again.uuid4(), again.uuid4())
    assert [context.random() for _ in range(3)] == [again.random() for _ in range(3)]
    assert first != Context[Any](scope, "a", 3, 1, STAMP).uuid4()


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


def test_tags_are_pairs_of_text(context: Context[Any]) -> None:
    context.tag("customer", "c-9")
    context.tag("team", "a")
    assert {"customer": "c-9", "team": "a"} == context._tags
    for key, value in ((1, "a"), ("a", 1)):
        with pytest.raises(TypeError):
            context.tag(key, value)  # type: ignore[arg-type]


def test_live_events_go_to_whoever_listens(context: Context[Any], scope: RunScope) -> None:
    context.progress(1, 2)
    context.emit("seen")
    events: list[Event] = []
    scope.publish = events.append
    context.progress(1, 2, "half")
    context.emit("seen", {"n": 1})
    now = scope.clock.time()
    assert [
        Progress(run_id="r", timestamp=now, node_id="a", done=1, total=2, message="half"),
        Emitted(run_id="r", timestamp=now, node_id="a", name="seen", data={"n": 1}),
    ] == events


def test_the_logger_adds_to_what_the_caller_gives(context: Context[Any], caplog: pytest.LogCaptureFixture) -> None:
    context.logger.warning("row %d", 5, extra={"row": 5})
    (record,) = caplog.records
    facts = {name: record.__dict__[name] for name in ("run_id", "node_id", "attempt", "row")}
    assert {"run_id": "r", "node_id": "a", "attempt": 3, "row": 5} == facts
    assert ("milepost", "row 5", "test_context_object.py") == (record.name, record.getMessage(), record.filename)


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


def test_current_finds_the_context_below_a_node(entered: Context[Any]) -> None:
    assert entered is current()
    found: list[Any] = []
    copied = contextvars.copy_context()
    thread = threading.Thread(target=lambda: copied.run(lambda: found.append(current())))
    thread.start()
    thread.join()
    assert [entered] == found


def test_outside_a_run_there_is_no_context() -> None:
    with pytest.raises(LookupError, match=r"milepost\.testing\.context"):
        current()


class Services:
    pass


class Sends(Protocol):
    def send(self) -> None: ...


def test_deps_are_asked_for_by_their_type(entered: Context[Any], scope: RunScope) -> None:
    scope.deps = Services()
    assert scope.deps is current(Services).deps
    with pytest.raises(OptionError, match="deps is Services, not FakeClock"):
        current(FakeClock)


def test_a_type_that_cannot_be_asked_is_there_for_type_checkers(entered: Context[Any], scope: RunScope) -> None:
    scope.deps = {"a": 1}
    assert entered is current(Sends)  # type: ignore[type-abstract]
    assert entered is current(dict[str, int])
