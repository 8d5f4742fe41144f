"""The public class of the codec, `Codec`, which writes and reads the values of one declared type.

`Succession` encodes successive values, such as the states of a run, where each value is mostly equal to the last one.
The JSON of a long list whose elements cannot change, such as texts, is kept in parts. A part is used again as long as
it has the very same elements. The bytes are the same that the codec itself writes; if a value is refused, the codec
itself raises the error. On request they come in pieces, which are the parts: then nothing is copied or compared
of a long list but what is new in it.
"""

from __future__ import annotations

import copy
import gc
import inspect
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import cached_property, lru_cache
from operator import is_
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from milepost.errors import DeserializeStateError, OptionError, SerializeStateError, StateTypeError, shown

from .containers import DictPlan, ListPlan, SequencePlan
from .families import Family, family_of
from .plan import (
    MARK,
    MAX_DEPTH,
    Contradicted,
    Plan,
    Refusal,
    describe,
    encode_json,
    encode_sorted,
    json_kind,
    key_step,
    qualified,
)
from .records import RecordPlan
from .resolve import Resolver, annotations_of, strip
from .unchangeable import is_unchangeable

T = TypeVar("T")

_SLOW: Any = object()  # the fast way gave no answer
_MARK = MARK.encode()
_DOLLAR, _BACKSLASH = b"$\\"
_LONG_TO_READ = 64 * 1024  # bytes


