"""The store contract: what a journal is, what a token is, and what each verb promises.

A run is a row and a journal. The journal is an ordered, append-only sequence of records keyed
`(run_id, sequence)`; record 0 is the start. The owner numbers its records, last + 1, dense. The row says who
owns the run, until when, and what became of it.

Three ideas carry all of the safety:

* **The token** (an epoch, raised at each change of owner, and a random nonce) decides whose writes count. It is
  compared inside the same atomic write that it guards, never before it.
* **The lease** decides when somebody may try to take a run over. It may be wrong, and nothing breaks.
* **Taking over is itself a record** at the next number, so that a reader with a stale view fails by the key.

Every verb is a plain, blocking, thread-safe method. Values that go in are copied or immutable; what comes out
belongs to the caller. Failures of the medium are `StoreError`, use after `close()` is `StoreClosedError`.
`milepost.testing.StoreContract` asserts each sentence of this file.
"""

from __future__ import annotations

import abc
import builtins
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypedDict

import msgspec

from milepost.errors import InvalidIDError, OptionError, RunIDRequiredError
from milepost.model.clock import SYSTEM, Clock
from milepost.model.process import this_process
from milepost.model.record import Record
from milepost.model.seal import Seals

if TYPE_CHECKING:
    from milepost.model.info import CheckpointInfo, Pruned, Retention, RunInfo, Stats, VerifyReport, Wait

__all__ = [
    "ENDED",
    "MOST",
    "Append",
    "Claim",
    "Claimed",
    "Count",
    "LeaseState",
    "NewRun",
    "Release",
    "Renewal",
    "RunRow",
    "RunSnapshot",
    "Signal",
    "Statement",
    "Status",
    "Store",
    "StoreOptions",
    "Token",
    "Verdict",
    "check_id",
    "check_moment",
    "check_number",
    "check_run_id",
    "check_tag",
]

Status = Literal["ready", "running", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked", "dead"]
ENDED = frozenset({"failed", "cancelled", "finished", "blocked"})
MAX_ID_BYTES = 512

Records = list[Record]

MOST = 2**62
"""Above all numbers of a run. Half of what a column of a database holds: whatever is there, the next ones fit too."""

Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST)]
"""A number in a run's row."""

Ranges = tuple[tuple[str, Count, Count | None], ...]
"""Live ranges of a journal: (branch, first sequence, last sequence or None for open). Empty: all is live."""


class Token(NamedTuple):
    """What proves ownership of a run. Valid in the process that made it and in no other, forked ones included."""

    run_id: str
    epoch: int
    nonce: str
    process: str
    """`this_process().key` of the maker; a store refuses a token of another process as lost."""

    @property
    def is_ours(self) -> bool:
        """Whether this process made the token."""
        return self.process == this_process().key


LeaseState = Literal["free", "live", "ended", "ours", "abandoned"]
"""free: nobody owns the run · live: another store object's owner does · ended: its owner stopped without a release
(its time is over, its process is gone, or the clock went back) · ours: a verb that runs in this store object does ·
abandoned: a verb of this store object did, and has ended without a release."""


class RunRow(msgspec.Struct, frozen=True):
    """A run as the core sees it: what everybody may know, and what the fence needs."""

    info: RunInfo
    epoch: int
    lease: LeaseState
    cancel: str | None
    """The reason of a cancel that is open, or None."""
    signals: int
    """How many signals the run was ever sent."""
    live: Ranges
    """The live ranges of the newest owner record that has them."""


class NewRun(NamedTuple):
    """What `create` needs. `record` is the start record, sequence 0."""

    run_id: str
    flow: str
    nonce: str
    record: Record
    lease: float
    """Seconds for which nobody may take the run over."""
    tags: Mapping[str, str]
    status: Literal["running", "ready"] = "running"
    """ready: the run has no owner until a worker or a verb takes it."""
    wake_at: float | None = None
    """POSIX seconds before which no worker takes a `ready` run."""


