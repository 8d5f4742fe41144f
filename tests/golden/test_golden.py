"""Envelopes of every form that was ever written are read for ever.

Files stand beside this one and are never edited; a release that writes a new form adds a file. The expected values are
written out here, not computed.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from milepost.model.checkpoint import Checkpoint, migrate, read_envelope

HERE = Path(__file__).parent
OURS = sorted(path.name for path in HERE.glob("release_*.json"))
ALL = sorted(path.name for path in HERE.glob("*.json"))


def golden(name: str) -> bytes:
    return (HERE / name).read_bytes()


def told(name: str) -> tuple[str, str, str | None, object, int, str | None, int, str]:
    found = Checkpoint.decode(golden(name))
    moment = None if found.timestamp is None else found.timestamp.isoformat()
    return (
        found.run_id,
        found.node_id,
        found.next_node,
        found.state,
        found.sequence,
        moment,
        found.attempt,
        found.prev_node_id,
    )


def test_version_as_text_without_attempt_is_read() -> None:
    state = {"Count": 42, "Status": "processing"}
    expected = ("run-123", "b", "c", state, 2, "2025-01-19T10:20:30.123456+00:00", 1, "")
    assert expected == told("go_version_text.json")


def test_go_field_names_with_the_state_as_base64_are_read() -> None:
    state = {"count": 42, "status": "processing"}
    assert ("run-1", "b", "c", state, 0, None, 1, "") == told("go_field_names.json")


def test_go_field_names_in_another_case_are_read() -> None:
    assert ("run-1", "b", "c", {}, 0, None, 1, "") == told("go_field_names_lower.json")


def test_a_checkpoint_without_next_node_does_not_claim_to_have_one() -> None:
    state = {"input": "hello", "output": "world", "count": 42}
    expected = ("run-123", "process", None, state, 1, "2025-01-19T00:00:00+00:00", 1, "")
    assert expected == told("go_without_next_node.json")
    assert "next_node" not in read_envelope(golden("go_without_next_node.json"))[0]


def test_a_compressed_state_without_encoding_and_size_is_read() -> None:
    expected = ("run-123", "process", None, {"data": "x" * 4000}, 1, "2025-01-19T00:00:00+00:00", 1, "fetch")
    assert expected == told("go_compressed.json")


def test_no_version_at_all_is_read() -> None:
    state = {"rows": [1, 2.5, 12345678901234567890123]}
    assert ("run-7", "parse", "store", state, 0, None, 1, "") == told("without_version.json")
    assert b'{"rows":[1,2.50,12345678901234567890123]}' == read_envelope(golden("without_version.json"))[1]


def test_the_file_of_a_step_workflow_is_read() -> None:
    steps = [
        {
            "name": "fetch_data",
            "step_type": "python",
            "success": True,
            "output": {"rows": 1000},
            "duration_ms": 5234,
            "error": None,
        },
        {
            "name": "expensive_compute",
            "step_type": "python",
            "success": True,
            "output": {"computed": True},
            "duration_ms": 120000,
            "error": None,
        },
    ]
    expected = ("", "expensive_compute", None, steps, 0, "2025-12-20T15:30:00+00:00", 1, "")
    assert expected == told("step_workflow.json")
    extra = {"workflow_name": "data_pipeline", "inputs_hash": "a1b2c3d4e5f67890"}
    assert extra == Checkpoint.decode(golden("step_workflow.json")).extra


def test_a_checkpoint_of_release_1_is_read() -> None:
    state = {"name": "Grüße", "total": "12.50", "items": [1, 2.5, None, True]}
    expected = ("r-1", "pay", "ship", state, 3, "2026-01-01T00:00:03+00:00", 2, "order")
    assert expected == told("release_1_checkpoint.json")
    found = Checkpoint.decode(golden("release_1_checkpoint.json"))
    assert (2, 3, 12.345, 2) == (found.visit, found.iteration, found.duration_ms, found.epoch)
    assert (("order#1",), {"customer": "c-9"}, {}) == (found.missed, found.tags, found.extra)


def test_a_compressed_checkpoint_of_release_1_is_read() -> None:
    expected = ("r-1", "pay", "__end__", {"data": "x" * 4000}, 3, "2026-01-01T00:00:03+00:00", 2, "order")
    assert expected == told("release_1_compressed.json")
    found = Checkpoint.decode(golden("release_1_compressed.json"))
    assert (True, "zstd+base64", 4011) == (found.compressed, found.encoding, found.size)


def test_a_checkpoint_whose_router_failed_has_a_next_node_of_null() -> None:
    fields, state = read_envelope(golden("release_1_undecided.json"))
    assert (None, b"{}") == (fields["next_node"], state)


def test_a_checkpoint_made_by_hand_is_read() -> None:
    state = {"count": 42, "status": "processing"}
    expected = ("r-2", "b", "c", state, 0, "2025-12-20T15:30:00+00:00", 1, "")
    assert expected == told("release_1_by_hand.json")
    assert {"note": None} == Checkpoint.decode(golden("release_1_by_hand.json")).extra


RECORDS = {
    "start": (
        {
            "sequence": 0,
            "node_id": "",
            "flow": "orders",
            "flow_version": 1,
            "fingerprint": "ffffffffffffffff",
            "shape": {"nodes": ["order", "pay"]},
            "inputs_hash": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
            "entry": "order",
            "epoch": 1,
        },
        b'{"n":5}',
    ),
    "owner": (
        {
            "sequence": 4,
            "node_id": "",
            "verb": "resume",
            "from": 3,
            "epoch": 2,
            "crashed": True,
            "reason": "the owner before it was gone",
        },
        b"null",
    ),
    "owner_override": (
        {
            "sequence": 4,
            "node_id": "pay",
            "verb": "resume_from",
            "from": 2,
            "epoch": 3,
            "live": [["", 0, 2], ["", 4, None]],
        },
        b'{"n":7}',
    ),
    "owner_continue": (
        {"sequence": 7, "node_id": "", "verb": "continue", "from": 5, "entry": "order", "epoch": 3},
        b'{"n":9}',
    ),
    "owner_fork": (
        {"sequence": 4, "node_id": "", "verb": "fork", "from": 3, "epoch": 3, "reason": "its state was overridden"},
        b'{"n":7}',
    ),
    "start_forked": (
        {
            "sequence": 0,
            "flow": "orders",
            "origin": {"run_id": "r-0", "sequence": 3, "origin": {"run_id": "r", "sequence": 2}},
        },
        b'{"n":5}',
    ),
    "failure": (
        {
            "sequence": 4,
            "node_id": "ship",
            "op": "execute",
            "attempt": 1,
            "final": True,
            "epoch": 2,
            "error_type": "ValueError",
            "message": "no such address",
            "traceback": "Traceback ...\nValueError: no such address\n",
        },
        b"null",
    ),
    "route": ({"sequence": 5, "node_id": "pay", "next_node": "ship", "iteration": 3, "epoch": 2}, b"null"),
    "finish": ({"sequence": 6, "node_id": "", "status": "finished", "result": 5, "epoch": 2}, b"null"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_another_kind_is_read(name: str) -> None:
    expected, state = RECORDS[name]
    fields, found = read_envelope(golden(f"release_1_{name}.json"))
    assert state == found
    assert name.partition("_")[0] == fields["kind"]
    assert ("r-1", 1) == (fields["run_id"], fields["version"])
    assert expected == {field: fields[field] for field in expected}


def test_an_export_of_a_whole_run_is_read() -> None:
    lines = golden("release_1_export.jsonl").splitlines()
    run = json.loads(lines[0])["run"]
    assert ("r-1", "sums", "finished", {"team": "a"}) == (run["run_id"], run["flow"], run["status"], run["tags"])
    found = []
    for line in lines[1:]:
        saved = json.loads(line).get("saved")
        fields, state = read_envelope(line if saved is None else base64.b64decode(saved["data"]))
        place = fields if saved is None else saved
        found.append((place["sequence"], fields.get("kind"), place["node_id"], fields.get("next_node"), state))
    assert [
        (0, "start", "", None, b'{"n":20}'),
        (1, None, "double", "count", b'{"n":40}'),
        (2, None, "double", "count", b'{"n":41}'),
        (3, "owner", "", None, b"null"),
        (4, None, "count", "__end__", b'{"n":42}'),
        (5, "finish", "", None, b"null"),
    ] == found


@pytest.mark.parametrize("name", ALL)
def test_a_migrated_file_tells_the_same(name: str) -> None:
    fields, state = read_envelope(golden(name))
    migrated = migrate(golden(name))
    assert (fields, state) == read_envelope(migrated)
    assert migrated == migrate(migrated)


@pytest.mark.parametrize("name", OURS)
def test_what_a_release_wrote_is_written_again_to_the_same_meaning(name: str) -> None:
    first = Checkpoint.decode(golden(name))
    again = Checkpoint.decode(first.encode())
    assert (first.state, first.extra, first.kind) == (again.state, again.extra, again.kind)
    assert first.digest == again.digest
