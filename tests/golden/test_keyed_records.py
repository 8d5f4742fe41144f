"""What a store with keys wrote stays readable for ever: records, signals and texts that the first such release kept."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from milepost.model.info import Wait
from milepost.model.record import Record
from milepost.model.seal import Seals
from milepost.store import Signal
from milepost.stores.base.encryption import RecordCipher, keeper_of
from milepost.stores.base.fence import Row

GOLDEN = json.loads((Path(__file__).parent / "keyed" / "release_2.json").read_text(encoding="utf-8"))
KEYS = {
    name: {key_id: secret.encode() for key_id, secret in GOLDEN[name].items()}
    for name in ("signing_key", "encryption_key")
}


def keeper(form: str) -> tuple[RecordCipher, Seals]:
    signing = None if form == "encrypted" else KEYS["signing_key"]
    encryption = None if form == "signed" else KEYS["encryption_key"]
    seals = Seals(signing, encryption_ids=tuple(encryption or ()))
    made = keeper_of(seals, encryption, allow_plain=False)
    assert made is not None
    return made, seals


def record_of(fields: dict[str, Any]) -> Record:
    parts = {name: None if fields[name] is None else base64.b64decode(fields[name]) for name in ("header", "payload")}
    return Record(**{**fields, **parts})


@pytest.mark.parametrize("form", GOLDEN["forms"])
def test_what_the_first_release_kept_is_read(form: str):
    kept_by, seals = keeper(form)
    golden = GOLDEN["forms"][form]
    for name, fields in golden["records"].items():
        plain = record_of(GOLDEN["plain"][name])
        opened = kept_by.opened("r-1", record_of(fields))
        assert seals.check("r-1", opened), name
        assert (plain.state(), plain.is_foreign) == (opened.state(), opened.is_foreign), name
        if plain.header is not None:
            assert seals.seal(plain.header) == opened.header, name
    signal = Signal(1, "approval", base64.b64decode(golden["signal"]), "s-1", "ask#1", 5.0)
    assert b'{"ok":true}' == kept_by.opened_signal("r-1", "", signal).payload
    wait = Wait("ask#1", "approval", golden["prompt"])
    row = Row(
        "r-1", "orders", "waiting", 1.0, 2.0, 3, reason=golden["reason"], cancel=golden["cancel"], waiting=(wait,)
    )
    seen = kept_by.opened_row(row)
    assert ("why it stands", "enough", {"text": "pay?"}) == (seen.reason, seen.cancel, seen.waiting[0].prompt)
