"""Exit codes, and which error means which. Nothing else decides them."""

from __future__ import annotations

import click

from milepost.errors import (
    AsyncNodeError,
    CheckpointNotFoundError,
    GraphError,
    InvalidIDError,
    InvalidResumeNodeError,
    LeaseLost,
    MissingExtraError,
    OptionError,
    RunLockedError,
    RunSuspended,
    StoreError,
)

__all__ = [
    "EXIT_CODES",
    "FAILED",
    "INTERRUPTED",
    "LOCKED",
    "NOT_FOUND",
    "OK",
    "TERMINATED",
    "USAGE",
    "WAITING",
    "NotFound",
    "code_of",
]

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
WAITING = 4
LOCKED = 5
INTERRUPTED = 130
TERMINATED = 143

EXIT_CODES = {
    OK: "done",
    FAILED: "failed: the run did, or what was asked could not be done",
    USAGE: "usage: a wrong option, target, id, input or store",
    NOT_FOUND: "not found: no such run, node, visit or store",
    WAITING: "waiting: the run waits for a signal or a time",
    LOCKED: "locked: another owner executes the run",
    INTERRUPTED: "interrupted by Ctrl-C; the run can be resumed",
    TERMINATED: "a worker that got SIGTERM twice; what ran is taken up by the next one",
}

_MEANINGS: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((CheckpointNotFoundError,), NOT_FOUND),
    ((RunSuspended,), WAITING),
    ((RunLockedError, LeaseLost), LOCKED),
    ((AsyncNodeError, GraphError, InvalidIDError, InvalidResumeNodeError, MissingExtraError, OptionError), USAGE),
)


class NotFound(click.ClickException):
    """What was named is not there."""

    exit_code = NOT_FOUND


def code_of(error: BaseException) -> int:
    """The exit code of a command that ended with `error`."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        # A node that exits has not brought its run to the end, and its code could be taken for one of these here.
        return FAILED
    for kinds, code in _MEANINGS:
        if isinstance(error, kinds):
            return code
    if isinstance(error, StoreError) and error.op == "open":
        return USAGE
    return FAILED
