"""Every exception of the library.

All derive from `MilepostError`. A message says what happened, to which thing, and what to do next; the
same facts are attributes, so that nobody has to parse text. Errors of a run carry `run_id`, `node_id`
where one is known, and `state`, the last good state.

User code must not swallow `LeaseLost`, `RunSuspended` and `RunCancelled`. Each is thrown into it as a
`MilepostInterrupt`, which is a `BaseException`; the verb raises its `error` to the caller.
"""

from __future__ import annotations

import os.path
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = [
    "AsyncNodeError",
    "BranchError",
    "CheckpointCorruptError",
    "CheckpointIntegrityError",
    "CheckpointMigrationError",
    "CheckpointNotFoundError",
    "CheckpointVersionError",
    "CheckpointWriteError",
    "DeserializeStateError",
    "DuplicateStepNameError",
    "FlowChangedError",
    "GraphError",
    "GraphProblem",
    "InputMismatchError",
    "InvalidIDError",
    "InvalidResumeNodeError",
    "LeaseLost",
    "MaxIterationsError",
    "MergeConflictError",
    "MilepostError",
    "MissingExtraError",
    "NoBranchMatchedError",
    "NoCheckpointFoundError",
    "NodeError",
    "NodeTimeoutError",
    "NonDeterminismError",
    "NotAuthorizedError",
    "OptionError",
    "PredicateTypeError",
    "ResultNotReadyError",
    "ResumeNodeCompletedError",
    "RouterError",
    "RunCancelled",
    "RunExistsError",
    "RunIDRequiredError",
    "RunLockedError",
    "RunNotFoundError",
    "RunNotResumableError",
    "RunStopped",
    "RunSuspended",
    "RunTimeoutError",
    "SerializeStateError",
    "SignalRefusedError",
    "StateTooLargeError",
    "StateTypeError",
    "StateValidationError",
    "StatementError",
    "StepError",
    "StoreClosedError",
    "StoreError",
    "StoreVersionError",
    "WorkflowError",
    "WorkflowHeldError",
    "WrongFlowError",
]


