"""The open branches of a `Gather`, stepped one after the other by a driver; holds no thread and does no I/O.

A driver asks for the next effect of any ready branch, performs it in its own way, and answers. Nested gathers open
further branches in the same set, so that however deep they nest, only calls of user code occupy threads or tasks. The
order in which branches are stepped is the order in which they became ready, and a test may choose another.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from milepost.executor.effects import Alone, Ask, Call, Effect, Emit, Gather, Halted, Outcome, Routine, Write
from milepost.store import Append


class Branch:
    """One branch: its routine, and the gather that waits for it."""

    __slots__ = ("join", "name", "pending", "routine")

    def __init__(self, name: str, routine: Routine[Any], join: Join) -> None:
        self.name = name
        self.routine = routine
        self.join = join
        self.pending: Effect | None = None
        """The effect whose answer the branch waits for."""


class Join:
    """A gather whose branches are open; `parent` is the branch that asked for it, None for the first."""

    __slots__ = ("calls", "is_stopped", "limit", "open", "outcomes", "parent")

    def __init__(self, gather: Gather, parent: Branch | None, limit: int | None) -> None:
        # Outcomes keep the order in which the branches were given, whatever the order in which they end.
        self.outcomes = {name: Outcome() for name in gather.branches}
        self.open = len(gather.branches)
        self.parent = parent
        self.limit = limit
        self.is_stopped = gather.is_stopped
        self.calls = 0
        """The number of calls that run in it, including those in gathers inside it."""


class Branches:
    """All branches below one gather."""

    def __init__(self, gather: Gather, limit: int | None = None) -> None:
        """Open the branches of `gather`. `limit` bounds the calls that occupy a thread at once; None: any number.

        It counts only if the gather has no limit of its own. Calls that an executor makes occupy no thread.
        """
        self._most_threads = limit if gather.max_parallel is None else None
        self._in_threads: set[Branch] = set()
        self._open_branches: dict[Branch, None] = {}
        self._ready: deque[tuple[Branch, Any, BaseException | None]] = deque()
        self._waiting: deque[tuple[Branch, Call]] = deque()
        self._root = self._open(gather, None, gather.max_parallel)

    @property
    def is_over(self) -> bool:
        """True if every branch has ended."""
        return self._root.open == 0

    @property
    def is_ready(self) -> bool:
        """True if a branch can be stepped."""
        return bool(self._ready)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcome of each branch of the first gather, in the order in which they were given."""
        return self._root.outcomes

    def step(self) -> tuple[Branch, Effect] | None:
        """Step ready branches until one asks for an effect; None if none is ready."""
        while self._ready:
            branch, value, error = self._ready.popleft()
            try:
                effect = branch.routine.send(value) if error is None else branch.routine.throw(error)
            except StopIteration as stop:
                self._end(branch, Outcome(stop.value))
            except KeyboardInterrupt:
                # Ctrl-C is not this branch's: it came while the branch was stepped, and nobody is to wait for those
                # beside it.
                raise
            except BaseException as exc:
                self._end(branch, Outcome(error=exc))
            else:
                branch.pending = effect
                if not isinstance(effect, Gather):
                    return branch, effect
                self._open(effect, branch, effect.max_parallel)
        return None

    def answer(self, branch: Branch, value: Any) -> None:
        """Give a branch the answer of its effect."""
        branch.pending = None
        self._ready.append((branch, value, None))

    def fail(self, branch: Branch, error: BaseException) -> None:
        """Throw into a branch the error of its effect."""
        branch.pending = None
        self._ready.append((branch, None, error))

    def want(self, branch: Branch, call: Call) -> None:
        """Put a call into the queue of calls to be made."""
        self._waiting.append((branch, call))

    def admitted(self) -> Iterator[tuple[Branch, Call]]:
        """Iterate over the calls that may be made now, as far as the limits of all gathers around them allow it."""
        for _ in range(len(self._waiting)):
            branch, call = self._waiting.popleft()
            around = [*_around(branch)]
            if any(join.is_stopped is not None and join.is_stopped() for join in around):
                self.fail(branch, Halted())
                continue
            needs_thread = not call.is_async and (call.executor is None or call.timeout is not None)
            is_full = needs_thread and self._most_threads is not None and len(self._in_threads) >= self._most_threads
            if is_full or any(join.limit is not None and join.calls >= join.limit for join in around):
                self._waiting.append((branch, call))
                continue
            for join in around:
                join.calls += 1
            if needs_thread:
                self._in_threads.add(branch)
            yield branch, call

    def has_called(self, branch: Branch) -> None:
        """Note that an admitted call has ended."""
        self._in_threads.discard(branch)
        for join in _around(branch):
            join.calls -= 1

    def ended_by(self, end: BaseException) -> Routine[None]:
        """Throw the end of the gather into every open branch, and perform only what branches still write and ask.

        So the work that a branch has done is recorded, though nobody will hear its answer.
        """
        while self._ready:
            branch, value, error = self._ready.popleft()
            step: Callable[[Any], Effect] = branch.routine.send if error is None else branch.routine.throw
            branch.pending = _stepped(step, value if error is None else error)
        branches = [*self._open_branches][::-1]
        for branch in sorted(branches, key=_first_number):
            if type(branch.pending) is Write:
                yield from _answered(branch)
        for branch in branches:
            branch.pending = _stepped(branch.routine.throw, end)
            while isinstance(branch.pending, (Alone, Ask, Emit, Write)):
                yield from _answered(branch)
            with suppress(Exception):
                branch.routine.close()

    def _open(self, gather: Gather, parent: Branch | None, limit: int | None) -> Join:
        join = Join(gather, parent, limit)
        for name, routine in gather.branches.items():
            branch = Branch(name, routine, join)
            self._open_branches[branch] = None
            self._ready.append((branch, None, None))
        if not join.open and parent is not None:
            self.answer(parent, join.outcomes)
        return join

    def _end(self, branch: Branch, outcome: Outcome) -> None:
        join = branch.join
        del self._open_branches[branch]
        join.outcomes[branch.name] = outcome
        join.open -= 1
        if not join.open and join.parent is not None:
            self.answer(join.parent, join.outcomes)


