"""Any order of calls, against a model that fits on a page: what a store answers, and what it then shows.

The model knows no database and no lock. It keeps what the contract says and leaves open what the contract
leaves open (a status of None).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import unittest
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from milepost.errors import (
    CheckpointNotFoundError,
    RunExistsError,
    RunLockedError,
    RunNotFoundError,
    RunNotResumableError,
    SignalRefusedError,
)
from milepost.model.ranges import Ranges
from milepost.store import ENDED, Release, RunSnapshot, Store, Token
from milepost.stores.file.store import FileStore
from milepost.stores.memory import MemoryStore
from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing import FakeClock
from milepost.testing.chats import chat
from milepost.testing.journals import begin, checkpoint, claim_of, failure, take, write
from thoroughness import examples

RUNS = ("r", "R", "../s")
NODES = ("a", "b", "c/d")
runs, nodes = st.sampled_from(RUNS), st.sampled_from(NODES)


@dataclass
class Entry:
    """A record as the model knows it. `data` is the state, or the bytes of a save; None but for checkpoints."""

    sequence: int
    kind: str
    node_id: str = ""
    visit: int = 1
    data: bytes | None = None
    is_foreign: bool = False


@dataclass
class Run:
    """A run as the model knows it."""

    epoch: int
    newest: int
    entries: list[Entry] = field(default_factory=list)
    token: Token | None = None
    is_abandoned: bool = False
    status: str | None = "running"
    live: Ranges = ()
    signals: int = 0
    cancel: str | None = None

    @property
    def is_owned(self) -> bool:
        return self.token is not None and not self.is_abandoned

    def is_live(self, entry: Entry) -> bool:
        return not self.live or any(
            first <= entry.sequence and (last is None or entry.sequence <= last) for _, first, last in self.live
        )

    def add(self, kind: str, node_id: str = "", data: bytes | None = None, is_foreign: bool = False) -> Entry:
        self.newest += 1
        self.entries.append(Entry(self.newest, kind, node_id, self.visits(node_id) + 1, data, is_foreign))
        return self.entries[-1]

    def visits(self, node_id: str) -> int:
        of_node = [entry.visit for entry in self.checkpoints() if entry.node_id == node_id]
        return max(of_node, default=0)

    def checkpoints(self) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.kind == "checkpoint")

    def change_owner(self, token: Token | None, kind: str) -> None:
        self.epoch += 1
        self.token, self.is_abandoned = token, False
        if kind:
            self.add(kind)


class StoreMachine(RuleBasedStateMachine):
    """Calls by owners of all ages, and by people who do not own anything."""

    def make_store(self, place: Path, clock: FakeClock) -> Store:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.store = self.make_store(self.place, self.clock)
        self.model: dict[str, Run] = {}
        self.tokens: list[Token] = []
        self.readings: list[RunSnapshot] = []

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.place)

    def keep(self, token: Token) -> None:
        self.tokens.append(token)

    # -- owners ------------------------------------------------------------------------------------------

    @rule(run_id=runs, ready=st.booleans())
    def create(self, run_id: str, ready: bool) -> None:
        status: Literal["ready", "running"] = "ready" if ready else "running"
        if run_id in self.model:
            with pytest.raises(RunExistsError):
                begin(self.store, run_id)
            return
        token = begin(self.store, run_id, status=status)
        self.keep(token)
        self.model[run_id] = Run(1, 0, [Entry(0, "start")], None if ready else token, False, status)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        self.readings.append(self.store.latest(data.draw(st.sampled_from(sorted(self.model)))))

    @precondition(lambda self: self.readings)
    @rule(data=st.data(), takeover=st.booleans())
    def claim_what_was_read(self, data: st.DataObject, takeover: bool) -> None:
        reading = data.draw(st.sampled_from(self.readings))
        run_id = reading.row.info.run_id
        run = self.model.get(run_id)
        wish = claim_of(reading, takeover=takeover, reopen=reading.row.info.status in ENDED)
        if run is None:
            with pytest.raises(RunNotFoundError):
                self.store.claim(wish)
            return
        claimed = self.store.claim(wish)
        has_moved = (run.epoch, run.newest) != (reading.row.epoch, reading.newest)
        if claimed.outcome == "claimed":
            assert not has_moved
            assert takeover or not run.is_owned
            self.owned(run, claimed.token, wish.reopen)
        else:
            assert claimed.token is None
            assert has_moved or (run.is_owned and not takeover and claimed.outcome == "locked")

    @rule(run_id=runs, takeover=st.booleans(), back=st.integers(0, 4), supersede=st.booleans())
    def claim(self, run_id: str, takeover: bool, back: int, supersede: bool) -> None:
        run = self.model.get(run_id)
        if run is None:
            with pytest.raises(RunNotFoundError):
                take(self.store, run_id)
            return
        live = (("", 0, max(0, run.newest - back)), ("", run.newest + 1, None)) if supersede else None
        claimed = take(self.store, run_id, takeover=takeover, live=live, reopen=run.status in ENDED)
        assert ("locked" if run.is_owned and not takeover else "claimed") == claimed.outcome
        if claimed.outcome == "claimed":
            self.owned(run, claimed.token, run.status in ENDED)
            run.live = live or run.live

    def owned(self, run: Run, token: Token | None, reopened: bool) -> None:
        assert token is not None
        self.keep(token)
        run.change_owner(token, "owner")
        run.status = "running"
        if reopened:
            run.cancel = None

    @precondition(lambda self: self.tokens)
    @rule(
        data=st.data(),
        shift=st.sampled_from([0, 0, 0, -1, 1, 2]),
        names=st.lists(nodes, max_size=4),
        fails=st.booleans(),
        status=st.sampled_from([None, None, None, "interrupted", "waiting", "finished", "failed", "ready"]),
    )
    def append(self, data: st.DataObject, shift: int, names: list[str], fails: bool, status: str | None) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        run = self.model.get(token.run_id)
        if run is not None and run.token == token and run.is_abandoned:
            return
        after = Run(0, 0) if run is None else run
        sequence = max(0, after.newest + 1 + shift)
        added = list[Entry]()
        for n, name in enumerate(names, sequence):
            visit = 1 + max([after.visits(name), *(entry.visit for entry in added if entry.node_id == name)])
            added.append(Entry(n, "checkpoint", name, visit, _state(n)))
        records = [
            checkpoint(token.run_id, entry.sequence, entry.node_id, visit=entry.visit, state=entry.data or b"")
            for entry in added
        ]
        if fails:
            added.append(Entry(sequence + len(added), "failure", "never deleted"))
            records.append(failure(token.run_id, added[-1].sequence, "never deleted"))
        release = None if status is None or shift else Release(status, signals=after.signals)
        verdict = write(self.store, token, *records, release=release)
        if run is None or run.token != token:
            assert "lost" == verdict.outcome
        elif records and shift:
            assert ("taken" if shift < 0 else "gap") == verdict.outcome
        elif release and status == "finished" and run.cancel is not None:
            assert ("refused", run.cancel) == verdict
        else:
            assert ("written", run.cancel) == verdict
            run.entries += added
            run.newest += len(added)
            if release:
                run.token, run.status = None, status
                if status in ENDED:
                    run.cancel = self.store.get_run(token.run_id).cancel  # whether an end closes a cancel is open

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        self.store.abandon(token)
        run = self.model.get(token.run_id)
        if run is not None and run.token == token:
            run.is_abandoned = True

    @precondition(lambda self: self.tokens)
    @rule()
    def renew(self) -> None:
        tokens = [t for t in self.tokens if (run := self.model.get(t.run_id)) is None or not run.is_abandoned]
        current = {run.token: run.cancel for run in self.model.values()}
        expected = ["kept" if token in current else "lost" for token in tokens]
        renewals = self.store.renew(tokens)
        assert expected == [renewal.outcome for renewal in renewals]
        assert [current[t] for t in tokens if t in current] == [r.cancel for r in renewals if r.outcome == "kept"]

    # -- everybody else ------------------------------------------------------------------------------------

    @rule(run_id=runs, node_id=nodes, data=st.binary(max_size=40))
    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        run = self.model.get(run_id)
        if run is not None and run.is_owned:
            with pytest.raises(RunLockedError):
                self.store.save(run_id, node_id, data)
            return
        self.store.save(run_id, node_id, data)
        if run is None:
            run = self.model[run_id] = Run(self.store.get_run(run_id).epoch, 0, status="interrupted")
        else:
            run.change_owner(None, "")
            run.status = "interrupted" if run.status in ENDED else None
        entry = run.add("checkpoint", node_id, data, is_foreign=True)
        # After a delete a store may count visits from 1 again or go on.
        visit = self.store.history(run_id)[-1].visit
        assert entry.visit <= visit
        entry.visit = visit

    @rule(run_id=runs, node_id=nodes, force=st.booleans())
    def delete(self, run_id: str, node_id: str, force: bool) -> None:
        run = self.model.get(run_id)
        if run is None or not run.visits(node_id):
            if run is None or not run.is_owned:
                self.store.delete(run_id, node_id, force=force)
            return
        if run.is_owned and not force:
            with pytest.raises(RunLockedError):
                self.store.delete(run_id, node_id)
            return
        self.store.delete(run_id, node_id, force=force)
        run.entries = [entry for entry in run.entries if (entry.kind, entry.node_id) != ("checkpoint", node_id)]
        run.change_owner(None, "owner")
        run.status = None

    @rule(run_id=runs, force=st.booleans())
    def delete_run(self, run_id: str, force: bool) -> None:
        run = self.model.get(run_id)
        if run is not None and run.is_owned and not force:
            with pytest.raises(RunLockedError):
                self.store.delete_run(run_id)
            return
        self.store.delete_run(run_id, force=force)
        self.model.pop(run_id, None)
        self.readings = [reading for reading in self.readings if reading.row.info.run_id != run_id]

    @rule(run_id=runs)
    def put_signal(self, run_id: str) -> None:
        run = self.model.get(run_id)
        if run is None:
            with pytest.raises(RunNotFoundError):
                self.store.put_signal(run_id, "go", b"1")
            return
        try:
            assert "kept" == self.store.put_signal(run_id, "go", b"1")
        except RunNotResumableError:
            assert run.status in {None, "finished", "cancelled"}
            return
        except SignalRefusedError:
            assert run.cancel is not None
            return
        assert (run.status not in {"finished", "cancelled"}, run.cancel) == (True, None)
        run.signals += 1

    @rule(run_id=runs, knows=st.booleans())
    def request_cancel(self, run_id: str, knows: bool) -> None:
        run = self.model.get(run_id)
        if run is None:
            with pytest.raises(RunNotFoundError):
                self.store.request_cancel(run_id)
            return
        outcome = self.store.request_cancel(run_id, "stop", run.newest if knows else None)
        if run.is_owned:
            assert "requested" == outcome
        elif run.status in {"finished", "cancelled"}:
            assert "ended" == outcome
        elif knows and run.status is not None:
            assert "cancelled" == outcome
        if outcome == "requested":
            run.cancel = "stop"
        elif outcome == "cancelled":
            run.change_owner(None, "finish")
            run.status, run.cancel = "cancelled", self.store.get_run(run_id).cancel

    @rule(seconds=st.floats(0, 100))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store.renew([run.token for run in self.model.values() if run.token is not None])

    # -- what is then shown ----------------------------------------------------------------------------------

    @invariant()
    def rows_are_as_in_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        assert set(self.model) == {info.run_id for info in self.store.list_runs()}
        for run_id, run in self.model.items():
            row = self.store.get_run(run_id)
            lease = "free" if run.token is None else "abandoned" if run.is_abandoned else "ours"
            assert (run.epoch, run.newest, lease) == (row.epoch, row.info.sequence, row.lease)
            assert (run.signals, run.cancel, run.live) == (row.signals, row.cancel, row.live)
            assert run.status in {None, row.info.status}

    @invariant()
    def journals_are_as_in_the_model(self) -> None:
        for run_id, run in getattr(self, "model", {}).items():
            assert [(entry.sequence, entry.kind, entry.node_id) for entry in run.entries if entry.kind != "owner"] == [
                (record.sequence, record.kind, record.node_id)
                for record in self.store.read(run_id)
                if record.kind != "owner"
            ]
            assert [entry.sequence for entry in run.entries] == [r.sequence for r in self.store.read(run_id)]
            report = self.store.verify(run_id)
            assert report.ok, report.problems

    @invariant()
    def views_are_as_in_the_model(self) -> None:
        for run_id, run in getattr(self, "model", {}).items():
            visits = [(e.sequence, e.node_id, e.visit, not run.is_live(e)) for e in run.checkpoints()]
            history = self.store.history(run_id)
            assert visits == [(info.sequence, info.node_id, info.visit, info.superseded) for info in history]
            newest = {entry.node_id: entry for entry in run.checkpoints() if run.is_live(entry)}
            expected = sorted((entry.sequence, node_id) for node_id, entry in newest.items())
            assert expected == [(info.sequence, info.node_id) for info in self.store.list(run_id)]
            for node_id in NODES:
                if node_id not in newest:
                    with pytest.raises(CheckpointNotFoundError):
                        self.store.load(run_id, node_id)
                else:
                    loaded = self.store.load(run_id, node_id)
                    entry = newest[node_id]
                    assert entry.data == (loaded if entry.is_foreign else _state_of(loaded))

    @invariant()
    def the_latest_is_as_in_the_model(self) -> None:
        for run_id, run in getattr(self, "model", {}).items():
            live = [entry for entry in run.entries if run.is_live(entry)]
            points = [entry.sequence for entry in live if entry.kind == "checkpoint"]
            points = points or [entry.sequence for entry in live if entry.kind == "start"]
            point = points[-1] if points else None
            tail = [entry.sequence for entry in live if point is None or entry.sequence > point]
            latest = self.store.latest(run_id)
            assert (point, tail, run.newest) == (
                latest.point and latest.point.sequence,
                [record.sequence for record in latest.tail],
                latest.newest,
            )


def _state(n: int) -> bytes:
    """Most are large and much like that of their neighbours, which is how stores come to keep differences."""
    return b'{"n":%d}' % n if n % 4 == 0 else chat(20 + n % 9)


def _state_of(envelope: bytes) -> bytes:
    return json.dumps(json.loads(envelope)["state"], separators=(",", ":"), ensure_ascii=False).encode()


class MemoryMachine(StoreMachine):
    def make_store(self, place: Path, clock: FakeClock) -> Store:
        return MemoryStore(clock=clock)


class SQLiteMachine(StoreMachine):
    def make_store(self, place: Path, clock: FakeClock) -> Store:
        return SQLiteStore(place / "runs.db", durability="normal", clock=clock)


class FileMachine(StoreMachine):
    def make_store(self, place: Path, clock: FakeClock) -> Store:
        return FileStore(place / "runs", clock=clock)


def tried(machine: type[StoreMachine], number: int) -> type[unittest.TestCase]:
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples(number),
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return case


TestMemoryMachine = tried(MemoryMachine, 100)
TestSQLiteMachine = tried(SQLiteMachine, 20)
TestFileMachine = tried(FileMachine, 20)
