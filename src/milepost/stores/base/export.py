"""Runs as text: export, import, and the records that a forked run begins with.

The first line is the run's row. Its records follow in order: each as its envelope; as its header and the bytes
of its state, if an envelope would change these; or as its place and its bytes, if it was saved from outside.
The signals come last, and then, from a store with a key, a seal of all lines before it. `read_run` trusts nothing:
it checks each line, and then that none is missing. Into a store with a key it takes only what such a seal proves.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    CheckpointVersionError,
    DeserializeStateError,
    InvalidIDError,
    OptionError,
)
from milepost.model.checkpoint import read_envelope
from milepost.model.info import Wait
from milepost.model.ranges import Ranges, ranges_of
from milepost.model.record import (
    CHECKPOINT,
    FORKED_FROM,
    NOT_JSON,
    OWNER,
    REPLY,
    START,
    Record,
    compress,
    digest_of,
    format_time,
    make_record,
    parse_time,
)
from milepost.model.seal import DIGESTS, KEYED, PLAIN, NumberGap, Seals, gap_of, is_link, prev_of
from milepost.store import (
    MAX_REASON_BYTES,
    MOST,
    Count,
    RunRow,
    Signal,
    check_id,
    check_run_id,
    check_tags,
    flaw_of_prompt,
    read_cancel,
)
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import saved_record

# -- Search for numbers that are missing in a journal without a deletion that says so ---------------


class Gaps:
    """A check of a journal's numbers. It is shown the records in order. `has_start`: the journal begins with a start record."""

    def __init__(self, *, has_start: bool) -> None:
        self.next = 0 if has_start else 1
        """The number that should come next: one more than the number that was shown last."""
        self._missing: list[tuple[int, int]] = []

    def pass_over(self, sequence: int, gap: NumberGap | None) -> None:
        """Note that a record with this number exists, and the gap that it names. Numbers must ascend."""
        first = sequence if gap is None else gap.first
        if first > self.next:
            self._missing.append((self.next, min(first, sequence) - 1))
        self.next = sequence + 1

    def problems(self, *, newest: int, status: str) -> list[str]:
        """Return one sentence for each problem. The run had `newest` when it became `status`."""
        problems = [
            f"record {first} is missing, without a deletion that says so"
            if first == last
            else f"records {first} to {last} are missing, without a deletion that says so"
            for first, last in self._missing
        ]
        if self.next <= newest:
            problems.append(
                f"the journal ends at record {self.next - 1}, but the run had record {newest} when it became {status}"
            )
        return problems


# The format of an exported run, lines of JSON: `export` writes it and `import_run` reads it. No I/O.


TEST_HEADER = b'{"test":'
"""The beginning of the line that `milepost record-test` puts before an export. An import passes over it."""
_encode = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
T = TypeVar("T")

_Number = Annotated[int, msgspec.Meta(ge=1, lt=MOST)]
_Moment = Annotated[float, msgspec.Meta(ge=-62_135_596_800, lt=253_402_300_800)]  # what a datetime can hold


class Copy(NamedTuple):
    """An imported run, without an owner. Headers are not sealed."""

    row: Row
    records: tuple[Record, ...]
    signals: tuple[Signal, ...]
    is_verified: bool
    """False if the store has a signing key, and took lines that no key proves."""
    gaps: Mapping[int, tuple[NumberGap, str]]
    """The gaps in the journal and the link at the end of each, by the number of the record that follows it."""


