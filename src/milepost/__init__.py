"""Durable workflows in plain Python: a process may die at any moment and loses nothing.

Every step leaves a milepost; after a crash the run goes on from the last one.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from milepost.errors import (
    AsyncNodeError,
    BranchError,
    CheckpointCorruptError,
    CheckpointIntegrityError,
    CheckpointMigrationError,
    CheckpointNotFoundError,
    CheckpointVersionError,
    CheckpointWriteError,
    DeserializeStateError,
    DuplicateStepNameError,
    FlowChangedError,
    GraphError,
    GraphProblem,
    InputMismatchError,
    InvalidIDError,
    InvalidResumeNodeError,
    LeaseLost,
    MaxIterationsError,
    MergeConflictError,
    MilepostError,
    MissingExtraError,
    NoBranchMatchedError,
    NoCheckpointFoundError,
    NodeError,
    NodeTimeoutError,
    NonDeterminismError,
    NotAuthorizedError,
    OptionError,
    PredicateTypeError,
    ResultNotReadyError,
    ResumeNodeCompletedError,
    RouterError,
    RunCancelled,
    RunExistsError,
    RunIDRequiredError,
    RunLockedError,
    RunNotFoundError,
    RunNotResumableError,
    RunStopped,
    RunSuspended,
    RunTimeoutError,
    SerializeStateError,
    SignalRefusedError,
    StateTooLargeError,
    StateTypeError,
    StateValidationError,
    StepError,
    StoreClosedError,
    StoreError,
    StoreVersionError,
    WorkflowError,
    WrongFlowError,
)

if TYPE_CHECKING:
    from milepost import codec, reducers
    from milepost.adapters.checkpoint_view import FileCheckpointStore, MemoryCheckpointStore
    from milepost.engine.engine import Bound, Engine
    from milepost.engine.handle import RunHandle
    from milepost.engine.workflow_engine import WorkflowEngine
    from milepost.executor.context import Context, current
    from milepost.executor.flow import END, START
    from milepost.graph.builder import CompiledGraph, Graph
    from milepost.model.checkpoint import CHECKPOINT_VERSION, Checkpoint
    from milepost.model.checkpoint_data import CheckpointData
    from milepost.model.events import (
        AttemptFailed,
        CheckpointFailed,
        CheckpointSaved,
        Emitted,
        Event,
        NodeCompleted,
        NodeOverdue,
        NodeStarted,
        Progress,
        RollbackCompleted,
        RunCompleted,
        RunStarted,
        RunWaiting,
        StepCompleted,
        StepStarted,
        WorkflowCompleted,
        WorkflowStarted,
    )
    from milepost.model.info import CheckpointInfo, Pruned, Retention, RunInfo, Stats, VerifyReport, Wait
    from milepost.model.reports import ResumeInfo, ResumePlan, RunResult
    from milepost.model.results import (
        BranchResult,
        ParallelResult,
        Reply,
        RollbackError,
        SkipMarker,
        StepResult,
        StepType,
        SubWorkflowInvocationResult,
        WorkflowResult,
    )
    from milepost.model.retry import Retry
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
    "CHECKPOINT_VERSION",
    "END",
    "START",
    "AsyncNodeError",
    "AttemptFailed",
    "Bound",
    "BranchError",
    "BranchResult",
    "Checkpoint",
    "CheckpointCorruptError",
    "CheckpointData",
    "CheckpointFailed",
    "CheckpointInfo",
    "CheckpointIntegrityError",
    "CheckpointMigrationError",
    "CheckpointNotFoundError",
    "CheckpointSaved",
    "CheckpointVersionError",
    "CheckpointWriteError",
    "CompiledGraph",
    "Context",
    "DeserializeStateError",
    "DuplicateStepNameError",
    "Emitted",
    "Engine",
    "Event",
    "FileCheckpointStore",
    "FileStore",
    "FlowChangedError",
    "Graph",
    "GraphError",
    "GraphProblem",
    "InputMismatchError",
    "InvalidIDError",
    "InvalidResumeNodeError",
    "LeaseLost",
    "MaxIterationsError",
    "MemoryCheckpointStore",
    "MemoryStore",
    "MergeConflictError",
    "MilepostError",
    "MissingExtraError",
    "NoBranchMatchedError",
    "NoCheckpointFoundError",
    "NodeCompleted",
    "NodeError",
    "NodeOverdue",
    "NodeStarted",
    "NodeTimeoutError",
    "NonDeterminismError",
    "NotAuthorizedError",
    "OptionError",
    "ParallelResult",
    "PostgresStore",
    "PredicateTypeError",
    "Progress",
    "Pruned",
    "Reply",
    "ResultNotReadyError",
    "ResumeInfo",
    "ResumeNodeCompletedError",
    "ResumePlan",
    "Retention",
    "Retry",
    "RollbackCompleted",
    "RollbackError",
    "RouterError",
    "RunCancelled",
    "RunCompleted",
    "RunExistsError",
    "RunHandle",
    "RunIDRequiredError",
    "RunInfo",
    "RunLockedError",
    "RunNotFoundError",
    "RunNotResumableError",
    "RunOptions",
    "RunResult",
    "RunStarted",
    "RunStopped",
    "RunSuspended",
    "RunTimeoutError",
    "RunWaiting",
    "SQLiteStore",
    "SerializeStateError",
    "SignalRefusedError",
    "SkipMarker",
    "StateTooLargeError",
    "StateTypeError",
    "StateValidationError",
    "Stats",
    "Step",
    "StepCompleted",
    "StepError",
    "StepResult",
    "StepStarted",
    "StepType",
    "Steps",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreVersionError",
    "SubWorkflowInvocationResult",
    "VerifyReport",
    "Wait",
    "Workflow",
    "WorkflowCompleted",
    "WorkflowContext",
    "WorkflowEngine",
    "WorkflowError",
    "WorkflowResult",
    "WorkflowStarted",
    "WrongFlowError",
    "branch",
    "codec",
    "current",
    "open_store",
    "parallel",
    "reducers",
    "step",
    "workflow",
]

# Where each name is from. A program loads what it asks for, when it asks, and what that needs: nothing else.
_MODULES = {"codec": "codec", "events": "model.events", "reducers": "reducers"}
_HOMES = {
    "model.checkpoint": "CHECKPOINT_VERSION Checkpoint",
    "model.checkpoint_data": "CheckpointData",
    "executor.context": "Context current",
    "engine.engine": "Bound Engine",
    "model.events": (
        "AttemptFailed CheckpointFailed CheckpointSaved Emitted Event NodeCompleted NodeOverdue NodeStarted Progress "
        "RollbackCompleted RunCompleted RunStarted RunWaiting StepCompleted StepStarted WorkflowCompleted WorkflowStarted"
    ),
    "executor.flow": "END START",
    "graph.builder": "CompiledGraph Graph",
    "engine.handle": "RunHandle",
    "model.info": "CheckpointInfo Pruned Retention RunInfo Stats VerifyReport Wait",
    "options": "RunOptions",
    "model.reports": "ResumeInfo ResumePlan RunResult",
    "model.results": (
        "BranchResult ParallelResult Reply RollbackError SkipMarker StepResult StepType SubWorkflowInvocationResult "
        "WorkflowResult"
    ),
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
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


_names = __all__
if not TYPE_CHECKING:
    # Asked for as any other name: it depends on what is installed, and to look takes time.
    del __all__


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"milepost.{_MODULES[name]}")
    if name == "__all__":
        value = [name for name in _names if name != "PostgresStore" or hasattr(sys.modules[__name__], name)]
    elif name in _HOME_OF:
        try:
            value = getattr(import_module(f"milepost.{_HOME_OF[name]}"), name)
        except MissingExtraError as exc:
            raise exc.as_attribute() from exc
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_names})
