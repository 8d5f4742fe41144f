"""One suite for both ways to run a graph and for every store.

`verbs` calls a verb or its a-twin, and makes nodes that are functions or coroutine functions; under `threads` the
a-twins run plain functions. `medium` opens stores, `store` is one of them, `line` builds graphs of nodes in a row, and
`log` shows which bodies really ran.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost import END, FileStore, Graph, MemoryStore, SQLiteStore, Store
from milepost.drivers import AsyncDriver, SyncDriver
from milepost.drivers.heartbeat import HeldLease
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Effect, Hold
from milepost.stores.postgres.store import PostgresStore
from milepost.testing import FakeClock
from milepost.verbs import Job, flow_of

LEASE = 30.0
STORES: dict[str, type[Store]] = {
    "memory": MemoryStore,
    "sqlite": SQLiteStore,
    "file": FileStore,
    "postgres": PostgresStore,
}


class Killed(BaseException):
    """Raised by a node that `Verbs.crash` runs: the process is gone at this point."""


class JumpingClock(FakeClock):
    """A clock on which nobody waits: whoever would, is told that the time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        if not wake.is_set():
            self.waits.append(seconds)
            self.advance(seconds)
        return wake.is_set()

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.waits.append(seconds)
            self.advance(seconds)
        await asyncio.sleep(0)


