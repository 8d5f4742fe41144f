"""The power fails at each step that a store of files takes: what was promised is there, and each write is whole or not.

Each test runs in a process of its own, for a process that is watched is watched to its end.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disk import Disk, put
from media import MEDIA, in_process

from milepost import Store
from milepost.store import Release
from milepost.testing.journals import begin, finish, take, work, write

MADE_OF_FILES = sorted(set(MEDIA) - {"sqlite"})
"""What SQLite does to its files is not seen from here; see the other tests of a loss of power."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells which file a descriptor is of")


def save(folder: Path, number: int, forgotten: str) -> None:
    """Make a file durable, but for one call that is forgotten."""
    with open(folder / "new", "wb") as file:
        file.write(b"%d" % number)
        file.flush()
        if forgotten != "file":
            os.fsync(file.fileno())
    os.link(folder / "new", folder / f"{number}")
    if forgotten != "folder":
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    os.unlink(folder / "new")


def lost_of(forgotten: str, place: str) -> list[int]:
    """Of three files that are saved one after the other: which may be lost after they were."""
    folder = Path(place)
    disk = Disk(folder)
    for number in range(3):
        save(folder, number, forgotten)
        disk.acknowledged = number + 1
    disk.end()
    lost = set[int]()
    for moment in disk.moments:
        for left in moment.survivors(random.Random(0), 5):
            lost |= {number for number in range(moment.acknowledged) if left.get(f"{number}") != b"%d" % number}
    return sorted(lost)


@pytest.mark.parametrize(("forgotten", "lost"), [("nothing", []), ("file", [0, 1, 2]), ("folder", [0, 1, 2])])
def test_what_was_not_brought_to_the_disk_may_be_lost(forgotten: str, lost: list[int], tmp_path: Path) -> None:
    assert lost == in_process(lost_of, forgotten, str(tmp_path))


# -- stores ------------------------------------------------------------------------------------------------

State = dict[str, tuple[Any, ...]]
"""What a store tells of each run."""


def state_of(store: Store) -> State:
    state = State()
    for info in store.list_runs():
        assert store.verify(info.run_id).ok
        status = {"dead": "running"}.get(info.status, info.status)
        state[info.run_id] = (status, dict(info.tags), store.read(info.run_id), store.signals(info.run_id))
    return state


def deeds(store: Store) -> list[Callable[[], object]]:
    """Each kind of write, one after the other."""
    owned = {}

    def own(run_id: str) -> None:
        owned[run_id] = begin(store, run_id, tags={"customer": "17"})

    return [
        lambda: own("r"),
        lambda: work(store, owned["r"], "a"),
        lambda: work(store, owned["r"], "b", "c"),
        lambda: store.put_signal("r", "go", b"1", signal_id="first"),
        lambda: store.save("s", "a", b"anything"),
        lambda: store.save("s", "a", b'{"n":1}'),
        lambda: write(store, owned["r"], finish("r", 4), release=Release("finished")),
        lambda: take(store, "r"),
        lambda: store.request_cancel("r", "no more"),
        lambda: own("t"),
        *[lambda: work(store, owned["t"], "a", "b") for _ in range(15)],
        lambda: store.delete("s", "a"),
        lambda: store.delete_run("s"),
        lambda: store.save("s", "b", b"again"),
    ]


def lose_power(medium: str, place: str, mixtures: int) -> int:
    """Do all deeds, and look at each state in which the disk may have been meanwhile; at how many."""
    folder, copy = Path(place, "place"), Path(place, "copy")
    folder.mkdir()
    disk = Disk(folder)
    with MEDIA[medium](folder) as store:
        states = [state_of(store)]
        for deed in deeds(store):
            deed()
            states.append(state_of(store))
            disk.acknowledged += 1
    disk.end()
    os.fsync = lambda fd: None  # the copies need not last
    draw = random.Random(mixtures)
    seen = set[int]()
    for number, moment in enumerate(disk.moments):
        before, after = states[moment.acknowledged], states[min(moment.acknowledged + 1, len(states) - 1)]
        for left in moment.survivors(draw, mixtures):
            known = hash((moment.acknowledged, *sorted(left.items())))
            if known in seen:
                continue
            seen.add(known)
            put(copy, left)
            with MEDIA[medium](copy) as store:
                found = state_of(store)
                for run_id in before.keys() | after.keys() | found.keys():
                    told = (number, moment.step, moment.acknowledged, run_id)
                    assert found.get(run_id) in (before.get(run_id), after.get(run_id)), told
                if len(seen) % 4 == 0:
                    _go_on(store, found)
    return len(seen)


def _go_on(store: Store, found: State) -> None:
    """Write to each run and to a new one."""
    for run_id in found:
        claimed = take(store, run_id, takeover=True)
        assert claimed.token is not None
        assert "written" == work(store, claimed.token, "later").outcome
    assert "written" == work(store, begin(store, "new"), "a").outcome
    assert all(store.verify(run_id).ok for run_id in (*found, "new"))


@pytest.mark.parametrize("medium", MADE_OF_FILES)
@pytest.mark.parametrize("mixtures", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_after_a_loss_of_power_at_any_step_each_write_is_there_or_not_and_all_that_were_promised(
    medium: str, mixtures: int, tmp_path: Path
) -> None:
    assert in_process(lose_power, medium, str(tmp_path), mixtures) > 100


SIGNED = {"signing_key": {"s": b"signing key, 24 bytes..."}, "allow_unsealed": True}


def lose_power_while_sealing(medium: str, place: str, mixtures: int) -> int:
    """Seal a run that was begun without keys. Read it and seal it again from each state in which the disk may have been."""
    folder, copy = Path(place, "place"), Path(place, "copy")
    folder.mkdir()
    disk = Disk(folder)
    with MEDIA[medium](folder) as store:
        token = begin(store, "r")
        for node_id in "abc":
            work(store, token, node_id)
            store.put_signal("r", "go", b"1")
        write(store, token, finish("r", 4), release=Release("finished"))
        before = [(r.sequence, r.kind, r.payload) for r in store.read("r")], store.signals("r")
    disk.moments.clear()
    with MEDIA[medium](folder, **SIGNED) as store:
        store.seal_run("r")
    disk.end()
    os.fsync = lambda fd: None  # the copies need not last
    draw = random.Random(mixtures)
    states = [left for moment in disk.moments for left in moment.survivors(draw, mixtures)]
    for left in states:
        put(copy, left)
        with MEDIA[medium](copy, **SIGNED) as store:
            assert store.verify("r").ok
            assert before == ([(r.sequence, r.kind, r.payload) for r in store.read("r")], store.signals("r"))
            store.seal_run("r")
        with MEDIA[medium](copy, signing_key=SIGNED["signing_key"]) as store:
            assert store.verify("r").ok
    return len(states)


@pytest.mark.parametrize("medium", MADE_OF_FILES)
def test_after_a_loss_of_power_at_any_step_a_run_that_was_being_sealed_is_read_and_sealed_again(
    medium: str, tmp_path: Path
) -> None:
    assert in_process(lose_power_while_sealing, medium, str(tmp_path), 2) > 100
