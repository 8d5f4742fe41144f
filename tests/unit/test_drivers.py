"""Faults that drivers once had, each found before a user did."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from milepost import END, Context, Graph, MemoryStore, NodeError, SQLiteStore
from milepost.drivers import SyncDriver, awaiting
from milepost.drivers.awaiting import lane_of
from milepost.drivers.heartbeat import Heartbeat, heartbeat
from milepost.drivers.threads import Threads
from milepost.errors import NodeTimeoutError, StoreClosedError, StoreError
from milepost.executor.effects import Ask, Write
from milepost.executor.start import start
from milepost.graph.run import NodeRun
from milepost.model.ids import SYSTEM, new_nonce
from milepost.options import Options
from milepost.store import Release, Renewal, Token
from milepost.verbs import flow_of


def one_node(fn: Any, **options: Any) -> Any:
    return Graph(dict).add_node("a", fn, **options).add_edge("a", END).set_entry("a").compile("one")


def test_a_node_that_tells_much_does_not_escape_its_timeout_in_a_stream():
    def tell(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        while not ctx.cancelled:
            ctx.progress(1)
        return state

    with pytest.raises(NodeTimeoutError):
        for _ in one_node(tell, timeout=0.2).stream({}, store=MemoryStore()):
            pass


def test_a_stream_that_is_broken_off_leaves_no_call_running():
    ended = threading.Event()

    def work(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        ctx.progress(1)
        while not ctx.cancelled:
            pass
        ended.set()
        return state

    store = MemoryStore()
    events = one_node(work).stream({}, store=store, run_id="r-1")
    while type(next(events)).__name__ != "Progress":
        pass
    events.close()
    assert ended.is_set()
    assert "interrupted" == store.get_run("r-1").info.status


class Beaten(MemoryStore):
    """Tells when its leases are renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Event()

    def renew(self, tokens: Any) -> list[Renewal]:
        self.renewed.set()
        return [Renewal("kept") for _ in tokens]


def token(number: int) -> Token:
    return Token(f"r-{number}", 1, "n", "p")


def test_a_new_lease_does_not_put_off_the_renewal_of_the_others():
    heartbeat, store = Heartbeat(), Beaten()
    heartbeat.hold(store, token(0), 0.9, SYSTEM)
    number = 0
    # Each is a little shorter than the one before it, so each wakes the thread.
    while not store.renewed.wait(0.02) and number < 100:
        number += 1
        heartbeat.hold(store, token(number), 0.9 - number / 1000, SYSTEM)
    assert store.renewed.is_set()
    assert number < 40
    for given in range(number + 1):
        heartbeat.drop(store, token(given), None)


def test_cancels_are_looked_for_also_when_a_run_begins_soon_after_the_only_one_ended(monkeypatch: pytest.MonkeyPatch):
    class Noting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            if len(waits) == 4:
                looked.set()
            return super().wait(timeout)

    monkeypatch.setattr("milepost.drivers.heartbeat.LOOK", 0.01)
    waits, looked = list[float | None](), threading.Event()
    heartbeat, store = Heartbeat(), MemoryStore()
    heartbeat._wake = Noting()
    heartbeat.hold(store, token(0), 30, SYSTEM)
    heartbeat.drop(store, token(0), None)
    assert looked.wait(5), waits


def test_a_store_that_answers_nonsense_does_not_end_the_heartbeat():
    class Silent(MemoryStore):
        def renew(self, tokens: Any) -> list[Renewal]:
            return []

    heartbeat, store = Heartbeat(), Silent()
    held = heartbeat.hold(store, token(0), 30, SYSTEM)
    heartbeat.beat()
    assert not held.is_lost
    heartbeat.drop(store, token(0), None)


def test_what_is_owed_to_a_closed_store_is_given_up():
    class Closed(MemoryStore):
        calls = 0

        def release(self, token: Token, release: Release) -> Any:
            self.calls += 1
            raise StoreClosedError("closed")

    heartbeat, store = Heartbeat(), Closed()
    heartbeat.drop(store, token(0), Release("failed"))
    heartbeat.beat()
    heartbeat.beat()
    assert 1 == store.calls


def test_work_for_which_no_thread_can_be_started_is_never_done(monkeypatch: pytest.MonkeyPatch):
    threads, done = Threads(), list[str]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            threads.submit(lambda: done.append("refused"))
    threads.submit(lambda: done.append("taken")).done.wait(10)
    assert ["taken"] == done


