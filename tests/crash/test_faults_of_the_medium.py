"""What a machine does to a store that works: rights are taken away, files run out, others lock, clocks jump, processes
fork and threads crowd. Each ends in an error of ours at most, and all goes on when the cause is gone.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from media import MEDIA, Count, add_bystanders, every_medium, in_process, line, told

from milepost import (
    CheckpointNotFoundError,
    Engine,
    LeaseLost,
    RunLockedError,
    RunNotFoundError,
    SQLiteStore,
    Store,
    StoreError,
)
from milepost.errors import CheckpointWriteError, RunStopped
from milepost.stores.sqlite import schema as sqlite_schema
from milepost.testing import FakeClock
from milepost.testing.children import Child

NOBODY = 65534


# -- rights ------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def set_rights(folder: Path, of_files: int, of_folders: int) -> None:
    """Give all files and folders from `folder` down these rights."""
    folder.chmod(0o700)
    for path in folder.iterdir():
        if path.is_dir():
            set_rights(path, of_files, of_folders)
        else:
            path.chmod(of_files)
    folder.chmod(of_folders)


def lose_the_rights(medium: str, place: str) -> list[str]:
    """A user who may not write, then not even read, where its runs are, and then may again; which nodes ran."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    folder = Path(place, "mine")
    folder.mkdir()
    log: list[str] = []
    graph = line(log)
    with MEDIA[medium](folder) as store:
        others = add_bystanders(store)
        with pytest.raises(RunStopped):
            graph.run(Count(), store=store, run_id="r", stop_after="b")
    before = contents(folder)
    for of_files, of_folders in ((0o400, 0o500), (0o600, 0o500), (0o000, 0o700), (0o600, 0o000)):
        set_rights(folder, of_files, of_folders)
        with pytest.raises(StoreError, match=str(folder)), MEDIA[medium](folder) as store:
            graph.resume(store, "r")
        set_rights(folder, 0o600, 0o700)
        assert before == contents(folder)
    assert ["a", "b"] == log
    with MEDIA[medium](folder) as store:
        assert Count(4) == graph.resume(store, "r")
        assert others == told(store)
    return log


def lose_the_rights_meanwhile(medium: str, place: str) -> list[str]:
    """A user who may not write any more where a run is that goes on; which nodes ran."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    folder = Path(place, "mine")
    folder.mkdir()
    log: list[str] = []
    deeds = [lambda: set_rights(folder, 0o400, 0o500)]
    graph = line(log, b=lambda: deeds and deeds.pop()())
    with MEDIA[medium](folder) as store:
        others = add_bystanders(store)
        with suppress(CheckpointWriteError):  # who has the file open may write to it all the same
            graph.run(Count(), store=store, run_id="r")
        assert others == told(store)
        with suppress(CheckpointWriteError):
            line([]).run(Count(), store=store, run_id="s")
        set_rights(folder, 0o600, 0o700)
        assert Count(4) == graph.resume(store, "r")
        assert others == told(store)
        assert store.verify("r").ok
    return log


def look_while_read_only(place: str) -> list[str]:
    """A user who looks into a file that may not be written, dies, and goes on with a run when the file may be written."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    file = Path(place, "runs.db")
    log: list[str] = []
    graph = line(log)
    with SQLiteStore(file) as store, pytest.raises(RunStopped):
        graph.run(Count(), store=store, run_id="r", stop_after="b")
    file.chmod(0o400)
    child = os.fork()
    if not child:
        assert ["r"] == [info.run_id for info in SQLiteStore(file).list_runs()]
        os._exit(0)
    assert 0 == os.waitpid(child, 0)[1]
    file.chmod(0o600)
    with SQLiteStore(file) as store:
        assert Count(4) == graph.resume(store, "r")
    return log


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@every_medium
def test_rights_that_are_missing_are_a_store_error_and_the_run_goes_on_when_they_are_back(
    medium: str, public_folder: Path
) -> None:
    assert list("abcd") == in_process(lose_the_rights, medium, str(public_folder))


def test_what_was_only_looked_at_while_it_could_not_be_written_can_be_written_when_it_may(public_folder: Path) -> None:
    assert list("abcd") == in_process(look_while_read_only, str(public_folder))


@every_medium
def test_rights_that_are_taken_away_from_an_open_store_cost_no_more_than_the_node_at_work(
    medium: str, public_folder: Path
) -> None:
    assert in_process(lose_the_rights_meanwhile, medium, str(public_folder)) in (list("abcd"), list("abbcd"))


# -- open files --------------------------------------------------------------------------------------------


