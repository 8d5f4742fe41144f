"""The target of a command: a flow and its input, or the application that knows them.

Only what the user typed is imported, never a name that stands in a store.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import click

from milepost.cli.commands import Invocation
from milepost.cli.places import (
    chosen_app,
    chosen_url,
    has_store,
    open_existing,
    open_or_make,
    open_to_look,
    project,
    url_of_store,
)
from milepost.cli.values import read_json, read_pairs, read_value
from milepost.codec import Codec
from milepost.engine.engine import Engine
from milepost.engine.worker import Worker
from milepost.errors import DeserializeStateError, GraphError, MilepostError
from milepost.graph.builder import CompiledGraph, Graph
from milepost.stores.memory import MemoryStore
from milepost.views.text import clean
from milepost.workflows.definition import Workflow

# -- What a command is to run: the flow that was named on the command line, and its input ----------


Runnable = CompiledGraph[Any] | Workflow[..., Any]
"""The flows that can be run by their names: compiled graphs and workflows."""

_FORM = "a target is module:flow or path.py:flow"


def load_target(target: str) -> Runnable:
    """Import the flow that `target` names. What its module prints goes to the standard error.

    Raises `click.UsageError` for a target that is not there, cannot be imported, or is no flow.
    """
    module, found, name = find_target(target)
    return _checked(found, target, module, name)


def find_target(target: str, root: Path | None = None) -> tuple[ModuleType, Any, str]:
    """Import what `target` names: its module, the object (None: the module has none) and the object's name.

    Files and modules are looked for below `root`; None: files below the working directory, modules in the project's root
    too. Raises `click.UsageError` for a module that is not there or cannot be imported.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise click.UsageError(f"{target!r} is no target: {_FORM}, such as shop:graph")
    is_file = place.endswith(".py") or "/" in place
    folders = dict.fromkeys([project()[0], Path.cwd()] if root is None else [root])
    with contextlib.redirect_stdout(sys.stderr):
        try:
            module = _import_file(Path(root or "", place)) if is_file else _import_module(place, folders)
        except click.UsageError:
            raise
        except GraphError as exc:
            raise click.UsageError(f"the graph in target {target!r} is wrong: {exc}") from exc
        except (Exception, SystemExit) as exc:
            message = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
            raise click.UsageError(f"target {target!r} could not be imported: {message}") from exc
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return module, found, name


def _import_module(name: str, folders: Iterable[Path]) -> ModuleType:
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
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


def _checked(found: Any, target: str, module: ModuleType, name: str) -> Runnable:
    if isinstance(found, (CompiledGraph, Workflow)):
        return found
    if isinstance(found, Graph):
        raise click.UsageError(f"target {target!r} is a graph that is not compiled: name what its compile() returned")
    flows = sorted(key for key, value in vars(module).items() if isinstance(value, (CompiledGraph, Workflow)))
    hint = f"it has {', '.join(flows)}" if flows else "it has no compiled graph and no workflow"
    if found is None:
        raise click.UsageError(f"target {target!r}: module {module.__name__!r} has no {name!r}: {hint}")
    if inspect.isgeneratorfunction(found) or inspect.iscoroutinefunction(found):
        raise click.UsageError(f"target {target!r} is a function and no workflow yet: put @workflow(name) above it")
    raise click.UsageError(f"target {target!r} is a {type(found).__name__}, not a compiled graph or a workflow: {hint}")


def read_input(flow: Runnable, text: str | None, fields: Sequence[str]) -> Any:
    """Read the input of a run from JSON text ("-": the standard input) or from fields `key=value`; {} without either.

    A state for a graph, inputs by name for a workflow. Raises `click.UsageError`, which names the field, where that gives
    none.
    """
    text = _input_text(text, fields)
    noun = "workflow" if isinstance(flow, Workflow) else "flow"
    given = read_json(text, f"the input of {noun} {flow.name!r}")
    try:
        if isinstance(flow, Workflow):
            return _inputs(flow, given, text)
        return flow._definition.codec.decode(_encoded(text), root="input")
    except DeserializeStateError as exc:
        message = str(exc).replace("the record", "the input").partition(": pass ")[0]
        kind = "does not fit" if isinstance(flow, Workflow) else "is no state of"
        raise click.UsageError(f"the input {kind} {noun} {flow.name!r}: {message}") from exc


