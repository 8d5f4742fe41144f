"""Retry policies: what is tried again, and after which pause."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from milepost.errors import OptionError
from milepost.model.durations import LONGEST, as_seconds
from milepost.model.retry import Retry
from milepost.testing.tables import for_each

EXACT = {"jitter": False}


def delays(policy: Retry, failures: int) -> list[float]:
    return [policy.delay(n, "r", "a", 1) for n in range(1, failures + 1)]


def test_the_default_makes_three_attempts() -> None:
    policy = Retry()
    assert [True, True, False] == [policy.allows(n, ValueError()) for n in (1, 2, 3)]


def test_one_attempt_is_no_retry() -> None:
    assert not Retry(max_attempts=1).allows(1, ValueError())


def test_pauses_grow_by_the_factor_up_to_the_longest() -> None:
    assert [1.0, 2.0, 4.0, 8.0, 10.0, 10.0] == delays(Retry(max_delay=10, **EXACT), 6)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1, [1.0, 1.0, 1.0]),
        (1.5, [1.0, 1.5, 2.25]),
        (100, [1.0, 100.0, 10_000.0]),
        (5000.0, [1.0, 5000.0, 25_000_000.0]),
    ],
)
def test_any_factor_counts_in_full(factor: float, expected: list[float]) -> None:
    assert expected == delays(Retry(factor=factor, max_delay=1e9, **EXACT), 3)


def test_a_small_factor_grows_for_as_long_as_it_takes() -> None:
    policy = Retry(factor=1.001, max_delay=1e6, **EXACT)
    assert pytest.approx(1.001**4999) == policy.delay(5000, "r", "a", 1)


@pytest.mark.parametrize("factor", [2, 2.0, 1e300])
def test_a_very_long_series_of_failures_stays_at_the_longest_pause(factor: float) -> None:
    assert 60.0 == Retry(factor=factor, **EXACT).delay(10**6, "r", "a", 1)


def test_no_backoff_is_no_pause_however_often() -> None:
    assert [0.0, 0.0, 0.0] == [Retry(backoff=0, **EXACT).delay(n, "r", "a", 1) for n in (1, 5, 10**6)]


def test_jitter_is_half_to_one_and_a_half_and_the_same_each_time() -> None:
    policy = Retry(backoff=10, factor=1)
    drawn = [policy.delay(n, "r", "a", v) for n in range(1, 20) for v in range(1, 20)]
    assert all(5.0 <= pause <= 15.0 for pause in drawn)
    assert drawn == [policy.delay(n, "r", "a", v) for n in range(1, 20) for v in range(1, 20)]
    assert len(drawn) == len(set(drawn))


def test_only_named_errors_are_tried_again() -> None:
    policy = Retry(retry_on=OSError, give_up_on=(FileNotFoundError,))  # type: ignore[arg-type]
    assert (True, False, False) == tuple(policy.allows(1, e) for e in (OSError(), FileNotFoundError(), ValueError()))
    assert not Retry().allows(1, KeyboardInterrupt())


@for_each(
    "option, value",
    [
        ("max_attempts", 0),
        ("max_attempts", 1.0),
        ("max_attempts", True),
        ("backoff", -1),
        ("backoff", None),
        ("backoff", float("nan")),
        ("max_delay", float("inf")),
        ("factor", 0.5),
        ("factor", "2"),
        ("factor", True),
        ("factor", float("inf")),
        ("retry_on", "ValueError"),
        ("retry_on", (ValueError, 1)),
        ("give_up_on", [ValueError]),
    ],
)
def test_values_out_of_range_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        Retry(**{option: value})
    assert option == caught.value.option


def test_an_integer_beyond_floats_is_refused() -> None:
    for option in ("backoff", "factor"):
        with pytest.raises(OptionError):
            Retry(**{option: 10**400})  # type: ignore[arg-type]


@for_each("value", [timedelta.max, 1e300, float("inf"), float("nan"), 200 * 366 * 86400, -1, True, "1", None])
def test_a_duration_that_no_clock_can_wait_for_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="0 or more and at most 100 years"):
        as_seconds(value, "timeout")
    assert LONGEST == as_seconds(LONGEST, "timeout")


def test_durations_may_be_timedeltas() -> None:
    policy = Retry(backoff=timedelta(seconds=2), max_delay=timedelta(minutes=1))  # type: ignore[arg-type]
    assert (2.0, 60.0) == (policy.backoff, policy.max_delay)
    assert 0.25 == as_seconds(timedelta(milliseconds=250), "timeout")
