"""How the states of branches become one at their join, field by field.

A field that no branch changed keeps its value, one that a single branch changed takes that branch's, and one that several
changed needs a reducer. What a reducer is given is, in a partial graph, each update that the branch's nodes returned for the
field; in a graph of whole states, and where a node of a partial one returned a whole state, what the branch's value adds to
the value before the fork, which can be told for the ready-made reducers only. The order is that of the edges, never that of
completion.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_origin, is_typeddict

import msgspec

from milepost import reducers
from milepost.codec import Codec
from milepost.errors import DeserializeStateError, MergeConflictError, SerializeStateError, StateTypeError
from milepost.executor.flow import REPLACED, BranchEnd, Fork
from milepost.graph.acceptance import Acceptance, Reducer

__all__ = ["Merging", "changed_fields", "is_ready_made"]

_NOTHING = object()


def _appended(before: Any, after: Any) -> Any:
    if after[: len(before)] != before:
        raise ValueError("the branch changed what was in the list before, instead of adding to its end")
    return after[len(before) :]


def _added(before: Any, after: Any) -> Any:
    if not before <= after:
        raise ValueError("the branch took something out of the set, instead of adding to it")
    return after - before


_READY_MADE: Mapping[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] = {
    reducers.append: _appended,
    reducers.union: _added,
    reducers.total: lambda before, after: after - before,
    reducers.largest: lambda before, after: after,
    reducers.smallest: lambda before, after: after,
    reducers.last: lambda before, after: after,
}
"""What a value adds to another one, by the reducer that would add it again."""


def _summed(before: Any, after: Any) -> Any:
    if isinstance(before, (list, tuple, str, bytes)):
        return _appended(before, after)
    return after - before


def _difference(reducer: Reducer) -> Callable[[Any, Any], Any] | None:
    """What tells what a value adds to another one, so that the reducer would add it again; None where nothing does."""
    if reducer is operator.add:
        return _summed  # of use where a part of a graph of parts gave a whole state
    return next((tell for known, tell in _READY_MADE.items() if known is reducer), None)


def is_ready_made(reducer: Reducer) -> bool:
    """Whether what a value adds can be told for a reducer, whatever the value is."""
    return any(known is reducer for known in _READY_MADE)


def changed_fields(codec: Codec[Any], before: Any, after: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Which of these fields of a state have another value afterwards."""
    bare, fields = _fields(codec, before), _fields(codec, after)
    return tuple(
        name
        for name in sorted(names)
        if not _is_same(bare, fields, name, _get(codec, before, name), _get(codec, after, name))
    )


