"""Points that workflows mark with `.checkpoint()`: what stores of `CheckpointData` show of them, and going on from them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from milepost import (
    END,
    CheckpointData,
    CheckpointNotFoundError,
    Engine,
    FileCheckpointStore,
    Graph,
    InputMismatchError,
    MemoryCheckpointStore,
    RunExistsError,
    StepError,
    Steps,
    Workflow,
    WorkflowContext,
    branch,
    parallel,
    step,
    workflow,
)
from milepost.errors import (
    CheckpointCorruptError,
    CheckpointMigrationError,
    CheckpointWriteError,
    NonDeterminismError,
    OptionError,
    WrongFlowError,
)


class Remembering:
    """A store of points as a user writes it."""

    def __init__(self) -> None:
        self._storage: dict[str, dict[str, CheckpointData]] = {}
        self.saves: list[str] = []
        self.broken_at: str | None = None

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        if data.checkpoint_id == self.broken_at:
            raise OSError("no space left")
        self.saves.append(data.checkpoint_id)
        if workflow_id not in self._storage:
            self._storage[workflow_id] = {}
        self._storage[workflow_id][data.checkpoint_id] = data

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData | None:
        return self._storage.get(workflow_id, {}).get(checkpoint_id)

    async def load_latest(self, workflow_id: str) -> CheckpointData | None:
        checkpoints = list(self._storage.get(workflow_id, {}).values())
        if not checkpoints:
            return None
        checkpoints.sort(key=lambda c: c.saved_at, reverse=True)
        return checkpoints[0]

    async def clear(self, workflow_id: str) -> None:
        self._storage.pop(workflow_id, None)

    async def list_checkpoints(self, workflow_id: str) -> list[str]:
        return list(self._storage.get(workflow_id, {}).keys())

    def elsewhere(self) -> Remembering:
        """The same data as another process sees it: through JSON, and with no journal."""
        other = Remembering()
        for run_id, points in self._storage.items():
            for name, point in points.items():
                data = json.loads(json.dumps(point.to_dict()))
                other._storage.setdefault(run_id, {})[name] = CheckpointData.from_dict(data)
        return other


class Shelf:
    """Bytes by run and node, as a user keeps them."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, bytes]] = {}

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        self.kept.setdefault(run_id, {})[node_id] = data

    def load(self, run_id: str, node_id: str) -> bytes:
        return self.kept[run_id][node_id]

    def list(self, run_id: str) -> list[Any]:
        return [_Info(node_id) for node_id in self.kept.get(run_id, {})]

    def delete(self, run_id: str, node_id: str) -> None:
        del self.kept[run_id][node_id]

    def delete_run(self, run_id: str) -> None:
        self.kept.pop(run_id, None)

    def close(self) -> None:
        pass

    def elsewhere(self) -> Shelf:
        other = Shelf()
        other.kept = {run_id: dict(nodes) for run_id, nodes in self.kept.items()}
        return other


@dataclass
class _Info:
    node_id: str


@dataclass
class Order:
    total: float
    lines: list[str] = field(default_factory=list)


