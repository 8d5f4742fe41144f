"""Many routines at once, with a limit on how many are open. A routine that has not begun costs nothing but its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from milepost.executor.effects import Outcome, Routine
from milepost.executor.run import Run

__all__ = ["bounded_gather"]


def bounded_gather(run: Run, routines: Mapping[str, Routine[Any]], limit: int | None) -> Routine[dict[str, Outcome]]:
    """Perform routines at once, at most `limit` of them, and return an outcome for each that was begun, in order.

    The routines may have branches inside; the run's own limit counts the calls in all of them together. Only an
    interruption leaves routines that were not begun.
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
    """Take routines from the queue and perform one after the other, until the queue is empty."""
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
