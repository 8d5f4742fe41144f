"""A recorded run as a test: its export, written anew without keys, and a Python file that plays it again.

Everything of a run is in its export, so what is secret can be hidden: a value is replaced by one of the same type and
length wherever it stands, and the same value by the same one, so that comparisons come out as before.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from milepost import __version__
from milepost.codec.plan import MARK
from milepost.errors import DeserializeStateError
from milepost.executor.flow import Flow
from milepost.model.record import (
    CHECKPOINT,
    FINISH,
    ITEMS,
    NOT_JSON,
    OWNER,
    REPLY,
    START,
    WAIT,
    Record,
)
from milepost.model.seal import DIGESTS, Seals
from milepost.store import Store
from milepost.stores.memory import MemoryStore
from milepost.testing.replaying import Replay, ReplayDifference
from milepost.views.hiding import HiddenPath, Place, find_places, read_paths

__all__ = ["NoTestError", "RecordedTest", "paths_of_test", "record_test", "source_of_test"]

WRITTEN_ANEW = "milepost.written_anew"
"""The tag of a run whose export was written anew: its digests prove no more than that the file is undamaged."""
_MARKED = "v"
"""The key of a value beside the mark of the codec that says what it is."""
_SHORTEST = 4
"""The length of the shortest text that is also replaced where it is part of another text."""
_TEXTS = ("args", "message", "traceback", "text", "reason", "refused", "tags")
"""The header fields that may repeat what states and arguments say."""
_OF_STORAGE = frozenset({*DIGESTS, "seal", "compressed", "size", "encoding", "state"})
"""The header fields that are made when a record is written."""
_NAMES = {ITEMS: "items", WAIT: "prompt", FINISH: "output", CHECKPOINT: "state"}
_decode, _encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode


class NoTestError(Exception):
    """The error for a run that can't become a test; its text says why."""


class RecordedTest(NamedTuple):
    """A run as a test."""

    data: bytes
    """The content of the file that `milepost.testing.replay` plays."""
    records: int
    status: str
    difference: str | None
    """The difference with which the test fails with the code as it is; None: it passes."""
    left: int
    """The number of hidden values that still stand in the file: in another place, or as the name of something."""


def record_test(
    store: Store, run_id: str, flow: Flow, *, hide: Sequence[str] = (), name: str | None = None
) -> RecordedTest:
    """Write a run of `store` as a test of `flow`, under the id `name` (None: its own).

    `hide` are paths of values to hide, as `milepost.views.hiding` reads them: `state.card`, `inputs.card`, `output.token`,
    `prompt`, `payload`, `items`. Raises `OptionError` for what is no such path; `NoTestError` for a run that retention has
    thinned, for a path that is nowhere, for a value that no other can stand for, and if hiding changes the path of the run;
    the errors of `Store.export`.
    """
    hider, plain = _Hider(hide), _whole(store, run_id)
    with MemoryStore() as memory:
        try:
            data = _rewritten(memory, memory.import_run(plain, run_id=name), hider, flow)
        except DeserializeStateError as exc:
            raise NoTestError(f"hiding {', '.join(hide)} leaves what flow {flow.name!r} can't read: {exc}") from exc
    if (nowhere := hider.nowhere()) is not None:
        raise NoTestError(f"run {run_id!r} has no text and no number at {str(nowhere)!r}, which is to be hidden")
    again = Replay(data, flow, (), {})
    if hide:
        data = _with_arguments(data, again, hider)
        again = Replay(data, flow, (), {})
    difference = _difference(again)
    if difference is not None and (hide or name):
        before = Replay(plain, flow, (), {})
        if _difference(before) is None or before.path != again.path:
            changed = f"hiding {', '.join(hide)}" if hide else "renaming the run"
            raise NoTestError(f"{changed} changes the path of run {run_id!r}: {difference}")
    with MemoryStore() as memory:
        lines = memory.export(memory.import_run(data))
    facts = {
        "flow": flow.name,
        "fingerprint": flow.fingerprint,
        "milepost": __version__,
        "recorded": datetime.now(UTC).date().isoformat(),
        "run": _short_digest(run_id),
    }
    return RecordedTest(
        _encode({"test": facts}) + b"\n" + lines,
        len(again.recorded.records),
        again.recorded.status,
        difference,
        hider.left_in(lines, [_Entry(record) for record in again.recorded.records]),
    )