class Claim(NamedTuple):
    """A wish to own a run that exists.

    The claimer read the row with `epoch - 1` and the journal up to `sequence`; if either has moved the claim is
    `moved` and changes nothing. `record` is its owner record, numbered `sequence + 1`. `crashed` says whether that
    record tells of a dead owner; if the store sees that otherwise the claim is `moved` too.
    """

    run_id: str
    sequence: int
    epoch: int
    nonce: str
    record: Record
    lease: float
    crashed: bool = False
    takeover: bool = False
    """Fence off an owner whose lease is live."""
    reopen: bool = False
    """Go on with a run that is cancelled or blocked: an open cancel and the crash count are cleared."""
    max_crashes: int | None = 5
    live: Ranges | None = None
    """New live ranges, also in `record`; None keeps those there are."""
    finish: Record | None = None
    """The end of a run that has finished and is amended by `record`: it comes after that in the same write, and the run has
    finished again. None: the run has an owner from now on."""


class Claimed(NamedTuple):
    """The answer to a claim. `token` is there when a run has an owner by it; `row` is as of the decision."""

    outcome: Literal["claimed", "locked", "moved", "blocked"]
    token: Token | None
    row: RunRow


class Release(NamedTuple):
    """The end of ownership, and what the run is then."""

    status: str
    reason: str = ""
    wake_at: float | None = None
    waiting_for: tuple[Wait, ...] = ()
    signals: int | None = None
    """For `waiting`: the count of signals that was read. If it has grown the release is refused."""
    degraded: bool = False
    missed: tuple[str, ...] = ()
    crash_count: int | None = None
    """How often in a row the run has crashed without a checkpoint in between, this time included; None: it did not now."""


class Statement(NamedTuple):
    """One statement in the store's SQL, and the values that are bound to its placeholders."""

    sql: str
    params: tuple[Any, ...] | Mapping[str, Any] = ()


class Append(NamedTuple):
    """Records of one run that are written together, all or none, if the token is current."""

    token: Token
    records: tuple[Record, ...]
    release: Release | None = None
    tags: Mapping[str, str] | None = None
    """Tags to add to the run row in the same write."""
    statements: tuple[Statement, ...] = ()
    """What a user wants to count with the records, and only with them: executed after these in their transaction."""


class Verdict(NamedTuple):
    """What became of an append. Only `written` has changed anything.

    lost: the token is not current, or not this process's · taken: a number is in use · gap: the number before the
    first is not there · refused: a `finished` release met an open cancel, or a `waiting` one a new signal.
    """

    outcome: Literal["written", "lost", "taken", "gap", "refused"]
    cancel: str | None = None
    """The reason of an open cancel, told with every verdict."""


class Renewal(NamedTuple):
    """What became of a lease's renewal. unknown: the row was busy; nothing is known, ask again."""

    outcome: Literal["kept", "lost", "unknown"]
    cancel: str | None = None


class RunSnapshot(NamedTuple):
    """Where a run stands. `point` is the newest live checkpoint, or the start, or None for a run without either.

    `tail` are the live records after the point, in order: failures, owners, routes and the like; `newest` is the
    sequence of the newest record. Both are bounded by what happened since the point, not by the history.
    """

    row: RunRow
    point: Record | None
    tail: tuple[Record, ...]
    newest: int
    nodes: tuple[str, ...] = ()
    """Where asked for: the nodes that have a live checkpoint up to the point, sorted."""
    expected: int = -1
    """The number that the newest record has at least, as the row knows it: a journal that is shorter was damaged."""
    start: Record | None = None
    """Where nodes are asked for: the start record. None: there is none, or the store leaves it to be read."""


class Signal(NamedTuple):
    """A signal that was kept for a run, numbered from 1. `payload` is encoded JSON or None."""

    number: int
    name: str
    payload: bytes | None
    signal_id: str | None
    to: str | None
    sent_at: float


class StoreOptions(TypedDict, total=False):
    """What every store can be given, by name; see `Store`."""

    clock: Clock
    retention: Retention | None
    signing_key: Mapping[str, bytes] | None
    allow_unsealed: bool
    encryption_key: Mapping[str, bytes] | None
    allow_plain: bool


