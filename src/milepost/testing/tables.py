"""Tests that try many values of one kind: one test with a loop over them, which names the value that failed."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["for_each", "trying"]

Test = TypeVar("Test", bound=Callable[..., Any])


@contextmanager
def trying(**values: Any) -> Iterator[None]:
    """Add a note with `values` to the error of the block."""
    try:
        yield
    except BaseException as error:
        error.add_note("with " + ", ".join(f"{name}={_shown(value)}" for name, value in values.items()))
        raise


def for_each(names: str, rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test with each of `rows`, as `pytest.mark.parametrize` does, but within one test, which has its fixtures once."""
    fields, table = [name.strip() for name in names.split(",")], list(rows)
    assert table

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def try_all(*args: Any, **fixtures: Any) -> None:
            for row in table:
                values = dict(zip(fields, row if len(fields) > 1 else [row], strict=True))
                with trying(**values):
                    test(*args, **fixtures, **values)

        assert not inspect.iscoroutinefunction(test)
        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in fields]
        try_all.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return try_all  # type: ignore[return-value]

    return decorate


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an int of thousands of digits
        return f"a {type(value).__name__} of {value.bit_length()} bits"