def _difference(again: Replay) -> str | None:
    try:
        again.check()
    except ReplayDifference as exc:
        return str(exc)
    return None


# -- what is missing -----------------------------------------------------------------------------------------


def _whole(store: Store, run_id: str) -> bytes:
    """Export a run without keys. Raise `NoTestError` for a run without a beginning, and if records of it are gone."""
    with MemoryStore() as memory:
        memory.import_run(store.export(run_id))
        _check_whole(memory, run_id)
        return memory.export(run_id)


def _check_whole(store: Store, run_id: str) -> None:
    row, records = store.get_run(run_id), store.read(run_id)
    if not records or records[0].kind != START:
        raise NoTestError(f"run {run_id!r} has no start record: checkpoints that were saved from outside make no test")
    if row.info.missed:
        raise NoTestError(f"run {run_id!r} went on without saving {', '.join(row.info.missed)}")
    missing = [
        f"{before + 1} to {after - 1}"
        for before, after in itertools.pairwise(record.sequence for record in records)
        if after > before + 1
    ]
    if not missing:
        return
    seen: dict[str, set[int]] = {}
    for record in records:
        if record.kind == CHECKPOINT:
            seen.setdefault(record.node_id, set()).add(record.visit)
        elif record.kind == OWNER and record.node_id and record.fields().get("verb") == "delete":
            seen.setdefault(record.node_id, set()).add(record.visit + 1)
    gone = [
        f"{node_id}#{visit}" for node_id, visits in seen.items() for visit in sorted({*range(1, max(visits))} - visits)
    ]
    what = f"visits {', '.join(gone)}" if gone else "visits whose nodes it does not name any more"
    raise NoTestError(
        f"records {', '.join(missing)} of run {run_id!r} are gone, and with them {what}: a test needs all of them"
    )


# -- hiding --------------------------------------------------------------------------------------------------


