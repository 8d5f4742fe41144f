"""Workers: they claim runs of the flows that they know and go on with them, here, several at once.

A worker is a loop in an event loop of its own: claim the runs that are due, start a task for each, wait for the next
poll, the end of a task, or the news that a run was made ready in this process. All decisions about runs are the store's
and the core's. This module decides how many runs are claimed, which are left to others, and how to stop without losing
one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import platform
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol, Self, cast

from milepost.drivers import AsyncDriver
from milepost.drivers.awaiting import lane_of
from milepost.drivers.threads import listen, unlisten
from milepost.engine.matching import is_of_all_runs
from milepost.engine.schedule import Schedule
from milepost.errors import (
    LeaseLost,
    MilepostError,
    OptionError,
    RunCancelled,
    RunNotFoundError,
    RunSuspended,
    StoreClosedError,
    StoreError,
    shown,
)
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import Flow
from milepost.executor.journal import Drained
from milepost.executor.resume import REFUSED
from milepost.model.durations import as_seconds
from milepost.model.failure import describe, failure_fields, is_cancellation
from milepost.model.ids import Clock, new_nonce, this_process
from milepost.model.info import RunInfo
from milepost.model.tracebacks import fold_frames
from milepost.model.workers import BEAT_SECONDS, LONGEST_REASON, MOST_REFUSED, SchedulePause, WorkerInfo
from milepost.options import Options
from milepost.store import ENDED, RunRow, Store, Token
from milepost.verbs import Bound, InputVerbs, Job, Verbs, check_breakpoints

logger = logging.getLogger("milepost")

LONGEST_PAUSE = 30.0
"""The longest pause, in seconds, between two polls of a store that fails."""
PATIENCE = 3
"""The number of failures of its store in a row that a run with `until_idle` tolerates."""
MAX_REFUSED = 1000
"""The number of refused runs that a worker remembers from one tidying to the next.

A run that it forgets and that is still due is claimed and refused again, which costs two writes a minute.
"""
SUSPICIOUS = 2
"""The number of owners of a run that died in a row, from which on it is a suspect.