class Codec(Generic[T]):
    """A codec of one declared type: it writes values as strict JSON and reads them back, equal and of the same types.

    `type_` is any type: a dataclass, TypedDict, NamedTuple, pydantic model, msgspec struct, attrs class,
    `dict`, or an annotation such as `list[Item]`. If it declares the type of a value, plain JSON is written;
    elsewhere values that JSON can't tell apart become an object with the key `$mp`. Classes are known from the
    annotations that `type_` reaches, from `types` and from `codec.register`, never from a name in a record.
    A value that can't be carried exactly is refused when it is written.

    `upgrade` turns the plain JSON of an old record into the present form before it is read. A field of a record that
    the type does not have is an error, or is dropped with `unknown_fields="drop"`. With `total=False` any key of a
    TypedDict state may be missing.

    Objects are built as they were recorded: `__init__`, `__post_init__`, `__attrs_post_init__` and the
    validators of pydantic do not run when a value is read. Only the default of a field that the record lacks is
    converted and validated as its class does it (by pydantic if that validates defaults, and by the after-validators of
    a model, which may change the new fields alone); a default that is not of the declared type is an error.

    `problems` lists the declared fields that can't be carried, as their path and a sentence. Making a codec
    never raises for them; writing such a value does.
    """

    problems: tuple[tuple[str, str], ...]
    problem_types: dict[str, str]
    """The declared types of the places in `problems`, if they are classes."""

    def __init__(
        self,
        type_: Any,
        *,
        types: Iterable[type] = (),
        upgrade: Callable[[Any], Any] | None = None,
        unknown_fields: Literal["refuse", "drop"] = "refuse",
        total: bool = True,
    ) -> None:
        if unknown_fields not in ("refuse", "drop"):
            raise OptionError(
                f"unknown_fields must be 'refuse' or 'drop', not {shown(unknown_fields)}", option="unknown_fields"
            )
        self.type = type_
        self._types = tuple(types)
        self._upgrade = upgrade
        resolver = Resolver(known=self._types, drop_unknown=unknown_fields == "drop")
        self._plan: Plan = resolver.plan(type_, "state")
        for known in self._types:
            resolver.plan(known, f"types[{getattr(known, '__qualname__', known)}]")
        self.problems = resolver.problems
        self.problem_types = resolver.problem_types
        self._record = self._plan if isinstance(self._plan, RecordPlan) else None
        if self._record is not None and not total:
            self._record.allow_missing_keys()

    # -- records ---------------------------------------------------------------------------------------

    def encode(self, value: T, *, root: str = "state") -> bytes:
        """Write a value as compact JSON in UTF-8; equal values give equal bytes if their order is defined.

        `root` begins the paths in errors. Raises StateTypeError if a value is not of its declared type, and
        SerializeStateError if it can't be carried exactly; both name the path.
        """
        try:
            return encode_json(self._plan.dump(value, 0))
        except Refusal as refusal:
            raise _refused(refusal, root) from refusal.__cause__
        except UnicodeEncodeError as exc:  # in a name that the plans do not check
            raise SerializeStateError(f"{root} holds a name with a lone surrogate", path=root, type_name="str") from exc
        except RecursionError as exc:
            raise SerializeStateError(
                f"{root} is nested too deep for what is left of the stack, or holds itself",
                path=root,
                type_name=qualified(type(value)),
            ) from exc

    def in_succession(self, *, as_rope: Callable[[list[bytes], int], Any] | None = None) -> Succession:
        """Give an encoder for successive values, which writes the parts that they have in common only once.

        It gives large values as what `as_rope` makes of their pieces, in which these parts are the same objects, and size.
        """
        return Succession(self._plan, self, as_rope=as_rope)

    def decode(self, data: bytes, *, root: str = "state") -> T:
        """Read the bytes that `encode` wrote, or JSON that a person wrote in the same form.

        Raises DeserializeStateError, and nothing else, if the bytes do not give a value of the type. While a large
        record is read, Python's garbage collector is off, in all threads.
        """
        if len(data) < _LONG_TO_READ or not gc.isenabled():
            return self._decode(data, root)
        gc.disable()  # nothing made here is garbage, and several collections take as long as the reading
        try:
            return self._decode(data, root)
        finally:
            gc.enable()

    def _decode(self, data: bytes, root: str) -> T:
        try:
            # The search for one byte is fast, and fastest for its number.
            bare = not ((_DOLLAR in data and _MARK in data) or (_BACKSLASH in data and b"\\u" in data))
            if bare and self._decoder is not None and (value := self._decode_fast(data)) is not _SLOW:
                return value  # type: ignore[no-any-return]
            raw = msgspec.json.decode(data)
            if self._upgrade is not None:
                raw, bare = self._run_upgrade(raw), False
            value = self._plan.load(raw, bare)
        except DeserializeStateError:
            raise
        except Refusal as refusal:
            raise _unreadable(refusal, root) from refusal.__cause__
        except RecursionError as exc:
            raise DeserializeStateError(f"{root} is nested too deep", path=root, expected=self._plan.expected) from exc
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, MemoryError) as exc:
            raise DeserializeStateError(
                f"{root} is no valid JSON: {exc}", path=root, expected=self._plan.expected, found="invalid JSON"
            ) from exc
        return value  # type: ignore[no-any-return]

    def canonical(self, value: T) -> bytes:
        """Write a value as canonical typed JSON, with the classes that this codec knows; see `canonical`."""
        return canonical(value, (self.type, *self._types))

    def _decode_fast(self, data: bytes) -> Any:
        """Read with msgspec's typed decoder, which is lenient: a value counts only if it is written as the same bytes.

        UTC has two names in JSON. If the two texts differ in nothing else, the value is the recorded one.
        """
        assert self._decoder is not None
        try:
            twin = self._decoder.decode(data)
            again = encode_json(twin)
            if again == data or again == b'Z"'.join(data.split(b'+00:00"')):  # faster than `replace`
                return self._plan.revive(twin) if self._plan.revives else twin
            return _SLOW
        except Exception:  # a default factory of a user may fail; the plan then finds the error
            return _SLOW

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any] | None:
        if self._upgrade is not None or self._plan.twin is Any or self.problems:
            return None
        try:
            return msgspec.json.Decoder(self._plan.twin)
        except Exception:  # msgspec resolves annotations in its own way
            return None

    def _run_upgrade(self, raw: Any) -> Any:
        assert self._upgrade is not None
        try:
            return _copy_json(self._upgrade(raw), 0)
        except Exception as exc:  # user code
            raise DeserializeStateError(
                f"upgrade failed on a record: {shown(exc, 1000)}", expected=self._plan.expected, found=json_kind(raw)
            ) from exc

    def check(self, value: Any) -> None:
        """Raise StateTypeError unless a value is of the declared type; its content is not checked.

        A plain dict counts as a TypedDict. A subclass of a record class or dict counts as that class.
        """
        plan = self._plan
        if not plan.types or type(value) in plan.types:
            return
        if isinstance(plan, RecordPlan) and not plan.family.is_mapping and isinstance(value, plan.cls):
            return
        if isinstance(plan, DictPlan) and isinstance(value, plan.cls):
            return
        actual = describe(value)
        raise StateTypeError(
            f"the state is {actual} where {plan.expected} is declared"
            + (": return the state" if value is None else ""),
            path="state",
            expected=plan.expected,
            found=actual,
        )

    # -- fields ----------------------------------------------------------------------------------------

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """The names of the state's declared fields in order; None if it is a plain dict or no record."""
        return self._record.family.names if self._record is not None else None

    @property
    def reducers(self) -> dict[str, Callable[[Any, Any], Any]]:
        """The reducers of the state's fields: the functions of two arguments in `Annotated[T, ...]`.

        The first of several counts. A class is no reducer.
        """
        if self._record is None:
            return {}
        family = self._record.family
        hints, _ = annotations_of(family.cls, family.names, self._types)
        reducers: dict[str, Callable[[Any, Any], Any]] = {}
        for field in family.fields:
            metadata = (*strip(hints.get(field.name))[1], *strip(field.annotation)[1], *field.metadata)
            for item in metadata:
                if _takes_two(item):
                    reducers[field.name] = item
                    break
        return reducers

    def get(self, value: T, name: str) -> Any:
        """Read one field of a state. Raises StateTypeError if it has no field `name`."""
        self.check(value)
        if isinstance(value, Mapping) and (self._record is None or self._record.family.is_mapping):
            if name in value:
                return value[name]
        elif self._record is not None and name in self._record.plans and hasattr(value, name):
            return getattr(value, name)
        raise self._no_field(name)

    def replace(self, value: T, changes: Mapping[str, Any]) -> T:
        """Make a state like `value` with some fields changed; both share the objects of the other fields.

        The object is made without `__init__` and `__post_init__`, so fields with `init=False` and fields that
        those would compute stay as they are. New values are checked when the state is written.
        Raises StateTypeError for a field that the state's type does not have.
        """
        self.check(value)
        if self._record is not None:
            for name in changes:
                if name not in self._record.plans:
                    raise self._no_field(name)
            if not self._record.family.is_mapping:
                rebuilt: T = self._record_of(value).rebuild(value, dict(changes))
                return rebuilt
        if isinstance(value, dict):
            copied: Any = value.copy()
            copied.update(changes)
            return copied  # type: ignore[no-any-return]
        raise self._no_field(next(iter(changes), ""))

    def parts(self, value: T) -> dict[Any, Any]:
        """Take a state apart: the items of a dict, or the values of an object's fields by name.

        A subclass has its own fields. What a pydantic model has beside its fields follows by pairs, of what it is (such as
        `families.EXTRA`) and a name. Raises StateTypeError if a field has no value.
        """
        self.check(value)
        if isinstance(value, dict):
            return dict(value)
        family = self._family_of(type(value))
        parts = family.parts(value)
        for name in family.names:
            if name not in parts:
                raise self._no_field(name)
        return parts

    def assemble(self, cls: type[T], parts: Mapping[Any, Any]) -> T:
        """Make a state of a record class, which may be a subclass of the declared one, of its parts.

        None of its class's code runs. New values are checked when the state is written.
        """
        made: T = self._family_of(cls).assemble(parts)
        return made

    def _family_of(self, cls: type[T]) -> Family:
        """Give the family of a record class: the declared one, or a subclass of it."""
        known = self._record
        family = known.family if known is not None and known.cls is cls else family_of(cls)
        assert family is not None
        return family

    def _record_of(self, value: Any) -> RecordPlan:
        """Give the plan of the value's own class, which may be a known subclass of the declared one."""
        assert self._record is not None
        if type(value) is self._record.cls:
            return self._record
        plan = Resolver(known=self._types).plan(type(value), "state")
        assert isinstance(plan, RecordPlan)
        return plan

    def _no_field(self, name: str) -> StateTypeError:
        is_object = self._record is not None and not self._record.family.is_mapping
        known = f": it has {', '.join(self.field_names)}" if self.field_names else ""
        return StateTypeError(
            f"the state of type {self._plan.expected} has no field {name!r}{known}",
            path=f"state.{name}" if is_object else f"state{key_step(name)}",
            expected="a declared field" if known else "a field that is there",
            found="no such field",
        )


