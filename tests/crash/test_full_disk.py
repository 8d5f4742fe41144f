"""A disk that is full: the run stops before its next node, nothing saved is lost, and it goes on when there is room.

Once by a small disk of the test's own, where the user may mount one, and once by a limit to the size of files, which
every user can set.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from media import MEDIA, Count, add_bystanders, call, every_medium, in_process, line, told

from milepost import StoreError
from milepost.errors import CheckpointWriteError
from milepost.events import CheckpointFailed

Deed = Callable[[], object]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("this system has no program to mount a small disk")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "small", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small disk: {mounted.stderr.splitlines()[0]}")
    yield folder
    # Lazily, for a test that failed may have left files open.
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    """Take all the room that a disk has left."""
    with open(folder / "filler", "ab", buffering=0) as filler:
        for size in (65536, 4096, 1):
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                while True:
                    filler.write(b"x" * size)


def make_room(folder: Path) -> None:
    (folder / "filler").unlink(missing_ok=True)


def meet_a_full_disk(
    medium: str, folder: Path, is_async: bool, is_lasting: bool, fill: Deed, make_room: Deed
) -> list[str]:
    """A run whose disk is full at the save after its second node, for this one save or lastingly; which nodes ran."""
    with MEDIA[medium](folder) as store:
        others = add_bystanders(store)
        log: list[str] = []
        to_do = [fill]
        graph = line(log, b=lambda: to_do and to_do.pop()())

        def watch(event: Any) -> None:
            if isinstance(event, CheckpointFailed) and not is_lasting:
                make_room()

        with pytest.raises(CheckpointWriteError, match="node 'b' of run 'r'") as caught:
            call(graph, "run", Count(), is_async=is_async, store=store, run_id="r", hooks=[watch])
        assert ("r", "b", Count(1)) == (caught.value.run_id, caught.value.node_id, caught.value.state)
        assert isinstance(caught.value.__cause__, StoreError)
        assert ["a", "b"] == log
        if is_lasting:
            with pytest.raises(StoreError):
                call(graph, "resume", store, "r", is_async=is_async)
            with pytest.raises(CheckpointWriteError, match="nothing has run"):
                call(graph, "run", Count(), is_async=is_async, store=store, run_id="new")
            assert ["a", "b"] == log
        assert ["a"] == [info.node_id for info in store.list("r")]
        assert b'"state":{"n":1}' in store.load("r", "a")
        assert ("failed", "running")[is_lasting] == store.get_run("r").info.status
        assert others == told(store)
        make_room()
        assert Count(4) == call(graph, "resume", store, "r", is_async=is_async)
        assert others == told(store)
        assert store.verify("r").ok
        assert 0 == store.get_run("r").info.crash_count
    return log


@every_medium
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "lasting"])
def test_a_run_stops_before_its_next_node_when_the_disk_is_full_and_goes_on_when_there_is_room(
    medium: str, disk: Path, is_async: bool, is_lasting: bool
) -> None:
    ran = meet_a_full_disk(medium, disk, is_async, is_lasting, lambda: fill(disk), lambda: make_room(disk))
    assert list("abbcd") == ran


@every_medium
def test_a_store_that_is_opened_and_closed_on_a_full_disk_loses_nothing(medium: str, disk: Path) -> None:
    fill(disk)
    with pytest.raises(StoreError, match=str(disk)), MEDIA[medium](disk) as store:
        store.save("r", "a", b"1")
    make_room(disk)
    store = MEDIA[medium](disk)
    others = add_bystanders(store)
    fill(disk)
    store.close()
    with MEDIA[medium](disk) as store:
        assert others == told(store)
        with pytest.raises(StoreError):
            store.save("r", "a", b"1" * 50_000)
        make_room(disk)
        store.save("r", "a", b"1" * 50_000)
        assert others == told(store)


# -- no larger files ---------------------------------------------------------------------------------------


def let_files_be_no_larger_than(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def meet_a_limit(medium: str, place: str) -> list[list[str]]:
    """Two ways through a disk on which no file may have more than a byte."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    ran = []
    for is_async, is_lasting in ((False, True), (True, False)):
        folder = Path(place, f"{is_async}")
        folder.mkdir()
        limits = partial(let_files_be_no_larger_than, 1), partial(let_files_be_no_larger_than, unlimited)
        ran.append(meet_a_full_disk(medium, folder, is_async, is_lasting, *limits))
    return ran


def end_with_a_full_disk(medium: str, place: str) -> list[str]:
    """A process whose disk is full after the second node of a run, and still is when it ends."""
    log: list[str] = []
    graph = line(log, b=lambda: let_files_be_no_larger_than(1))
    with MEDIA[medium](place) as store:
        add_bystanders(store)
        with pytest.raises(CheckpointWriteError):
            graph.run(Count(), store=store, run_id="r")
    return log


@every_medium
def test_a_run_stops_where_files_may_not_grow_and_goes_on_when_they_may(medium: str, tmp_path: Path) -> None:
    assert [list("abbcd")] * 2 == in_process(meet_a_limit, medium, str(tmp_path))


@every_medium
def test_another_process_goes_on_with_a_run_whose_process_ended_with_a_full_disk(medium: str, tmp_path: Path) -> None:
    assert ["a", "b"] == in_process(end_with_a_full_disk, medium, str(tmp_path))
    log: list[str] = []
    with MEDIA[medium](tmp_path) as store:
        assert 3 == len(told(store))
        assert "dead" == store.get_run("r").info.status
        assert Count(4) == line(log).resume(store, "r")
        assert store.verify("r").ok
    assert list("bcd") == log
