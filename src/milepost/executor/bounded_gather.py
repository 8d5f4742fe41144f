"""Many things at once, with only so many of them open: what is not begun yet costs nothing but its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from milepost.executor.effects import Outcome, Routine
from milepost.executor.run import Run

__all__ = ["bounded_gather"]


def bounded_gather(run: Run, routines: Mapping[str, Routine[Any]], limit: int | None) -> Routine[dict[str, Outcome]]:
    """Do several at once, at most `limit` of them: an outcome for each that was begun, in order.

    The run's own limit is for the calls in all of them together, which may have branches inside. Only after an interruption
    are there some that were not begun.
    """
    most_calls = run.options.max_parallel
    if limit is None or limit >= len(routines):
        return (yield from run.gather(routines, most_calls))
    outcomes: dict[str, Outcome] = {}
    queue = iter(routines.items())
    lanes = {str(number): _lane(queue, outcomes) for number in range(limit)}
    for lane in (yield from run.gather(lanes, most_calls)).values():
        if lane.error is not None:
            raise lane.error
    return {name: outcomes[name] for name in routines if name in outcomes}


def _lane(queue: Iterator[tuple[str, Routine[Any]]], outcomes: dict[str, Outcome]) -> Routine[None]:
    """Do one after the other, as long as there are some."""
    for name, routine in queue:
        try:
            value = yield from routine
        except GeneratorExit:
            raise
        except BaseException as exc:
            outcomes[name] = Outcome(error=exc)
            if not isinstance(exc, Exception):
                # The run is interrupted: nothing more begins, in no lane.
                for _, waiting in queue:
                    waiting.close()
        else:
            outcomes[name] = Outcome(value)
