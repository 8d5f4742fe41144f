"""Group commit: threads that append at the same time share one commit.

Each thread queues its appends. The first in line, the leader, commits all that is queued at once, and hands each thread
its verdicts. A thread that is alone does not come here: it takes `lock` and writes.

No thread waits in vain. Whoever releases the lock wakes the first in line, and a thread that queues up, finds the lock
free and is first goes ahead. However the leader ends, by a signal's exception too, the others are settled or back in
line. If a wake-up is lost to a signal all the same, a waiting thread looks by itself now and then.

Threads that are settled wake one another: each wakes one more before it goes on. If all woke at once, they would only
wait for each other again: the interpreter runs one thread at a time, and contention for it costs more than a commit.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from milepost.store import Append, Verdict

_LOOK = 1.0
"""Seconds after which a waiting thread looks by itself whether it may go on."""
_ABREAST = 3
"""Number of threads that are woken at once: one runs, and the others are ready when it stops, on a busy machine too."""


class _Job:
    """The batch of one thread. `verdicts` or `error` is set once it is settled."""

    __slots__ = ("after", "appends", "error", "gate", "verdicts")

    def __init__(self, appends: list[Append]) -> None:
        self.appends = appends
        self.verdicts: list[Verdict] | None = None
        self.error: BaseException | None = None
        self.after: Sequence[_Job] = ()
        """The jobs of the same commit that this thread wakes next."""
        self.gate = threading.Lock()
        """The lock at which the job's thread waits until the job is settled or first in line."""
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

    `commit(appends, told)` writes all appends in one commit, and adds their verdicts to `told` if and only if the
    commit took place. `is_backend_at_fault(error)` returns whether every other commit would fail in the same way.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Append], list[Verdict]], None],
        is_backend_at_fault: Callable[[Exception], bool],
    ) -> None:
        self.lock = threading.Lock()
        self._commit = commit
        self._is_backend_at_fault = is_backend_at_fault
        self.queue: deque[_Job] = deque()
        """The waiting jobs, the first in line first."""
        self.crowd = 0
        """The number of jobs in line when the newest leader began."""

    def __len__(self) -> int:
        return len(self.queue)

    @property
    def is_busy(self) -> bool:
        """True while others write or wait. A thread that took the lock now could do so again and again, and starve them."""
        return bool(self.queue) or self.lock.locked()

    def wake_first(self) -> None:
        """Wake the first in line. Call this after each release of the lock."""
        if self.queue:
            with suppress(IndexError):
                self.queue[0].wake()

    def append(self, appends: list[Append]) -> list[Verdict]:
        """Write `appends` together with those of other threads. Raise what `commit` raised."""
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
        """Take `job` out of the queue. If it is being written already, wait until that has ended."""
        try:
            self.queue.remove(job)
        except ValueError:
            if not job.is_settled:
                with self.lock:
                    pass

    def _lead(self, mine: _Job) -> None:
        """Commit all queued jobs and settle them. The caller holds the lock."""
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
            # This thread is being stopped. Jobs that are not settled are not written: the other threads go on without it.
            mine.error = exc
            self.queue.extendleft(job for job in reversed(jobs) if not job.is_settled)
            raise

    def _settle_together(self, jobs: list[_Job]) -> bool:
        """Commit `jobs` as one and settle them. Return False if the fault lies with one of them, not with the backend."""
        answers: list[Verdict] = []
        try:
            self._commit([append for job in jobs for append in job.appends], answers)
        except Exception as exc:
            if len(jobs) > 1 and not self._is_backend_at_fault(exc):
                return False
            for job in jobs:
                job.error = exc
        finally:
            # This also runs if a signal's exception came after the commit.
            verdicts = iter(answers)
            for job in jobs if answers else ():
                job.verdicts = list(itertools.islice(verdicts, len(job.appends)))
        return True
