"""What a command is to run: the flow that was named on the command line, and its input.

Only what the user typed is imported, never a name that stands in a store.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from milepost.errors import DeserializeStateError, GraphError
from milepost.graph import CompiledGraph, Graph

__all__ = ["load_target", "read_input", "read_pairs"]

_FORM = "a target is module:graph or path.py:graph"


def load_target(target: str) -> CompiledGraph[Any]:
    """Import the flow that `target` names. What its module prints goes to the standard error.

    Raises `click.UsageError` for a target that is not there, cannot be imported or is no compiled graph.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise click.UsageError(f"{target!r} is no target: {_FORM}, such as shop:graph")
    is_file = place.endswith(".py") or "/" in place
    with contextlib.redirect_stdout(sys.stderr):
        try:
            module = _import_file(Path(place)) if is_file else _import_module(place)
        except click.UsageError:
            raise
        except GraphError as exc:
            raise click.UsageError(f"the graph in target {target!r} is wrong: {exc}") from exc
        except (Exception, SystemExit) as exc:
            told = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
            raise click.UsageError(f"target {target!r} could not be imported: {told}") from exc
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return _checked(found, target, module, name)


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise click.UsageError(f"there is no file {str(path)!r}: {_FORM}")
    name = path.stem if path.stem not in sys.modules else f"milepost_target_{path.stem}"
    sys.path.insert(0, str(path.absolute().parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{str(path)!r} is no Python file: {_FORM}")
    module = importlib.util.module_from_spec(spec)
    # Annotations are looked up in the module of their class, which must be found by its name for that.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _checked(found: Any, target: str, module: ModuleType, name: str) -> CompiledGraph[Any]:
    if isinstance(found, CompiledGraph):
        return found
    if isinstance(found, Graph):
        raise click.UsageError(f"target {target!r} is a graph that is not compiled: name what its compile() returned")
    flows = sorted(key for key, value in vars(module).items() if isinstance(value, CompiledGraph))
    hint = f"it has {', '.join(flows)}" if flows else "it has no compiled graph"
    if found is None:
        raise click.UsageError(f"target {target!r}: module {module.__name__!r} has no {name!r}: {hint}")
    raise click.UsageError(f"target {target!r} is a {type(found).__name__}, not a compiled graph: {hint}")


def read_input(flow: CompiledGraph[Any], text: str | None, fields: Sequence[str]) -> Any:
    """The initial state: from JSON text ("-": the standard input), or from fields `key=value`; {} without either.

    Raises `click.UsageError`, which names the field, where that gives no state.
    """
    if text is not None and fields:
        raise click.UsageError("give the input either as JSON or as --input key=value, not both")
    if text == "-":
        text = sys.stdin.read()
    if text is None:
        text = json.dumps({key: _value(value) for key, value in read_pairs(fields, "--input").items()})
    try:
        return flow.codec.decode(text.encode("utf-8", "surrogatepass"), root="input")
    except DeserializeStateError as exc:
        told = str(exc).replace("the record", "the input").partition(": pass ")[0]
        raise click.UsageError(f"the input is no state of flow {flow.name!r}: {told}") from exc


def read_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """The values of an option `key=value` that may be repeated."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes key=value, not {pair!r}")
        if key in found:
            raise click.UsageError(f"{option} gives {key!r} twice")
        found[key] = value
    return found


def _value(text: str) -> Any:
    """JSON where the text is JSON, else the text."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)