@dataclass
class Shop:
    """Workflows whose steps log themselves; `fails` are those that fail."""

    log: list[str] = field(default_factory=list)
    fails: set[str] = field(default_factory=set)

    def does(self, name: str, output: Any = None) -> Callable[..., Any]:
        def work(*args: Any) -> Any:
            self.log.append(name)
            if name in self.fails:
                raise ValueError(f"no {name} today")
            return output if output is not None else name.upper()

        return work

    def line(self, names: str = "abcd", marked: str = "bd", name: str = "line") -> Workflow[[int], str]:
        """Steps in a row; those in `marked` mark a point."""

        @workflow(name)
        def line(n: int) -> Steps[str]:
            for each in names:
                one = step(each).python(self.does(each), args=(n,))
                yield one.checkpoint() if each in marked else one
            return names

        return line

    def order(self) -> Order:
        self.log.append("order")
        return Order(2.5, ["tea"])

    def everything(self) -> Workflow[..., list[Any]]:
        """Every construct, then a marked step, then one that fails while it is told to."""
        does, log = self.does, self.log

        @workflow("inner")
        def inner(a: int) -> Steps[str]:
            yield step("i1").python(does("i1"), args=(a,))
            return "in"

        def count(state: dict[str, int]) -> dict[str, int]:
            log.append("n1")
            return {**state, "n": 1}

        graph = Graph(dict).add_node("n1", count).add_edge("n1", END).set_entry("n1").compile("g")

        @workflow("everything", version=3, types=[Order])
        def everything(ctx: WorkflowContext[Any], n: int = 1) -> Steps[list[Any]]:
            order = yield step("order").python(self.order)
            skipped = yield step("skipped").when(lambda c: False).python(does("never"))
            both = yield parallel("both", step("x").python(does("x")), step("y").python(does("bad")))
            chosen = yield branch("br", (lambda c: False, step("p").python(does("p"))), (lambda c: True, step("q").python(does("q"))))  # fmt: skip  # noqa: E501
            mapped = yield step("m").map(double, [1, 2, 3])
            keyed = yield step("k").map(double, [4, 5], key=lambda item: f"item {item}")
            sub = yield step("sub").subworkflow(inner, {"a": n})
            walked = yield step("walked").subworkflow(graph, {"s": 0})
            instead = yield step("instead").python(does("bad")).on_error(lambda c, r: step("fb").python(does("fb")))
            handed = yield step("handed").python(does("bad")).as_result()
            when = ctx.now()
            yield step("mark").python(does("mark"), args=(n, when)).checkpoint()
            yield step("last").python(does("last"))
            return [
                order, skipped.reason, [r.success for r in both], chosen.inner_output, mapped, keyed, sub.final_output,
                walked.final_output, instead, handed.error, ctx.version, when,
            ]  # fmt: skip

        return everything


def double(item: int) -> int:
    return 2 * item


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(params=["files", "memory"])
def view(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileCheckpointStore | MemoryCheckpointStore]:
    view = FileCheckpointStore(tmp_path / "kept") if request.param == "files" else MemoryCheckpointStore()
    yield view
    view.close()


def ask(awaitable: Any) -> Any:
    async def asked() -> Any:
        return await awaitable

    return asyncio.run(asked())


def run_to_failure(verbs: Any, store: Any, flow: Any, run_id: str = "r", **inputs: Any) -> None:
    with pytest.raises(StepError):
        verbs.run(Engine(store), flow, run_id=run_id, **inputs)


def outputs(point: CheckpointData | None) -> dict[str, Any]:
    assert point is not None
    return {result["name"]: result["output"] for result in point.step_results}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.json"))


# -- what is shown ---------------------------------------------------------------------------------------------


def test_a_view_lists_the_marked_steps_alone_in_their_order(verbs: Any, view: Any, shop: Shop) -> None:
    verbs.run(Engine(view), shop.line(), n=1, run_id="r")
    assert ["b", "d"] == ask(view.list_checkpoints("r"))
    assert ask(view.load("r", "a")) is None
    assert ask(view.load("r", "d")) == ask(view.load_latest("r"))
    point = ask(view.load("r", "b"))
    begun = Engine(view).store.read("r", limit=1)[0].fields()
    assert ("b", "line", begun["inputs_hash"][:16]) == (point.checkpoint_id, point.workflow_name, point.inputs_hash)
    assert {"a": "A", "b": "B"} == outputs(point)
    result = point.step_results[0]
    assert ("python", True, None, "succeeded") == (
        result["step_type"], result["success"], result["error"], result["outcome"],
    )  # fmt: skip


def test_a_view_knows_nothing_of_a_run_without_marks(verbs: Any, view: Any, shop: Shop) -> None:
    verbs.run(Engine(view), shop.line(marked=""), n=1, run_id="r")
    assert [] == ask(view.list_checkpoints("r"))
    assert ask(view.load_latest("r")) is None


