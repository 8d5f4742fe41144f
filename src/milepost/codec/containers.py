"""Plans of containers: list, tuple, the sets, deque and the mappings.

A container is matched by its exact class; the plans of its elements write its content. If the declared type names the
container, a JSON array or object is written. Sets are sorted by the encoding of their elements, so that equal sets have
equal bytes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from milepost.errors import shown

from .plan import (
    MARK,
    MAX_DEPTH,
    Contradicted,
    NotCarried,
    Plan,
    Refusal,
    Tagged,
    encode_sorted,
    key_step,
    qualified,
    read_mark,
    too_deep,
)
from .scalars import IntPlan, StrPlan, int_text, is_text, read_int


class ListPlan(Plan):
    """The plan of list."""

    types = (list,)
    bare = frozenset({"list"})
    plain = True

    def __init__(self, item: Plan) -> None:
        self.item = item
        self.expected = f"list[{item.expected}]"

    @cached_property
    def twin(self) -> Any:
        """The type of a list of the item's twins."""
        return list[self.item.twin]  # type: ignore[name-defined]

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True if the item's twins are not the values themselves."""
        return self.item.revives

    def revive(self, twin: Any) -> Any:
        return self.item.revive_all(twin)

    @cached_property
    def may_be_json(self) -> bool:  # type: ignore[override]
        """True if the items may be JSON as they are."""
        return self.item.may_be_json

    def are_json(self, values: list[Any], depth: int) -> bool:
        return are_containers(list, self.item, values, depth)

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not list:
            raise self.contradicted(value)
        return dump_items(self.item, value, depth)

    def load(self, raw: Any, bare: bool) -> Any:
        if type(raw) is not list:
            raise self.unreadable(raw)
        return load_items(self.item, raw, bare)


class SequencePlan(Tagged):
    """The plan of tuple (of any length), set, frozenset and deque."""

    bare = frozenset({"list"})

    def __init__(self, cls: Any, item: Plan) -> None:
        self.cls, self.item = cls, item
        self.tag = cls.__name__
        self.types = (cls,)
        self.expected = f"{cls.__name__}[{item.expected}{', ...' if cls is tuple else ''}]"
        self._is_set = cls in (set, frozenset)

    @cached_property
    def twin(self) -> Any:
        """The type of a tuple of the item's twins; Any for the other classes."""
        return tuple[self.item.twin, ...] if self.cls is tuple else Any  # type: ignore[name-defined]

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True unless the twin is a tuple of the values themselves."""
        return self.cls is not tuple or self.item.revives

    def revive(self, twin: Any) -> Any:
        return tuple(self.item.revive_all(twin)) if self.cls is tuple else super().revive(twin)

    @cached_property
    def may_be_json(self) -> bool:  # type: ignore[override]
        """True if these are tuples of items that may be JSON as they are."""
        return self.cls is tuple and self.item.may_be_json

    def are_json(self, values: list[Any], depth: int) -> bool:
        return self.cls is tuple and are_containers(tuple, self.item, values, depth)  # msgspec writes it as an array

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        if type(value) is not self.cls:
            raise self.contradicted(value)
        values = list(value)
        try:
            items = dump_items(self.item, values, depth)
        except Refusal as refusal:
            if self._is_set and refusal.steps:  # the elements of a set have no places
                refusal.steps[-1] = f"{{{qualified(type(values[refusal.row]))}}}"
            raise
        if self._is_set:
            refuse_one_hash(values, value)
            items = sorted(items, key=encode_sorted)
        maxlen = value.maxlen if self.cls is deque else None
        return items, None if maxlen is None else {"n": maxlen}

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        if type(v) is not list:
            raise self.unreadable(v)
        items = load_items(self.item, v, bare)
        if self.cls is deque and "n" in extra:
            maxlen = extra["n"]
            if type(maxlen) is not int or not len(items) <= maxlen < 2**63:
                raise self.unreadable(maxlen)
            return deque(items, maxlen)
        if self._is_set and share_a_hash(items):
            raise self.unreadable(v, ONE_HASH)
        try:
            container = self.cls(items)
        except Exception as exc:  # `__hash__` and `__eq__` of a user
            raise self.unreadable(v, f"an element of the set cannot be hashed: {shown(exc, 1000)}") from exc
        if self._is_set and len(container) != len(items):
            raise self.unreadable(v, "two elements of the set are equal")
        return container


MOST_OF_ONE_HASH = 1000
"""The number of keys of a dict, or elements of a set, that may have one hash: each is compared with all before it."""
ONE_HASH = (
    f"more than {MOST_OF_ONE_HASH} of its keys or elements have the same hash, so that building it would take too long"
)


def share_a_hash(values: Sequence[Any]) -> bool:
    """Return whether too many of these values have one hash. Who chooses numbers can choose such, and others can't be
    told from those that were chosen. The hashes of text can't be foreseen, and small numbers are their own."""
    if len(values) <= MOST_OF_ONE_HASH:
        return False
    types = {*map(type, values)}
    if types <= {str, bytes} or (types == {int} and min(values) > -(2**60) and max(values) < 2**60):
        return False
    try:
        hashes = sorted(map(hash, values))
    except Exception:  # `__hash__` of a user, which whoever builds the container reports
        return False
    return any(one == other for one, other in zip(hashes, hashes[MOST_OF_ONE_HASH:], strict=False))


