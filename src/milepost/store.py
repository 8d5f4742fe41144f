"""The store contract: the journal, the token, and the promises of each verb.

A run is a row and a journal. The journal is an ordered, append-only sequence of records with the key
`(run_id, sequence)`; record 0 is the start. The owner numbers its records last + 1, without gaps. The row has the
run's owner, the end of the owner's lease, and the run's status.

Three ideas carry all of the safety:

* **The token** (an epoch, raised at each change of owner, and a random nonce) decides whose writes count. It is
  compared inside the same atomic write that it guards, never before it.
* **The lease** decides when somebody may try to take a run over. It may be wrong, and nothing breaks.
* **A takeover is itself a record** at the next number, so that a process with a stale view of the run fails by the key.

Every verb is a plain, blocking, thread-safe method. Arguments are copied or immutable; results belong to the
caller. Failures of the backend raise `StoreError`, use after `close()` raises `StoreClosedError`.
`milepost.testing.StoreContract` asserts each sentence of this file.
"""

from __future__ import annotations

import abc
import base64
import builtins
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self, TypedDict

import msgspec

from milepost.errors import InvalidIDError, OptionError, RunIDRequiredError, StoreError, shown
from milepost.model.ids import SYSTEM, Clock, this_process
from milepost.model.ranges import MOST, Count, Ranges
from milepost.model.record import FORKED_FROM, Record
from milepost.model.seal import Seals, seals_of_exports

if TYPE_CHECKING:
    from milepost.model.info import CheckpointInfo, RunFailure, RunInfo, RunPage, Wait
    from milepost.model.live import LiveBatch, LiveEvent, Place
    from milepost.model.upkeep import Pruned, Retention, Stats, VerifyReport
    from milepost.model.workers import SchedulePause, WorkerInfo

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
    "check_tag_names",
    "check_tags",
    "flaw_of_prompt",
    "read_cancel",
    "shortened",
]

