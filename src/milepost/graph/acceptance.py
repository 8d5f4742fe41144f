"""The next state, made of a node's return value: a whole state, or a part whose fields are taken over.

In a graph of whole states a node must return all of the state. In a partial graph it may return a mapping of the fields
that changed. Over dict and TypedDict a part looks like a whole, so every mapping that user code returns is a part.
`Acceptance.read` decides this once; from there on a `Whole` and a `Part` are of different types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, get_origin, is_typeddict

from milepost.codec import Codec
from milepost.codec.hints import annotations_of, reveal
from milepost.errors import StateTypeError
from milepost.executor.flow import Part, Whole

__all__ = ["Acceptance", "Reducer"]

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