def test_what_is_made_of_steps_shows_what_those_gave(verbs: Any, view: Any, shop: Shop) -> None:
    shop.fails = {"bad"}
    verbs.run(Engine(view), shop.everything(), run_id="r")
    shown = outputs(ask(view.load_latest("r")))
    assert {"total": 2.5, "lines": ["tea"]} == {name: shown["order"][name] for name in ("total", "lines")}
    assert [("both/x", True, "X"), ("both/y", False, None)] == [
        (child["name"], child["success"], child["output"]) for child in shown["both"]["child_results"]
    ]
    assert {"selected_index": 1, "selected_step_name": "q", "inner_output": "Q"} == shown["br"]
    assert [2, 4, 6] == shown["m"]
    assert {"item 4": 8, "item 5": 10} == {name.replace("%20", " "): value for name, value in shown["k"].items()}
    assert ("in", {"s": 0, "n": 1}) == (shown["sub"]["final_output"], shown["walked"]["final_output"])
    assert ("FB", None) == (shown["instead"], shown["handed"])
    assert "predicate_false" == shown["skipped"]["reason"]
    assert "I1" == shown["sub/i1"]
    assert "last" not in shown


def test_what_a_resume_superseded_is_no_point_any_more(verbs: Any, view: Any, shop: Shop) -> None:
    flow = shop.line()
    verbs.run(Engine(view), flow, n=1, run_id="r")
    shop.fails = {"c"}
    with pytest.raises(StepError):
        verbs.resume_from(Engine(view), flow, "r", "b")
    assert ["b"] == ask(view.list_checkpoints("r"))
    assert "b" == ask(view.load_latest("r")).checkpoint_id


def test_a_point_saved_by_hand_into_a_workflows_run_is_shown_and_changes_nothing_of_the_run(
    verbs: Any, view: Any, shop: Shop
) -> None:
    flow, engine = shop.line(), Engine(view)
    shop.fails = {"c"}
    run_to_failure(verbs, view, flow, n=1)
    mine = CheckpointData("mine", "line", "0" * 16, ({"name": "zzz", "output": 1},), datetime.now(UTC))
    ask(view.save("r", mine))
    assert ["b", "mine"] == ask(view.list_checkpoints("r"))
    assert mine == ask(view.load_latest("r"))
    shop.fails = set()
    assert "abcd" == verbs.resume(engine, flow, "r")
    assert [*"abc", *"cd"] == shop.log
    assert ["b", "mine", "d"] == ask(view.list_checkpoints("r"))


# -- the folder ------------------------------------------------------------------------------------------------


