"""A driver that a test moves by hand: one effect at a time, with a fake clock and without threads.

`Stepper(routine)` stops before each effect that the core asks for. The test looks at the effect. Then it performs it
(`step`), lets it fail (`fail`), or drops the routine, as if its process had died (`kill`). Each coroutine runs to its
end in an event loop of its own, so the test itself must not run in an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from milepost.drivers import SyncDriver
from milepost.drivers.base import invoke
from milepost.drivers.branches import Branch, Branches
from milepost.drivers.threads import PendingSet
from milepost.errors import AttemptTimedOut
from milepost.executor.context import current_context
from milepost.executor.effects import (
    Alone,
    Ask,
    Call,
    Drop,
    Effect,
    Gather,
    Hold,
    Outcome,
    Routine,
    Sleep,
    Write,
)
from milepost.model.events import Hook, surround
from milepost.store import Claimed, Token
from milepost.testing.clock import FakeClock

__all__ = ["Lease", "Stepper"]

T = TypeVar("T")
EffectT = TypeVar("EffectT", bound=Effect)


class Lease:
    """A lease that nobody renews and that only the test ends; see `milepost.executor.effects.LeaseView`."""

    def __init__(self) -> None:
        self.is_lost = False
        self.cancel: str | None = None
        self.is_draining = self.is_ending = False

    @property
    def is_over(self) -> bool:
        """True if the test has ended the lease."""
        return self.is_lost or (self.cancel is not None and not self.is_ending)

    def watch(self, tell: Callable[[], None]) -> None:
        """Do nothing: no thread waits that would have to be woken."""

    def unwatch(self, tell: Callable[[], None]) -> None:
        """Do nothing."""


class Stepper(Generic[T]):
    """One routine and the effect that it waits for.

    `clock` is the clock in the routine's options: a `Sleep` advances it, and a call times out if the called function
    advances it too far. `hooks` get the events. Branches are stepped too, one effect of one branch at a time: `choose`
    gets the effects that open branches wait for, in the order in which they were asked for, and returns the index of the
    one to perform next; None: the first.
    """

    def __init__(
        self,
        routine: Routine[T],
        *,
        clock: FakeClock | None = None,
        hooks: Sequence[Hook] = (),
        choose: Callable[[Sequence[Effect]], int] | None = None,
    ) -> None:
        self._routine = routine
        self._choose = choose
        self._branches: Branches | None = None
        self._asked: list[tuple[Branch, Effect]] = []
        """The effects that open branches wait for, without the pending one."""
        self._at: Branch | None = None
        """The branch of the pending effect."""
        self._driver = _StepDriver(FakeClock() if clock is None else clock, hooks)
        self._ended: tuple[T | None, BaseException | None] | None = None
        self.pending: Effect | None = None
        """The effect that the routine waits for; None once it has ended."""
        self.effects: list[Effect] = []
        """The effects that were performed or made to fail, in order."""
        self.lease = self._driver.lease
        """The core's view of the lease that it holds: the test may mark it as lost or cancelled."""
        self.tokens = self._driver.tokens
        """The tokens that the store gave to this routine."""
        self._advance(lambda: next(routine))

    @property
    def is_done(self) -> bool:
        """True if the routine has ended, or was killed."""
        return self.pending is None

    @property
    def is_gathering(self) -> bool:
        """True if branches are open, and the pending effect belongs to one of them."""
        return self._branches is not None

    @property
    def error(self) -> BaseException | None:
        """The exception of the routine; None if it returned or goes on."""
        return None if self._ended is None else self._ended[1]

    @property
    def result(self) -> T:
        """The value that the routine returned. Raises the routine's exception; RuntimeError if it goes on or was killed."""
        if self._ended is None:
            raise RuntimeError(f"the routine has no result: it waits for {self.pending!r}")
        value, error = self._ended
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def step(self) -> Effect:
        """Perform the pending effect, let the routine go on to the next one, and return the effect."""
        effect = self._take()
        try:
            answer = self._driver.perform(effect)
        except BaseException as exc:
            self._throw(exc)
        else:
            self._answer(answer)
        return effect

    def perform(self, then: Callable[[], object] = lambda: None) -> None:
        """Perform the pending effect, then drop the routine before it gets the answer, as if the
        process died at that moment. `then` is called before the routine is dropped."""
        assert self.pending is not None
        # An error is lost with the process, like an answer.
        with suppress(Exception):
            self._driver.perform(self.pending)
        then()
        self.kill()

    def fail(self, error: BaseException) -> Effect:
        """Let the pending effect fail with `error` instead of performing it, and return the effect."""
        effect = self._take()
        self._throw(error)
        return effect

    def run_until(self, kind: type[EffectT]) -> EffectT:
        """Step until an effect of this kind is pending, and return it. Raise LookupError if the routine ends first."""
        while not isinstance(self.pending, kind):
            if self.pending is None:
                raise LookupError(f"the routine ended without a {kind.__name__}")
            self.step()
        return self.pending

    def run(self) -> T:
        """Step to the end, and return the result."""
        while self.pending is not None:
            self.step()
        return self.result

    def kill(self) -> None:
        """Drop the routine; nothing more is performed. Raise RuntimeError if the routine still asks for an effect."""
        self.pending = self._branches = self._at = None
        self._asked.clear()
        self._routine.close()

    def _take(self) -> Effect:
        if self.pending is None:
            raise RuntimeError("the routine has ended: nothing is left to perform")
        self.effects.append(self.pending)
        return self.pending

    def _answer(self, value: Any) -> None:
        if self._branches is None or self._at is None:
            self._advance(lambda: self._routine.send(value))
        else:
            self._branches.answer(self._at, value)
            self._go_on()

    def _throw(self, error: BaseException) -> None:
        if self._branches is None or self._at is None or not isinstance(error, Exception):
            # An error that is not an `Exception` ends a gather at once, in every driver.
            self._branches = self._at = None
            self._asked.clear()
            self._advance(lambda: self._routine.throw(error))
        else:
            self._branches.fail(self._at, error)
            self._go_on()

    def _advance(self, go_on: Callable[[], Effect]) -> None:
        try:
            effect = go_on()
        except StopIteration as stop:
            self.pending, self._ended = None, (stop.value, None)
        except BaseException as exc:
            self.pending, self._ended = None, (None, exc)
        else:
            self.pending = effect
            if isinstance(effect, Gather):
                self._branches = Branches(effect)
                self._go_on()

    def _go_on(self) -> None:
        """Let every ready branch go on to its next effect, then choose one of the waiting ones."""
        assert self._branches is not None
        while (item := self._branches.step()) is not None:
            self._asked.append(item)
        if self._branches.is_over:
            outcomes, self._branches, self._at = self._branches.outcomes, None, None
            self._advance(lambda: self._routine.send(outcomes))
            return
        eligible = self._eligible()
        chosen = 0 if self._choose is None else self._choose([self._asked[index][1] for index in eligible])
        self._at, self.pending = self._asked.pop(eligible[chosen])

    def _eligible(self) -> list[int]:
        """List the indexes of the effects that may be next. Records go to the store in the order in which they were made."""
        writes = [index for index, (_, effect) in enumerate(self._asked) if isinstance(effect, Write)]
        if any(isinstance(effect, Write) and effect.append.statements for _, effect in self._asked):
            return writes[:1]
        waits = {index for index, (_, effect) in enumerate(self._asked) if isinstance(effect, Alone) and writes}
        not_yet = {*writes[1:], *waits}
        return [index for index in range(len(self._asked)) if index not in not_yet]