class _Hider:
    """Values to hide, and what replaces them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = read_paths(paths)
        self._paths_of: dict[tuple[type, Any], HiddenPath] = {}
        """The values to hide, with their types, and the first path at which each stands."""
        self._found: set[HiddenPath] = set()

    def nowhere(self) -> HiddenPath | None:
        """Return a path at which no value was found; None if there is none."""
        return next((path for path in self.paths if path not in self._found), None)

    def look(self, root: str, document: Any) -> Any:
        """Note the values to hide in a document, which paths call `root`, and return it."""
        for path, _, value in self._places(root, document):
            for leaf in _leaves(value):
                self._found.add(path)
                self._paths_of.setdefault((type(leaf), leaf), path)
        return document

    def _places(self, root: str, document: Any) -> Iterator[tuple[HiddenPath, Place, Any]]:
        """Yield each path that leads into a document, the place it leads to, and the value there."""
        for path in self.paths:
            if path.is_below(root):
                yield from ((path, place, value) for place, value in find_places(document, path.parts))

    @cached_property
    def _known(self) -> dict[tuple[type, Any], Any]:
        """The replacement of each value to hide, once all of them have been looked for."""
        known: dict[tuple[type, Any], Any] = {}
        taken: set[Any] = set()
        hidden = {leaf for _, leaf in self._paths_of}
        for (kind, leaf), path in self._paths_of.items():
            made = _replacement(leaf, taken, hidden)
            if made is None:
                raise NoTestError(
                    f"no other value of the same length is left for one at {str(path)!r}, which is to be hidden"
                )
            known[kind, leaf] = made
            taken.add(made)
        return known

    def hidden(self, root: str, document: Any) -> Any:
        """Return a document without the values and the texts to hide. Each is replaced once, never what replaces it."""
        return self._hidden(document, {place for _, place, _ in self._places(root, document)})

    def _hidden(self, document: Any, places: Collection[Place], here: Place = (), *, is_hidden: bool = False) -> Any:
        """`here` is the place of the document. One that stands below a place `is_hidden`."""
        is_hidden = is_hidden or here in places
        if isinstance(document, list):
            return [
                self._hidden(item, places, (*here, str(index)), is_hidden=is_hidden)
                for index, item in enumerate(document)
            ]
        if isinstance(document, dict) and MARK in document:
            if _MARKED not in document:
                return document
            marked = self._hidden(document[_MARKED], places, (*here, _MARKED), is_hidden=is_hidden)
            return {**document, _MARKED: marked}
        if isinstance(document, dict):
            return {
                self._key(key): self._hidden(value, places, (*here, key), is_hidden=is_hidden)
                for key, value in document.items()
            }
        key = type(document), document
        if is_hidden and key in self._known:
            return self._known[key]
        return self._without(document) if isinstance(document, str) else document

    def without_texts(self, value: Any) -> Any:
        """Return a value without the texts to hide, which may be parts of others, and of keys that are no names."""
        return self._hidden(value, ())

    def _key(self, key: str) -> str:
        return key if key.isidentifier() else self._without(key)

    def _without(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._texts[found[0]], text) if self._texts else text

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The texts to hide that may be parts of others, as they are and as they stand in JSON, and what replaces them."""
        return {
            form(leaf): form(made)
            for (kind, leaf), made in self._known.items()
            if kind is str and len(leaf) >= _SHORTEST
            for form in (str, _escaped)  # arguments of steps are JSON in a text
        }

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))

    def is_hidden_form(self, before: Any, after: Any) -> bool:
        """Return whether two documents differ only in hidden values."""
        if isinstance(before, list) and isinstance(after, list):
            return len(before) == len(after) and all(map(self.is_hidden_form, before, after))
        if isinstance(before, dict) and isinstance(after, dict):
            return before.keys() == after.keys() and all(self.is_hidden_form(before[key], after[key]) for key in after)
        if isinstance(before, (list, dict)):
            return False
        return bool(before == after or self._known.get((type(before), before)) == after)

    def left_in(self, data: bytes, entries: Iterable[_Entry]) -> int:
        """Count the values to hide that still stand in an export: texts anywhere, numbers and short texts as values."""
        leaves = {(type(leaf), leaf) for entry in entries for leaf in entry.leaves()}
        leaves -= {(type(made), made) for made in self._known.values()}
        words = {word for kind, leaf in leaves if kind is str for word in re.findall(r"[\w.]+", leaf)}
        return sum(
            _escaped(leaf).encode() in data
            if kind is str and len(leaf) >= _SHORTEST
            else (kind, leaf) in leaves or str(leaf) in words
            for kind, leaf in self._known
            if leaf != ""
        )


def _escaped(text: str) -> str:
    """Return a text as it stands in JSON, without its quotes."""
    return _encode(text)[1:-1].decode()


def _leaves(document: Any) -> Iterator[Any]:
    """Yield the texts and numbers in a document, without those in marks of the codec."""
    if isinstance(document, list):
        for item in document:
            yield from _leaves(item)
    elif isinstance(document, dict) and MARK in document:
        yield from _leaves(document.get(_MARKED))
    elif isinstance(document, dict):
        for value in document.values():
            yield from _leaves(value)
    elif document is not None and not isinstance(document, bool):
        yield document


def _replacement(value: Any, taken: Collection[Any], hidden: Collection[Any]) -> Any:
    """Return another value of the same type and length, with letters and digits where the value has them; None: no one.

    It is none of those `taken` and, if possible, none of those to be hidden.
    """
    if value == "":
        return value
    for others in ({*taken, *hidden}, {*taken, value}):
        for number in range(len(others) + 1):
            if isinstance(value, str):
                made: Any = _other_text(value, number)
            else:
                digits = len(str(abs(int(value)))) if abs(value) < 1e15 else 15
                made = type(value)((10 ** (digits - 1) + number) * (-1 if value < 0 else 1))
            if made not in others:
                return made
    return None