def test_the_newest_marked_point_alone_is_a_file(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    view = FileCheckpointStore(tmp_path)
    seen: list[list[str]] = []

    @workflow("watched")
    def watched(n: int) -> Steps[None]:
        for name in "abc":
            yield step(name).python(shop.does(name)).checkpoint()
            seen.append(files(tmp_path / "r"))

    verbs.run(Engine(view), watched, n=1, run_id="r")
    assert [["a.json"], ["b.json"], ["c.json"]] == seen
    text = (tmp_path / "r" / "c.json").read_text(encoding="utf-8")
    assert ask(view.load_latest("r")) == CheckpointData.from_dict(json.loads(text))
    assert text.startswith('{\n  "checkpoint_id": "c",')
    assert [] == list((tmp_path / ".milepost" / "temporary").iterdir())


def test_files_of_direct_saves_stay_beside_it(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    view = FileCheckpointStore(tmp_path)
    shop.fails = {"c"}
    run_to_failure(verbs, view, shop.line(), n=1)
    for name in ("mine", "b"):
        ask(view.save("r", CheckpointData(name, "line", "0" * 16, ({"name": name},), datetime.now(UTC))))
    shop.fails = set()
    verbs.resume(Engine(view), shop.line(), "r")
    assert ["b.json", "d.json", "mine.json"] == files(tmp_path / "r")


def test_a_point_that_counts_no_more_has_no_file(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    view = FileCheckpointStore(tmp_path)
    verbs.run(Engine(view), shop.line(), n=1, run_id="r")
    assert ["d.json"] == files(tmp_path / "r")
    shop.fails = {"c"}
    with pytest.raises(StepError):
        verbs.resume_from(Engine(view), shop.line(), "r", "b")
    assert ["b.json"] == files(tmp_path / "r")


def test_a_run_that_is_deleted_does_not_rise_from_its_file(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    view = FileCheckpointStore(tmp_path)
    engine = Engine(view)
    for run_id in ("r", "pruned", "cleared"):
        verbs.run(engine, shop.line(), n=1, run_id=run_id)
    engine.delete_run("r")
    ask(view.clear("cleared"))
    assert {"pruned"} == set(engine.store.prune(older_than=0).deleted)
    for run_id in ("r", "pruned", "cleared"):
        assert not (tmp_path / run_id).exists()
        with pytest.raises(CheckpointNotFoundError):
            verbs.resume(engine, shop.line(), run_id)


def test_a_file_that_cannot_be_written_is_told_and_stops_nothing(
    verbs: Any, tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    view = FileCheckpointStore(tmp_path)

    def block() -> None:
        (tmp_path / "r" / "b.json").mkdir()

    @workflow("blocked")
    def blocked() -> Steps[str]:
        yield step("a").python(block)
        yield step("b").python(shop.does("b")).checkpoint()
        return "done"

    assert "done" == verbs.run(Engine(view), blocked, run_id="r")
    assert "B" == outputs(ask(view.load("r", "b")))["b"]
    assert [True] == ["'r' has no file" in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


# -- a user's own store ----------------------------------------------------------------------------------------


def test_a_mark_is_the_only_save_to_a_users_store_of_points(verbs: Any, shop: Shop) -> None:
    user = Remembering()
    verbs.run(Engine(user), shop.line(), n=1, run_id="r")
    assert ["b", "d"] == user.saves
    point = ask(user.load_latest("r"))
    assert ("d", "line", dict(zip("abcd", "ABCD", strict=True))) == (
        point.checkpoint_id, point.workflow_name, outputs(point),
    )  # fmt: skip


def test_a_save_that_fails_stops_the_run_and_a_resume_goes_on_once_it_works(verbs: Any, shop: Shop) -> None:
    user, flow = Remembering(), shop.line()
    user.broken_at = "b"
    with pytest.raises(CheckpointWriteError, match="no space left"):
        verbs.run(Engine(user), flow, n=1, run_id="r")
    with pytest.raises(CheckpointWriteError, match="no space left"):
        verbs.resume(Engine(user), flow, "r", checkpoint_failure_fatal=False)
    assert ([*"ab", "b"], []) == (shop.log, user.saves)
    user.broken_at = None
    assert "abcd" == verbs.resume(Engine(user), flow, "r")
    assert [*"ab", "b", *"bcd"] == shop.log


def test_the_same_process_goes_on_from_every_step(verbs: Any, shop: Shop) -> None:
    user, flow = Remembering(), shop.line()
    shop.fails = {"d"}
    run_to_failure(verbs, user, flow, n=1)
    shop.fails = set()
    assert "abcd" == verbs.resume(Engine(user), flow, "r")
    assert [*"abcd", "d"] == shop.log
    assert "abcd" == verbs.resume(Engine(user), flow, "r")
    assert [*"abcd", "d"] == shop.log
    with pytest.raises(RunExistsError):
        verbs.run(Engine(user), flow, n=1, run_id="r")


def test_another_process_goes_on_from_the_newest_point(verbs: Any, shop: Shop) -> None:
    user, flow = Remembering(), shop.line()
    shop.fails = {"d"}
    run_to_failure(verbs, user, flow, n=1)
    shop.fails, other = set(), user.elsewhere()
    result = verbs.resume(Engine(other), flow, "r", inputs={"n": 1}, full=True)
    assert ("abcd", ("a", "b"), "c") == (result.output, result.resumed.skipped, result.resumed.next_node)
    assert [*"abcd", *"cd"] == shop.log
    point = ask(other.load_latest("r"))
    assert ("d", dict(zip("abcd", "ABCD", strict=True))) == (point.checkpoint_id, outputs(point))
    assert "abcd" == verbs.resume(Engine(other.elsewhere()), flow, "r", inputs={"n": 1})
    assert [*"abcd", *"cd"] == shop.log


def test_every_construct_is_answered_from_a_point(verbs: Any, shop: Shop) -> None:
    user, flow = Remembering(), shop.everything()
    shop.fails = {"bad", "last"}
    run_to_failure(verbs, user, flow)
    shop.fails = set()
    whole = verbs.resume(Engine(user), flow, "r")
    elsewhere = [user.elsewhere()]
    ran = list(shop.log)
    answer = verbs.resume(Engine(elsewhere[0]), flow, "r", inputs={"n": 1})
    assert whole == answer
    assert Order(2.5, ["tea"]) == answer[0]
    assert 3 == answer[-2]
    assert [*ran, "last"] == shop.log
    elsewhere.append(elsewhere[0].elsewhere())
    assert whole == verbs.resume(Engine(elsewhere[1]), flow, "r", inputs={"n": 1})


def test_a_point_in_the_middle_of_a_branch_keeps_its_choice(verbs: Any, shop: Shop) -> None:
    user = Remembering()
    asked: list[str] = []

    def once(ctx: WorkflowContext[Any]) -> bool:
        asked.append("asked")
        return len(asked) == 1

    @workflow("inner")
    def inner() -> Steps[str]:
        yield step("first").python(shop.does("first")).checkpoint()
        yield step("second").python(shop.does("second"))
        return "in"

    @workflow("outer")
    def outer() -> Steps[Any]:
        chosen = yield branch("br", (once, step("sub").subworkflow(inner, {})))
        return chosen.inner_output.final_output

    shop.fails = {"second"}
    run_to_failure(verbs, user, outer)
    shop.fails = set()
    assert "in" == verbs.resume(Engine(user.elsewhere()), outer, "r")
    assert (["asked"], ["first", "second", "second"]) == (asked, shop.log)


def test_other_inputs_and_none_are_refused_with_both_hashes_and_nothing_runs(verbs: Any, shop: Shop) -> None:
    user, flow = Remembering(), shop.line()
    shop.fails = {"d"}
    run_to_failure(verbs, user, flow, n=1)
    shop.log.clear()
    other = user.elsewhere()
    with pytest.raises(InputMismatchError) as caught:
        verbs.resume(Engine(other), flow, "r", inputs={"n": 2})
    recorded, given = flow._definition.inputs_hash({"n": 1})[:16], flow._definition.inputs_hash({"n": 2})[:16]
    assert (recorded, given) == (caught.value.expected_hash, caught.value.actual_hash[:16])
    assert recorded in str(caught.value)
    assert given in str(caught.value)
    with pytest.raises(OptionError, match="give them to resume"):
        verbs.resume(Engine(other), flow, "r")
    assert "refuse" == verbs.plan(Engine(other), flow, "r").verdict
    with pytest.raises(WrongFlowError, match="'line'"):
        verbs.resume(Engine(other), shop.line(name="another"), "r", inputs={"n": 1})
    with pytest.raises(NonDeterminismError, match="'a' with \\[1\\]"):
        verbs.resume(Engine(other), flow, "r", inputs={"n": 2}, compare_inputs=False)
    with pytest.raises(CheckpointNotFoundError):
        verbs.resume(Engine(other), flow, "unknown", inputs={"n": 1})
    assert ([], ["b"]) == (shop.log, ask(other.list_checkpoints("r")))


def test_inputs_that_are_all_left_at_their_defaults_need_not_be_given(verbs: Any, shop: Shop) -> None:
    user, flow = Remembering(), shop.everything()
    shop.fails = {"last"}
    run_to_failure(verbs, user, flow)
    shop.fails = set()
    assert 3 == verbs.resume(Engine(user.elsewhere()), flow, "r")[-2]


def test_what_was_rolled_back_is_in_no_point(verbs: Any, shop: Shop) -> None:
    user = Remembering()

    @workflow("booking")
    def booking() -> Steps[str]:
        yield step("look").python(shop.does("look")).checkpoint()
        yield step("book").python(shop.does("book")).with_rollback(lambda ctx: shop.log.append("unbook")).checkpoint()
        yield step("pay").python(shop.does("pay"))
        return "booked"

    shop.fails = {"pay"}
    run_to_failure(verbs, user, booking)
    assert "look" == ask(user.load_latest("r")).checkpoint_id
    shop.fails = set()
    here = user.elsewhere()
    assert "booked" == verbs.resume(Engine(user), booking, "r")
    assert ["look", "book", "pay", "unbook", "book", "pay"] == shop.log
    shop.log.clear()
    assert "booked" == verbs.resume(Engine(here), booking, "r")
    assert ["book", "pay"] == shop.log


def test_rollbacks_of_a_point_are_done_in_reverse_order_by_another_process(verbs: Any, shop: Shop) -> None:
    user = Remembering()
    is_gone = [True]

    @workflow("trip")
    def trip() -> Steps[None]:
        for name in "abc":
            undo = shop.does(f"undo {name}")
            yield step(name).python(shop.does(name)).with_rollback(lambda ctx, undo=undo: undo()).checkpoint()
        if is_gone:
            raise KeyboardInterrupt
        yield step("last").python(shop.does("last"))

    with pytest.raises(KeyboardInterrupt):
        verbs.run(Engine(user), trip, run_id="r")
    is_gone.clear()
    shop.fails = {"last"}
    with pytest.raises(StepError):
        verbs.resume(Engine(user.elsewhere()), trip, "r")
    assert [*"abc", "last", "undo c", "undo b", "undo a"] == shop.log


def test_what_a_resume_supersedes_is_gone_from_a_users_store(verbs: Any, shop: Shop) -> None:
    user, flow = Remembering(), shop.line(marked="abd")
    verbs.run(Engine(user), flow, n=1, run_id="r")
    shop.fails = {"b"}
    with pytest.raises(StepError):
        verbs.resume_from(Engine(user), flow, "r", "a")
    assert "a" == ask(user.load_latest("r")).checkpoint_id
    shop.fails = set()
    assert "abcd" == verbs.resume(Engine(user.elsewhere()), flow, "r", inputs={"n": 1})


@pytest.mark.parametrize("kind", [Remembering, Shelf])
def test_a_wait_over_a_users_store_is_refused_when_it_is_yielded(verbs: Any, shop: Shop, kind: Any) -> None:
    @workflow("waiting")
    def waiting() -> Steps[None]:
        yield step("a").python(shop.does("a")).checkpoint()
        yield step("w").wait_for("go")

    with pytest.raises(OptionError, match=f"step 'w' has to wait, and .*{kind.__qualname__}"):
        verbs.run(Engine(kind()), waiting, run_id="r")
    assert ["a"] == shop.log


# -- a user's store by run and node ----------------------------------------------------------------------------


def test_every_step_that_ended_is_saved_to_a_store_by_node(verbs: Any, shop: Shop) -> None:
    user, flow = Shelf(), shop.line()
    shop.fails = {"d"}
    run_to_failure(verbs, user, flow, n=1)
    assert [*"abc"] == list(user.kept["r"])
    shop.fails, other = set(), user.elsewhere()
    assert "abcd" == verbs.resume(Engine(user), flow, "r")
    assert [*"abcd", "d"] == shop.log
    with pytest.raises(NonDeterminismError):
        verbs.resume(Engine(other), flow, "r", inputs={"n": 2})
    with pytest.raises(OptionError, match="give them to resume"):
        verbs.resume(Engine(other), flow, "r")
    assert "abcd" == verbs.resume(Engine(other), flow, "r", inputs={"n": 1})
    assert [*"abcd", "d", "d"] == shop.log


@pytest.mark.parametrize("kind", [Remembering, Shelf])
def test_it_is_told_once_what_a_users_store_cannot_promise(
    verbs: Any, shop: Shop, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    user = kind()
    for run_id in ("r", "s"):
        verbs.run(Engine(user), shop.line(), n=1, run_id=run_id)
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    for promise in ("start record", "fence", "history", "waits", "workflow"):
        assert promise in told


# -- files that another program wrote --------------------------------------------------------------------------


def leave(base: Path, *results: dict[str, Any], inputs_hash: str, name: str = "line") -> None:
    """A file as another program writes it, with no field but those of the format."""
    (base / "r").mkdir(parents=True, exist_ok=True)
    known = ("name", "step_type", "success", "output", "duration_ms", "error")
    plain = [{key: result.get(key) for key in known} for result in results]
    point = CheckpointData(results[-1]["name"], name, inputs_hash, tuple(plain), datetime(2025, 12, 20, tzinfo=UTC))
    (base / "r" / f"{point.checkpoint_id}.json").write_text(json.dumps(point.to_dict(), indent=2), encoding="utf-8")


def done(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "step_type": "python", "success": True, "output": name.upper(), "duration_ms": 5} | fields


def test_a_run_that_has_files_alone_goes_on_from_the_newest(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    flow = shop.line()
    given = flow._definition.inputs_hash({"n": 1})[:16]
    leave(tmp_path, done("a"), done("b"), inputs_hash=given)
    view = FileCheckpointStore(tmp_path)
    with pytest.raises(InputMismatchError, match=given):
        verbs.resume(Engine(view), flow, "r", inputs={"n": 2})
    with pytest.raises(NonDeterminismError, match="python step 'b'"):
        verbs.resume(Engine(view), shop.line("acbd"), "r", inputs={"n": 1})
    assert [] == shop.log
    shop.fails = {"d"}
    with pytest.raises(StepError):
        verbs.resume(Engine(view), flow, "r", inputs={"n": 1})
    shop.fails = set()
    assert "abcd" == verbs.resume(Engine(FileCheckpointStore(tmp_path)), flow, "r", inputs={"n": 1})
    assert [*"cd", "d"] == shop.log
    assert ["b", "d"] == ask(view.list_checkpoints("r"))
    assert dict(zip("abcd", "ABCD", strict=True)) == outputs(ask(view.load_latest("r")))
    assert ["b.json", "d.json"] == files(tmp_path / "r")


def test_a_hash_of_another_program_is_none_of_these_inputs(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    flow = shop.line()
    for number, foreign in enumerate(("", flow._definition.inputs_hash({"n": 1})[:3], "md5:77")):
        leave(tmp_path / str(number), done("a"), done("b"), inputs_hash=foreign)
        view = FileCheckpointStore(tmp_path / str(number))
        with pytest.raises(InputMismatchError):
            verbs.resume(Engine(view), flow, "r", inputs={"n": 1})
        assert "abcd" == verbs.resume(Engine(view), flow, "r", inputs={"n": 1}, compare_inputs=False)


def test_files_that_tell_all_go_on_without_their_journal(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    flow = shop.everything()
    shop.fails = {"bad", "last"}
    run_to_failure(verbs, FileCheckpointStore(tmp_path / "one"), flow)
    (tmp_path / "two" / "r").mkdir(parents=True)
    (tmp_path / "one" / "r" / "mark.json").rename(tmp_path / "two" / "r" / "mark.json")
    shop.fails = set()
    whole = verbs.resume(Engine(FileCheckpointStore(tmp_path / "one")), flow, "r")
    shop.log.clear()
    assert whole == verbs.resume(Engine(FileCheckpointStore(tmp_path / "two")), flow, "r")
    assert ["last"] == shop.log


def test_a_point_that_nothing_can_go_on_from_is_refused_by_name(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    flow = shop.line()
    given = flow._definition.inputs_hash({"n": 1})[:16]
    leave(tmp_path / "one", done("a", step_type="parallel"), done("b"), inputs_hash=given)
    with pytest.raises(CheckpointMigrationError, match="parallel step 'a'"):
        verbs.resume(Engine(FileCheckpointStore(tmp_path / "one")), flow, "r", inputs={"n": 1})
    leave(tmp_path / "two", done("a", success="yes"), done("b"), inputs_hash=given)
    with pytest.raises(CheckpointCorruptError, match="none of steps"):
        verbs.resume(Engine(FileCheckpointStore(tmp_path / "two")), flow, "r", inputs={"n": 1})
    leave(tmp_path / "three", done("a", step_type="agent"), done("b"), inputs_hash=given)
    with pytest.raises(NonDeterminismError, match="agent step 'a'"):
        verbs.resume(Engine(FileCheckpointStore(tmp_path / "three")), flow, "r", inputs={"n": 1})
    assert [] == shop.log


def test_a_run_goes_on_from_an_earlier_step_of_its_point(verbs: Any, tmp_path: Path, shop: Shop) -> None:
    flow = shop.line(marked="bcd")
    leave(tmp_path, done("a"), done("b"), done("c"), inputs_hash=flow._definition.inputs_hash({"n": 1})[:16])
    engine = Engine(FileCheckpointStore(tmp_path))
    assert "abcd" == verbs.resume_from(engine, flow, "r", "a", inputs={"n": 1})
    assert [*"bcd"] == shop.log
    assert ["b", "c", "d"] == ask(FileCheckpointStore(tmp_path).list_checkpoints("r"))
