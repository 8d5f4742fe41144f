"""The commands that take over runs which nobody executes: worker, for as long as it lives, and recover, in one pass."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Literal

import click

from milepost.cli.commands import FAILED, OK, Invocation, app_option, command
from milepost.cli.logs import logging_runs, prints_aside
from milepost.cli.targets import App, Works, loaded
from milepost.cli.text import print_table, to_json
from milepost.cli.values import read_duration, read_pairs, read_pause
from milepost.engine.worker import Host, Worker
from milepost.errors import RunNotFoundError
from milepost.executor.flow import Flow
from milepost.model.info import RunInfo
from milepost.options import Options
from milepost.store import Store
from milepost.verbs import Bound, Job, Verbs
from milepost.views.rows import info_document
from milepost.views.text import in_options, plural, short

logger = logging.getLogger("milepost")


@command(
    "worker",
    app_option,
    click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Runs at once. Default: 10."),
    click.option("--limit", "limits", multiple=True, metavar="FLOW=N", help="Runs of one flow at once. Repeatable."),
    click.option("--poll", type=read_pause, metavar="DURATION", help="Between two looks. Default: 1s."),
    click.option("--grace", type=read_duration, metavar="DURATION",
                 help="For nodes that run when it is stopped. Default: 30s."),
    click.option("--flow", "names", multiple=True, metavar="NAME", help="Only runs of this flow. Repeatable."),
    click.option("--until-idle", is_flag=True, help="End when nothing is due and nothing runs."),
)  # fmt: skip
def worker(
    invocation: Invocation,
    limits: tuple[str, ...],
    names: tuple[str, ...],
    until_idle: bool,
    **given: Any,
) -> int:
    """Execute runs that were started, are due, or lost their process.

    A line on the standard error for each run that is taken and that ends. SIGTERM and Ctrl-C take nothing new, let nodes
    come to their end and give the runs back; a second one ends the process at once, which loses nothing either.
    """
    options = {name: value for name, value in given.items() if value is not None}
    if limits:
        options["limits"] = _read_limits(limits)
    with loaded(invocation) as found, logging_runs(invocation):
        works = _worker_of(found, names, options)
        with _stopped_by_signals(works):
            logger.info("worker %d takes up %s", os.getpid(), _described(works))
            works.run(until_idle=until_idle)
            logger.info("worker %d has ended", os.getpid())
    return OK


@command("recover", app_option)
def recover(invocation: Invocation) -> int:
    """Go once through what is due or has lost its process.

    Ends when nothing is left to do, and tells what became of each run. Exit code 1 if one of them failed, is blocked, or
    was refused, because the code is not that which it began with.
    """
    with loaded(invocation, is_looking=True) as found:
        works = _worker_of(found, (), {})
        if not isinstance(works, Worker):
            raise click.UsageError("recover needs an Engine or a Worker, which can tell what it did")
        host = works.engine = _Noting(works.engine)
        before = list(_idle(host.store))
        with prints_aside(invocation.is_json), _stopped_by_signals(works) as received:
            works.run(until_idle=True)
        outcomes = list(_outcomes(works, host, before))
    _show(invocation, outcomes)
    if received:
        return 128 + received[0]
    return FAILED if any(became in {"failed", "refused", "blocked"} for became, _, _ in outcomes) else OK


# -- the worker -----------------------------------------------------------------------------------------------


def _worker_of(app: App, names: Sequence[str], options: dict[str, Any]) -> Works:
    """The worker that was named, or one of the engine that was."""
    if app.worker is not None:
        if names or options:
            given = ", ".join(f"--{name.removesuffix('s')}" for name in [*options, *(["flows"] if names else [])])
            raise click.UsageError(f"the worker is made in code, which says what {given} would: leave that out")
        return app.worker
    assert app.engine is not None
    known = app.engine.flows
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        what = f"no flow {unknown[0]!r}: it has {', '.join(known) or 'none'}" if unknown else "no flows"
        raise click.UsageError(f"the engine has {what}: Engine(store, flows=[...]) makes them known")
    return app.engine.worker([known[name] for name in dict.fromkeys(names)] if names else None, **options)


def _read_limits(pairs: Sequence[str]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for name, text in read_pairs(pairs, "--limit").items():
        if not text.isdecimal() or int(text) < 1:
            raise click.UsageError(f"--limit takes a flow's name and a number of at least 1, not {name}={text!r}")
        limits[name] = int(text)
    return limits


def _described(works: Works) -> str:
    if not isinstance(works, Worker):
        return "what its code says"
    flows = ", ".join(map(repr, works.flows)) or "no flow"
    return f"runs of {flows} in {works.engine.store.place}, {works.concurrency} at once"


@contextlib.contextmanager
def _stopped_by_signals(works: Works) -> Iterator[list[int]]:
    """Stop the worker at the first SIGTERM or SIGINT, and end the process at the second; those that came."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        # Neither log nor streams may be used in here: the signal may have come in the middle of a line.
        if received:
            os.write(2, b"milepost: ended at once: what ran is taken up by the next worker\n")
            os._exit(128 + number)
        received.append(number)
        name = signal.Signals(number).name
        os.write(2, f"milepost: {name}: stopping when nodes have ended; once more to end at once\n".encode())
        works.stop()

    before = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        # A shell has what it runs in the background ignore Ctrl-C, and that is to stay so.
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, former in before.items():
            signal.signal(number, former)


