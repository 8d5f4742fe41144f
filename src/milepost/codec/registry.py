"""The classes that a user has registered with the codec, for the whole process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from milepost.errors import OptionError, shown

from .plan import qualified


class Registration(msgspec.Struct, frozen=True):
    """The two functions that turn values of one class into carried values and back."""

    type: type
    tag: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_by_type: dict[type, Registration] = {}
_by_tag: dict[str, Registration] = {}


def register(type: type, tag: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Register a class with the codec, for the whole process.

    `encode` gives a value that the codec carries; `decode` makes an equal object from it. `tag` names the
    class in records for ever; another class may take it over only if it has the same module and name, as
    after a reload. Subclasses are not covered. Register a class before a codec is made whose types name it.

    Raises OptionError if `type` is no class, or `tag` is empty or belongs to another class.
    """
    if not isinstance(type, _class):
        raise OptionError(f"codec.register needs a class, not {shown(type)}", option="type")
    if not isinstance(tag, str) or not tag:
        raise OptionError(
            f"the tag of {qualified(type)} must be a text that is not empty, not {shown(tag)}", option="tag"
        )
    holder = _by_tag.get(tag)
    if holder is not None and qualified(holder.type) != qualified(type):
        raise OptionError(
            f"the tag {shown(tag)} belongs to {qualified(holder.type)}: register {qualified(type)} under another one",
            option="tag",
        )
    if holder is not None:
        _by_type.pop(holder.type, None)
    earlier = _by_type.get(type)
    if earlier is not None:
        _by_tag.pop(earlier.tag, None)
    _by_type[type] = _by_tag[tag] = Registration(type, tag, encode, decode)


def find_by_type(cls: type) -> Registration | None:
    """Give the registration of exactly this class."""
    return _by_type.get(cls)


def find_by_tag(tag: str) -> Registration | None:
    """Give the registration that has this tag."""
    return _by_tag.get(tag)


_class = type
