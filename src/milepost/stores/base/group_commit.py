"""Threads that append at the same time share a commit.

Each queues what it has, and the first in line commits all that waits, in one go, and hands each its verdicts. A
thread that is alone does not come here: it takes `lock` and writes.

Nobody waits in vain: whoever lets go of the lock wakes the first in line, and a thread that queues up and finds the
lock free and itself the first goes ahead. On every way out of the leader, a signal's exception included, the others
are settled or are back in line. Should a wake-up be lost to a signal all the same, who waits looks for itself now and then.

Those who are settled wake one another, each another one before it goes on. All at once they would only wait for each
other again: the interpreter runs one thread at a time, and to contend for that costs more than a commit.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from milepost.store import Append, Verdict

__all__ = ["GroupCommit"]

_LOOK = 1.0
"""Seconds after which who waits looks whether it need not."""
_ABREAST = 3
"""How many of them are woken at once: one goes on, the others are ready when it stops, also on a busy machine."""


class _Job:
    """One thread's batch. `verdicts` or `error` is there once it is settled."""

    __slots__ = ("after", "appends", "error", "gate", "verdicts")

    def __init__(self, appends: list[Append]) -> None:
        self.appends = appends
        self.verdicts: list[Verdict] | None = None
        self.error: BaseException | None = None
        self.after: Sequence[_Job] = ()
        """Who is in the same commit and to be woken next."""
        self.gate = threading.Lock()
        """Its thread waits here, to be told that the job is settled or first in line."""
        self.gate.acquire()

    @property
    def is_settled(self) -> bool:
        return self.verdicts is not None or self.error is not None

    def wake(self) -> None:
        """Open the gate. It may be open already, with the thread about to pass."""
        with suppress(RuntimeError):
            self.gate.release()


class GroupCommit:
    """The queue before a writing connection, and the lock that guards that connection.

    `commit(appends, told)` writes all appends in one commit; it adds their verdicts to `told` if and only if that
    took place. `is_medium_at_fault(error)`: a failure that every other commit would meet too.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Append], list[Verdict]], None],
        is_medium_at_fault: Callable[[Exception], bool],
    ) -> None:
        self.lock = threading.Lock()
        self._commit = commit
        self._is_medium_at_fault = is_medium_at_fault
        self.queue: deque[_Job] = deque()
        """Who waits, the first in line first."""
        self.crowd = 0
        """How many were in line when the newest leader began."""

    def __len__(self) -> int:
        return len(self.queue)

    @property
    def is_busy(self) -> bool:
        """Whether others write or wait. Who then took the lock could do so again and again, and starve them."""
        return bool(self.queue) or self.lock.locked()

    def wake_first(self) -> None:
        """Call after each release of the lock."""
        if self.queue:
            with suppress(IndexError):
                self.queue[0].wake()

    def append(self, appends: list[Append]) -> list[Verdict]:
        """Have `appends` written with those of others. Raises what `commit` raised."""
        job = _Job(appends)
        self.queue.append(job)
        try:
            while self.lock.locked() or not self._is_first(job):
                if job.gate.acquire(timeout=_LOOK) or job.is_settled:
                    break
            if not job.is_settled:
                with self.lock:
                    if not job.is_settled:
                        self._lead(job)
        except BaseException:
            self._withdraw(job)
            raise
        finally:
            self.wake_first()
            for other in job.after:
                other.wake()
        if job.verdicts is None:
            assert job.error is not None
            raise job.error
        return job.verdicts

    def _is_first(self, job: _Job) -> bool:
        try:
            return self.queue[0] is job
        except IndexError:  # a leader has taken it just now
            return False

    def _withdraw(self, job: _Job) -> None:
        """Take `job` back, or if it is being written wait for the end of that."""
        try:
            self.queue.remove(job)
        except ValueError:
            if not job.is_settled:
                with self.lock:
                    pass

    def _lead(self, mine: _Job) -> None:
        """Commit what waits, and settle all of it. Call with the lock."""
        jobs = []
        while self.queue:
            jobs.append(self.queue.popleft())
        self.crowd = len(jobs)
        others = [job for job in jobs if job is not mine]
        mine.after = others[:_ABREAST]
        for number, job in enumerate(others):
            job.after = others[number + _ABREAST : number + _ABREAST + 1]
        groups = [jobs]
        try:
            while groups:
                group = groups.pop()
                if not self._settle_together(group):
                    groups += [[job] for job in group]
        except BaseException as exc:
            # This thread is being stopped. What is not settled is not written: the others go on without it.
            mine.error = exc
            self.queue.extendleft(job for job in reversed(jobs) if not job.is_settled)
            raise

    def _settle_together(self, jobs: list[_Job]) -> bool:
        """Commit `jobs` as one and settle them; False if one of them, not the medium, is at fault."""
        told: list[Verdict] = []
        try:
            self._commit([append for job in jobs for append in job.appends], told)
        except Exception as exc:
            if len(jobs) > 1 and not self._is_medium_at_fault(exc):
                return False
            for job in jobs:
                job.error = exc
        finally:
            # Also when a signal's exception came after the commit.
            verdicts = iter(told)
            for job in jobs if told else ():
                job.verdicts = list(itertools.islice(verdicts, len(job.appends)))
        return True
