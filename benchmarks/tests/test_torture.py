"""Many processes on one store, killed and frozen at random, and proof that the check finds every fault there could be.

The long form is `python -m benchmarks.torture`; what it does and how it judges is told there.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from milepost import SQLiteStore
from postgres_server import Server

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.torture.__main__ import main
from benchmarks.torture.checking import Disturbance, Entry, Execution, Journal, Log, Saved, Verdict, judge, path_of
from benchmarks.torture.ordeal import Ordeal, torture
from benchmarks.torture.reading import parse_export, read_journals, read_log
from benchmarks.torture.work import Outside, Task, call_verbs, flow_of


@dataclass(frozen=True)
class Place:
    """A store that processes share, and what restarts its server if it has one."""

    url: str
    restart: Callable[[], None] | None = None


def on_server(server: Server) -> Place:
    """A database of a server that may be restarted, as by a crash."""
    return Place(server.dsn, lambda: server.restart("immediate"))


PLACES: dict[str, Callable[[pytest.FixtureRequest, Path], Place]] = {
    "sqlite": lambda request, folder: Place(f"sqlite:///{folder}/runs.db"),
    "file": lambda request, folder: Place(f"file://{folder}/runs"),
    "postgres": lambda request, folder: on_server(request.getfixturevalue("own_server")),
}
"""A store is one line here."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_every_run_ends_right_and_no_late_write_counts_however_processes_die(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
):
    place = PLACES[kind](request, tmp_path)
    restarts = 0 if place.restart is None else 2
    takeovers = again = offered = 0
    for seed in range(11, 17):
        ordeal = Ordeal(
            store=place.url, name=f"torture-{seed}", processes=4, verbs=1, runs=24, kills=6, freezes=5, restarts=restarts,
            seed=seed, pause=0.04, restart=place.restart,
        )  # fmt: skip
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = torture(ordeal, folder)
        assert () == outcome.verdict.faults
        assert (6, 5, restarts) == (outcome.kills, outcome.freezes, outcome.restarts)
        takeovers += outcome.verdict.takeovers
        again += outcome.verdict.again
        offered += outcome.verdict.offered
        if takeovers and again and offered:
            return
    # It is to be no walk in the park: owners die within nodes, and those that are thawed try to go on.
    pytest.fail(f"nothing was at stake: {takeovers} takeovers, {again} nodes again, {offered} late writes")


# -- the check finds what is wrong: a story made by hand --------------------------------------------------------


KILLED, SUCCESSOR = 1, 2
PATH = path_of(5)


@dataclass
class Story:
    """One run of five nodes. Process 1 is killed in the third, and process 2 goes on with it. A step takes a second."""

    records: list[dict[str, Any]]
    log: Log
    disturbances: list[Disturbance]
    status: str = "finished"
    live: tuple[tuple[int, int | None], ...] = ()
    damage: tuple[str, ...] = ()
    lease: float = 9.0

    def verdict(self) -> Verdict:
        entries = tuple(
            Entry(fields["sequence"], fields["kind"], fields["node_id"], fields["visit"], fields)
            for fields in self.records
        )
        journal = Journal("r", self.status, self.live, entries, self.damage)
        return judge(["r"], PATH, {"r": journal}, self.log, self.disturbances, self.lease)


def record(sequence: int, kind: str, epoch: int, at: float, node: int | None = None, **fields: Any) -> dict[str, Any]:
    node_id, visit = ("", 1) if node is None else PATH[node]
    if node is not None:
        fields["state"] = {"run": "r", "trail": [f"{name}#{number}" for name, number in PATH[: node + 1]]}
    timestamp = f"2026-01-01T00:00:{at:09.6f}Z"
    return {
        "sequence": sequence, "kind": kind, "node_id": node_id, "visit": visit, "epoch": epoch, "timestamp": timestamp,
        **fields,
    }  # fmt: skip


NOON = 1767225600.0
"""When the story begins: the second 0 of its timestamps."""


