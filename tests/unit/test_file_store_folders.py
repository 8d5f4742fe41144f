"""What is special to the file store: its folders and files, and what becomes of them. The rest is in the contract."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import (
    CheckpointNotFoundError,
    MilepostError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
    StoreVersionError,
)
from milepost.model.ids import SystemClock, this_process
from milepost.model.info import Wait
from milepost.model.live import LiveBatch, LiveEvent
from milepost.model.workers import WorkerInfo
from milepost.store import Append, Release, Store, Token
from milepost.stores.base.fence import Row
from milepost.stores.file.commit import Header, Lines, RowText, encode, summed
from milepost.stores.file.store import FileStore
from milepost.testing import FakeClock
from milepost.testing.journals import begin, checkpoint, finish, take, work, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def store(root: Path) -> Iterator[FileStore]:
    with FileStore(root) as store:
        yield store


@pytest.fixture
def other(store: FileStore, root: Path) -> Iterator[FileStore]:
    with FileStore(root) as other:
        yield other


def log_of(root: Path, run_id: str = "r") -> Path:
    """The folder with a run's commits."""
    return root / run_id / json.loads((root / run_id / "journal").read_bytes())["folder"]


def commits_of(root: Path, run_id: str = "r") -> list[Path]:
    """A run's commits, in order."""
    return sorted(path for path in log_of(root, run_id).iterdir() if path.name.isdecimal())


def markers_of(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".milepost" / "due").rglob("*.*"))


# -- what people see -------------------------------------------------------------------------------------


def test_a_commit_is_text_with_a_line_for_each_record(store: FileStore, root: Path) -> None:
    token = begin(store, "r", tags={"team": "blue"})
    write(store, token, checkpoint("r", 1, "a", state=b'{"text":"\xc3\xa9\\n"}'), checkpoint("r", 2, "b"))
    store.put_signal("r", "go", b'{"ok":true}')
    first, second, third = commits_of(root)
    assert ["000000000000", "000000000001", "000000000002"] == [path.name for path in (first, second, third)]
    head, *lines = second.read_text(encoding="utf-8").splitlines()
    told = json.loads(head)
    assert (1, 1, 1, 2) == (told["version"], told["commit"], told["first"], told["last"])
    assert ("r", "orders", "running", {"team": "blue"}) == tuple(
        told["row"][name] for name in ("run_id", "flow", "status", "tags")
    )
    assert ["a", "b"] == [placed["node_id"] for placed in told["records"]]
    assert [store.load("r", "a"), store.load("r", "b")] == [line.encode() for line in lines]
    assert {"payload": {"ok": True}} == json.loads(third.read_text(encoding="utf-8").splitlines()[1])


@pytest.mark.parametrize(
    "data", [b"", b"null", b'{"a": 1}', b'{\n"a": 1}', b"\xff\x00 any", b'"\xed\xa0\x80"', b"x" * 40_000], ids=repr
)
def test_bytes_from_outside_come_back_as_they_are_and_files_stay_text(
    store: FileStore, root: Path, data: bytes
) -> None:
    store.save("r", "a", data)
    store.put_signal("r", "go", data)
    assert data == store.load("r", "a")
    assert [data] == [signal.payload for signal in store.signals("r")]
    for path in commits_of(root):
        lines = path.read_text(encoding="utf-8").split("\n")
        assert "" == lines.pop()
        assert all(isinstance(json.loads(line), dict) for line in lines)


def test_only_the_owner_may_read_files_and_folders_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with FileStore(tmp_path / "runs") as store:
            token = begin(store, "r")
            work(store, token, *"ab")
            store.renew([token])
            take(store, "r", takeover=True)
    finally:
        os.umask(before)
    paths = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    assert {"journal", "lease-2", "000000000002", "version.json"} <= {path.name for path in paths}
    assert {(True, 0o700), (False, 0o600)} == {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}


def test_a_place_below_a_file_is_refused_and_leaves_no_handle_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "no").touch()
    for _ in range(3):
        FileStore(tmp_path / "runs").close()
        with pytest.raises(StoreError, match=str(tmp_path / "no" / "runs")) as caught:
            FileStore(tmp_path / "no" / "runs")
        assert "open" == caught.value.op
    assert len(os.listdir("/proc/self/fd")) <= before  # less where what earlier tests left is closed meanwhile


@pytest.mark.parametrize("name", ["a b", "ü€", "q?x", "h#x", "p%20x", "d'\"q", "\udcff"], ids=ascii)
def test_a_store_may_have_any_name(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        with FileStore(tmp_path / name) as store:
            store.save("r", "n", b"1")
    assert [name] == os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"], ids=ascii)
def test_a_name_that_no_folder_can_have_is_a_store_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError):
        FileStore(tmp_path / name)


