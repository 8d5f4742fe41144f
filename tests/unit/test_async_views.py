"""The asynchronous stores of marked points, on a folder and in memory, and `CheckpointData`, which they hand around."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from milepost import (
    END,
    Checkpoint,
    CheckpointData,
    FileCheckpointStore,
    Graph,
    MemoryCheckpointStore,
    RunLockedError,
    SerializeStateError,
    StoreError,
)
from milepost.adapters.checkpoint_view import FolderStore, PointFiles
from milepost.adapters.user_stores import adapted
from milepost.errors import CheckpointCorruptError, InvalidIDError, RunIDRequiredError, StoreClosedError
from milepost.testing.children import Child

GOLDEN = Path(__file__).parent.parent / "golden" / "step_workflow.json"
NOON = datetime(2025, 12, 20, 12, tzinfo=UTC)
IDS = tuple(f"step-{letter}" for letter in "jihgfedcba")

View = FileCheckpointStore | MemoryCheckpointStore


def point(checkpoint_id: str, output: Any = None, saved_at: datetime = NOON) -> CheckpointData:
    result = {"name": checkpoint_id, "step_type": "python", "success": True, "output": output, "error": None}
    return CheckpointData(checkpoint_id, "data_pipeline", "a1b2c3d4e5f67890", (result,), saved_at)


def outputs(found: CheckpointData | None) -> Any:
    assert found is not None
    return [result["output"] for result in found.step_results]


@pytest.fixture(params=["files", "memory"])
async def view(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[View]:
    async with FileCheckpointStore(tmp_path / "kept") if request.param == "files" else MemoryCheckpointStore() as view:
        yield view


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[FileCheckpointStore]:
    async with FileCheckpointStore(tmp_path / "kept") as view:
        yield view


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def leave_files(base: Path, run_id: str, *points: CheckpointData) -> None:
    """What another program leaves: files, and no journal."""
    folder = base / run_id
    folder.mkdir(parents=True, exist_ok=True)
    for left in points:
        (folder / f"{left.checkpoint_id}.json").write_text(json.dumps(left.to_dict(), indent=2), encoding="utf-8")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.json")}


# -- the protocol's rows ---------------------------------------------------------------------------------------


async def test_save_and_load_give_every_point_of_every_run_back(view: View) -> None:
    for run_id in ("run-1", "run-2"):
        for number, checkpoint_id in enumerate(IDS):
            await view.save(run_id, point(checkpoint_id, {"run": run_id, "n": number}))
    for run_id in ("run-1", "run-2"):
        for number, checkpoint_id in enumerate(IDS):
            assert point(checkpoint_id, {"run": run_id, "n": number}) == await view.load(run_id, checkpoint_id)


async def test_what_is_missing_is_none_or_empty_and_no_error(view: View) -> None:
    assert await view.load("run-x", "step-a") is None
    assert await view.load_latest("run-x") is None
    assert [] == await view.list_checkpoints("run-x")
    await view.clear("run-x")
    await view.save("run-1", point("step-a"))
    assert await view.load("run-1", "step-x") is None


async def test_a_point_saved_again_is_a_new_visit_and_the_newest(view: View) -> None:
    for number, checkpoint_id in enumerate((*IDS, IDS[2])):
        await view.save("run-1", point(checkpoint_id, number))
    assert [10] == outputs(await view.load("run-1", IDS[2]))
    assert [10] == outputs(await view.load_latest("run-1"))
    assert [*IDS[:2], *IDS[3:], IDS[2]] == await view.list_checkpoints("run-1")
    assert [1, 2] == [info.visit for info in view.store.history("run-1") if info.node_id == IDS[2]]


async def test_newest_is_the_point_of_the_latest_time_and_of_equal_ones_what_was_saved_last(view: View) -> None:
    await view.save("run-1", point("step-a", 1, NOON))
    await view.save("run-1", point("step-b", 2, NOON))
    assert [2] == outputs(await view.load_latest("run-1"))
    await view.save("run-1", point("step-c", 3, NOON - timedelta(hours=1)))
    await view.save("run-1", point("step-d", 4, NOON.astimezone(timezone(timedelta(hours=-9)))))
    assert [4] == outputs(await view.load_latest("run-1"))
    await view.save("run-1", point("step-d", 5, NOON - timedelta(hours=2)))
    assert [2] == outputs(await view.load_latest("run-1"))
    assert [5] == outputs(await view.load("run-1", "step-d"))
    assert ["step-a", "step-b", "step-c", "step-d"] == await view.list_checkpoints("run-1")


async def test_clear_takes_everything_of_that_run_away(view: View) -> None:
    for run_id in ("run-1", "run-2"):
        for checkpoint_id in IDS:
            await view.save(run_id, point(checkpoint_id))
    await view.clear("run-1")
    assert (None, None, []) == (
        await view.load("run-1", IDS[0]),
        await view.load_latest("run-1"),
        await view.list_checkpoints("run-1"),
    )
    assert list(IDS) == await view.list_checkpoints("run-2")
    await view.save("run-1", point("step-a", 1))
    assert ["step-a"] == await view.list_checkpoints("run-1")


async def test_what_is_loaded_is_the_callers_own(view: View) -> None:
    given = point("step-a", {"rows": [1]})
    await view.save("run-1", given)
    given.step_results[0]["output"]["rows"].append(2)
    (await view.load("run-1", "step-a")).step_results[0]["output"]["rows"].append(3)  # type: ignore[union-attr]
    assert [{"rows": [1]}] == outputs(await view.load("run-1", "step-a"))


async def test_a_result_that_json_would_change_is_refused_by_its_path_and_nothing_is_saved(view: View) -> None:
    class Level(IntEnum):
        HIGH = 3

    for value in ((1, 2), {1: "a"}, float("nan"), Level.HIGH, b"x", "a\ud801b"):
        with pytest.raises(SerializeStateError) as refused:
            await view.save("run-1", point("step-a", {"items": [value]}))
        assert isinstance(refused.value, ValueError)
    assert [] == await view.list_checkpoints("run-1")
    with pytest.raises(SerializeStateError, match=r"step_results\[0\]\.output\.items\[0\] is tuple"):
        await view.save("run-1", point("step-a", {"items": [(1, 2)]}))


async def test_ids_have_the_verdict_that_every_store_has(view: View) -> None:
    same_but_for_case = ("R1", "r1")
    for run_id in (*same_but_for_case, "in/voice", "../up", "a" * 320, "naïve ✓", "con", ".hidden", "trailing."):
        await view.save(run_id, point(run_id, run_id))
    for run_id in (*same_but_for_case, "in/voice", "../up", "a" * 320, "naïve ✓", "con", ".hidden", "trailing."):
        assert [run_id] == outputs(await view.load_latest(run_id))
        assert [run_id] == await view.list_checkpoints(run_id)
    for bad in ("", "   ", "..", "a\0b", "a" * 5000):
        with pytest.raises(InvalidIDError):
            await view.load(bad, "step-a")
        with pytest.raises(InvalidIDError):
            await view.load("run-1", bad)
    with pytest.raises(RunIDRequiredError):
        await view.clear(" ")
    with pytest.raises(TypeError):
        await view.load(1, "step-a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be CheckpointData, not dict"):
        await view.save("run-1", {})  # type: ignore[arg-type]


async def test_calls_after_close_say_so(tmp_path: Path) -> None:
    for view in (FileCheckpointStore(tmp_path), MemoryCheckpointStore(), FileCheckpointStore(tmp_path / "never used")):
        if "never" not in repr(view):
            await view.save("run-1", point("step-a"))
        view.close()
        view.close()
        with pytest.raises(StoreClosedError):
            await view.load("run-1", "step-a")


# -- the same journal as the engine's --------------------------------------------------------------------------


async def test_what_a_graph_recorded_is_seen_and_a_run_that_goes_on_refuses_to_be_changed(view: View) -> None:
    refused: list[Any] = []

    async def meddle(state: dict[str, int]) -> dict[str, int]:
        for attempt in (view.save("run-1", point("own")), view.clear("run-1")):
            with pytest.raises(RunLockedError) as caught:
                await attempt
            refused.append(caught.value.run_id)
        return {"n": state["n"] + 1}

    graph = (
        Graph(dict)
        .add_node("a", lambda state: {"n": state["n"] + 1})
        .add_node("meddle", meddle)
        .add_edge("a", "meddle")
        .add_edge("meddle", END)
        .set_entry("a")
        .compile("counting")
    )
    assert {"n": 2} == await graph.arun({"n": 0}, store=adapted(view), run_id="run-1")
    assert ["run-1", "run-1"] == refused
    assert ["a", "meddle"] == await view.list_checkpoints("run-1")
    newest = await view.load_latest("run-1")
    assert newest is not None
    (result,) = newest.step_results
    assert ("meddle", "counting", {"n": 2}, END, True) == (
        newest.checkpoint_id,
        newest.workflow_name,
        result["output"],
        result["next_node"],
        result["success"],
    )
    begun = adapted(view).read("run-1", limit=1)[0].fields()
    assert begun["inputs_hash"][:16] == newest.inputs_hash
    await view.save("run-1", point("by-hand", 7, datetime.now(UTC)))
    assert [7] == outputs(await view.load_latest("run-1"))


async def test_bytes_that_are_no_point_are_a_value_error(view: View) -> None:
    view.store.save("run-1", "step-a", b"anything")
    assert ["step-a"] == await view.list_checkpoints("run-1")
    for load in (view.load("run-1", "step-a"), view.load_latest("run-1")):
        with pytest.raises(CheckpointCorruptError) as caught:
            await load
        assert ("run-1", "step-a") == (caught.value.run_id, caught.value.checkpoint_id)


# -- files -----------------------------------------------------------------------------------------------------


async def test_a_point_stands_in_a_file_as_people_and_other_programs_know_it(
    files: FileCheckpointStore, base: Path
) -> None:
    saved = CheckpointData.from_dict(json.loads(GOLDEN.read_text(encoding="utf-8")))
    await files.save("run-123", saved)
    written = (base / "run-123" / "expensive_compute.json").read_bytes()
    assert json.dumps(saved.to_dict(), indent=2).encode() == written
    await files.save("run-123", point("übung", "ü"))
    assert '"output": "ü"' in next((base / "run-123").glob("*~*.json")).read_text(encoding="utf-8")
    await files.save("run-123", point("expensive_compute", "again"))
    assert "again" in (base / "run-123" / "expensive_compute.json").read_text(encoding="utf-8")
    assert 2 == len(names(base / "run-123"))
    await files.clear("run-123")
    assert not (base / "run-123").exists()


async def test_making_a_store_touches_no_file_and_its_place_is_that_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    view = FileCheckpointStore()
    FileCheckpointStore("deep/down/below")
    assert [] == list(tmp_path.iterdir())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await view.save("run-1", point("step-a"))
    assert (tmp_path / ".milepost" / "checkpoints" / "run-1" / "step-a.json").is_file()
    assert [] == list((tmp_path / "elsewhere").iterdir())
    view.close()


async def test_ids_never_lead_out_of_the_folder(files: FileCheckpointStore, base: Path, tmp_path: Path) -> None:
    for evil in ("../up", "../../up", "/abs", "a/../../b", "..\\up", "c:up"):
        await files.save(evil, point(evil))
    assert {base} == set(tmp_path.iterdir())
    assert 6 == len([folder for folder in base.glob("[!.]*") if len(names(folder)) == 1])
    assert not [path for path in base.glob("[!.]*/*/*") if path.suffix == ".json"]


async def test_the_journal_is_the_truth_and_files_beside_it_are_not(files: FileCheckpointStore, base: Path) -> None:
    await files.save("run-1", point("step-a", 1))
    (base / "run-1" / "step-a.json").write_text("damaged", encoding="utf-8")
    leave_files(base, "run-1", point("step-b", 2))
    assert [1] == outputs(await files.load("run-1", "step-a"))
    assert ["step-a"] == await files.list_checkpoints("run-1")
    assert await files.load("run-1", "step-b") is None


async def test_a_run_with_files_alone_is_read_from_them_and_nothing_is_written(
    files: FileCheckpointStore, base: Path
) -> None:
    east = timezone(timedelta(hours=5))
    leave_files(
        base,
        "run-1",
        point("a", "third", datetime(2025, 1, 1, 12, tzinfo=UTC)),
        point("z", "second", datetime(2025, 1, 1, 11, tzinfo=UTC)),
        point("y", "first", datetime(2025, 1, 1, 15, 30, tzinfo=east)),
        point("k", "second by name", datetime(2025, 1, 1, 11, tzinfo=UTC)),
    )
    # Written in another zone than ours, whose text sorts after all of them.
    first = json.loads((base / "run-1" / "y.json").read_text(encoding="utf-8"))
    first["saved_at"] = "2025-01-01T15:30:00+05:00"
    (base / "run-1" / "y.json").write_text(json.dumps(first), encoding="utf-8")
    (base / "run-1" / "b.json.tmp").write_text("{", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in (base / "run-1").iterdir()}
    assert ["y", "k", "z", "a"] == await files.list_checkpoints("run-1")
    assert ["third"] == outputs(await files.load_latest("run-1"))
    assert ["first"] == outputs(await files.load("run-1", "y"))
    assert await files.load("run-1", "b") is None
    assert before == {path.name: path.read_bytes() for path in (base / "run-1").iterdir()}


async def test_the_next_write_records_what_files_told_first(files: FileCheckpointStore, base: Path) -> None:
    leave_files(base, "run-1", point("b", 1, NOON), point("a", 2, NOON), point("c", 0, NOON - timedelta(days=1)))
    await files.save("run-1", point("b", 3, NOON - timedelta(days=9)))
    history = files.store.history("run-1")
    assert ["c", "a", "b", "b"] == [info.node_id for info in history]
    assert [1, 2, 3, 4] == [info.sequence for info in history]
    assert [NOON - timedelta(days=1), NOON, NOON] == [info.timestamp for info in history[:3]]
    assert ["c", "a", "b"] == await files.list_checkpoints("run-1")
    assert ([2], [3]) == (outputs(await files.load_latest("run-1")), outputs(await files.load("run-1", "b")))
    assert [1] == outputs(CheckpointData.decode(files.store.load("run-1", "b", visit=1)))
    assert {"a.json", "b.json", "c.json"} == names(base / "run-1")


async def test_an_engine_that_speaks_of_a_run_with_files_alone_finds_it(files: FileCheckpointStore, base: Path) -> None:
    leave_files(base, "run-1", point("a", 1))
    assert "interrupted" == files.store.get_run("run-1").info.status
    leave_files(base, "run-2", point("a", 2))
    newest = files.store.latest("run-2").point
    assert newest is not None
    assert [2] == outputs(CheckpointData.decode(newest.envelope()))


async def test_a_damaged_file_is_a_value_error_that_names_it_and_hides_no_other(
    files: FileCheckpointStore, base: Path
) -> None:
    leave_files(base, "run-1", point("good", 1))
    whole = json.dumps(point("bad").to_dict())
    bad = base / "run-1" / "bad.json"
    for damage in ("", "{", whole[:-5], "[]", "null", whole.replace('"saved_at"', '"at"'), '{"checkpoint_id": "bad"}'):
        bad.write_text(damage, encoding="utf-8")
        for call in (files.load("run-1", "bad"), files.load_latest("run-1"), files.list_checkpoints("run-1")):
            with pytest.raises(CheckpointCorruptError, match=r"bad\.json"):
                await call
        assert [1] == outputs(await files.load("run-1", "good"))
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"bad\.json"):
        await files.save("run-1", point("next"))
    bad.unlink()
    leave_files(base, "run-1", point("other"))
    (base / "run-1" / "other.json").rename(base / "run-1" / "copy.json")
    with pytest.raises(ValueError, match=r"copy\.json holds checkpoint 'other'"):
        await files.load_latest("run-1")
    await files.clear("run-1")
    assert not (base / "run-1").exists()


@pytest.mark.parametrize("deed", ["save", "clear"])
async def test_a_file_ends_as_the_journal_says_whoever_was_faster(
    deed: str, files: FileCheckpointStore, base: Path
) -> None:
    async def overtake() -> None:
        async with FileCheckpointStore(base) as other:
            await (other.save("run-1", point("step-a", "newer")) if deed == "save" else other.clear("run-1"))

    class Slow(PointFiles):
        """Another process comes between the journal and the file, once."""

        is_overtaken = False

        def write(self, run_id: str, written: CheckpointData) -> bool:
            if not self.is_overtaken:
                self.is_overtaken = True
                asyncio.run(overtake())
            return super().write(run_id, written)

    store = files.store
    assert isinstance(store, FolderStore)
    store.points = Slow(base, store._files)
    await files.save("run-1", point("step-a", "older"))
    if deed == "save":
        written = json.loads((base / "run-1" / "step-a.json").read_text(encoding="utf-8"))
        assert ["newer"] == outputs(CheckpointData.from_dict(written)) == outputs(await files.load("run-1", "step-a"))
    else:
        assert not (base / "run-1").exists()


async def test_what_the_disk_refuses_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    view = FileCheckpointStore(tmp_path / "taken")
    for call in (view.save("run-1", point("a")), view.load("run-1", "a"), view.clear("run-1"), view.load_latest("r")):
        with pytest.raises(OSError) as caught:
            await call
        assert isinstance(caught.value, StoreError)


async def test_a_file_that_cannot_be_written_fails_the_save(files: FileCheckpointStore, base: Path) -> None:
    await files.save("run-1", point("step-a", 1))
    (base / "run-1" / "step-b.json").mkdir()
    with pytest.raises(StoreError):
        await files.save("run-1", point("step-b", 2))
    assert [] == list((base / ".milepost" / "temporary").iterdir())
    assert [2] == outputs(await files.load("run-1", "step-b")), "the journal has it"


# -- event loops, processes ------------------------------------------------------------------------------------

_opened: list[tuple[str, str]] = []
_watched: list[Path] = []


def _note_open(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"open", "os.rename", "os.mkdir", "os.scandir", "os.listdir", "sqlite3.connect"} and _watched:
        path = arguments[0]
        if isinstance(path, (str, bytes, os.PathLike)) and str(_watched[0]) in os.fsdecode(path):
            _opened.append((event, threading.current_thread().name))


sys.addaudithook(_note_open)


@pytest.fixture
def opened(base: Path) -> Iterator[list[tuple[str, str]]]:
    """What is opened below the folder, and in which thread."""
    _opened.clear()
    _watched[:] = [base]
    yield _opened
    _watched.clear()


async def test_files_are_touched_in_no_thread_of_the_event_loop(
    base: Path, opened: list[tuple[str, str]], files: FileCheckpointStore
) -> None:
    leave_files(base, "run-2", point("a"))
    opened.clear()
    await asyncio.gather(*(files.save("run-1", point(checkpoint_id)) for checkpoint_id in IDS))
    await files.load("run-1", IDS[0])
    await files.load_latest("run-2")
    await files.list_checkpoints("run-2")
    await files.clear("run-1")
    assert 20 < len(opened)
    assert {"milepost-lane"} == {thread for _, thread in opened}


async def test_a_save_that_has_begun_is_waited_for_when_its_task_is_cancelled(
    files: FileCheckpointStore, base: Path
) -> None:
    await files.save("run-1", point("step-a"))
    saving = asyncio.create_task(files.save("run-1", point("step-b")))
    await asyncio.sleep(0)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert ["step-a", "step-b"] == await files.list_checkpoints("run-1")
    assert {"step-a.json", "step-b.json"} == names(base / "run-1")


def test_one_view_serves_several_event_loops_at_once(base: Path) -> None:
    view = FileCheckpointStore(base)

    async def work(mine: str) -> list[str]:
        await asyncio.gather(*(view.save(mine, point(checkpoint_id)) for checkpoint_id in IDS))
        return await view.list_checkpoints(mine)

    told: dict[str, list[str]] = {}

    def begin(run_id: str) -> None:
        told[run_id] = asyncio.run(work(run_id))

    threads = [threading.Thread(target=begin, args=(f"run-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"run-{n}": sorted(IDS) for n in range(4)} == {run_id: sorted(ids) for run_id, ids in told.items()}
    view.close()


CHILD = """
import asyncio
from datetime import UTC, datetime
from milepost import CheckpointData, FileCheckpointStore

