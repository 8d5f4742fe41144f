"""Ids: the same verdict on every store, before anything is stored, and no two ids in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from milepost.errors import InvalidIDError, RunExistsError, RunIDRequiredError
from milepost.store import Store, Token
from milepost.testing.contract.subject import StoreUnderTest
from milepost.testing.journals import begin, new_run

REFUSED = {
    "dot": ".",
    "two dots": "..",
    "NUL": "a\x00b",
    "newline": "a\nb",
    "delete": "a\x7f",
    "C1 control": "a\x85",
    "lone surrogate": "a\ud800",
    "513 bytes": "a" * 513,
    "514 bytes in 257 characters": "é" * 257,
    "5000 bytes": "a" * 5000,
}
BLANK = {"empty": "", "blanks": "   ", "wide blank": "\u3000"}
KEPT_APART = (
    "R1", "r1", "1", "01", "../up", "in/voice", "in", "in%2Fvoice", "in\\voice", "/abs", "~", "a.", "a", "a ", " a",
    "con", "CON", "nul.json", "a:b", "a*b?", "k') OR 2>1 --", '"', "%", "_", "é", "e\u0301", "straße", "strasse",
    "ß" * 256, "日本", "🚀", "x" * 320, "x" * 319, "x" * 512,
)  # fmt: skip
VERBS: dict[str, Callable[[Store, Any], object]] = {
    "create": lambda store, run_id: store.create(new_run("r")._replace(run_id=run_id)),
    "save": lambda store, run_id: store.save(run_id, "a", b""),
    "load": lambda store, run_id: store.load(run_id, "a"),
    "list": lambda store, run_id: store.list(run_id),
    "history": lambda store, run_id: store.history(run_id),
    "delete": lambda store, run_id: store.delete(run_id, "a"),
    "delete_run": lambda store, run_id: store.delete_run(run_id),
    "read": lambda store, run_id: store.read(run_id),
    "latest": lambda store, run_id: store.latest(run_id),
    "get_run": lambda store, run_id: store.get_run(run_id),
    "put_signal": lambda store, run_id: store.put_signal(run_id, "go", None),
    "signals": lambda store, run_id: store.signals(run_id),
    "request_cancel": lambda store, run_id: store.request_cancel(run_id),
    "export": lambda store, run_id: store.export(run_id),
    "verify": lambda store, run_id: store.verify(run_id),
}


class IDContract(StoreUnderTest):
    """`check_id` and `check_run_id` speak for every store."""

    @pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
    def test_an_id_that_no_store_accepts_is_refused_before_anything_is_stored(self, store: Store, value: str) -> None:
        """The id itself, if every store accepts it; else `InvalidIDError`."""
        with pytest.raises(InvalidIDError) as caught:
            store.save(value, "a", b"1")
        assert value == caught.value.value
        with pytest.raises(InvalidIDError):
            begin_as(store, value)
        with pytest.raises(InvalidIDError):
            store.save("r", value, b"1")
        assert [] == store.list_runs()

    @pytest.mark.parametrize("value", BLANK.values(), ids=BLANK.keys())
    def test_a_blank_run_id_asks_for_one(self, store: Store, value: str) -> None:
        """`check_id` for a run id; `RunIDRequiredError` if it is empty or blank."""
        with pytest.raises(RunIDRequiredError):
            store.save(value, "a", b"1")
        with pytest.raises(RunIDRequiredError):
            begin_as(store, value)
        with pytest.raises(InvalidIDError):
            store.save("r", value, b"1")
        assert [] == store.list_runs()

    @pytest.mark.parametrize("call", VERBS.values(), ids=VERBS.keys())
    @pytest.mark.parametrize("value", [1, None, b"r"], ids=["int", "None", "bytes"])
    def test_a_run_id_that_is_no_str_is_a_type_error(
        self, store: Store, call: Callable[[Store, Any], object], value: object
    ) -> None:
        """TypeError if it is no str."""
        store.save("1", "a", b"1")
        with pytest.raises(TypeError):
            call(store, value)
        assert ["1"] == [info.run_id for info in store.list_runs()]

    @pytest.mark.parametrize("value", [1, None, b"a"], ids=["int", "None", "bytes"])
    def test_a_node_id_that_is_no_str_is_a_type_error(self, store: Store, value: Any) -> None:
        """TypeError if it is no str."""
        with pytest.raises(TypeError):
            store.save("r", value, b"1")
        with pytest.raises(TypeError):
            store.load("r", value)
        with pytest.raises(TypeError):
            store.delete("r", value)
        assert [] == store.list_runs()

    def test_run_ids_are_kept_apart_exactly(self, store: Store) -> None:
        """Ids are compared exactly and case-sensitively; all that is not refused is allowed."""
        for run_id in KEPT_APART:
            store.save(run_id, "a", run_id.encode())
        assert [run_id.encode() for run_id in KEPT_APART] == [store.load(run_id, "a") for run_id in KEPT_APART]
        assert set(KEPT_APART) == {info.run_id for info in store.list_runs()}
        assert [[run_id] for run_id in KEPT_APART] == [
            [info.run_id for info in store.list(run_id)] for run_id in KEPT_APART
        ]
        store.delete_run("r1")
        assert set(KEPT_APART) - {"r1"} == {info.run_id for info in store.list_runs()}

    def test_node_ids_are_kept_apart_exactly(self, store: Store) -> None:
        """Ids are compared exactly and case-sensitively; all that is not refused is allowed."""
        for node_id in KEPT_APART:
            store.save("r", node_id, node_id.encode())
        assert list(KEPT_APART) == [info.node_id for info in store.list("r")]
        assert [node_id.encode() for node_id in KEPT_APART] == [store.load("r", node_id) for node_id in KEPT_APART]

    def test_created_run_ids_are_kept_apart_exactly(self, store: Store) -> None:
        """Raises `RunExistsError` if the id is taken: no other id takes it."""
        for run_id in KEPT_APART:
            begin(store, run_id)
        for run_id in KEPT_APART:
            assert run_id == store.get_run(run_id).info.run_id
            with pytest.raises(RunExistsError):
                begin(store, run_id)


def begin_as(store: Store, run_id: str) -> Token:
    """Create a run under an id for which no record can be made."""
    return store.create(new_run("r")._replace(run_id=run_id))
