"""The input of a run that was started by name. The first owner that has the flow's code reads it.

A start record that was written without the code has the input as plain JSON. It is decoded here, and encoded again as
the flow's codec writes it, with all defaults: whoever goes on with the run later, whatever code it has, begins with the
same values. The owner record of the call that reads it holds both the input and the facts about the flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from milepost.errors import DeserializeStateError, SerializeStateError, StateTypeError
from milepost.executor.flow import Flow
from milepost.executor.run import Run
from milepost.model.beginning import completed, completed_by, is_incomplete, is_unread
from milepost.model.failure import place
from milepost.model.record import Record
from milepost.store import RunSnapshot


class Completion(NamedTuple):
    """The part that a start record lacks: the input as the flow's codec writes it, and the facts that only the code knows."""

    state: bytes | None
    fields: Mapping[str, Any]


def facts_of(flow: Flow, state: Any, inputs_hash: str) -> dict[str, Any]:
    """Return the fields of a start record that only the flow's code knows; None for those that the flow does not have."""
    return {
        "flow_version": flow.version,
        "front": None if flow.front == "graph" else flow.front,
        "inputs": flow.digests(state) or None,
        "fingerprint": flow.fingerprint,
        "shape": flow.shape,
        "inputs_hash": inputs_hash,
        "entry": flow.entry or None,
    }


def whole_start(run: Run, start: Record, records: Iterable[Record]) -> Record:
    """Return the start record with what completes it: one of `records` or, if nobody has read its input yet, the flow.

    In the second case the run's `completion` is set, for the owner record. Raises `DeserializeStateError` for an input
    that does not fit the flow.
    """
    if is_incomplete(start.fields()):
        start = completed_by(start, records)
    if not is_incomplete(start.fields()):
        return start
    run.completion = read_input(run, start)
    return completed(start, run.completion.fields, run.completion.state)


def read_input(run: Run, start: Record) -> Completion:
    """Decode the input of a start record that was written without the code, and return what completes the record.

    Raises `DeserializeStateError` for an input that does not fit the flow.
    """
    flow = run.flow
    try:
        given = flow.input_of(start.state() or b"null")
        data = run.journal.encode(given, flow.codec, "input")
        if isinstance(data, SerializeStateError):
            raise data
        return Completion(data, facts_of(flow, given, flow.inputs_hash(given)))
    except (DeserializeStateError, SerializeStateError, StateTypeError) as exc:
        if isinstance(exc, DeserializeStateError) and type(exc) is not DeserializeStateError:
            raise  # the record is damaged
        error = DeserializeStateError(str(exc.args[0]).replace("the record has", "it is"), path=exc.path)
        error.run_id = run.run_id
        place(
            error,
            f"the input of run {run.run_id!r} does not fit flow {flow.name!r}",
            "mend the flow and requeue the run, or cancel it and start another",
        )
        raise error from exc


def is_misfit(error: BaseException, latest: RunSnapshot) -> bool:
    """Return whether `error` says that the input of a run that was started by name does not fit its flow."""
    return type(error) is DeserializeStateError and is_unread(latest.point, latest.tail)