def refuse_one_hash(values: Sequence[Any], container: Any) -> None:
    """Refuse to write a container that `share_a_hash` would keep from being read."""
    if share_a_hash(values):
        raise NotCarried(ONE_HASH, type_name=qualified(type(container)))


def dump_items(item: Plan, values: list[Any], depth: int) -> list[Any]:
    """Write the elements of a container."""
    if depth >= MAX_DEPTH:
        raise too_deep(values)
    try:
        return item.dump_all(values, depth + 1) if values else values
    except Refusal as refusal:
        refusal.steps.append(f"[{refusal.row}]")
        raise


def are_containers(cls: type, item: Plan, values: list[Any], depth: int) -> bool:
    """Return whether a column has containers of exactly this class, whose elements are JSON as they are."""
    if depth >= MAX_DEPTH or {*map(type, values)} != {cls}:
        return False
    elements = list(chain.from_iterable(values))
    return not elements or item.are_json(elements, depth + 1)


def load_items(item: Plan, raws: list[Any], bare: bool) -> list[Any]:
    """Read the elements of a container."""
    loaded: list[Any] = []
    try:
        for raw in raws:
            loaded.append(item.load(raw, bare))  # noqa: PERF401  # its length is the place
    except Refusal as refusal:
        refusal.steps.append(f"[{len(loaded)}]")
        raise
    return loaded


class FixedTuplePlan(Tagged):
    """The plan of a tuple with one declared type for each place.

    `repeated` is a place and a plan for `*tuple[X, ...]`: any number of elements between those of `items`.
    """

    tag = "tuple"
    types = (tuple,)
    bare = frozenset({"list"})

    def __init__(self, items: tuple[Plan, ...], repeated: tuple[int, Plan] | None = None) -> None:
        self.items, self.repeated = items, repeated
        texts = [item.expected for item in items]
        if repeated is not None:
            texts.insert(repeated[0], f"*tuple[{repeated[1].expected}, ...]")
        self.expected = f"tuple[{', '.join(texts) or '()'}]"

    @cached_property
    def twin(self) -> Any:
        """The type of a tuple of the items' twins if these are the values themselves, else Any."""
        return Any if self.revives else tuple.__class_getitem__(tuple(item.twin for item in self.items))

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True unless the twin is a tuple of the values themselves."""
        return self.repeated is not None or any(item.revives for item in self.items)

    def _plans_of(self, count: int) -> tuple[Plan, ...] | None:
        """Give one plan for each of `count` elements; None if no tuple of the type has so many."""
        more = count - len(self.items)
        if self.repeated is None or more < 0:
            return self.items if not more else None
        place, plan = self.repeated
        return (*self.items[:place], *[plan] * more, *self.items[place:])

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        if type(value) is not tuple:
            raise self.contradicted(value)
        plans = self._plans_of(len(value))
        if plans is None:
            raise Contradicted("", expected=self.expected, found=f"a tuple of {len(value)}", type_name="tuple")
        if depth >= MAX_DEPTH:
            raise too_deep(value)
        out: list[Any] = []
        try:
            for plan, item in zip(plans, value, strict=True):
                out.append(plan.dump(item, depth + 1))
        except Refusal as refusal:
            refusal.steps.append(f"[{len(out)}]")
            raise
        return out, None

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        plans = self._plans_of(len(v)) if type(v) is list else None
        if plans is None:
            raise self.unreadable(v)
        out: list[Any] = []
        try:
            for plan, item in zip(plans, v, strict=True):
                out.append(plan.load(item, bare))
        except Refusal as refusal:
            refusal.steps.append(f"[{len(out)}]")
            raise
        return tuple(out)


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
        return dict(zip(twin, self.value.revive_all(list(twin.values())), strict=True))

    @cached_property
    def may_be_json(self) -> bool:  # type: ignore[override]
        """True if keys are text, and the values may be JSON as they are."""
        return self._has_twin and self.value.may_be_json

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
        if not self._has_twin:
            refuse_one_hash(keys, value)
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
        if share_a_hash(keys):
            raise self.unreadable({}, ONE_HASH)
        try:
            loaded = dict(zip(keys, values, strict=True))
        except Exception as exc:  # `__hash__` and `__eq__` of a user
            raise self.unreadable({}, f"a key cannot be hashed: {shown(exc, 1000)}") from exc
        if len(loaded) != len(keys):
            raise self.unreadable({}, "two of its keys are equal")
        return loaded


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
