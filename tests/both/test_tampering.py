"""Stores with keys: what somebody without the keys did to the medium is refused before any node runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from attacker import Attacker
from msgspec.structs import replace

from milepost import (
    END,
    START,
    Checkpoint,
    Graph,
    NodeError,
    RunCancelled,
    RunSuspended,
    Steps,
    StoreError,
    step,
    workflow,
)
from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    OptionError,
    RunLockedError,
    RunStopped,
)
from milepost.graph.status import RunStatus
from milepost.model.info import RefusedAnswer
from milepost.model.record import DIFFERENCE, ENCRYPTED, VERBATIM, Record, digest_of, make_record
from milepost.model.seal import Seals
from milepost.store import Signal
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import saved_record
from milepost.testing.journals import begin
from milepost.views.journal import read_entries, records_of
from milepost.views.status import view_run

SIGNED = {"signing_key": {"s": b"signing key, 24 bytes..."}}
ENCRYPTED_ONLY = {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}}
KEYS = {"signed": SIGNED, "encrypted": ENCRYPTED_ONLY, "both": {**SIGNED, **ENCRYPTED_ONLY}}
NEW_KEYS = {
    "signing_key": {"s2": b"another signing key, 28 byte", **SIGNED["signing_key"]},
    "encryption_key": {"e2": b"another key of exactly 32 bytes.", **ENCRYPTED_ONLY["encryption_key"]},
}
OTHER_KEYS = {
    "signing_key": {"x": b"a signing key of somebody else"},
    "encryption_key": {"x": b"a 32 byte key of somebody else.."},
}
both_ways = pytest.mark.ways("sync", "async")
one_way = pytest.mark.ways("sync")
"""What is refused is decided by the same code whoever runs it."""
OWN = Seals()
"""What an attacker can make: digests."""


@dataclass
class Count:
    n: int = 0


@dataclass
class Long:
    n: int = 0
    text: str = ""


@pytest.fixture(params=KEYS)
def keys(request) -> dict[str, Any]:
    return KEYS[request.param]


@pytest.fixture
def keyed(medium, keys) -> Any:
    return medium.open(**keys)


@pytest.fixture
def attacker(medium) -> Attacker:
    return Attacker(medium.kind, medium.path)


def stopped(verbs, graph, store, run_id: str = "r1", after: str = "c", state: Any = None) -> None:
    with pytest.raises(RunStopped):
        verbs.run(graph, state or Count(), store=store, run_id=run_id, stop_after=after)


def reopened(medium, store: Any, keys: dict[str, Any], **options: Any) -> Any:
    """Another store object on the medium, which has read nothing yet."""
    if medium.kind != "memory":
        return medium.open(**keys, **options)
    other = type(store)(**keys, **options)
    other._runs = store._runs
    medium.opened.append(other)
    return other


def refused(verbs, graph, store, log, match: str, run_id: str = "r1", names: int | None = 3) -> None:
    before, ran = store.read(run_id), list(log)
    with pytest.raises(CheckpointIntegrityError, match=match) as caught:
        verbs.resume(graph, store, run_id)
    assert (run_id, before, ran) == (caught.value.run_id, store.read(run_id), log)
    if names is not None:
        report = store.verify(run_id)
        assert any(f"record {names} " in problem for problem in report.problems), report
        with pytest.raises(CheckpointIntegrityError):
            store.load(run_id, store.read(run_id)[-1].node_id)


@both_ways
def test_a_run_goes_on_as_without_keys(verbs, keyed, line, log):
    graph = line(Count, "abc")
    stopped(verbs, graph, keyed, after="b")
    result = verbs.resume(graph, keyed, "r1", full=True)
    assert (Count(3), True, list("abc")) == (result.state, result.resumed.verified, log)
    assert Count(3) == verbs.resume(graph, keyed, "r1")
    assert keyed.verify("r1").ok
    assert {"n": 3} == Checkpoint.decode(keyed.load("r1", "c")).state
    assert list("abc") == [info.node_id for info in keyed.list("r1")]


def state_changed(record: Record) -> Record:
    return record._replace(payload=bytes([(record.payload or b"x")[0] ^ 1]) + (record.payload or b"x")[1:])


def header_changed(record: Record) -> Record:
    header = (record.header or b"").replace(b'"next_node":"d"', b'"next_node":"b"')
    return record._replace(header=OWN.seal(header.rpartition(b',"seal"')[0]))


def unsealed(record: Record) -> Record:
    return record._replace(header=(record.header or b"").rpartition(b',"seal"')[0])


def forged(record: Record) -> Record:
    """The same place with another state, digested and sealed as a store without keys does it."""
    fields = {"next_node": "d", "attempt": 1, "iteration": 3, "epoch": 1}
    made = make_record("r1", 3, "2026-01-01T00:00:00.000000Z", "checkpoint", "c", 1, b'{"n":666}', fields)
    return OWN.sealed(made)


def saved_at(sequence: int, node_id: str, data: bytes, life: str = "") -> Record:
    record = saved_record("r1", sequence, node_id, 1, data, 0.0)
    return OWN.sealed(record._replace(header=b'%s,"life":"%s"' % (record.header or b"", life.encode())))


def verbatim(record: Record) -> Record:
    """As if somebody had saved a checkpoint from outside."""
    made = forged(record)
    header = (made.header or b"").rpartition(b',"seal"')[0].replace(b'"encoding":"json"', b'"encoding":"verbatim"')
    data = Checkpoint("r1", "c", "d", {"n": 666}).encode()
    header = header.replace(digest_of(made.payload or b"").encode(), digest_of(data).encode())
    return made._replace(header=OWN.seal(header), payload=data, packing=VERBATIM, size=len(data))


def relabelled(record: Record) -> Record:
    return record._replace(packing="" if record.packing == ENCRYPTED else VERBATIM)


CHANGES: list[Callable[[Record], Record]] = [
    state_changed,
    header_changed,
    unsealed,
    forged,
    verbatim,
    relabelled,
]


@pytest.mark.every_store
@both_ways
def test_a_changed_record_is_refused_before_any_node_runs(verbs, medium, attacker, keyed, keys, line, log):
    graph = line(Count, "abcd")
    stopped(verbs, graph, keyed)
    whole = attacker.kept(keyed, "r1", 3)
    for change in CHANGES:
        attacker.change(keyed, "r1", 3, change)
        assert whole != attacker.kept(reopened(medium, keyed, keys), "r1", 3)
        refused(verbs, graph, reopened(medium, keyed, keys), log, "record 3 of run 'r1'")
        attacker.change(keyed, "r1", 3, lambda _: whole)
    assert Count(4) == verbs.resume(graph, reopened(medium, keyed, keys), "r1")


@pytest.mark.every_store
@one_way
def test_a_changed_record_is_refused_by_all_that_build_on_it(verbs, medium, attacker, keyed, keys, line, log):
    """The states are large and change little, so that stores may keep differences: 1, 2 and 3 build on the start."""
    graph = line(Long, "abcd")

    def begin(run_id: str, letter: str) -> list[Record]:
        given = Long(text=" ".join(f"{letter}{number}" for number in range(2000)))
        with pytest.raises(RunStopped):
            verbs.run(graph, given, store=keyed, run_id=run_id, stop_after="c")
        return [attacker.kept(keyed, run_id, sequence) for sequence in range(4)]

    earlier = begin("r1", "x")
    keyed.delete_run("r1")
    others, whole = begin("r2", "x"), begin("r1", "y")
    changes = [state_changed, header_changed, unsealed, relabelled]
    for sequence in range(4):
        builds_on_it = whole[3].packing == DIFFERENCE or (keys is not SIGNED and medium.kind != "memory")
        for change in [*changes, lambda _, n=sequence: earlier[n], lambda _, n=sequence: others[n]]:
            attacker.change(keyed, "r1", sequence, change)
            store = reopened(medium, keyed, keys)
            if attacker.kept(store, "r1", sequence) == whole[sequence]:
                continue
            if sequence == 3 and change(whole[3]) == earlier[3] and not builds_on_it:
                continue  # a whole record of an earlier run of this id and place
            if sequence == 3 or builds_on_it:
                with pytest.raises(CheckpointCorruptError):
                    verbs.resume(graph, store, "r1")
                assert any("record 3 " in problem for problem in store.verify("r1").problems)
            attacker.change(keyed, "r1", sequence, lambda _, n=sequence: whole[n])
    assert list("abc" * 3) == log
    assert 4 == verbs.resume(graph, reopened(medium, keyed, keys), "r1").n


@one_way
def test_records_do_not_pass_for_one_another(verbs, medium, attacker, keyed, keys, line, log):
    graph = line(Count, "abcd")
    stopped(verbs, graph, keyed)
    stopped(verbs, graph, keyed, "r2")
    verbs.run(graph, Count(), store=keyed, run_id="r3")
    with pytest.raises(RunStopped):
        verbs.resume_from(graph, keyed, "r3", "b", stop_after="c")
    whole = attacker.kept(keyed, "r1", 3)

    def placed(record: Record) -> Record:
        return record._replace(node_id=whole.node_id, visit=whole.visit, kind=whole.kind, size=whole.size)

    replayed = [attacker.kept(keyed, "r1", 2), attacker.kept(keyed, "r2", 3), attacker.kept(keyed, "r1", 0)]
    for other in replayed:
        for row in (other, placed(other)):
            attacker.change(keyed, "r1", 3, lambda _, row=row: row)
            store = reopened(medium, keyed, keys)
            if row.kind == "checkpoint":
                refused(verbs, graph, store, log, "place|decrypts|another run")
            assert not store.verify("r1").ok
    attacker.change(keyed, "r1", 3, lambda _: whole._replace(payload=attacker.kept(keyed, "r2", 3).payload))
    if keys is not SIGNED:  # equal states are equal bytes where nothing is encrypted
        refused(verbs, graph, reopened(medium, keyed, keys), log, "decrypts")
    first = next(r.sequence for r in keyed.read("r3") if (r.node_id, r.visit) == ("c", 1))
    newest = keyed.read("r3")[-1]
    assert ("c", 2) == (newest.node_id, newest.visit)
    old = attacker.kept(keyed, "r3", first)
    attacker.change(keyed, "r3", newest.sequence, lambda _: old._replace(visit=2))
    refused(verbs, graph, reopened(medium, keyed, keys), log, "place", "r3", newest.sequence)


@one_way
def test_a_damaged_record_is_passed_over_where_that_is_asked_for(verbs, medium, attacker, keyed, keys, line, log):
    graph = line(Count, "abcd")
    stopped(verbs, graph, keyed)
    attacker.change(keyed, "r1", 3, forged)
    result = verbs.resume(graph, reopened(medium, keyed, keys), "r1", on_corrupt="previous", full=True)
    assert (Count(4), "b", list("abccd")) == (result.state, result.resumed.from_node, log)


@one_way
def test_keys_are_rotated_and_a_missing_one_is_named(verbs, medium, attacker, line, log):
    graph = line(Count, "abcd")
    old = medium.open(**KEYS["both"])
    stopped(verbs, graph, old)
    both = reopened(medium, old, NEW_KEYS)
    assert Count(4) == verbs.resume(graph, both, "r1")
    assert both.verify("r1").ok
    texts = [attacker.kept(both, "r1", sequence).header or b"" for sequence in (3, 4)]
    assert [(True, False), (False, True)] == [(b'"hmac-sha256:s:' in t, b'"hmac-sha256:s2:' in t) for t in texts]
    assert [(True, False), (False, True)] == [
        (b'"encryption_key":"e"' in t, b'"encryption_key":"e2"' in t) for t in texts
    ]
    new = {option: dict([next(iter(named.items()))]) for option, named in NEW_KEYS.items()}
    stopped(verbs, graph, old, "r2")
    refused(verbs, graph, reopened(medium, old, new), log, "key 's', which this store does not have", "r2")
    without = {**new, "signing_key": NEW_KEYS["signing_key"]}
    refused(verbs, graph, reopened(medium, old, without), log, "key 'e', which this store does not have", "r2")
    plain = reopened(medium, old, {})
    refused(
        verbs, graph, plain, log, "key 's', which this store does not have: open the store with signing_key", "r2", None
    )


@one_way
def test_what_was_written_before_there_were_keys_needs_leave(verbs, medium, keys, line, log):
    graph = line(Count, "abcd")
    plain = medium.open()
    stopped(verbs, graph, plain)
    refused(verbs, graph, reopened(medium, plain, keys), log, "allow_unsealed=True|allow_plain=True")
    lenient = reopened(medium, plain, keys, allow_unsealed=True, allow_plain=True)
    result = verbs.resume(graph, lenient, "r1", full=True)
    assert (Count(4), "signing_key" not in keys) == (result.state, result.resumed.verified)
    strict = reopened(medium, plain, keys)
    assert not strict.verify("r1").ok
    verbs.run(graph, Count(), store=strict, run_id="r2")
    assert strict.verify("r2").ok


@pytest.mark.every_store
@one_way
def test_seal_run_closes_the_change_over_to_keys(verbs, medium, keys, line, log):
    """All that a run has goes on as it was: its records, its gaps, the signal that it was sent, how it stands."""
    graph, plain = line(Count, "abcd"), medium.open()
    stopped(verbs, graph, plain)
    suspended(verbs, waiting_graph(), plain, "w")
    plain.put_signal("w", "later", b"1", by="ann")
    plain.save("w", "x", b"from outside")
    plain.save("w", "y", b"too")
    plain.delete("w", "x")
    leave = {"allow_unsealed": True, "allow_plain": True}
    lenient = reopened(medium, plain, keys, **leave)
    before, told = lenient.get_run("w").info, lenient.signals("w")
    for run_id in ("r1", "w"):
        lenient.seal_run(run_id)
    strict = reopened(medium, plain, keys)
    assert strict.verify("r1").ok
    assert strict.verify("w").ok
    assert told == strict.signals("w")
    after = strict.get_run("w").info
    assert (before.status, before.waiting_for, before.created_at) == (after.status, after.waiting_for, after.created_at)
    assert b"too" == strict.load("w", "y")
    result = verbs.resume(graph, strict, "r1", full=True)
    assert (Count(4), True) == (result.state, result.resumed.verified)
    strict.seal_run("w")  # once more changes nothing but the seals
    assert strict.verify("w").ok


@pytest.mark.every_store
@one_way
def test_seal_run_seals_no_damage_no_owned_run_and_nothing_without_a_key(verbs, medium, attacker, line, log):
    graph, plain = line(Count, "abcd"), medium.open()
    stopped(verbs, graph, plain)
    with pytest.raises(OptionError, match="has no keys to seal run 'r1' with"):
        plain.seal_run("r1")
    attacker.change(plain, "r1", 2, lambda record: record._replace(payload=b'{"n":7}'))
    lenient = reopened(medium, plain, SIGNED, allow_unsealed=True)
    with pytest.raises(CheckpointIntegrityError, match="record 2"):
        lenient.seal_run("r1")
    assert 1 == len(lenient.verify("r1").problems)
    begin(lenient, "owned")
    with pytest.raises(RunLockedError, match="can't be sealed"):
        lenient.seal_run("owned")


def stripped(record: Record) -> Record:
    header, _, _ = (record.header or b"").rpartition(b',"seal":"')
    return record._replace(header=OWN.seal(header))


@pytest.mark.every_store
@one_way
def test_no_list_shows_an_error_whose_seal_was_taken_off(verbs, medium, attacker, log):
    def refuse(state: Count) -> Count:
        raise ValueError("no money")

    graph = Graph(Count).add_node("pay", refuse).set_entry("pay").add_edge("pay", END).compile()
    lenient = medium.open(**SIGNED, allow_unsealed=True)
    with pytest.raises(NodeError, match="no money"):
        verbs.run(graph, Count(), store=lenient, run_id="r1")
    assert "no money" == lenient.list_runs()[0].error.message
    for record in lenient.read("r1", after=0):
        attacker.change(lenient, "r1", record.sequence, stripped)
    assert lenient.list_runs()[0].error is None


@pytest.mark.every_store
@one_way
def test_once_a_run_has_a_seal_of_a_key_nobody_takes_one_off(verbs, medium, attacker, line, log):
    """Where records without a seal are accepted, only those before the first seal are."""
    graph, plain = line(Long, "abcd"), medium.open()
    stopped(verbs, graph, plain, after="b", state=Long(text="long " * 2000))
    lenient = reopened(medium, plain, SIGNED, allow_unsealed=True)
    newest = lenient.get_run("r1").info.sequence
    with pytest.raises(RunStopped):
        verbs.resume(graph, lenient, "r1", stop_after="c")
    assert lenient.verify("r1").ok
    sealed = [record.sequence for record in lenient.read("r1", after=newest)]
    assert 2 == len(sealed)
    for number in sealed[1:]:
        kept = attacker.kept(lenient, "r1", number)
        attacker.change(lenient, "r1", number, stripped)
        problems = lenient.verify("r1").problems
        assert any(f"record {number} of" in problem and "no seal of a key" in problem for problem in problems)
        log.clear()
        with pytest.raises(CheckpointIntegrityError, match="no seal of a key"):
            verbs.resume(graph, lenient, "r1")
        assert [] == log
        attacker.change(lenient, "r1", number, lambda _, record=kept: record)
    assert lenient.verify("r1").ok


@one_way
def test_what_is_saved_from_outside_is_proven_too(verbs, medium, attacker, keyed, keys, line, log):
    graph = line(Count, "abc")
    data = Checkpoint("r1", "a", "b", {"n": 41}).encode()
    keyed.save("r1", "a", data)
    keyed.save("r2", "a", b"\xff any bytes \0")
    assert (data, b"\xff any bytes \0") == (keyed.load("r1", "a"), keyed.load("r2", "a"))
    assert keyed.read("r1")[0].is_foreign
    (info,) = keyed.list("r1")
    assert (len(data), "b") == (info.size, keyed.get_run("r1").info.next_node)
    plan = verbs.plan(graph, keyed, "r1")
    assert ("continue", True) == (plan.verdict, plan.verified)
    attacker.change(keyed, "r1", 1, state_changed)
    refused(verbs, graph, reopened(medium, keyed, keys), log, "record 1 of run 'r1'", names=1)
    with keyed._read("look") as tx:
        life = tx.life("r1")
    attacker.change(keyed, "r1", 1, lambda _: saved_at(1, "a", data, life))
    refused(verbs, graph, reopened(medium, keyed, keys), log, "without a key|without encryption", names=1)


def test_a_signal_that_was_planted_reaches_no_run(medium, attacker, keyed, keys):
    keyed.save("r1", "a", b"1")
    keyed.put_signal("r1", "approval", b'{"ok":false}')
    assert [b'{"ok":false}'] == [signal.payload for signal in keyed.signals("r1")]
    attacker.send(keyed, "r1", Signal(2, "approval", b'{"ok":true}', None, None, 1.0))
    store = reopened(medium, keyed, keys)
    with pytest.raises(CheckpointIntegrityError, match=r"signal 2 \('approval'\) of run 'r1'"):
        store.signals("r1")
    assert any("signal 2" in problem for problem in store.verify("r1").problems)


@pytest.mark.every_store
@one_way
def test_a_signal_whose_time_was_changed_reaches_no_run(verbs, keyed, attacker):
    """A wait takes no signal that was sent after its time. Nobody may make an answer late, or a late one good."""
    graph = waiting_graph()
    suspended(verbs, graph, keyed)
    keyed.put_signal("r1", "ok", b"true")
    (honest,) = keyed.signals("r1")
    attacker.delay(keyed, "r1", honest.sent_at + 1)
    with pytest.raises(CheckpointIntegrityError, match=r"signal 1 \('ok'\) of run 'r1'"):
        verbs.resume(graph, keyed, "r1")
    assert any("signal 1" in problem for problem in keyed.verify("r1").problems)
    attacker.delay(keyed, "r1", honest.sent_at)
    assert {} == verbs.resume(graph, keyed, "r1")


@workflow("booking")
def booking() -> Steps[bool]:
    """A step that has something to undo, and a wait."""
    yield from step("book").python(len, args=("seat",)).with_rollback(undo)
    answer = yield from step("ask").wait_for("answer", payload=bool)
    return answer.payload


undone: list[str] = []


def undo(ctx) -> None:
    undone.append(ctx.run_id)


def test_who_has_no_key_sends_nothing_that_would_stop_the_run(medium, keyed, keys):
    for run_id in ("r1", "r2"):
        with pytest.raises(RunSuspended):
            booking.run(store=keyed, run_id=run_id)
    before = {run_id: keyed.read(run_id) for run_id in ("r1", "r2")}
    for other in (reopened(medium, keyed, {}), reopened(medium, keyed, {name: OTHER_KEYS[name] for name in keys})):
        for send in (
            lambda: booking.signal(other, "r1", "answer", True),  # noqa: B023
            lambda: booking.signal(other, "r1", "nobody asked"),  # noqa: B023
            lambda: booking.cancel(other, "r2", "not needed"),  # noqa: B023
            lambda: other.delete("r1", "book"),  # noqa: B023
        ):
            with pytest.raises(CheckpointIntegrityError, match="which this store does not have"):
                send()
    assert before == {run_id: keyed.read(run_id) for run_id in ("r1", "r2")}
    assert "taken" == booking.signal(keyed, "r1", "answer", True)
    assert booking.resume(keyed, "r1")
    # Only who can read what is to be undone can tell that there is something.
    undone.clear()
    assert "requested" == booking.cancel(keyed, "r2", "not needed")
    with pytest.raises(RunCancelled):
        booking.resume(keyed, "r2")
    assert ["r2"] == undone
    assert keyed.verify("r2").ok


# -- the row of a run: what people are shown of it --------------------------------------------------------------


def waiting_graph(count: int = 1) -> Any:
    graph = Graph(dict)
    for number in range(count):
        graph.add_wait(f"ask{number}", "ok", apply=lambda state, reply: state, prompt=f"pay {number}?", payload=bool)
    names = [START, *(f"ask{number}" for number in range(count)), END]
    for origin, target in itertools.pairwise(names):
        graph.add_edge(origin, target)
    return graph.compile("asking")


def with_wait(**changes: Any) -> Callable[[Row], Row]:
    return lambda row: replace(row, waiting=(dataclasses.replace(row.waiting[0], **changes), *row.waiting[1:]))


ROWS: dict[str, Callable[[Row], Row]] = {
    "prompt": with_wait(prompt="FORGED"),
    "schema": with_wait(schema={"title": "FORGED"}),
    "wait_id": with_wait(wait_id="FORGED#1"),
    "signal": with_wait(signal="FORGED"),
    "refused": with_wait(refused=RefusedAnswer("FORGED", datetime(2026, 1, 1, tzinfo=UTC))),
    "reason": lambda row: replace(row, reason="FORGED"),
    "cancel": lambda row: replace(row, cancel="FORGED"),
    "status": lambda row: replace(row, status="failed", reason="FORGED"),
    "no seal": lambda row: with_wait(prompt="FORGED")(replace(row, seal="")),
    "digest": lambda row: with_wait(prompt="FORGED")(replace(row, seal=f"sha256:{'0' * 64}")),
    "other run": lambda row: replace(row, waiting=(*row.waiting, *row.waiting)),
}


def told_as_damage(verbs: Any, graph: Any, store: Any, run_id: str = "r1") -> None:
    with pytest.raises(StoreError, match=f"the row of run '{run_id}' was ") as caught:
        store.get_run(run_id)
    with pytest.raises(StoreError, match=f"the row of run '{run_id}' was "):
        verbs.resume(graph, store, run_id)
    with pytest.raises(StoreError, match=f"the row of run '{run_id}' was "):
        store.put_signal(run_id, "ok", b"true")
    (listed,) = [info for info in store.list_runs() if info.run_id == run_id]
    assert ("blocked", "damage", ()) == (listed.status, listed.blocked_by, listed.waiting_for)
    assert listed.reason in str(caught.value)
    assert listed.reason in store.verify(run_id).problems
    assert "FORGED" not in f"{listed}{caught.value}{store.verify(run_id)}"
    assert {} == store.cancels([run_id])
    assert [] == store.claim_due(["asking"], 5)


def suspended(verbs: Any, graph: Any, store: Any, run_id: str = "r1") -> None:
    with pytest.raises(RunSuspended):
        verbs.run(graph, {}, store=store, run_id=run_id)


@pytest.mark.every_store
@one_way
def test_a_question_that_was_changed_in_the_row_is_shown_to_nobody(verbs, keyed, attacker):
    graph = waiting_graph()
    suspended(verbs, graph, keyed)
    (honest,) = keyed.get_run("r1").info.waiting_for
    assert ("pay 0?", {"type": "boolean"}) == (honest.prompt, honest.schema)
    before = attacker.change_row(keyed, "r1", ROWS["prompt"])
    told_as_damage(verbs, graph, keyed)
    attacker.change_row(keyed, "r1", lambda _: before)
    assert keyed.verify("r1").ok
    keyed.put_signal("r1", "ok", b"true")
    assert {} == verbs.resume(graph, keyed, "r1")


@one_way
@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_whatever_was_changed_of_what_a_row_shows_is_told_as_damage(verbs, keyed, attacker, change):
    graph = waiting_graph()
    suspended(verbs, graph, keyed)
    attacker.change_row(keyed, "r1", change)
    told_as_damage(verbs, graph, keyed)


@pytest.mark.every_store
@one_way
def test_a_row_that_was_put_back_is_older_than_its_journal(verbs, keyed, attacker):
    graph = waiting_graph(2)
    suspended(verbs, graph, keyed)
    older = attacker.change_row(keyed, "r1", lambda row: row)
    keyed.put_signal("r1", "ok", b"true")
    with pytest.raises(RunSuspended):
        verbs.resume(graph, keyed, "r1")
    assert ["pay 1?"] == [wait.prompt for wait in keyed.get_run("r1").info.waiting_for]
    attacker.change_row(keyed, "r1", lambda row: replace(older, epoch=row.epoch, signals=row.signals))
    told_as_damage(verbs, graph, keyed)


@one_way
def test_a_plain_text_in_an_encrypted_row_is_refused_as_such(verbs, medium, attacker):
    store = medium.open(**KEYS["both"])
    suspended(verbs, waiting_graph(), store)
    attacker.change_row(store, "r1", ROWS["prompt"])
    with pytest.raises(StoreError, match="the row of run 'r1' was written without encryption: pass allow_plain=True"):
        store.get_run("r1")


@pytest.mark.every_store
@one_way
@pytest.mark.parametrize("is_sealed_later", [False, True])
def test_no_row_and_no_signal_without_a_seal_is_taken_for_a_run_that_has_seals(
    verbs, medium, attacker, is_sealed_later
):
    """Not even where that is asked for, on behalf of the runs from before there was a key."""
    store = medium.open(**({} if is_sealed_later else SIGNED))
    suspended(verbs, waiting_graph(), store)
    lenient = reopened(medium, store, SIGNED, allow_unsealed=True)
    assert ["pay 0?"] == [wait.prompt for wait in lenient.get_run("r1").info.waiting_for]
    if is_sealed_later:
        lenient.seal_run("r1")
    attacker.send(lenient, "r1", Signal(1, "ok", b"true", None, None, 1.0))
    with pytest.raises(CheckpointIntegrityError, match="no seal of a key"):
        lenient.signals("r1")
    attacker.change_row(lenient, "r1", lambda row: replace(row, seal=""))
    with pytest.raises(StoreError, match="no seal of a key"):
        lenient.get_run("r1")
    (listed,) = lenient.list_runs()
    assert ("blocked", ()) == (listed.status, listed.waiting_for)
    assert not lenient.verify("r1").ok


@pytest.mark.every_store
@one_way
def test_no_record_loses_its_seal_once_its_run_was_sealed(verbs, medium, attacker, line, log):
    graph, plain = line(Count, "abcd"), medium.open()
    stopped(verbs, graph, plain)
    newest = plain.get_run("r1").info.sequence
    kept = attacker.kept(plain, "r1", newest)
    lenient = reopened(medium, plain, SIGNED, allow_unsealed=True)
    lenient.seal_run("r1")
    attacker.change(lenient, "r1", newest, lambda _: kept)
    assert not lenient.verify("r1").ok
    log.clear()
    with pytest.raises(CheckpointIntegrityError, match="no seal of a key"):
        verbs.resume(graph, lenient, "r1")
    assert [] == log


@one_way
def test_the_row_of_a_run_whose_key_is_elsewhere_says_which_key(verbs, medium, keys):
    store = medium.open(**keys)
    suspended(verbs, waiting_graph(), store)
    other = reopened(medium, store, {name: OTHER_KEYS[name] for name in keys})
    (listed,) = other.list_runs()
    assert ("blocked", ()) == (listed.status, listed.waiting_for)
    assert ", which this store does not have: add it to " in listed.reason
    rotated = reopened(medium, store, {name: {**OTHER_KEYS[name], **keys[name]} for name in keys})
    assert ["pay 0?"] == [wait.prompt for wait in rotated.get_run("r1").info.waiting_for]


@pytest.mark.every_store
@one_way
def test_reasons_cancels_and_records_from_outside_leave_a_row_that_is_proven(verbs, keyed):
    def fail(state: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no \ud800 \0 good")

    graph = Graph(dict).add_node("a", fail).set_entry("a").add_edge("a", END).compile("failing")
    with pytest.raises(NodeError):
        verbs.run(graph, {}, store=keyed, run_id="failed")
    suspended(verbs, waiting_graph(), keyed, "cancelled")
    assert "cancelled" == keyed.request_cancel("cancelled", "too \0 late", keyed.get_run("cancelled").info.sequence)
    suspended(verbs, waiting_graph(), keyed, "asked")
    assert "requested" == keyed.request_cancel("asked", "later")
    assert {"asked": "later"} == keyed.cancels(["failed", "cancelled", "asked"])
    keyed.import_run(keyed.export("asked"), run_id="copy")
    keyed.delete("asked", "ask0")
    for run_id in ("failed", "cancelled", "asked", "copy"):
        assert keyed.verify(run_id).ok
        assert keyed.get_run(run_id).info.reason


@one_way
def test_a_question_that_was_changed_in_its_record_is_no_part_of_what_show_shows(verbs, keyed, attacker):
    suspended(verbs, waiting_graph(), keyed)

    def shown() -> str:
        view = view_run(keyed.latest("r1"), records_of(keyed, "r1"), keyed.place, is_of_steps=False)
        assert isinstance(view.content, RunStatus)
        return f"{view.content.waits}{[*read_entries(keyed, 'r1')]}"

    assert "pay 0?" in shown()
    attacker.change(keyed, "r1", 1, lambda record: record._replace(payload=b'"FORGED"'))
    assert "FORGED" not in shown()


# -- imports


def test_an_import_is_taken_if_a_key_proves_it(verbs, medium, keyed, keys, line, log):
    """Whoever forges an export can make every digest and every seal without a key, and can leave lines out."""
    graph = line(Count, "abcd")
    stopped(verbs, graph, keyed)
    data = keyed.export("r1")
    assert "copy" == keyed.import_run(data, run_id="copy")
    assert keyed.verify("copy").ok
    lines = data.splitlines(keepends=True)
    lenient = reopened(medium, keyed, keys, allow_unsealed=True, allow_plain="signing_key" not in keys)
    changed = data.replace(b'"n":3', b'"n":9')
    for forged_data in (
        b"".join(lines[:-1]),
        changed,
        b"".join([*lines[:1], *lines[2:]]),
        data.replace(b":s:", b":x:").replace(b'"hmac-sha256:e:', b'"hmac-sha256:x:'),
    ):
        with pytest.raises(CheckpointIntegrityError, match="run to import"):
            keyed.import_run(forged_data, run_id="forged")
    with pytest.raises(CheckpointIntegrityError):
        lenient.import_run(changed, run_id="forged")
    assert "taken" == lenient.import_run(b"".join(lines[:-1]), run_id="taken")
    assert b'{"seal":' not in lenient.export("taken")
    assert "of another" == reopened(medium, keyed, {}).import_run(data, run_id="of another")
    if "signing_key" not in keys:
        return
    assert not verbs.plan(graph, lenient, "taken").verified
    assert not keyed.verify("taken").ok
    assert verbs.plan(graph, lenient, "copy").verified
