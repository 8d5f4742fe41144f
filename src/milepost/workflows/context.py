"""The context of a workflow: the code's view of its own run. It lives as long as the workflow's code."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.executor.context import Context, RunScope, current_context
from milepost.model.results import SkipMarker, StepResult

if TYPE_CHECKING:
    import typing_extensions

    DepsT = typing_extensions.TypeVar("DepsT", default=Any)
else:
    DepsT = TypeVar("DepsT")


class WorkflowContext(Context[DepsT]):
    """The first parameter of a workflow, if it is annotated so, and an argument of predicates, handlers and rollbacks.

    `now()`, `random()` and `uuid4()` give the same values again when the code runs again on a resume. Each predicate,
    handler and rollback draws numbers of its own, because a replay calls some of them again and others not.
    """

    __slots__ = ("_config", "_draws_for", "_inputs", "_is_replaying", "_results", "_version")

    def __init__(
        self,
        scope: RunScope,
        workflow_id: str,
        followed_at: str,
        *,
        inputs: Mapping[str, Any],
        results: Mapping[str, StepResult],
        config: Any = None,
        version: int = 1,
        is_replaying: bool = False,
    ) -> None:
        super().__init__(scope, workflow_id, 1, 1, followed_at)
        self._inputs = inputs
        self._results = results
        self._config = {} if config is None else config
        self._version = version
        self._is_replaying = is_replaying
        self._draws_for = ""
        """The predicate, handler or rollback that this view is for; "" for the code itself."""

    def view_for(self, role: str, step_id: str) -> WorkflowContext[DepsT]:
        """Return a view for a predicate, handler or rollback of a step, with random numbers of its own."""
        view: WorkflowContext[DepsT] = WorkflowContext(
            self._scope,
            self._node_id,
            self._followed_at,
            inputs=self._inputs,
            results=self._results,
            config=self._config,
            version=self._version,
            is_replaying=self._is_replaying,
        )
        view._source, view._tags, view._draws_for = self._source, self._tags, f"{role} of {step_id}"
        return view

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The workflow's inputs by name; read-only."""
        return MappingProxyType(dict(self._inputs))

    @property
    def results(self) -> Mapping[str, StepResult]:
        """The results so far by step name; read-only. `get` gives None for a step that has none."""
        return MappingProxyType(dict(self._results))

    @property
    def config(self) -> Any:
        """The config of the `WorkflowEngine`, empty if it has none."""
        return self._config

    @property
    def version(self) -> int:
        """The workflow's version with which the run began."""
        return self._version

    @property
    def is_replaying(self) -> bool:
        """True while recorded steps are being answered: this code has run before."""
        return self._is_replaying

    def get_step_output(self, name: str, default: Any = None) -> Any:
        """Return the output of a step that has ended, or `default`."""
        result = self._results.get(name)
        return default if result is None else result.output

    def is_step_skipped(self, name: str) -> bool:
        """Return whether that step has ended by being skipped."""
        result = self._results.get(name)
        return result is not None and isinstance(result.output, SkipMarker)

    def _numbers(self) -> Any:
        # A step's function, a predicate or a handler may have the context of the code around it. A replay calls it again or
        # not, so it draws from the context of its own call.
        caller = current_context.get(None)
        if self._draws_for or caller is None or caller is self or caller._scope is not self._scope:
            return super()._numbers()
        return caller._numbers()

    def _seed(self) -> str:
        return f"{super()._seed()}{self._draws_for}"

    @property
    def logger(self) -> logging.LoggerAdapter[Any]:
        """A logger whose records carry run_id, node_id and attempt; silent while recorded steps are answered."""
        return _QuietLogger(super().logger, self)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report progress to listeners. The report is live: it is not recorded, and a replay does not repeat it."""
        if not self._is_replaying:
            super().progress(done, total, message)

    def emit(self, name: str, data: Any = None) -> None:
        """Emit an event of your own to listeners. It is live: it is not recorded, and a replay does not repeat it."""
        if not self._is_replaying:
            super().emit(name, data)

    def tag(self, key: str, value: str) -> None:
        """Add a tag to the run; it is written with the run's next record."""
        if not self._is_replaying:
            super().tag(key, value)


class _QuietLogger(logging.LoggerAdapter[Any]):
    """A logger that is silent while its context replays, even if the workflow keeps it in a variable."""

    def __init__(self, inner: logging.LoggerAdapter[Any], context: WorkflowContext[Any]) -> None:
        super().__init__(inner, {})
        self._context = context

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the standard library's name
        return not self._context._is_replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return msg, kwargs
