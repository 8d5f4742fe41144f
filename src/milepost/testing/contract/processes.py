"""Several threads and several processes on one store, and its close."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from milepost.errors import RunExistsError, StoreClosedError
from milepost.model.record import START
from milepost.store import Append, Release, Store, Token
from milepost.testing.children import Child
from milepost.testing.clock import FakeClock
from milepost.testing.contract.ownership import outcomes_of
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.contract.views import VERBS
from milepost.testing.journals import begin, checkpoint, claim_of, finish, take, whole, work, write
from milepost.testing.tables import trying

# -- The close of a store object: what it waits for, and the error of every verb afterwards --------


FENCED: dict[str, Callable[[Store, Token], object]] = {
    "append": lambda store, token: store.append([Append(token, (checkpoint("r", 1),))]),
    "renew": lambda store, token: store.renew([token]),
    "release": lambda store, token: store.release(token, Release("finished")),
    "claim_due": lambda store, token: store.claim_due(["orders"], 1),
    "list_runs": lambda store, token: store.list_runs(),
}


class ClosingContract(StoreUnderTest):
    """Use after `close()` is `StoreClosedError`."""

    def test_a_verb_after_close_is_refused(self, store: Store) -> None:
        """Use after `close()` is `StoreClosedError`."""
        store.save("r", "a", b"1")
        store.close()
        for name, call in VERBS.items():
            with trying(verb=name), pytest.raises(StoreClosedError):
                call(store, "r")

    def test_a_fenced_verb_after_close_is_refused(self, store: Store) -> None:
        """Use after `close()` is `StoreClosedError`."""
        token = begin(store, "r")
        store.close()
        for name, call in FENCED.items():
            with trying(verb=name), pytest.raises(StoreClosedError):
                call(store, token)

    def test_a_claim_after_close_is_refused(self, store: Store) -> None:
        """Use after `close()` is `StoreClosedError`."""
        begin(store, "r")
        request = claim_of(store.latest("r"))
        store.close()
        with pytest.raises(StoreClosedError):
            store.claim(request)

    def test_abandon_after_close_does_not_fail(self, store: Store) -> None:
        """Note that the verb which held `token` has ended without a release. Never fails."""
        token = begin(store, "r")
        store.close()
        store.abandon(token)

    def test_closing_again_is_no_error(self, store: Store) -> None:
        """Wait for writes that have begun, then release everything. Again: no error."""
        begin(store, "r")
        store.close()
        store.close()

    def test_close_amid_writes_ends_them_with_a_clear_answer(self, store: Store) -> None:
        """Wait for writes that have begun; use after `close()` is `StoreClosedError`, and nothing else."""
        assert all(count > 0 for count in written_until_closed(store))

    @requires(is_shared_between_processes=True)
    def test_what_was_told_written_before_a_close_is_there(self, store: Store, other: Store) -> None:
        """Wait for writes that have begun: what was written was told, and what was told is there."""
        counts = written_until_closed(store)
        assert counts == [other.get_run(f"r{n}").info.sequence for n in range(len(counts))]

    def test_a_store_that_was_never_used_is_closed(self, store: Store) -> None:
        """Release everything. Again: no error."""
        store.close()
        store.close()

    def test_a_with_block_closes_the_store(self, tmp_path: Path, clock: FakeClock) -> None:
        """Stores are context managers, sync and async."""
        with self.make_store(tmp_path, clock) as store:
            store.save("r", "a", b"1")
        with pytest.raises(StoreClosedError):
            store.load("r", "a")
        with pytest.raises(ZeroDivisionError), self.make_store(tmp_path, clock) as store:
            raise ZeroDivisionError
        with pytest.raises(StoreClosedError):
            store.list_runs()

    def test_an_async_with_block_closes_the_store(self, tmp_path: Path, clock: FakeClock) -> None:
        """Stores are context managers, sync and async."""

        async def use() -> Store:
            async with self.make_store(tmp_path, clock) as store:
                store.save("r", "a", b"1")
            return store

        store = asyncio.run(use())
        with pytest.raises(StoreClosedError):
            store.load("r", "a")

    @requires(is_shared_between_processes=True)
    def test_closing_one_store_object_leaves_the_others_alone(self, store: Store, other: Store) -> None:
        """Release everything: of this object only."""
        token = begin(store, "r")
        store.close()
        assert "written" == work(other, token, "a").outcome
        other.save("s", "a", b"1")

    def test_a_store_has_an_absolute_place(self, store: Store) -> None:
        """The store's absolute place, for messages; without passwords."""
        assert isinstance(store.place, str)
        assert "" != store.place

    def test_a_store_says_whether_a_call_may_wait(self, store: Store) -> None:
        """Whether a call may wait for a disk or a network."""
        assert isinstance(store.is_blocking, bool)