def canonical(value: Any, types: Iterable[type] = ()) -> bytes:
    """Write a value as canonical typed JSON: equal values of equal types give equal bytes, in every process.

    Keys and sets are sorted, and values that JSON can't tell apart are tagged: 1, 1.0, True and "1" all differ, and
    a tuple is no list. Classes are known from `types` and `codec.register`. Raises SerializeStateError or
    StateTypeError, with paths that begin at `value`.
    """
    known = tuple(types)
    try:
        untyped = _table_of(known)
    except TypeError:  # a type that can't be hashed
        untyped = _table_of.__wrapped__(known)
    try:
        return encode_sorted(_sort_pairs(untyped.wrap(value, 0)))
    except Refusal as refusal:
        raise _refused(refusal, "value") from refusal.__cause__
    except RecursionError as exc:
        raise SerializeStateError(
            "value is nested too deep, or holds itself", path="value", type_name=qualified(type(value))
        ) from exc


@lru_cache(maxsize=64)
def _table_of(types: tuple[Any, ...]) -> Plan:
    resolver = Resolver(known=types)
    for known in types:
        resolver.plan(known, "types")
    return resolver.untyped


def _sort_pairs(raw: Any) -> Any:
    """Sort the pairs of every dict whose keys are no text; the keys of objects are sorted when written."""
    if type(raw) is list:
        return [_sort_pairs(item) for item in raw]
    if type(raw) is OrderedDict:  # its order counts
        return [[key, _sort_pairs(item)] for key, item in raw.items()]
    if type(raw) is not dict:
        return raw
    out = {key: _sort_pairs(item) for key, item in raw.items()}
    if out.get(MARK) in ("dict", "defaultdict", "counter") and type(out.get("v")) is list:
        out["v"].sort(key=encode_sorted)
    return out