def test_eight_threads_share_a_store_that_was_made_in_another(tmp_path: Any):
    def add(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    graph = Graph(dict).add_node("a", add).add_edge("a", "b").add_node("b", add)
    graph.add_conditional_edge("b", lambda state: "a" if state["n"] < 20 else END, ["a", END])
    flow = graph.set_entry("a").compile("threads")
    with SQLiteStore(tmp_path / "runs.db") as store:
        with ThreadPoolExecutor(8) as pool:
            states = list(pool.map(lambda n: flow.run({"n": 0}, store=store, run_id=f"r-{n}"), range(8)))
        assert [{"n": 20}] * 8 == states
        for number in range(8):
            assert [(node_id, visit) for visit in range(1, 11) for node_id in "ab"] == [
                (info.node_id, info.visit) for info in store.history(f"r-{number}")
            ]
            assert store.verify(f"r-{number}").ok


def test_a_stream_that_is_broken_off_at_its_last_event_keeps_no_lease():
    graph = one_node(lambda state: state)
    with SQLiteStore(":memory:") as store:
        before = len(heartbeat._held)
        for event in graph.stream({}, store=store, run_id="r"):
            if type(event).__name__ == "NodeCompleted":
                break
        assert before == len(heartbeat._held)
        assert "finished" == store.get_run("r").info.status


def test_control_c_between_two_effects_interrupts_the_run():
    class Interrupting(SyncDriver):
        """Is interrupted once, after an effect was performed and before its answer is sent."""

        is_due = True

        def perform(self, effect: Any) -> Any:
            answer = super().perform(effect)
            if isinstance(effect, Write) and self.is_due:
                self.is_due = False
                raise KeyboardInterrupt
            return answer

    graph = Graph(dict).add_node("a", lambda s: s).add_node("b", lambda s: s).add_edge("a", "b").add_edge("b", END)
    flow: Any = graph.set_entry("a").compile("two")
    store = MemoryStore()
    run = NodeRun(flow_of(flow), store, "r", Options(), is_listening=False)
    with pytest.raises(KeyboardInterrupt):
        Interrupting(SYSTEM).run(start(run, {}, new_nonce))
    assert "interrupted" == store.get_run("r").info.status
    assert {} == flow.resume(store, "r")


def test_an_error_of_a_nested_run_is_an_error_of_the_outer_node():
    inner = one_node(lambda state: None)

    def outer(state: dict[str, int]) -> dict[str, int]:
        return inner.run(state, store=MemoryStore(), run_id="inner")  # type: ignore[no-any-return]

    with pytest.raises(NodeError) as caught:
        one_node(outer).run({}, store=MemoryStore(), run_id="outer")
    assert ("outer", "a") == (caught.value.run_id, caught.value.node_id)
    assert "inner" == caught.value.__cause__.run_id  # type: ignore[union-attr]


class Held(MemoryStore):
    """Keeps the thread of its queue until it is let go."""

    is_blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.is_let_go = threading.Event()

    def hold(self) -> None:
        self.is_let_go.wait(10)

    def tell(self, word: str) -> str:
        return word


def test_a_task_that_ends_its_loop_keeps_no_answer_of_the_store_from_another():
    store, loop = Held(), asyncio.new_event_loop()
    lane = lane_of(store)
    heard: list[asyncio.Future[Any]] = []

    async def leave() -> None:
        await lane.submit(Ask(store, "tell", "leave"))
        raise SystemExit(3)

    async def hear() -> Any:
        return await lane.submit(Ask(store, "tell", "stay"))

    async def work() -> None:
        lane.submit(Ask(store, "hold"))
        leaving, staying = asyncio.ensure_future(leave()), asyncio.ensure_future(hear())
        heard.append(staying)
        await asyncio.sleep(0)
        store.is_let_go.set()  # both answers come in one round
        await asyncio.wait([leaving, staying])

    with pytest.raises(SystemExit):
        loop.run_until_complete(work())
    loop.run_until_complete(asyncio.wait(heard, timeout=5))
    assert ["stay"] == [task.result() for task in heard if task.done()]
    loop.close()


def test_a_task_gives_up_what_others_wait_for_at_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(awaiting, "PROMPT", 0)
    store = Held()
    lane = lane_of(store)

    async def hear() -> Any:
        return await lane.submit(Ask(store, "hold"))

    async def work() -> None:
        hearing = asyncio.ensure_future(hear())
        try:
            while not hearing.done():
                await asyncio.sleep(0.01)
                lane.give_up({hearing})
        finally:
            store.is_let_go.set()
        with pytest.raises(StoreError, match="did not answer in time"):
            await hearing

    asyncio.run(asyncio.wait_for(work(), 5))


def test_a_cancelled_task_waits_for_the_answer_of_the_store():
    store = Held()
    told: list[bool] = []

    async def hear() -> None:
        try:
            await lane_of(store).submit(Ask(store, "hold"))
        finally:
            told.append(store.is_let_go.is_set())

    async def work() -> None:
        hearing = asyncio.ensure_future(hear())
        await asyncio.sleep(0)
        hearing.cancel()
        await asyncio.sleep(0.05)
        assert not hearing.done()
        store.is_let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await hearing

    asyncio.run(asyncio.wait_for(work(), 5))
    assert [True] == told
