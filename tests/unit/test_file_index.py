"""A long journal in files: found by node, visit, kind and number without reading it all, whatever became of the index."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.model.record import CHECKPOINT, FAILURE, Record
from milepost.store import Release
from milepost.stores.file.store import FileStore
from milepost.stores.memory import MemoryStore
from milepost.testing import FakeClock
from milepost.testing.clock import fake_entropy
from milepost.testing.journals import begin, checkpoint, failure, take, write
from thoroughness import examples

LENGTH = 1100


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryStore]:
    """One journal of 1100 commits in a folder and in memory, with visits in no order of nodes, failures and signals."""
    root, source = tmp_path_factory.mktemp("journals") / "runs", random.Random(5)
    memory, clock = MemoryStore(clock=FakeClock(), entropy=fake_entropy), FakeClock()
    with pytest.MonkeyPatch.context() as patch, FileStore(root, clock=clock, entropy=fake_entropy) as files:
        patch.setattr("os.fsync", lambda descriptor: None)  # nobody pulls the plug here
        tokens = [begin(store, "r") for store in (files, memory)]
        visits: dict[str, int] = {}
        sequence = 1
        for n in range(LENGTH):
            records: list[Record] = []
            for _ in range(source.choice((1, 1, 1, 1, 2, 5))):
                node_id = source.choice("abc" if n > 100 else "abcdefgh")
                visit = visits.get(node_id, 0) + 1
                if source.random() < 0.2:
                    records.append(failure("r", sequence, node_id, visit=visit))
                else:
                    records.append(checkpoint("r", sequence, node_id, visit=visit, state=b"%d" % sequence))
                    visits[node_id] = visit
                sequence += 1
            for store, token in zip((files, memory), tokens, strict=True):
                assert "written" == write(store, token, *records).outcome
                if n % 97 == 0:
                    store.put_signal("r", "go", b"%d" % n)
        for store, token in zip((files, memory), tokens, strict=True):
            store.release(token, Release("interrupted"))
            live = (("", 0, 300), ("", sequence, None))
            claimed = take(store, "r", live=live)
            assert claimed.token is not None
            write(store, claimed.token, checkpoint("r", sequence + 1, "last"), release=Release("interrupted"))
    return root, memory


def shorn(root: Path, fraction: float, deed: Callable[[Path], object]) -> None:
    """Do something to a part of the index's files."""
    source = random.Random(7)
    for path in sorted(root.rglob("block-*")):
        if source.random() < fraction:
            deed(path)


DEEDS: dict[str, Callable[[Path], None]] = {
    "whole": lambda root: None,
    "without some blocks": lambda root: shorn(root, 0.4, Path.unlink),
    "torn": lambda root: shorn(root, 0.4, lambda path: path.write_bytes(path.read_bytes()[:-7])),
    "foreign": lambda root: shorn(root, 0.4, lambda path: path.write_bytes(b"[1]")),
    "without": lambda root: shorn(root, 1.0, Path.unlink),
}


@pytest.fixture(params=DEEDS.values(), ids=DEEDS.keys())
def found(request: pytest.FixtureRequest, journals: tuple[Path, MemoryStore], tmp_path: Path) -> Iterator[FileStore]:
    place = tmp_path / "runs"
    shutil.copytree(journals[0], place, copy_function=os.link)
    for path in place.rglob("block-*"):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    request.param(place)
    with FileStore(place, clock=FakeClock()) as store:
        yield store


def test_a_long_journal_is_read_as_from_memory(found: FileStore, journals: tuple[Path, MemoryStore]) -> None:
    memory, source = journals[1], random.Random(11)
    ids = (None, "", "a", "c", "d", "h", "never")
    kinds = (None, (CHECKPOINT,), (FAILURE,), ("owner", "start"), ("none",))
    newest = memory.latest("r").newest
    for _ in range(examples(60)):
        after = source.choice((-1, source.randrange(newest)))
        options: dict[str, Any] = {
            "after": after,
            "before": source.choice((None, after + source.randrange(400))),
            "node_id": source.choice(ids),
            "kinds": source.choice(kinds),
            "newest": source.random() < 0.5,
            "limit": source.choice((None, 1, 3)),
        }
        assert memory.read("r", **options) == found.read("r", **options)
    for before in (None, 1, 2, 250, 302, 900):
        assert (
            memory.latest("r", before=before, with_nodes=True)[1:]
            == found.latest("r", before=before, with_nodes=True)[1:]
        )
    assert memory.signals("r") == found.signals("r")
    assert memory.signals("r", after=9) == found.signals("r", after=9)


def test_every_node_and_visit_is_found(found: FileStore, journals: tuple[Path, MemoryStore]) -> None:
    memory = journals[1]
    for node_id in "abeh":
        assert memory.load("r", node_id) == found.load("r", node_id)
        for visit in (1, 2, 3, 50):
            try:
                expected = memory.load("r", node_id, visit)
            except LookupError:
                with pytest.raises(LookupError):
                    found.load("r", node_id, visit)
            else:
                assert expected == found.load("r", node_id, visit)
    assert memory.list("r") == found.list("r")


@pytest.mark.parametrize(
    ("verb", "most"),
    [
        (lambda store: store.get_run("r"), 8),
        (lambda store: store.latest("r"), 40),
        (lambda store: store.load("r", "h", 1), 120),
        (lambda store: store.load("r", "a", 40), 120),
        (lambda store: store.read("r", kinds=("start",)), 120),
        (lambda store: store.read("r", node_id="never"), 60),
        (lambda store: store.read("r", after=900, before=903), 30),
        (lambda store: store.latest("r", with_nodes=True), 400),
    ],
)
def test_a_store_that_knows_nothing_yet_opens_few_files_of_a_long_journal(
    journals: tuple[Path, MemoryStore], monkeypatch: pytest.MonkeyPatch, verb: Callable[[FileStore], object], most: int
) -> None:
    with FileStore(journals[0], clock=FakeClock()) as store:
        opened = []
        os_open = os.open

        def counting(path: str, *args: Any, **options: Any) -> int:
            opened.append(path)
            return os_open(path, *args, **options)

        monkeypatch.setattr("os.open", counting)
        monkeypatch.setattr("os.listdir", None)
        monkeypatch.setattr("os.scandir", None)
        verb(store)
        assert len(opened) < most


def test_whoever_goes_on_completes_the_blocks_of_those_before(
    journals: tuple[Path, MemoryStore], tmp_path: Path
) -> None:
    shutil.copytree(journals[0], tmp_path / "runs")
    shorn(tmp_path, 0.5, Path.unlink)
    with FileStore(tmp_path / "runs", clock=FakeClock()) as store:
        token = take(store, "r").token
        assert token is not None
        for _ in range(256):
            newest = store.latest("r").newest
            assert "written" == write(store, token, checkpoint("r", newest + 1, "z")).outcome
        assert store.load("r", "z")
    names = {path.name.partition("-")[2] for path in tmp_path.rglob("block-2-*")}
    assert "2-000000000004" in names
