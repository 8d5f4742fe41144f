"""The annotations of classes: resolving names, stripping decorations, filling in type variables."""

from __future__ import annotations

import builtins
import inspect
import sys
import typing
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Final, ForwardRef, TypeVar, get_args, get_origin

from milepost.errors import shown

_DECORATIONS = tuple(
    getattr(typing, name)
    for name in ("Required", "NotRequired", "Final", "ClassVar", "ReadOnly")
    if hasattr(typing, name)
)


def annotations_of(cls: Any, names: Iterable[str], known: Iterable[type]) -> tuple[dict[str, Any], dict[str, str]]:
    """Give the resolved annotations of a class's fields, and a reason for each that can't be resolved.

    Names are looked up in the class's module and body, and among the `known` classes.
    """
    namespace = _names_for(cls, known)
    try:
        hints = typing.get_type_hints(cls, localns=namespace, include_extras=True)
        return {name: hints[name] for name in names if name in hints}, {}
    except Exception:  # user code runs when annotations are evaluated
        return _one_by_one(cls, names, namespace)


def _one_by_one(cls: Any, names: Iterable[str], namespace: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        for base in cls.__mro__:
            own = inspect.get_annotations(base)
            if name in own:
                module = vars(sys.modules.get(base.__module__, builtins))
                holder = SimpleNamespace(__annotations__={name: own[name]})
                try:
                    found[name] = typing.get_type_hints(holder, module, namespace, include_extras=True)[name]
                except Exception as exc:  # user code runs when annotations are evaluated
                    failed[name] = f"its annotation {own[name]!r} cannot be resolved ({exc})"
                break
    return found, failed


def _names_for(cls: Any, known: Iterable[type]) -> dict[str, Any]:
    """Give the classes, by name, that annotations of `cls` refer to before the names of its module.

    Classes in the class's body come first, as they do if annotations are evaluated at once. The `known` classes count
    only for names that the module does not have.
    """
    module = vars(sys.modules.get(cls.__module__, builtins))
    names: dict[str, Any] = {}
    taken = {*vars(builtins)} if "<locals>" in cls.__qualname__ else {*module, *vars(builtins)}
    for other in (cls, *known):
        if isinstance(other, type) and other.__name__ not in taken:
            names.setdefault(other.__name__, other)
    for base in reversed(cls.__mro__):
        names.update({name: value for name, value in vars(base).items() if isinstance(value, type)})
    return names


def variables_of(cls: Any, arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """Give the types that stand for the type variables of a generic class and of its generic bases."""
    variables: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and hasattr(origin, "__parameters__") and origin is not typing.Generic:
            inner = tuple(variables.get(argument, argument) for argument in get_args(base))
            for variable, argument in variables_of(origin, inner).items():
                variables.setdefault(variable, argument)
    return variables


def reveal(annotation: Any, variables: dict[Any, Any]) -> Any:
    """Strip decorations and aliases that are no types of their own, and fill in a type variable."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated or origin in _DECORATIONS:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):  # NewType
            annotation = annotation.__supertype__
        elif isinstance(annotation, TypeVar):
            annotation = _fill(annotation, variables)
        elif annotation in (Final, ClassVar):
            return Any
        elif annotation is getattr(typing, "LiteralString", None):
            return str
        else:
            return annotation


def _fill(variable: TypeVar, variables: dict[Any, Any]) -> Any:
    if variable in variables and variables[variable] is not variable:
        return variables[variable]
    if variable.__bound__ is not None and not isinstance(variable.__bound__, ForwardRef):
        return variable.__bound__
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]  # noqa: UP007  # made from a tuple
    return Any


def insert(annotation: Any, variables: dict[Any, Any]) -> Any:
    """Replace the type variables in an annotation such as `list[T]` by their types."""
    inside = getattr(annotation, "__parameters__", ()) if get_origin(annotation) is not None else ()
    if not inside or not all(isinstance(variable, TypeVar) for variable in inside):
        return annotation
    return annotation[tuple(reveal(variable, variables) for variable in inside)]


def strip(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Give an annotation without its outer decorations, and the metadata of all `Annotated` among them."""
    metadata: tuple[Any, ...] = ()
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            metadata = (*metadata, *annotation.__metadata__)
        elif origin not in _DECORATIONS:
            return annotation, metadata
        annotation = get_args(annotation)[0]


def type_text(annotation: Any) -> str:
    """Write a type for people."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        name = annotation.__qualname__
        return name if annotation.__module__ == "builtins" else f"{annotation.__module__}.{name}"
    return shown(annotation, 1000).replace("typing.", "")