class Merging:
    """Merges states of one type. `reduced` are the fields with a reducer; `acceptance` is of a partial graph, else None."""

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
        """The state at the join; `MergeConflictError` where branches disagree and no reducer says what to make of it.

        `data` is the state before as it was encoded, where it was.
        """
        bare = _fields(self._codec, before, data)
        fields = {branch: _fields(self._codec, end.state, end.data) for branch, end in ends.items()}
        changes: dict[str, Any] = {}
        for name in self._names(before, ends):
            old = _get(self._codec, before, name)
            changed = {
                branch: value
                for branch, end in ends.items()
                if not _is_same(bare, fields[branch], name, old, value := _get(self._codec, end.state, name))
            }
            if len(changed) == 1:
                (changes[name],) = changed.values()
            elif changed:
                changes[name] = self._several(fork, name, before, old, changed, ends)
        if not changes:
            return before
        merged = self._codec.replace(before, {name: new for name, new in changes.items() if new is not _NOTHING})
        for name, new in changes.items():
            if new is _NOTHING:
                del merged[name]
        return merged

    def untold(self, before: Any, after: Any, names: Iterable[str]) -> Iterator[str]:
        """Name the fields of which nothing tells what the value afterwards adds to the one before."""
        for name in names:
            reducer = self._reducers.get(name)
            old, new = _get(self._codec, before, name), _get(self._codec, after, name)
            if reducer is None or old is new:
                continue
            try:
                self._told(reducer, old, new)
            except (ValueError, TypeError):
                yield name

    def _several(
        self, fork: Fork, name: str, before: Any, old: Any, changed: Mapping[str, Any], ends: Mapping[str, BranchEnd]
    ) -> Any:
        """The value of a field that several branches changed."""
        reducer = self._reducers.get(name)
        if reducer is None:
            raise self._conflict(fork, name, [*changed])
        if self._acceptance is not None:
            return self._updated(self._acceptance, reducer, fork, name, before, old, changed, ends)
        value = old
        for branch, new in changed.items():
            # Where there was nothing before, all that a branch has is what it adds.
            value = new if value is _NOTHING else self._added(reducer, fork, name, branch, value, old, new)
        return value

    def _added(self, reducer: Reducer, fork: Fork, name: str, branch: str, value: Any, old: Any, new: Any) -> Any:
        """`value` with that which a branch added to the old value."""
        try:
            return reducer(value, self._told(reducer, old, new))
        except (ValueError, TypeError) as exc:
            raise self._conflict(fork, name, [branch], f": {exc}") from exc

    def _told(self, reducer: Reducer, old: Any, new: Any) -> Any:
        """What a branch added to the old value; ValueError where that cannot be told."""
        if old is _NOTHING:
            return new
        difference = _difference(reducer)
        if difference is None:
            raise ValueError(
                "a node of it returned a whole state, or state_override gave one, of which nothing tells what is to be reduced "
                "into what was there: let it return a mapping of what changed, and give that as update="
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
        """The value of a field with all that the nodes of the branches returned for it taken up."""
        state = before
        for branch, end in ends.items():
            updates = [update[name] for update in end.updates if name in update]
            is_replaced = any(name in update.get(REPLACED, ()) for update in end.updates)
            if is_replaced and branch not in changed:
                continue
            if branch in changed and (not updates or is_replaced):
                try:
                    updates = [self._told(reducer, old, changed[branch])]
                except (ValueError, TypeError) as exc:
                    raise self._conflict(fork, name, [branch], f": {exc}") from exc
            for update in updates:
                state = self._codec.replace(state, {name: acceptance.reduced(state, name, update)})
        return self._codec.get(state, name)

    def _conflict(self, fork: Fork, name: str, branches: list[str], why: str = "") -> MergeConflictError:
        who = ", ".join(map(repr, branches))
        told = why or ", and nothing says how to merge it"
        return MergeConflictError(
            f"field {name!r} was changed by branch{'es' if len(branches) > 1 else ''} {who} of the fork after "
            f"{fork.node_id!r}{told}: give the field a reducer, or {fork.merge_option} to node {fork.join!r}",
            node_id=fork.join,
            field=name,
            branches=tuple(branches),
        )

    def _names(self, before: Any, ends: Mapping[str, BranchEnd]) -> tuple[str, ...]:
        names = self._codec.field_names
        if names is not None and not self._is_mapping:
            return names
        states = (before, *(end.state for end in ends.values()))
        return tuple(dict.fromkeys(name for state in states for name in state))


def _get(codec: Codec[Any], state: Any, name: str) -> Any:
    """The value of a field, or `_NOTHING` where a dict does not have it."""
    return _NOTHING if isinstance(state, dict) and name not in state else codec.get(state, name)


def _fields(codec: Codec[Any], state: Any, data: bytes | None = None) -> Mapping[str, bytes] | None:
    """The fields as they would be recorded, which tells exactly what is the same; None where that cannot be had.

    `data` is the state as it was encoded, where it was.
    """
    try:
        found = msgspec.json.decode(codec.encode(state) if data is None else data, type=dict[str, msgspec.Raw])
    except (SerializeStateError, StateTypeError, DeserializeStateError, msgspec.MsgspecError):
        return None
    return {name: bytes(raw) for name, raw in found.items()}


def _is_same(
    before: Mapping[str, bytes] | None, after: Mapping[str, bytes] | None, name: str, old: Any, new: Any
) -> bool:
    """Whether a field was left alone; what cannot be compared counts as changed."""
    if before is not None and after is not None and name in before and name in after:
        return before[name] == after[name]
    try:
        return old is new or (type(old) is type(new) and bool(old == new))
    except Exception:
        return False
