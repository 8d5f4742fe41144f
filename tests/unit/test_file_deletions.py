"""Records of a run in files that build on one another, while several processes delete some of them."""

from __future__ import annotations

import os
import random
import shutil
from threading import Thread

from milepost.model.record import CHECKPOINT
from milepost.store import Release
from milepost.stores.file import write as write_module
from milepost.stores.file.store import FileStore
from milepost.testing.chats import chat, state_of
from milepost.testing.journals import begin, checkpoint, write


def test_two_that_delete_at_once_leave_whole_what_is_left(tmp_path):
    stores = [FileStore(tmp_path / "runs") for _ in range(2)]
    for number in range(8):
        run_id, chance = f"r{number}", random.Random(number)
        nodes = [chance.choice("abcd") for _ in range(60)]
        token = begin(stores[0], run_id, state=chat(20))
        for n, node_id in enumerate(nodes, 1):
            write(stores[0], token, checkpoint(run_id, n, node_id, visit=n, state=chat(20 + n)))
        write(stores[0], token, release=Release("interrupted"))
        threads = [Thread(target=store.delete, args=(run_id, node)) for store, node in zip(stores, "bc", strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = [n for n, node_id in enumerate(nodes, 1) if node_id in "ad"]
        assert left == [record.sequence for record in stores[0].read(run_id, kinds=(CHECKPOINT,))]
        assert all(chat(20 + n) == state_of(stores[0], run_id, n) for n in left)


def test_a_copy_in_the_order_of_names_is_whole_whatever_is_deleted_meanwhile(tmp_path, monkeypatch):
    """Whoever copies has listed the files before the deletion, and reads each of them at some moment of it."""
    root, copy = tmp_path / "runs", tmp_path / "copy"
    with FileStore(root) as store:
        token = begin(store, "r", state=chat(20))
        for n in range(1, 13):
            write(store, token, checkpoint("r", n, "a" if n > 7 else "b", visit=n, state=chat(20 + n)))
        write(store, token, release=Release("interrupted"))
        paths = sorted(path for path in (root / "r").rglob("*") if path.is_file())
        moments = [[path.read_bytes() for path in paths]]

        def watched(call):
            def instead(*args):
                call(*args)
                moments.append([path.read_bytes() for path in paths])

            return instead

        with monkeypatch.context() as patch:
            for name in ("replace", "link"):
                patch.setattr(os, name, watched(getattr(os, name)))
            store.delete("r", "b")
    assert 1 + 1 + 1 + 7 == len(moments)  # as it was, a record rewritten, the commit, seven emptied
    before = moments[0]
    for meanwhile in moments[1:]:
        for cut in range(0, len(paths), 5):
            shutil.rmtree(copy, ignore_errors=True)
            for path, data in zip(paths, [*before[:cut], *meanwhile[cut:]], strict=True):
                place = copy / path.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            with FileStore(copy) as store:
                assert store.verify("r").ok
                numbers = [record.sequence for record in store.read("r", kinds=(CHECKPOINT,))]
                assert {8, 9, 10, 11, 12} <= {*numbers}
                assert all(chat(20 + n) == state_of(store, "r", n) for n in numbers)


def test_another_process_may_remove_what_is_left_of_a_deleted_run_before_its_deletion_is_synced(tmp_path, monkeypatch):
    def sync(folder):
        if "begun" in folders:
            folders.append(folder)
            shutil.rmtree(folder, ignore_errors=True)
        original(folder)

    folders: list[str] = []
    original = write_module.sync_folder
    monkeypatch.setattr(write_module, "sync_folder", sync)
    store = FileStore(tmp_path / "runs")
    begin(store, "r")
    folders.append("begun")
    store.delete_run("r", force=True)
    assert [] == store.list_runs()
    assert len(folders) > 1
