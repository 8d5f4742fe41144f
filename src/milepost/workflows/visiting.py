"""Parts that all kinds of steps share: the arguments of a step, the checks before its visit, and its failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from milepost.errors import (
    AsyncNodeError,
    MilepostError,
    SerializeStateError,
    StateTypeError,
    StepError,
)
from milepost.executor.context import Context
from milepost.executor.history_values import PendingRecord
from milepost.executor.waits import Waits
from milepost.model.failure import place
from milepost.model.results import StepResult, StepType
from milepost.workflows.matching import (
    Arguments,
    arguments_of,
    described,
    differs,
    how_to_agree,
    non_determinism,
    plain_arguments,
)
from milepost.workflows.steps import Calls, Chooses, Invokes, Maps, Step, is_async, name_of

if TYPE_CHECKING:
    from milepost.executor.flow import GraphFlow, StepFlow
    from milepost.model.lifecycle import StepStarted
    from milepost.workflows.run import Frame, StepRun


class StepFailed(Exception):
    """The final failure of a step, which nothing in the step itself turns into a result.

    `draft` is the record of its last failure, which the code that catches this writes; None if it is written already.
    """

    def __init__(self, error: MilepostError, result: StepResult, draft: PendingRecord | None) -> None:
        super().__init__(str(error))
        self.__cause__ = error.__cause__
        self.error = error
        self.result = result
        self.draft = draft
        self.arguments: Arguments = {}
        """The arguments of the step, which are compared when the failure is thrown again."""
        self.timestamp = ""
        """The time of the record, once the code has been given the failure."""
        self.sequence = -1
        """The number of the record, if the failure is one that is thrown again."""

    def of_part(self) -> PendingRecord:
        """Return the record of a part of a step, which names the classes that the whole step's error matches."""
        assert self.draft is not None
        bases = getattr(self.error, "error_bases", ())
        return self.draft._replace(fields={**self.draft.fields, "error_bases": [*bases]})

    def replayable(self, *, is_caught: bool = False) -> PendingRecord:
        """Return the record from which a replay throws the same error again; `is_caught`: the code went on with it."""
        assert self.draft is not None
        error = self.error
        fields = {
            **self.draft.fields,
            "caught": is_caught or None,
            "text": str(error),
            "class": None if type(error) is StepError else type(error).__name__,
            "error_bases": [*getattr(error, "error_bases", ())],
            "step_type": getattr(error, "step_type", ""),
            "args": self.arguments or None,
        }
        if fields["op"] == "on_error":  # the error is told by the step's own, and by both messages
            fields |= {"error_type": self.result.error_type, "message": self.result.error}
        return self.draft._replace(fields=fields)

    def add_note(self, note: str) -> None:
        """Add the note to the error, which is the exception that a user gets to see."""
        self.error.add_note(note)

    @property
    def is_of_saving(self) -> bool:
        """True if the step's output cannot be recorded. No step can handle that: the run ends."""
        return isinstance(self.error, SerializeStateError)


def asked_with(run: StepRun, step: Step[Any]) -> Arguments:
    """Return a step's arguments, to be compared with the recorded ones."""
    work = step.work
    if isinstance(work, Calls):
        plain = None if work.kwargs or type(work.fn) is partial else plain_arguments(work.args)
        return _arguments_for(run, work.fn, work.args, work.kwargs) if plain is None else plain
    if isinstance(work, Maps):
        return _arguments_for(run, work.fn, work.items, {})
    if isinstance(work, Invokes):
        types = (*run.flow.known_types, *getattr(work.flow, "known_types", ()))
        return arguments_of((), {"inputs": work.given}, types)
    if isinstance(work, Waits):
        return arguments_of((work.signal,), {})
    return {}