def _copy_json(raw: Any, depth: int) -> Any:
    """Copy plain JSON, so that no part of it is shared with user code. Raises TypeError for anything else."""
    if depth > 8 * MAX_DEPTH:
        raise TypeError("what it returned is nested too deep")
    if type(raw) is list:
        return [_copy_json(item, depth + 1) for item in raw]
    if type(raw) is dict:
        if not {*map(type, raw)} <= {str}:
            raise TypeError("what it returned has a key that is no text")
        return {key: _copy_json(item, depth + 1) for key, item in raw.items()}
    if not json_kind(raw):
        raise TypeError(f"what it returned holds a {qualified(type(raw))}, which is no plain JSON")
    return raw


def _refused(refusal: Refusal, root: str) -> SerializeStateError | StateTypeError:
    path, why = refusal.path(root), str(refusal)
    if isinstance(refusal, Contradicted):
        text = f"{path} is {refusal.found} where {refusal.expected} is declared"
        return StateTypeError(
            text + (f": {why}" if why else ""), path=path, expected=refusal.expected, found=refusal.found
        )
    text = f"{path} is a {refusal.type_name} that cannot be recorded exactly: {why}"
    return SerializeStateError(text, path=path, type_name=refusal.type_name)


def _unreadable(refusal: Refusal, root: str) -> DeserializeStateError:
    path, why = refusal.path(root), str(refusal)
    text = f"{path} should be {refusal.expected or 'a carried value'}, but the record has {refusal.found or 'another'}"
    return DeserializeStateError(
        text + (f": {why}" if why else ""), path=path, expected=refusal.expected, found=refusal.found
    )


def _takes_two(item: Any) -> bool:
    if not callable(item) or isinstance(item, type):
        return False
    try:
        inspect.signature(item).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return getattr(item, "__module__", None) in ("_operator", "operator", "builtins", None)
    return True


_LARGE = 32 * 1024
"""Size of a value in bytes from which on parts of the next value are kept."""
_LARGEST = 16 * 1024 * 1024
"""Size of a value in bytes above which no parts are kept."""
_PART = 32 * 1024
"""Size of a part in bytes, roughly."""
_SAMPLE = 16
"""Number of first elements that show whether the others have probably stayed the same, and how many make a part."""
_FEW = 2
"""By how many the parts written anew may exceed the reused ones; beyond it the whole list is written without parts."""
_LONGEST_REST = 63
"""Largest number of values that are written without parts, after several values that had little in common."""