It is less if the run would be blocked by then.
"""
RECHECKS = 20
"""The number of refused runs that a worker looks at again at each poll."""
GLANCE = 0.25
"""Seconds between two looks at tasks that should have ended with the grace."""
PAGE = 1000
"""The number of runs that are listed at once."""
TIDY = 60.0
"""Seconds between two times that a worker has its store apply its retention."""

Position = tuple[datetime, int]
"""The creation of a run, and the number of its owners so far."""


class Host(Protocol):
    """The parts of an engine that a worker needs."""

    @property
    def store(self) -> Store:
        """The store in which the worker looks for runs."""
        ...

    @property
    def _options(self) -> Options:
        """The options with which its runs are executed."""
        ...

    def _known(self, flows: Sequence[Verbs[Any]] | None = None) -> dict[str, Flow]:
        """Return `flows` by their names; None: all that the engine knows.

        Raises `OptionError` for one that no name can find.
        """
        ...

    def _job(self, flow: Flow, run_id: str) -> Job:
        """Return a call that goes on with a run."""
        ...

    async def astart(self, flow: Bound[Any], *, run_id: str, if_exists: Literal["return"]) -> Any:
        """Leave a new run to a worker."""
        ...


class Worker:
    """A worker that runs what is due; see `Engine.worker`.

    As a context manager, sync or async, it works in the background.

    >>> engine = Engine(store, flows=[doubling])
    >>> with engine.worker(concurrency=2) as worker:
    ...     engine.start(doubling, 21).result(timeout=60)
    42
    """

    def __init__(
        self,
        engine: Host,
        flows: Sequence[Verbs[Any]] | None = None,
        *,
        concurrency: int = 10,
        limits: Mapping[str, int] | None = None,
        poll: float | timedelta = 1.0,
        grace: float | timedelta = 30.0,
    ) -> None:
        self.engine = engine
        self.flows: dict[str, Flow] = engine._known(flows)
        for flow in self.flows.values():
            check_breakpoints(flow, engine._options)
        self.concurrency = _count("concurrency", concurrency)
        if limits is not None and not isinstance(limits, Mapping):
            raise OptionError(
                f"limits must be a mapping of flows' names to numbers, not {shown(limits)}: limits={{'orders': 2}}",
                option="limits",
            )
        self.limits = {name: _count(f"limits[{shown(name)}]", limit) for name, limit in (limits or {}).items()}
        unknown = sorted(map(shown, set(self.limits) - set(self.flows)))
        if unknown:
            raise OptionError(
                f"limits names {', '.join(unknown)}, which this worker does not run: it runs "
                f"{', '.join(map(repr, self.flows)) or 'no flow'}",
                option="limits",
            )
        self.poll = as_seconds(poll, "poll")
        self.grace = as_seconds(grace, "grace")
        self.refused: dict[str, str] = {}
        """Runs that this worker cannot go on with, and the reasons. They are left to other code."""
        self._refused_at: dict[str, Position] = {}
        """The position of each of them that was refused. Where its row shows another one, somebody has gone on with it."""
        self._rechecked_at = -math.inf
        self._schedules: dict[str, Schedule] = {}
        self._running: dict[asyncio.Task[None], tuple[str, Job]] = {}
        self._lent: Counter[str] = Counter()
        """The number of calls of each run that wait for other runs, and need no slot meanwhile."""
        self._resting: dict[str, tuple[int, float]] = {}
        """Runs that could not be read or released: how often in a row, and until when they are left alone."""
        self._suspect: Job | None = None
        """The run that goes on here and may take this process down. There is never a second one beside it."""
        self._put_off: dict[str, None] = {}
        """Other such runs, in the order in which they follow."""
        self._turn = 0
        self._failures = 0
        self._is_stopping = False
        self._is_overdue = False
        """True if the grace was over before the worker began to give back its runs."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._name = ""
        self._started = self._beaten_at = 0.0
        """The times at which the worker began, and last told of itself."""

    def every(self, name: str, flow: Bound[Any] | Verbs[Any], cron: str, *, tz: str = "UTC") -> Self:
        """Start a run of `flow` at each time of `cron` (five fields) in the zone `tz`, and return the worker itself.

        `flow` has its input (`flow.bind(...)`), or is a workflow that needs none. The run's id is
        `name@<due time in UTC>`: of several workers with the same schedule one starts it. Times that pass while no
        worker runs are left out. Of the times that pass while this worker stands still or its store is away only the
        newest is started, with a warning. A worker that runs already has the schedule from now on. Needs the extra
        `cron`.
        """
        flow = _bound(flow)
        self.engine._known([flow.flow])
        if name in self._schedules:
            raise OptionError(f"this worker has a schedule {name!r} already: give another name", option="name")
        # Another dict: the loop may go over this one in another thread.
        self._schedules = {**self._schedules, name: Schedule(name, flow, cron, tz)}
        self._poke()
        return self

    # -- running it ----------------------------------------------------------------------------------

    def run(self, until_idle: bool = False) -> None:
        """Work in this thread until `stop` or, with `until_idle`, until nothing is due and nothing runs.

        >>> engine = Engine(store, flows=[doubling])
        >>> handles = [engine.start(doubling, n) for n in (1, 2, 3)]
        >>> engine.worker().run(until_idle=True)
        >>> [handle.result() for handle in handles]
        [2, 4, 6]
        """
        working: asyncio.Task[None] | None = None

        async def work() -> None:
            nonlocal working
            if working is None:
                working = asyncio.ensure_future(self.arun(until_idle))
            await working

        with asyncio.Runner() as runner:
            while True:
                try:
                    return runner.run(work())
                except (SystemExit, KeyboardInterrupt):
                    # A task of user code may raise it, and asyncio stops its loop for that. In the main thread it may
                    # as well come from a signal.
                    if working is None or working.done() or threading.current_thread() is threading.main_thread():
                        raise

    async def arun(self, until_idle: bool = False) -> None:
        """Await the work: the async form of `run`. Cancelling it drains as `stop` does."""
        with self._lock:
            if self._loop is not None:
                raise OptionError("this worker runs already: make another one", option="worker")
            self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        if self._is_stopping:
            logger.warning("a worker of %s was stopped before it began: it takes nothing", self.engine.store.place)
        listen(self.engine.store, self._poke)
        task = asyncio.current_task()
        assert task is not None
        self._is_overdue = False
        leaving = asyncio.ensure_future(self._leave_in_time(task))
        try:
            await self._work(until_idle)
        finally:
            leaving.cancel()
            unlisten(self.engine.store, self._poke)
            try:
                await self._drain()
            finally:
                self._loop = self._wake = None
                self._is_stopping = False
                self._suspect = None
                self._put_off.clear()

    def stop(self) -> None:
        """Claim nothing new, give runs `grace` seconds to come to a boundary, then release them. Does not wait.

        A store that does not answer is not waited for after that: a run that can't be released is free when its lease
        ends. A worker that has ended may be run again. One that is stopped before it runs ends as soon as it does,
        once.
        """
        self._is_stopping = True
        for _, job in [*self._running.values()]:
            job.run.drain()
        self._poke()

    def __enter__(self) -> Self:
        self._error = None
        self._thread = threading.Thread(target=self._run_in_background, name="milepost-worker", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._is_stopping = False  # it may have ended before it was stopped
        if self._error is not None and exc is None:
            raise self._error

    async def __aenter__(self) -> Self:
        self._error = None
        self._task = asyncio.ensure_future(self._arun_in_background())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task
        self._is_stopping = False
        if self._error is not None and exc is None:
            raise self._error

    def _run_in_background(self) -> None:
        try:
            self.run()
        except BaseException as exc:
            self._error = exc
            logger.exception("a worker of %s ended", self.engine.store.place)

    async def _arun_in_background(self) -> None:
        try:
            await self.arun()
        except Exception as exc:
            self._error = exc
            logger.exception("a worker of %s ended", self.engine.store.place)

    def _poke(self) -> None:
        """Have the loop look for work at once. May be called from any thread."""
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(wake.set)

    # -- the loop --------------------------------------------------------------------------------------

    async def _work(self, until_idle: bool) -> None:
        assert self._wake is not None
        tidied_at, knows_refused = self._now(), False
        self.refused.clear()
        self._rechecked_at = -math.inf
        begun: set[str] = set()
        self._name = f"{platform.node()}:{this_process().pid}:{new_nonce()[:8]}"
        self._started, self._beaten_at = self._now(), -math.inf
        while not self._is_stopping:
            self._wake.clear()
            self._begin_schedules(begun)
            await self._beat()
            claims = 0
            # A limit may have kept runs waiting. They are looked for once more after the runs that held them up, even
            # if these end meanwhile.
            is_busy = bool(self._running)
            try:
                if not knows_refused:
                    await self._recall_refused()
                    knows_refused = True
                await self._recheck_refused()
                await self._start_scheduled()
                claims = await self._claim()
                if self._now() - tidied_at >= TIDY:
                    tidied_at = self._now()
                    self._forget_refused()
                    await self._tidy()
                self._failures = 0
            except StoreClosedError:
                raise
            except MilepostError as exc:
                self._failures += 1
                if until_idle and self._failures > PATIENCE:
                    raise
                level = logging.WARNING if self._failures == 1 else logging.DEBUG
                logger.log(level, "a worker could not look for work in %s: %s", self.engine.store.place, exc)
            is_busy = is_busy or bool(self._put_off)
            if until_idle and not is_busy and not claims and not self._running and not self._failures:
                return
            await self._pause(self._next_look(claims))

    def _next_look(self, claims: int) -> float:
        """Return the seconds until the next poll, which is not at the same moment as those of other workers."""
        if claims and self._busy() < self.concurrency:
            return 0.0
        if self._failures:
            return min(self.poll * 2.0 ** min(self._failures, 64), LONGEST_PAUSE)  # more has no float
        pause = self.poll * random.uniform(0.75, 0.95)  # noqa: S311 - spreads load, guards nothing
        due = [schedule.due_at - self._now() for schedule in self._schedules.values()]
        return max(0.0, min([pause, self._beaten_at + BEAT_SECONDS - self._now(), *due]))

    async def _beat(self) -> None:
        """Tell the store of this worker, if it is time. Nothing depends on it: a failure is only logged."""
        now = self._now()
        if 0 <= now - self._beaten_at < BEAT_SECONDS:
            return
        self._beaten_at = now
        info = WorkerInfo(
            name=self._name,
            host=platform.node(),
            pid=this_process().pid,
            started=datetime.fromtimestamp(self._started, UTC),
            beat=datetime.fromtimestamp(now, UTC),
            flows={name: flow.fingerprint for name, flow in self.flows.items()},
            concurrency=self.concurrency,
            running=len(self._running),
            refused={run_id: self.refused[run_id][:LONGEST_REASON] for run_id in [*self.refused][:MOST_REFUSED]},
            schedules=tuple(schedule.info() for schedule in self._schedules.values()),
        )
        routine: Routine[None] = ask(self.engine.store, "beat", info)
        try:
            await AsyncDriver(self._clock).run(routine)
        except MilepostError as exc:
            logger.debug("a worker could not tell %s of itself: %s", self.engine.store.place, exc)

    async def _pause(self, seconds: float) -> None:
        """Wait for that long, or until something happens."""
        assert self._wake is not None
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._wake.wait()),
            asyncio.ensure_future(self._clock.sleep(seconds)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # -- taking ----------------------------------------------------------------------------------------

    async def _claim(self) -> int:
        """Claim runs that are due and that this worker may have, go on with them, and return their number."""
        if self._suspect is not None and self._suspect.run.journal.has_saved:
            self._suspect = None  # it has not died this time
        if self._suspect is None and self._put_off:
            del self._put_off[next(iter(self._put_off))]
        # The first flow in the list changes from poll to poll, so that no flow starves another.
        names = [*self.flows]
        self._turn = (self._turn + 1) % max(1, len(names))
        names = names[self._turn :] + names[: self._turn]
        groups = [[name] for name in names if name in self.limits]
        unlimited = [name for name in names if name not in self.limits]
        if unlimited:
            groups.insert(self._turn % (len(groups) + 1), unlimited)
        count = 0
        for group in groups:
            room = self.concurrency - self._busy()
            if group[0] in self.limits:
                room = min(room, self.limits[group[0]] - self._busy(group[0]))
            if room < 1:
                continue
            # Of suspects the one that died least often goes first: it is the least likely to be to blame.
            claimed = sorted(await self._ask_due(group, room), key=lambda one: one[1].info.crash_count)
            count += await self._begin(claimed)
        return count

    def _busy(self, flow: str | None = None) -> int:
        """Count the slots in use, by any run or by those of one flow."""
        return sum(
            not self._lent[job.run.run_id] and (flow is None or name == flow) for name, job in self._running.values()
        )

    @contextmanager
    def _lend(self, run_id: str) -> Iterator[None]:
        """Lend the slot of a run while one of its calls waits, in any thread, for another run that may need it."""
        with self._lock:
            self._lent[run_id] += 1
        self._poke()
        try:
            yield
        finally:
            with self._lock:
                self._lent[run_id] -= 1
                if not self._lent[run_id]:
                    del self._lent[run_id]

    def _is_suspect(self, row: RunRow) -> bool:
        """Return whether the run may be the one that killed its process each time, and not one that ran beside it.

        Nobody can tell which run it was. So those that died several times without progress go on one by one: the one to
        blame is blocked, the others end.
        """
        most = self.engine._options.max_crashes or 2 * SUSPICIOUS
        return row.crash_count >= max(1, min(SUSPICIOUS, most // 2))

    async def _ask_due(self, names: list[str], room: int) -> list[tuple[Token, RunRow]]:
        options = self.engine._options

        routine: Routine[list[tuple[Token, RunRow]]] = ask(
            self.engine.store,
            "claim_due",
            names,
            room,
            # A run that is being given back may be free already, and is not known as refused yet.
            (
                *self.refused,
                *self._put_off,
                *(job.run.run_id for _, job in self._running.values()),
                *(run_id for run_id, (_, until) in self._resting.items() if until > self._now()),
            ),
            lease=options.lease,
            max_crashes=options.max_crashes,
        )
        return await AsyncDriver(self._clock).run(routine)

    async def _tidy(self) -> None:
        store = self.engine.store

        if store.retention is not None:
            await AsyncDriver(self._clock).run(ask(store, "tidy", None))

    # -- going on ----------------------------------------------------------------------------------------

    async def _begin(self, claimed: list[tuple[Token, RunRow]]) -> int:
        """Go on with claimed runs, and return their number. Give back each suspect that another one goes on beside."""
        begun, returned = [], []
        for token, row in claimed:
            job = self.engine._job(self.flows[row.flow], token.run_id)
            if not self._is_suspect(row):
                begun.append((token, row, job))
            elif self._suspect is None:
                self._suspect = job
                begun.append((token, row, job))
            else:
                self._put_off[token.run_id] = None
                reason = (
                    f"its owners died again and again: it goes on after run {self._suspect.run.run_id!r}, which may be to "
                    f"blame"
                )
                returned.append(self._track(row, job, partial(job.agive_back, token, reason)))
        try:
            if returned:
                # First, so that they don't count as crashed too if that one takes this process down.
                await asyncio.wait(returned)
        finally:
            for token, row, job in begun:
                job.run.crashes = row.crash_count
                job.run.scope.lend = partial(self._lend, token.run_id)
                self._track(row, job, partial(job.ago_on, token))
        return len(begun)

    def _track(self, row: RunRow, job: Job, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._go_on(row, job, work))
        self._running[task] = (row.flow, job)
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        _, job = self._running.pop(task)
        if job is self._suspect:
            self._suspect = None
        if self._wake is not None:
            self._wake.set()

    async def _go_on(self, row: RunRow, job: Job, work: Callable[[], Awaitable[Any]]) -> None:
        """Do the work on one run. However it ends, the outcome is in the store, and only this task ends."""
        run_id = job.run.run_id
        try:
            await work()
        except (Drained, RunCancelled, RunSuspended):
            return
        except LeaseLost as exc:
            logger.warning("%s", exc, extra={"run_id": run_id})
        except GeneratorExit:
            raise
        except BaseException as exc:
            if not isinstance(exc, Exception):
                if is_cancellation(exc) or (self._is_stopping and isinstance(exc, KeyboardInterrupt)):
                    raise
                message = ("run %r is %s, its code raised %s", run_id, job.run.status, describe(exc))
                logger.warning(*message, exc_info=exc, extra={"run_id": run_id})
                return
            if job.run.status == "running" and isinstance(exc, MilepostError) and not isinstance(exc, OSError):
                self._remember_refused(run_id, exc, (row.created_at, job.run.journal.epoch))
                logger.warning("run %r is left to other code: %s", run_id, describe(exc), extra={"run_id": run_id})
                return
            frames = failure_fields(exc.__cause__ or exc)["traceback"].rstrip() if job.run.status == "failed" else ""
            text = f"{describe(exc)}\n{fold_frames(frames)}" if frames else describe(exc)
            logger.warning("run %r is %s: %s", run_id, job.run.status, text, extra={"run_id": run_id})
        finally:
            self._rest(job)

    def _rest(self, job: Job) -> None:
        """Leave alone for a while a run that could not be read or released, longer each time."""
        run_id, journal = job.run.run_id, job.run.journal
        if journal.token is None or journal.is_released:
            self._resting.pop(run_id, None)
            return
        times = self._resting.get(run_id, (0, 0.0))[0] + 1
        self._resting[run_id] = times, self._now() + min(2.0 ** min(times, 64), LONGEST_PAUSE)

    async def _recall_refused(self) -> None:
        """Find the runs that workers gave back as refused, and leave those alone that this code refuses too.

        They are not claimed for that, because each claim writes a record into the run's journal.
        """
        for flow in self.flows.values():
            for status in ("ready", "waiting", "interrupted"):
                after: str | None = None
                while page := await self._page(flow.name, status, after):
                    for info in page:
                        if REFUSED in info.reason and info.run_id not in self.refused:
                            row = await self._row(info.run_id)
                            if row is not None:
                                await self._examine(flow, row)
                    after = page[-1].run_id

    async def _page(self, flow: str, status: str, after: str | None) -> list[RunInfo]:
        routine: Routine[list[RunInfo]] = ask(
            self.engine.store, "list_runs", flow=flow, status=status, after=after, limit=PAGE
        )
        return await AsyncDriver(self._clock).run(routine)

    async def _recheck_refused(self) -> None:
        """Look again at refused runs, a few at each poll, and forget those that this code can go on with by now.

        A run that nobody has gone on with since stays refused: this code does not change while it runs. One that another
        worker gave back as refused is not claimed for a look at it, or workers would do that in turn for ever.
        """
        if 0 <= self._now() - self._rechecked_at < self.poll:
            return
        self._rechecked_at = self._now()
        for run_id in [*self.refused][:RECHECKS]:
            row = await self._row(run_id)
            if row is None or row.flow not in self.flows or row.status in ENDED:
                self._forget(run_id)
                continue
            self.refused[run_id] = self.refused.pop(run_id)  # at the end: the others come first next time
            if row.lease in {"live", "ours"} or self._refused_at.get(run_id) == _position(row):
                continue
            if REFUSED in row.reason:
                await self._examine(self.flows[row.flow], row)
            else:
                self._forget(run_id)

    async def _row(self, run_id: str) -> RunRow | None:
        """Return the row of a run; None if it is gone or cannot be read."""
        routine: Routine[RunRow] = ask(self.engine.store, "get_run", run_id)
        try:
            return await AsyncDriver(self._clock).run(routine)
        except (RunNotFoundError, StoreError) as exc:
            if is_of_all_runs(exc):
                raise
            return None

    async def _examine(self, flow: Flow, row: RunRow) -> None:
        """Remember a run as refused if this code cannot go on with it, and forget it otherwise.

        If the look at it fails, however the run's code ends, a later claim shows the cause.
        """
        task = asyncio.current_task()
        assert task is not None
        self._forget(row.run_id)
        try:
            await self.engine._job(flow, row.run_id).acheck_claimable()
        except MilepostError as exc:
            if is_of_all_runs(exc):
                raise
            if not isinstance(exc, StoreError):
                self._remember_refused(row.run_id, exc, _position(row))
        except GeneratorExit:
            raise
        except BaseException as exc:
            # The code is played in the worker's own task, and what it raises must not end the worker.
            if task.cancelling() or (self._is_stopping and isinstance(exc, KeyboardInterrupt)):
                raise
            logger.debug("run %r could not be looked at: %s", row.run_id, describe(exc), extra={"run_id": row.run_id})

    def _remember_refused(self, run_id: str, refusal: MilepostError, position: Position) -> None:
        self.refused[run_id], self._refused_at[run_id] = str(refusal), position

    def _forget(self, run_id: str) -> None:
        self.refused.pop(run_id, None)
        self._refused_at.pop(run_id, None)

    def _forget_refused(self) -> None:
        """Forget the oldest of many refused runs, so that a worker does not remember more and more of them."""
        for run_id in [*self.refused][: max(0, len(self.refused) - MAX_REFUSED)]:
            self._forget(run_id)
        for run_id, (_, until) in [*self._resting.items()]:
            if until < self._now() - TIDY:
                del self._resting[run_id]

    async def _drain(self) -> None:
        """Let runs come to a boundary and release them. Those that do not in time are cut off, and released too."""
        self._is_stopping = True
        for _, job in self._running.values():
            job.run.drain()
        if self._running and not self._is_overdue:
            timer = asyncio.ensure_future(self._clock.sleep(self.grace))
            ended = asyncio.ensure_future(asyncio.wait([*self._running]))
            try:
                await asyncio.wait([timer, ended], return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                ended.cancel()
        left = {*self._running}
        for task in left:
            task.cancel()
        while left:
            lane_of(self.engine.store).give_up(left)
            _, left = await asyncio.wait(left, timeout=GLANCE)

    async def _leave_in_time(self, task: asyncio.Task[Any]) -> None:
        """After a stop, have the worker's task give back its runs when the grace is over, whatever the store does."""
        while not (self._is_stopping or task.cancelling()):
            await asyncio.sleep(GLANCE)
        await asyncio.sleep(self.grace)
        self._is_overdue = True
        while True:
            lane_of(self.engine.store).give_up({task, *self._running})
            await asyncio.sleep(GLANCE)

    # -- schedules -------------------------------------------------------------------------------------

    def _begin_schedules(self, begun: set[str]) -> None:
        """Begin the schedules that are new, now, and add their names to `begun`."""
        for name, schedule in self._schedules.items():
            if name not in begun:
                schedule.begin(datetime.fromtimestamp(self._now(), UTC))
                begun.add(name)

    async def _start_scheduled(self) -> None:
        for schedule in self._schedules.values():
            if schedule.due_at <= self._now():
                missed = schedule.catch_up(self._now())
                if missed:
                    left = "1 time" if missed == 1 else f"{missed} times"
                    logger.warning(
                        "schedule %r was not looked at in time: %s before run %r left out",
                        schedule.name, left, schedule.run_id,
                    )  # fmt: skip
                paused: Routine[Mapping[str, SchedulePause]] = ask(self.engine.store, "paused_schedules")
                if schedule.name in await AsyncDriver(self._clock).run(paused):
                    logger.info("schedule %r is paused: run %r is left out", schedule.name, schedule.run_id)
                    schedule.advance()
                    continue
                try:
                    await self.engine.astart(schedule.flow, run_id=schedule.run_id, if_exists="return")
                    schedule.last_run_id = schedule.run_id
                except StoreClosedError:
                    raise
                except MilepostError as exc:
                    if isinstance(exc, StoreError) and not exc.is_of_one_run:
                        raise
                    # Others may have started it with another input. The other work of this worker must not wait for
                    # that.
                    logger.warning("schedule %r did not start run %r: %s", schedule.name, schedule.run_id, exc)
                schedule.advance()

    # -- time ------------------------------------------------------------------------------------------

    @property
    def _clock(self) -> Clock:
        return self.engine._options.clock

    def _now(self) -> float:
        return self._clock.time()


def _position(row: RunRow) -> Position:
    return row.created_at, row.epoch


def _bound(flow: Any) -> Bound[Any]:
    """Return a flow with its input. Raises `OptionError` for a flow that needs an input and has none."""
    if isinstance(flow, Bound):
        return flow
    if isinstance(flow, InputVerbs):
        try:
            return cast("Bound[Any]", flow.bind())  # type: ignore[attr-defined]
        except TypeError as exc:
            raise OptionError(
                f"a schedule starts a workflow with its inputs: {exc}; give wf.bind(...)", option="flow"
            ) from None
    raise OptionError(f"a schedule starts a flow with its input: flow.bind(state), not {shown(flow)}", option="flow")


def _count(option: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise OptionError(f"{option} must be a whole number of at least 1, not {shown(value)}", option=option)
    return value
