"""Several processes on one store: owners that are killed, frozen, forked or doubled, for real.

Every wait is for an answer of another process, or for what the store itself shows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.model.record import START
from milepost.store import Store, Token
from milepost.testing.children import Child
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, take, whole, work

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
        taken = [run_id for child in children for run_id in child.answer()]
        assert (30, {f"r{n}" for n in range(30)}) == (len(taken), set(taken))

    @requires(is_shared_between_processes=True)
    def test_8_processes_set_up_one_store_at_once(self, tmp_path: Path) -> None:
        """Usable from several processes, from the first use on."""
        source = self.child_source(tmp_path)
        children = [Child() for _ in range(8)]
        try:
            for child in children:
                child.tell("pass")
            for n, child in enumerate(children):
                child.begin(
                    f"{source}\nstore.save(f'r{{n}}', 'a', b'1')\nanswer = work(store, begin(store, f's{{n}}'), 'a')",
                    n=n,
                )
            assert [["written", None]] * 8 == [child.answer() for child in children]
            assert 16 == children[0].tell("answer = len(store.list_runs())")
        finally:
            for child in children:
                child.kill()