def call(node: int, pid: int, at: float) -> Execution:
    return Execution("r", *PATH[node], 1, pid, NOON + at)


def sound() -> Story:
    return Story(
        records=[
            record(0, "start", 1, 0),
            record(1, "checkpoint", 1, 1.5, 0),
            record(2, "checkpoint", 1, 2.5, 1),
            record(3, "owner", 2, 4.5, crashed=True),
            record(4, "checkpoint", 2, 5.5, 2),
            record(5, "checkpoint", 2, 6.5, 3),
            record(6, "checkpoint", 2, 7.5, 4),
            record(7, "finish", 2, 7.6, status="finished", result=6),
        ],
        log=Log(
            executions=[
                call(0, KILLED, 1), call(1, KILLED, 2), call(2, KILLED, 3),
                call(2, SUCCESSOR, 5), call(3, SUCCESSOR, 6), call(4, SUCCESSOR, 7),
            ],
            saved=[Saved("r", 1, "line-1"), Saved("r", 6, "back")],
        ),
        disturbances=[Disturbance("kill", KILLED, NOON + 4, NOON + 4)],
    )  # fmt: skip


def test_the_check_is_content_with_a_run_that_another_process_went_on_with():
    assert Verdict((), again=1, stalled=0, takeovers=1, rescued=0, offered=0, accepted=0) == sound().verdict()


def renumbered(story: Story) -> None:
    for sequence, fields in enumerate(story.records):
        fields["sequence"] = sequence
        if fields["kind"] == "finish":
            fields["result"] = sequence - 1


def late_write(story: Story) -> None:
    """Process 1 was frozen, not killed, and its checkpoint came behind the owner record of its successor."""
    story.records.insert(4, record(4, "checkpoint", 1, 5.2, 2))
    renumbered(story)


def late_end(story: Story) -> None:
    story.records[-1]["epoch"] = 1


def forged_owner(story: Story) -> None:
    for fields in story.records[4:]:
        fields["epoch"] = 3


def second_owner_of_one_epoch(story: Story) -> None:
    story.records.insert(4, record(4, "owner", 2, 4.6, crashed=True))
    renumbered(story)


def owner_of_a_lower_epoch(story: Story) -> None:
    story.records.insert(6, record(6, "owner", 1, 6.6, crashed=True))
    renumbered(story)


def record_without_epoch(story: Story) -> None:
    del story.records[4]["epoch"]


def gap(story: Story) -> None:
    del story.records[3]


def number_taken_twice(story: Story) -> None:
    story.records.insert(5, record(4, "owner", 3, 5.6))


def wrong_state(story: Story) -> None:
    story.records[5]["state"]["trail"].pop(0)


def doubled_in_the_state(story: Story) -> None:
    story.records[6]["state"]["trail"].append("back#1")


def state_of_another_run(story: Story) -> None:
    story.records[6]["state"]["run"] = "s"


def doubled_checkpoint(story: Story) -> None:
    story.records.insert(5, record(5, "checkpoint", 2, 5.6, 2))
    renumbered(story)


def missing_checkpoint(story: Story) -> None:
    del story.records[5]
    renumbered(story)


def superseded_checkpoint(story: Story) -> None:
    story.live = ((0, 4), (6, None))


def reordered(story: Story) -> None:
    four, five = story.records[4:6]
    story.records[4:6] = [{**five, "sequence": 4}, {**four, "sequence": 5}]


def unfinished(story: Story) -> None:
    story.status = "running"


def without_an_end(story: Story) -> None:
    story.records.pop()


def end_with_another_result(story: Story) -> None:
    story.records[-1]["result"] = 5


def broken_promise(story: Story) -> None:
    story.log.saved.append(Saved("r", 3, "line-3"))


def nobody_was_killed(story: Story) -> None:
    story.disturbances.clear()


def somebody_else_was_killed(story: Story) -> None:
    story.disturbances[0] = story.disturbances[0]._replace(pid=3)