Data = TypeVar("Data", bound=Sized, covariant=True)


class Encoder(Protocol[Data]):
    """An encoder of values."""

    def encode(self, value: Any, *, root: str = "state") -> Data:
        """Encode a value; `SerializeStateError` or `StateTypeError` if it cannot come back the same."""
        ...


class Succession:
    """An encoder of successive values of one type, which has this `plan` and this `encoder`.

    It keeps as much as the newest value, in bytes and in references, until `forget`. Only one thread at a time may use
    it.
    """

    __slots__ = ("_as_rope", "_encoder", "_lists", "_pause", "_plan", "_rest", "_size", "_used")

    def __init__(
        self, plan: Plan, encoder: Encoder[bytes], *, as_rope: Callable[[list[bytes], int], Any] | None = None
    ) -> None:
        self._plan = plan
        self._encoder = encoder
        self._as_rope = as_rope
        self._lists: list[_InParts] | None = None
        self._used: list[_InParts] = []
        """The lists of the value that are written in parts, in the order of the JSON."""
        self._size = 0
        self._rest = self._pause = 0

    def encode(self, value: Any, *, root: str = "state") -> Any:
        """Write a value as the encoder does, and raise the same errors."""
        data = self._encode(value) if _LARGE <= self._size <= _LARGEST else None
        if data is None:
            data = self._encoder.encode(value, root=root)
        self._size = len(data)
        return data

    def forget(self) -> None:
        """Forget the last value."""
        self._size = 0
        for each in self._lists or ():
            each.forget()

    def _encode(self, value: Any) -> Any:
        """Write a value part by part; return None if that is not worth while, or if the value may be refused."""
        if self._rest:
            self._rest -= 1
            return None
        if self._lists is None:
            self._lists = []
            self._plan = _in_parts(self._plan, self._lists, self._used)
        if not self._lists:
            return None
        is_new = not any(each.parts for each in self._lists)
        self._used.clear()
        try:
            data = encode_json(self._plan.dump(value, 0))
        except (Refusal, UnicodeEncodeError, RecursionError):
            self.forget()
            return None
        pieces, size = self._with_parts(data) if self._used else ([data], len(data))
        reused, written = sum(each.kept for each in self._lists), sum(each.written for each in self._lists)
        if reused > written:
            self._pause = 0
        elif not is_new:
            self._pause = self._rest = min(2 * self._pause + 1, _LONGEST_REST)
            self.forget()
        if self._as_rope is None or len(pieces) == 1 or size < _LARGE:
            return b"".join(pieces)
        return self._as_rope(pieces, size)

    def _with_parts(self, data: bytes) -> tuple[list[bytes], int]:
        """Return the JSON of a value in pieces, with the parts of its lists in their places, and its size."""
        pieces: list[bytes] = []
        size, begin = len(data) - len(self._used), 0
        for each in self._used:
            end = data.find(_MARK_OF_PARTS, begin)  # much faster than `split` for a long text
            pieces.append(data[begin:end])
            pieces += each.parts
            size += each.size
            begin = end + 1
        pieces.append(data[begin:])
        return pieces, size


_MARK_OF_PARTS = b"\0"
"""The byte that stands for the parts of a list in the JSON around it. JSON itself never has it."""
_PLACE_OF_PARTS = msgspec.Raw(_MARK_OF_PARTS)