def check_id(value: Any, what: str = "node id") -> str:
    """The id itself, if every store accepts it; TypeError if it is no str, else `InvalidIDError`."""
    if type(value) is not str:
        raise TypeError(f"{what} must be a str, not {type(value).__name__}: {value!r}")
    problem = ""
    if not value or value.isspace():
        problem = "is empty or blank"
    elif value in {".", ".."}:
        problem = "names a folder"
    elif not value.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        problem = "has a control character"
    else:
        try:
            if len(value.encode("utf-8")) > MAX_ID_BYTES:
                problem = f"is longer than {MAX_ID_BYTES} bytes of UTF-8"
        except UnicodeEncodeError:
            problem = "has a lone surrogate"
    if problem:
        shown = value if len(value) <= 60 else value[:57] + "..."
        raise InvalidIDError(f"{what} {shown!r} {problem}: choose another id", value=value)
    return value


def check_number(value: Any, what: str, *, least: int | None = None) -> int:
    """The number itself, however large; TypeError if it is no int (a bool is none), ValueError if it is below `least`."""
    if type(value) is not int:
        raise TypeError(f"{what} must be an int, not {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    return value


def check_moment(value: Any, what: str) -> datetime:
    """The time itself; TypeError if it is no datetime, `OptionError` if it has no zone: it might mean any moment of a day."""
    if not isinstance(value, datetime):
        raise TypeError(f"{what} must be a datetime, not {value!r}")
    if value.utcoffset() is None:
        raise OptionError(f"{what} must have a zone, as datetime.now(UTC) has, not {value!r}", option=what)
    return value


def check_tag(key: Any, value: Any) -> None:
    """TypeError unless both are str; `OptionError` for what no database keeps exactly: NUL and lone surrogates."""
    if not isinstance(key, str) or not isinstance(value, str):
        raise TypeError(f"tags are str keys and str values, not {key!r}: {value!r}")
    for text in (key, value):
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise OptionError(f"tag {key!r}: {value!r} has NUL or a lone surrogate in it: leave it out", option="tags")


def check_run_id(value: Any) -> str:
    """`check_id` for a run id; `RunIDRequiredError` if it is empty or blank."""
    if isinstance(value, str) and (not value or value.isspace()):
        raise RunIDRequiredError(
            f"run id {value!r} is empty or blank: give a run_id, or leave it out to have one made", value=value
        )
    return check_id(value, "run id")


def _check_retention(given: Any) -> None:
    from milepost.model.info import Retention

    if not isinstance(given, Retention):
        raise OptionError(f"retention must be a Retention, not {given!r}: Retention(keep_last=3)", option="retention")


class Store(abc.ABC):
    """Where journals live. Subclass this to add a store; `StoreContract` tests it.

    Thread-safe; usable after `fork()`, where the child has no tokens and never touches what it inherited.

    Every store takes `clock`, where its time comes from; `retention`, what it may forget by itself; `signing_key`, key
    ids and secrets of which the first seals records and all verify, so that nobody without them can change one unseen
    (`allow_unsealed` reads those that were written without); `encryption_key`, key ids and secrets of 32 bytes of which
    the first encrypts states and texts and all decrypt (`allow_plain` reads what was written without).
    """

    place: str
    """The store's absolute place, for messages; without passwords."""
    can_encrypt: bool = False
    """Whether the store does what `encryption_key` asks for; one that does not refuses the key."""
    is_blocking: bool = True
    """Whether a call may wait for a disk or a network; False: an event loop may call the store itself."""
    runs_statements: bool = False
    """Whether an append may have statements; one that may not have them refuses them with `OptionError`."""

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM,
        retention: Retention | None = None,
        signing_key: Mapping[str, bytes] | None = None,
        allow_unsealed: bool = False,
        encryption_key: Mapping[str, bytes] | None = None,
        allow_plain: bool = False,
    ) -> None:
        if retention is not None:
            _check_retention(retention)
        self.clock = clock
        self.retention = retention
        if encryption_key is not None and not self.can_encrypt:
            raise OptionError(
                f"{type(self).__name__} can't encrypt: leave out encryption_key, or use another store",
                option="encryption_key",
            )
        self.seals = Seals(
            signing_key, allow_unsealed=allow_unsealed, encryption_ids=tuple(encryption_key) if encryption_key else ()
        )

    # -- the journal and its fence -----------------------------------------------------------------

    @abc.abstractmethod
    def create(self, new: NewRun) -> Token:
        """Write the run row and record 0 as one, with epoch 1.

        With status `ready` the run has no owner and the token is good for nothing. Raises `RunExistsError` (with
        the run's `status`) if the id is taken, whoever else creates it at the same time.
        """

    @abc.abstractmethod
    def claim(self, claim: Claim) -> Claimed:
        """Change the owner and insert the owner record, in one write; see `Claim` and `Claimed`.

        A claim succeeds if the run is free, its lease has ended, the token is one that this store object holds for
        a verb that has ended (`abandoned`, counted as no crash), or `takeover`. A claim over an ended lease adds 1
        to the crash count, which counts from 0 again once a checkpoint was recorded since; if that reaches
        `max_crashes` (None: never) the run becomes `blocked` instead, with the reason; so is every later claim without
        `reopen`. Of two claims from one reading one wins, the other is `moved` or `locked`. Raises `RunNotFoundError`.
        """

    @abc.abstractmethod
    def claim_due(
        self,
        flows: Collection[str],
        limit: int,
        skip: Collection[str] = (),
        *,
        lease: float = 30.0,
        max_crashes: int | None = 5,
    ) -> list[tuple[Token, RunRow]]:
        """Take up to `limit` runs of `flows` that a worker may go on with, oldest first, flows in turn.

        These are: `ready` and their time has come, `waiting` and their time is over, with an open cancel and no
        live owner, `running` with an ended lease, `interrupted` while a worker owned them. `skip` are run ids that
        this worker refused. Each is claimed as by `claim`, with an owner record that the store makes.
        """

    @abc.abstractmethod
    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        """Write the appends of several runs in one commit; a verdict for each, in order.

        Durable on return. One append's fate does not touch another's. A `StoreError` means that none of the batch
        was written.

        `keep_last` of a live run: by its owner, again after each `keep_last` visits of a node, in a twentieth of its time at
        most. Older visits go as in `prune`, in the write of new records, so that a verb that has read what is gone begins
        anew.

        An append with statements is a batch of its own (else ValueError) and has a transaction of its own, in which they
        follow the fence and the records, in order; with any other verdict than `written` none is executed.
        `StatementError`: one failed, or is none that may stand in a transaction, and nothing was written.
        """

    @abc.abstractmethod
    def renew(self, tokens: Sequence[Token]) -> list[Renewal]:
        """Extend the leases of `tokens` by their length from now, in one write; an outcome for each, in order."""

    @abc.abstractmethod
    def release(self, token: Token, release: Release) -> Verdict:
        """Give the run up without a record: `append` with no records."""

    @abc.abstractmethod
    def abandon(self, token: Token) -> None:
        """Note that the verb which held `token` has ended without a release.

        Never fails, also after `close()`, and touches no medium.
        """

    @abc.abstractmethod
    def read(
        self,
        run_id: str,
        *,
        after: int = -1,
        before: int | None = None,
        kinds: Collection[str] | None = None,
        node_id: str | None = None,
        newest: bool = False,
        limit: int | None = None,
    ) -> Records:
        """Records with `after` < sequence < `before` of these kinds and this node, superseded ones included.

        In order, or with `newest` from the newest back; at most `limit`. [] for an unknown run. TypeError for numbers that
        are no int, ValueError for a `limit` below 1. By index: asking for
        the newest record of a node costs the same in a long journal. Nothing is checked: `seals.check` does that.
        """

    @abc.abstractmethod
    def latest(self, run_id: str, *, before: int | None = None, with_nodes: bool = False) -> RunSnapshot:
        """Where the run stands, at a cost that does not depend on its history. Raises `RunNotFoundError`.

        `with_nodes` asks for `nodes` and `start` too, at a cost that grows with the number of nodes but not with their visits.
        `before`: only records below that sequence count for the point and the tail; `newest` stays that of the journal.
        """

    @abc.abstractmethod
    def get_run(self, run_id: str) -> RunRow:
        """The run's row. Raises `RunNotFoundError`."""

    @abc.abstractmethod
    def put_signal(
        self, run_id: str, name: str, payload: bytes | None, *, signal_id: str | None = None, to: str | None = None
    ) -> Literal["taken", "kept", "duplicate"]:
        """Keep a signal and raise the run's count, in one write; a run that waits for it becomes `ready` in it.

        taken: a visit waits for it · kept: none does yet, and the run waits on · duplicate: that `signal_id` was seen
        before, and nothing is kept. A wait whose time is over takes none. `to` names one wait; if the run does not wait
        there: `SignalRefusedError`. A run that is finished or cancelled: `RunNotResumableError`. Raises
        `RunNotFoundError`.
        """

    @abc.abstractmethod
    def signals(self, run_id: str, *, after: int = 0) -> list[Signal]:
        """Signals numbered above `after`, in order; [] for an unknown run. TypeError if `after` is no int."""

    @abc.abstractmethod
    def request_cancel(
        self, run_id: str, reason: str = "", sequence: int | None = None
    ) -> Literal["cancelled", "requested", "ended"]:
        """Ask for the end of a run.

        `sequence` is up to where the caller saw that no rollback is open (None: some are). Without a live owner and
        with no newer record the run is cancelled in the same write, with a finish record and a new epoch. Else the
        flag is set, and every append and renewal tells it, until a release to an ended status closes it. A run that is
        finished or cancelled is left as it is ("ended"). Raises `RunNotFoundError`.
        """

    @abc.abstractmethod
    def cancels(self, run_ids: Sequence[str]) -> dict[str, str]:
        """The reasons of open cancels among `run_ids`, by run; the others are left out. Cheap: asked every second."""

    # -- views: by run and node, and bytes -----------------------------------------------------------

    @abc.abstractmethod
    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        """Record a new visit of a node from outside a run; atomic and durable on return.

        The record takes the next number and the next epoch in one write, so that a frozen owner is fenced off. An
        unknown run is made, with status `interrupted`, as is one that had ended. `load` gives the same bytes,
        whatever they are. Raises `RunLockedError` while a lease is live, from inside a node of the run as well.
        """

    @abc.abstractmethod
    def load(self, run_id: str, node_id: str, visit: int | None = None) -> bytes:
        """The envelope of a node's newest visit that is not superseded, or of `visit`, superseded or not.

        Raises `CheckpointNotFoundError`, which names the store's place; TypeError if `visit` is no int.
        """

    @abc.abstractmethod
    def list(self, run_id: str) -> list[CheckpointInfo]:
        """The newest live visit of each node, ordered by sequence; [] for an unknown run."""

    @abc.abstractmethod
    def history(self, run_id: str) -> builtins.list[CheckpointInfo]:
        """Every visit, ordered by sequence, superseded ones marked; [] for an unknown run."""

    @abc.abstractmethod
    def delete(self, run_id: str, node_id: str, *, force: bool = False) -> None:
        """Delete all visits of a node, with an owner record (and a new epoch) that says so; absent: no error.

        Its failure records go too. Visits go on counting: the next one has a number that was never used. A run that had
        finished with it is interrupted: a resume runs that node again. Raises
        `RunLockedError` while a lease is live, unless `force`.
        """

    @abc.abstractmethod
    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        """Delete everything of a run; absent: no error. `RunLockedError` while a lease is live, unless `force`.

        `force` deletes a run that can't be read as well. Without it that is a `StoreError`: nobody can tell who owns it.
        """

    @abc.abstractmethod
    def list_runs(
        self,
        *,
        flow: str | None = None,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> builtins.list[RunInfo]:
        """A page of runs by creation, newest first; `after` is the run id of the last one seen.

        That run may have been deleted since, if this store object gave the page that it ended. Of another one that is not
        there nobody knows what comes after it: `RunNotFoundError`.
        `status` is one or several, `dead` included; `tags` must all match. ValueError if `limit` is below 1, TypeError for
        a value of another type, `OptionError` for a time without a zone.
        A run whose row is damaged hides no other: it comes with a `reason` that says so. No state is read, and nothing
        stays locked or open on return.
        """

    # -- keeping and forgetting ------------------------------------------------------------------------

    @abc.abstractmethod
    def prune(
        self,
        *,
        older_than: float | timedelta | None = None,
        keep_last: int | None = None,
        statuses: str | Iterable[str] = ("finished", "cancelled"),
        dry_run: bool = False,
    ) -> Pruned:
        """Forget runs, and visits of runs, that nobody needs any more. Nothing is forgotten unasked.

        Only runs with one of `statuses` (`dead` included), and never one with a live owner. A run that can't be read has the
        status `blocked`, as `list_runs` shows it, or the one that is left of it, and is only ever deleted as a whole.
        `older_than`: a run whose last activity is that long ago, in seconds or a timedelta, is deleted with all that belongs
        to it. `keep_last`: of every other run each node keeps that many visits, the newest, superseded ones only where there
        are too few others; the records of a visit go with it. The start, the end, changes of owner and replies stay, as does
        the newest record of a node, which tells how visits go on counting, and what a visit that stays can't be resumed
        without: its fork with all of its branches, the state around its sub-graph. The row counts what has gone
        (`verify` knows), and takes a new epoch, so that a verb that has read what is gone begins anew; the time of the
        last activity stays.

        Each run goes in a write of its own, all or nothing, so that others get their turn in between. With `dry_run`
        nothing is changed. `OptionError` without `older_than` and `keep_last`, and for values that make no sense.
        """

    @abc.abstractmethod
    def tidy(self, run_id: str | None = None) -> None:
        """Forget what `retention` says, among runs that finished or were cancelled.

        With a run id, at the end of that run: thin it and, at most once a minute, delete a bounded number of old runs.
        Without, in a worker: delete and thin all. Never raises: what fails is logged as a warning. Costs nothing
        without `retention`.
        """

    @abc.abstractmethod
    def stats(self) -> Stats:
        """How much the store has, as of one moment; the cost grows with the store."""

    @abc.abstractmethod
    def export(self, run_id: str) -> bytes:
        """One JSON object a line: the run, its records in order as envelopes, its signals. `RunNotFoundError`.

        What is no JSON, or would not come back as the same bytes (what was saved from outside, a signal's payload),
        stands in `data` as base64. The run's line has all of its row but the nonce.
        """

    @abc.abstractmethod
    def import_run(self, data: bytes, *, run_id: str | None = None) -> str:
        """Keep the run that `export` gave, from a store of any kind, in one write; its run id, or the one given instead.

        Everything is checked first: `CheckpointCorruptError` (`CheckpointIntegrityError` for a digest or seal that does
        not fit, `CheckpointVersionError` for a newer form) names the line, and nothing is kept. Records are sealed
        anew; a seal that was made with a key which is not this store's can't be proven, nor can the row and signals:
        import what you trust. Nobody owns the copy: one that was running is `interrupted`, and the epoch is a new one.
        All else comes back equal, times and what the run waits for included. `RunExistsError` if the id is taken.
        """

    @abc.abstractmethod
    def verify(self, run_id: str) -> VerifyReport:
        """Check every digest, seal, number and gap of a run, changing nothing. `RunNotFoundError`.

        Each state must be compact JSON, which is all that an export holds. Saves from outside are checked against what
        was saved, whatever that was. As many numbers may be missing as the row counts as pruned and the records of deletions
        tell of.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Wait for writes that have begun, then release everything. Again: no error."""

    # -- context managers ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