class _Run(msgspec.Struct, forbid_unknown_fields=True):
    """The row of a run as a line holds it. Older releases wrote fewer fields, so most fields have defaults."""

    run_id: str
    flow: str
    status: Literal["ready", "running", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked"]
    created_at: _Moment
    updated_at: _Moment
    epoch: Count
    owner: str = ""
    lease: float = 0.0
    lease_until: float | None = None
    reason: str = ""
    wake_at: _Moment | None = None
    waiting: tuple[Wait, ...] = ()
    crash_count: Count = 0
    crashed_at: Annotated[int, msgspec.Meta(ge=-1, lt=MOST)] = -1
    signals: Count = 0
    cancel: str | None = None
    degraded: bool = False
    missed: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    live: Ranges = ()
    worked: bool = False
    sequence: Count = 0
    blocked_by: Literal["", "crashes", "bug", "input", "value"] = ""


class _Place(msgspec.Struct):
    """The place of a record as its header holds it. Readers compare the two, so there are no other forms of it."""

    run_id: str
    sequence: Count
    node_id: str
    visit: _Number = 1
    kind: str = CHECKPOINT


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """A record from outside as a line holds it. `seal`, if the line has one, proves its place and bytes."""

    run_id: str
    node_id: str
    sequence: _Number
    visit: _Number
    timestamp: str | None
    data: str
    seal: str = ""
    prev: str = ""
    gap: Count | None = None
    """The first number of the gap before the record."""


class _Sent(msgspec.Struct, forbid_unknown_fields=True):
    """A signal as a line holds it. `data`, if there, counts instead of `payload`."""

    number: _Number
    name: str
    payload: msgspec.Raw
    signal_id: str | None
    to: str | None
    sent_at: _Moment
    by: str | None = None
    data: str | None = None


class _Seal(msgspec.Struct, forbid_unknown_fields=True):
    """The seal of all lines before it."""

    seal: str


# -- out ---------------------------------------------------------------------------------------------------


def lines_of(
    row: Row,
    records: Iterable[Record],
    signals: Iterable[Signal],
    envelope_of: Callable[[Record], bytes],
) -> list[bytes]:
    """Return the lines of a run. None contains a line break."""
    fields = {name: value for name, value in asdict(row).items() if value or name != "blocked_by"}
    del fields["nonce"], fields["seal"], fields["life"]
    lines = [_encode({"run": fields})]
    for record in records:
        envelope = envelope_of(record)
        if record.is_foreign:
            lines.append(_encode({"saved": _saved(row.run_id, record, envelope)}))
        else:
            lines.append(envelope)
    lines += [_encode({"signal": _sent(signal)}) for signal in signals]
    return lines


def _saved(run_id: str, record: Record, data: bytes) -> dict[str, Any]:
    gap = gap_of(record.header)
    fields = {} if gap is None else {"gap": gap.first}
    return {
        "run_id": run_id,
        "node_id": record.node_id,
        "sequence": record.sequence,
        "visit": record.visit,
        "timestamp": record.header_fields().get("timestamp"),
        "seal": _seal_of(run_id, record),
        "prev": prev_of(record.header or b"") or "",
        **fields,
        "data": base64.b64encode(data).decode(),
    }


def _seal_of(run_id: str, record: Record) -> str:
    """Return the digest that proves that a record from outside still has its bytes and its place."""
    return digest_of(_encode((run_id, record.node_id, record.sequence, record.visit)) + (record.payload or b""))


def _sent(signal: Signal) -> dict[str, Any]:
    fields = signal._asdict()
    if signal.by is None:
        del fields["by"]
    if signal.payload is None:
        return fields
    try:
        msgspec.json.decode(signal.payload)
        shown = msgspec.json.format(signal.payload, indent=-1)
        fields["payload"] = msgspec.Raw(shown)
    except NOT_JSON:  # a store takes any bytes
        fields["payload"] = shown = None
    if shown != signal.payload or shown == b"null":
        fields["data"] = base64.b64encode(signal.payload).decode()
    return fields


def joined(lines: Sequence[bytes], seals: Seals, *, is_verified: bool) -> bytes:
    """Join the lines of a run. If all its records were proven with a key, a last line seals the others."""
    text = b"\n".join(lines) + b"\n"
    # A store that only encrypts and takes what is plain can't tell what it has proven.
    if not (seals.is_keyed and is_verified) or (seals.unsealed is PLAIN and seals.accepts_unsealed):
        return text
    return b"%s%s\n" % (text, _encode({"seal": seals.seal_of(text).decode()}))


# -- in ----------------------------------------------------------------------------------------------------


def _parted(data: bytes, seals: Seals) -> tuple[bytes, bool]:
    """Return the lines without the seal at their end, and whether a store with these seals may vouch for them.

    Raise `CheckpointIntegrityError` if the seal does not fit, or if it is missing and must be there.
    """
    text = data.rstrip()
    start = text.rfind(b"\n") + 1
    seal = b""
    if text.startswith(b'{"seal":', start):
        seal = _as(msgspec.Raw(text[start:]), _Seal).seal.encode("utf-8", "replace")
        data = data[:start]
    if not seals.is_keyed:
        return data, True
    flaw = seals.flaw_of(data, seal) if seal.startswith(KEYED.encode()) else seals.unsealed
    if flaw is not None and not (seals.accepts_unsealed and flaw.act):
        act = flaw.act or "take a copy that was not"
        raise CheckpointIntegrityError(
            f"the run to import {flaw.what}: {act}", expected=flaw.expected, found=flaw.found
        )
    return data, flaw is None


def read_run(data: bytes, seals: Seals, run_id: str | None = None) -> Copy:
    """Read a run that `lines_of` wrote, under its own id or under `run_id`. Check seals whose keys are in `seals`.

    Raise `CheckpointCorruptError`, `CheckpointIntegrityError` or `CheckpointVersionError`; the message names the line.
    """
    if data.startswith(TEST_HEADER):
        data = data.partition(b"\n")[2]
    data, is_verified = _parted(data, seals)
    reader = _Reader(seals, run_id)
    number = 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            reader.read(line)
        except (*NOT_JSON, DeserializeStateError, InvalidIDError, OptionError, ValueError) as exc:
            raise _broken(exc, f"line {number} of the run to import") from exc
    try:
        return reader.copy(is_verified=is_verified)
    except DeserializeStateError as exc:
        raise _broken(exc, "the run to import") from exc


def _broken(exc: Exception, where: str) -> DeserializeStateError:
    text = f"{where}: {exc}"
    if isinstance(exc, CheckpointVersionError):
        return CheckpointVersionError(text, found=exc.found, supported=exc.supported)
    if isinstance(exc, CheckpointIntegrityError):
        return CheckpointIntegrityError(text, expected=exc.expected, found=exc.found)
    return CheckpointCorruptError(text)


class _Reader:
    """A reader of one run's lines, in order."""

    def __init__(self, seals: Seals, run_id: str | None) -> None:
        self._seals = seals
        self._run_id = run_id
        self._run: _Run | None = None
        self._gaps = Gaps(has_start=True)
        self._records: list[Record] = []
        self._gaps_of: dict[int, tuple[NumberGap, str]] = {}
        self._signals: list[Signal] = []

    def read(self, line: bytes) -> None:
        """Read the next line."""
        try:
            members = _decode_members(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise CheckpointCorruptError(f"it is no JSON object: {exc}") from exc
        if self._run is None:
            self._take_run(members)
        elif members.keys() == {"signal"}:
            self._take_signal(_as(members["signal"], _Sent))
        elif self._signals:
            raise CheckpointCorruptError("a record can't follow a signal: give the lines in the order of the export")
        elif members.keys() == {"saved"}:
            self._take_saved(self._run, _as(members["saved"], _Saved))
        elif members.keys() == {"header", "data"}:
            self._take_header(self._run, bytes(members["header"]), _base64(_as(members["data"], str)))
        else:
            self._take_envelope(self._run, line, members)

    def copy(self, *, is_verified: bool) -> Copy:
        """Return the run. Raise `CheckpointCorruptError` if a part of it is missing."""
        run = self._run
        if run is None:
            raise CheckpointCorruptError("there is no line in it: give what an export wrote")
        problems = self._gaps.problems(newest=run.sequence, status=run.status)
        if len(self._signals) != run.signals:
            problems.append(f"the run was sent {run.signals} signals, and there are {len(self._signals)}")
        if problems:
            raise CheckpointCorruptError("; ".join(problems) + ": give the whole of what an export wrote")
        return Copy(
            _unowned(run, self._run_id, self._gaps.next - 1),
            tuple(self._records),
            tuple(self._signals),
            is_verified,
            self._gaps_of,
        )

    def _take_run(self, members: Mapping[str, msgspec.Raw]) -> None:
        if members.keys() != {"run"}:
            raise CheckpointCorruptError("the first line must be the run, as an export writes it")
        run = _as(members["run"], _Run)
        check_run_id(run.run_id)
        check_tags(run.tags)
        _check_texts(run)
        if any(wait.wake_at is not None and wait.wake_at.tzinfo is None for wait in run.waiting):
            raise CheckpointCorruptError("the run waits until a time without a zone")
        self._run, self._gaps = run, Gaps(has_start=bool(run.flow))

    def _take_signal(self, sent: _Sent) -> None:
        check_id(sent.name, "signal name")
        if sent.signal_id is not None:
            check_id(sent.signal_id, "signal id")
        if sent.by is not None:
            check_id(sent.by, "by")
        if sent.number != len(self._signals) + 1:
            raise CheckpointCorruptError(f"signal {sent.number} follows signal {len(self._signals)}")
        payload = None if bytes(sent.payload) == b"null" else bytes(sent.payload)
        if sent.data is not None:
            payload = _base64(sent.data)
        self._signals.append(Signal(sent.number, sent.name, payload, sent.signal_id, sent.to, sent.sent_at, sent.by))

    def _take_saved(self, run: _Run, saved: _Saved) -> None:
        data = _base64(saved.data)
        moment = run.updated_at if saved.timestamp is None else parse_time(saved.timestamp).timestamp()
        record = self._saved(run, saved.sequence, saved.node_id, saved.visit, data, moment)
        seal = _seal_of(run.run_id, record)
        if saved.seal and saved.seal != seal:
            raise CheckpointIntegrityError(
                "what was saved from outside was changed after that: take a copy that was not",
                expected=saved.seal,
                found=seal,
            )
        gap = None if saved.gap is None else NumberGap(saved.gap)
        self._take_record(run, saved.run_id, record, gap, saved.prev)

    def _take_envelope(self, run: _Run, line: bytes, members: Mapping[str, msgspec.Raw]) -> None:
        fields, state = read_envelope(line)
        if fields.get("sequence") is None:
            raise CheckpointCorruptError("the record has no sequence")
        if bytes(members.get("version", b"")) != b"1" or ("state" in members and "digest" not in members):
            # No journal of ours has this form: it is stored as plain bytes.
            moment = parse_time(fields["timestamp"]).timestamp() if fields.get("timestamp") else run.updated_at
            node_id, visit = fields.get("node_id") or "", fields.get("visit") or 1
            record = self._saved(run, fields["sequence"], node_id, visit, line, moment)
            if (kind := fields.get("kind") or CHECKPOINT) != CHECKPOINT:
                raise CheckpointCorruptError(f"it is a {kind} of a form that no journal of this library has")
            self._take_record(run, fields.get("run_id"), record, None, "")
            return
        payload, packing = (state, "") if "state" in members else (None, "")
        if fields.get("compressed") is True:
            payload, packing = _base64(msgspec.json.decode(members["state"], type=str)), "zstd"
        self._take_own(run, members, 0 if payload is None else len(state), payload, packing)

    def _take_header(self, run: _Run, header: bytes, state: bytes) -> None:
        members, fields = _decode_members(header), msgspec.json.decode(header, type=dict[str, Any])
        seal, content = str(fields.get("seal")), header.rpartition(b',"seal":')[0]
        for what, expected, found in (
            ("digest does not fit its state", digest_of(state), str(fields.get("digest"))),
            ("seal does not fit its header", Seals().seal_of(content).decode(), seal),
        ):
            if expected != found and not found.startswith(KEYED):
                raise CheckpointIntegrityError(
                    f"the record was changed after it was written (its {what}): take a copy that was not",
                    expected=expected,
                    found=found,
                )
        packed = (compress(state), "zstd") if fields.get("compressed") is True else (state, "")
        self._take_own(run, members, len(state), *packed)

    def _take_own(
        self, run: _Run, members: Mapping[str, msgspec.Raw], size: int, payload: bytes | None, packing: str
    ) -> None:
        """Take a record that a journal of ours wrote, with the header that its `members` make."""
        texts = {name: bytes(raw) for name, raw in members.items() if name not in {"seal", "state"}}
        header = _header(texts)
        place = _as(msgspec.Raw(header + b"}"), _Place)
        self._check_seal(header, _as(members["seal"], str) if "seal" in members else "")
        for name in DIGESTS:  # the store makes them anew, for the form in which it stores the record
            texts.pop(name, None)
        if self._run_id is not None:
            texts["run_id"] = _encode(self._run_id)
        gap = _as(members["gap"], NumberGap) if "gap" in members else None
        prev = _as(members["prev"], str) if "prev" in members else ""
        record = Record(place.sequence, place.kind, place.node_id, place.visit, size, _header(texts), payload, packing)
        self._take_record(run, place.run_id, record, gap, prev)

    def _check_seal(self, header: bytes, seal: str) -> None:
        """Raise if a seal that was made with a known key does not fit. Seals without a key were checked earlier."""
        flaw = self._seals.flaw_of(header, seal.encode()) if seal.startswith(KEYED) else None
        # A seal whose key is missing can't be checked here, and may be sound.
        if flaw is not None and not flaw.act:
            raise CheckpointIntegrityError(
                f"the record {flaw.what}: take a copy that was not", expected=flaw.expected, found=flaw.found
            )

    def _saved(self, run: _Run, sequence: int, node_id: str, visit: int, data: bytes, moment: float) -> Record:
        return saved_record(self._run_id or run.run_id, sequence, node_id, visit, data, moment)

    def _take_record(self, run: _Run, run_id: str | None, record: Record, gap: NumberGap | None, prev: str) -> None:
        if run_id != run.run_id:
            raise CheckpointCorruptError(f"it is of run {run_id!r}, not of {run.run_id!r}")
        if record.node_id or record.kind == CHECKPOINT:
            check_id(record.node_id)
        if not (0 <= record.sequence < MOST and 1 <= record.visit < MOST):
            raise CheckpointCorruptError(f"it has number {record.sequence} and visit {record.visit}: no run gets there")
        for link in (prev, "" if gap is None else gap.link):
            if not is_link(link):
                raise CheckpointCorruptError(f"it has {link[:200]!r} in the place of a record's link")
        if self._records and record.sequence < self._gaps.next:
            raise CheckpointCorruptError(f"record {record.sequence} follows record {self._gaps.next - 1}")
        if gap is not None and record.sequence > self._gaps.next:
            self._gaps_of[record.sequence] = gap._replace(first=self._gaps.next), prev
        self._gaps.pass_over(record.sequence, gap)
        self._records.append(record)


def _check_texts(run: _Run) -> None:
    """Raise `CheckpointCorruptError` for a text in the row that is larger than any store takes it."""
    asked = "" if run.cancel is None else read_cancel(run.cancel)[0]
    texts = [("flow", run.flow), ("reason", run.reason), ("reason of its cancel", asked)]
    texts += [("name of a node", name) for name in run.missed]
    for wait in run.waiting:
        texts += [("id of a wait", wait.wait_id), ("name of a signal", wait.signal or "")]
        texts += [] if wait.refused is None else [("reason of a refusal", wait.refused.text)]
    for what, text in texts:
        if (size := len(text.encode())) > MAX_REASON_BYTES:
            raise CheckpointCorruptError(f"the {what} has {size} bytes: at most {MAX_REASON_BYTES} are taken")
    for wait in run.waiting:
        if (flaw := flaw_of_prompt(_encode(wait.prompt))) is not None:
            raise CheckpointCorruptError(f"the prompt of {wait.wait_id!r} {flaw}")


def _header(texts: Mapping[str, bytes]) -> bytes:
    """Build the header of a record, without a seal and without its closing brace."""
    return b"{" + b",".join(_encode(name) + b":" + text for name, text in texts.items())


def _unowned(run: _Run, run_id: str | None, newest: int) -> Row:
    """Build the row of an imported run, whose newest record is `newest`. No existing token is valid for it."""
    fields: dict[str, Any] = {name: getattr(run, name) for name in run.__struct_fields__}
    fields |= {"run_id": run_id or run.run_id, "epoch": run.epoch + 1, "owner": "", "lease": 0.0, "lease_until": None}
    fields["sequence"] = max(run.sequence, newest)  # older exports do not have it
    if run.status == "running":
        # Its owner may still run the original: no worker takes the copy before a person has looked at it.
        fields |= {"status": "interrupted", "reason": "it was running when it was exported", "worked": False}
    return Row(**fields)


def _as(raw: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise CheckpointCorruptError(f"{exc}: if a newer release wrote it, upgrade milepost") from exc


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise CheckpointCorruptError(f"it has data that are no base64: {exc}") from exc


# A fork: the beginning of a run, up to one of its records, as the lines of a run of its own. No I/O.
#
# `import_run` takes these lines, so a fork is stored as an import is: by a store of any kind, checked,
# sealed anew and in one write.


NOT_COPIED = "milepost.not-copied"
"""The name that replaces the name of a signal that is not copied, while one with a higher
number is. Nothing waits for it."""


class Prefix(NamedTuple):
    """The records of a run up to one of them, all checked, and what else is copied with them."""

    row: RunRow
    records: tuple[Record, ...]
    signals: tuple[Signal, ...]
    """All signals that were ever sent, or () if no record has used one."""
    is_verified: bool
    """True if all records were proven."""

    @property
    def sequence(self) -> int:
        """The number of the last record."""
        return self.records[-1].sequence


def missing_in(prefix: Prefix) -> list[str]:
    """Return one sentence for each gap among the records that no deletion explains."""
    gaps = Gaps(has_start=bool(prefix.row.flow))
    for record in prefix.records:
        gaps.pass_over(record.sequence, gap_of(record.header))
    return gaps.problems(newest=prefix.sequence, status="")


def lines_of_fork(
    prefix: Prefix,
    seals: Seals,
    export_seals: Seals,
    now: float,
    missed: Sequence[str],
    amendment: tuple[Mapping[str, Any], bytes | None] | None,
    *,
    ready: bool,
    by: str | None,
    entropy: str | None,
) -> bytes:
    """Return the lines of the fork, under the run id of its origin and sealed with the origin's `seals`, and together with its
    `export_seals`.

    `amendment` holds the fields of the owner record that amends the point, and the new state, encoded (None:
    unchanged). `ready`: workers take the fork; else it is left to be resumed.
    `by`: who forks, as the caller says. `entropy`: the random bits of the fork's start.
    """
    origin, records = prefix.row, list(prefix.records)
    epoch = origin.epoch
    if records[0].kind == START:
        records[0] = _with_origin(records[0], origin.run_id, prefix.sequence, seals, by, entropy)
    if amendment is not None:
        epoch += 1
        records.append(_amendment(prefix, seals, now, epoch, *amendment))
    signals = _signals(prefix)
    row = Row(
        origin.run_id,
        origin.flow,
        "ready" if ready else "interrupted",
        created_at=now,
        updated_at=now,
        epoch=epoch,
        reason="" if ready else f"it was forked from run {origin.run_id!r} at record {prefix.sequence}: resume it",
        signals=len(signals),
        degraded=bool(missed),
        missed=tuple(missed),
        tags={**origin.tags, FORKED_FROM: f"{origin.run_id}#{prefix.sequence}"},
        live=ranges_of(prefix.records),
        sequence=records[-1].sequence,
    )
    return joined(lines_of(row, records, signals, Record.envelope), export_seals, is_verified=prefix.is_verified)


def _with_origin(
    start: Record, run_id: str, sequence: int, seals: Seals, by: str | None, entropy: str | None
) -> Record:
    """Add the fork's origin to its start record. A fork of a fork names all its origins."""
    fields = dict(start.fields())
    fields.pop("seal", None)
    origin: dict[str, Any] = {"run_id": run_id, "sequence": sequence}
    origin |= {
        name: value for name, value in (("by", by), ("entropy", fields.pop("entropy", None))) if value is not None
    }
    if entropy is not None:
        fields["entropy"] = entropy
    if "origin" in fields:
        origin["origin"] = fields["origin"]
    return start._replace(header=seals.seal(_encode({**fields, "origin": origin})[:-1]))


def _amendment(
    prefix: Prefix, seals: Seals, now: float, epoch: int, origin: Mapping[str, Any], state: bytes | None
) -> Record:
    reason = "its router is to be asked again" if state is None else "its state was overridden"
    fields = {"verb": "fork", **origin, "epoch": epoch, "reason": reason}
    record = make_record(prefix.row.run_id, prefix.sequence + 1, format_time(now), OWNER, state=state, fields=fields)
    return seals.sealed(record)


def _signals(prefix: Prefix) -> list[Signal]:
    """Return the signals that the records have used, under their numbers. Of an unused one at most the number stays."""
    used = {record.fields().get("signal") for record in prefix.records if record.kind == REPLY}
    newest = max((number for number in used if isinstance(number, int)), default=0)
    return [
        signal if signal.number in used else Signal(signal.number, NOT_COPIED, None, None, None, signal.sent_at)
        for signal in prefix.signals
        if signal.number <= newest
    ]
