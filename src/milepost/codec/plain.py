"""Plain JSON: values that need no declared type, and recorded JSON as people read it."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec

from milepost.errors import SerializeStateError

from .plan import MARK, MAX_DEPTH, encode_json, key_step, qualified
from .scalars import MAX_INT, MIN_INT


class JsonCodec:
    """A codec of plain JSON values, for an input that is recorded without the code of its flow."""

    def encode(self, value: Any, *, root: str = "state") -> bytes:
        """Write a value of JSON's own types. Raises `SerializeStateError`, with the path, for any other value."""
        _check(value, root, 0)
        return encode_json(value)

    def decode(self, data: bytes, *, root: str = "state") -> Any:
        """Read what `encode` wrote."""
        return msgspec.json.decode(data)


def _check(value: Any, path: str, depth: int) -> None:
    """Raise `SerializeStateError` for a value that is not plain JSON, or that a record could hold only with a mark."""
    if depth > MAX_DEPTH:
        raise _refused(value, path, f"containers are nested more than {MAX_DEPTH} deep here, or one holds itself")
    if value is None or type(value) is bool:
        return
    if type(value) is str:
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise _refused(value, path, "it holds a lone surrogate")
    elif type(value) is int:
        if not MIN_INT <= value <= MAX_INT:
            raise _refused(value, path, "it has more than 64 bits")
    elif type(value) is float:
        if not isfinite(value):
            raise _refused(value, path, "JSON has no such number")
    elif type(value) is list:
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str or key == MARK:
                raise _refused(value, path, f"a key is a text other than {MARK!r}, not {key!r}")
            _check(key, path, depth + 1)
            _check(item, f"{path}.{key}" if key.isidentifier() else path + key_step(key), depth + 1)
    else:
        raise _refused(value, path, "give None, bool, int, float, str, list and dict, as JSON has them")


def _refused(value: Any, path: str, why: str) -> SerializeStateError:
    name = qualified(type(value))
    return SerializeStateError(f"{path} is a {name} that is no plain JSON: {why}", path=path, type_name=name)


_FIELD = r'"(?!v")([$\w]+)":\s?("(?:[^"\\]|\\.)*"|[^",{}\[\]]+)'
_HEAD = rf'{{"\{MARK}":\s?"\w+"(?:,\s?{_FIELD})*,\s?"v":\s?'
"""The beginning of a tagged value, up to the value itself."""
_PARTS = re.compile(rf"""(?P<head>{_HEAD})|"(?:[^"\\]|\\.)*"?|[{{}}\[\],]|[^"{{}}\[\],]+""")
_CUT_HEAD = re.compile(rf'{{"\{MARK}"(?:(?!"v":).)*\Z')


def plain_text(text: str) -> str:
    """Return JSON without the marks of tagged values, which begin with their class or tag instead: `Quote {"price":1}`.

    What else marks a value follows it, so that texts differ where values do. The text may have been cut.
    """
    if MARK not in text:
        return text
    shown: list[str] = []
    behind: list[str | None] = []  # for each open bracket: what stands in place of its end; None: the end itself
    for found in _PARTS.finditer(_CUT_HEAD.sub("", text)):
        part = found[0]
        if found["head"]:
            fields = dict(re.findall(_FIELD, part))
            name = fields.pop("t", fields[MARK])[1:-1]
            behind.append("".join(f' "{key}":{value}' for key, value in fields.items() if key != MARK))
            part = f"{name} "
        elif part in {"[", "{"}:
            behind.append(None)
        elif part in {"]", "}"} and behind:
            end = behind.pop()
            part = part if end is None else end
        elif part == "," and behind and behind[-1] is not None:
            part = " "
        shown.append(part)
    return "".join(shown)