def killed_too_late_to_be_the_cause(story: Story) -> None:
    story.disturbances[0] = story.disturbances[0]._replace(began=NOON + 5.5, ended=NOON + 5.5)


def recorded_node_again(story: Story) -> None:
    """Process 2 went on one node too early: at one whose checkpoint it should have found."""
    story.log.executions.append(call(1, SUCCESSOR, 4.8))


def twice_in_one_process(story: Story) -> None:
    story.log.executions.append(call(3, SUCCESSOR, 6.2))


def more_executions_than_owners(story: Story) -> None:
    """Each repeat has its own kill, but the journal tells of one change of owner only."""
    story.log.executions.append(call(2, 3, 4.7))
    story.disturbances.append(Disturbance("kill", 3, NOON + 4.8, NOON + 4.8))


def damaged(story: Story) -> None:
    story.damage = ("the tables say something else than the export",)


FAULTS: Mapping[Callable[[Story], None], str] = {
    late_write: "late write",
    late_end: "late write",
    forged_owner: "epoch",
    second_owner_of_one_epoch: "epoch",
    owner_of_a_lower_epoch: "epoch",
    record_without_epoch: "epoch",
    gap: "gap",
    number_taken_twice: "doubled number",
    wrong_state: "wrong state",
    doubled_in_the_state: "wrong state",
    state_of_another_run: "wrong state",
    doubled_checkpoint: "checkpoint too many",
    missing_checkpoint: "checkpoint missing",
    superseded_checkpoint: "checkpoint missing",
    reordered: "order",
    unfinished: "not ended",
    without_an_end: "wrong end",
    end_with_another_result: "wrong end",
    broken_promise: "promise",
    nobody_was_killed: "ran again",
    somebody_else_was_killed: "ran again",
    killed_too_late_to_be_the_cause: "ran again",
    recorded_node_again: "ran again",
    twice_in_one_process: "ran again",
    more_executions_than_owners: "ran again",
    damaged: "damage",
}


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_the_check_finds(spoil: Callable[[Story], None]):
    story = sound()
    spoil(story)
    verdict = story.verdict()
    assert FAULTS[spoil] in {fault.kind for fault in verdict.faults}
    assert {"r"} == {fault.run_id for fault in verdict.faults}
    assert sum(fault.kind == "late write" for fault in verdict.faults) == verdict.accepted


def test_the_check_misses_a_run_that_is_not_there():
    verdict = judge(["r"], PATH, {}, Log(), [], lease=1.0)
    assert [("not ended", "r")] == [fault[:2] for fault in verdict.faults]


def test_the_check_knows_that_a_thawed_process_calls_the_node_that_it_was_about_to_call():
    story = sound()
    story.log.executions[2] = call(2, KILLED, 5.8)
    assert ["ran again"] == [fault.kind for fault in story.verdict().faults]
    story.disturbances = [Disturbance("freeze", KILLED, NOON + 2.6, NOON + 5.7)]
    assert Verdict((), again=1, stalled=0, takeovers=1, rescued=0, offered=0, accepted=0) == story.verdict()


def test_the_check_counts_what_only_a_process_that_stood_still_explains():
    story = sound()
    story.disturbances.clear()
    story.lease = 3.0
    assert Verdict((), again=1, stalled=1, takeovers=1, rescued=0, offered=0, accepted=0) == story.verdict()


# -- the check reads what a store really keeps ---------------------------------------------------------------------


@pytest.fixture
def done(tmp_path: Path) -> Task:
    """Two runs that this process has done on a SQLite file."""
    task = Task(
        store=f"sqlite:///{tmp_path}/runs.db", log=str(tmp_path / "log"), name="quiet", runs=2, nodes=5, seed=0, lease=30.0,
        pause=0.0, concurrency=1, is_rescuing=False,
    )  # fmt: skip
    outside = Outside(task.log)
    with SQLiteStore(tmp_path / "runs.db") as store:
        call_verbs(store, flow_of(task, outside), task, outside)
    return task


