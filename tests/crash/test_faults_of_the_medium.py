"""What a machine does to a store that works: rights are taken away, and files run out.

Each ends in an error of ours at most, and all goes on when the cause is gone.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from media import MEDIA, Count, add_bystanders, every_medium, in_process, line, told

from milepost import (
    SQLiteStore,
    StoreError,
)
from milepost.errors import CheckpointWriteError, RunStopped
from milepost.model.live import LiveBatch, LiveEvent
from milepost.model.workers import WorkerInfo

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


def try_all_without_rights(medium: str, place: str) -> list[str]:
    """A user who may not enter the folder of an open store any more: the verbs that say so and those that still answer."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    folder = Path(place, "mine")
    folder.mkdir()
    with MEDIA[medium](folder) as store:
        add_bystanders(store)
        now = datetime.now(UTC)
        info = WorkerInfo("w", "host", 1, now, now, {}, 1, 0)
        event = LiveEvent(1, 1, 0, now.timestamp(), "a", 1, 1, b"{}")
        verbs: dict[str, Callable[[], object]] = {
            "open": lambda: MEDIA[medium](folder).close(),
            "open to look": lambda: MEDIA[medium](folder, read_only=True).close(),
            "list": store.list_runs,
            "load": lambda: store.load("done", "a"),
            "save": lambda: store.save("s", "a", b"1"),
            "signal": lambda: store.put_signal("parked", "go", None),
            "write_live": lambda: store.write_live([LiveBatch("done", (event,))]),
            "read_live": lambda: store.read_live("done"),
            "beat": lambda: store.beat(info),
            "workers": store.workers,
            "pause": lambda: store.pause_schedule("nightly"),
            "pauses": store.paused_schedules,
        }
        folder.chmod(0)
        refused: list[str] = []
        for name, verb in verbs.items():
            try:
                verb()
            except StoreError:
                refused.append(name)
        folder.chmod(0o700)
    return refused


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


@every_medium
def test_every_verb_of_an_open_store_answers_or_raises_a_store_error_when_its_folder_may_not_be_entered(
    medium: str, public_folder: Path
) -> None:
    refused = in_process(try_all_without_rights, medium, str(public_folder))
    assert {"open", "open to look", "write_live", "beat", "workers"} <= set(refused)


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
