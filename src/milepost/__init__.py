"""Durable workflows in plain Python: a process may die at any moment and loses nothing.

Every step leaves a milepost; after a crash the run goes on from the last one.
"""

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
    from milepost.checkpoint import CHECKPOINT_VERSION, Checkpoint
    from milepost.checkpoint_data import CheckpointData
    from milepost.context import Context, current
    from milepost.engine import Bound, Engine
    from milepost.events import (
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
    from milepost.flow import END, START
    from milepost.graph import CompiledGraph, Graph
    from milepost.handles import RunHandle
    from milepost.inventory import CheckpointInfo, Pruned, Retention, RunInfo, Stats, VerifyReport, Wait
    from milepost.options import RunOptions
    from milepost.reports import ResumeInfo, ResumePlan, RunResult
    from milepost.results import (
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
    from milepost.retry import Retry
    from milepost.steps import Step, Steps, branch, parallel, step
    from milepost.store import Store
    from milepost.stores.file import FileStore
    from milepost.stores.memory import MemoryStore
    from milepost.stores.opening import open_store
    from milepost.stores.postgres import PostgresStore
    from milepost.stores.sqlite import SQLiteStore
    from milepost.stores.views import FileCheckpointStore, MemoryCheckpointStore
    from milepost.workflow_context import WorkflowContext
    from milepost.workflow_engine import WorkflowEngine
    from milepost.workflows import Workflow, workflow

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
_HOMES = {
    "codec": "",
    "reducers": "",
    "checkpoint": "CHECKPOINT_VERSION Checkpoint",
    "checkpoint_data": "CheckpointData",
    "context": "Context current",
    "engine": "Bound Engine",
    "events": (
        "AttemptFailed CheckpointFailed CheckpointSaved Emitted Event NodeCompleted NodeOverdue NodeStarted Progress "
        "RollbackCompleted RunCompleted RunStarted RunWaiting StepCompleted StepStarted WorkflowCompleted WorkflowStarted"
    ),
    "flow": "END START",
    "graph": "CompiledGraph Graph",
    "handles": "RunHandle",
    "inventory": "CheckpointInfo Pruned Retention RunInfo Stats VerifyReport Wait",
    "options": "RunOptions",
    "reports": "ResumeInfo ResumePlan RunResult",
    "results": (
        "BranchResult ParallelResult Reply RollbackError SkipMarker StepResult StepType SubWorkflowInvocationResult "
        "WorkflowResult"
    ),
    "retry": "Retry",
    "steps": "Step Steps branch parallel step",
    "store": "Store",
    "stores.memory": "MemoryStore",
    "stores.opening": "open_store",
    "stores.sqlite": "SQLiteStore",
    "workflows": "Workflow workflow",
    "workflow_context": "WorkflowContext",
    "workflow_engine": "WorkflowEngine",
    "stores.file": "FileStore",
    "stores.postgres": "PostgresStore",
    "stores.views": "FileCheckpointStore MemoryCheckpointStore",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return import_module(f"milepost.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"milepost.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
