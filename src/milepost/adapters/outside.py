"""A base for stores whose journal is incomplete: something outside it may know more about a run.

Before a verb reads a run, the store looks there and records what the journal lacks, as saves from outside. The verbs of
a run's owner do not look: the journal belongs to them.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from milepost.store import NewRun, RunSnapshot, Token, check_run_id
from milepost.stores.base.store import Runs

__all__ = ["LooksOutside"]

Verb = TypeVar("Verb", bound=Callable[..., Any])


def _after_a_look(verb: Verb) -> Verb:
    """Wrap a verb so that it looks outside before it does its work."""

    @functools.wraps(verb)
    def looked(self: LooksOutside, run_id: str, *args: Any, **kwargs: Any) -> Any:
        self._look(check_run_id(run_id))
        # Call the method of the backend's own class, which may have overridden it.
        return getattr(super(LooksOutside, self), verb.__name__)(run_id, *args, **kwargs)

    return cast("Verb", looked)


class LooksOutside(Runs):
    """A mixin for `Runs` that looks outside before each verb that begins something. Put it before the backend's class."""

    @abc.abstractmethod
    def _look(self, run_id: str) -> None:
        """Record what is known outside about a run that nobody here executes. Raise what reading it raises."""

    def create(self, new: NewRun) -> Token:
        self._look(check_run_id(new.run_id))
        return super().create(new)

    def latest(self, run_id: str, *, before: int | None = None, with_nodes: bool = False) -> RunSnapshot:
        if before is None:
            self._look(check_run_id(run_id))
        return super().latest(run_id, before=before, with_nodes=with_nodes)

    get_run = _after_a_look(Runs.get_run)
    put_signal = _after_a_look(Runs.put_signal)
    request_cancel = _after_a_look(Runs.request_cancel)
    save = _after_a_look(Runs.save)
    load = _after_a_look(Runs.load)
    history = _after_a_look(Runs.history)
    delete = _after_a_look(Runs.delete)
    delete_run = _after_a_look(Runs.delete_run)
    export = _after_a_look(Runs.export)
    verify = _after_a_look(Runs.verify)