def test_a_file_in_the_place_of_the_folder_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(StoreError, match="open"):
        FileStore(tmp_path / "runs")


def test_a_relative_path_stays_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with FileStore("runs") as store:
        monkeypatch.chdir("/")
        store.save("r", "a", b"1")
        assert b"1" == store.load("r", "a")
        assert str(tmp_path / "runs") == store.place


def test_nothing_is_left_of_a_run_that_is_deleted(store: FileStore, root: Path) -> None:
    left = []
    for run_id in ("r", "../../up", "R", "x" * 400):
        work(store, begin(store, run_id, flow="orders"), *"abc", release=Release("finished"))
        store.delete_run(run_id)
        left.append({str(path.relative_to(root)) for path in root.rglob("*")})
    assert [
        {".milepost", *(f".milepost/{name}" for name in ("due", "due/orders", "temporary", "time", "version.json"))}
    ] * 4 == left


def test_a_commit_has_all_that_a_row_has() -> None:
    assert Row.__struct_fields__ == RowText.__struct_fields__


# -- file systems ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["os.link", "fcntl.flock"])
def test_a_file_system_that_cannot_keep_writers_apart_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*args: Any) -> None:
        raise PermissionError(1, "this network folder has no such thing")

    monkeypatch.setattr(call, refuse)
    with pytest.raises(StoreError, match=r"no hard links or no locks of files .*network folder has no such thing"):
        FileStore(tmp_path / "runs")


def test_what_a_network_folder_says_twice_of_one_link_is_believed_once(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_lose_the_answer(made: str, path: str) -> None:
        link(made, path)
        raise FileExistsError(17, "the answer was lost, and the call repeated")

    token = begin(store, "r")
    monkeypatch.setattr("os.link", link_and_lose_the_answer)
    assert "written" == work(store, token, "a").outcome
    begin(store, "s")
    assert [0, 1] == [record.sequence for record in store.read("r")]


class Ahead(SystemClock):
    """The clock of another machine, which is an hour ahead."""

    def time(self) -> float:
        return super().time() + 3600


def test_machines_whose_clocks_differ_agree_on_a_lease(store: FileStore, root: Path) -> None:
    token = begin(store, "r", lease=60.0)
    with FileStore(root, clock=Ahead()) as ahead:
        assert "live" == ahead.get_run("r").lease
        begin(ahead, "s", lease=60.0)
        assert "live" == store.get_run("s").lease
        assert "kept" == store.renew([token])[0].outcome
        assert "live" == ahead.get_run("r").lease
        lease = next(log_of(root).glob("lease-*"))
        os.utime(lease, ns=(0, lease.stat().st_mtime_ns - 61 * 10**9))
        assert "ended" == ahead.get_run("r").lease


def test_a_lease_that_was_renewed_just_now_is_live_to_whoever_asked_for_the_time_before(
    store: FileStore, other: FileStore, root: Path
) -> None:
    begin(store, "r", lease=60.0)
    lease = next(log_of(root).glob("lease-*"))
    os.utime(lease, ns=(0, lease.stat().st_mtime_ns + 5 * 10**8))
    assert "live" == other.get_run("r").lease
    os.utime(lease, ns=(0, lease.stat().st_mtime_ns + 5 * 10**9))
    assert "ended" == other.get_run("r").lease


def test_a_renewal_touches_a_file_and_writes_nothing(store: FileStore, root: Path) -> None:
    tokens = [begin(store, f"r{n}") for n in range(3)]
    store.list_runs()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    leases = {path: path.stat().st_mtime_ns for path in root.rglob("lease-*")}
    for path in leases:
        os.utime(path, ns=(0, leases[path] - 10**9))
    assert ["kept"] * 3 == [renewal.outcome for renewal in store.renew(tokens)]
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert all(path.stat().st_mtime_ns > before for path, before in leases.items())


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["lease-1", "block-1-000000000000", "time"])
def test_nothing_is_written_through_a_link(store: FileStore, root: Path, name: str, link: Callable[..., None]) -> None:
    victim = root.parent / "victim"
    victim.write_text("it is mine")
    os.utime(victim, (1, 1))
    token = begin(store, "r")
    path = root / ".milepost" / name if name == "time" else log_of(root) / name
    path.unlink(missing_ok=True)
    link(victim, path)
    if name == "lease-1":
        with pytest.raises(StoreError, match="lease-1"):
            store.renew([token])
    else:
        work(store, token, *"abcdefghijklmnopqrst")
        begin(store, "s")
    assert ("it is mine", 1) == (victim.read_text(), victim.stat().st_mtime)


