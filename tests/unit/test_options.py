"""Options: checked before anything runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from milepost.errors import OptionError
from milepost.model.retry import Retry
from milepost.options import Options, merge_options
from milepost.testing.tables import for_each


def hook(event: Any) -> None: ...


def other(event: Any) -> None: ...


def test_the_defaults_are_good() -> None:
    options = Options()
    assert ("error", 1000, 30.0, 5, 104_857_600) == (
        options.if_exists,
        options.max_iterations,
        options.lease,
        options.max_crashes,
        options.warn_size,
    )


@for_each(
    "option, value",
    [
        ("if_exists", "ignore"),
        ("on_corrupt", None),
        ("on_locked", "steal"),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", "5"),
        ("timeout", True),
        ("run_timeout", float("inf")),
        ("lease", None),
        ("lease", timedelta(0)),
        ("max_iterations", 0),
        ("max_iterations", 100_001),
        ("max_iterations", 10.0),
        ("max_iterations", True),
        ("max_parallel", 0),
        ("max_crashes", 0),
        ("max_state_size", 0),
        ("warn_size", 0),
        ("warn_size", None),
        ("retry", 3),
        ("state_override", {"a": 1}),
        ("revalidate", "yes"),
        ("hooks", ["audit"]),
        ("hooks", hook),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: Any) -> None:
    for make in (lambda: Options(**{option: value}), lambda: merge_options({}, {option: value})):
        with pytest.raises(OptionError, match=option) as caught:
            make()
        assert option == caught.value.option


@for_each(
    "option, value, expected",
    [
        ("timeout", timedelta(minutes=1), 60.0),
        ("run_timeout", 5, 5.0),
        ("lease", timedelta(seconds=9), 9.0),
        ("max_iterations", None, None),
        ("max_iterations", 100_000, 100_000),
        ("max_crashes", None, None),
        ("stop_before", "pay", frozenset({"pay"})),
        ("stop_after", ["pay", "ship"], frozenset({"pay", "ship"})),
        ("hooks", [hook], (hook,)),
        ("retry", Retry(), Retry()),
    ],
)
def test_values_are_taken_in_the_forms_people_write(option: str, value: Any, expected: Any) -> None:
    assert expected == getattr(Options(**{option: value}), option)


@pytest.mark.parametrize("tags", [{1: "a"}, {"a": 1}, {"a": None}])
def test_tags_are_pairs_of_text(tags: Any) -> None:
    with pytest.raises(TypeError):
        Options(tags=tags)


def test_an_option_that_is_not_there_is_named() -> None:
    with pytest.raises(OptionError, match="'colour', 'max_iteration'") as caught:
        merge_options({"max_iteration": 5}, {"colour": "red"})
    assert "colour" == caught.value.option


def test_the_option_of_a_call_beats_the_one_bound_before() -> None:
    assert (7, "resume") == tuple(
        getattr(merge_options({"max_iterations": 5, "if_exists": "resume"}, {"max_iterations": 7}), name)
        for name in ("max_iterations", "if_exists")
    )


def test_hooks_add_up_and_tags_merge() -> None:
    base = {"hooks": (hook,), "tags": {"a": "1", "b": "1"}}
    options = merge_options(base, {"hooks": [other], "tags": {"b": "2"}})
    assert ((hook, other), {"a": "1", "b": "2"}) == (options.hooks, options.tags)
    assert ((hook,), {"a": "1", "b": "1"}) == (base["hooks"], base["tags"])


def test_none_adds_no_hooks_and_no_tags() -> None:
    options = merge_options({"hooks": None, "tags": None}, {"hooks": None, "tags": None})
    assert ((), {}) == (options.hooks, options.tags)


def test_an_unknown_option_is_answered_with_what_was_meant() -> None:
    with pytest.raises(
        OptionError, match="no option is called 'full': it is a keyword of some verbs, but not of this one"
    ):
        merge_options({"full": True}, {})
    with pytest.raises(OptionError, match="did you mean 'max_iterations'"):
        merge_options({}, {"max_iteration": 5})
    with pytest.raises(OptionError, match=r"an option of Graph\(\.\.\.\)"):
        merge_options({}, {"unknown_fields": "drop"})
    with pytest.raises(OptionError, match=r"no option is called 'thread_id': did you mean 'run_id'\?$"):
        merge_options({}, {"thread_id": 5})
    with pytest.raises(OptionError, match=r"are those of milepost.RunOptions$"):
        merge_options({}, {"zzz": 5})
