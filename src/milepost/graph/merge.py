"""Merges: what a node accepts, and how the results of branches become one state.

A field that no branch changed keeps its value. A field that a single branch changed takes the value of that branch, and
one that several changed needs a reducer. In a partial graph the reducer is given each update that the branch's nodes
returned for the field. In a graph of whole states, and if a node of a partial one returned a whole state, it is given
the difference: what the branch's value adds to the value before the fork. Only for the ready-made reducers the
difference can be derived. The order is that of the edges, never that of completion.

The fields that a subclass adds, and the extra fields and private attributes of a pydantic model, are merged in the same
way, but there are no reducers for them. A private attribute that several branches changed stays as it was: a new object
may have a new one. If branches returned a subclass, the merged state is of that class.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, get_origin, is_typeddict

import msgspec

from milepost import reducers
from milepost.codec import Codec
from milepost.codec.families import EXTRA, FIELDS_SET, PRIVATE
from milepost.codec.plan import MARK
from milepost.codec.resolve import annotations_of, reveal
from milepost.errors import DeserializeStateError, MergeConflictError, SerializeStateError, StateTypeError
from milepost.executor.flow import BranchEnd, Fork, Part, Whole
from milepost.model.record import REPLACED

# The next state, made of a node's return value: a whole state, or a part whose fields are taken over.
#
# In a graph of whole states a node must return all of the state. In a partial graph it may return a mapping of the fields
# that changed. Over dict and TypedDict a part looks like a whole, so every mapping that user code returns is a part.
# `Acceptance.read` decides this once; from there on a `Whole` and a `Part` are of different types.


Reducer = Callable[[Any, Any], Any]
"""`(value, update) -> value`, for one field."""


class Acceptance:
    """The rules for return values of nodes of a graph over `state_type`.

    `reducers` (by field) are None in a graph of whole states; `tracked` are fields for which only a join has a reducer.
    A field that a dict or TypedDict does not have yet is reduced from the empty value of its declared type. If the type
    has no empty value, the field takes the update as it is.
    """

    __slots__ = ("_class", "_classes", "_codec", "_is_mapping", "_reducers", "_starts", "tracked")

    def __init__(
        self,
        state_type: Any,
        codec: Codec[Any],
        reducers: Mapping[str, Reducer] | None,
        tracked: Iterable[str] = (),
    ) -> None:
        kind: type[Any] = get_origin(state_type) or state_type
        self._class = dict if is_typeddict(kind) else kind
        self._classes: tuple[type[Any], ...] = {float: (float, int), complex: (complex, float, int)}.get(
            self._class, (self._class,)
        )
        """The classes of which a whole state may be: a `float` takes an int, as in every other place."""
        self._is_mapping = issubclass(self._class, dict)
        self._codec = codec
        self._reducers = None if reducers is None else dict(reducers)
        self.tracked = frozenset({*(reducers or ()), *tracked})
        """All fields with a reducer, those of joins included."""
        self._starts = _starts(kind, reducers) if reducers and is_typeddict(kind) else {}

    def read(self, before: Any, returned: Any) -> Whole | Part:
        """Classify what user code returned for the state `before`: a whole state, or a part of one.

        Raises `StateTypeError` for anything else.
        """
        if self._is_part(returned):
            return Part(returned)
        if not isinstance(returned, self._classes) or (self._is_mapping and not before.keys() <= returned.keys()):
            raise self._refused(before, returned)
        if type(returned) is not self._class:
            self._codec.check(returned)
        return Whole(returned)

    def accept(self, before: Any, given: Whole | Part) -> Any:
        """Make the whole next state. Errors of a reducer pass through."""
        return given.state if isinstance(given, Whole) else self._changed(before, given.fields)

    @property
    def takes_parts(self) -> bool:
        """True if a node may return a part of the state."""
        return self._reducers is not None

    def taken_up(self, before: Any, given: Any) -> Any:
        """Make the first state of a new turn: a part is applied as if a node returned it, all else replaces `before`."""
        return self._changed(before, given) if self._is_part(given) else given

    def _is_part(self, returned: Any) -> bool:
        is_whole = not self._is_mapping and isinstance(returned, self._class)
        return self._reducers is not None and not is_whole and isinstance(returned, Mapping)

    def _changed(self, before: Any, part: Mapping[str, Any]) -> Any:
        return self._codec.replace(before, {name: self.reduced(before, name, part[name]) for name in part})

    def updates(self, given: Whole | Part) -> Mapping[str, Any] | None:
        """Return those values in a node's return value that are for fields with a reducer; None for a whole state."""
        if isinstance(given, Whole):
            return None
        return {name: given.fields[name] for name in given.fields if name in self.tracked}

    def reduced(self, state: Any, name: str, update: Any) -> Any:
        """Return the value of a field after an update: that of its reducer or, without one, the update itself."""
        assert self._reducers is not None
        reducer = self._reducers.get(name)
        if reducer is None:
            return update
        if not self._is_mapping or name in state:
            return reducer(self._codec.get(state, name), update)
        start = self._starts.get(name)
        return update if start is None else reducer(start(), update)

    def _refused(self, before: Any, returned: Any) -> StateTypeError:
        expected, found = self._class.__name__, type(returned).__name__
        text = f"it returned {found} instead of {expected}"
        if returned is None:
            text = "it returned None: a node must return the state, changed or not"
        elif inspect.isawaitable(returned):
            text += ": it gives an awaitable without being a coroutine function; declare it with async def"
        elif isinstance(returned, Mapping):
            if self._is_mapping and isinstance(returned, self._class):
                lost = ", ".join(repr(key) for key in before if key not in returned)
                text = f"it returned a dict without {lost}, which it was given"
            text += ": return the whole state, or let nodes return changed fields only with Graph(..., partial=True)"
        elif self._reducers is not None:
            text += ": a node must return the whole new state, or a mapping of the fields that it changes"
        else:
            text += ": a node must return the whole new state"
        return StateTypeError(text, path="state", expected=expected, found=found)