def test_a_lease_file_is_not_made_where_a_link_leads(store: FileStore, root: Path) -> None:
    token = begin(store, "r")
    lease = log_of(root) / "lease-1"
    lease.unlink()
    lease.symlink_to(root.parent / "elsewhere")
    with pytest.raises(StoreError, match="lease-1"):
        store.renew([token])
    assert not (root.parent / "elsewhere").exists()


@pytest.mark.parametrize("name", [".milepost", "due", "orders", "live", "schedules", "workers", "r", "its commits"])
def test_no_folder_is_used_that_a_link_leads_to(root: Path, name: str) -> None:
    elsewhere, now = root.parent / "elsewhere", datetime.now(UTC)
    event = LiveEvent(1, 1, 0, 0.0, "a", 1, 1, b"1")
    for place in (elsewhere, root):
        with FileStore(place) as store:
            work(store, begin(store, "r"), "a", release=Release("interrupted"))
            begin(store, "s", status="ready")
            store.write_live([LiveBatch("r", (event,), (0, 0))])
            store.pause_schedule("nightly")
            store.beat(WorkerInfo("w", "h", 1, now, now, {}, 1, 0))
    for file in ("nightly", "weekly", "time", "precious"):
        (elsewhere / file).write_text("mine")
    folder = log_of(root) if name == "its commits" else next(path for path in root.rglob(name) if path.is_dir())
    victim = elsewhere / "r" if name == "r" else log_of(elsewhere) if name == "its commits" else elsewhere
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    shutil.rmtree(folder)
    folder.symlink_to(victim)
    acts: list[Callable[[FileStore], object]] = [
        lambda store: store.write_live([LiveBatch("r", (event,), (0, 0))]),
        lambda store: store.resume_schedule("nightly"),
        lambda store: store.pause_schedule("weekly"),
        lambda store: begin(store, "new", status="ready"),
        lambda store: store.save("r", "b", b"1"),
        lambda store: store.delete("r", "a"),
        lambda store: store.delete_run("r", force=True),
    ]
    for act in acts:
        with suppress(MilepostError, OSError), FileStore(root) as store:
            act(store)
    assert before == {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}


def test_a_lease_file_that_is_gone_is_made_anew(store: FileStore, root: Path) -> None:
    token = begin(store, "r")
    for path in root.rglob("lease-*"):
        path.unlink()
    assert "ours" == store.get_run("r").lease
    assert "kept" == store.renew([token])[0].outcome
    assert ["lease-1"] == [path.name for path in root.rglob("lease-*")]


# -- versions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["version.json", "journal", "commit"])
def test_what_a_newer_release_wrote_is_refused_with_that_reason(store: FileStore, root: Path, where: str) -> None:
    work(store, begin(store, "r"), "a")
    begin(store, "sound")
    store.close()
    path = {"version.json": root / ".milepost" / where, "journal": root / "r" / where, "commit": commits_of(root)[1]}[
        where
    ]
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2', 1))
    with pytest.raises(StoreVersionError, match="upgrade") as caught, FileStore(root) as again:
        assert ["sound", "r"] == [info.run_id for info in again.list_runs()]
        again.get_run("r")
    assert (2, 1) == (caught.value.found, caught.value.supported)


# -- one number, one winner ------------------------------------------------------------------------------


def test_an_append_that_somebody_got_ahead_of_is_decided_anew(store: FileStore, other: FileStore) -> None:
    token = begin(store, "r")
    work(store, token, "a")
    other.put_signal("r", "go", b"1")
    other.request_cancel("r", "stop")
    assert ("written", "stop") == write(store, token, checkpoint("r", 2))
    assert ("refused", "stop") == write(store, token, finish("r", 3), release=Release("finished"))


def test_of_a_batch_only_what_was_overtaken_is_decided_anew(store: FileStore, other: FileStore, root: Path) -> None:
    tokens = [begin(store, f"r{n}") for n in range(3)]
    other.put_signal("r0", "go", None)
    assert "claimed" == take(other, "r1", takeover=True).outcome
    batch = [Append(token, (checkpoint(token.run_id, 1),)) for token in tokens]
    assert ["written", "lost", "written"] == [verdict.outcome for verdict in store.append(batch)]
    assert [3, 2, 2] == [len(commits_of(root, token.run_id)) for token in tokens]


def test_appends_of_one_run_in_one_batch_are_one_commit(store: FileStore, root: Path) -> None:
    token = begin(store, "r")
    batch = [Append(token, (checkpoint("r", sequence),)) for sequence in (1, 2, 2, 3)]
    assert ["written", "written", "taken", "written"] == [verdict.outcome for verdict in store.append(batch)]
    assert 2 == len(commits_of(root))
    assert [0, 1, 2, 3] == [record.sequence for record in store.read("r")]


