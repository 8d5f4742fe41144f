"""Errors as text: whatever was raised can be told, and none of it is trusted."""

from __future__ import annotations

import json

import pytest

from milepost import END, Graph, MemoryStore
from milepost.errors import NodeError, NodeTimeoutError, OptionError
from milepost.model.failure import MAX_TEXT, describe, failure_fields, message_of, recorded_error, type_name


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not now")


class Wrong(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as exc:
        return exc


def test_types_are_told_with_their_module_but_for_built_in_ones() -> None:
    assert "ValueError" == type_name(ValueError())
    assert "milepost.errors.OptionError" == type_name(OptionError())
    assert "json.decoder.JSONDecodeError" == type_name(json.JSONDecodeError("no", "", 0))


def test_one_line_tells_type_and_message() -> None:
    assert "ValueError: first" == describe(ValueError("first\nsecond"))
    assert "ValueError" == describe(ValueError())


@pytest.mark.parametrize(("error", "cause"), [(Mute(), "RuntimeError"), (Wrong(), "TypeError")])
def test_an_error_that_cannot_be_shown_hides_nothing_else(error: Exception, cause: str) -> None:
    assert f"<its message cannot be shown: {cause}>" == message_of(error)
    fields = failure_fields(raised(error))
    assert type_name(error) == fields["error_type"]
    assert "in raised" in fields["traceback"]


def test_an_error_whose_traceback_cannot_be_made_is_recorded_all_the_same() -> None:
    class Unprintable(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise RuntimeError("not now")

    fields = failure_fields(raised(Unprintable("told")))
    assert "told" == fields["message"]
    assert fields["traceback"]


def test_what_utf8_cannot_hold_is_escaped() -> None:
    fields = failure_fields(raised(ValueError("file \udcff")))
    assert "file \\udcff" == fields["message"]
    json.dumps(fields, ensure_ascii=False).encode("utf-8")


def test_a_long_message_is_cut_at_its_end() -> None:
    assert "begin" + "x" * (MAX_TEXT - 5) == message_of(ValueError("begin" + "x" * 2 * MAX_TEXT))
    assert MAX_TEXT == len(message_of(ValueError("\udcff" * MAX_TEXT)))


def test_a_long_traceback_keeps_its_end() -> None:
    def deep(n: int) -> None:
        # Each level has a line of its own, so that the traceback is not folded.
        exec(f"{chr(10) * n}deep(n - 1) if n else fail()", {"deep": deep, "n": n, "fail": fail})

    def fail() -> None:
        raise ValueError("the message")

    try:
        deep(300)
    except ValueError as exc:
        text = failure_fields(exc)["traceback"]
    assert MAX_TEXT == len(text)
    assert text.endswith("ValueError: the message\n")


def culprit(message: str) -> None:
    raise ValueError(message)


@pytest.mark.parametrize("length", [20_000, 1_000_000])
def test_a_long_message_leaves_the_frames_of_the_users_code_first(length: int) -> None:
    def node(state: dict[str, int]) -> dict[str, int]:
        culprit("m" * length)
        return state

    graph = Graph(dict).add_node("a", node).add_edge("a", END).set_entry("a").compile("g")
    store = MemoryStore()
    with pytest.raises(NodeError):
        graph.run({}, store=store, run_id="r")
    (failure,) = store.read("r", kinds=("failure",))
    first, frame, *_ = failure.fields()["traceback"].splitlines()
    assert ("Traceback (most recent call last):", True) == (first, __file__ in frame)
    assert "culprit" in failure.fields()["traceback"]


def test_the_traceback_tells_the_causes_too() -> None:
    error = ValueError("outer")
    error.__cause__ = raised(KeyError("inner"))
    assert "KeyError: 'inner'" in failure_fields(error)["traceback"]


def test_an_error_of_another_process_is_told_in_text() -> None:
    error = recorded_error("r", {"error_type": "KeyError", "message": "'x'", "traceback": "there", "attempt": 2}, "a")
    assert NodeError is type(error)
    assert (
        "run 'r' failed at node 'a': KeyError: 'x'; mend the cause, then resume or retry it\nas recorded where it ran:\nthere"
        == str(error)
    )
    assert ("r", "a", "execute", 2, None) == (
        error.run_id,
        error.node_id,
        error.op,  # type: ignore[attr-defined]
        error.attempt,  # type: ignore[attr-defined]
        error.__cause__,
    )


def test_an_error_of_which_little_is_recorded_is_told_all_the_same() -> None:
    error = recorded_error("r", {}, "")
    assert ("run 'r' failed: error: ; mend the cause, then resume or retry it", None) == (str(error), error.node_id)


def test_a_timeout_stays_a_timeout() -> None:
    assert NodeTimeoutError is type(recorded_error("r", {"op": "timeout"}, "a"))
