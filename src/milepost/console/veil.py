"""The values that a console does not show: those at hidden paths, texts of errors, and all that is not proven.

They are taken out before any text is made, so that nothing that is drawn, compared, downloaded or answered as JSON has them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from milepost.errors import CheckpointIntegrityError, DeserializeStateError
from milepost.graph.status import RunStatus
from milepost.model.info import RunFailure, RunInfo, Wait
from milepost.model.record import ITEMS, REPLY, WAIT, Record
from milepost.store import Store
from milepost.views.hiding import Place, find_places, read_paths
from milepost.views.journal import JournalLine
from milepost.views.text import clean
from milepost.views.tree import Tree, TreeStep, parts_of

HIDDEN = "•••"
_RECORDED = ("state", "inputs", "output")
"""The roots of what a record may hold: the state of one node is the input or the output of another."""
_WRAPPED = {"wait": "payload", "subworkflow": "final_output"}
"""The keys below which the outputs of some types of steps have the value itself. A reply is like the output of its wait."""


class Veil:
    """The paths that are hidden, such as `state.card` or `inputs.*.token`, and whether texts of errors are.

    Raises `OptionError` for what is no such path.
    """

    def __init__(self, paths: Sequence[str] = (), *, errors: bool = False) -> None:
        self.paths = read_paths(paths)
        self.hides_errors = errors

    @property
    def hides_anything(self) -> bool:
        """True if something is hidden from everybody."""
        return bool(self.paths) or self.hides_errors

    @property
    def hides_state(self) -> bool:
        """True if something in states is hidden."""
        return any(path.is_below(*_RECORDED) for path in self.paths)

    @property
    def hides_refusals(self) -> bool:
        """True if texts about refused answers are hidden: they quote the payload."""
        return self.hides_errors or any(path.is_below("payload") for path in self.paths)

    def value(self, value: Any, *roots: str) -> Any:
        """Return recorded JSON with what is hidden below these roots replaced."""
        places = {place for path in self.paths if path.is_below(*roots) for place, _ in find_places(value, path.parts)}
        return _hide(value, places) if places else value

    def recorded(self, store: Store, run_id: str, record: Record) -> Any:
        """Return the JSON in a record without what is hidden; None if it has none.

        Raises `DeserializeStateError` or `ValueError` for one that was changed or can't be read.
        """
        check(store, run_id, record)
        data = record.state()
        value = None if data is None else json.loads(data)
        step_type = str(record.fields().get("step_type", ""))
        if step_type and isinstance(value, dict):
            error = HIDDEN if self.hides_errors and value.get("error") else value.get("error")
            return {**value, "output": self.output(value.get("output"), step_type), "error": error}
        if record.kind == WAIT:
            return self.value(value, "prompt")
        if record.kind == ITEMS:
            return self.items(value)
        return self.output(value, "wait") if record.kind == REPLY else self.state(value)

    def state(self, value: Any) -> Any:
        """Return a recorded state, an input or an output without what is hidden."""
        return self.value(value, *_RECORDED)

    def items(self, items: Any) -> Any:
        """Return the recorded items of a map without what is hidden.

        They come from a state, and no path of the state says where in them its values are. So where one is hidden, the items
        are too, unless a path says what to hide in them.
        """
        if self.hides_state and not any(path.root == "items" for path in self.paths):
            return HIDDEN if items else items
        return self.value(items, "items")

    def output(self, output: Any, step_type: str) -> Any:
        """Return the recorded output of a step without what is hidden."""
        output, key = self.state(output), _WRAPPED.get(step_type)
        if key is None or not isinstance(output, dict) or key not in output:
            return output
        return {**output, key: self.value(output[key], *_RECORDED, *(["payload"] if step_type == "wait" else []))}

    def hidden_places(self, value: Any) -> list[tuple[str, ...]]:
        """Return the places in a state that are hidden, as keys and indexes."""
        paths = [path for path in self.paths if path.is_below(*_RECORDED)]
        return [place for path in paths for place, _ in find_places(value, path.parts)]

    def info(self, info: RunInfo, locked: str | None = None) -> RunInfo:
        """Return a run's row without what is hidden. `locked` says which key is missing: then no text is proven."""
        waits = tuple(self._wait(wait, is_locked=locked is not None) for wait in info.waiting_for)
        error = None if info.error is None or locked is not None else self.failure(info.error)
        reason = info.reason
        if locked is not None:
            reason = locked
        elif info.status == "waiting" and any(now is not was for now, was in zip(waits, info.waiting_for, strict=True)):
            reason = "waits for " + ", ".join(_named(wait) for wait in waits)
        elif self.hides_errors and (info.status in {"failed", "blocked"} or info.error is not None):
            reason = "" if error is None else f"{error.error_type} at {error.node_id!r}"
        return replace(info, reason=reason, waiting_for=waits, error=error)

    def failure(self, error: RunFailure) -> RunFailure:
        """Return an error without its message and traceback, if those are hidden."""
        return replace(error, message="", traceback="") if self.hides_errors else error

    def _wait(self, wait: Wait, *, is_locked: bool) -> Wait:
        if is_locked:
            return Wait(wait.wait_id, wait.signal, None, wait.wake_at, None, wait.since)
        prompt = self.value(wait.prompt, "prompt")
        refused = wait.refused
        if self.hides_refusals and refused is not None:
            refused = replace(refused, text=HIDDEN)
        if prompt == wait.prompt and refused is wait.refused:
            return wait
        return Wait(wait.wait_id, wait.signal, prompt, wait.wake_at, wait.schema, wait.since, refused)

    def line(self, line: JournalLine, locked: str | None = None) -> JournalLine:
        """Return a line of the journal without what is hidden. A note on a failure or an end has the error's message."""
        if locked is not None:
            return replace(line, note="", error=None, by=None)
        if line.kind == "reply" and self.hides_refusals:
            return replace(line, note="")
        if not self.hides_errors or line.kind not in {"failure", "finish", "owner", "rollback"}:
            return line
        error = (
            None
            if line.error is None
            else {"error_type": line.error.get("error_type"), "message": None, "traceback": None}
        )
        note = "" if line.error is None else str(line.error.get("error_type"))
        return replace(line, note=note, error=error)

    def content(
        self, content: Tree | RunStatus, locked: str | None = None, changed: Collection[int | None] = ()
    ) -> None:
        """Take what is hidden out of a tree, in place, and what `changed` records say: the numbers of those with a flaw."""
        for part in parts_of(content):
            if part.wait is not None:
                part.wait = self._wait(part.wait, is_locked=locked is not None)
            if self.hides_errors or locked is not None or (self.hides_refusals and part.status != "skipped"):
                part.reason = ""
            if self.hides_errors or locked is not None:
                part.error = "" if locked is not None else part.error.partition(":")[0]
            if isinstance(part, TreeStep):
                part.output = None if locked is not None else self.output(part.output, part.step_type)
                if part.sequence in changed:
                    part.output, part.reason, part.error = None, "", ""