view = FileCheckpointStore(base)

def saved(run_id, checkpoint_id, output):
    result = {"name": checkpoint_id, "output": output}
    return view.save(run_id, CheckpointData(checkpoint_id, "w", "0" * 16, (result,), datetime.now(UTC)))

def call(awaitable):
    async def main():
        return await awaitable
    return asyncio.run(main())
"""


@pytest.fixture
def child(base: Path) -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def begin() -> Child:
        children.append(Child())
        children[-1].tell(CHILD, base=str(base))
        return children[-1]

    yield begin
    for started in children:
        started.kill()


async def test_processes_that_save_at_once_lose_nothing_and_leave_the_newest_in_the_file(
    files: FileCheckpointStore, base: Path, child: Callable[[], Child]
) -> None:
    children = [child() for _ in range(2)]
    for number, other in enumerate(children):
        other.begin("for n in range(15): call(saved('run-1', 'shared', [who, n]))", who=number)
    for other in children:
        other.answer()
    visits = [info.visit for info in files.store.history("run-1")]
    assert list(range(1, 31)) == visits
    newest = await files.load("run-1", "shared")
    file = json.loads((base / "run-1" / "shared.json").read_text(encoding="utf-8"))
    assert newest == CheckpointData.from_dict(file)


async def test_processes_that_first_write_to_a_run_with_files_alone_take_them_in_once(
    files: FileCheckpointStore, base: Path, child: Callable[[], Child]
) -> None:
    leave_files(base, "run-1", *(point(checkpoint_id) for checkpoint_id in IDS))
    children = [child() for _ in range(2)]
    for number, other in enumerate(children):
        other.begin("call(saved('run-1', f'own-{who}', who))", who=number)
    for other in children:
        other.answer()
    told = [info.node_id for info in files.store.history("run-1")]
    assert [sorted(IDS), ["own-0", "own-1"]] == [told[:10], sorted(told[10:])]


async def test_what_was_reported_saved_is_there_after_a_kill_and_no_file_is_torn(
    files: FileCheckpointStore, base: Path, child: Callable[[], Child]
) -> None:
    for turn in range(3):
        other = child()
        reported = base.parent / f"reported-{turn}"
        other.begin(
            "with open(reported, 'a') as told:\n"
            "    for n in range(10**6):\n"
            "        call(saved('run-1', f'p{n % 3}', {'n': n, 'text': 'x' * 20_000}))\n"
            "        told.write(f'{n}\\n'); told.flush()",
            reported=str(reported),
        )
        while not reported.exists() or reported.read_text().count("\n") < 5:
            await asyncio.sleep(0.01)
        other.kill()
        last = int(reported.read_text().split("\n")[-2])
        newest = await files.load_latest("run-1")
        assert outputs(newest)[0]["n"] in {last, last + 1}
        for path in (base / "run-1").glob("*.json"):
            assert CheckpointData.decode(path.read_bytes()).checkpoint_id == path.stem
    await files.clear("run-1")
    assert not (base / "run-1").exists()


# -- CheckpointData --------------------------------------------------------------------------------------------


def test_checkpoint_data_refuses_what_cannot_be_told_apart_later() -> None:
    good = point("step-a").to_dict() | {"saved_at": NOON}
    assert CheckpointData(**good) == CheckpointData(**good | {"saved_at": NOON.isoformat()}) == point("step-a")
    assert "v1:a1b2" == CheckpointData(**good | {"inputs_hash": "v1:a1b2"}).inputs_hash
    for field, value in [
        ("checkpoint_id", ""),
        ("checkpoint_id", " "),
        ("checkpoint_id", None),
        ("workflow_name", ""),
        ("inputs_hash", None),
        ("inputs_hash", 7),
        ("step_results", ["text"]),
        ("step_results", "text"),
        ("saved_at", datetime(2025, 12, 20, 12)),
        ("saved_at", "2025-12-20T12:00:00"),
        ("saved_at", "noon"),
        ("saved_at", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
    ]:
        with pytest.raises(ValueError, match=field):
            CheckpointData(**(good | {field: value}))


def test_checkpoint_data_is_the_same_after_its_way_through_json() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    data = CheckpointData.from_dict(golden)
    assert golden == data.to_dict()
    assert (datetime(2025, 12, 20, 15, 30, tzinfo=UTC), 2) == (data.saved_at, len(data.step_results))
    assert data == CheckpointData.decode(data.encode()) == CheckpointData.decode(data.encode(indent=2))
    twice_that_hour = datetime(2025, 10, 26, 2, 30, 0, 123456, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    odd = point("step-a", [1, 2.5, None, True, "ü", 2**70, 1e16], twice_that_hour)
    assert odd == CheckpointData.decode(odd.encode())
    assert "2025-10-26T01:30:00.123456Z" == odd.to_dict()["saved_at"]
    assert "expensive_compute" == Checkpoint.decode(data.encode()).node_id
    assert data == CheckpointData.from_dict(golden | {"more": "fields may follow"})


def test_dicts_that_are_no_checkpoint_data_are_corrupt_and_say_why() -> None:
    whole = point("step-a").to_dict()
    for name in whole:
        with pytest.raises(CheckpointCorruptError, match=f"has no {name}"):
            CheckpointData.from_dict({key: value for key, value in whole.items() if key != name})
    for change in ({"saved_at": 5}, {"saved_at": "2025-12-20T12:00:00"}, {"step_results": {}}, {"inputs_hash": None}):
        with pytest.raises(CheckpointCorruptError):
            CheckpointData.from_dict(whole | change)
    with pytest.raises(CheckpointCorruptError, match="no JSON object but list"):
        CheckpointData.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(CheckpointCorruptError, match="none of a workflow"):
        CheckpointData.decode(Checkpoint("r", "a", None, {}).encode())
