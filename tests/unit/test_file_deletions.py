"""Records of a run in files that build on one another, while several processes delete some of them."""

from __future__ import annotations

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
