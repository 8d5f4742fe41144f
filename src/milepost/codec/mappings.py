"""The plan of dicts whose values are of one type: dict, OrderedDict, defaultdict and Counter."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import chain
from typing import Any

from milepost.errors import shown

from .plan import (
    MARK,
    MAX_DEPTH,
    NotCarried,
    Plan,
    Refusal,
    Tagged,
    key_step,
    qualified,
    read_mark,
    too_deep,
)
from .scalars import IntPlan, StrPlan, int_text, is_text, read_int

FACTORIES: dict[str, Callable[[], Any] | None] = {
    "None": None,
    **{cls.__name__: cls for cls in (list, dict, set, tuple, int, float, str, bool, frozenset, bytes, deque, Counter)},
}


class DictPlan(Tagged):
    """The plan of dict, OrderedDict, defaultdict and Counter.

    The bare form, an object, is written if all keys are text, or are declared as a type that is written as text
    (`dict[int, str]`, `dict[UUID, str]`); else the tagged form with a list of pairs, in the dict's order.
    """

    bare = frozenset({"dict"})

    def __init__(self, cls: Any, key: Plan, value: Plan) -> None:
        self.cls, self.key, self.value = cls, key, value
        self.tag = cls.__name__.lower()
        self.types = (cls,)
        self.plain = cls is dict and key.plain and not isinstance(key, IntPlan)
        self.expected = f"{cls.__name__}[{key.expected}, {value.expected}]"
        self._object: Any = OrderedDict if cls is OrderedDict else dict  # shows `canonical` that order counts
        self._key_is_int = isinstance(key, IntPlan)
        self._key_is_str = isinstance(key, StrPlan)
        self._has_twin = cls is dict and key.keeps_text

    @cached_property
    def twin(self) -> Any:
        """The type of a dict of text and the values' twins if keys are text, else Any."""
        return dict[str, self.value.twin] if self._has_twin else Any  # type: ignore[name-defined]

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True unless the twin is a dict of the values themselves."""
        return not self._has_twin or self.value.revives

    def revive(self, twin: Any) -> Any:
        if not self._has_twin:
            return super().revive(twin)
        return {key: self.value.revive(item) for key, item in twin.items()}

    def are_json(self, values: list[Any], depth: int) -> bool:
        if not self._has_twin or depth >= MAX_DEPTH or {*map(type, values)} != {dict}:
            return False
        inner = list(chain.from_iterable(map(dict.values, values)))
        return are_names(list(chain.from_iterable(values))) and (not inner or self.value.are_json(inner, depth + 1))

    def dump(self, value: Any, depth: int) -> Any:
        v, extra = self.parts(value, depth)
        if extra is None and isinstance(v, dict):
            return v
        return {MARK: self.tag, "v": v, **(extra or {})}

    def wrap(self, value: Any, depth: int) -> Any:
        return self.dump(value, depth) if self.plain else super().wrap(value, depth)

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        if type(value) is not self.cls:
            raise self.contradicted(value)
        if depth >= MAX_DEPTH:
            raise too_deep(value)
        extra = None
        if self.cls is defaultdict:
            extra = {"f": _factory_name(value)}
        elif self.cls is not dict:
            for name in vars(value):
                if name != "__orig_class__":  # of one that was made as `Counter[str](...)`
                    raise NotCarried(f"it has an attribute {name!r} of its own", type_name=qualified(self.cls))
        keys, values = list(value), list(value.values())
        texts = self._dump_keys(keys, depth)
        try:
            dumped = self.value.dump_all(values, depth + 1) if values else values
        except Refusal as refusal:
            refusal.steps.append(key_step(keys[refusal.row]))
            raise
        if texts is keys and dumped is values and self.cls is dict and are_names(keys):
            return value, extra
        if {*map(type, texts)} <= {str}:
            body = self._object(zip(texts, dumped, strict=True))
            if len(body) == len(keys) and MARK not in body:
                return body, extra
        pairs = texts if not self._key_is_int else [self.key.dump(key, depth) for key in keys]
        return [[key, item] for key, item in zip(pairs, dumped, strict=True)], extra

    def _dump_keys(self, keys: list[Any], depth: int) -> list[Any]:
        if self._key_is_int and {*map(type, keys)} <= {int}:
            return list(map(int_text, keys))
        try:
            return self.key.dump_all(keys, depth + 1) if keys else keys
        except Refusal as refusal:
            refusal.steps.append(key_step(keys[refusal.row]))
            raise

    def load(self, raw: Any, bare: bool) -> Any:
        if self.cls is defaultdict and (bare or type(raw) is not dict or read_mark(raw)[0] != self.tag):
            raise self.unreadable(raw, "its factory is not in the record")
        return super().load(raw, bare)

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        if type(v) is dict:
            loaded = self._load_object(v, bare)
        elif type(v) is list:
            loaded = self._load_pairs(v, bare)
        else:
            raise self.unreadable(v)
        if self.cls is dict:
            return loaded
        if self.cls is defaultdict:
            name = extra.get("f")
            if type(name) is not str or name not in FACTORIES:
                raise self.unreadable(v, "its factory is not one that is carried")
            return defaultdict(FACTORIES[name], loaded)
        return self.cls(loaded)

    def _load_object(self, v: dict[str, Any], bare: bool) -> dict[Any, Any]:
        keys: Iterable[Any] = v
        if self._key_is_int:
            try:
                keys = [read_int(key) for key in v]
            except ValueError as exc:
                raise self.unreadable(v, "a key is no integer") from exc
        elif not self._key_is_str:
            keys = [self.key.load(key, bare) for key in v]
        return self._pair(list(keys), list(v.values()), bare)

    def _load_pairs(self, v: list[Any], bare: bool) -> dict[Any, Any]:
        if not all(type(pair) is list and len(pair) == 2 for pair in v):
            raise self.unreadable(v, "no list of pairs")
        keys = [self.key.load(pair[0], bare) for pair in v]
        return self._pair(keys, [pair[1] for pair in v], bare)

    def _pair(self, keys: list[Any], raws: list[Any], bare: bool) -> dict[Any, Any]:
        values: list[Any] = []
        try:
            for raw in raws:
                values.append(self.value.load(raw, bare))  # noqa: PERF401  # its length is the place
        except Refusal as refusal:
            refusal.steps.append(key_step(keys[len(values)]))
            raise
        try:
            made = dict(zip(keys, values, strict=True))
        except Exception as exc:  # `__hash__` and `__eq__` of a user
            raise self.unreadable({}, f"a key cannot be hashed: {shown(exc, 1000)}") from exc
        if len(made) != len(keys):
            raise self.unreadable({}, "two of its keys are equal")
        return made


def are_names(keys: Iterable[Any]) -> bool:
    """Return whether the keys of a dict are text that can be keys in JSON, and none is the mark."""
    return {*map(type, keys)} <= {str} and MARK not in keys and is_text("".join(keys))


def _factory_name(value: defaultdict[Any, Any]) -> str:
    factory = value.default_factory
    for name, known in FACTORIES.items():
        if factory is known:
            return name
    raise NotCarried(
        f"its factory {getattr(factory, '__qualname__', factory)!r} is not one of {', '.join(FACTORIES)}",
        type_name="collections.defaultdict",
    )