class Verbs:
    """The verbs of a graph, or of an engine with the graph as first argument."""

    Killed = Killed

    def __init__(self, kind: str) -> None:
        self.is_async = kind != "sync"
        self.has_coroutines = kind == "async"

    def node(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` as a node of this kind."""
        if not self.has_coroutines:
            return fn

        @functools.wraps(fn)
        async def coroutine(*args: Any) -> Any:
            await asyncio.sleep(0)
            return fn(*args)

        return coroutine

    def call(self, owner: Any, verb: str, *args: Any, **options: Any) -> Any:
        if not self.is_async:
            return getattr(owner, verb)(*args, **options)
        return asyncio.run(getattr(owner, "a" + verb)(*args, **options))

    def run(self, owner: Any, *args: Any, **options: Any) -> Any:
        return self.call(owner, "run", *args, **options)

    def resume(self, owner: Any, *args: Any, **options: Any) -> Any:
        return self.call(owner, "resume", *args, **options)

    def resume_from(self, owner: Any, *args: Any, **options: Any) -> Any:
        return self.call(owner, "resume_from", *args, **options)

    def retry(self, owner: Any, *args: Any, **options: Any) -> Any:
        return self.call(owner, "retry", *args, **options)

    def plan(self, owner: Any, *args: Any, **options: Any) -> Any:
        return self.call(owner, "plan_resume", *args, **options)

    def stream(self, owner: Any, *args: Any, **options: Any) -> list[Any]:
        return self.events(owner, "stream", *args, **options)

    def resume_stream(self, owner: Any, *args: Any, **options: Any) -> list[Any]:
        return self.events(owner, "resume_stream", *args, **options)

    def events(
        self,
        owner: Any,
        verb: str,
        *args: Any,
        until: Callable[[Any], bool] = lambda event: False,
        seen: list[Any] | None = None,
        **options: Any,
    ) -> list[Any]:
        """What a stream tells; broken off after the first event that `until` is true of. Filled into `seen`."""
        told: list[Any] = [] if seen is None else seen
        if not self.is_async:
            stream = getattr(owner, verb)(*args, **options)
            for event in stream:
                told.append(event)
                if until(event):
                    stream.close()
            return told

        async def collect() -> None:
            stream = getattr(owner, "a" + verb)(*args, **options)
            async for event in stream:
                told.append(event)
                if until(event):
                    await stream.aclose()
                    return

        asyncio.run(collect())
        return told

    def crash(self, graph: Any, store: Store, run_id: str, state: Any = None, **options: Any) -> None:
        """Run (with a state) or resume until a node raises `Killed`: there the process is as good as dead.

        Afterwards the run may be taken over: its lease has ended, or, where leases have no end, is abandoned.
        """
        job = Job(flow_of(graph), store, run_id, options, {}, ResumeRequest() if state is None else None)
        tokens: list[Any] = []
        if self.is_async:
            asyncio.run(_adrive(job, state, tokens))
        else:
            _drive(job, state, tokens)
        if isinstance(store, MemoryStore):
            store.abandon(tokens[-1])
        elif isinstance(store.clock, FakeClock):
            store.clock.advance(LEASE + 1)


def _kept(effect: Effect, tokens: list[Any]) -> HeldLease | None:
    # A dead process renews nothing, so nothing is told to the heartbeat of this one.
    if not isinstance(effect, Hold):
        return None
    tokens.append(effect.token)
    return HeldLease(effect.store, effect.token, effect.lease, effect.store.clock)


def _drive(job: Job, state: Any, tokens: list[Any]) -> None:
    driver, routine = SyncDriver(job.options.clock), job.routine(state)
    effect = next(routine)
    while True:
        try:
            answer = _kept(effect, tokens) or driver.perform(effect)
        except Killed:
            routine.close()
            return
        except BaseException as exc:
            effect = routine.throw(exc)
        else:
            effect = routine.send(answer)


async def _adrive(job: Job, state: Any, tokens: list[Any]) -> None:
    driver, routine = AsyncDriver(job.options.clock), job.routine(state)
    effect = next(routine)
    while True:
        try:
            answer = _kept(effect, tokens) or await driver.perform(effect)
        except Killed:
            routine.close()
            return
        except BaseException as exc:
            effect = routine.throw(exc)
        else:
            effect = routine.send(answer)


class Medium:
    """One place where runs are kept; `open` gives a store object on it."""

    def __init__(self, kind: str, path: Path | str) -> None:
        self.kind = kind
        self.path = path
        self.has_lease_end = kind != "memory"
        self.opened: list[Store] = []

    def open(self, *mixins: type, **arguments: Any) -> Any:
        """A store; what `mixins` override comes before it. Memory is one object: later calls give the first again."""
        if self.kind == "memory" and self.opened:
            return self.opened[0]
        base = STORES[self.kind]
        kind = type("Extended", (*mixins, base), {}) if mixins else base
        place = () if self.kind == "memory" else (self.path,)
        if self.kind == "sqlite":
            arguments.setdefault("durability", "normal")
        store = kind(*place, **arguments)
        self.opened.append(store)
        return store


WAYS: dict[str, tuple[str, ...]] = {
    "memory": ("sync", "async", "threads"),
    "sqlite": ("sync", "async"),
    "file": ("sync",),
    "postgres": ("async",),
}
"""The verbs that all tests call on each store: which verbs are called is the driver's business, and no store can tell."""
FEW: dict[str, tuple[str, ...]] = {"memory": ("sync", "async")}
"""The same without `--all`."""
ONCE: dict[str, tuple[str, ...]] = {
    "memory": ("sync", "async"),
    "sqlite": ("sync",),
    "file": ("sync",),
    "postgres": ("async",),
}
"""The same of a test that has the mark `every_store`, without `--all`."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test its stores and verbs: those that its marks `stores` and `ways` name, else all that belong together.

    Without `--all` the first store that it names is enough, and the verbs of `FEW`.
    """
    axes = [axis for axis in ("medium", "verbs") if axis in metafunc.fixturenames]
    if not axes:
        return
    stores, ways = (metafunc.definition.get_closest_marker(name) for name in ("stores", "ways"))
    is_whole = metafunc.config.getoption("--all")
    chosen = WAYS if is_whole else ONCE if metafunc.definition.get_closest_marker("every_store") else FEW
    if stores is not None:
        chosen = {kind: WAYS[kind] for kind in (stores.args if is_whole else stores.args[:1])}
    if axes == ["medium"]:
        metafunc.parametrize("medium", chosen, indirect=True)
        return
    pairs = [(kind, verbs) for kind, all_verbs in chosen.items() for verbs in all_verbs]
    if ways is not None:
        pairs = [(kind, verbs) for kind in chosen for verbs in ways.args if verbs in WAYS[kind]]
    elif stores is not None and not is_whole:
        pairs = [(kind, verbs) for kind, verbs in pairs if verbs != "threads"]
    if axes == ["verbs"]:
        metafunc.parametrize("verbs", [verbs for kind, verbs in pairs if kind == pairs[0][0]], indirect=True)
    else:
        metafunc.parametrize(axes, pairs, indirect=True)


AXES = {"verbs", "medium", "front"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try each value of a table in one of the ways to call verbs, in turn.

    With `--all` it is tried in memory in all ways, and in turn in one way on another store.
    """
    is_whole = config.getoption("--all")
    tables: dict[str, dict[tuple[int, ...], list[pytest.Item]]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        row = tuple(id(value) for axis, value in params.items() if axis not in AXES)
        is_tried_anyway = is_whole and params.get("medium", "memory") == "memory"
        if row and AXES & params.keys() and not is_tried_anyway and item.get_closest_marker("every_store") is None:
            tables.setdefault(item.nodeid.partition("[")[0], {}).setdefault(row, []).append(item)
    left_out = {
        item
        for table in tables.values()
        for number, row in enumerate(table.values())
        for way, item in enumerate(row)
        if len(table) > 2 and way != number % len(row)
    }
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def verbs(request: pytest.FixtureRequest) -> Verbs:
    return Verbs(request.param)


@pytest.fixture
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    is_served = request.param == "postgres"
    medium = Medium(request.param, request.getfixturevalue("postgres") if is_served else tmp_path / "runs.db")
    yield medium
    for store in medium.opened:
        store.close()


@pytest.fixture
def store(medium: Medium) -> Any:
    return medium.open()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def jumping() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def timed(medium: Medium, clock: FakeClock) -> Any:
    """A store whose leases go by `clock`."""
    return medium.open(clock=clock)


@pytest.fixture
def log() -> list[str]:
    """The names of the bodies that ran, in order."""
    return []


@pytest.fixture
def line(verbs: Verbs, log: list[str]) -> Callable[..., Any]:
    """Build a graph of nodes in a row, each one letter long: each logs its name and adds 1 to `n`.

    `bodies` by node id are called instead of adding; `options` by node id go to `add_node`.
    """

    def build(
        state_type: Any,
        ids: str = "abc",
        bodies: dict[str, Callable[..., Any]] | None = None,
        options: dict[str, dict[str, Any]] | None = None,
        name: str | None = "line",
        **of_graph: Any,
    ) -> Any:
        graph = Graph(state_type, **of_graph)
        for node_id in ids:
            body = (bodies or {}).get(node_id, lambda state: dataclasses.replace(state, n=state.n + 1))
            graph.add_node(node_id, verbs.node(_logged(node_id, body, log)), **(options or {}).get(node_id, {}))
        for source, target in zip(ids, [*ids[1:], END], strict=True):
            graph.add_edge(source, target)
        return graph.set_entry(ids[0]).compile(name)

    return build


def _logged(id: str, body: Callable[..., Any], log: list[str]) -> Callable[..., Any]:
    takes_context = body.__code__.co_argcount == 2

    def with_context(ctx: Any, given: Any) -> Any:
        log.append(id)
        return body(ctx, given)

    def plain(given: Any) -> Any:
        log.append(id)
        return body(given)

    return with_context if takes_context else plain


@pytest.fixture
def work(verbs: Verbs, log: list[str]) -> Callable[..., Any]:
    """Make a step's function, plain or a coroutine function, of a plain one; `log` has its name for each call."""

    def make(fn: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        called = name or fn.__name__

        @functools.wraps(fn)
        def logged(*args: Any, **kwargs: Any) -> Any:
            log.append(called)
            return fn(*args, **kwargs)

        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return logged(*args, **kwargs)

        return awaited if verbs.has_coroutines else logged

    return make