def missing_key(store: Store, run_id: str) -> str | None:
    """Return which key a run's texts can't be proven without, in one sentence; None: the store has it."""
    for record in store.read(run_id, newest=True, limit=1):
        try:
            store.seals.check_key(run_id, record)
        except CheckpointIntegrityError as exc:
            return f"not shown: {exc}"
    return None


def check(store: Store, run_id: str, record: Record) -> None:
    """Raise `DeserializeStateError` if a record was changed, as far as the store can tell: people shall not believe it."""
    if record.header is not None or not store.seals.accepts_unsealed:  # one from outside has nothing to check
        store.seals.check(run_id, record)


def flaws_of(store: Store, run_id: str, records: Iterable[Record]) -> dict[int, str]:
    """Return for each record that was changed, by its number, one sentence that says so."""
    flaws = {}
    for record in records:
        try:
            check(store, run_id, record)
        except DeserializeStateError as exc:
            flaws[record.sequence] = clean(exc)
    return flaws


def _named(wait: Wait) -> str:
    return "its time" if wait.signal is None else f"signal {wait.signal!r} at {wait.wait_id!r}"


def _hide(value: Any, places: Collection[Place], here: Place = ()) -> Any:
    """Return a copy of JSON in which what stands at these places is replaced. `here` is the place of the value."""
    if here in places:
        return HIDDEN
    if isinstance(value, dict):
        return {key: _hide(item, places, (*here, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_hide(item, places, (*here, str(index))) for index, item in enumerate(value)]
    return value