def read_plain(text: str | None, fields: Sequence[str]) -> Any:
    """Read the input of a flow whose code is not at hand, as `read_input` does."""
    return read_json(_input_text(text, fields), "the input")


def _input_text(text: str | None, fields: Sequence[str]) -> str:
    """Return an input as JSON text."""
    if text is not None and fields:
        raise click.UsageError("give the input either as JSON or as --input key=value, not both")
    if text is None:
        pairs = read_pairs(fields, "--input")
        return json.dumps({key: read_value(value, f"--input {key}") for key, value in pairs.items()})
    return sys.stdin.read() if text == "-" else text


def _inputs(flow: Workflow[..., Any], given: Any, text: str) -> dict[str, Any]:
    """The inputs of a workflow, which are `given` as `text`, with the defaults of those that are not given."""
    names = ", ".join(parameter.name for parameter in flow.parameters) or "none"
    if not isinstance(given, dict):
        raise click.UsageError(f"workflow {flow.name!r} takes a JSON object of its inputs: {names}")
    known = {parameter.name for parameter in flow.parameters}
    wrong = [f"unknown input {name!r}" for name in given if name not in known]
    needed = [parameter.name for parameter in flow.parameters if parameter.name not in flow._definition.defaults()]
    wrong += [f"missing input {name!r}" for name in needed if name not in given]
    if wrong:
        raise click.UsageError(f"workflow {flow.name!r}: {', '.join(wrong)}; its inputs are: {names}")
    # What has a default may be missing here, and nowhere else.
    definition = flow._definition
    codec: Codec[dict[str, Any]] = Codec(definition.codec.type, types=definition.types, total=False)
    return definition.completed(codec.decode(_encoded(text), root="input"))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# -- What `--app` names: the engine of a service, and the worker that its code may have declared ---
#
# `module:attribute` is an `Engine`, a `Worker` (so that schedules can be declared in code), a compiled graph or a workflow,
# which is run over the store that `--store` names, or a function without arguments that gives one of these.


_APP_FORM = "give an Engine, a Worker, a compiled graph, a workflow, or a function that gives one"


class Works(Protocol):
    """Anything that can be run as a worker."""

    def run(self, until_idle: bool = False) -> None:
        """Work until `stop`, or until nothing is left to do."""
        ...

    def stop(self) -> None:
        """Have `run` return; may be called from a signal handler."""
        ...


@dataclass(frozen=True, slots=True)
class App:
    """The application that was named. A worker of the user's own kind comes without an engine."""

    engine: Engine | None
    worker: Works | None = None


@contextlib.contextmanager
def loaded(
    invocation: Invocation,
    *,
    is_looking: bool = False,
    read_only: bool = False,
    takes_own: bool = False,
    needs_store: bool = True,
) -> Iterator[App]:
    """Yield the app that was named, and say from which file it is. At the end of the block its store is closed.

    A store that was named takes the place of the engine's own one. It is made if it is not there, unless `is_looking`.
    With `read_only` the store is opened to read only. A flow whose store is not there has one in memory unless it
    `needs_store`. Raises `click.UsageError` if no app was named, for what is none, and for an app that has made a store
    in a file or a database where it has to be read only, unless `takes_own`: then it is taken as it is.
    """
    named = chosen_app(invocation)
    if named is None:
        raise click.UsageError("give --app MODULE:NAME, MILEPOST_APP, or app in [tool.milepost] of pyproject.toml")
    target, root = named
    module, found, name = find_target(target, root)
    if found is None:
        raise click.UsageError(f"target {target!r}: module {module.__name__!r} has no {name!r}: {_APP_FORM}")
    print(f"milepost: app {clean(target)} is in {clean(module.__file__)}", file=sys.stderr)
    if callable(found) and not isinstance(found, (CompiledGraph, Workflow)):
        found = _called(found, target)
    open_named = open_to_look if read_only else open_existing if is_looking else open_or_make
    with contextlib.ExitStack() as stack:
        if isinstance(found, (CompiledGraph, Workflow)):
            store = open_named(invocation) if needs_store or has_store(invocation) else MemoryStore()
            yield App(Engine(stack.enter_context(store), flows=[found]))
            return
        engine = found.engine if isinstance(found, Worker) else found
        works = None if engine is found and isinstance(found, Engine) else found
        if isinstance(engine, Engine):
            stack.enter_context(engine)
            if chosen_url(invocation) is not None:
                engine._use_store(open_named(invocation))
            elif read_only and not engine._look_only() and not (takes_own or isinstance(engine.store, MemoryStore)):
                raise click.UsageError(
                    f"target {target!r} makes its store itself, to write: give the store's URL, so that it is opened to "
                    "read only"
                )
            yield App(engine, works)
        elif callable(getattr(found, "run", None)) and callable(getattr(found, "stop", None)):
            if invocation.store_url is not None:
                raise click.UsageError(f"target {target!r} has a store of its own: leave out --store")
            yield App(None, found)
        else:
            raise click.UsageError(f"target {target!r} is a {type(found).__name__}: {_APP_FORM}")


