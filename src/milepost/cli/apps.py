"""What `--app` names: the engine of a service, and the worker that its code may have declared.

`module:attribute` is an `Engine`, a `Worker` (so that schedules can be declared in code), a compiled graph or a workflow,
which is run over the store that `--store` names, or a function without arguments that gives one of these.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import click

from milepost.cli.places import Invocation, open_existing, open_or_make
from milepost.cli.targets import find_target
from milepost.engine.engine import Engine
from milepost.engine.worker import Worker
from milepost.errors import MilepostError
from milepost.graph.builder import CompiledGraph
from milepost.store import Store
from milepost.workflows.definition import Workflow

__all__ = ["App", "Works", "app_option", "loaded", "opened_engine", "opened_store"]

_FORM = "give an Engine, a Worker, a compiled graph, a workflow, or a function that gives one"


class Works(Protocol):
    """What can be run as a worker."""

    def run(self, until_idle: bool = False) -> None:
        """Work until `stop`, or until nothing is left to do."""
        ...

    def stop(self) -> None:
        """Have `run` return; may be called from a signal handler."""
        ...


@dataclass(frozen=True, slots=True)
class App:
    """What was named. A worker of the user's own kind comes without an engine."""

    engine: Engine | None
    worker: Works | None = None


def app_option(required: bool = False) -> Any:
    """The option `--app` of a command."""
    told = "An Engine or a Worker, such as shop:engine" + ("." if required else "; its store is used.")
    return click.option("--app", metavar="MODULE:NAME", required=required, help=told)


@contextlib.contextmanager
def loaded(invocation: Invocation, target: str, *, is_looking: bool = False) -> Iterator[App]:
    """What `target` names, for as long as the block lasts; a store that it opened from a URL is closed then.

    The store beside a flow is made if it is not there, unless `is_looking`. Raises `click.UsageError` for what is none,
    and for `--store` beside an engine, which has a store.
    """
    module, found, name = find_target(target)
    if found is None:
        raise click.UsageError(f"target {target!r}: module {module.__name__!r} has no {name!r}: {_FORM}")
    if callable(found) and not isinstance(found, (CompiledGraph, Workflow)):
        found = _called(found, target)
    with contextlib.ExitStack() as stack:
        if isinstance(found, (CompiledGraph, Workflow)):
            store = open_existing(invocation) if is_looking else open_or_make(invocation)
            yield App(Engine(stack.enter_context(store), flows=[found]))
            return
        if invocation.store_url is not None:
            raise click.UsageError(f"target {target!r} has a store of its own: leave out --store")
        if isinstance(found, Engine):
            yield App(stack.enter_context(found))
        elif isinstance(found, Worker):
            owner = found.engine
            yield App(stack.enter_context(owner) if isinstance(owner, Engine) else None, found)
        elif callable(getattr(found, "run", None)) and callable(getattr(found, "stop", None)):
            yield App(None, found)
        else:
            raise click.UsageError(f"target {target!r} is a {type(found).__name__}: {_FORM}")


def _called(make: Any, target: str) -> Any:
    """What a function gives that makes an app."""
    if inspect.isclass(make) or inspect.iscoroutinefunction(make):
        what = "a class" if inspect.isclass(make) else "a coroutine function"
        raise click.UsageError(f"target {target!r} is {what}: {_FORM}")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return make()
    except MilepostError:
        raise
    except Exception as exc:
        raise click.UsageError(f"target {target!r} could not be called: {type(exc).__name__}: {exc}: {_FORM}") from exc


@contextlib.contextmanager
def opened_engine(invocation: Invocation, target: str | None) -> Iterator[Engine]:
    """The engine that `--app` names, else one without flows over the store to look into."""
    if target is None:
        with open_existing(invocation) as store:
            yield Engine(store)
        return
    with loaded(invocation, target, is_looking=True) as app:
        if app.engine is None:
            raise click.UsageError(f"target {target!r} has no engine: give one with --app, or the store with --store")
        yield app.engine


@contextlib.contextmanager
def opened_store(invocation: Invocation, target: str | None) -> Iterator[Store]:
    """The store of the engine that `--app` names, else the one to look into."""
    with opened_engine(invocation, target) as engine:
        yield engine.store