def _arguments_for(run: StepRun, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a function. Those of a `partial` come first."""
    if isinstance(fn, partial):
        args, kwargs = (*fn.args, *args), {**fn.keywords, **kwargs}
    return arguments_of(args, kwargs, run.flow.argument_types_of(fn))


def check_begun(run: StepRun, step: Step[Any], step_id: str, frame: Frame) -> None:
    """Refuse a step that has begun as another one: its wait, its items, its arguments or its choice is recorded."""
    recorded, work = run.recorded, step.work
    wait, items, choice = (kept.get(step_id) for kept in (recorded.waits, recorded.items, recorded.choices))
    was: str | None = None
    hint = ""
    if wait is not None:
        signal = wait.fields.get("signal")
        is_any = step.modifiers.compare_args is False and signal is not None
        if not isinstance(work, Waits) or (signal != work.signal and not (is_any and work.signal is not None)):
            kind = StepType.TIMER if signal is None else StepType.WAIT
            was = described(step_id, kind.value, arguments_of((signal,), {}))
    elif items is not None and not isinstance(work, Maps if recorded.has_map(step_id) else Invokes):
        kind = StepType.MAP if recorded.has_map(step_id) else StepType.SUBWORKFLOW
        was = described(step_id, kind.value, items.fields.get("args"))
    elif items is not None and isinstance(work, Invokes) and step.modifiers.compare_args is not False:
        before, given = items.fields.get("args"), asked_with(run, step)
        if differs(before, given) and recorded.answers_inside(step_id):
            was, hint = described(step_id, work.step_type.value, before), how_to_agree(before, given)
    elif choice is not None and "index" in choice.fields and not isinstance(work, Chooses):
        was = described(step_id, StepType.BRANCH.value)
    if was is not None:
        now = described(step_id, work.step_type.value, asked_with(run, step))
        raise non_determinism(run.run_id, frame.position - 1, was, now, hint)


def answer_of(run: StepRun, step: Step[Any], step_id: str, result: StepResult, frame: Frame) -> Any:
    """Return the answer to the code that asked for the step: its output or, with `.as_result()`, its result."""
    if step.modifiers.as_result:
        return result
    if not result.success:
        # Only a recorded failure comes here: any other failure without `.as_result()` is raised.
        raise non_determinism(
            run.run_id,
            frame.position - 1,
            f"step {step_id!r} with .as_result(), and failed",
            "it without: there is no output to give",
            "say .as_result() as before, or branch on ctx.version",
        )
    return result.output


def encoded_output(run: StepRun, flow: StepFlow, output: Any) -> bytes | SerializeStateError:
    """Encode the output of a workflow. Raises `StateTypeError` if it is not of the declared type."""
    try:
        return run.journal.encode(output, flow.output_codec, "output")
    except StateTypeError as exc:
        where = f"what workflow {flow.name!r} of run {run.run_id!r} returned is not what it declares"
        place(exc, where, "return that, or declare what it returns: -> Steps[...]")
        raise


def refuse_async(run: StepRun, fn: Callable[..., Any], step_id: str) -> None:
    """Refuse a function that a sync verb cannot await."""
    if not run.is_awaited and is_async(fn):
        raise _unawaited(run, repr(name_of(fn)), step_id)


def refuse_async_nodes(run: StepRun, graph: GraphFlow, step_id: str) -> None:
    """Refuse to walk a graph with nodes or routers that a sync verb cannot await, before the first of them runs."""
    if not run.is_awaited and graph.async_names:
        raise _unawaited(run, f"{graph.async_names[0]!r} of graph {graph.name!r}", step_id)


def _unawaited(run: StepRun, what: str, step_id: str) -> AsyncNodeError:
    return AsyncNodeError(
        f"{what} of step {step_id!r} of run {run.run_id!r} is a coroutine function: await the verb's a-twin "
        f"(await engine.arun(...), aresume(...)) instead",
        names=(step_id,),
        run_id=run.run_id,
        node_id=step_id,
    )


def refuse_unawaited(returned: Any) -> None:
    """Raise TypeError for a coroutine. A plain function returned it, so nobody has awaited it."""
    if type(returned) is CoroutineType:
        returned.close()
        raise TypeError(
            "it gave a coroutine that nobody awaits: give the coroutine function itself, or declare it with async def"
        )


def started(run: StepRun, step: Step[Any], context: Context[Any]) -> StepStarted:
    from milepost.model.lifecycle import StepStarted

    return StepStarted(
        run_id=run.run_id,
        timestamp=run.options.clock.time(),
        step_name=context.node_id,
        step_type=step.step_type.value,
        attempt=context.attempt,
        visit=context.visit,
    )
