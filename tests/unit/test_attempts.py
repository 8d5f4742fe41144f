"""The life of a visit: an attempt runs user code and writes nothing, and what has come of it is recorded without any."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from milepost.errors import StatementError
from milepost.executor.attempt import AttemptOutcome, UnitVisit, record_outcome, run_attempt
from milepost.executor.context import Context, RunScope
from milepost.executor.effects import Ask, Call, Effect, Emit, Routine, Sleep
from milepost.executor.history_values import AttemptBudget
from milepost.model.events import AttemptFailed
from milepost.model.retry import Retry
from milepost.options import Options
from milepost.stores.memory import MemoryStore
from milepost.testing import FakeClock


class Journal:
    held = None

    def check_hold(self) -> None:
        """Let the run go on."""


class Run:
    """What a visit needs of a run."""

    run_id = "r"
    journal = Journal()

    def __init__(self) -> None:
        self.options = Options(clock=FakeClock())
        self.scope = RunScope("r", clock=self.options.clock, logger=logging.getLogger("test"))


class Given(UnitVisit):
    """A visit that calls `int`, and tells what it is asked to record. `lost` are errors of its saves, in order."""

    def __init__(self, policy: Retry | None = None, lost: tuple[Exception, ...] = ()) -> None:
        super().__init__(Run(), "a", AttemptBudget(), "2026-01-01T00:00:00.000000Z", policy)  # type: ignore[arg-type]
        self.takes_statements = True
        self.lost = [*lost]

    def call(self, context: Context[Any], limit: float | None) -> Call:
        return Call(int, ("1",), context, timeout=limit)

    def check(self, returned: Any) -> int:
        if returned < 0:
            raise ValueError("negative")
        return int(returned)

    def save(self, outcome: AttemptOutcome) -> Routine[None]:
        yield Ask(MemoryStore(), "success")
        if self.lost:
            raise self.lost.pop(0)

    def give_up(self, outcome: AttemptOutcome) -> Exception:
        return LookupError(f"gave up: {outcome.error}")

    def save_failure(self, outcome: AttemptOutcome, final: Exception | None) -> Routine[None]:
        yield Ask(MemoryStore(), "failure" if final is None else "end")


def names(effects: list[Effect]) -> list[str]:
    return [effect.method if isinstance(effect, Ask) else type(effect).__name__ for effect in effects]


def played(routine: Routine[Any], *answers: Any) -> tuple[list[Effect], Any]:
    """Perform a routine with these answers, an exception to be thrown; return its effects, and its value or its error."""
    effects: list[Effect] = []
    to_give = list(answers)
    try:
        effects.append(next(routine))
        while True:
            answer = to_give.pop(0) if to_give else None
            effects.append(routine.throw(answer) if isinstance(answer, Exception) else routine.send(answer))
    except StopIteration as stop:
        return effects, stop.value
    except Exception as exc:
        return effects, exc


@pytest.mark.parametrize(
    ("answer", "value", "error", "is_refused"),
    [(7, 7, None, False), (OSError("down"), None, OSError, False), (-1, None, ValueError, True)],
)
def test_an_attempt_yields_one_call_and_nothing_that_writes(answer, value, error, is_refused):
    effects, outcome = played(run_attempt(Given()), answer)
    assert ["Call"] == names(effects)
    assert (value, is_refused) == (outcome.value, outcome.is_refused)
    assert error is None or isinstance(outcome.error, error)


def test_recording_runs_no_user_code():
    visit = Given(Retry(2, backoff=3))
    for answer, recorded in ((OSError("down"), ["failure", "Emit", "Sleep"]), (7, ["success"])):
        _, outcome = played(run_attempt(visit), answer)
        effects, is_over = played(record_outcome(visit, outcome))
        assert recorded == names(effects)
    assert is_over
    assert (1, 1) == (visit.budget.failures, visit.budget.attempts)


def test_the_last_failure_is_recorded_and_announced_before_it_is_raised():
    visit = Given(Retry(2, backoff=0))
    for number in (1, 2):
        _, outcome = played(run_attempt(visit), OSError(f"down {number}"))
        effects, end = played(record_outcome(visit, outcome))
    assert ["end", "Emit"] == names(effects)
    assert isinstance(effects[-1], Emit)
    assert isinstance(effects[-1].event, AttemptFailed)
    assert (2, None) == (effects[-1].event.attempt, effects[-1].event.retry_in)
    assert "gave up: down 2" == str(end)
    assert ["attempt 1 failed: OSError: down 1"] == end.__notes__
    assert isinstance(end.__cause__, OSError)


def test_an_attempt_fails_with_the_error_of_its_statements():
    error = StatementError("no such table")
    error.__cause__ = OSError("locked")
    visit = Given(Retry(2, backoff=3), (error,))
    routine = run_attempt(visit)
    call = next(routine)
    assert isinstance(call, Call)
    assert call.context is not None
    call.context._statements = ["a statement"]  # type: ignore[list-item]
    with pytest.raises(StopIteration) as stop:
        routine.send(7)
    outcome = stop.value.value
    effects, is_over = played(record_outcome(visit, outcome))
    assert ["success", "failure", "Emit", "Sleep"] == names(effects)
    assert (False, "commit", "locked") == (is_over, outcome.op, str(outcome.error))
    assert isinstance(effects[-1], Sleep)
    assert outcome.retry_in == effects[-1].seconds


def test_an_error_of_statements_without_statements_is_no_failed_attempt():
    visit = Given(Retry(2), (StatementError("a bug of a store"),))
    _, outcome = played(run_attempt(visit), 7)
    _, end = played(record_outcome(visit, outcome))
    assert isinstance(end, StatementError)
