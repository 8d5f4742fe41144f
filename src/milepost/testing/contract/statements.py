"""Users' statements: they count with the records of their append, or not at all; other stores refuse them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import OptionError, StatementError
from milepost.store import Append, Release, Statement, Store, Token
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.contract.threads import at_once
from milepost.testing.journals import begin, checkpoint, finish, take, whole, work, write

BOOK = "milepost_contract_book"
"""A table of the user's own."""

CONTROL = [
    "COMMIT",
    "commit;",
    " \n\t;COMMIT",
    "-- a comment\nCOMMIT",
    "/* one */ /* two */ Commit",
    "END",
    "BEGIN",
    "BEGIN TRANSACTION",
    "ROLLBACK",
    "rollback to savepoint s",
    "SAVEPOINT s",
    "RELEASE s",
    "RELEASE SAVEPOINT s",
]
"""Statements that control a transaction in the SQL of any database."""


class StatementContract(StoreUnderTest):
    """What a user wants to count with the records, and only with them: executed after these in their transaction."""

    @requires(runs_statements=False)
    def test_a_store_that_executes_no_statements_refuses_them(self, store: Store) -> None:
        """Whether an append may have statements; one that may not have them refuses them with `OptionError`."""
        assert not store.runs_statements
        token = begin(store, "r")
        before = whole(store, "r")
        with pytest.raises(OptionError, match="executes no statements"):
            store.append([Append(token, (checkpoint("r", 1),), statements=(Statement("SELECT 1"),))])
        assert before == whole(store, "r")
        assert "written" == work(store, token, "a").outcome

    @pytest.fixture
    def book(self, store: Store, tmp_path: Path) -> Iterator[Path]:
        """Create the table, and yield the store's path."""
        self.query(tmp_path, f"DROP TABLE IF EXISTS {BOOK}")
        self.query(tmp_path, f"CREATE TABLE {BOOK} (id integer PRIMARY KEY, word text CHECK (word <> 'no'))")
        yield tmp_path
        self.query(tmp_path, f"DROP TABLE IF EXISTS {BOOK}")

    def _words(self, place: Path) -> list[Any]:
        return [word for (word,) in self.query(place, f"SELECT word FROM {BOOK} ORDER BY id")]  # noqa: S608

    def _enter(self, number: int, word: str = "word") -> Statement:
        mark = self.placeholder
        return Statement(f"INSERT INTO {BOOK} VALUES ({mark}, {mark})", (number, word))  # noqa: S608

    def _together(self, token: Token, sequence: int, *statements: Statement) -> Append:
        return Append(token, (checkpoint(token.run_id, sequence),), statements=statements)

    @requires(runs_statements=True)
    def test_statements_count_with_the_records_of_their_append(self, store: Store, book: Path) -> None:
        """It has a transaction of its own, in which they follow the fence and the records, in order."""
        assert store.runs_statements
        token = begin(store, "r")
        mark = self.placeholder
        changed = Statement(f"UPDATE {BOOK} SET word = {mark} WHERE id = {mark}", ("two", 1))  # noqa: S608
        verdicts = store.append([self._together(token, 1, self._enter(1, "one"), changed, self._enter(2, "more"))])
        assert [("written", None)] == verdicts
        assert ["two", "more"] == self._words(book)
        assert [0, 1] == [record.sequence for record in store.read("r")]
        assert "written" == work(store, token, "a").outcome

    @requires(runs_statements=True)
    def test_statements_count_with_the_end_of_a_run(self, store: Store, book: Path) -> None:
        """Records of one run that are written together, with the release and the tags."""
        token = begin(store, "r")
        last = Append(token, (finish("r", 1),), Release("finished"), {"k": "v"}, (self._enter(1),))
        assert ["written"] == [verdict.outcome for verdict in store.append([last])]
        assert ["word"] == self._words(book)
        info = store.get_run("r").info
        assert ("finished", {"k": "v"}) == (info.status, dict(info.tags))

    @requires(runs_statements=True)
    @pytest.mark.parametrize("failing", ["again", "check", "no such table", "nonsense", "too few", "unknown type"])
    def test_a_statement_that_fails_undoes_all_of_its_append(self, store: Store, book: Path, failing: str) -> None:
        """`StatementError`: one failed, and nothing was written."""
        token = begin(store, "r")
        mark = self.placeholder
        bad = {
            "again": self._enter(1),
            "check": self._enter(2, "no"),
            "no such table": Statement("INSERT INTO milepost_contract_nowhere VALUES (1)"),
            "nonsense": Statement("INSERT nonsense"),
            "too few": Statement(f"INSERT INTO {BOOK} VALUES ({mark}, {mark})", (2,)),  # noqa: S608
            "unknown type": Statement(f"INSERT INTO {BOOK} VALUES ({mark}, 'x')", (object(),)),  # noqa: S608
        }[failing]
        before = whole(store, "r")
        ended = Append(token, (finish("r", 1),), Release("finished"), {"k": "v"}, (self._enter(1), bad))
        with pytest.raises(StatementError) as caught:
            store.append([ended])
        assert isinstance(caught.value.__cause__, Exception)
        assert bad.sql == caught.value.sql
        assert before == whole(store, "r")
        assert [] == self._words(book)
        assert ["written"] == [verdict.outcome for verdict in store.append([self._together(token, 1, self._enter(1))])]
        assert ["word"] == self._words(book)

    @requires(runs_statements=True)
    @pytest.mark.parametrize("control", CONTROL)
    def test_a_statement_may_not_control_the_transaction(self, store: Store, book: Path, control: str) -> None:
        """`StatementError`: one is none that may stand in a transaction, and nothing was written."""
        token = begin(store, "r")
        work(store, token, "a")  # so that the store has sent its own statements over the connection before
        before = whole(store, "r")
        with pytest.raises(StatementError):
            store.append([self._together(token, 2, self._enter(1), Statement(control), self._enter(2))])
        assert before == whole(store, "r")
        assert [] == self._words(book)
        assert "written" == work(store, token, "b").outcome

    @requires(runs_statements=True)
    def test_a_text_is_one_statement(self, store: Store, book: Path) -> None:
        """One statement in the store's SQL."""
        token = begin(store, "r")
        one, two = (f"INSERT INTO {BOOK} VALUES ({values})" for values in ("1, 'a'", "2, 'b'"))  # noqa: S608
        for text in (f"{one}; {two}", f"{one}; COMMIT", "", " ; ", "-- nothing", "/* nothing */"):
            with pytest.raises(StatementError):
                store.append([self._together(token, 1, Statement(text))])
        assert [] == self._words(book)
        store.append([self._together(token, 1, Statement(f"{one};"))])
        assert ["a"] == self._words(book)

    @requires(runs_statements=True)
    def test_values_are_bound(self, store: Store, book: Path) -> None:
        """The values that are bound to its placeholders."""
        token = begin(store, "r")
        word = f"'); DROP TABLE {BOOK}; --"
        store.append([self._together(token, 1, self._enter(1, word), self._enter(2, "100%"))])
        assert [word, "100%"] == self._words(book)

    @requires(runs_statements=True)
    def test_without_the_token_none_is_executed(self, store: Store, book: Path) -> None:
        """With any other verdict than `written` none is executed."""
        token = begin(store, "r")
        newer = take(store, "r", takeover=True).token
        assert newer is not None
        late = self._together(token, 1, self._enter(1))
        assert ["lost"] == [verdict.outcome for verdict in store.append([late])]
        forged = self._together(newer._replace(nonce="no"), 2, self._enter(1))
        assert ["lost"] == [verdict.outcome for verdict in store.append([forged])]
        assert ["taken"] == [verdict.outcome for verdict in store.append([self._together(newer, 1, self._enter(1))])]
        assert ["gap"] == [verdict.outcome for verdict in store.append([self._together(newer, 9, self._enter(1))])]
        store.request_cancel("r", "enough")
        refused = Append(newer, (finish("r", 2),), Release("finished"), statements=(self._enter(1),))
        assert ["refused"] == [verdict.outcome for verdict in store.append([refused])]
        assert [] == self._words(book)
        assert ("written", "enough") == store.append([self._together(newer, 2, self._enter(1))])[0]
        assert ["word"] == self._words(book)

    @requires(runs_statements=True)
    def test_an_append_with_statements_is_a_batch_of_its_own(self, store: Store, book: Path) -> None:
        """An append with statements is a batch of its own (else ValueError)."""
        mine, yours = begin(store, "mine"), begin(store, "yours")
        with pytest.raises(ValueError, match="batch of its own"):
            store.append([self._together(mine, 1, self._enter(1)), Append(yours, (checkpoint("yours", 1),))])
        assert [] == self._words(book)
        assert [0, 0] == [store.get_run(run_id).info.sequence for run_id in ("mine", "yours")]

    @requires(runs_statements=True)
    def test_a_failing_statement_undoes_nothing_of_other_threads(self, store: Store, book: Path) -> None:
        """It has a transaction of its own: one append's fate does not touch another's."""
        tokens = [begin(store, f"r{number}") for number in range(12)]

        def add(number: int) -> list[str]:
            token = tokens[number]
            told: list[str] = []
            for sequence in range(1, 6):
                if number % 3 == 0:
                    told.append(write(store, token, checkpoint(token.run_id, sequence)).outcome)
                    continue
                key = 1000 * number + sequence
                statements = (self._enter(key), self._enter(key)) if number % 3 == 1 else (self._enter(key),)
                try:
                    told.append(store.append([self._together(token, sequence, *statements)])[0].outcome)
                except StatementError:
                    told.append("failed")
                    write(store, token, checkpoint(token.run_id, sequence))
            return told

        told = at_once(add, range(12))
        assert [["failed" if number % 3 == 1 else "written"] * 5 for number in range(12)] == told
        assert ["word"] * 20 == self._words(book)
        assert [5] * 12 == [store.get_run(token.run_id).info.sequence for token in tokens]