Status = Literal["ready", "running", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked", "dead"]
ENDED = frozenset({"failed", "cancelled", "finished", "blocked"})
ACTIVE = ("ready", "running", "waiting", "interrupted", "dead")
"""The statuses of runs that have not ended, as they are shown."""
GOES_ON = frozenset({"bug", "input", "value"})
"""The causes that block a run until somebody has mended them: `resume` goes on then, without `reopen`."""
MAX_ID_BYTES = 512
MOST_WALKED = 100_000
"""The most runs that one page looks at, to find those that match filters which no index serves."""
MAX_TAGS = 64
MAX_PROMPT_BYTES = 16 * 1024
MAX_REASON_BYTES = 2048

Records = list[Record]


class Token(NamedTuple):
    """The proof that a process owns a run. It is valid only in the process that made it, not in a forked child."""

    run_id: str
    epoch: int
    nonce: str
    process: str
    """`this_process().key` of the process that made it; a store refuses a token of another process as lost."""

    @property
    def is_ours(self) -> bool:
        """True if this process made the token."""
        return self.process == this_process().key


LeaseState = Literal["free", "live", "ended", "ours", "abandoned"]
"""free: nobody owns the run · live: an owner of another store object owns it · ended: its owner stopped without a
release (the lease is over, the process is gone, or the clock went back) · ours: a verb that runs in this store object
owns it · abandoned: a verb of this store object owned it and has ended without a release."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the core sees it: the values of its `RunInfo`, which describes them, and those that the fence needs.

    Most calls need no `RunInfo`. To make the class takes longer than a resume.
    """

    run_id: str
    flow: str
    status: str
    reason: str
    degraded: bool
    missed: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    sequence: int
    next_node: str | None
    size: int
    owner: str
    lease_until: datetime | None
    wake_at: datetime | None
    waiting_for: tuple[Wait, ...]
    crash_count: int
    tags: Mapping[str, str]
    error: RunFailure | None = None
    blocked_by: str | None = None
    fingerprint: str | None = None
    epoch: int
    lease: LeaseState
    cancel: str | None
    """The reason of an open cancel request, or None."""
    signals: int
    """The number of signals that the run was ever sent."""
    live: Ranges
    """The live ranges of the newest owner record that has some."""
    cancel_by: str | None = None
    """The one who asked for the open cancel, as the caller said."""

    @property
    def info(self) -> RunInfo:
        """The run as people are shown it."""
        from milepost.model.info import RunInfo

        return RunInfo(**{name: getattr(self, name) for name in RunInfo.__match_args__})


class NewRun(NamedTuple):
    """The argument of `create`. `record` is the start record, sequence 0."""

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
    """A request to own a run that exists.

    The claimer read the row with `epoch - 1` and the journal up to `sequence`; if either has changed, the claim is
    `moved` and changes nothing. `record` is its owner record, numbered `sequence + 1`. `crashed` is True if that record
    reports a dead owner; if the store does not agree on that, the claim is `moved` too.
    """

    run_id: str
    sequence: int
    epoch: int
    nonce: str
    record: Record
    lease: float
    crashed: bool = False
    takeover: bool = False
    """True: fence off an owner whose lease is live."""
    reopen: bool = False
    """True: go on with a run that is cancelled or blocked, and clear an open cancel and the crash count."""
    max_crashes: int | None = 5
    live: Ranges | None = None
    """The new live ranges, also in `record`; None keeps the present ones."""
    finish: Record | None = None
    """The finish record of a finished run that `record` amends: it is written after that in the same write, and the run
    has finished again. None: the run has an owner from now on."""


class Claimed(NamedTuple):
    """The answer to a claim. `token` is None unless the claim gave the run an owner; `row` is as of the decision."""

    outcome: Literal["claimed", "locked", "moved", "blocked"]
    token: Token | None
    row: RunRow


class Release(NamedTuple):
    """The end of ownership, and the values of the run row after it."""

    status: str
    reason: str = ""
    wake_at: float | None = None
    waiting_for: tuple[Wait, ...] = ()
    signals: int | None = None
    """For status `waiting`: the count of signals that the owner read. If it has grown, the release is refused."""
    degraded: bool = False
    missed: tuple[str, ...] = ()
    crash_count: int | None = None
    """The number of crashes in a row without a checkpoint in between, this one included; None: this is no crash."""
    blocked_by: str = ""
    """For status `blocked`: "crashes", "bug" (of a workflow's own code), "input" or "value" (one that can't be encoded)."""


class Statement(NamedTuple):
    """One statement in the store's SQL, and the values for its placeholders."""

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
    """A user's statements that count only if the records do: they are executed after these in the same transaction."""


class Verdict(NamedTuple):
    """The outcome of an append. Only `written` has changed anything.

    lost: the token is not current, or not of this process · taken: a number is in use · gap: the number before the
    first is missing · refused: a `finished` release met an open cancel, or a `waiting` one a new signal.
    """

    outcome: Literal["written", "lost", "taken", "gap", "refused"]
    cancel: str | None = None
    """The request of an open cancel, which `read_cancel` reads; every verdict has it."""


class Renewal(NamedTuple):
    """The outcome of a lease's renewal. unknown: the row was busy and nothing is known, so ask again."""

    outcome: Literal["kept", "lost", "unknown"]
    cancel: str | None = None


class RunSnapshot(NamedTuple):
    """The present state of a run.

    `point` is the newest live checkpoint, or the start, or None for a run without either. `tail` has the live records
    after the point, in order: failures, owners, routes and the like; `newest` is the sequence of the newest record. The
    cost of both depends on the records since the point, not on the whole history.
    """

    row: RunRow
    point: Record | None
    tail: tuple[Record, ...]
    newest: int
    nodes: tuple[str, ...] = ()
    """The nodes that have a live checkpoint up to the point, sorted; only if `with_nodes` asked for them."""
    expected: int = -1
    """The number that the newest record must have at least, according to the row; a shorter journal was damaged."""
    start: Record | None = None
    """The start record, only if `with_nodes` asked for it. None: there is none, or the caller has to read it."""


class Signal(NamedTuple):
    """A signal that the store keeps for a run, numbered from 1. `payload` is encoded JSON or None."""

    number: int
    name: str
    payload: bytes | None
    signal_id: str | None
    to: str | None
    sent_at: float
    by: str | None = None
    """The one who sent it, as the caller said."""


_BY = "\x1f"
"""The character between reason and name in the text of a cancel; a name has no control characters."""


def cancel_text(reason: str, by: str | None) -> str:
    """Return the request of a cancel as one text, for all that store it and hand it on."""
    reason = shortened(reason.replace(_BY, "\\x1f"))
    return reason if by is None else f"{reason}{_BY}{by}"


def read_cancel(text: str) -> tuple[str, str | None]:
    """Return the reason and who asked, of a text that `cancel_text` made."""
    reason, _, by = text.partition(_BY)
    return reason, by or None


def shortened(reason: str) -> str:
    """Return a reason of at most `MAX_REASON_BYTES`. Every list of runs reads it."""
    if len(reason) <= MAX_REASON_BYTES // 4:
        return reason
    data = reason[:MAX_REASON_BYTES].encode("utf-8", "backslashreplace")
    return data[:MAX_REASON_BYTES].decode("utf-8", "ignore")


def flaw_of_prompt(data: bytes) -> str | None:
    """Say what is wrong with the size of a prompt, given as JSON; None if nothing is."""
    if len(data) <= MAX_PROMPT_BYTES:
        return None
    return (
        f"has {len(data)} bytes as JSON, and every list of runs reads it: give at most {MAX_PROMPT_BYTES}, and say in it "
        f"where the rest is"
    )


class StoreOptions(TypedDict, total=False):
    """The keyword arguments of every store; see `Store`."""

    clock: Clock
    entropy: Callable[[int], bytes] | None
    retention: Retention | None
    signing_key: Mapping[str, bytes] | None
    allow_unsealed: bool
    encryption_key: Mapping[str, bytes] | None
    allow_plain: bool
    read_only: bool


def check_id(value: Any, what: str = "node id") -> str:
    """Return the id if every store accepts it; raise TypeError if it is no str, else `InvalidIDError`."""
    if type(value) is not str:
        raise TypeError(f"{what} must be a str, not {type(value).__name__}: {shown(value)}")
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
        start = value if len(value) <= 60 else value[:57] + "..."
        raise InvalidIDError(f"{what} {start!r} {problem}: choose another id", value=value)
    return value


def check_number(value: Any, what: str, *, least: int | None = None) -> int:
    """Return the number, however large; TypeError if it is no int (or a bool), ValueError if it is below `least`."""
    if type(value) is not int:
        raise TypeError(f"{what} must be an int, not {shown(value)}")
    if least is not None and value < least:
        raise ValueError(f"{what} must be at least {least}, not {shown(value)}")
    return value


def check_moment(value: Any, what: str) -> datetime:
    """Return the time; TypeError if it is no datetime, `OptionError` if it has no zone and so could be several moments."""
    if not isinstance(value, datetime):
        raise TypeError(f"{what} must be a datetime, not {shown(value)}")
    if value.utcoffset() is None:
        raise OptionError(f"{what} must have a zone, as datetime.now(UTC) has, not {shown(value)}", option=what)
    return value


def check_tag(key: Any, value: Any) -> None:
    """Raise TypeError unless both are str, `OptionError` for NUL and lone surrogates, which databases do not keep."""
    if not isinstance(key, str) or not isinstance(value, str):
        raise TypeError(f"tags are str keys and str values, not {shown(key)}: {shown(value)}")
    for text in (key, value):
        if len(text.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
            raise OptionError(f"tag {key[:60]!r} is longer than {MAX_ID_BYTES} bytes: shorten it", option="tags")
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise OptionError(
                f"tag {shown(key)}: {shown(value)} has NUL or a lone surrogate in it: leave it out", option="tags"
            )


def check_tag_names(names: Set[str]) -> None:
    """Raise `OptionError` if a run would have more than `MAX_TAGS` tags, besides the one that a fork gets."""
    if len(names) - (FORKED_FROM in names) > MAX_TAGS:
        raise OptionError(
            f"a run has at most {MAX_TAGS} tags, and would have {len(names)}: put what else it is about into its state",
            option="tags",
        )


def check_tags(tags: Mapping[Any, Any]) -> None:
    """Raise as `check_tag` does for the first bad tag, and `OptionError` for too many."""
    for key, value in tags.items():
        check_tag(key, value)
    check_tag_names(tags.keys())


def check_run_id(value: Any) -> str:
    """Return a run id that passes `check_id`; `RunIDRequiredError` if it is empty or blank."""
    if isinstance(value, str) and (not value or value.isspace()):
        raise RunIDRequiredError(
            f"run id {shown(value)} is empty or blank: give a run_id, or leave it out to have one made", value=value
        )
    return check_id(value, "run id")


def _check_retention(given: Any) -> None:
    from milepost.model.upkeep import Retention

    if not isinstance(given, Retention):
        raise OptionError(
            f"retention must be a Retention, not {shown(given)}: Retention(keep_last=3)", option="retention"
        )


class Store(abc.ABC):
    """The home of journals. Subclass this to add a store; `StoreContract` tests it.

    A store is thread-safe. It is usable after `fork()`: the child has no tokens, and never touches inherited resources.

    Every store takes `clock`, its source of time, and `retention`, the policy by which it deletes old data on its own.
    `signing_key` has key ids and secrets: the first key seals records and all verify, so that nobody without a key can
    change a record unnoticed (`allow_unsealed` accepts records written without a key). `encryption_key` has key ids and
    secrets of 32 bytes: the first encrypts states and texts and all decrypt (`allow_plain` accepts unencrypted data).
    With `read_only` a store opens what is there: it makes and migrates nothing, and verbs that write raise `StoreError`.
    """

    place: str
    """The store's absolute path or address, for messages; without passwords."""
    can_encrypt: bool = False
    """True if the store can encrypt with `encryption_key`; a store that cannot refuses the key."""
    is_blocking: bool = True
    """True if a call may wait for a disk or a network; False: an event loop may call the store itself."""
    can_park: bool = True
    """False if a run that waits, or that is held, would be lost with this process."""
    can_fork: bool = True
    """False if no run can be forked out of the store or into it."""
    takes_ropes: bool = False
    """True if the payload of a record that `append` is given may be a `Rope`; see `Record`."""
    runs_statements: bool = False
    """True if an append may have statements; other stores refuse them with `OptionError`."""
    keeps_live: bool = False
    """True if `write_live` keeps live events for `read_live`. Runs in other stores tell them in their own process only.
    """
    is_read_only: bool = False
    """True if the store was opened with `read_only`."""

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM,
        entropy: Callable[[int], bytes] | None = os.urandom,
        retention: Retention | None = None,
        signing_key: Mapping[str, bytes] | None = None,
        allow_unsealed: bool = False,
        encryption_key: Mapping[str, bytes] | None = None,
        allow_plain: bool = False,
        read_only: bool = False,
    ) -> None:
        if retention is not None:
            _check_retention(retention)
        self.clock = clock
        self.entropy = entropy
        """A function that gives random bytes for the start of a run; None: runs draw their numbers from their ids."""
        self.retention = retention
        self.is_read_only = read_only
        self.flush_live: Callable[[], None] = lambda: None
        """A function that writes the live events that wait in this process; to be called before the store is closed."""
        if encryption_key is not None and not self.can_encrypt:
            raise OptionError(
                f"{type(self).__name__} can't encrypt: leave out encryption_key, or use another store",
                option="encryption_key",
            )
        self.seals = Seals(
            signing_key, allow_unsealed=allow_unsealed, encryption_ids=tuple(encryption_key) if encryption_key else ()
        )
        self.export_seals = seals_of_exports(self.seals, encryption_key, allow_plain=allow_plain)
        """The seals that prove a whole export."""

    def _take_options(self, other: Store) -> None:
        """Take the keys, the retention and the clock of another store instead of its own, before anything is done."""
        self.clock, self.entropy = other.clock, other.entropy
        self.retention, self.seals, self.export_seals = other.retention, other.seals, other.export_seals

    def draw_entropy(self) -> str | None:
        """Draw the 128 random bits of a start record, as 32 hex digits; None: its run draws its numbers from its id."""
        return None if self.entropy is None else self.entropy(16).hex()

    def draw_life(self) -> str:
        """Draw the id of the life of a run: 72 random bits, as 12 letters of URL-safe Base64."""
        draw = os.urandom if self.entropy is None else self.entropy
        return base64.urlsafe_b64encode(draw(9)[:9]).decode()

    # -- the journal and its fence -----------------------------------------------------------------

    @abc.abstractmethod
    def create(self, new: NewRun) -> Token:
        """Write the run row and record 0 in one write, with epoch 1.

        With status `ready` the run has no owner and the token cannot be used. Raises `RunExistsError` (with the run's
        `status`) if the id is taken, also if another process creates it at the same time.
        """

    @abc.abstractmethod
    def claim(self, claim: Claim) -> Claimed:
        """Change the owner and insert the owner record, in one write; see `Claim` and `Claimed`.

        A claim succeeds if the run is free, if its lease has ended, if a verb of this store object that has ended still
        holds the token (`abandoned`, counted as no crash), or with `takeover`. A claim over an ended lease adds 1 to
        the crash count, which begins at 0 again once a checkpoint was recorded since. If the count reaches
        `max_crashes` (None: never), the run becomes `blocked` instead, with the reason, and so is every later claim
        without `reopen`. Of two claims from one reading one wins, the other is `moved` or `locked`. Raises
        `RunNotFoundError`.
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
        """Claim up to `limit` runs of `flows` that a worker may go on with, oldest first, flows in turn.

        These are runs that are `ready` and their time has come, that are `waiting` and their time is over, that have an
        open cancel and no live owner, that are `running` with an ended lease, or that were `interrupted` while a worker
        owned them. `skip` has the ids of runs that this worker refused. Each run is claimed as by `claim`, with an
        owner record that the store makes; but a claim after a token that is `abandoned` counts as a crash here, so that
        a run which can't be released is not claimed for ever. [] without flows. TypeError for a number that is no int
        and for names that are no str, ValueError for a `limit` or `max_crashes` below 1, `OptionError` for a lease that
        is no time.
        """

    @abc.abstractmethod
    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        """Write the appends of several runs in one commit; return a verdict for each, in order.

        They are durable on return. The verdict of one append does not affect another. A `StoreError` means that none of
        the batch was written.

        The owner of a live run applies `keep_last`, again after each `keep_last` visits of a node, and takes at most a
        twentieth of its time for it. Older visits are deleted as in `prune`, in the write of new records, so that a
        verb that has read deleted records begins anew.

        An append with statements is a batch of its own (else ValueError) and has a transaction of its own, in which the
        statements follow the fence and the records, in order; with any verdict but `written` none is executed.
        `StatementError`: a statement failed, or may not stand in a transaction, and nothing was written.
        """

    @abc.abstractmethod
    def renew(self, tokens: Sequence[Token]) -> list[Renewal]:
        """Extend the leases of `tokens` by their length from now, in one write; give an outcome for each, in order."""

    @abc.abstractmethod
    def release(self, token: Token, release: Release) -> Verdict:
        """Give the run up without a record, as `append` with no records does."""

    @abc.abstractmethod
    def abandon(self, token: Token) -> None:
        """Note that the verb which held `token` has ended without a release.

        This never fails, not even after `close()`, and does not use the backend.
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
        """Read records with `after` < sequence < `before` of these kinds and this node, superseded ones included.

        They come in order, or with `newest` from the newest back; at most `limit`. [] for an unknown run. TypeError for
        numbers that are no int, ValueError for a `limit` below 1. An index serves the query, so the newest record of a
        node costs the same in a long journal. Nothing is checked: `seals.check` does that.
        """

    @abc.abstractmethod
    def latest(self, run_id: str, *, before: int | None = None, with_nodes: bool = False) -> RunSnapshot:
        """Read the present state of a run, at a cost that does not depend on its history. Raises `RunNotFoundError`.

        `with_nodes` asks for `nodes` and `start` too, at a cost that grows with the number of nodes but not of their
        visits. `before`: only records below that sequence count for the point and the tail; `newest` stays that of the
        journal.
        """

    @abc.abstractmethod
    def get_run(self, run_id: str) -> RunRow:
        """Read the run's row; a failed run's info has its `error`, if the record of it is sound.

        Raises `RunNotFoundError`.
        """

    @abc.abstractmethod
    def put_signal(
        self,
        run_id: str,
        name: str,
        payload: bytes | None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
        by: str | None = None,
    ) -> Literal["taken", "kept", "duplicate"]:
        """Store a signal and raise the run's count in one write, which also makes a run that waits for it `ready`.

        taken: a visit waits for the signal · kept: none does yet, and the run goes on waiting · duplicate: that
        `signal_id` was sent before, and nothing is stored. A wait whose time is over takes no signal. `to` names one
        wait; `by` says who sends it, in 512 bytes at most, and is stored with it. Raises `SignalRefusedError`, and
        stores nothing, if the run does not wait there, if the payload does not fit the `schema` of the wait that the
        signal is for, and while a cancel is open. Raises `RunNotResumableError` for a run that is finished or
        cancelled, and `RunNotFoundError`.
        """

    @abc.abstractmethod
    def signals(self, run_id: str, *, after: int = 0) -> list[Signal]:
        """Read the signals numbered above `after`, in order; [] for an unknown run. TypeError if `after` is no int."""

    @abc.abstractmethod
    def request_cancel(
        self, run_id: str, reason: str = "", sequence: int | None = None, *, by: str | None = None
    ) -> Literal["cancelled", "requested", "ended"]:
        """Request the cancellation of a run. `by` says who asks, in 512 bytes at most.

        `sequence` is the record up to which the caller saw that no rollback is open (None: some are). Without a live
        owner and with no newer record the run is cancelled in the same write, with a finish record (which has `by`) and a new
        epoch. Else the cancel is open, and every append and renewal reports it, until a release to an ended status closes it.
        A run that is finished or cancelled is left as it is ("ended"). Raises `RunNotFoundError`.
        """

    @abc.abstractmethod
    def cancels(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the requests of open cancels among `run_ids`, by run id; `read_cancel` reads them.

        Must be cheap: it is called every second.
        """

    # -- live events -----------------------------------------------------------------------------------

    def write_live(self, batches: Sequence[LiveBatch]) -> None:  # noqa: B027 - a store need not keep live events
        """Keep live events of several runs for a short time, and delete those that a batch says are forgotten.

        They need not survive a crash, and nothing here waits for a disk or for a lock of the journal. A thread of its
        own calls this, never that of a run. Events of ten minutes ago are deleted, also when a store is opened. An
        event that is there already is replaced.
        """

    def read_live(self, run_id: str, *, after: Place = (0, 0), limit: int = 1000) -> builtins.list[LiveEvent]:
        """Read live events whose epoch and number are above `after`, in order, at most `limit`; [] for an unknown run.

        An event that was changed by somebody without the store's keys is left out.
        """
        return []

    # -- workers and schedules -------------------------------------------------------------------------

    def beat(self, info: WorkerInfo) -> None:  # noqa: B027 - a store need not keep beats
        """Keep what a worker tells of itself in place of what it told before, with the store's time, for 24 hours.

        A worker calls this every 15 seconds. It need not survive a crash, and waits for no lock of the journal.
        """

    def workers(self) -> tuple[WorkerInfo, ...] | None:
        """Return the workers that have beaten in the last 24 hours, by the time at which they started.

        None: nobody can tell. So does a store that keeps no beats, and one that is opened to read only and has none.
        What was changed by somebody without the store's keys is left out.
        """
        return None

    def pause_schedule(self, name: str, *, by: str | None = None) -> None:
        """Have no worker start runs by the schedule `name`, whether a worker has it or not, until it is resumed.

        Times that pass meanwhile are not made up for. `by` says who asks. `StoreError`: the store keeps no pauses.
        """
        self._refuse_pauses("pause_schedule")

    def resume_schedule(self, name: str, *, by: str | None = None) -> None:
        """Have workers start runs by the schedule `name` again, from its next time on; nothing if it is not paused."""
        self._refuse_pauses("resume_schedule")

    def paused_schedules(self) -> Mapping[str, SchedulePause]:
        """Return the schedules that are paused, by name. A worker asks before it starts a run that is due."""
        return {}

    def _refuse_pauses(self, op: str) -> NoReturn:
        raise StoreError(
            f"the store {self.place} keeps no pauses of schedules: leave the schedule out of the worker's code",
            store=self.place,
            op=op,
        )

    # -- views: by run and node, and bytes -----------------------------------------------------------

    @abc.abstractmethod
    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        """Record a new visit of a node from outside a run; atomic and durable on return.

        The record takes the next number and the next epoch in one write, so that a frozen owner is fenced off. An
        unknown run is created with status `interrupted`; a run that had ended gets that status too. `load` gives the
        same bytes, whatever they are. Raises `RunLockedError` while a lease is live, also from inside a node of the
        run.
        """

    @abc.abstractmethod
    def load(self, run_id: str, node_id: str, visit: int | None = None) -> bytes:
        """Return the envelope of a node's newest visit that is not superseded, or of `visit`, superseded or not.

        `Checkpoint.decode` reads it, also where the state is no compact JSON: then it is in `data` as base64.
        Raises `CheckpointNotFoundError`, which has the store's `place`, and TypeError if `visit` is no int.
        """

    @abc.abstractmethod
    def list(self, run_id: str) -> list[CheckpointInfo]:
        """List the newest live visit of each node, ordered by sequence; [] for an unknown run."""

    @abc.abstractmethod
    def history(self, run_id: str) -> builtins.list[CheckpointInfo]:
        """List every visit, ordered by sequence, superseded ones marked; [] for an unknown run."""

    @abc.abstractmethod
    def delete(self, run_id: str, node_id: str, *, force: bool = False) -> None:
        """Delete all visits of a node, with an owner record (and a new epoch) that says so; no error if there are none.

        The node's failure records are deleted too. Visits are counted on: the next one has a number that was never
        used. A run that had finished with the node is interrupted then: a resume runs that node again. Raises
        `RunLockedError` while a lease is live, unless `force`.
        """

    @abc.abstractmethod
    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        """Delete a run with all that belongs to it; no error if there is none.

        Raises `RunLockedError` while a lease is live, unless `force`. `force` also deletes a run that can't be read.
        Without `force` such a run raises `StoreError`, because its owner is unknown.
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
        created_before: datetime | None = None,
        created_after: datetime | None = None,
        run_id_prefix: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RunPage:
        """Return a page of runs by creation, newest first; `after` is the id of the last run on the page before.

        That run may have been deleted since, if this store object gave the page that it ended. Any other missing run
        raises `RunNotFoundError`, because the run that follows it is unknown.
        `status` is one status or several, `dead` included; `tags` must all match. ValueError if `limit` is below 1,
        TypeError for a value of another type, `OptionError` for a time without a zone.
        `created_before` and `created_after` bound the walk: it begins and ends where the runs of that time were taken in. It
        may pass over a run that more than a thousand others separate from those of its time, as an import or a wrong clock
        can do. Filters that no index serves are compared for at most 100 000 runs, and then the page has `stopped_after`:
        a tag beside another filter, a time of the last change or the beginning of an id that more than 10 000 runs have.
        A run with a damaged row hides no other run: it is listed as `blocked`, with a `reason` that says so. To find such
        rows, a page of `blocked` runs reads all rows that the other filters leave. No state is read, and nothing stays
        locked or open on return. A failed run's `error` is given without its traceback, if its end is near the newest
        record.
        """

    def count_runs(
        self,
        *,
        flow: str | None = None,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 1001,
    ) -> int:
        """Count the runs that match all filters, up to `limit`: so 1001 says "more than 1000", at a bounded cost.

        `status` is one status or several, `dead` included, by what stands in the rows: a run with a damaged row counts with
        the status that its row still has. An index serves flow and status, or one tag; further filters beside a tag are
        checked on the runs that have it. ValueError if `limit` is below 1, TypeError for a value of another type.
        """
        return len(self.list_runs(flow=flow, status=status, tags=tags, limit=limit))

    def flows(self, limit: int = 200) -> tuple[str, ...]:
        """Return the names of the flows that have runs, sorted, at most `limit`, by steps through an index.

        Runs that were only saved from outside have no flow. ValueError if `limit` is below 1.
        """
        check_number(limit, "limit", least=1)
        names: set[str] = set()
        after: str | None = None
        while page := self.list_runs(limit=1000, after=after):
            names |= {info.flow for info in page}
            after = page[-1].run_id
        return tuple(sorted(names - {""})[:limit])

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
        """Delete runs, and visits of runs, that nobody needs any more, and nothing that the arguments do not ask for.

        Only runs with one of `statuses` (`dead` included) are pruned, and never one with a live owner. A run that can't
        be read has the status `blocked`, as `list_runs` shows it, or the one that its row still has, and is only
        deleted as a whole. `older_than`: a run whose last activity is that long ago, in seconds or a timedelta, is
        deleted with all that belongs to it. `keep_last`: in every other run each node keeps that many visits, the
        newest ones, and superseded ones only if there are too few others; the records of a visit are deleted with it.
        The start, the end, changes of owner and replies stay. So does the newest record of a node, by which visits are
        counted on, and all that the resume of a visit that stays needs: its fork with all branches, the state around
        its sub-graph, and the newest record of all. The record after deleted ones names them (`verify` needs that), so a
        store that lacks its key passes the run over. The row takes a new epoch, so that a verb that has read deleted
        records begins anew; the time of the last activity stays.

        Each run has a write of its own, all or nothing, so that other writers get their turn in between. With `dry_run`
        nothing is changed. `OptionError` without `older_than` and `keep_last`, and for values that make no sense.
        """

    @abc.abstractmethod
    def tidy(self, run_id: str | None = None) -> None:
        """Apply `retention` to runs that finished or were cancelled.

        With a run id, at the end of that run: thin it and, at most once a minute, delete a bounded number of old runs.
        Without one, in a worker: delete and thin all. This never raises: a failure is logged as a warning. It costs
        nothing without `retention`.
        """

    @abc.abstractmethod
    def stats(self) -> Stats:
        """Measure the store, as of one moment; the cost grows with the store."""

    @abc.abstractmethod
    def export(self, run_id: str) -> bytes:
        """Write a run as JSON, one object a line: the run, its records in order as envelopes, its signals.

        Bytes that are no JSON, or would not come back the same (saves from outside, a signal's payload), are in `data`
        as base64. The run's line has all of its row but the nonce. Raises `RunNotFoundError`.
        """

    @abc.abstractmethod
    def import_run(self, data: bytes, *, run_id: str | None = None) -> str:
        """Store the run that `export` gave, from a store of any kind, in one write; return its id, or a given `run_id`.

        Everything is checked first: `CheckpointCorruptError` (`CheckpointIntegrityError` for a digest or seal that does
        not fit, `CheckpointVersionError` for a newer form) names the line, and nothing is stored. Records are sealed
        anew. A store with a signing key takes only what a key of its own has sealed as a whole. With
        `allow_unsealed=True` it takes all, and what no key proves gets no seal of a key. Without a signing key import
        only files that you trust. Nobody owns the copy: a running run becomes `interrupted`, and the epoch is a new
        one. All else comes back equal, times and waits included. Raises `RunExistsError` if the id is taken.
        """

    @abc.abstractmethod
    def seal_run(self, run_id: str) -> None:
        """Vouch for a run that was begun without the store's keys: seal and encrypt all of it with them.

        The store must have been opened with `allow_unsealed=True` (`allow_plain=True` where it only encrypts). All is checked
        first as `verify` does, and nothing is changed if a record is damaged: `CheckpointIntegrityError`,
        `CheckpointCorruptError`. From then on the run needs neither option, and counts as verified. Somebody must have
        looked at it: whatever was changed before is sealed too. If the store fails in the middle, call it again. Raises
        `RunLockedError` if somebody owns the run, `OptionError` if the store has no keys.
        """

    @abc.abstractmethod
    def verify(self, run_id: str) -> VerifyReport:
        """Check every digest, seal, number and gap of a run without a change. Raises `RunNotFoundError`.

        Saves from outside are checked against the saved bytes, whatever these are. Numbers may be missing only before a
        record that names them as deleted.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Wait for writes that have begun, then release all resources; a second call is no error."""

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
