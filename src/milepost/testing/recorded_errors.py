"""The errors that a record tells of, as exceptions to be raised again."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from milepost.errors import AttemptTimedOut, class_name
from milepost.model.failure import message_of, type_name
from milepost.model.retry import Retry

_TRIED_AGAIN = "was_tried_again"
"""The name of an attribute of raised errors: True if another attempt followed in the record."""


class RecordedRetry(Retry):
    """The policy of nodes and steps that have none of their own: they were tried again where the record says so."""

    __slots__ = ()

    def allows(self, failures: int, error: BaseException) -> bool:
        """Return whether another attempt followed in the record."""
        return bool(vars(error).get(_TRIED_AGAIN))


def timed_out_again(fields: Mapping[str, Any], timeout: float) -> AttemptTimedOut:
    """Make the error of an attempt that took longer than its timeout."""
    error = AttemptTimedOut(timeout)
    error.args = (fields.get("message"),)
    vars(error)[_TRIED_AGAIN] = fields.get("retry_at") is not None
    return error


def raised_again(fields: Mapping[str, Any], policy: Retry | None) -> Exception:
    """Make the error that a record tells of: of a built-in class or one that the policy names, else of a stand-in.

    A stand-in has the name, the message and, as far as they are recorded, the names of the bases of the class.
    """
    name, message = str(fields.get("error_type")), str(fields.get("message") or "")
    was_tried_again = fields.get("retry_at") is not None
    kind = _known(name, policy) or _unknown(name, fields.get("error_bases") or (), policy if was_tried_again else None)
    error: Exception | None = None
    with suppress(Exception):  # some classes take other arguments
        error = kind(message)
    if error is None or (type_name(error), message_of(error)) != (name, message):
        stand_in = _stand_in(kind, name, message)
        error = stand_in.__new__(stand_in)
    vars(error)[_TRIED_AGAIN] = was_tried_again
    return error


def _known(name: str, policy: Retry | None) -> type[Exception] | None:
    """Find the class of an error among built-in classes and those of a policy, where it may have moved to another module."""
    named = [] if policy is None else [*policy.retry_on, *policy.give_up_on]
    found = [getattr(builtins, name, None)]
    found += [kind for kind in named if name in {class_name(kind), f"{kind.__module__}.{kind.__qualname__}"}]
    found += [kind for kind in named if name.rpartition(".")[2] == kind.__name__]
    return next((kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception)), None)


def _unknown(name: str, bases: Sequence[str], policy: Retry | None) -> type[Exception]:
    """Make the base of a stand-in for an unknown class; with a `policy`, which tried it again, of a class that it names."""
    kind: type[Exception] = Exception
    if policy is not None:
        kind = next((allowed for allowed in policy.retry_on if issubclass(allowed, Exception)), Exception)
    for base in [base for base in bases if base != name][::-1]:
        known = getattr(builtins, base, None)
        kind = known if isinstance(known, type) and issubclass(known, kind) else _stand_in(kind, base)
    return kind


def _stand_in(kind: type[Exception], name: str, message: str | None = None) -> type[Exception]:
    module, _, qualname = name.rpartition(".")
    members: dict[str, Any] = {"__module__": module or "builtins", "__qualname__": qualname}
    if message is not None:
        members["__str__"] = lambda error: message
    return type(qualname, (kind,), members)
