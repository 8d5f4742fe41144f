"""The events of a run, for hooks, streams and handles. `Event` says what all of them have in common."""

from __future__ import annotations

from milepost.model.events import (
    AttemptFailed,
    CheckpointFailed,
    CheckpointSaved,
    Emitted,
    Event,
    EventsMissed,
    NodeCompleted,
    NodeOverdue,
    NodeStarted,
    Progress,
    RollbackCompleted,
    RunBlocked,
    RunCompleted,
    RunStarted,
    RunWaiting,
    StepCompleted,
    StepStarted,
    UnrecordedEvent,
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
