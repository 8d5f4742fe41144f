"""Durable workflows in plain Python: a process may die at any moment and loses nothing.

Every step leaves a milepost; after a crash the run goes on from the last one.
"""

from typing import TYPE_CHECKING, Any

from milepost import codec, reducers
from milepost.checkpoint import CHECKPOINT_VERSION, Checkpoint
from milepost.checkpoint_data import CheckpointData
from milepost.context import Context, current
from milepost.engine import Bound, Engine
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
    ResumeInfo,
    ResumePlan,
    RollbackCompleted,
    RunCompleted,
    RunResult,
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
from milepost.options import RunOptions
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
from milepost.store import CheckpointInfo, Pruned, Retention, RunInfo, Stats, Store, VerifyReport, Wait
from milepost.stores.memory import MemoryStore
from milepost.stores.opening import open_store
from milepost.stores.sqlite import SQLiteStore
from milepost.workflow import Workflow, workflow
from milepost.workflow_context import WorkflowContext
from milepost.workflow_engine import WorkflowEngine

if TYPE_CHECKING:
    from milepost.stores.file import FileStore
    from milepost.stores.postgres import PostgresStore
    from milepost.stores.views import FileCheckpointStore, MemoryCheckpointStore

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


def __getattr__(name: str) -> Any:
    # A store that not every program uses is imported when it is first asked for.
    if name == "FileStore":
        from milepost.stores.file import FileStore

        return FileStore
    if name == "PostgresStore":
        from milepost.stores.postgres import PostgresStore

        return PostgresStore
    if name in {"FileCheckpointStore", "MemoryCheckpointStore"}:
        from milepost.stores import views

        return getattr(views, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
