"""Records with keys that build on one another, when some of them are deleted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import CheckpointIntegrityError
from milepost.model.record import CHECKPOINT, DIFFERENCE
from milepost.store import Release
from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing.chats import chat, state_of, talk
from milepost.testing.journals import begin, write

SIGNED = {"signing_key": {"s": b"signing key, 24 bytes..."}}
ENCRYPTED = {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}}
OTHER = {"encryption_key": {"o": b"another key, of the same 32 bytes"[:32]}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def interrupted(path: Path, keys: dict[str, Any]) -> None:
    """A run of a chat, of whose nodes each builds on the one before."""
    with SQLiteStore(path, **keys) as store:
        token = begin(store, "r", state=chat(20))
        talk(store, token, 1, 26)
        write(store, token, release=Release("finished"))


@pytest.mark.parametrize("keys", [SIGNED, ENCRYPTED, {**SIGNED, **ENCRYPTED}])
def test_what_builds_on_a_deleted_record_is_still_proven(path, keys):
    interrupted(path, keys)
    with SQLiteStore(path, **keys) as store:
        store.delete("r", "b")
        left = [record.sequence for record in store.read("r", kinds=(CHECKPOINT,))]
        assert [n for n in range(1, 27) if n % 3 != 1] == left
        assert all(chat(n) == state_of(store, "r", n) for n in left)
        assert () == store.verify("r").problems


def test_a_changed_header_is_not_sealed_anew(path):
    interrupted(path, SIGNED)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE records SET header = replace(header, '\"later\"', '\"other\"') WHERE sequence = 26")
    with SQLiteStore(path, **SIGNED) as store:
        store.delete("r", "b")
        problem, gap = store.verify("r").problems
        assert "record 25 is missing" in gap, "what named it is not proven"
        assert "record 26" in problem
        assert "was changed after it was written" in problem


@pytest.mark.parametrize("keys", [{}, SIGNED, {**SIGNED, **OTHER}])
def test_who_cannot_tell_what_records_build_on_deletes_none(path, keys, caplog):
    interrupted(path, {**SIGNED, **ENCRYPTED})
    with SQLiteStore(path, **keys) as store:
        with pytest.raises(CheckpointIntegrityError, match="which this store does not have"):
            store.delete("r", "b")
        assert 0 == store.prune(keep_last=1).records
    assert "run 'r' is not pruned" in caplog.text
    with SQLiteStore(path, **SIGNED, **ENCRYPTED) as store:
        assert all(chat(n) == state_of(store, "r", n) for n in range(20, 27))
        assert 23 == store.prune(keep_last=1).records


@pytest.mark.parametrize("written", [{}, ENCRYPTED])
def test_what_nobody_with_the_key_has_sealed_is_never_verified(path, written):
    """Not by encryption, and not by being written anew: the records beside the deleted ones keep their lack of a seal."""
    interrupted(path, written)
    keys = {**SIGNED, **written, "allow_unsealed": True}
    with SQLiteStore(path, **keys) as store:
        store.delete("r", "b")
        left = store.read("r", kinds=(CHECKPOINT,))
        assert {DIFFERENCE, ""} >= {record.packing for record in left}
        assert not any(store.seals.check("r", record) for record in left)
        assert () == store.verify("r").problems
    with SQLiteStore(path, **SIGNED, **written) as store:
        problems = store.verify("r").problems
        assert all(any(f"record {record.sequence} " in problem for problem in problems) for record in left)