class MilepostError(Exception):
    """The root of all errors of this library.

    `run_id`, `node_id` and `state` are None where they are not known. Keyword arguments of every
    subclass become attributes of the same name.
    """

    run_id: str | None = None
    node_id: str | None = None
    state: Any = None

    def __init__(self, message: str = "", **data: Any) -> None:
        super().__init__(message)
        for name, value in data.items():
            setattr(self, name, value)

    @property
    def workflow_id(self) -> str | None:
        """The run id under the name that step workflows use."""
        return self.run_id

    @property
    def checkpoint_id(self) -> str | None:
        """The node id under the name that step workflows use."""
        return self.node_id

    def name_run(self, run_id: str) -> None:
        """Put the run's id, and the node's where it is known, before the message, unless the message has them.

        Errors about the call itself keep their message, and so does a `WorkflowError`, whose text is the workflow's
        own.
        """
        if self.run_id is None:
            self.run_id = run_id
        text = self.args[0] if self.args else ""
        if isinstance(self, _OF_THE_CALL) or not isinstance(text, str) or repr(self.run_id) in text:
            return
        node = shown(self.node_id)
        at = "" if self.node_id is None or node in text else f" at node {node}"
        self.args = (f"run {self.run_id!r}{at}: {text}", *self.args[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        # An error may cross a process pool; rebuild it without calling a subclass's own signature.
        return (_rebuild, (type(self), self.args), self.__dict__)


@contextmanager
def naming(run_id: str) -> Iterator[None]:
    """Add the run's id to every error of the library that leaves the block, a store's errors included."""
    try:
        yield
    except MilepostError as exc:
        exc.name_run(run_id)
        raise


def _rebuild(cls: type[MilepostError], args: tuple[Any, ...]) -> MilepostError:
    error = cls.__new__(cls, *args)
    error.args = args
    return error


# -- mistakes in the code that calls us ------------------------------------------------------------


class GraphProblem(tuple[str, str, str]):
    """One problem of a graph: `code` (stable, for programs), `where` (a node id or ""), `text`."""

    __slots__ = ()

    def __new__(cls, code: str, where: str, text: str) -> GraphProblem:
        return super().__new__(cls, (code, where, text))

    def __getnewargs__(self) -> tuple[str, str, str]:
        return self[0], self[1], self[2]

    @property
    def code(self) -> str:
        """The stable name of this kind of problem, such as `entry_not_set`."""
        return self[0]

    @property
    def where(self) -> str:
        """The node or edge that is wrong, or "" for the graph as a whole."""
        return self[1]

    @property
    def text(self) -> str:
        """A sentence that says what is wrong and what to do."""
        return self[2]

    def __str__(self) -> str:
        return self[2]


class GraphError(MilepostError, ValueError):
    """A graph that cannot run. `problems` lists all of its problems, not only the first."""

    problems: tuple[GraphProblem, ...] = ()

    def __init__(self, problems: Sequence[GraphProblem]) -> None:
        found = tuple(problems)
        if len(found) == 1:
            message = found[0].text
        else:
            message = f"{len(found)} problems in the graph:" + "".join(f"\n  - {p.text}" for p in found)
        super().__init__(message, problems=found)


class AsyncNodeError(MilepostError, TypeError):
    """A coroutine function under a sync verb, or a sync verb that waits in a coroutine of a worker.

    `names` lists all such functions of the flow.
    """

    names: tuple[str, ...] = ()


class OptionError(MilepostError, ValueError):
    """An option out of its range, options that conflict, or a flow without a usable name."""

    option: str = ""


class InvalidIDError(MilepostError, ValueError):
    """A run, node or checkpoint id that no store accepts. `value` is that id."""

    value: Any = None


class RunIDRequiredError(InvalidIDError):
    """A run id that is empty or blank."""


class MissingExtraError(MilepostError, ImportError):
    """A feature whose optional packages are not installed; `extra` names the extra to install."""

    extra: str = ""

    def as_attribute(self) -> Exception:
        """Give the error that a module's `__getattr__` raises when the attribute needs this extra.

        Tools that inspect a module expect an AttributeError and nothing else. `from module import name` shows that the
        program uses the name: Python asks through a function of its own then, and this error itself reaches the
        program.
        """
        if sys._getframe(2).f_code.co_name == "_handle_fromlist":
            return self
        return AttributeError(str(self))


# -- failures while a node runs ----------------------------------------------------------------------


class NodeError(MilepostError):
    """A node failed for good; the original exception is the `__cause__`.

    `op` names the operation that failed: execute, route, merge, timeout, override or commit. `attempt` is
    the number of the last failed try; the errors of earlier tries are in the notes.
    """

    op: str = "execute"
    visit: int = 1
    attempt: int = 1


class NodeTimeoutError(NodeError, TimeoutError):
    """An attempt of a node took longer than its `timeout` (seconds)."""

    op = "timeout"
    timeout: float = 0.0


class RouterError(NodeError):
    """A router raised, or returned something that is no target. `returned` is that value."""

    op = "route"
    from_node: str = ""
    returned: Any = None


class BranchError(NodeError):
    """Branches of a fork failed; `errors` maps each failed branch to its error."""

    fork: str = ""
    errors: Mapping[str, BaseException] = {}


class MergeConflictError(NodeError, ValueError):
    """Several branches changed `field`, and no reducer says how to combine them."""

    op = "merge"
    field: str = ""
    branches: tuple[str, ...] = ()


class StateTypeError(NodeError, TypeError):
    """A state, or a field of it, is not of its declared type."""

    path: str = "state"
    expected: str = ""
    found: str = ""


class MaxIterationsError(MilepostError, RuntimeError):
    """More nodes ran than `max_iterations` allows; `max` is that limit."""

    max: int = 0
    last_node_id: str | None = None


class RunTimeoutError(MilepostError, TimeoutError):
    """The call took longer than `run_timeout` (seconds); the run is interrupted and can be resumed."""

    timeout: float = 0.0


class RunStopped(MilepostError):
    """The run reached a breakpoint (`stop_before`, `stop_after`) and can be resumed."""


# -- obstacles to starting or resuming ---------------------------------------------------------------


class RunExistsError(MilepostError, ValueError):
    """A run with this id exists already; `status` is its status."""

    status: str = ""


class RunLockedError(MilepostError):
    """Another owner holds a live lease of the run until `lease_until` (aware UTC, None: no end)."""

    owner: str = ""
    lease_until: Any = None


class RunNotResumableError(MilepostError, ValueError):
    """The verb cannot go on with the run; `status` is the run's status, `reason` says why."""

    status: str = ""
    reason: str = ""


class NotAuthorizedError(MilepostError, PermissionError):
    """The engine's `authorize` refused `action` on the run."""

    action: str = ""


class CheckpointNotFoundError(MilepostError, LookupError):
    """There is no such checkpoint. The arguments are `(run_id, node_id)`; `detail` ends the message.

    `workflow_id` and `checkpoint_id` are the names that step workflows use for these two.
    """

    def __init__(
        self,
        run_id: str = "",
        node_id: str | None = None,
        detail: str = "",
        *,
        workflow_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        run_id = run_id if workflow_id is None else workflow_id
        node_id = node_id if checkpoint_id is None else checkpoint_id
        message = f"no checkpoint found for run {run_id!r}"
        if node_id is not None:
            message += f" at node {shown(node_id)}"
        super().__init__(message + (f": {detail}" if detail else ""), run_id=run_id, node_id=node_id)


class NoCheckpointFoundError(CheckpointNotFoundError):
    """There is nothing to resume from."""


class RunNotFoundError(NoCheckpointFoundError):
    """There is no such run in the store. `store` is the store's absolute path or address."""

    store: str = ""

    def __init__(self, run_id: str = "", store: str = "", *, workflow_id: str | None = None) -> None:
        run_id = run_id if workflow_id is None else workflow_id
        where = f" in {store}" if store else ""
        MilepostError.__init__(
            self,
            f"no run {run_id!r}{where}: check the id and the store, or list what is there with list_runs()",
            run_id=run_id,
            node_id=None,
            store=store,
        )


class InvalidResumeNodeError(MilepostError, ValueError):
    """`resume_from` names a node that the graph does not have; `known` lists the nodes of the graph."""

    known: tuple[str, ...] = ()


class ResumeNodeCompletedError(MilepostError, ValueError):
    """`resume_from` names a node after which nothing is left to run."""


class StateValidationError(MilepostError, ValueError):
    """`revalidate` refused the recorded state."""


class InputMismatchError(MilepostError, ValueError):
    """The inputs differ from those that the run began with; `names` lists the ones that differ."""

    names: tuple[str, ...] = ()

    def __init__(self, expected_hash: str, actual_hash: str, detail: str = "", **data: Any) -> None:
        super().__init__(
            f"inputs hash mismatch: the run began with {expected_hash[:16]!r}, these inputs have "
            f"{actual_hash[:16]!r}" + (f"; {detail}" if detail else ""),
            expected_hash=expected_hash,
            actual_hash=actual_hash,
            **data,
        )
        self.expected_hash: str = expected_hash
        self.actual_hash: str = actual_hash


class FlowChangedError(MilepostError, ValueError):
    """The flow's code has changed since the run began; `differences` has one sentence for each change."""

    differences: tuple[str, ...] = ()


class WrongFlowError(FlowChangedError):
    """The run belongs to another flow: `expected` is the run's flow, `found` the flow of the call."""

    expected: str = ""
    found: str = ""


class NonDeterminismError(FlowChangedError):
    """A replayed workflow asked for another step than the record has at `index`."""

    index: int = 0
    recorded: str = ""
    found: str = ""


class SignalRefusedError(MilepostError, ValueError):
    """A signal was sent to a wait that no longer waits or does not take the payload, or to a run that is being cancelled."""

    wait_id: str = ""


# -- records that cannot be used -----------------------------------------------------------------------


class SerializeStateError(MilepostError, ValueError, TypeError):
    """A value cannot be recorded exactly. `path` is its place in the state, `type_name` its type."""

    path: str = "state"
    type_name: str = ""


class StateTooLargeError(SerializeStateError):
    """An encoded state of `size` bytes passes `max_state_size`, the `limit`."""

    size: int = 0
    limit: int = 0


class DeserializeStateError(MilepostError, ValueError):
    """Recorded bytes do not give a value of the declared type."""

    path: str = "state"
    expected: str = ""
    found: str = ""


class CheckpointCorruptError(DeserializeStateError):
    """Bytes that are no valid record. `sequence` is the record's number, where it is known."""

    sequence: int | None = None


class CheckpointIntegrityError(CheckpointCorruptError):
    """A record whose digest, seal or place does not fit its content."""


class CheckpointVersionError(DeserializeStateError):
    """A record has the version `found`; this library reads versions up to `supported`."""

    supported: int = 0


class CheckpointMigrationError(DeserializeStateError):
    """An old record lacks data that a resume from it needs."""


# -- failures of the store -----------------------------------------------------------------------------


class StoreError(MilepostError, OSError):
    """The store failed; its own exception is the `__cause__`. `op` names the operation."""

    store: str = ""
    op: str = ""
    is_of_one_run: bool = False
    """True: the store works, and only one of its runs is damaged."""

    def __str__(self) -> str:
        # OSError formats its arguments as errno and strerror; this one has a message.
        return str(self.args[0]) if self.args else ""


class CheckpointWriteError(StoreError):
    """A checkpoint could not be written, and so the run stopped."""


class StatementError(MilepostError):
    """A statement in a checkpoint's transaction failed, and nothing was written; `__cause__` says why.

    A store raises this, a verb never does: under a verb the attempt has failed with that cause. `sql` is the statement.
    """

    sql: str = ""


class StoreVersionError(StoreError):
    """A newer release made the store's tables or folders: they have version `found`, this one reads to `supported`."""

    found: int = 0
    supported: int = 0


class StoreClosedError(MilepostError, ValueError):
    """The store was used after `close()`."""


# -- workflows of steps --------------------------------------------------------------------------------


class WorkflowError(MilepostError):
    """The error that a workflow's code raises to end its run as failed, with a `reason`."""

    def __init__(self, reason: str = "", **data: Any) -> None:
        super().__init__(reason, **data)
        self.reason = reason


class WorkflowHeldError(WorkflowError):
    """A bug in the workflow's own code, which is the `__cause__`, holds the run: it is blocked and nothing is undone.

    Mend the code, then `resume` goes on from what is recorded.
    """


class StepError(MilepostError):
    """A step failed for good.

    The error is thrown into the workflow at the `yield` or `await` that asked for the step, and can be caught there. If
    nothing catches it, it ends the run. A workflow that is replayed gets the same error again: the same class, text,
    `args` and attributes. Only `error`, which is the original exception and the `__cause__`, is None then, so code must not
    decide by it: ask `matches` instead.

        try:
            receipt = yield from step("pay").python(pay, (order,))
        except StepError as exc:
            if not exc.matches(ConnectionError):
                raise
            receipt = yield from step("invoice").python(invoice, (order,))
    """

    step_name: str = ""
    step_type: str = ""
    attempt: int = 1
    error_type: str = ""
    """The qualified name of the original exception's type; built-in types come without a module."""
    message: str = ""
    """The message of the original exception, at most 500 characters."""
    error_bases: tuple[str, ...] = ()
    """The names that `matches` compares: those of the original exception's type and of its bases, at most 32."""

    @property
    def error(self) -> BaseException | None:
        """The original exception; None if another process, or an earlier attempt to go on, ran the step."""
        return self.__cause__

    def matches(self, *kinds: type[BaseException] | str) -> bool:
        """Return whether the step failed with one of these exceptions, or with a subclass of one.

        Each kind is a class or its qualified name, such as "ConnectionError" or "httpx.ReadTimeout". Of a step that is
        made of others the parts that failed are asked too.
        """
        names = {kind if isinstance(kind, str) else class_name(kind) for kind in kinds}
        return not names.isdisjoint((self.error_type, *self.error_bases))


def class_name(kind: type) -> str:
    """Return the qualified name by which other processes know a class; a built-in class has no module in it.

    The module that a process was started with is called `__main__` there, and by its own name everywhere else.
    """
    module = kind.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            module = spec.name
        elif path is not None:
            module = os.path.splitext(os.path.basename(path))[0]
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


class NoBranchMatchedError(StepError, LookupError):
    """No predicate of a `branch` step was true."""


class PredicateTypeError(StepError, TypeError):
    """A predicate returned something that is no bool; `returned` is that value."""

    returned: Any = None


class DuplicateStepNameError(MilepostError, ValueError):
    """Two steps of one execution have the same name."""

    step_name: str = ""


class ResultNotReadyError(MilepostError, RuntimeError):
    """The result was requested before the execution had ended."""


# -- ends of a run from outside, which no `except Exception` in user code may swallow --------------------


class LeaseLost(MilepostError):
    """Another owner took the run over; nothing that this process did since then counts."""

    epoch: int = 0


class RunSuspended(MilepostError):
    """The run waits for `waiting_for` (a tuple of `Wait`), until `wake_at` if that is known."""

    waiting_for: tuple[Any, ...] = ()
    wake_at: Any = None


class RunCancelled(MilepostError):
    """The run was cancelled, for `reason`; `by` is who asked, if the caller said so."""

    reason: str = ""
    by: str | None = None


class MilepostInterrupt(BaseException):
    """The exception that is thrown into user code instead of `error`, so that no `except Exception` swallows it.

    This class itself is never raised: each error has a subclass of its own with the error's name.
    """

    def __init__(self, error: MilepostError) -> None:
        super().__init__(str(error))
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return interruption, (self.error,)


_INTERRUPTS: dict[type[MilepostError], type[MilepostInterrupt]] = {
    error: type(error.__name__, (MilepostInterrupt,), {"__module__": __name__, "__qualname__": error.__name__})
    for error in (LeaseLost, RunSuspended, RunCancelled)
}


_OUR_NAMES = {
    "invoke": "run",
    "ainvoke": "arun",
    "add_conditional_edges": "add_conditional_edge",
    "add_sequence": "add_node and add_edge, one after the other",
    "get_state": "engine.handle(run_id).state",
    "update_state": "resume_from(store, run_id, node_id, update=...)",
}
"""Our names for what people know from LangGraph."""


def no_attribute(owner: object, name: str) -> AttributeError:
    """Make the error of an object without the attribute `name`. For a name of LangGraph it says which is ours."""
    ours = f": here it is {_OUR_NAMES[name]}" if name in _OUR_NAMES else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{ours}", name=name, obj=owner)


def interruption(error: MilepostError) -> MilepostInterrupt:
    """Wrap `error` in the interrupt that is thrown into user code."""
    return _INTERRUPTS[type(error)](error)


class AttemptTimedOut(TimeoutError):
    """The error that a driver throws when a call's `timeout` is over; a TimeoutError of user code is never this class.

    `is_running` is True if a sync call could not be stopped and still runs: no other attempt may start then.
    """

    def __init__(self, timeout: float, *, is_running: bool = False) -> None:
        super().__init__(f"no result after {timeout:g} s")
        self.timeout = timeout
        self.is_running = is_running


# -- texts -----------------------------------------------------------------------------------------


def shown(value: Any, limit: int = 200) -> str:
    """Return `repr(value)` for a message, cut at `limit` characters. A `__repr__` that raises does no harm, nor does an
    int that has more digits than Python shows.
    """
    try:
        text: str = printable(repr(value))
    except Exception as exc:
        return f"<{type(value).__qualname__}, whose repr fails: {type(exc).__qualname__}>"
    return cut(text, limit)


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """Return the text with escapes for what UTF-8 cannot encode, such as lone surrogates from file names."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def escaped(text: str, but: str = "") -> str:
    """Return the text with escapes for all that a terminal or a log could take for a command or the end of a line.

    `but` are such characters that stay.
    """
    return "".join(c if c.isprintable() or c in but else c.encode("unicode_escape").decode("ascii") for c in text)


_OF_THE_CALL = (AsyncNodeError, GraphError, InvalidIDError, MissingExtraError, OptionError, WorkflowError)
"""Errors whose message is not about a run, although they may end one."""
