"""The check of an engine's flows against the runs of a store: which would go on with the present code, and which not.

The list of runs is walked once. Up to `MOST` runs are all checked; of more a sample is taken, in which each kind of run
is seen. A run that is executed meanwhile is planned as if its owner had just gone, and is not disturbed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import NamedTuple, cast

from milepost.checking.grouping import Groups, RunVerdict, bare_node
from milepost.checking.paths import compare_path
from milepost.checking.report import CheckReport
from milepost.drivers import SyncDriver
from milepost.engine.engine import Engine
from milepost.engine.matching import is_of_all_runs, walk
from milepost.errors import (
    DeserializeStateError,
    MilepostError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
)
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import Flow, GraphFlow
from milepost.executor.journal import read_start
from milepost.model.failure import describe
from milepost.model.info import RunInfo
from milepost.model.record import CHECKPOINT, Record
from milepost.options import BulkFilters
from milepost.store import Store, check_number
from milepost.stores.memory import MemoryStore

OPEN = ("ready", "running", "waiting", "interrupted", "failed", "blocked", "dead")
"""The statuses of runs that can go on, by themselves or after somebody asked for it."""
MOST = 5000
"""The number of runs up to which all are checked."""
LEAST = 5
"""The number of runs of each kind that a sample has at least."""
_TRIES = 3
"""The number of times that a run is planned which moves on meanwhile and seems to be refused."""


def check(
    engine: Engine,
    *,
    sample: int = 2000,
    status: str | Iterable[str] | None = None,
    flow: str | None = None,
    tags: Mapping[str, str] | None = None,
    finished: int = 0,
    files: Iterable[str | PathLike[str]] = (),
    seed: int | None = None,
) -> CheckReport:
    """Check which runs in the engine's store would go on with its flows as they are now. Writes nothing.

    `status` (None: all that can go on), `flow` and `tags` say which runs are meant. Of more than 5 000 runs `sample` are
    checked: of each kind, by flow, fingerprint, place and error, the newest, the oldest and others by chance, and at
    least five. `seed` (None: a new one) makes the same sample again of the same runs. `finished` is the number of the
    newest finished runs of each flow that are checked too: each as if it stood before its end, and of a graph each node of
    its path. `files` are exported runs, which are
    checked instead of those in the store, all of them. A run or file that can't be read is a group of the report. Raises
    `StoreError` if the store fails.

    >>> engine = Engine(store, flows=[doubling])
    >>> _ = engine.run(doubling, 21, run_id="r-1", stop_before="double", full=True)
    >>> report = check(engine)
    >>> report.ok, report.checked, [group.verdict for group in report.groups]
    (True, 1, ['continue'])
    """
    check_number(sample, "sample", least=1)
    check_number(finished, "finished", least=0)
    paths = [Path(path) for path in files]
    clock = engine._options.clock
    began = clock.monotonic()
    chosen_seed = random.SystemRandom().randrange(10**6) if seed is None else check_number(seed, "seed")
    flows = engine._known()
    population = Population(engine, flows, max(sample, MOST), random.Random(chosen_seed))  # noqa: S311 - repeatable on purpose
    filters: BulkFilters = {"flow": flow, "status": status, "tags": tags}
    if paths:
        stores, unread = import_files(engine, paths)
        population.unread += unread
        for store in stores:
            population.walk(store, filters, None)
    else:
        population.walk(engine.store, filters, OPEN)
        for name in flows if finished else ():
            if flow in {None, name}:
                population.walk(
                    engine.store, {"flow": name, "tags": tags, "status": "finished", "limit": finished}, None
                )
    groups = Groups(flows.get)
    for run_id, flow_name, verdict in population.unread:
        groups.add(flow_name, run_id, verdict)
    is_sample = population.total > max(sample, MOST)
    checked = 0
    for kind, runs in population.kinds.items():
        chosen = kind_sample(runs, sample, population) if is_sample else runs.kept
        for found in chosen:
            planned = verdict_of(engine, flows[kind.flow], found)
            if planned is not None:
                groups.add(kind.flow, found.run_id, planned, runs.count / len(chosen))
                checked += 1
    return CheckReport(
        checked=checked + len(population.unread),
        of=population.total + len(population.unread),
        groups=groups.in_order(),
        kinds=len(population.kinds),
        seed=chosen_seed if is_sample else None,
        unknown=dict(sorted(population.unknown.items())),
        what="run" if paths or finished else "open run",
        seconds=clock.monotonic() - began,
    )


def import_files(engine: Engine, paths: Iterable[Path]) -> tuple[list[Store], list[tuple[str, str, RunVerdict]]]:
    """Import exported runs into stores in memory; return these, and the files that can't be read, with why.

    Runs that were exported with the engine's keys go into a store with them, and others into one without keys.
    """
    stores: list[Store] = [MemoryStore()]
    own = engine._store
    if own is not None:
        stores.insert(0, MemoryStore())
        stores[0]._take_options(own)
    unread = []
    for path in paths:
        try:
            _import(stores, path)
        except MilepostError as exc:
            unread.append((str(path), "", RunVerdict("not read", str(exc), exc)))
    return stores, unread


def _import(stores: Iterable[Store], path: Path) -> None:
    """Import a file into the first store that takes it; one whose run is there already under the name of the file."""
    data = path.read_bytes()
    refusal: MilepostError | None = None
    for store in stores:
        for run_id in (None, str(path)):
            try:
                store.import_run(data, run_id=run_id)
                return
            except RunExistsError as exc:
                refusal = refusal or exc
            except DeserializeStateError as exc:
                refusal = refusal or exc
                break
    assert refusal is not None
    raise refusal


class Kind(NamedTuple):
    """The facts by which runs are told apart before they are checked."""

    flow: str
    fingerprint: str
    place: str
    error_type: str


class ListedRun(NamedTuple):
    """A run in a list of runs."""

    store: Store
    run_id: str
    status: str
    sequence: int
    """The number of its newest record."""


class RunsOfKind:
    """The runs of one kind, in the order of the list. Of many a part by chance is kept, each with the same chance."""

    __slots__ = ("count", "kept", "newest", "oldest")

    def __init__(self, newest: ListedRun) -> None:
        self.newest = self.oldest = newest
        self.count = 0
        self.kept: list[ListedRun] = []

    def add(self, found: ListedRun, most: int, chance: random.Random) -> None:
        """Add the next run; keep at most `most`."""
        self.oldest = found
        self.count += 1
        if len(self.kept) < most:
            self.kept.append(found)
        elif (place := chance.randrange(self.count)) < most:
            self.kept[place] = found


class Population:
    """The runs that walks over lists have met."""

    def __init__(self, engine: Engine, flows: Mapping[str, Flow], most: int, chance: random.Random) -> None:
        self._flows = flows
        self._clock = engine._options.clock
        self._most = most
        self.chance = chance
        self.total = 0
        self.kinds: dict[Kind, RunsOfKind] = {}
        self.unknown: dict[str, int] = {}
        self.unread: list[tuple[str, str, RunVerdict]] = []
        """The runs whose row or beginning can't be read: id, flow and why."""

    def walk(self, store: Store, filters: BulkFilters, otherwise: Collection[str] | None) -> None:
        """Take in the runs of a store that match, or without a status those with the statuses `otherwise`."""
        SyncDriver(self._clock).run(walk(store, partial(self._visit, store), otherwise, **filters))

    def _visit(self, store: Store, info: RunInfo) -> Routine[None]:
        known = self._flows.get(info.flow)
        if known is None and info.blocked_by != "damage":
            self.unknown[info.flow] = self.unknown.get(info.flow, 0) + 1
            return
        try:
            if known is None:
                yield from ask(store, "get_run", info.run_id)
            kind = yield from kind_of(store, info, is_workflow=known is not None and known.front == "workflow")
        except RunNotFoundError:
            return
        except (StoreError, DeserializeStateError) as exc:
            raise_unless_of_one_run(exc)
            self.unread.append((info.run_id, info.flow, RunVerdict("not read", str(exc), exc)))
            return
        self.total += 1
        found = ListedRun(store, info.run_id, info.status, info.sequence)
        self.kinds.setdefault(kind, RunsOfKind(found)).add(found, self._most, self.chance)


