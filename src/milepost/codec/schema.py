"""JSON Schemas of declared types, as far as plain JSON can be judged by them without the types themselves.

A schema says less than its type: it holds what every payload must have that the type would take. Where a class converts
or validates what it is given, as pydantic models do, it says nothing. The keywords are those of JSON Schema 2020-12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import date, datetime, time
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

import msgspec

from .families import Family, family_of
from .resolve import annotations_of, may_be_missing, reveal
from .untyped import find_by_type

_SCALARS = {NoneType: "null", bool: "boolean", int: "integer", float: "number", str: "string"}
_LARGEST = 16 * 1024
"""Bytes of the largest schema that is kept with a wait."""
_TYPES: dict[str, tuple[type, ...]] = {
    "null": (NoneType,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def schema_of(type_: Any) -> dict[str, Any]:
    """Return the schema of a declared type; it is empty where nothing can be said of every payload, or too much."""
    schema = _schema_of(type_, ())
    try:
        return schema if len(msgspec.json.encode(schema)) <= _LARGEST else {}
    except ValueError:  # a text that JSON cannot carry
        return {}


def _schema_of(type_: Any, around: tuple[Any, ...]) -> dict[str, Any]:
    type_ = reveal(type_, {})
    origin, inner = get_origin(type_) or type_, get_args(type_)
    if origin is None or (isinstance(type_, type) and type_ in _SCALARS):
        return {"type": _SCALARS[origin or NoneType]}
    if origin is Literal:
        is_plain = all(type(value) in {str, int, bool, NoneType} for value in inner)
        return {"enum": [*inner]} if is_plain else {}
    if origin in {Union, UnionType}:
        options = [_schema_of(option, around) for option in inner]
        return {"anyOf": options} if all(options) else {}
    if origin is list:
        items = _schema_of(inner[0], around) if inner else {}
        return {"type": "array", "items": items} if items else {"type": "array"}
    if origin in {tuple, set, frozenset, deque}:
        return {"type": "array"}
    if origin is dict:
        return {"type": ["object", "array"]}  # an array of pairs where not all keys are texts
    if origin in {date, datetime, time, UUID}:
        return {"type": "string"}
    family = family_of(type_)
    if family is None or hasattr(type_, "__pydantic_fields__") or find_by_type(type_) or type_ in around:
        return {}
    return _schema_of_record(family, (*around, type_))


def _schema_of_record(family: Family, around: tuple[Any, ...]) -> dict[str, Any]:
    hints, failed = annotations_of(family.cls, family.names, ())
    fields = {name: {} if name in failed else _schema_of(hints.get(name, Any), around) for name in family.names}
    required = [
        field.name
        for field in family.fields
        if field.default is None and not may_be_missing(field, hints.get(field.name))
    ]
    return {
        "type": "object",
        "properties": {name: schema for name, schema in fields.items() if schema},
        "required": required,
    }


def flaw_of(payload: bytes, schema: Any) -> str:
    """Say in one sentence why a payload does not fit a schema; "" if it fits, or the schema says nothing of it.

    Unknown keywords, the tagged objects of this codec and what is no JSON fit.
    """
    try:
        return _flaw_of(msgspec.json.decode(payload), schema, "payload")
    except (msgspec.MsgspecError, RecursionError):
        return ""


def _flaw_of(value: Any, schema: Any, path: str) -> str:
    if not isinstance(schema, Mapping) or (isinstance(value, dict) and any(key[:1] == "$" for key in value)):
        return ""
    if "anyOf" in schema:
        reasons = [_flaw_of(value, option, path) for option in schema["anyOf"]]
        return "" if "" in reasons else f"{path} fits none of {len(reasons)} types: {'; '.join(reasons)}"
    if "enum" in schema and not any(type(value) is type(known) and value == known for known in schema["enum"]):
        return f"{path} must be one of {', '.join(map(repr, schema['enum']))}"
    names = schema.get("type", ())
    names = [names] if isinstance(names, str) else names
    if names and not any(type(value) in _TYPES.get(name, (type(value),)) for name in names):
        return f"{path} must be of type {' or '.join(names)}, and is of type {_name_of(value)}"
    if isinstance(value, list):
        inside = ((item, schema.get("items"), f"{path}[{index}]") for index, item in enumerate(value))
    elif isinstance(value, dict):
        missing = [field for field in schema.get("required", ()) if field not in value]
        if missing:
            return f"{path} lacks {', '.join(map(repr, missing))}"
        known = schema.get("properties", {})
        inside = ((item, known.get(field), f"{path}.{field}") for field, item in value.items())
    else:
        return ""
    return next(filter(None, (_flaw_of(*part) for part in inside)), "")


def _name_of(value: Any) -> str:
    return next(name for name, types in _TYPES.items() if type(value) in types)
