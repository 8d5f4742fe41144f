"""Hooks: called with each event, able to surround a call, unable to change a run."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.events import Emitted
from milepost.model.events import notify, surround

EVENT = Emitted(run_id="r", timestamp=1.0, node_id="a", name="n")


class Around:
    """A context manager that notes what happens to it, and fails where it is told to."""

    def __init__(
        self, notes: list[str], name: str, at_enter: Any = None, at_exit: Any = None, answer: Any = None
    ) -> None:
        self.notes, self.name, self.at_enter, self.at_exit, self.answer = notes, name, at_enter, at_exit, answer

    def __enter__(self) -> None:
        self.notes.append(f"enter {self.name}")
        if self.at_enter is not None:
            raise self.at_enter

    def __exit__(self, kind: Any, *rest: object) -> Any:
        self.notes.append(f"exit {self.name} {kind.__name__ if kind else None}")
        if self.at_exit is not None:
            raise self.at_exit
        return self.answer


def test_an_interruption_from_a_hook_is_not_swallowed() -> None:
    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notify([stop], EVENT)


def test_managers_are_entered_in_order_and_left_in_reverse() -> None:
    notes: list[str] = []
    with surround([Around(notes, "a"), Around(notes, "b")], "r"):
        notes.append("call")
    assert ["enter a", "enter b", "call", "exit b None", "exit a None"] == notes


def test_a_manager_that_fails_to_enter_is_logged_and_never_left(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    with surround([Around(notes, "a", at_enter=OSError()), Around(notes, "b")], "r"):
        notes.append("call")
    assert ["enter a", "enter b", "call", "exit b None"] == notes
    assert 1 == len(caplog.records)


@pytest.mark.parametrize("error", [None, ValueError("mine")])
def test_a_manager_that_fails_to_leave_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    notes: list[str] = []
    caught: Exception | None = None
    try:
        with surround([Around(notes, "a"), Around(notes, "b", at_exit=OSError("other"))], "r"):
            if error is not None:
                raise error
    except ValueError as exc:
        caught = exc
    assert error is caught
    assert 2 + 2 == len(notes)
    assert 1 == len(caplog.records)


def test_an_interruption_while_a_manager_is_left_is_not_swallowed() -> None:
    notes: list[str] = []
    with (
        pytest.raises(KeyboardInterrupt),
        surround([Around(notes, "a"), Around(notes, "b", at_exit=KeyboardInterrupt())], "r"),
    ):
        notes.append("call")
    assert "exit a KeyboardInterrupt" == notes[-1]


def test_nothing_around_a_call_is_fine() -> None:
    with pytest.raises(StopIteration), surround([], "r"):
        raise StopIteration