def verdict_on(task: Task) -> Verdict:
    journals = read_journals(task.store, [*task.run_ids, "missing"])
    return judge(task.run_ids, path_of(task.nodes), journals, read_log(Path(task.log)), [], task.lease)


def test_a_store_whose_processes_were_left_alone_has_no_fault(done: Task):
    assert Verdict((), again=0, stalled=0, takeovers=0, rescued=0, offered=0, accepted=0) == verdict_on(done)
    log = read_log(Path(done.log))
    assert [10, 10] == [len(log.executions), len(log.saved)]
    assert set(done.run_ids) == set(read_journals(done.store, done.run_ids))


@pytest.mark.parametrize(
    ("statement", "kinds"),
    [
        ("DELETE FROM records WHERE sequence = 1", {"gap", "checkpoint missing", "promise"}),
        ("UPDATE runs SET status = 'running'", {"not ended"}),
        (
            "UPDATE records SET header = replace(header, '\"epoch\":1', '\"epoch\":0') WHERE sequence = 3",
            {"late write"},
        ),
        ("UPDATE records SET visit = 7 WHERE sequence = 3", {"damage"}),
        ("UPDATE records SET sequence = 9 WHERE sequence = 6", {"damage"}),
    ],
)
def test_the_check_sees_what_was_done_to_a_sqlite_file(statement: str, kinds: set[str], done: Task):
    connection = sqlite3.connect(done.store.removeprefix("sqlite:///"))
    connection.execute(statement)
    connection.commit()
    connection.close()
    assert kinds <= {fault.kind for fault in verdict_on(done).faults}


def test_a_state_that_is_not_that_of_its_digest_is_damage():
    state = b'{"run":"r","trail":[]}'
    fields = {"sequence": 0, "kind": "start", "node_id": "", "visit": 1, "epoch": 1}
    for digest, expected in ((hashlib.sha256(state).hexdigest(), 0), ("0" * 64, 1)):
        header = json.dumps({**fields, "digest": f"sha256:{digest}"}).encode()[:-1]
        journal = parse_export("r", b'{"run":{"status":"running"}}\n' + header + b',"state":' + state + b"}\n")
        assert expected == len(journal.damage)


# -- the command ------------------------------------------------------------------------------------------------


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        "--store", f"sqlite:///{folder}/runs.db", "--processes", "2", "--runs", "4", "--nodes", "5", "--freezes", "0",
        "--kills", "1", "--pause", "0.02", *more,
    ]  # fmt: skip


def test_the_command_prints_what_became_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert 0 == main(arguments(tmp_path))
    told = capsys.readouterr()
    columns, _, row = ([cell.strip() for cell in line.strip("|").split("|")] for line in told.out.splitlines())
    found = dict(zip(columns, row, strict=True))
    assert {"store": "sqlite", "runs": "4", "kills": "1", "accepted": "0", "faults": "0"}.items() <= found.items()


def test_the_command_fails_where_somebody_tampers_with_the_store_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    saboteur = tmp_path / "saboteur.py"
    saboteur.write_text(
        "import sqlite3, sys\n"
        "with sqlite3.connect(sys.argv[1], timeout=10) as connection:\n"
        "    connection.execute('DELETE FROM records WHERE sequence = 1')\n"
    )
    restart = f"{sys.executable} {saboteur} {tmp_path}/runs.db"
    assert 1 == main(arguments(tmp_path, "--restarts", "1", "--restart", restart))
    told = capsys.readouterr()
    assert "sqlite: gap: " in told.err
    assert "1" == told.out.splitlines()[-1].strip("|").split("|")[4].strip()


@pytest.mark.parametrize("wrong", [["--nodes", "2"], ["--processes", "0"], ["--restarts", "1"]])
def test_the_command_refuses_what_makes_no_sense(wrong: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as refused:
        main(wrong)
    assert 2 == refused.value.code