class _StepDriver(SyncDriver):
    """A driver without threads, real waits or a heartbeat."""

    clock: FakeClock

    def __init__(self, clock: FakeClock, hooks: Sequence[Hook]) -> None:
        super().__init__(clock, hooks)
        self.lease = Lease()
        self.tokens: list[Token] = []

    def perform(self, effect: Effect) -> Any:
        answer = super().perform(effect)
        if isinstance(effect, Ask) and isinstance(answer, Token):
            self.tokens.append(answer)
        elif isinstance(answer, Claimed) and answer.token is not None:
            self.tokens.append(answer.token)
        return answer

    def _call(self, call: Call, open_calls: PendingSet | None = None) -> Any:
        around = self.publish(call.announce) if call.announce is not None else ()
        began = self.clock.monotonic()
        value = asyncio.run(_await(call, around)) if call.is_async else invoke(call, around)
        if call.timeout is not None and self.clock.monotonic() - began >= call.timeout:
            raise AttemptTimedOut(call.timeout)
        return value

    def _gather(self, gather: Gather) -> dict[str, Outcome]:
        """Perform all branches at once, for a test that does not step branches."""
        branches = Branches(gather)
        while (item := branches.step()) is not None:
            branch, effect = item
            try:
                answer = self.perform(effect)
            except Exception as exc:
                branches.fail(branch, exc)
            else:
                branches.answer(branch, answer)
        return branches.outcomes

    def _sleep(self, effect: Sleep) -> None:
        self.clock.advance(effect.seconds)

    def perform_quick(self, effect: Effect) -> Any:
        if isinstance(effect, Hold):
            return self.lease
        if isinstance(effect, Drop):
            effect.store.abandon(effect.token)
            if effect.owed is not None:
                effect.store.release(effect.token, effect.owed)
            return None
        return super().perform_quick(effect)


async def _await(call: Call, around: Sequence[Any]) -> Any:
    if call.context is None:
        return await call.fn(*call.args)
    # `asyncio.run` makes a task of this, so the context variable is reset when the task ends.
    current_context.set(call.context)
    with surround(around, call.context.run_id):
        return await call.fn(*call.args)