def _called(make: Any, target: str) -> Any:
    """Return the application that a function makes."""
    if inspect.isclass(make) or inspect.iscoroutinefunction(make):
        what = "a class" if inspect.isclass(make) else "a coroutine function"
        raise click.UsageError(f"target {target!r} is {what}: {_APP_FORM}")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return make()
    except MilepostError:
        raise
    except Exception as exc:
        raise click.UsageError(
            f"target {target!r} could not be called: {type(exc).__name__}: {exc}: {_APP_FORM}"
        ) from exc


@contextlib.contextmanager
def opened_engine(invocation: Invocation, *, is_looking: bool = False) -> Iterator[Engine]:
    """Yield the engine that `--app` names, else one without flows over the store that is there.

    `is_looking`: the store is opened to read only, unless the app has made it itself.
    """
    if invocation.app is None:
        with (open_to_look if is_looking else open_existing)(invocation) as store:
            yield Engine(store)
        return
    with loaded(invocation, is_looking=True, read_only=is_looking, takes_own=True) as app:
        yield engine_of(app)


def engine_of(app: App) -> Engine:
    """Return the app's engine; `click.UsageError` if it has none."""
    if app.engine is None:
        raise click.UsageError("the app has no engine: give one with --app, or the store with --store")
    return app.engine


def is_target(invocation: Invocation, name: str | None) -> bool:
    """Return whether a flow's name on the command line is that of an object in a module; else it is one of the app's."""
    return name is not None and ":" in name and invocation.app is None


@contextlib.contextmanager
def found_flow(
    invocation: Invocation,
    name: str | None,
    run_id: str | None = None,
    *,
    is_looking: bool = False,
    read_only: bool = False,
    takes_own: bool = False,
) -> Iterator[tuple[Runnable, Callable[[], Engine]]]:
    """Yield a flow, and a function that gives the engine which runs it.

    `name` is a target or, of the app that was named, a flow; None: the flow of the run `run_id`, else the app's only one.
    The store of a target is opened with the engine; it is made if it is not there, unless `is_looking`. With `read_only`
    stores are opened to read only; see `loaded`. Raises `click.UsageError` where there is no such flow.
    """
    if name is not None and (is_target(invocation, name) or chosen_app(invocation) is None):
        flow = load_target(name)
        open_named = open_to_look if read_only else open_existing if is_looking else open_or_make
        with contextlib.ExitStack() as stack:
            yield flow, lambda: Engine(stack.enter_context(open_named(invocation)), flows=[flow])
        return
    if chosen_app(invocation) is None:
        raise click.UsageError(f"name the flow, or what has it with --app: {_FORM}")
    with loaded(invocation, is_looking=is_looking, read_only=read_only, takes_own=takes_own) as app:
        engine = engine_of(app)
        known: dict[str, Any] = dict(engine.flows)
        wanted = name if run_id is None or name is not None else engine.store.get_run(run_id).info.flow
        if wanted is None and len(known) == 1:
            (wanted,) = known
        if wanted not in known:
            what = "many flows: name one of" if wanted is None else f"no flow {wanted!r}: it has"
            raise click.UsageError(f"the app has {what} {', '.join(known) or 'none'}")
        if chosen_url(invocation) is None:
            invocation.app_store = url_of_store(engine.store)
        yield known[wanted], lambda: engine


def split_input(target: str | None, text: str | None) -> tuple[str | None, str | None]:
    """Return the flow and the input of a command that may leave out the flow: what looks like JSON is the input."""
    is_input = target is not None and text is None and (target == "-" or target.lstrip().startswith(("{", "[")))
    return (None, target) if is_input else (target, text)
