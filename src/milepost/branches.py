"""The open branches of a `Gather`, stepped one after the other by a driver; holds no thread and does no I/O.

A driver asks for the next effect of whatever branch is ready, performs it in its own way, and answers. Nested gathers
open further branches in the same set, so that however deep they nest, only calls of user code occupy threads or tasks.
The order in which branches are stepped is the order in which they became ready, and a test may choose another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from milepost.effects import Effect, Gather, Outcome, Routine, Write
from milepost.store import Append

__all__ = ["Branch", "Branches", "merged"]


class Branch:
    """One branch: its routine, and the gather that waits for it."""

    __slots__ = ("join", "name", "routine")

    def __init__(self, name: str, routine: Routine[Any], join: Join) -> None:
        self.name = name
        self.routine = routine
        self.join = join


class Join:
    """A gather whose branches are open; `parent` is the branch that asked for it, None for the first."""

    __slots__ = ("open", "outcomes", "parent")

    def __init__(self, gather: Gather, parent: Branch | None) -> None:
        # In the order in which the branches were given, whatever the order in which they end.
        self.outcomes = {name: Outcome() for name in gather.branches}
        self.open = len(gather.branches)
        self.parent = parent


class Branches:
    """All branches below one gather."""

    def __init__(self, gather: Gather) -> None:
        self._ready: deque[tuple[Branch, Any, BaseException | None]] = deque()
        self._root = self._open(gather, None)

    @property
    def is_over(self) -> bool:
        """Whether every branch has ended."""
        return self._root.open == 0

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """How each branch of the first gather ended, in the order in which they were given."""
        return self._root.outcomes

    def step(self) -> tuple[Branch, Effect] | None:
        """Step ready branches until one asks for an effect; None when none is ready."""
        while self._ready:
            branch, value, error = self._ready.popleft()
            try:
                effect = branch.routine.send(value) if error is None else branch.routine.throw(error)
            except StopIteration as stop:
                self._end(branch, Outcome(stop.value))
            except BaseException as exc:
                self._end(branch, Outcome(error=exc))
            else:
                if not isinstance(effect, Gather):
                    return branch, effect
                self._open(effect, branch)
        return None

    def answer(self, branch: Branch, value: Any) -> None:
        """Give a branch the answer of its effect."""
        self._ready.append((branch, value, None))

    def fail(self, branch: Branch, error: BaseException) -> None:
        """Throw into a branch what its effect raised."""
        self._ready.append((branch, None, error))

    def _open(self, gather: Gather, parent: Branch | None) -> Join:
        join = Join(gather, parent)
        for name, routine in gather.branches.items():
            self._ready.append((Branch(name, routine, join), None, None))
        if not join.open and parent is not None:
            self.answer(parent, join.outcomes)
        return join

    def _end(self, branch: Branch, outcome: Outcome) -> None:
        join = branch.join
        join.outcomes[branch.name] = outcome
        join.open -= 1
        if not join.open and join.parent is not None:
            self.answer(join.parent, join.outcomes)


def merged(writes: Iterable[tuple[Branch, Write]]) -> list[tuple[Append, list[Branch]]]:
    """What the branches of each run hand in, as one append a run, with the branches that wait for its verdict."""
    by_run: dict[Any, tuple[Append, list[Branch]]] = {}
    for branch, write in writes:
        new = write.append
        before = by_run.get(new.token)
        if before is None:
            by_run[new.token] = (new, [branch])
            continue
        append, waiting = before
        tags = {**(append.tags or {}), **(new.tags or {})} or None
        joined = Append(append.token, (*append.records, *new.records), new.release or append.release, tags)
        by_run[new.token] = (joined, [*waiting, branch])
    return list(by_run.values())
