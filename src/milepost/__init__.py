"""Durable workflows in plain Python: a process may die at any moment and loses nothing.

Every step leaves a milepost; after a crash the run goes on from the last one.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from milepost.errors import (
    BranchError,
    CheckpointNotFoundError,
    FlowChangedError,
    GraphError,
    InputMismatchError,
    LeaseLost,
    MilepostError,
    MissingExtraError,
    NoCheckpointFoundError,
    NodeError,
    RunCancelled,
    RunExistsError,
    RunLockedError,
    RunNotFoundError,
    RunNotResumableError,
    RunSuspended,
    SerializeStateError,
    StepError,
    StoreError,
    WorkflowError,
)

if TYPE_CHECKING:
    from milepost import codec as codec
    from milepost import errors as errors
    from milepost import events as events
    from milepost import reducers as reducers
    from milepost.adapters.checkpoint_view import FileCheckpointStore, MemoryCheckpointStore
    from milepost.engine.engine import Bound, Engine
    from milepost.engine.handle import RunHandle
    from milepost.engine.worker import Worker
    from milepost.engine.workflow_engine import WorkflowEngine
    from milepost.executor.context import Context, current
    from milepost.executor.flow import END, START
    from milepost.graph.builder import CompiledGraph, Graph
    from milepost.model.checkpoint import Checkpoint
    from milepost.model.checkpoint_data import CheckpointData
    from milepost.model.events import Event
    from milepost.model.info import CheckpointInfo, RunInfo, Wait
    from milepost.model.reports import ResumePlan, RunResult
    from milepost.model.results import BranchResult, ParallelResult, Reply, SkipMarker, StepResult, WorkflowResult
    from milepost.model.retry import Retry
    from milepost.model.upkeep import Retention
    from milepost.options import RunOptions
    from milepost.store import Store
    from milepost.stores.file.store import FileStore
    from milepost.stores.memory import MemoryStore
    from milepost.stores.postgres.store import PostgresStore
    from milepost.stores.sqlite.store import SQLiteStore
    from milepost.stores.url import open_store
    from milepost.workflows.context import WorkflowContext
    from milepost.workflows.definition import Workflow, workflow
    from milepost.workflows.steps import Step, Steps, branch, parallel, step

__version__ = "0.1.0"

__all__ = [
    "END",
    "START",
    "Bound",
    "BranchError",
    "BranchResult",
    "Checkpoint",
    "CheckpointData",
    "CheckpointInfo",
    "CheckpointNotFoundError",
    "CompiledGraph",
    "Context",
    "Engine",
    "Event",
    "FileCheckpointStore",
    "FileStore",
    "FlowChangedError",
    "Graph",
    "GraphError",
    "InputMismatchError",
    "LeaseLost",
    "MemoryCheckpointStore",
    "MemoryStore",
    "MilepostError",
    "NoCheckpointFoundError",
    "NodeError",
    "ParallelResult",
    "PostgresStore",
    "Reply",
    "ResumePlan",
    "Retention",
    "Retry",
    "RunCancelled",
    "RunExistsError",
    "RunHandle",
    "RunInfo",
    "RunLockedError",
    "RunNotFoundError",
    "RunNotResumableError",
    "RunOptions",
    "RunResult",
    "RunSuspended",
    "SQLiteStore",
    "SerializeStateError",
    "SkipMarker",
    "Step",
    "StepError",
    "StepResult",
    "Steps",
    "Store",
    "StoreError",
    "Wait",
    "Worker",
    "Workflow",
    "WorkflowContext",
    "WorkflowEngine",
    "WorkflowError",
    "WorkflowResult",
    "branch",
    "current",
    "open_store",
    "parallel",
    "step",
    "workflow",
]

# Where each name is from. A program loads what it asks for, when it asks, and what that needs: nothing else.
_HOMES = {
    "model.checkpoint": "Checkpoint",
    "model.checkpoint_data": "CheckpointData",
    "executor.context": "Context current",
    "engine.engine": "Bound Engine",
    "model.events": "Event",
    "executor.flow": "END START",
    "graph.builder": "CompiledGraph Graph",
    "engine.handle": "RunHandle",
    "engine.worker": "Worker",
    "model.info": "CheckpointInfo RunInfo Wait",
    "model.upkeep": "Retention",
    "options": "RunOptions",
    "model.reports": "ResumePlan RunResult",
    "model.results": "BranchResult ParallelResult Reply SkipMarker StepResult WorkflowResult",
    "model.retry": "Retry",
    "workflows.steps": "Step Steps branch parallel step",
    "store": "Store",
    "stores.memory": "MemoryStore",
    "stores.url": "open_store",
    "stores.sqlite.store": "SQLiteStore",
    "workflows.definition": "Workflow workflow",
    "workflows.context": "WorkflowContext",
    "engine.workflow_engine": "WorkflowEngine",
    "stores.file.store": "FileStore",
    "stores.postgres.store": "PostgresStore",
    "adapters.checkpoint_view": "FileCheckpointStore MemoryCheckpointStore",
}
# Public names that few programs need: the package does not have them, and says where they are.
_ELSEWHERE = {
    "model.checkpoint": "CHECKPOINT_VERSION",
    "model.upkeep": "Pruned Stats VerifyReport",
    "model.results": "RollbackError StepType SubWorkflowInvocationResult",
}
_MODULES = frozenset({"codec", "errors", "events", "reducers", "testing"})
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


_names = __all__
if not TYPE_CHECKING:
    # Asked for as any other name: it depends on what is installed, and to look takes time.
    del __all__


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"milepost.{name}")
    if name == "__all__":
        value = [name for name in _names if name != "PostgresStore" or hasattr(sys.modules[__name__], name)]
    elif name in _HOME_OF:
        try:
            value = getattr(import_module(f"milepost.{_HOME_OF[name]}"), name)
        except MissingExtraError as exc:
            raise exc.as_attribute() from exc
    else:
        raise _missing(name, is_import=sys._getframe(1).f_code.co_name == "_handle_fromlist")
    globals()[name] = value
    return value


def _missing(name: str, *, is_import: bool) -> Exception:
    """Return the error for a name that the package does not have. It says where a public name is.

    Tools that inspect a module expect an AttributeError, whose text `from milepost import name` does not show.
    """
    text = f"module {__name__!r} has no attribute {name!r}"
    place = _place_of(name) if name[:1].isupper() else None
    if place is None:
        return AttributeError(text)
    text = f"{text}: from milepost.{place} import {name}"
    return ImportError(text, name=__name__) if is_import else AttributeError(text)


def _place_of(name: str) -> str | None:
    for module in ("errors", "events"):
        if name in import_module(f"milepost.{module}").__all__:
            return module
    return next((module for module, names in _ELSEWHERE.items() if name in names.split()), None)


def __dir__() -> list[str]:
    return sorted({*globals(), *_names})