def test_an_id_used_again_never_meets_what_its_former_run_has(store: FileStore, other: FileStore, root: Path) -> None:
    token = begin(store, "r")
    work(store, token, *"abc")
    former = log_of(root)
    other.delete_run("r", force=True)
    assert "lost" == write(store, token, checkpoint("r", 4)).outcome
    begin(other, "r")
    assert former != log_of(root)
    for outcome in (
        write(store, token, checkpoint("r", 4)),
        write(store, token, checkpoint("r", 1)),
        store.renew([token])[0],
        store.release(token, Release("finished")),
    ):
        assert "lost" == outcome.outcome
    assert [0] == [record.sequence for record in store.read("r")]
    assert "running" == store.get_run("r").info.status


def test_runs_of_one_process_do_not_wait_for_each_other(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {run_id: begin(store, run_id) for run_id in ("slow", "quick")}
    fsync, is_at_it, may_go_on = os.fsync, threading.Event(), threading.Event()

    def slow_for_one_thread(descriptor: int) -> None:
        if threading.current_thread().name.startswith("slow"):
            is_at_it.set()
            assert may_go_on.wait(20)
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", slow_for_one_thread)
    with ThreadPoolExecutor(1, thread_name_prefix="slow") as pool:
        slow = pool.submit(write, store, tokens["slow"], checkpoint("slow", 1))
        assert is_at_it.wait(20)
        assert "written" == write(store, tokens["quick"], checkpoint("quick", 1)).outcome
        assert 0 == store.latest("slow").newest
        may_go_on.set()
        assert "written" == slow.result(20).outcome


# -- deleting --------------------------------------------------------------------------------------------


def test_what_was_deleted_is_in_no_file_and_numbers_stay_dense(store: FileStore, root: Path) -> None:
    token = begin(store, "r")
    for name in ("a", "secret", "b", "secret"):
        work(store, token, name)
    write(store, token, checkpoint("r", 5, "c"), checkpoint("r", 6, "secret", visit=3), release=Release("interrupted"))
    names = [path.name for path in commits_of(root)]
    size = store.stats().size
    store.delete("r", "secret")
    assert [*names, f"{len(names):012d}"] == [path.name for path in commits_of(root)]
    owner = commits_of(root)[-1].read_bytes()
    assert all(b"secret" not in path.read_bytes() for path in commits_of(root)[:-1])
    assert b'"removed":3' in owner
    assert [0, 1, 3, 5, 7] == [record.sequence for record in store.read("r")]
    assert ("b", "c") == tuple(info.node_id for info in store.list("r")[1:])
    assert store.verify("r").ok
    kept = sum(len(line) for path in commits_of(root) for line in path.read_bytes().splitlines(True)[1:])
    assert (5, kept) == (store.stats().records, store.stats().size)
    assert kept < size


def test_what_was_deleted_stays_so_when_a_frozen_process_puts_back_a_file_of_before(
    store: FileStore, other: FileStore, root: Path
) -> None:
    token = begin(store, "r")
    for name in "abab":
        work(store, token, name)
    store.release(token, Release("interrupted"))
    former = {path: path.read_bytes() for path in commits_of(root)}
    store.delete("r", "a")
    for path, data in former.items():
        path.write_bytes(data)
    for view in (store, other):
        assert ["b"] == [info.node_id for info in view.list("r")]
        assert [0, 2, 4, 5] == [record.sequence for record in view.read("r")]
        assert view.read("r", node_id="a", kinds=("checkpoint",)) == []
        with pytest.raises(CheckpointNotFoundError):
            view.load("r", "a")
    store.delete("r", "b")
    assert [0, 5, 6] == [record.sequence for record in other.read("r")]
    assert other.latest("r").point.kind == "start"  # type: ignore[union-attr]
    # The records that named the first deletion were put back as they were before it.
    assert ("records 1 to 3 are missing, without a deletion that says so",) == store.verify("r").problems


def test_the_newest_checkpoint_is_found_at_once_when_many_before_it_were_deleted(
    store: FileStore, other: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = begin(store, "r")
    for name in ("kept", *(["gone"] * 40)):
        work(store, token, name)
    store.release(token, Release("interrupted"))
    store.delete("r", "gone")
    store.put_signal("r", "go", None)
    size = store.get_run("r").info.size
    opened = count_opened(monkeypatch)
    assert (b'{"n":1}', size) == (b'{"n":%d}' % 1, other.get_run("r").info.size)
    assert len(opened) < 10
    point = other.latest("r").point
    assert point is not None
    assert "kept" == point.node_id


def count_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are opened from now on."""
    opened: list[str] = []
    os_open = os.open

    def counting(path: str, *args: Any, **options: Any) -> int:
        opened.append(path)
        return os_open(path, *args, **options)

    monkeypatch.setattr("os.open", counting)
    return opened


# -- what a worker looks at ------------------------------------------------------------------------------


def test_a_run_that_may_be_due_has_a_marker_and_no_other_has(root: Path) -> None:
    clock = FakeClock()
    with FileStore(root, clock=clock) as store:
        for status in ("finished", "cancelled", "failed", "blocked", "interrupted"):
            store.release(begin(store, status), Release(status))
        store.save("saved", "a", b"1")
        endless = begin(store, "endless")
        store.release(endless, Release("waiting", waiting_for=(Wait("w#1", "go"),)))
        assert [] == markers_of(root)
        begin(store, "running")
        begin(store, "ready", status="ready")
        store.release(begin(store, "timer"), Release("waiting", wake_at=clock.time() + 60))
        store.request_cancel("failed", "undo", None)
        store.put_signal("endless", "go", None)
        names = [name.partition(".")[0] for name in markers_of(root)]
        assert ["endless", "failed", "ready", "running", "timer"] == names
        store.delete_run("timer")
        store.delete_run("running", force=True)
        due = {row.info.run_id: token for token, row in store.claim_due(["orders"], 10)}
        assert {"endless", "failed", "ready"} == set(due)
        for token in due.values():
            store.release(token, Release("cancelled"))
        assert [] == markers_of(root)


def test_a_marker_of_the_past_goes_and_one_that_may_be_about_to_count_stays(store: FileStore, root: Path) -> None:
    token = begin(store, "r", status="ready")
    ((token, _),) = store.claim_due(["orders"], 1)
    (marker,) = (root / ".milepost" / "due" / "orders").iterdir()
    store.release(token, Release("finished"))
    stem = marker.name.rpartition(".")[0]
    for name in (
        f"{stem}.000000000001",
        f"{stem}.000000000900",
        "gone.18-ab.000000000000",
        "old.18-ab.000000000000",
        "odd",
    ):
        marker.with_name(name).touch()
    os.utime(marker.with_name("old.18-ab.000000000000"), (0, 0))
    assert [] == store.claim_due(["orders"], 5)
    left = {path.name for path in marker.parent.iterdir()}
    assert {f"{stem}.000000000900", "gone.18-ab.000000000000", "odd"} == left


def test_a_poll_reads_nothing_of_runs_that_have_ended(
    store: FileStore, other: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        store.release(begin(store, f"ended {n}"), Release("finished"))
    begin(store, "r", status="ready")
    opened = count_opened(monkeypatch)
    ((_, row),) = other.claim_due(["orders"], 5)
    assert "r" == row.info.run_id
    assert not [path for path in opened if "ended" in path]


# -- what others leave behind ----------------------------------------------------------------------------


def test_what_processes_that_are_gone_left_is_swept_away_and_what_others_write_is_not(
    store: FileStore, root: Path
) -> None:
    me = this_process()
    temporary = root / ".milepost" / "temporary"
    host, pid, started = me.name.rsplit(":", 2)
    names = {
        "mine": (f"{me.name}~{me.key}~x", 9e8),
        "another here": (f"{host}:1:{os.stat('/proc/1').st_ctime_ns}~k~0", None),
        "gone here": (f"{host}:{pid}:{int(started) - 1}~k~0", None),
        "elsewhere, new": ("another-boot:4026531836:17:99~k~0", None),
        "elsewhere, old": ("another-boot:4026531836:17:99~k~1", 9e8),
        "foreign, old": ("what is this", 9e8),
        "foreign, new": ("and this", None),
    }
    for name, at in names.values():
        path = temporary / name.replace(":", "%3A")
        path.mkdir() if "k~1" in name else path.touch()
        if at is not None:
            os.utime(path, (at, at))
    FileStore(root).close()
    left = {path.name.replace("%3A", ":") for path in temporary.iterdir()}
    assert {names[key][0] for key in ("mine", "elsewhere, new", "foreign, old", "foreign, new")} == left


@pytest.mark.parametrize("is_link", [False, True])
def test_opening_a_store_takes_nothing_away_that_is_not_its_own(root: Path, is_link: bool) -> None:
    FileStore(root).close()
    temporary = root / ".milepost" / "temporary"
    precious = root.parent / "precious" if is_link else temporary
    (precious / "photos~1~2").mkdir(parents=True)
    files = {precious / "thesis.txt", precious / "photos~1~2", precious / "photos~1~2" / "a.jpg"}
    if is_link:
        files.add(precious / "a%3Ab%3A1%3A2~k~0")  # as another store of ours would call it
    for path in files:
        if not path.is_dir():
            path.touch()
        os.utime(path, (1, 1))
    if is_link:
        temporary.rmdir()
        temporary.symlink_to(precious)
    FileStore(root).close()
    assert files == set(precious.rglob("*"))


def test_a_poll_takes_no_file_away_that_is_not_its_own(store: FileStore, root: Path) -> None:
    begin(store, "r", status="ready")
    foreign = root / ".milepost" / "due" / "orders" / "backup.tar.1"
    foreign.touch()
    os.utime(foreign, (1, 1))
    assert 1 == len(store.claim_due(["orders"], 5))
    assert foreign.exists()


def test_a_flow_whose_markers_cannot_be_read_keeps_no_other_waiting(
    store: FileStore, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for flow in ("orders", "other"):
        begin(store, f"of {flow}", flow=flow, status="ready")
    folder = root / ".milepost" / "due" / "orders"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    assert ["of other"] == [token.run_id for _ in range(2) for token, _ in store.claim_due(["orders", "other"], 5)]
    assert 1 == len([record for record in caplog.records if "'orders'" in record.getMessage()])


def test_what_is_no_run_is_not_listed_and_a_copy_of_one_is_named(store: FileStore, root: Path) -> None:
    for run_id in ("r", "s"):
        begin(store, run_id)
    (root / "A link to itself").symlink_to(root / "A link to itself")
    (root / "Other program").mkdir()
    (root / "Other program" / "journal").write_text("dear diary")
    shutil.copytree(root / "r", root / "copy")
    assert ["s", "r", "copy"] == [info.run_id for info in store.list_runs()]
    assert ["s", "r", "copy"] == [
        info.run_id for after in (None, "s", "r", "copy") for info in store.list_runs(limit=1, after=after)
    ]
    assert "it is of run 'r'" in store.list_runs()[2].reason
    store.delete_run("copy", force=True)
    assert ["s", "r"] == [info.run_id for info in store.list_runs()]
    assert "dear diary" == (root / "Other program" / "journal").read_text()


@pytest.mark.parametrize("beyond", [2, 10, 96])
def test_commits_beyond_the_end_are_found(store: FileStore, root: Path, beyond: int) -> None:
    work(store, begin(store, "r"), *"ab")
    last = commits_of(root)[-1]
    stray = last.with_name(f"{int(last.name) + beyond:012d}")
    shutil.copy(last, stray)
    for looking in (store, FileStore(root)):
        assert any(stray.name in problem for problem in looking.verify("r").problems)
    stray.unlink()
    assert store.verify("r").ok


def test_a_signal_with_an_id_costs_the_same_after_many(
    store: FileStore, other: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store, "r")
    opened = list[str]()
    really_open = os.open

    def counting(path: Any, *args: Any, **options: Any) -> int:
        opened.append(str(path))
        return really_open(path, *args, **options)

    for number in range(60):
        if number == 50:
            monkeypatch.setattr(os, "open", counting)
        assert "kept" == store.put_signal("r", "go", b"1", signal_id=f"s{number}")
    assert 120 > len(opened)
    monkeypatch.undo()
    assert "kept" == other.put_signal("r", "go", b"1", signal_id="of another")
    for known in ("s0", "s59", "of another"):
        assert "duplicate" == store.put_signal("r", "go", b"1", signal_id=known)
    assert 61 == len(store.signals("r"))


def test_files_of_others_beside_runs_are_left_alone(store: FileStore, root: Path) -> None:
    work(store, begin(store, "r"), "a")
    (root / "notes.txt").write_text("mine")
    (root / "drafts").mkdir()
    (root / "r" / "a.json").write_text("{}")
    (log_of(root) / ".nfs0001").write_text("")
    assert ["r"] == [info.run_id for info in store.list_runs()]
    assert [0, 1] == [record.sequence for record in store.read("r")]
    store.delete_run("r", force=True)
    assert [".milepost", "drafts", "notes.txt", "r"] == sorted(os.listdir(root))
    assert ["a.json"] == os.listdir(root / "r")
    begin(store, "r")
    assert (root / "r" / "a.json").exists()


# -- damage ----------------------------------------------------------------------------------------------

Damage = Callable[[Path], object]
DAMAGES: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "torn in its first line": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "no JSON": lambda path: path.write_bytes(b"\x00" * 4096),
    "of another run": lambda path: path.write_bytes(path.read_bytes().replace(b'"run_id":"r"', b'"run_id":"s"')),
    "of another number": lambda path: path.write_bytes(path.read_bytes().replace(b'"commit":', b'"commit":9')),
    "a status that no run has": lambda path: path.write_bytes(path.read_bytes().replace(b'"running"', b'"walking"')),
    "a time beyond all": lambda path: path.write_bytes(
        path.read_bytes().replace(b'"created_at":', b'"created_at":1e99,"x":')
    ),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def filled(root: Path) -> Token:
    """A run of five commits with a checkpoint each, and two others."""
    with FileStore(root) as store:
        token = begin(store, "r")
        for n in range(1, 6):
            write(store, token, checkpoint("r", n, f"n{n}"))
        work(store, begin(store, "sound"), *"ab", release=Release("finished"))
        store.save("out", "n", b"no json")
    return token


@pytest.mark.parametrize("gone", [{0}, {1, 2}, {3, 4}, {0, 1, 2, 3}, {4}], ids=str)
def test_commits_that_are_lost_do_not_pass_for_the_end(root: Path, gone: set[int]) -> None:
    token = filled(root)
    for number, path in enumerate(commits_of(root)):
        if number in gone:
            path.rename(root / f"lost-{number}")
    with FileStore(root) as store:
        assert [0, 1, 2, 3, 4, 5] == [record.sequence for record in store.read("r")]
        assert "written" == write(store, token, checkpoint("r", 6)).outcome
        assert not store.verify("r").ok


@pytest.mark.parametrize("field", ["header", "payload"])
@pytest.mark.parametrize("length", [1 << 30, 1 << 62])
def test_a_file_that_only_seems_to_be_large_takes_no_memory(root: Path, field: str, length: int) -> None:
    filled(root)
    path = commits_of(root)[3]
    line, _, rest = path.read_bytes().partition(b"\n")
    fields = json.loads(line)
    del fields["sum"]
    fields["records"][0][field] = length
    path.write_bytes(summed(json.dumps(fields).encode()) + b"\n" + rest)
    os.truncate(path, 2 << 30)
    tracemalloc.start()
    try:
        with FileStore(root) as store:
            store.list_runs()
            assert not store.verify("r").ok
            store.export("sound")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_first_line_that_would_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.stores.file.commit._LONGEST_LINE", 1000)
    header = Header(1, 0, RowText("r", "f", "ready", 0.0, 0.0, 1, missed=("m" * 1000,)), 0, 0)
    with pytest.raises(StoreError, match="at most 1000"):
        encode(header, Lines(()))


@pytest.mark.parametrize("damage", [*DAMAGES.values(), Path.unlink], ids=[*DAMAGES, "missing"])
def test_a_damaged_commit_hides_nothing_but_itself_and_is_not_passed_over_in_silence(
    root: Path, damage: Damage
) -> None:
    filled(root)
    damage(commits_of(root)[3])
    with FileStore(root) as store:
        assert ["out", "sound", "r"] == [info.run_id for info in store.list_runs()]
        assert "running" == store.get_run("r").info.status
        assert [0, 1, 2, 3, 4, 5] == [record.sequence for record in store.read("r")]
        assert [5, 4, 3, 2, 1, 0] == [record.sequence for record in store.read("r", newest=True)]
        assert [record.sequence for record in store.read("r", after=2, before=5)] == [3, 4]
        assert b'"n2"' in store.load("r", "n2")
        assert b'"n5"' in store.load("r", "n5")
        with pytest.raises(CheckpointNotFoundError):
            store.load("r", "n3")
        assert not store.verify("r").ok
        assert store.verify("sound").ok
        point = store.latest("r", before=4).point
        assert point is not None
        with pytest.raises(ValueError, match="record 3"):
            store.seals.check("r", point)
        before = store.latest("r", before=3).point
        assert before is not None
        assert "n2" == before.node_id


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_newest_commit_is_named_and_nothing_older_passes_for_the_newest(root: Path, damage: Damage) -> None:
    token = filled(root)
    newest = commits_of(root)[-1]
    damage(newest)
    with FileStore(root) as store:
        for verb in (
            lambda: store.get_run("r"),
            lambda: store.latest("r"),
            lambda: store.load("r", "n2"),
            lambda: write(store, token, checkpoint("r", 5)),
            lambda: store.save("r", "a", b"1"),
            lambda: store.put_signal("r", "go", None),
            lambda: store.delete_run("r"),
            lambda: begin(store, "r"),
        ):
            with pytest.raises(StoreError, match=rf"row of run 'r' is damaged.*{newest}"):
                verb()
        assert "unknown" == store.renew([token])[0].outcome
        shown = {info.run_id: info for info in store.list_runs()}
        assert ("blocked", "orders") == (shown["r"].status, shown["r"].flow)
        assert "damaged" in shown["r"].reason
        assert [] == store.claim_due(["orders"], 5)
        assert [0, 1, 2, 3, 4, 5] == [record.sequence for record in store.read("r")]
        problems = store.verify("r").problems
        assert 2 <= len(problems)
        assert store.stats().runs["finished"] == 1
        newest.rename(root / "taken-away")
        assert [0, 1, 2, 3, 4] == [record.sequence for record in store.read("r")]
        assert store.verify("r").ok
        assert "written" == write(store, token, checkpoint("r", 5, "again")).outcome


@pytest.mark.parametrize("damaged", [(1, 2), (0,), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5), (4, 5)], ids=str)
def test_several_damaged_commits_are_told_record_by_record(root: Path, damaged: tuple[int, ...]) -> None:
    filled(root)
    for number in damaged:
        commits_of(root)[number].write_bytes(b"")
    with FileStore(root) as store:
        for newest in (False, True):
            found = store.read("r", newest=newest)
            assert sorted(damaged) == sorted(record.sequence for record in found if record.header == b"")
            assert 6 == len(found)
        assert ["out", "sound", "r"] == [info.run_id for info in store.list_runs()]
        assert not store.verify("r").ok


def test_a_record_whose_line_was_changed_or_cut_leaves_the_row_as_it_is(root: Path) -> None:
    filled(root)
    changed, cut = commits_of(root)[2], commits_of(root)[5]
    changed.write_bytes(changed.read_bytes().replace(b'{"n":6}', b'{"n":7}'))
    cut.write_bytes(cut.read_bytes()[:-20])
    with FileStore(root) as store:
        assert "running" == store.get_run("r").info.status
        assert 2 == len([problem for problem in store.verify("r").problems if "record" in problem])
        assert b'"n4"' in store.load("r", "n4")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"version":1,"run_id":"s","folder":"x","created_at":1.0}', b'{"version":1,"run_id":"r"}'],
    ids=repr,
)
def test_a_damaged_journal_file_is_named_and_the_run_is_listed_with_that_reason(root: Path, content: bytes) -> None:
    filled(root)
    (root / "r" / "journal").write_bytes(content)
    with FileStore(root) as store:
        for verb in (store.get_run, store.latest, lambda run_id: store.save(run_id, "a", b"")):
            with pytest.raises(StoreError, match=str(root / "r" / "journal")):
                verb("r")
        (problem,) = store.verify("r").problems
        assert str(root / "r" / "journal") in problem
        assert {"out", "r", "sound"} == {info.run_id for info in store.list_runs()}
        (shown,) = (info for info in store.list_runs() if info.run_id == "r")
        assert ("blocked", True) == (shown.status, "damaged" in shown.reason)


@pytest.mark.parametrize("folder", ["../../victim", "..", "/etc", "", ".", "a/b", "a\\b"])
def test_a_journal_file_leads_nowhere_but_into_its_run(root: Path, folder: str) -> None:
    filled(root)
    victim = root.parent / "victim"
    shutil.copytree(log_of(root), victim)
    path = root / "r" / "journal"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "folder": folder}))
    with FileStore(root) as store:
        for verb in (store.get_run, store.delete_run, lambda run_id: begin(store, run_id)):
            with pytest.raises(StoreError):
                verb("r")
    assert 6 == len([path for path in victim.iterdir() if path.name.isdecimal()])


def test_ids_lead_to_folders_right_below_the_root(store: FileStore, root: Path) -> None:
    hostile = (
        "../up",
        "..\\up",
        "/abs",
        "a/../../up",
        "C:\\x",
        "nul",
        "com1.txt",
        "...",
        ".milepost",
        "-rf",
        "~",
        "a:b",
    )
    for run_id in hostile:
        begin(store, run_id, flow=run_id)
    assert sorted(hostile) == sorted(info.run_id for info in store.list_runs())
    assert ["runs"] == os.listdir(root.parent)
    assert len(hostile) + 1 == len(os.listdir(root))
    assert all((path / "journal").is_file() for path in root.iterdir() if path.name != ".milepost")


def test_a_commit_that_was_half_deleted_is_finished_by_whoever_uses_the_id_again(root: Path) -> None:
    filled(root)
    buried = root.parent / "buried"
    log_of(root).rename(buried)
    with FileStore(root) as store:
        with pytest.raises(RunNotFoundError):
            store.get_run("r")
        assert ["out", "sound"] == [info.run_id for info in store.list_runs()]
        store.delete_run("r")
        begin(store, "r")
        assert [0] == [record.sequence for record in store.read("r")]
        with pytest.raises(RunExistsError):
            begin(store, "r")


def test_a_run_deleted_between_two_looks_of_a_reader_is_told_as_one_that_is_not_there(
    store: FileStore, other: Store, root: Path
) -> None:
    token = begin(store, "r")
    for _ in range(3):
        work(store, token, "a")
    with store._reading("test") as tx:
        assert tx.row("r") is not None
        other.delete_run("r", force=True)
        assert tx.newest_checkpoint("r") is None
        assert 3 == tx.newest("r")
        for read in (tx.records, tx.entries, tx.signals):
            with pytest.raises(RunNotFoundError):
                read("r")
    assert [] == store.read("r")
