"""Seals with and without keys, and the keys themselves."""

from __future__ import annotations

import hashlib
import hmac
import json
import subprocess
import sys
from typing import Any

import pytest

from milepost.errors import CheckpointCorruptError, CheckpointIntegrityError, MissingExtraError, OptionError
from milepost.model.record import CHECKPOINT, START, VERBATIM, Record, make_record, packed
from milepost.model.seal import Code, Seals
from milepost.store import Store
from milepost.stores.base.encryption import KeyRing
from milepost.stores.memory import MemoryStore
from milepost.testing.tables import for_each

STAMP = "2026-01-01T00:00:00.000000Z"
OLD, NEW = b"the old key, 22 bytes.", b"the new key, 22 bytes."
SECRET = b"a secret that nobody may see...."


def checkpoint(seals: Seals, state: bytes = b'{"n":6}') -> Record:
    record = make_record("r", 3, STAMP, CHECKPOINT, "work", 2, state, {"next_node": "later"})
    assert record.header is not None
    return seals.sealed(record)


def test_a_seal_with_a_key_is_an_hmac_of_the_header_up_to_it():
    header = checkpoint(Seals({"a.1": OLD})).header
    assert header is not None
    content, _, rest = header.partition(b',"seal":')
    expected = hmac.new(OLD, content, hashlib.sha256).hexdigest()
    assert f'"hmac-sha256:a.1:{expected}"'.encode() == rest
    assert f"hmac-sha256:a.1:{expected}" == json.loads(header + b"}")["seal"]


@for_each("content", [b"", b"x", b"x" * 55, b"x" * 64, b"x" * 5000])
def test_a_code_is_hmac_sha256(content: bytes):
    for key in (b"k" * 16, b"k" * 64, b"k" * 200):
        code = Code(key)
        assert hmac.new(key, content, hashlib.sha256).hexdigest() == code.of(content) == code.of(content)


def test_the_first_key_seals_and_all_verify():
    record = checkpoint(Seals({"a": OLD}))
    both = Seals({"b": NEW, "a": OLD})
    assert both.check("r", record)
    assert b"hmac-sha256:b:" in (checkpoint(both).header or b"")
    assert both.check("r", checkpoint(both))


def test_a_key_that_is_not_there_is_named():
    record = checkpoint(Seals({"key-of-2025": OLD}))
    with pytest.raises(CheckpointIntegrityError, match=r"'key-of-2025'.*add it to signing_key") as caught:
        Seals({"b": NEW}).check("r", record)
    assert ("r", "work", 3) == (caught.value.run_id, caught.value.node_id, caught.value.sequence)
    with pytest.raises(CheckpointIntegrityError, match=r"'key-of-2025'.*open the store with signing_key"):
        Seals().check("r", record)


def test_another_secret_under_the_same_id_proves_nothing():
    with pytest.raises(CheckpointIntegrityError, match="was changed after it was written"):
        Seals({"a": NEW}).check("r", checkpoint(Seals({"a": OLD})))


def test_what_was_written_without_a_key_is_refused_or_accepted_without_proof():
    record = checkpoint(Seals())
    assert Seals().check("r", record)
    with pytest.raises(CheckpointIntegrityError, match=r"without a key.*allow_unsealed=True"):
        Seals({"a": OLD}).check("r", record)
    assert not Seals({"a": OLD}, allow_unsealed=True).check("r", record)


def test_bytes_without_a_header_prove_nothing():
    for seals in (Seals(), Seals({"a": OLD}), Seals({"a": OLD}, allow_unsealed=True)):
        with pytest.raises(CheckpointIntegrityError):
            seals.check("r", Record(1, CHECKPOINT, "a", 1, 3, None, b"any"))


def test_what_is_accepted_without_a_key_must_be_whole_all_the_same():
    lenient = Seals({"a": OLD}, allow_unsealed=True)
    record = checkpoint(Seals())
    assert record.header is not None
    with pytest.raises(CheckpointIntegrityError):
        lenient.check("r", record._replace(header=record.header.replace(b"later", b"never")))
    with pytest.raises(CheckpointIntegrityError):
        lenient.check("r", record._replace(payload=b'{"n":7}'))
    keyed = checkpoint(Seals({"a": OLD}))
    assert keyed.header is not None
    with pytest.raises(CheckpointIntegrityError):
        lenient.check("r", keyed._replace(header=keyed.header.replace(b"later", b"never")))


