"""The values that a run's history is made of: records of steps, their results, open waits, and what a visit has used up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from milepost.errors import CheckpointCorruptError
from milepost.executor.renames import Renames
from milepost.model.record import NOT_JSON, Record, StepHead, branch_path, parse_time, segments_of

if TYPE_CHECKING:
    from milepost.model.info import RefusedAnswer, Wait
    from milepost.model.results import StepResult, StepType


NO_RENAMES = Renames()
COUNTED_FAILURES = frozenset({"execute", "timeout", "commit"})
"""The operations whose failure uses up an attempt of the retry policy."""


class AttemptBudget(msgspec.Struct, eq=False):
    """The attempts and failures that a visit has used up so far."""

    visit: int = 1
    failures: int = 0
    """Failed attempts that count for the policy."""
    attempts: int = 0
    """All attempts before the next one, including those that a crash cut short."""
    pause: float = 0.0
    """Seconds left of the last back-off."""
    notes: list[str] = []
    """The ends of the attempts in this process, a line each."""


class OpenWait(NamedTuple):
    """An open wait of a step. `seen` is the number of the newest signal at the time when the wait began."""

    wait: Wait
    sequence: int
    seen: int
    is_early: bool


class PendingRecord(NamedTuple):
    """A record to be written, which has no number yet."""

    kind: str
    step_id: str
    visit: int
    fields: dict[str, Any]
    state: bytes | None = None


class StepOutcome(msgspec.Struct, gc=False):
    """A step's result as its record holds it. The output stays JSON until its type is known."""

    name: str
    step_type: str
    success: bool
    output: msgspec.Raw = msgspec.Raw(b"null")
    duration_ms: float = 0.0
    error: str | None = None
    error_type: str | None = None
    outcome: str = "succeeded"
    attempts: int = 1

    def result(self, output: Any, name: str | None = None, step_type: StepType | str | None = None) -> StepResult:
        """Make the step's result with its decoded output.

        `name` and `step_type`, if given, are those that the code has now, and replace the recorded ones.
        """
        from milepost.model.results import StepResult

        return StepResult(
            self.name if name is None else name,
            self.step_type if step_type is None else step_type,
            self.success,
            output,
            self.duration_ms,
            self.error,
            self.error_type,
            self.outcome,  # type: ignore[arg-type]
            self.attempts,
        )


_decode_outcome = msgspec.json.Decoder(StepOutcome).decode


class CallResult(msgspec.Struct, gc=False):
    """The parts of a successful call's result that a replay needs. The output stays JSON."""

    success: bool
    output: msgspec.Raw
    duration_ms: Annotated[float, msgspec.Meta(ge=0)]
    attempts: int


_decode_result = msgspec.json.Decoder(CallResult).decode


class StepRecord(msgspec.Struct, eq=False, gc=False):
    """One record of a step."""

    sequence: int
    header: Mapping[str, Any] | StepHead
    """The header: all its fields, or only those that a replay needs, until somebody asks for more."""
    record: Record

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of its header."""
        if isinstance(self.header, StepHead):
            self.header = self.record.fields()
        return self.header

    def call_result(self) -> CallResult | None:
        """Return the result of a call that succeeded; None if the record holds something else, which `outcome` reads."""
        try:
            made = _decode_result(self.record.payload or b"")
        except NOT_JSON:
            return None
        return made if made.success else None

    def outcome(self) -> StepOutcome:
        """Return the step's result; raise `CheckpointCorruptError` if the record holds none."""
        data = self.record.state() or b""
        try:
            return _decode_outcome(data)
        except NOT_JSON as exc:
            raise CheckpointCorruptError(
                f"record {self.sequence} of step {self.record.node_id!r} holds no result of a step: {exc}",
                node_id=self.record.node_id,
                sequence=self.sequence,
            ) from exc


class PartProgress(msgspec.Struct, frozen=True):
    """The progress of one part of a limited parallel group: a branch, an item of a map, or a step."""

    node_id: str
    """The id of the part."""
    numbers: tuple[int, ...]
    """The numbers of the part's records."""
    ended: int | None
    """The number of the record that ended the part; None while it is open."""


def parent_of(step_id: str) -> str:
    """Return the id of the step's parent; "" for a step at the top."""
    return step_id.rpartition("/")[0]


def prefix_of(node_id: str) -> str:
    """Return an id without its last part, with the slash at its end; "" at the top."""
    return node_id[: len(node_id) - len(node_id.rpartition("/")[2])]


def around(step_id: str) -> Iterator[str]:
    """Yield the ids of all steps around a step, the nearest first."""
    while step_id := parent_of(step_id):
        yield step_id


def with_around(step_id: str) -> Iterator[str]:
    yield step_id
    yield from around(step_id)


def wait_of(fields: Mapping[str, Any], prompt: bytes | None, refused: StepRecord | None = None) -> Wait:
    """Make the wait that a record begins. `refused` is the record of the newest answer that the run refused."""
    from milepost.model.info import Wait  # imported here: most runs wait for nothing

    wake_at = fields.get("wake_at")
    return Wait(
        str(fields.get("wait_id")),
        fields.get("signal"),
        msgspec.json.decode(prompt or b"null"),
        None if wake_at is None else parse_time(str(wake_at)),
        fields.get("schema"),
        parse_time(str(fields.get("timestamp"))),
        None if refused is None else refused_answer(refused.fields),
    )


def refused_answer(fields: Mapping[str, Any]) -> RefusedAnswer:
    """Make the answer that a record refused."""
    from milepost.model.info import RefusedAnswer  # imported here: most runs refuse none

    return RefusedAnswer(str(fields.get("refused")), parse_time(str(fields.get("timestamp"))), fields.get("by"))


def left_of_pause(fields: Mapping[str, Any], now: float) -> float:
    """Return the seconds left of the back-off after a failure: never more than the policy chose, whatever clocks say."""
    ends = parse_time(fields["retry_at"]).timestamp()
    chosen = ends - parse_time(fields["timestamp"]).timestamp()
    return max(0.0, min(ends - now, chosen))


def label_now(renames: Renames, label: str, sequence: int) -> str:
    """Return the label that a branch has now: its fork, or the first node of a branch, may have been renamed."""
    if not renames:
        return label
    way = ""
    for fork, visit, branch, _ in segments_of(label):
        first = renames.now(f"{parent_of(fork)}/{branch}".lstrip("/"), sequence)
        way = branch_path(way, renames.now(fork, sequence), visit, first.rpartition("/")[2])
    return way


def ids_below(inside: Mapping[str, Mapping[str, None]], step_id: str) -> Iterator[str]:
    """Yield all ids below an id."""
    for child in inside.get(step_id, ()):
        yield child
        yield from ids_below(inside, child)


def is_settled(step_id: str, undone: Mapping[str, StepRecord], done: Mapping[str, StepRecord]) -> bool:
    """Return whether a failed step around this one rolled it back, and that failure was recorded as an outcome."""
    return any(done[outer].sequence > undone[step_id].sequence for outer in around(step_id) if outer in done)