_EMPTY: dict[Any, Callable[[], Any]] = {
    **{kind: kind for kind in (list, set, frozenset, dict, tuple, int, float, str, bytes)},
    Sequence: list,
    MutableSequence: list,
    AbstractSet: set,
    MutableSet: set,
    Mapping: dict,
    MutableMapping: dict,
}


def _starts(typed_dict: Any, names: Iterable[str]) -> dict[str, Callable[[], Any]]:
    """Return the empty value of each field's type, for the fields whose type has one."""
    found = {}
    for name, hint in annotations_of(typed_dict, names, ())[0].items():
        kind = reveal(hint, {})
        start = _EMPTY.get(get_origin(kind) or kind)
        if start is not None:
            found[name] = start
    return found


# -- Merging of the states of branches at their join, field by field -------------------------------


_NOTHING = object()


def _appended(before: Any, after: Any) -> Any:
    if after[: len(before)] != before:
        raise ValueError("the branch changed what was in the list before: let it add to its end")
    return after[len(before) :]


def _added(before: Any, after: Any) -> Any:
    if not before <= after:
        raise ValueError("the branch took something out of the set: let it add to it")
    return after - before


_READY_MADE: Mapping[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] = {
    reducers.append: _appended,
    reducers.union: _added,
    reducers.total: lambda before, after: after - before,
    reducers.largest: lambda before, after: after,
    reducers.smallest: lambda before, after: after,
    reducers.last: lambda before, after: after,
}
"""For each ready-made reducer, the function that derives what a value adds to the one before."""


def _summed(before: Any, after: Any) -> Any:
    if isinstance(before, (list, tuple, str, bytes)):
        return _appended(before, after)
    return after - before


def _difference(reducer: Reducer) -> Callable[[Any, Any], Any] | None:
    """Return the function that derives the difference of two values for a reducer; None if there is none.

    The reducer makes the second value of the first one and the difference.
    """
    if reducer is operator.add:
        return _summed  # used if a node of a partial graph returned a whole state
    return next((tell for known, tell in _READY_MADE.items() if known is reducer), None)


def is_ready_made(reducer: Reducer) -> bool:
    """Return whether the difference of two values can be derived for a reducer, for all values."""
    return any(known is reducer for known in _READY_MADE)


