"""Values about runs as stores know them: their rows, waits, failures and checkpoints.

This module is imported only where one of these values is made or read, because most runs need none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """An answer that a run refused: the reason, the time of the refusal, and who sent the answer if that is known."""

    text: str
    time: datetime
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a run waits for. `signal` is None for a timer; `wake_at` is None if the wait has no end.

    `schema` is a JSON Schema (2020-12) of the payload, as far as it follows from the declared type; None if nothing
    follows, or more than 16 KB. `since` is the time at which the wait began, `refused` the newest answer that the run
    refused.
    """

    wait_id: str
    signal: str | None
    prompt: Any = None
    wake_at: datetime | None = None
    schema: Any = field(default=None, compare=False, repr=False)
    since: datetime | None = field(default=None, compare=False)
    refused: RefusedAnswer | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint without its state. `size` is the size of the uncompressed state in bytes."""

    run_id: str
    node_id: str
    sequence: int
    timestamp: datetime
    size: int
    visit: int = 1
    attempt: int = 1
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The error that a run failed with, from its record: the error's type, message and traceback, and the node or step.

    `node_id` is "" if no node failed, but the code of a workflow between its steps, say. The traceback begins with the
    user's own code.
    """

    error_type: str
    message: str
    node_id: str
    traceback: str


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as its store knows it. `status` is `dead` for a running one whose lease has ended."""

    run_id: str
    flow: str
    status: str
    reason: str
    """The reason why the run does not move, in one sentence; "" if there is none."""
    degraded: bool
    missed: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    sequence: int
    """The number of the newest record."""
    next_node: str | None
    """The whole id of the node that the newest checkpoint leads to. After the last node inside something, this is the
    id of what is around it. While a fork is open, this is its join or the next node of one of its branches.
    `waiting_for` has what a run waits for."""
    size: int
    """The size of the newest checkpoint's state, in bytes."""
    owner: str
    lease_until: datetime | None
    wake_at: datetime | None
    waiting_for: tuple[Wait, ...]
    crash_count: int
    tags: Mapping[str, str]
    error: RunFailure | None = None
    """The error of a run that failed, or that a bug holds. In a listing its message is only the first line, and it has no
    traceback."""
    blocked_by: str | None = None
    """Why a blocked run is blocked: "crashes", "damage", "bug" (of a workflow's own code), "input" (one that does not fit
    the flow) or "value" (one that can't be encoded); None for every other run. `resume` goes on with the last three once
    the cause is mended, and with the first where `reopen=True` is given."""
    fingerprint: str | None = None
    """The fingerprint of the flow with which a run began that has an `error`; None in a listing."""

    @property
    def error_type(self) -> str | None:
        """The type of the error; None if there is none."""
        return None if self.error is None else self.error.error_type

    @property
    def error_node(self) -> str | None:
        """The node or step that failed, "" if none did; None if there is no error."""
        return None if self.error is None else self.error.node_id


class RunPage(list[RunInfo]):
    """A page of runs.

    `stopped_after` is set if filters that no index serves had passed over as many runs as one call looks at: it is the run
    with which the search stopped, and `after=` goes on from there. None: the page has all that match, or as many as asked for.
    """

    stopped_after: str | None = None