@pytest.mark.parametrize("seals", [Seals(), Seals({"a": OLD})], ids=["plain", "keyed"])
def test_no_byte_of_a_header_can_be_changed(seals: Seals):
    record = checkpoint(seals)
    assert record.header is not None
    for at in range(len(record.header)):
        changed = bytearray(record.header)
        changed[at] ^= 1
        with pytest.raises(CheckpointCorruptError):
            seals.check("r", record._replace(header=bytes(changed)))


@for_each(
    "tail",
    [b"", b',"seal":"', b',"seal":""', b',"seal":"hmac-sha256:"', b',"seal":"hmac-sha256:a:"', b',"seal":"\xff:\xff"'],
)
def test_no_tail_of_a_header_passes_for_a_seal(tail: bytes):
    header = (checkpoint(Seals()).header or b"").partition(b',"seal"')[0]
    for seals in (Seals(), Seals({"a": OLD}), Seals({"a": OLD}, allow_unsealed=True)):
        with pytest.raises(CheckpointCorruptError):
            seals.check("r", checkpoint(Seals())._replace(header=header + tail))


def test_a_seal_is_not_taken_from_the_middle_of_a_header():
    seals = Seals({"a": OLD})
    header = (checkpoint(seals).header or b"") + b',"next_node":"elsewhere"'
    with pytest.raises(CheckpointIntegrityError):
        seals.check("r", checkpoint(seals)._replace(header=header))


def test_bytes_from_outside_and_states_do_not_pass_for_each_other():
    seals = Seals({"a": OLD})
    state = checkpoint(seals, b'{"node_id":"work","state":{}}')
    with pytest.raises(CheckpointIntegrityError, match="packing 'verbatim'"):
        seals.check("r", state._replace(packing=VERBATIM))
    saved = make_record("r", 3, STAMP, CHECKPOINT, "work", 2, b"{}")
    header = (saved.header or b"").replace(b'"encoding":"json"', b'"encoding":"verbatim"')
    saved = seals.sealed(saved._replace(header=header, packing=VERBATIM))
    assert seals.check("r", saved)
    with pytest.raises(CheckpointIntegrityError, match="encoding 'verbatim'"):
        seals.check("r", saved._replace(packing=""))


@pytest.mark.parametrize("kind", [CHECKPOINT, START])
def test_a_record_at_another_place_is_refused(kind: str):
    seals = Seals({"a": OLD})
    record = make_record("r", 3, STAMP, kind, "work", 2, b"{}")
    record = seals.sealed(record)
    assert seals.check("r", record)
    with pytest.raises(CheckpointIntegrityError, match="place"):
        seals.check("s", record)
    for change in ({"sequence": 4}, {"node_id": "other"}, {"visit": 1}, {"kind": "route"}):
        with pytest.raises(CheckpointIntegrityError, match="place"):
            seals.check("r", record._replace(**change))  # type: ignore[arg-type]


WRONG_KEYS: list[Any] = [
    SECRET,
    [("a", SECRET)],
    {},
    {"a": SECRET.decode()},
    {"a": bytearray(SECRET)},
    {"a": SECRET[:15]},
    {1: SECRET},
    {"": SECRET},
    {"a:b": SECRET},
    {"a b": SECRET},
    {'a"': SECRET},
    {"x" * 65: SECRET},
    {SECRET.decode(): SECRET.decode()},
    {"a": SECRET, SECRET: "b"},
]


@for_each("keys", WRONG_KEYS)
@for_each("option", ["signing_key", "encryption_key"])
def test_a_key_that_is_none_is_refused_and_never_shown(option: str, keys: Any):
    with pytest.raises(OptionError, match=f"^{option} ") as caught:
        MemoryStore(**{option: keys})
    assert option == caught.value.option
    assert SECRET[:15].decode() not in str(caught.value)


@pytest.mark.parametrize("size", [16, 31, 33, 64])
def test_an_encryption_key_has_exactly_32_bytes(size: int):
    with pytest.raises(OptionError, match=f"{size} bytes as key 'a', not exactly 32"):
        MemoryStore(encryption_key={"a": b"k" * size})


def test_keys_are_copied_and_no_repr_shows_them():
    keys = {"a": SECRET}
    store = MemoryStore(signing_key=keys, encryption_key=keys)
    record = checkpoint(store.seals)
    keys.clear()
    assert store.seals.check("r", record)
    shown = [repr(each) for each in (store, vars(store), store.seals, store._keeper, KeyRing({"a": SECRET}))]
    shown += [repr(vars(KeyRing({"a": SECRET}))["_of_run"]), str(store.seals)]
    assert SECRET.decode() not in "".join(shown)