def changed_fields(codec: Codec[Any], before: Any, after: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of these fields whose values differ between two states."""
    bare, fields = _fields(codec, before), _fields(codec, after)
    return tuple(
        name
        for name in sorted(names)
        if not _is_same(bare, fields, name, _get(codec, before, name), _get(codec, after, name))
    )


class Merging:
    """A merger of states of one type.

    `reduced` are the reducers by field; `acceptance` is that of a partial graph, None in a graph of whole states.
    """

    __slots__ = ("_acceptance", "_codec", "_is_mapping", "_reducers")

    def __init__(
        self, state_type: Any, codec: Codec[Any], reduced: Mapping[str, Reducer], acceptance: Acceptance | None
    ) -> None:
        kind: Any = get_origin(state_type) or state_type
        self._is_mapping = is_typeddict(kind) or issubclass(kind, dict)
        self._codec = codec
        self._reducers = dict(reduced)
        self._acceptance = acceptance

    def merge(self, fork: Fork, before: Any, ends: Mapping[str, BranchEnd], data: bytes | None = None) -> Any:
        """Make the state at the join.

        `data` is the encoded state before; None if it was not encoded. Raises `MergeConflictError` if branches changed
        the same field and no reducer can merge their values.
        """
        kind = self._kind(fork, before, ends)
        bare, parts = _fields(self._codec, before, data), self._codec.parts(before)
        fields = {branch: _fields(self._codec, end.state, end.data) for branch, end in ends.items()}
        others = {branch: self._codec.parts(end.state) for branch, end in ends.items()}
        changes: dict[Any, Any] = {}
        for name in dict.fromkeys(chain(parts, *others.values())):
            old = parts.get(name, _NOTHING)
            changed = {
                branch: value
                for branch, other in others.items()
                if not _is_same(bare, fields[branch], name, old, value := other.get(name, _NOTHING))
            }
            if len(changed) == 1 or (changed and _is_mark(name)):
                changes[name] = next(iter(changed.values()))
            elif changed and not _is_private(name):
                changes[name] = self._several(fork, name, before, old, changed, ends)
        if not changes and kind is type(before):
            return before
        if not self._is_mapping:
            merged = {**parts, **changes}
            return self._codec.assemble(kind, {name: merged[name] for name in merged if merged[name] is not _NOTHING})
        state = self._codec.replace(before, {name: new for name, new in changes.items() if new is not _NOTHING})
        for name, new in changes.items():
            if new is _NOTHING:
                del state[name]
        return state

    def _kind(self, fork: Fork, before: Any, ends: Mapping[str, BranchEnd]) -> type[Any]:
        """Return the class of the merged state: that of before, or the one that branches returned instead."""
        changed = {branch: type(end.state) for branch, end in ends.items() if type(end.state) is not type(before)}
        kinds = [] if self._is_mapping else [*dict.fromkeys(changed.values())]
        if len(kinds) > 1:
            who, names = ", ".join(map(repr, changed)), ", ".join(kind.__name__ for kind in kinds)
            raise MergeConflictError(
                f"branches {who} of the fork after {fork.node_id!r} made the state of different classes ({names}), and "
                f"nothing says which it shall be: give a function as {fork.merge_option} to node {fork.join!r}",
                node_id=fork.join,
                branches=tuple(changed),
            )
        return kinds[0] if kinds else type(before)

    def untold(self, before: Any, after: Any, names: Iterable[str]) -> Iterator[str]:
        """Yield those of `names` for which the difference between the states before and after cannot be derived."""
        for name in names:
            reducer = self._reducers.get(name)
            old, new = _get(self._codec, before, name), _get(self._codec, after, name)
            if reducer is None or old is new:
                continue
            try:
                self._difference(reducer, old, new)
            except (ValueError, TypeError):
                yield name

    def _several(
        self, fork: Fork, name: Any, before: Any, old: Any, changed: Mapping[str, Any], ends: Mapping[str, BranchEnd]
    ) -> Any:
        """Merge the values of a field that several branches changed."""
        reducer = self._reducers.get(name)
        if reducer is None:
            raise self._conflict(fork, name, [*changed])
        if self._acceptance is not None:
            return self._updated(self._acceptance, reducer, fork, name, before, old, changed, ends)
        value = old
        for branch, new in changed.items():
            # If the field was not there before, the whole value of a branch is its difference.
            value = new if value is _NOTHING else self._added(reducer, fork, name, branch, value, old, new)
        return value

    def _added(self, reducer: Reducer, fork: Fork, name: str, branch: str, value: Any, old: Any, new: Any) -> Any:
        """Reduce into `value` what a branch added to the old value."""
        try:
            return reducer(value, self._difference(reducer, old, new))
        except (ValueError, TypeError) as exc:
            raise self._conflict(fork, name, [branch], f": {exc}") from exc

    def _difference(self, reducer: Reducer, old: Any, new: Any) -> Any:
        """Return what a branch added to the old value; raise ValueError if that cannot be derived."""
        if old is _NOTHING:
            return new
        difference = _difference(reducer)
        if difference is None:
            raise ValueError(
                "a node of it returned a whole state, as a sub-graph without out= does, or state_override gave one, of which "
                "nothing tells what is to be reduced into what was there: let the node return a mapping of what changed, the "
                "sub-graph by into= and out=, and give such a mapping as update= instead of state_override"
            )
        return difference(old, new)

    def _updated(
        self,
        acceptance: Acceptance,
        reducer: Reducer,
        fork: Fork,
        name: str,
        before: Any,
        old: Any,
        changed: Mapping[str, Any],
        ends: Mapping[str, BranchEnd],
    ) -> Any:
        """Reduce into a field all updates that the nodes of the branches returned for it, and return its value."""
        state = before
        for branch, end in ends.items():
            updates = [update[name] for update in end.updates if name in update]
            is_replaced = any(name in update.get(REPLACED, ()) for update in end.updates)
            if is_replaced and branch not in changed:
                continue
            if branch in changed and (not updates or is_replaced):
                try:
                    updates = [self._difference(reducer, old, changed[branch])]
                except (ValueError, TypeError) as exc:
                    raise self._conflict(fork, name, [branch], f": {exc}") from exc
            for update in updates:
                state = self._codec.replace(state, {name: acceptance.reduced(state, name, update)})
        return self._codec.get(state, name)

    def _conflict(self, fork: Fork, name: Any, branches: list[str], why: str = "") -> MergeConflictError:
        is_declared = self._is_mapping or name in (self._codec.field_names or ())
        name = name[1] if isinstance(name, tuple) else name
        who = ", ".join(map(repr, branches))
        hint = f"{why}, or give" if why else ", and nothing says how to merge it: give the field a reducer, or"
        if not is_declared:
            hint = ", and the state's type does not declare it, so that no reducer can merge it: give a function as"
        return MergeConflictError(
            f"field {name!r} was changed by branch{'es' if len(branches) > 1 else ''} {who} of the fork after "
            f"{fork.node_id!r}{hint} {fork.merge_option} to node {fork.join!r}",
            node_id=fork.join,
            field=name,
            branches=tuple(branches),
        )


def _get(codec: Codec[Any], state: Any, name: str) -> Any:
    """Return the value of a field, or `_NOTHING` if a dict does not have it."""
    return _NOTHING if isinstance(state, dict) and name not in state else codec.get(state, name)


def _fields(codec: Codec[Any], state: Any, data: bytes | None = None) -> Mapping[Any, bytes] | None:
    """Return the encoded parts, which can be compared exactly; None if the state cannot be encoded.

    `data` is the encoded state; None if it was not encoded. The names of fields that were set are left out.
    """
    try:
        found = _raw(codec.encode(state) if data is None else data)
        if isinstance(state, dict):
            return found
        if MARK in found:  # a subclass is written with its name
            found = _raw(found["v"])
        sides = {(key, name): raw for key in (EXTRA, PRIVATE) for name, raw in _raw(found.pop(key, b"{}")).items()}
    except (SerializeStateError, StateTypeError, DeserializeStateError, msgspec.MsgspecError):
        return None
    return {**found, **sides}


def _raw(data: bytes) -> dict[Any, bytes]:
    found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return {name: bytes(raw) for name, raw in found.items()}


def _is_mark(part: Any) -> bool:
    """Return whether a part only marks a field as set: all branches that changed it did the same."""
    return isinstance(part, tuple) and part[0] == FIELDS_SET


def _is_private(part: Any) -> bool:
    return isinstance(part, tuple) and part[0] == PRIVATE


def _is_same(
    before: Mapping[Any, bytes] | None, after: Mapping[Any, bytes] | None, name: Any, old: Any, new: Any
) -> bool:
    """Return whether a field is unchanged. Values that cannot be compared count as changed."""
    if before is not None and after is not None and name in before and name in after:
        return before[name] == after[name]
    try:
        return old is new or (type(old) is type(new) and bool(old == new))
    except Exception:
        return False
