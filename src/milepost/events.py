"""The events of a run, for hooks, streams and handles. `Event` says what all of them have in common."""

from __future__ import annotations

from milepost.model.events import (
    AttemptFailed,
    CheckpointFailed,
    Emitted,
    Event,
    NodeOverdue,
    Progress,
    UnrecordedEvent,
)
from milepost.model.lifecycle import (
    CheckpointSaved,
    EventsMissed,
    NodeCompleted,
    NodeStarted,
    RollbackCompleted,
    RunBlocked,
    RunCompleted,
    RunStarted,
    RunWaiting,
    StepCompleted,
    StepStarted,
    WorkflowCompleted,
    WorkflowStarted,
)
from milepost.model.reports import ResumeInfo

__all__ = [
    "AttemptFailed",
    "CheckpointFailed",
    "CheckpointSaved",
    "Emitted",
    "Event",
    "EventsMissed",
    "NodeCompleted",
    "NodeOverdue",
    "NodeStarted",
    "Progress",
    "ResumeInfo",
    "RollbackCompleted",
    "RunBlocked",
    "RunCompleted",
    "RunStarted",
    "RunWaiting",
    "StepCompleted",
    "StepStarted",
    "UnrecordedEvent",
    "WorkflowCompleted",
    "WorkflowStarted",
]