def written_until_closed(store: Store, threads: int = 6) -> list[int]:
    """Close a store while each thread appends to a run. Return the number of written appends for each."""
    tokens = [begin(store, f"r{n}") for n in range(threads)]
    has_begun = threading.Barrier(threads + 1)

    def append(token: Token) -> int:
        for sequence in itertools.count(1):
            try:
                assert "written" == write(store, token, checkpoint(token.run_id, sequence)).outcome
            except StoreClosedError:
                return sequence - 1
            if sequence == 1:
                has_begun.wait(30)
        raise AssertionError

    with ThreadPoolExecutor(threads) as pool:
        counts = [pool.submit(append, token) for token in tokens]
        has_begun.wait(30)
        store.close()
        return [count.result(30) for count in counts]


# -- Many threads on one store object: every verb is thread-safe, and of threads that want the same thing one gets it


Given = TypeVar("Given")
Result = TypeVar("Result")


def at_once(call: Callable[[Given], Result], given: Iterable[Given]) -> list[Result]:
    """Call with each of `given` in a thread of its own, all started together. Return the results in order."""
    values = list(given)
    gate = threading.Barrier(len(values))

    def through(value: Given) -> Result:
        gate.wait(30)
        return call(value)

    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(through, values))


class ThreadContract(StoreUnderTest):
    """Every verb is a plain, blocking, thread-safe method."""

    def test_of_16_threads_that_create_one_id_one_wins(self, store: Store) -> None:
        """Raises `RunExistsError` if the id is taken, whoever else creates it at the same time."""

        def create(n: int) -> str:
            try:
                return begin(store, "r", tags={"by": str(n)}).nonce
            except RunExistsError as exc:
                return exc.status

        outcomes = at_once(create, range(16))
        assert 15 == outcomes.count("running")
        winner = next(n for n, outcome in enumerate(outcomes) if outcome != "running")
        assert {"by": str(winner)} == dict(store.get_run("r").info.tags)
        assert [0] == [record.sequence for record in store.read("r")]

    def test_of_16_threads_that_claim_one_run_one_wins(self, store: Store) -> None:
        """A reader with a stale view fails by the key."""
        store.release(begin(store, "r"), Release("interrupted"))
        latest = store.latest("r")
        outcomes = Counter(claimed.outcome for claimed in at_once(store.claim, [claim_of(latest) for _ in range(16)]))
        assert 1 == outcomes["claimed"]
        assert 15 == outcomes["moved"] + outcomes["locked"]
        assert [0, 1] == [record.sequence for record in store.read("r")]

    def test_16_workers_share_due_runs(self, store: Store) -> None:
        """Each is claimed as by `claim`: no run is given to two workers."""
        names = [f"r{n}" for n in range(48)]
        for name in names:
            begin(store, name, status="ready")
        found = at_once(lambda _: store.claim_due(["orders"], 5), range(16))
        found.append(store.claim_due(["orders"], 48))
        assert names == sorted((row.info.run_id for due in found for _, row in due), key=lambda name: int(name[1:]))

    def test_of_16_threads_that_append_one_number_one_wins(self, store: Store) -> None:
        """taken: a number is in use."""
        token = begin(store, "r")
        for sequence in range(1, 4):
            records = [checkpoint("r", sequence, f"by {n}") for n in range(16)]
            outcomes = Counter(verdict.outcome for verdict in at_once(lambda r: write(store, token, r), records))
            assert {"written": 1, "taken": 15} == outcomes

    def test_20_saves_at_once_are_all_kept(self, store: Store) -> None:
        """The record takes the next number and the next epoch in one write."""
        at_once(lambda n: store.save("r", f"n{n}", b"%d" % n), range(20))
        assert list(range(1, 21)) == [info.sequence for info in store.list("r")]
        assert [b"%d" % n for n in range(20)] == [store.load("r", f"n{n}") for n in range(20)]

    def test_20_saves_of_one_node_are_20_visits(self, store: Store) -> None:
        """Record a new visit of a node."""
        at_once(lambda n: store.save("r", "a", b"%d" % n), range(20))
        assert list(range(1, 21)) == [info.visit for info in store.history("r")]
        assert {b"%d" % n for n in range(20)} == {store.load("r", "a", visit) for visit in range(1, 21)}
        assert store.load("r", "a") == store.load("r", "a", 20)

    def test_50_threads_with_20_operations_each(self, store: Store) -> None:
        """Every verb is a plain, blocking, thread-safe method."""

        def live(n: int) -> None:
            run_id = f"r{n}"
            token = begin(store, run_id)
            for sequence in range(1, 9):
                assert "written" == write(store, token, checkpoint(run_id, sequence, f"n{sequence % 3}")).outcome
                assert sequence == store.latest(run_id).newest
            assert "kept" == store.renew([token])[0].outcome
            store.put_signal(run_id, "go", b"1")
            assert "written" == write(store, token, finish(run_id, 9), release=Release("finished")).outcome

        at_once(live, range(50))
        assert 50 == len(store.list_runs(status="finished"))
        for n in range(50):
            assert list(range(10)) == [record.sequence for record in store.read(f"r{n}")]
            assert store.verify(f"r{n}").ok

    def test_a_pool_of_8_threads_with_a_run_each(self, store: Store) -> None:
        """Thread-safe: a store made in one thread serves a pool of others."""

        def live(run_id: str) -> None:
            token = begin(store, run_id)
            for node in "abcdefghij":
                assert "written" == work(store, token, node).outcome
            store.release(token, Release("finished"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(live, [f"r{n}" for n in range(8)]))
        for n in range(8):
            assert list("abcdefghij") == [info.node_id for info in store.list(f"r{n}")]

    def test_batches_at_once_keep_their_verdicts_apart(self, store: Store) -> None:
        """A verdict for each, in order; one append's fate does not touch another's."""
        tokens = [begin(store, f"r{n}") for n in range(24)]

        def send(n: int) -> list[str]:
            mine = tokens[n * 3 : n * 3 + 3]
            batch = [
                Append(mine[0], (checkpoint(mine[0].run_id, 1),)),
                Append(mine[1]._replace(nonce="no"), (checkpoint(mine[1].run_id, 1),)),
                Append(mine[2], (checkpoint(mine[2].run_id, 2),)),
            ]
            return [verdict.outcome for verdict in store.append(batch)]

        assert [["written", "lost", "gap"]] * 8 == at_once(send, range(8))
        assert [1, 0, 0] * 8 == [store.get_run(token.run_id).info.sequence for token in tokens]

    def test_a_batch_that_fails_does_not_touch_those_of_other_threads(self, store: Store) -> None:
        """One append's fate does not touch another's, nor is anything told that did not take place."""
        tokens = [begin(store, f"r{n}") for n in range(12)]

        def send(n: int) -> list[list[str]]:
            sent = list[list[str]]()
            for sequence in range(1, 11):
                record = checkpoint(f"r{n}", sequence)
                if n == 0:
                    record = record._replace(visit=2**80)  # no backend has to accept such a number
                sent.append(outcomes_of(store, [Append(tokens[n], (record,))]))
            return sent

        sent = at_once(send, range(12))
        assert [[["written"]] * 10] * 11 == sent[1:]
        written = [sum(outcome == ["written"] for outcome in outcomes) for outcomes in sent]
        assert written == [store.get_run(token.run_id).info.sequence for token in tokens]

    def test_signals_at_once_are_numbered_densely(self, store: Store) -> None:
        """A signal that was kept for a run, numbered from 1; a `signal_id` is kept once."""
        begin(store, "r")
        outcomes = at_once(lambda n: store.put_signal("r", "go", b"%d" % n, signal_id=f"id {n % 8}"), range(16))
        assert {"kept": 8, "duplicate": 8} == Counter(outcomes)
        assert list(range(1, 9)) == [signal.number for signal in store.signals("r")]

    def test_readers_see_whole_appends(self, store: Store) -> None:
        """Records of one run that are written together, all or none."""
        token = begin(store, "r")
        done = threading.Event()
        odd = list[int]()

        def watch() -> None:
            while not done.is_set():
                odd.extend(n for n in (store.latest("r").newest, len(store.read("r")) - 1) if n % 3)

        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(30):
            work(store, token, "a", "b", "c")
        done.set()
        watcher.join()
        assert [] == odd


# -- Several processes on one store: owners that are killed, frozen, forked or doubled, for real ---


Spawn = Callable[[], Child]


def wait_until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    """Check `is_so` again and again. Fail if it is not true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.005)


class ProcessContract(StoreUnderTest):
    """Valid in the process that made it and in no other: of two owners, one's writes count."""

    @requires(is_shared_between_processes=True, sees_dead_processes=True)
    def test_a_killed_owner_is_noticed_at_once(self, real_store: Store, spawn: Spawn) -> None:
        """A lease also ends at once when its owner's process on this host is gone."""
        child = spawn()
        child.tell("token = begin(store, 'r', lease=3600.0); work(store, token, 'a')")
        assert "live" == real_store.get_run("r").lease
        assert "locked" == take(real_store, "r").outcome
        child.kill()
        row = real_store.get_run("r")
        assert ("ended", "dead") == (row.lease, row.info.status)
        claimed = take(real_store, "r")
        assert ("claimed", 1) == (claimed.outcome, claimed.row.info.crash_count)
        assert claimed.token is not None
        assert "written" == work(real_store, claimed.token, "b").outcome
        assert [0, 1, 2, 3] == [record.sequence for record in real_store.read("r")]

    @requires(is_shared_between_processes=True, sees_dead_processes=True)
    def test_a_run_killed_in_its_first_node_is_listed_with_its_input(self, real_store: Store, spawn: Spawn) -> None:
        """Write the run row and record 0 as one: a crash in the first node is recoverable and listed."""
        child = spawn()
        child.tell("begin(store, 'r', flow='orders', lease=3600.0)")
        child.kill()
        (info,) = real_store.list_runs(status="dead")
        assert ("r", "orders", 0) == (info.run_id, info.flow, info.sequence)
        point = real_store.latest("r").point
        assert point is not None
        assert (START, b'{"n":5}') == (point.kind, point.state())

    @requires(is_shared_between_processes=True, sees_dead_processes=True)
    def test_the_crash_count_survives_the_processes(self, real_store: Store, spawn: Spawn) -> None:
        """If that reaches `max_crashes` the run becomes `blocked` instead, with the reason."""
        spawn().tell("begin(store, 's', status='ready', flow='others')")
        child = spawn()
        child.tell("begin(store, 'r', lease=3600.0)")
        for count in (1, 2):
            child.kill()
            child = spawn()
            source = "((_, row),) = store.claim_due(['orders'], 5, max_crashes=3); answer = row.info.crash_count"
            assert count == child.tell(source)
        child.kill()
        assert [] == real_store.claim_due(["orders"], 5, max_crashes=3)
        assert "blocked" == real_store.get_run("r").info.status
        assert ["s"] == [row.info.run_id for _, row in real_store.claim_due(["orders", "others"], 5, max_crashes=3)]

    @requires(is_shared_between_processes=True, has_fork=True)
    def test_what_was_appended_survives_a_kill(self, real_store: Store, spawn: Spawn) -> None:
        """Durable on return."""
        child = spawn()
        assert "written" == child.tell("answer = work(store, begin(store, 'r'), *'abcdefghij').outcome")
        child.begin("import os, signal; store.save('s', 'a', b'1'); os.kill(os.getpid(), signal.SIGKILL)")
        with pytest.raises(RuntimeError):
            child.answer()
        assert list("abcdefghij") == [info.node_id for info in real_store.list("r")]
        assert b"1" == real_store.load("s", "a")
        assert real_store.verify("r").ok

    @requires(is_shared_between_processes=True, has_fork=True, lease_has_end=True)
    def test_a_frozen_owner_is_fenced_off_when_it_wakes(self, real_store: Store, spawn: Spawn) -> None:
        """A late write from a process that was frozen, or whose run was taken over, is refused."""
        child = spawn()
        child.tell("token = begin(store, 'r', lease=0.3); work(store, token, 'a')")
        child.freeze()
        wait_until(lambda: real_store.get_run("r").lease == "ended")
        claimed = take(real_store, "r", lease=3600.0)
        assert ("claimed", 1) == (claimed.outcome, claimed.row.info.crash_count)
        before = whole(real_store, "r")
        child.begin("answer = [write(store, token, checkpoint('r', n, 'late')).outcome for n in (2, 3)]")
        child.thaw()
        assert ["lost", "lost"] == child.answer()
        assert ["lost"] == child.tell("answer = [renewal.outcome for renewal in store.renew([token])]")
        assert before == whole(real_store, "r")
        assert claimed.token is not None
        assert "written" == work(real_store, claimed.token, "b").outcome

    @requires(is_shared_between_processes=True)
    def test_a_token_of_another_process_is_lost(self, real_store: Store, spawn: Spawn) -> None:
        """A store refuses a token of another process as lost."""
        child = spawn()
        handed = child.tell("answer = begin(store, 'r')")
        before = whole(real_store, "r")
        assert "lost" == work(real_store, Token(*handed), "stolen").outcome
        assert "lost" == real_store.renew([Token(*handed)])[0].outcome
        assert before == whole(real_store, "r")

    @requires(is_shared_between_processes=True, has_fork=True)
    def test_a_forked_child_has_no_tokens(self, real_store: Store, spawn: Spawn) -> None:
        """Usable after `fork()`, where the child has no tokens; the parent goes on unharmed."""
        child = spawn()
        child.tell("token = begin(store, 'r'); work(store, token, 'a')")
        source = "answer = forked(lambda: [work(store, token, 'b').outcome, store.renew([token])[0].outcome])"
        assert ["lost", "lost"] == child.tell(source)
        assert [0, 1] == [record.sequence for record in real_store.read("r")]
        assert ["written", "kept"] == child.tell(
            "answer = [work(store, token, 'b').outcome, store.renew([token])[0].outcome]"
        )
        assert [0, 1, 2] == [record.sequence for record in real_store.read("r")]

    @requires(is_shared_between_processes=True, has_fork=True)
    def test_a_forked_child_is_another_owner(self, real_store: Store, spawn: Spawn) -> None:
        """The child never touches what it inherited: its parent's runs are live and locked to it."""
        child = spawn()
        child.tell("token = begin(store, 'r', lease=3600.0)")
        assert ["live", "locked"] == child.tell(
            "answer = forked(lambda: [store.get_run('r').lease, take(store, 'r').outcome])"
        )
        assert "ours" == child.tell("answer = store.get_run('r').lease")

    @requires(is_shared_between_processes=True, has_fork=True, sees_dead_processes=True)
    def test_a_forked_child_uses_the_store_by_itself(self, real_store: Store, spawn: Spawn) -> None:
        """Usable after `fork()`; the parent goes on unharmed when the child closes or just ends."""
        child = spawn()
        child.tell("token = begin(store, 'parent')")
        assert ["parent"] == child.tell("answer = forked(lambda: [info.run_id for info in store.list_runs()])")
        assert "written" == child.tell("answer = forked(lambda: work(store, begin(store, 'fork'), *'abc').outcome)")
        assert child.tell("answer = forked(lambda: store.close())") is None
        assert "written" == child.tell("answer = work(store, token, *'abc').outcome")
        assert {"parent", "fork"} == set(child.tell("answer = [info.run_id for info in store.list_runs()]"))
        for run_id in ("parent", "fork"):
            assert real_store.verify(run_id).ok
            assert [0, 1, 2, 3] == [record.sequence for record in real_store.read(run_id)]
        assert "dead" == real_store.get_run("fork").info.status

    @requires(is_shared_between_processes=True, has_fork=True)
    def test_a_fork_amid_writes_harms_neither(self, real_store: Store, spawn: Spawn) -> None:
        """Usable after `fork()`, whatever other threads of the parent do at that moment."""
        child = spawn()
        child.tell(
            "import threading\n"
            "def busy(n):\n"
            "    token = begin(store, f'busy {n}')\n"
            "    while not stop.is_set():\n"
            "        assert work(store, token, 'a').outcome == 'written'\n"
            "stop = threading.Event()\n"
            "threads = [threading.Thread(target=busy, args=(n,)) for n in range(4)]\n"
            "for thread in threads: thread.start()\n"
        )
        for n in range(5):
            assert 1 == child.tell("answer = forked(lambda: [store.save(name, 'a', b'1'), 1][1])", name=f"fork {n}")
        child.tell("stop.set()\nfor thread in threads: thread.join()")
        infos = real_store.list_runs()
        assert 9 == len(infos)
        assert all(real_store.verify(info.run_id).ok for info in infos)

    @requires(is_shared_between_processes=True)
    def test_of_two_processes_that_claim_from_one_reading_one_wins(self, real_store: Store, spawn: Spawn) -> None:
        """A reader with a stale view fails by the key."""
        children = [spawn(), spawn()]
        for n in range(10):
            run_id = f"r{n}"
            real_store.save(run_id, "a", b"1")
            for child in children:
                child.tell("wish = claim_of(store.latest(run_id))", run_id=run_id)
            for child in children:
                child.begin("answer = store.claim(wish).outcome")
            outcomes = Counter(child.answer() for child in children)
            assert 1 == outcomes["claimed"]
            assert 1 == outcomes["moved"] + outcomes["locked"]
            assert [1, 2] == [record.sequence for record in real_store.read(run_id)]

    @requires(is_shared_between_processes=True)
    def test_of_two_processes_that_create_one_id_one_wins(self, real_store: Store, spawn: Spawn) -> None:
        """Raises `RunExistsError` if the id is taken, whoever else creates it at the same time."""
        children = [spawn(), spawn()]
        for child in children:
            child.tell("from milepost.errors import RunExistsError")
        source = (
            "try: answer = begin(store, run_id).nonce and 'created'\nexcept RunExistsError as exc: answer = exc.status"
        )
        for n in range(10):
            for child in children:
                child.begin(source, run_id=f"r{n}")
            assert ["created", "running"] == sorted(child.answer() for child in children)
            assert [0] == [record.sequence for record in real_store.read(f"r{n}")]

    @requires(is_shared_between_processes=True)
    def test_processes_that_save_into_one_run_lose_nothing(self, real_store: Store, spawn: Spawn) -> None:
        """The record takes the next number and the next epoch in one write."""
        children = [spawn(), spawn(), spawn()]
        for n, child in enumerate(children):
            child.begin("for i in range(20): store.save('r', f'{n} {i}', b'x')", n=n)
        for child in children:
            child.answer()
        assert list(range(1, 61)) == [info.sequence for info in real_store.list("r")]
        assert real_store.verify("r").ok

    @requires(is_shared_between_processes=True)
    def test_processes_share_due_runs(self, real_store: Store, spawn: Spawn) -> None:
        """Each is claimed as by `claim`: no run is given to two workers."""
        for n in range(30):
            begin(real_store, f"r{n}", status="ready")
        children = [spawn(), spawn()]
        source = "answer = [row.info.run_id for _ in range(10) for _, row in store.claim_due(['orders'], 2)]"
        for child in children:
            child.begin(source)
        claimed = [run_id for child in children for run_id in child.answer()]
        assert (30, {f"r{n}" for n in range(30)}) == (len(claimed), set(claimed))

    @requires(is_shared_between_processes=True)
    def test_several_processes_set_up_one_store_at_once(self, tmp_path: Path) -> None:
        """Usable from several processes, from the first use on."""
        source = self.child_source(tmp_path)
        children = [Child() for _ in range(5)]
        try:
            for child in children:
                child.tell("pass")
            for n, child in enumerate(children):
                child.begin(
                    f"{source}\nstore.save(f'r{{n}}', 'a', b'1')\nanswer = work(store, begin(store, f's{{n}}'), 'a')",
                    n=n,
                )
            assert [["written", None]] * 5 == [child.answer() for child in children]
            assert 10 == children[0].tell("answer = len(store.list_runs())")
        finally:
            for child in children:
                child.kill()
