"""Many threads on one store object: every verb is thread-safe, and of threads that want the same thing one gets it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from milepost.errors import RunExistsError
from milepost.store import Append, Release, Store
from milepost.testing.contract.fence import outcomes_of
from milepost.testing.contract.subject import StoreUnderTest
from milepost.testing.journals import begin, checkpoint, claim_of, finish, work, write

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
