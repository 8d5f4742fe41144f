"""Processes that are killed or frozen between any two calls of a file store to its system."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import StoreError
from milepost.model.ids import this_process
from milepost.store import Append, Release, Store, Token
from milepost.stores.file import fs as file_locks
from milepost.stores.file.store import FileStore
from milepost.testing import FakeClock
from milepost.testing.children import Child, forked
from milepost.testing.journals import begin, checkpoint, finish, take, work, write

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are killed and frozen")

CALLS = ("open", "write", "fsync", "close", "link", "unlink", "rename", "replace", "mkdir", "rmdir", "utime")
"""What changes a file, a folder, or what of it is on the disk."""

MOMENT = FakeClock().now()


def open_store(root: Path, **keys: Any) -> FileStore:
    return FileStore(root, clock=FakeClock(MOMENT), **keys)


def fill(root: Path) -> dict[str, Token]:
    """Runs in all states."""
    with open_store(root) as store:
        tokens = {run_id: begin(store, run_id, lease=3600.0) for run_id in ("mine", "done", "bystander")}
        for token in tokens.values():
            work(store, token, *"abab")
        store.release(tokens["done"], Release("finished"))
        store.save("outside", "a", b"1")
        begin(store, "queued", status="ready")
    return tokens


Deed = Callable[[Store, dict[str, Token]], object]
DEEDS: dict[str, Deed] = {
    "create": lambda store, tokens: begin(store, "new", lease=3600.0),
    "append": lambda store, tokens: work(store, tokens["mine"], "c"),
    "append to two runs": lambda store, tokens: store.append(
        [Append(tokens[run_id], (checkpoint(run_id, 5, "c"),)) for run_id in ("mine", "bystander")]
    ),
    "finish": lambda store, tokens: write(store, tokens["mine"], finish("mine", 5), release=Release("finished")),
    "renew": lambda store, tokens: store.renew([tokens["mine"]]),
    "claim": lambda store, tokens: take(store, "outside"),
    "reopen": lambda store, tokens: take(store, "done", reopen=True),
    "claim_due": lambda store, tokens: store.claim_due(["orders"], 1),
    "signal": lambda store, tokens: store.put_signal("mine", "go", b"1"),
    "cancel": lambda store, tokens: store.request_cancel("outside", "stop", 9),
    "save": lambda store, tokens: store.save("outside", "b", b"2"),
    "save a new run": lambda store, tokens: store.save("saved", "b", b"2"),
    "delete": lambda store, tokens: store.delete("done", "a"),
    "prune": lambda store, tokens: store.prune(keep_last=1),
    "delete_run": lambda store, tokens: store.delete_run("done"),
    "import": lambda store, tokens: store.import_run(store.export("mine"), run_id="copy"),
}


def seen(store: Store) -> dict[str, Any]:
    """All that is told of each run but who owns it."""
    found = {}
    for info in store.list_runs():
        assert store.verify(info.run_id).ok
        row = store.get_run(info.run_id)
        records = [(r.sequence, r.kind, r.node_id, r.visit, r.payload) for r in store.read(info.run_id)]
        status = "running" if info.status == "dead" else info.status
        found[info.run_id] = (status, row.epoch, row.cancel, row.signals, records, store.list(info.run_id))
    return found


def kill_at(number: int) -> None:
    """Have this process killed instead of the call with this number from now on."""
    count = itertools.count()

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return instead

    for name in CALLS:
        setattr(os, name, killing(getattr(os, name)))


def killed_at(root: Path, deed: Deed, tokens: dict[str, Token], number: int, **keys: Any) -> bool:
    """Whether a process with these tokens was killed in `deed` at this call; False: it did it without so many."""

    pid = os.fork()
    if pid == 0:
        mine = {run_id: token._replace(process=this_process().key) for run_id, token in tokens.items()}
        store = open_store(root, **keys)
        try:
            kill_at(number)
            deed(store, mine)
        except BaseException:
            os._exit(1)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in {0, -signal.SIGKILL}
    return ended != 0


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS.keys())
def test_a_process_killed_at_any_call_leaves_a_store_as_before_or_after(tmp_path: Path, deed: Deed) -> None:
    # Whoever filled it is gone, and all that was running is dead.
    tokens = {run_id: Token(*token) for run_id, token in forked(lambda: fill(tmp_path / "before")).items()}
    done = Path(shutil.copytree(tmp_path / "before", tmp_path / "done"))
    assert not killed_at(done, deed, tokens, 1_000_000)
    told = []
    for root in (tmp_path / "before", done):
        with open_store(root) as store:
            told.append(seen(store))
    for number in itertools.count():
        root = Path(shutil.copytree(tmp_path / "before", tmp_path / f"killed at {number}"))
        if not killed_at(root, deed, tokens, number):
            break
        with open_store(root) as store:
            check_after_a_kill(store, told)
        assert [] == os.listdir(root / ".milepost" / "temporary")
        shutil.rmtree(root)


def check_after_a_kill(store: FileStore, told: list[dict[str, Any]]) -> None:
    """Each run is as it was before or after, a worker finds all that is due, and what was to change can be used."""
    found = seen(store)
    ids = {*told[0], *told[1], *found}
    for run_id in ids:
        assert found.get(run_id) in [runs.get(run_id) for runs in told]
    due = {run_id for run_id, run in found.items() if run[0] in {"running", "ready"} or run[2] is not None}
    claimed = {row.info.run_id: token for token, row in store.claim_due(["orders", ""], 100)}
    assert due == set(claimed)
    for run_id in (run_id for run_id in ids if told[0].get(run_id) != told[1].get(run_id)):
        if run_id in found:
            token = claimed.get(run_id) or take(store, run_id, reopen=True).token
            assert token is not None
            assert "written" == work(store, token, "later", release=Release("failed")).outcome
            assert store.verify(run_id).ok
            store.delete_run(run_id)
        begin(store, run_id)
        assert [0] == [record.sequence for record in store.read(run_id)]


SIGNED = {"signing_key": {"s": b"signing key, 24 bytes..."}}
ENCRYPTED = {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}}
LENIENT = {"allow_unsealed": True, "allow_plain": True}


def fill_without_keys(root: Path) -> None:
    """A run of an engine, and one from outside whose first record is newer than its first signal."""
    with open_store(root) as store:
        token = begin(store, "engine", lease=3600.0)
        work(store, token, *"ab")
        store.put_signal("engine", "go", b"1", by="ann")
        work(store, token, "c")
        store.release(token, Release("finished"))
        store.save("outside", "a", b"1")
        store.put_signal("outside", "go", b"2")
        store.save("outside", "b", b"2")
        store.save("outside", "c", b"3")
        store.delete("outside", "a")


@pytest.mark.parametrize("keys", [SIGNED, {**SIGNED, **ENCRYPTED}], ids=["signed", "encrypted too"])
@pytest.mark.parametrize("run_id", ["engine", "outside"])
def test_a_process_killed_at_any_call_while_it_seals_leaves_a_run_that_goes_on_and_is_sealed_again(
    tmp_path: Path, run_id: str, keys: dict[str, Any]
) -> None:
    fill_without_keys(tmp_path / "before")
    with open_store(tmp_path / "before") as store:
        before, signals = seen(store), store.signals(run_id)
    for number in itertools.count():
        root = Path(shutil.copytree(tmp_path / "before", tmp_path / f"killed at {number}"))
        was_killed = killed_at(root, lambda store, _: store.seal_run(run_id), {}, number, **keys, **LENIENT)
        with open_store(root, **keys, **LENIENT) as store:
            assert (before, signals) == (seen(store), store.signals(run_id))
            token = take(store, run_id, reopen=True).token
            assert token is not None
            assert "written" == work(store, token, "later", release=Release("failed")).outcome
            store.seal_run(run_id)
        with open_store(root, **keys) as store:
            assert store.verify(run_id).ok
            assert signals == store.signals(run_id)
            records = [(r.sequence, r.kind, r.node_id, r.visit, r.payload) for r in store.read(run_id)]
            assert before[run_id][4] == records[:-2]
        shutil.rmtree(root)
        if not was_killed:
            break


# -- frozen ----------------------------------------------------------------------------------------------

FREEZE = """
import os, signal
def freeze_at(name, number):
    call, left = getattr(os, name), [number]
    def instead(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return call(*args, **options)
    setattr(os, name, instead)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with Child() as child:
        place = str(tmp_path / "runs")
        child.tell(f"from milepost.stores.file.store import FileStore; store = FileStore({place!r}){FREEZE}")
        yield child


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with FileStore(tmp_path / "runs") as store:
        yield store


def wait_until_frozen(child: Child) -> None:
    path = Path(f"/proc/{child._process.pid}/stat")
    deadline = time.monotonic() + 20
    while path.read_bytes().rpartition(b")")[2].split()[0] != b"T":
        assert time.monotonic() < deadline, "it did not come so far"
        time.sleep(0.002)


@pytest.mark.parametrize("call", ["open", "write", "fsync", "link"])
def test_a_process_frozen_in_an_append_blocks_nobody_and_loses_when_it_wakes(
    store: FileStore, child: Child, call: str
) -> None:
    child.tell("token = begin(store, 'r', lease=3600.0); work(store, token, 'a')")
    child.begin(f"freeze_at({call!r}, 1); answer = write(store, token, checkpoint('r', 2, 'late')).outcome")
    wait_until_frozen(child)
    work(store, begin(store, "another"), *"ab")
    assert {"r", "another"} == {info.run_id for info in store.list_runs()}
    store.put_signal("r", "go", None)
    claimed = take(store, "r", takeover=True)
    assert claimed.token is not None
    assert "written" == work(store, claimed.token, "b").outcome
    child.thaw()
    assert "lost" == child.answer()
    assert ["start", "a", "owner", "b"] == [record.node_id or record.kind for record in store.read("r")]
    assert store.verify("r").ok


def test_a_process_frozen_in_a_creation_blocks_nobody_and_loses_when_it_wakes(store: FileStore, child: Child) -> None:
    child.begin(
        "freeze_at('link', 1)\n"
        "from milepost.errors import RunExistsError\n"
        "try: begin(store, 'r')\n"
        "except RunExistsError as exc: answer = exc.status"
    )
    wait_until_frozen(child)
    assert [] == store.list_runs()
    work(store, begin(store, "r"), "a")
    child.thaw()
    assert "running" == child.answer()
    assert [0, 1] == [record.sequence for record in store.read("r")]
    assert 2 == len(list((Path(store.place) / "r").iterdir()))


@pytest.mark.parametrize("call", ["rename", "rmdir"])
def test_a_process_frozen_in_a_deletion_takes_away_nothing_that_came_after(
    store: FileStore, child: Child, call: str
) -> None:
    work(store, begin(store, "r"), *"abc", release=Release("finished"))
    child.begin(f"freeze_at({call!r}, 1); store.delete_run('r')")
    wait_until_frozen(child)
    assert [] == store.list_runs()
    begin(store, "r")
    child.thaw()
    child.answer()
    assert [0] == [record.sequence for record in store.read("r")]
    assert store.verify("r").ok


def test_a_name_that_somebody_is_just_taking_away_is_free_once_that_is_done(
    store: FileStore, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_locks, "_PATIENCE", 0.05)
    work(store, begin(store, "r"), "a", release=Release("finished"))
    child.begin(
        "path = store.place + '/r/journal'\n"
        "unlink = os.unlink\n"
        "def instead(name, **options):\n"
        "    if name == path: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return unlink(name, **options)\n"
        "os.unlink = instead\n"
        "store.delete_run('r')"
    )
    wait_until_frozen(child)
    with pytest.raises(StoreError, match="others were faster"):
        begin(store, "r")
    begin(store, "another")
    child.thaw()
    child.answer()
    begin(store, "r")


def test_processes_that_create_and_delete_one_id_all_the_time_never_mix_two_runs(store: FileStore) -> None:
    source = (
        "from milepost.errors import RunExistsError\n"
        "answer = []\n"
        "while len(answer) < 8:\n"
        "    try: token = begin(store, 'r', state=b'{\"by\":%d}' % me)\n"
        "    except RunExistsError: continue\n"
        "    outcomes = [write(store, token, checkpoint('r', m, f'{me}')).outcome for m in (1, 2)]\n"
        "    found = store.read('r')\n"
        "    store.delete_run('r', force=True)\n"
        "    answer.append([outcomes, [r.node_id for r in found if r.node_id]])"
    )
    children = [Child() for _ in range(3)]
    try:
        for one in children:
            one.tell(f"from milepost.stores.file.store import FileStore; store = FileStore({store.place!r})")
        for number, one in enumerate(children):
            one.begin(source, me=number)
        for number, one in enumerate(children):
            assert [[["written", "written"], [str(number)] * 2]] * 8 == one.answer()
    finally:
        for one in children:
            one.kill()
    assert [] == store.list_runs()
    assert [] == [name for name in os.listdir(store.place) if name != ".milepost"]