class _InParts(Plan):
    """The plan of a list, or of a tuple of any length, that writes the elements in parts as `plan` would.

    One element that it writes stands for all parts; the list joins `used` then. The elements of the parts are kept, so
    that no other object can have the identity of one of them. New elements are a part of their own until there are
    enough of them to be joined.
    """

    def __init__(self, plan: ListPlan | SequencePlan, used: list[_InParts]) -> None:
        self.expected = plan.expected
        self._plan = plan
        self._used = used
        self._count = 0
        """The number of elements in a part that is no longer joined with others."""
        self._first: list[Any] | None = None
        """The first elements."""
        self._elements: list[Any] = []
        """The elements of all parts."""
        self._ends: list[int] = []
        """For each part the number of elements up to its end."""
        self._joined = 0
        """The number of parts that are no longer joined with others."""
        self.parts: list[bytes] = []
        """The JSON of each part, with commas between the elements, and before those of the second part and later ones."""
        self.size = 0
        """The number of bytes of all parts."""
        self.kept = self.written = 0
        """The numbers of the last value's parts that were reused, and that were written."""

    def forget(self) -> None:
        """Forget all parts."""
        self._cut(0)
        self._first = None

    def dump(self, value: Any, depth: int) -> Any:
        self.kept = self.written = 0
        if type(value) not in self._plan.types:
            raise self._plan.contradicted(value)
        if not self.parts and not self._is_worth_while(value, depth):
            return self._plan.dump(value, depth)
        if not self._update(value, depth):
            self.forget()
        if not self.parts:
            return self._plan.dump(value, depth)
        self._used.append(self)
        return [_PLACE_OF_PARTS]

    def _update(self, value: Any, depth: int) -> bool:
        """Make the parts those of `value`. Return False if that is not worth while, or if an element may change."""
        known, ends = self._elements, self._ends
        most = _FEW if self.parts else len(value)
        if len(known) <= len(value) and all(map(is_, known, value)):
            self.kept = len(ends)
        else:
            self.kept = bisect_right(ends, [*map(is_, known, value), False].index(False))
        for number in range(self.kept, len(ends)):
            begin, end = ends[number - 1] if number else 0, ends[number]
            elements = list(value[begin:end])
            if begin + len(elements) < end:
                self._cut(number)
                break
            if _are_same(known[begin:end], elements):
                self.kept += 1
            elif self.written > self.kept + most or not self._write(number, begin, elements, depth):
                return False
        begin, new = len(known), list(value[len(known) :])
        for place in range(0, len(new), self._count):
            elements = new[place : place + self._count]
            if self.written > self.kept + most or not self._write(len(ends), begin + place, elements, depth):
                return False
        return True

    def _write(self, number: int, begin: int, elements: list[Any], depth: int) -> bool:
        """Write a part, which begins with the element at `begin`. Return False if one of its elements may change."""
        if not all(map(is_unchangeable, elements)):
            return False
        json = encode_json(self._plan.item.dump_all(elements, depth + 1))[1:-1]
        if begin:
            json = b"," + json
        self._elements[begin : begin + len(elements)] = elements
        self.size += len(json)
        self.written += 1
        if number < len(self.parts):
            self.size -= len(self.parts[number])
            self.parts[number] = json
            return True
        self.parts.append(json)
        self._ends.append(begin + len(elements))
        joined = self._joined
        if self._ends[-1] - (self._ends[joined - 1] if joined else 0) >= self._count:
            self.parts[joined:] = [b"".join(self.parts[joined:])]
            self._ends[joined:] = self._ends[-1:]
            self._joined += 1
        return True

    def _cut(self, number: int) -> None:
        """Forget the parts from `number` on."""
        self.size -= sum(map(len, self.parts[number:]))
        del self.parts[number:], self._elements[self._ends[number - 1] if number else 0 :], self._ends[number:]
        self._joined = min(self._joined, number)

    def _is_worth_while(self, value: Any, depth: int) -> bool:
        """Return whether the first elements are those of the last value, and the list is long enough."""
        first = list(value[:_SAMPLE])
        before, self._first = self._first, first
        if not first or before is None or not _are_same(before, first) or not all(map(is_unchangeable, first)):
            return False
        size = len(encode_json(self._plan.item.dump_all(first, depth + 1)))
        self._count = max(_PART * len(first) // size, 1)
        return len(value) >= 2 * self._count


def _are_same(before: list[Any], now: list[Any]) -> bool:
    """Return whether both lists have the same objects."""
    return len(before) == len(now) and all(map(is_, before, now))


def _in_parts(plan: Plan, lists: list[_InParts], used: list[_InParts]) -> Plan:
    """Return the plan with its lists written in parts, also those of its records; append these plans to `lists`."""
    if isinstance(plan, ListPlan) or (isinstance(plan, SequencePlan) and plan.cls is tuple):
        lists.append(_InParts(plan, used))
        return lists[-1]
    if isinstance(plan, RecordPlan):
        in_parts = copy.copy(plan)
        in_parts.plans = {name: _in_parts(field, lists, used) for name, field in plan.plans.items()}
        return in_parts
    return plan