def _answered(branch: Branch) -> Routine[None]:
    """Have the pending effect of a branch performed, and give the branch its answer."""
    effect = branch.pending
    assert effect is not None
    try:
        answer = yield effect
    except Exception as exc:
        branch.pending = _stepped(branch.routine.throw, exc)
    else:
        branch.pending = _stepped(branch.routine.send, answer)


def _stepped(step: Callable[[Any], Effect], value: Any) -> Effect | None:
    """Step a routine once; return the effect that it asks for, or None if it has ended."""
    try:
        return step(value)
    except BaseException:
        return None


def _first_number(branch: Branch) -> float:
    """Return the number of the first record in a branch's pending write, infinity if there is none."""
    records = branch.pending.append.records if isinstance(branch.pending, Write) else ()
    return records[0].sequence if records else math.inf


def _around(branch: Branch) -> Iterator[Join]:
    """Iterate over the gathers that a branch is in, the innermost first."""
    inside: Branch | None = branch
    while inside is not None:
        yield inside.join
        inside = inside.join.parent


def merged(writes: Iterable[tuple[Branch, Write]]) -> list[tuple[Append, list[Branch]]]:
    """Merge the writes of each run into one append. Returns each append with the branches that wait for its verdict.

    An append with statements comes alone, for its branch has asked to be `Alone`. Raises RuntimeError if it has not: a
    failing statement would take other writes with it.
    """
    by_run: dict[Any, tuple[Append, list[Branch]]] = {}
    for branch, write in writes:
        new = write.append
        before = by_run.get(new.token)
        if before is None:
            by_run[new.token] = (new, [branch])
            continue
        append, waiting = before
        if append.statements or new.statements:
            raise RuntimeError(f"branch {branch.name!r} hands in an append with statements without being alone")
        tags = {**(append.tags or {}), **(new.tags or {})} or None
        joined = Append(append.token, (*append.records, *new.records), new.release or append.release, tags)
        by_run[new.token] = (joined, [*waiting, branch])
    return list(by_run.values())
