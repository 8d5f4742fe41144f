"""Forms for answers: the inputs that a recorded JSON Schema leads to, and the payload that was typed into them.

A schema that has no inputs of its own, or only for some of its parts, has a JSON editor there. The engine checks every
payload again, and the run does before it goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

from milepost.model.typed_json import UnfitJsonError, parse_json

PREFIX = "field:"
"""The beginning of the names of inputs. The rest are the names of the fields on the way to it, with / between them."""
_SCALARS = {"string": "text", "integer": "integer", "number": "number", "boolean": "yesno"}
_FORMATS = {"date": "date", "date-time": "datetime"}


class Input(NamedTuple):
    """One input. `kind` is text, long (several lines), integer, number, yesno, choice, date, datetime, list or json.

    A list has one value a line. `options` of a choice have `value` (JSON) and `label`. `value` is the text that it shows,
    `error` the reason why that text is refused.
    """

    name: str
    label: str
    kind: str
    is_required: bool
    description: str
    options: Sequence[Mapping[str, str]]
    value: str
    error: str = ""


class _Field(NamedTuple):
    """A part of a schema that has one input."""

    path: tuple[str, ...]
    schema: Mapping[str, Any]
    kind: str
    is_required: bool
    is_nullable: bool


class Payload(NamedTuple):
    """The payload that a form says, and the inputs whose text is none, by name, with the reason."""

    value: Any
    errors: Mapping[str, str]


def inputs_of(
    schema: Any, form: Mapping[str, Sequence[str]] | None = None, errors: Mapping[str, str] | None = None
) -> list[Input]:
    """Return the inputs for a schema, with the texts of `form` and the reasons why some are refused."""
    errors, found = errors or {}, []
    for field in _fields(schema):
        name = PREFIX + "/".join(field.path)
        given = None if form is None or name not in form else form[name][-1]
        shown = _shown_default(field) if given is None else given
        label = str(field.schema.get("title") or " / ".join(field.path) or "Answer")
        options = [{"value": json.dumps(option), "label": _label(option)} for option in field.schema.get("enum", ())]
        text = str(field.schema.get("description", ""))
        found.append(Input(name, label, field.kind, field.is_required, text, options, shown, errors.get(name, "")))
    return found


def read_payload(schema: Any, form: Mapping[str, Sequence[str]]) -> Payload:
    """Read what was typed: each input's text as its schema says."""
    value: Any = {} if _is_object(_plain(schema)[0]) else None
    errors: dict[str, str] = {}
    for field in _fields(schema):
        name = PREFIX + "/".join(field.path)
        text = form.get(name, [""])[-1]
        if not text.strip() and not (field.kind in {"text", "long"} and field.is_required and text):
            if field.is_required and field.is_nullable:
                value = _put(value, field.path, None)
            elif field.is_required and field.kind == "list":
                value = _put(value, field.path, [])
            elif field.is_required:
                errors[name] = "it is needed"
            continue
        try:
            value = _put(value, field.path, _read(field, text))
        except ValueError as exc:
            errors[name] = str(exc)
    return Payload(value, errors)


def _put(value: Any, path: Sequence[str], part: Any) -> Any:
    if not path:
        return part
    inside = value
    for name in path[:-1]:
        inside = inside.setdefault(name, {})
    inside[path[-1]] = part
    return value


def _fields(schema: Any) -> Iterator[_Field]:
    plain, is_nullable = _plain(schema)
    if not _is_object(plain) or is_nullable:
        yield _field((), plain, is_required=True, is_nullable=is_nullable)
        return
    for name, inner in _properties(plain):
        part, part_is_nullable = _plain(inner)
        is_required = name in plain.get("required", ())
        if _is_object(part) and is_required and not part_is_nullable:
            for inner_name, innermost in _properties(part):
                leaf, leaf_is_nullable = _plain(innermost)
                yield _field(
                    (name, inner_name),
                    leaf,
                    is_required=inner_name in part.get("required", ()),
                    is_nullable=leaf_is_nullable,
                )
        else:
            yield _field((name,), part, is_required=is_required, is_nullable=part_is_nullable)


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of an object, also those that must be there and of which nothing else is known."""
    known: Mapping[str, Any] = schema.get("properties", {})
    yield from known.items()
    yield from ((name, {}) for name in schema.get("required", ()) if name not in known)


def _field(path: tuple[str, ...], schema: Mapping[str, Any], *, is_required: bool, is_nullable: bool) -> _Field:
    return _Field(path, schema, _kind(schema, is_alone=not path), is_required, is_nullable)


def _kind(schema: Mapping[str, Any], *, is_alone: bool) -> str:
    if "enum" in schema:
        return "choice"
    type_ = schema.get("type")
    if type_ == "array":
        return "list" if _plain(schema.get("items"))[0].get("type") in _SCALARS else "json"
    if type_ == "string":
        return _FORMATS.get(str(schema.get("format")), "long" if is_alone else "text")
    return _SCALARS.get(str(type_), "json")


def _plain(schema: Any) -> tuple[Mapping[str, Any], bool]:
    """Return a schema without its null, and whether it had one."""
    if not isinstance(schema, Mapping):
        return {}, False
    if "const" in schema:
        return {**schema, "enum": [schema["const"]]}, False
    if "enum" in schema:
        options = [option for option in schema["enum"] if option is not None]
        return {**schema, "enum": options}, len(options) < len(schema["enum"])
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1 and len(schema["anyOf"]) == 2:
        return _plain(options[0])[0], True
    return schema, False


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and bool(schema.get("properties") or schema.get("required"))


def _read(field: _Field, text: str) -> Any:
    """Read the text of an input. Raises ValueError with the reason."""
    match field.kind:
        case "list":
            items, _ = _plain(field.schema.get("items"))
            kind = _kind(items, is_alone=False)
            return [_scalar(kind, items, line.strip()) for line in text.splitlines() if line.strip()]
        case "json":
            return read_json(text)
        case kind:
            return _scalar(kind, field.schema, text)


def _scalar(kind: str, schema: Mapping[str, Any], text: str) -> Any:
    match kind:
        case "integer" | "number":
            try:
                number = parse_json(text)
            except UnfitJsonError:
                raise
            except ValueError:
                number = None
            if type(number) is not int and (kind == "integer" or type(number) is not float):
                raise ValueError(f"{text[:40]!r} is no {'whole number' if kind == 'integer' else 'number'}")
            return number
        case "yesno":
            if text not in {"true", "false"}:
                raise ValueError("choose yes or no")
            return text == "true"
        case "choice":
            known = {json.dumps(option): option for option in schema["enum"]}
            if text not in known:
                raise ValueError("choose one of the options")
            return known[text]
        case "date":
            date.fromisoformat(text)
            return text
        case "datetime":
            datetime.fromisoformat(text)
            return text
        case _:
            return text.replace("\r\n", "\n")


def read_json(text: str) -> Any:
    """Read JSON that somebody typed. Raises ValueError, which says why it can't be taken."""
    try:
        return parse_json(text)
    except UnfitJsonError:
        raise
    except ValueError as exc:
        raise ValueError(f"this is no JSON: {exc}") from exc


def _shown_default(field: _Field) -> str:
    if "default" not in field.schema:
        return ""
    default = field.schema["default"]
    return (
        default
        if isinstance(default, str) and field.kind in {"text", "long", "date", "datetime"}
        else json.dumps(default)
    )


def _label(option: Any) -> str:
    return option if isinstance(option, str) else json.dumps(option)