def kind_of(store: Store, info: RunInfo, *, is_workflow: bool) -> Routine[Kind]:
    """Read of which kind a run is."""
    begun = yield from read_start(store, info.run_id)
    fingerprint = "" if begun is None else str(begun.fields().get("fingerprint") or "")
    places = [wait.wait_id for wait in info.waiting_for] or [info.error_node or info.next_node or ""]
    if is_workflow and not places[0]:
        newest: list[Record] = yield from ask(store, "read", info.run_id, kinds=(CHECKPOINT,), newest=True, limit=1)
        places = [record.node_id for record in newest]
    place = ", ".join(sorted({str(bare_node(place)) for place in places}))
    return Kind(info.flow, fingerprint, place, info.error_type or "")


def kind_sample(runs: RunsOfKind, sample: int, population: Population) -> list[ListedRun]:
    """Choose runs of one kind for the sample: the newest, the oldest, and others by chance."""
    wanted = min(runs.count, max(LEAST, -(-sample * runs.count // population.total)))
    ends = [*dict.fromkeys((runs.newest, runs.oldest))]
    others = [found for found in runs.kept if found not in ends]
    return [*ends, *population.chance.sample(others, min(len(others), wanted - len(ends)))]


def verdict_of(engine: Engine, flow: Flow, found: ListedRun) -> RunVerdict | None:
    """Plan one run as somebody would go on with it: one that failed by a retry. None: it is no longer there."""
    for _ in range(_TRIES):
        request = ResumeRequest("retry" if found.status == "failed" else "resume")
        options = {"reopen": True} if found.status in {"blocked", "cancelled"} else {}
        try:
            store = cut(engine, flow, found) if found.status == "finished" else found.store
            plan = engine._new_job(flow, found.run_id, options, request, store).plan(ignore_owner=True)
            verdict = RunVerdict.of(plan)
            if found.status == "finished" and flow.front == "graph" and not verdict.is_bad:
                verdict = compare_path(found.store, found.run_id, cast("GraphFlow", flow), verdict)
            info = found.store.get_run(found.run_id).info if verdict.is_bad else None
        except RunNotFoundError:
            return None
        except MilepostError as exc:
            raise_unless_of_one_run(exc)
            return RunVerdict("not read", str(exc), exc)
        except (Exception, SystemExit) as exc:
            # A user's code may raise anything, and the other runs are checked all the same.
            return RunVerdict("refuse", f"its code raised {describe(exc)}", exc)
        if info is None or info.sequence == found.sequence:
            break
        # The run has moved on since it was listed, perhaps while it was planned.
        found = ListedRun(found.store, info.run_id, info.status, info.sequence)
    return verdict


def cut(engine: Engine, flow: Flow, found: ListedRun) -> Store:
    """Copy a finished run into a store in memory, up to a point before its end; a run without one stays where it is.

    Of a graph the last node is left out, so that it must still be there; `compare_path` looks at the others. Of a
    workflow no step is, because all are compared.
    """
    visits = [visit for visit in found.store.history(found.run_id) if not visit.superseded]
    if not visits:
        return found.store
    last = visits[-2 if flow.front == "graph" and len(visits) > 1 else -1]
    copy = MemoryStore()
    copy._take_options(found.store)
    job = engine._new_job(flow, found.run_id, {}, ResumeRequest(), found.store)
    job.fork(last.node_id, last.visit, found.run_id, copy)
    return copy


def raise_unless_of_one_run(exc: MilepostError) -> None:
    """Raise the error of a store that fails for all runs."""
    if is_of_all_runs(exc):
        raise exc