def _other_text(text: str, number: int) -> str:
    """Return a text with the letters and digits of another exchanged, the last ones for those of `number`."""
    is_time = re.fullmatch(r"\d{4}-\d\d-\d\d[T ].*", text) is not None  # its letters are not the user's
    letters: list[str] = []
    for letter in reversed(text):
        if letter.isdigit():
            number, digit = divmod(number, 9)
            letters.append(str(digit + 1))
        elif letter.isalpha() and not is_time:
            number, place = divmod(number, 6)  # a to f, so that hex digits stay some
            letters.append(chr(ord("A" if letter.isupper() else "a") + place))
        else:
            letters.append(letter)
    return "".join(reversed(letters))


# -- writing anew --------------------------------------------------------------------------------------------


def _rewritten(store: Store, run_id: str, hider: _Hider, flow: Flow) -> bytes:
    """Return the lines of an export without what is to be hidden, with plain digests, and marked as such."""
    first, *body = store.export(run_id).splitlines()
    run = _decode(first)["run"]
    if hider.paths:
        journal = [_Entry(record) for record in store.read(run_id)]
        signals = [_decode(line)["signal"] for line in body if line.startswith(b'{"signal":')]
        for entry in journal:
            entry.each(hider.look)
        for signal in signals:
            hider.look("payload", signal["payload"])
        for entry in journal:
            entry.hide(hider, flow)
        body = [entry.line() for entry in journal]
        body += [_encode({"signal": _hidden_signal(signal, hider)}) for signal in signals]
        for wait in run.get("waiting") or ():
            wait["prompt"] = hider.hidden("prompt", wait.get("prompt"))
        run = {**run, **{name: hider.without_texts(run[name]) for name in _TEXTS if name in run}}
    run["tags"] = {**(run.get("tags") or {}), WRITTEN_ANEW: "plain digests, no seal"}
    return b"\n".join([_encode({"run": run}), *body]) + b"\n"


def _hidden_signal(signal: dict[str, Any], hider: _Hider) -> dict[str, Any]:
    signal = {**signal, "payload": hider.hidden("payload", signal["payload"])}
    if signal.get("data") is not None:
        data = hider.without_texts(base64.b64decode(signal["data"]).decode("utf-8", "replace"))
        signal["data"] = base64.b64encode(data.encode()).decode()
    return signal