# -- what became of the runs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Noting:
    """An engine as its worker sees it, and the runs that the worker took."""

    engine: Host
    taken: dict[str, None] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """The store in which it looks for runs."""
        return self.engine.store

    @property
    def _options(self) -> Options:
        """The options with which its runs are executed."""
        return self.engine._options

    def _known(self, flows: Sequence[Verbs[Any]] | None = None) -> dict[str, Flow]:
        """`flows` by their names."""
        return self.engine._known(flows)

    def _job(self, flow: Flow, run_id: str) -> Job:
        """A call that goes on with a run, which is noted."""
        self.taken[run_id] = None
        return self.engine._job(flow, run_id)

    async def astart(self, flow: Bound[Any], *, run_id: str, if_exists: Literal["return"]) -> Any:
        """Leave a new run to a worker."""
        return await self.engine.astart(flow, run_id=run_id, if_exists=if_exists)


def _idle(store: Store) -> Iterator[RunInfo]:
    """The runs that somebody ought to execute, and nobody does."""
    after: str | None = None
    now = datetime.now(UTC)
    while True:
        page = store.list_runs(status=("ready", "dead"), limit=100, after=after)
        for info in page:
            if info.status == "dead" or info.wake_at is None or info.wake_at <= now:
                yield info
        if len(page) < 100:
            return
        after = page[-1].run_id


def _outcomes(works: Worker, host: _Noting, before: list[RunInfo]) -> Iterator[tuple[str, RunInfo, str]]:
    """Return what became of each run, the run, and why: first of those that were taken, then of those that should have been."""
    for run_id in [*host.taken, *(info.run_id for info in before if info.run_id not in host.taken)]:
        try:
            info = host.store.get_run(run_id).info
        except RunNotFoundError:
            continue  # deleted meanwhile
        if run_id in works.refused:
            yield "refused", info, works.refused[run_id]
        elif run_id in host.taken or info.status == "blocked":
            yield info.status, info, info.reason
        elif info.status in {"ready", "dead"} and info.flow not in works.flows:
            yield "left", info, f"this app has no flow {info.flow!r}"


def _show(invocation: Invocation, outcomes: list[tuple[str, RunInfo, str]]) -> None:
    counts = Counter(became for became, _, _ in outcomes)
    if invocation.is_json:
        runs = [{**info_document(info), "became": became, "why": in_options(why)} for became, info, why in outcomes]
        print(to_json({"runs": runs, "counts": dict(counts)}))
        return
    if not outcomes:
        print("nothing was due")
        return
    rows = [(info.run_id, info.flow, became, short(in_options(why), 200)) for became, info, why in outcomes]
    print_table(("run", "flow", "became", "why"), rows)
    print(f"{plural(len(outcomes), 'run')}: {', '.join(f'{count} {became}' for became, count in counts.items())}")
