"""What the tests of executors have run in other processes, which find it by its name; it imports little."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import Executor, ProcessPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from milepost import END, BranchError, Context, Graph, NodeError, SQLiteStore, current


@dataclass
class Job:
    folder: str = ""
    n: int = 0
    pids: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)


class Odd(Exception):
    """An error that pickle cannot make again: it takes more than it tells its base of."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Unloadable:
    """A value that pickle takes and can't make again."""

    def __reduce__(self) -> object:
        return Odd, (7,)


class Homesick:
    """A value that pickle makes again in the process alone in which it was pickled."""

    def __reduce__(self) -> object:
        return only_in, (os.getpid(),)


def only_in(pid: int) -> Homesick:
    if pid != os.getpid():
        raise ValueError("this is not its home")
    return Homesick()


class Holder(Exception):
    """An error with more in it."""


colour: ContextVar[str] = ContextVar("colour", default="none")


def here(job: Job) -> Job:
    return replace(job, pids=[*job.pids, os.getpid()])


def with_ids(ctx: Context, job: Job) -> Job:
    assert repr(ctx) == repr(current())
    ids = [ctx.run_id, ctx.node_id, ctx.visit, ctx.attempt, ctx.idempotency_key]
    return replace(job, ids=[str(value) for value in ids])


def asks_for_deps(job: Job) -> Job:
    current().deps  # noqa: B018
    return job


def needs_everything(ctx: Context, job: Job) -> Job:
    ctx.tag("colour", colour.get())
    ctx.progress(1, 2)
    return replace(job, ids=[type(current()).__name__, ctx.deps, threading.current_thread().name])


def noted(job: Job) -> int:
    """Note a call, with its idempotency key; how many there were before."""
    notes = Path(job.folder, "calls")
    before = notes.read_text().splitlines() if notes.exists() else []
    with notes.open("a") as file:
        file.write(f"{current().idempotency_key}\n")
    return len(before)


def exits_at_first(job: Job) -> Job:
    if noted(job) == 0:
        os._exit(3)
    return here(job)


def is_killed_at_first(job: Job) -> Job:
    if noted(job) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return here(job)


def always_exits(job: Job) -> Job:
    noted(job)
    os._exit(3)


def fails_at_first(job: Job) -> Job:
    if noted(job) == 0:
        raise ValueError("not yet")
    return job


def is_odd(job: Job) -> Job:
    raise Odd(7, "as it comes")


def wrong(what: str) -> object:
    """Raise or return what can't be made again; anything else is returned after its wrong sibling has failed."""
    odd, holder = Odd(7, "as it comes"), Holder("as it holds")
    if what == "error":
        raise odd
    if what == "in a group":
        raise ExceptionGroup("as a group", [odd, ValueError("another")])
    if what == "in arguments":
        raise Holder("as it holds", odd)
    if what == "in attributes":
        holder.inner = odd  # type: ignore[attr-defined]
        raise holder
    if what == "homesick error":
        raise Holder("as it holds", Homesick())
    if what == "value":
        return [Unloadable()]
    if what == "homesick value":
        return [Homesick()]
    return what


def given(value: object) -> object:
    return "given"


def raises_ours(job: Job) -> Job:
    error = BranchError("ours", fork="f", errors={"b": NodeError("its own", attempt=2)}, state=threading.Lock())
    raise error


def exits_politely(job: Job) -> Job:
    raise SystemExit(4)


def gives_a_lock(job: Job) -> Job:
    return threading.Lock()  # type: ignore[return-value]


def waits_at_first(job: Job) -> Job:
    """Tell that it has begun, and with which pid; then block until somebody opens the other end of `words`."""
    if noted(job) == 0:
        Path(job.folder, "begun").write_text(str(os.getpid()))
        Path(job.folder, "words").read_text()
    return here(job)


def counted(folder: str) -> int:
    """Called with equal arguments it gives another number each time."""
    with Path(folder, "count").open("a") as file:
        file.write("x")
        return file.tell()


def squared(n: int) -> int:
    return n * n


def in_process(n: int) -> int:
    return os.getpid()


def key_of(n: int) -> str:
    return current().idempotency_key


async def awaited(job: Job) -> Job:
    return here(job)


def main(folder: str) -> None:
    """Run a node that waits, by a factory's pool, until this process is interrupted."""
    graph = Graph(Job).add_node("heavy", waits_at_first, executor=spawned).add_edge("heavy", END).set_entry("heavy")
    with SQLiteStore(Path(folder, "runs.db")) as store:
        graph.compile("jobs").run(Job(folder), store=store, run_id="r1")


def spawned() -> Executor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


if __name__ == "__main__":
    main(sys.argv[1])