class _Entry:
    """A record while values in it are looked for and hidden."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.fields = dict(record.fields())
        state = record.state()
        self.state = None if state is None else _decode(state)

    def each(self, apply: Callable[[str, Any], Any], rest: Callable[[Any], Any] = lambda value: value) -> None:
        """Replace each document in the record by what `apply` makes of it and of the name that paths have for it.

        What stands beside documents is replaced by what `rest` makes of it.
        """
        kind, fields, state = self.record.kind, self.fields, self.state
        if "updates" in fields:
            fields["updates"] = apply("state", fields["updates"])
        if state is None:
            return
        if kind == CHECKPOINT and "step_type" in fields:
            self.state = {**rest(state), "output": apply("output", state.get("output"))}
        elif kind == REPLY:
            self.state = {**rest(state), "payload": apply("payload", state.get("payload"))}
        elif kind == CHECKPOINT and self.record.node_id.rpartition("/")[2].isdecimal():
            self.state = apply("output", state)  # of an item of a map
        else:
            self.state = apply(_NAMES.get(kind) or ("inputs" if fields.get("front") == "workflow" else "state"), state)

    def hide(self, hider: _Hider, flow: Flow) -> None:
        """Replace the values to hide."""
        self.each(hider.hidden, hider.without_texts)
        self.fields |= {name: hider.without_texts(self.fields[name]) for name in _TEXTS if name in self.fields}
        if "inputs_hash" in self.fields:
            given = flow.input_of(_encode(self.state))
            self.fields["inputs_hash"] = flow.inputs_hash(given)
            if "inputs" in self.fields:
                self.fields["inputs"] = flow.digests(given)

    def leaves(self) -> Iterator[Any]:
        """Yield the texts and numbers of the state, the updates, the arguments and the texts of the record."""
        state: Any = self.state
        if self.record.kind == CHECKPOINT and "step_type" in self.fields:
            state = [state.get("output"), state.get("error")]
        yield from _leaves(_arguments(self.fields.get("args") or {}))
        for document in (state, *(self.fields.get(name) for name in ("updates", "message", "text", "reason"))):
            yield from _leaves(document)

    def line(self) -> bytes:
        """Return the record as a line of an export."""
        fields = {name: value for name, value in self.fields.items() if name not in _OF_STORAGE}
        if self.record.payload is None:
            record = self.record._replace(header=_encode(fields)[:-1])
        else:
            header, state = _encode({**fields, "encoding": "json"})[:-1], _encode(self.state)
            record = self.record._replace(header=header, payload=state, size=len(state), packing="")
        return Seals().sealed(record).envelope()


def _with_arguments(data: bytes, again: Replay, hider: _Hider) -> bytes:
    """Return an export whose steps have the arguments of a replay, where they differ in no more than hidden values.

    That is so too where they are so long that a digest stands for them.
    """
    found = {visit.key: visit.facts.get("args") for visit in again.replayed.visits}
    made = {
        visit.sequence: found[visit.key]
        for visit in again.recorded.visits
        if (given := visit.facts.get("args"))
        and (now := found.get(visit.key))
        and given != now
        and ("digest" in given or hider.is_hidden_form(_arguments(given), _arguments(now)))
    }
    lines = data.splitlines()
    for record in again.recorded.records:
        if record.sequence in made:
            entry = _Entry(record)
            entry.fields["args"] = made[record.sequence]
            lines[record.sequence + 1] = entry.line()
    return b"\n".join(lines) + b"\n"


def _arguments(given: Mapping[str, Any]) -> Any:
    """Return the arguments of a step, which are JSON in a text; the text, if it is cut."""
    text = given.get("text")
    try:
        return [_decode(text)] if isinstance(text, str) else []
    except msgspec.DecodeError:
        return [text]


# -- files ---------------------------------------------------------------------------------------------------


def paths_of_test(folder: Path, flow_name: str, run_id: str) -> tuple[Path, Path]:
    """Return the paths of a run's file and of its test. They have 8 hex digits more if others' names are the same."""
    stem, name = (f"{_cut(flow_name)}{dash}{_cut(run_id)}" for dash in "-_")
    recorded, test = folder / f"{stem}.jsonl", folder / f"test_{name.replace('-', '_')}.py"
    if not (_is_of_another(recorded, run_id) or (test.exists() and f'"{recorded.name}"' not in _text(test))):
        return recorded, test
    digest = _short_digest(run_id)
    return recorded.with_stem(f"{stem}-{digest}"), test.with_stem(f"{test.stem}_{digest}")


def source_of_test(recorded: Path, test: Path, run_id: str, flow_name: str, module: str, expression: str) -> str:
    """Return the code of a test. `expression` gives the flow in the module."""
    name = re.match(r"\w+", expression)
    assert name is not None
    return f'''"""Run {_plain(run_id)} of flow {_plain(flow_name)}, as `milepost record-test` recorded it."""

from {module} import {name[0]}


def {test.stem}(replay):
    replay("{recorded.name}", {expression}).check()
'''


def _cut(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", name)[:80]


def _plain(name: str) -> str:
    return repr(name).replace("\\", "/").replace('"', "'")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _is_of_another(path: Path, run_id: str) -> bool:
    """Return whether a file has the record of another run."""
    if not path.exists():
        return False
    header = path.read_bytes().partition(b"\n")[0]
    try:
        return bool(_decode(header)["test"]["run"] != _short_digest(run_id))
    except (*NOT_JSON, LookupError, TypeError):
        return False


def _short_digest(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:8]