def run_out_of_files(medium: str, place: str) -> list[str]:
    """A process that can open few further files or none, and then can again; which nodes ran."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken: list[int] = []

    def take_all() -> None:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    def give_back(number: int) -> None:
        for _ in range(number):
            os.close(taken.pop())

    log: list[str] = []
    deeds = [take_all]
    graph = line(log, b=lambda: deeds and deeds.pop()())
    done: list[str] = []
    refused: list[str] = []
    before = len(os.listdir("/dev/fd"))
    with MEDIA[medium](place) as store:
        others = add_bystanders(store)
        with pytest.raises((CheckpointWriteError, RunStopped)):  # who has all files open that it needs goes on
            graph.run(Count(), store=store, run_id="r", stop_after="b")
        give_back(len(taken))
        for free in range(8):
            fresh = MEDIA[medium](place)
            verbs: dict[str, Callable[..., object]] = {
                "open": lambda: MEDIA[medium](place).close(),
                "list": fresh.list_runs,
                "load": lambda fresh=fresh: fresh.load("done", "a"),
                "save": lambda fresh=fresh: fresh.save("s", "a", b"1"),
                "run": lambda fresh=fresh, free=free: line([]).run(Count(), store=fresh, run_id=f"new {free}"),
            }
            take_all()
            give_back(free)
            for name, verb in verbs.items():
                try:
                    verb()
                except StoreError:
                    refused.append(name)
                else:
                    done.append(name)
            give_back(len(taken))
            fresh.close()
        assert "open" in refused
        assert set(verbs) == set(done)
        assert done.count("save") == len(store.history("s"))
        assert Count(4) == graph.resume(store, "r")
        assert others == told(store)
    assert before == len(os.listdir("/dev/fd"))
    return log


@every_medium
def test_a_process_without_open_files_left_gets_store_errors_and_goes_on_when_it_has_some(
    medium: str, tmp_path: Path
) -> None:
    assert in_process(run_out_of_files, medium, str(tmp_path)) in (list("abcd"), list("abbcd"))


# -- locks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_lock_of_another_program_stops_the_run_and_a_resume_goes_on_when_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr(sqlite_schema, "BUSY_SECONDS", 0.05)
    path = tmp_path / "runs.db"
    log: list[str] = []
    with SQLiteStore(path) as store, Child() as locker:
        source = "import sqlite3; other = sqlite3.connect(path, isolation_level=None); other.execute(lock)"
        deeds = [lambda: locker.tell(source, path=str(path), lock=lock)]
        graph = line(log, b=lambda: deeds and deeds.pop()())
        others = add_bystanders(store)
        with pytest.raises(CheckpointWriteError, match=r"node 'b' of run 'r'.*locked"):
            graph.run(Count(), store=store, run_id="r")
        with pytest.raises(StoreError, match="locked"):
            graph.resume(store, "r")
        with pytest.raises(CheckpointWriteError, match="nothing has run"):
            graph.run(Count(), store=store, run_id="new")
        assert others == told(store)
        with SQLiteStore(path) as opened:
            assert others == told(opened)
        assert ["a", "b"] == log
        locker.kill()
        assert Count(4) == graph.resume(store, "r")
        assert list("abbcd") == log
        assert others == told(store)


# -- clocks ------------------------------------------------------------------------------------------------


@every_medium
def test_a_clock_that_jumps_back_between_saves_changes_no_order(medium: str, tmp_path: Path) -> None:
    clock = FakeClock()

    def back() -> None:
        clock.set(clock.now() - timedelta(hours=1))

    log: list[str] = []
    graph = line(log, a=back, b=back, c=back, d=back)
    with MEDIA[medium](tmp_path, clock=clock) as store:
        with pytest.raises(RunStopped):
            Engine(store, clock=clock).run(graph, Count(), run_id="r", stop_after="c")
        infos = store.list("r")
        assert list("abc") == [info.node_id for info in infos]
        assert infos[0].timestamp > infos[1].timestamp > infos[2].timestamp
        assert "d" == store.get_run("r").info.next_node
        for number in range(3):
            back()
            store.save("outside", "a", b"%d" % number)
        assert b"2" == store.load("outside", "a")
        assert [1, 2, 3] == [info.visit for info in store.history("outside")]
        assert {"outside", "r"} == {info.run_id for info in store.list_runs()}
    with MEDIA[medium](tmp_path, clock=clock) as store:
        engine = Engine(store, clock=clock)
        assert Count(4) == engine.resume(graph, "r")
        assert Count(3) == engine.resume_from(graph, "r", "a", stop_after="c", full=True).state
        assert Count(4) == engine.resume(graph, "r")
        assert store.verify("r").ok
    assert list("abcdbcd") == log


@every_medium
def test_an_owner_that_is_overtaken_after_the_clock_jumped_back_starts_no_further_node(
    medium: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    log: list[str] = []
    with MEDIA[medium](tmp_path, clock=clock) as store, MEDIA[medium](tmp_path, clock=clock) as other:
        thief = Engine(other, clock=clock)

        def overtake() -> None:
            with pytest.raises(RunLockedError):
                thief.resume(line(log), "r")
            clock.set(clock.now() - timedelta(hours=1))
            assert Count(4) == thief.resume(line(log), "r")

        with pytest.raises(LeaseLost):
            Engine(store, clock=clock).run(line(log, b=overtake), Count(), run_id="r")
        assert [True] == [record.fields()["crashed"] for record in store.read("r", kinds=("owner",))]
        assert "finished" == store.get_run("r").info.status
        assert store.verify("r").ok
    assert list("abbcd") == log


# -- forks -------------------------------------------------------------------------------------------------


def fork_within_a_node(medium: str, place: str) -> list[str]:
    """A node that forks, so that a run goes on in two processes; which nodes ran in the first."""
    warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: of a fork beside threads
    log: list[str] = []
    forked: list[int] = []

    def fork() -> None:
        forked.append(os.fork())

    def wait() -> None:
        assert 0 == os.waitpid(forked[0], 0)[1]

    graph = line(log, b=fork, c=wait)
    with MEDIA[medium](place) as store:
        others = add_bystanders(store)
        try:
            assert Count(4) == graph.run(Count(), store=store, run_id="r")
        except LeaseLost:
            if not forked[0]:
                _live_in_a_fork(store)
            raise
        finally:
            if not forked[0]:
                os._exit(1)
        assert others == told(store)
        assert "finished" == store.get_run("child's").info.status
        assert all(store.verify(run_id).ok for run_id in ("r", "child's"))
        assert [0, 1, 2, 3, 4, 5] == [record.sequence for record in store.read("r")]
    return log


def _live_in_a_fork(store: Store) -> None:
    with pytest.raises(RunLockedError):
        line([]).resume(store, "r")
    assert Count(4) == line([]).run(Count(), store=store, run_id="child's")
    store.close()
    os._exit(0)


@every_medium
def test_of_two_processes_that_a_node_forks_into_one_goes_on_and_both_use_the_store(
    medium: str, tmp_path: Path
) -> None:
    assert list("abcd") == in_process(fork_within_a_node, medium, str(tmp_path))


# -- crowds ------------------------------------------------------------------------------------------------

THREADS = 50
OPERATIONS = 20


class Crowd:
    """Threads that do anything to one store at once, and what it acknowledged."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.saved: dict[str, list[bytes]] = {}
        self.signals: set[str] = set()
        self.runs: set[str] = set()

    def live(self, number: int) -> None:
        """One thread's operations, the same each time by its number."""
        draw = random.Random(number)
        verbs = (self._save, self._save, self._signal, self._run, self._read, self._delete, self._list)
        for operation in range(OPERATIONS):
            draw.choice(verbs)(f"{number} {operation}", draw)

    def _save(self, name: str, draw: random.Random) -> None:
        node_id = draw.choice("xyz")
        self._store.save("shared", node_id, name.encode())
        with self._lock:
            self.saved.setdefault(node_id, []).append(name.encode())

    def _signal(self, name: str, draw: random.Random) -> None:
        assert "kept" == self._store.put_signal("shared", "mail", name.encode(), signal_id=name)
        with self._lock:
            self.signals.add(name)

    def _run(self, name: str, draw: random.Random) -> None:
        stop = draw.choice(["a", ()])
        with suppress(RunStopped):
            line([], "ab").run(Count(), store=self._store, run_id=name, stop_after=stop)
        if stop:
            assert Count(2) == line([], "ab").resume(self._store, name)
        with self._lock:
            self.runs.add(name)

    def _read(self, name: str, draw: random.Random) -> None:
        with suppress(CheckpointNotFoundError):
            assert b" " in self._store.load("shared", draw.choice("xyz"))
        sequences = [info.sequence for info in self._store.history("shared")]
        assert sorted(sequences) == sequences

    def _delete(self, name: str, draw: random.Random) -> None:
        self._store.save(f"gone {name}", "a", b"1")
        self._store.delete(f"gone {name}", "a")
        self._store.save(f"gone {name}", "a", b"2")
        assert b"2" == self._store.load(f"gone {name}", "a")
        self._store.delete_run(f"gone {name}")

    def _list(self, name: str, draw: random.Random) -> None:
        assert 10 >= len(self._store.list_runs(limit=10)) > 0
        with pytest.raises(RunNotFoundError):
            self._store.get_run(f"none {name}")


@every_medium
def test_50_threads_that_do_anything_to_one_store_lose_nothing_of_what_it_acknowledged(
    medium: str, tmp_path: Path
) -> None:
    with MEDIA[medium](tmp_path) as store:
        store.save("shared", "first", b"of all")
        crowd = Crowd(store)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(crowd.live, range(THREADS)))
    with MEDIA[medium](tmp_path) as store:
        infos = [info for info in store.history("shared") if info.node_id != "first"]
        for node_id, saved in crowd.saved.items():
            visits = [info.visit for info in infos if info.node_id == node_id]
            assert list(range(1, len(saved) + 1)) == visits
            assert sorted(saved) == sorted(store.load("shared", node_id, visit) for visit in visits)
        assert list(range(2, len(infos) + 2)) == [info.sequence for info in infos]
        assert sorted(crowd.signals) == sorted(str(signal.signal_id) for signal in store.signals("shared"))
        assert crowd.runs | {"shared"} == {info.run_id for info in store.list_runs(limit=2000)}
        assert {"finished"} == {store.get_run(run_id).info.status for run_id in crowd.runs}
        assert all(store.verify(run_id).ok for run_id in crowd.runs | {"shared"})