@pytest.mark.parametrize("missing", ["cryptography", "cryptography.hazmat.primitives.ciphers.aead"])
def test_a_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    assert MemoryStore(signing_key={"a": SECRET}).seals.is_keyed
    with pytest.raises(MissingExtraError, match=r"pip install 'milepost\[crypto\]'") as caught:
        MemoryStore(encryption_key={"a": SECRET})
    assert "crypto" == caught.value.extra


def test_nothing_but_an_encryption_key_imports_the_extra():
    source = "import sys; from milepost import MemoryStore; MemoryStore(signing_key={'a': b'k' * 16}); "
    told = subprocess.run(
        [sys.executable, "-c", source + "print('cryptography' in sys.modules)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert "False" == told.stdout.strip()


def test_a_store_that_cannot_encrypt_refuses_the_key():
    class Other(MemoryStore):
        can_encrypt = False

    with pytest.raises(OptionError, match="Other can't encrypt") as caught:
        Other(encryption_key={"a": SECRET})
    assert "encryption_key" == caught.value.option
    assert not Store.can_encrypt


# -- the short way of a step's completion ---------------------------------------------------------------------

KEYS = pytest.mark.parametrize("seals", [Seals(), Seals({"a": OLD})], ids=["digest", "hmac"])


def completion(
    seals: Seals, kind: str = CHECKPOINT, state: bytes = b'{"output":1}', encoding: str = "json", **fields: Any
) -> Record:
    step = {"next_node": None, "attempt": 1, "step_type": "python", "outcome": "succeeded", "args": {"text": "[1]"}}
    record = make_record("r", 3, STAMP, kind, "work", 2, state, {**step, **fields}, compressing=True)
    assert record.header is not None
    header = record.header.replace(b'"encoding":"json"', f'"encoding":"{encoding}"'.encode())
    return seals.sealed(record._replace(header=header))


@KEYS
@pytest.mark.parametrize("state", [b'{"output":1}', b'{"output":"' + b"x" * 2000 + b'"}'], ids=["small", "compressed"])
def test_the_short_way_tells_what_the_long_one_does(seals: Seals, state: bytes):
    record = completion(seals, state=state, rollback=True)
    head = seals.checked_step("r", record)
    is_proven, fields = seals.checked_fields("r", record)
    assert is_proven
    assert head is not None
    expected = {name: fields[name] for name in head.__struct_fields__ if name in fields}
    assert expected == {name: getattr(head, name) for name in expected}
    assert {"args", "digest", "outcome", "rollback", "sequence", "step_type", "timestamp"} <= set(expected)


@KEYS
def test_the_short_way_lets_no_changed_byte_pass(seals: Seals):
    record = completion(seals)
    for name in ("header", "payload"):
        data: bytes = getattr(record, name)
        for at in range(len(data)):
            changed = record._replace(**{name: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]})
            assert seals.checked_step("r", changed) is None, data[at:]


@for_each(
    "record",
    [
        completion(Seals(), START),
        completion(Seals(), version=2),
        completion(Seals(), step_type="a kind of a later release"),
        completion(Seals(), encoding=VERBATIM),
        completion(Seals())._replace(packing=VERBATIM),
        completion(Seals())._replace(payload=None),
        completion(Seals(), sequence=4),
        completion(Seals(), visit=1),
        packed(completion(Seals(), state=b" " * 2000)),
        checkpoint(Seals()),
        completion(Seals({"a": OLD})),
        Record(3, CHECKPOINT, "work", 2, 2, None, b"{}"),
    ],
)
def test_the_short_way_leaves_everything_else_to_the_long_one(record: Record):
    assert Seals().checked_step("r", record) is None


def test_the_short_way_is_for_the_run_that_is_asked_for_and_the_key_that_there_is():
    record = completion(Seals())
    assert Seals().checked_step("r", record) is not None
    assert Seals().checked_step("another", record) is None
    assert Seals({"a": OLD}).checked_step("r", record) is None
    assert Seals({"a": OLD}, allow_unsealed=True).checked_step("r", record) is None
    assert Seals({"a": NEW}).checked_step("r", completion(Seals({"a": OLD}))) is None
