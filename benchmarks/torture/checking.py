"""The verdict: what the journals and the outside log must say of runs whose processes were killed and frozen.

Nothing of the library is used here, so that a fault of it can't hide itself. A journal is what a store exported, the log
is what nodes wrote to a file of their own, and disturbances are what was done to the processes.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

__all__ = ["Disturbance", "Entry", "Execution", "Fault", "Journal", "Log", "Saved", "Verdict", "judge", "path_of"]

Visit = tuple[str, int]
"""A node and the number of its visit, from 1."""


def path_of(nodes: int) -> tuple[Visit, ...]:
    """The way of a run through `nodes` nodes (at least 3): a line, then a loop of two nodes for a fifth of it or more."""
    rounds = max(1, nodes // 5)
    line = [(f"line-{number}", 1) for number in range(1, nodes - 2 * rounds + 1)]
    return (*line, *((node_id, visit) for visit in range(1, rounds + 1) for node_id in ("turn", "back")))


class Entry(NamedTuple):
    """One record of a journal. `fields` are those of its envelope, the state included."""

    sequence: int
    kind: str
    node_id: str
    visit: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Journal:
    """What a store keeps of a run, in the order in which it gives it."""

    run_id: str
    status: str
    live: tuple[tuple[int, int | None], ...]
    """First and last number of what counts, None for no end; empty: all."""
    entries: tuple[Entry, ...]
    damage: tuple[str, ...] = ()
    """What was found while it was read: a digest that does not fit, say."""


class Execution(NamedTuple):
    """One call of a node. Times are POSIX seconds."""

    run_id: str
    node_id: str
    visit: int
    attempt: int
    pid: int
    at: float


class Saved(NamedTuple):
    """A checkpoint that was reported durable to the process that wrote it."""

    run_id: str
    sequence: int
    node_id: str


@dataclass(slots=True)
class Log:
    """What the workers wrote outside the store."""

    executions: list[Execution] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    lost: int = 0
    """How often an owner was told that its run has another one."""
    errors: Counter[str] = field(default_factory=Counter)
    """What the store failed with, in words."""


class Disturbance(NamedTuple):
    """What was done to a process (None: to all of them), from when to when."""

    kind: str
    pid: int | None
    began: float
    ended: float


class Fault(NamedTuple):
    """One thing that must not be."""

    kind: str
    run_id: str
    told: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of all runs."""

    faults: tuple[Fault, ...]
    again: int
    """Executions beyond the first of each visit."""
    stalled: int
    """Those of them of which the only cause is that a process stood still: nobody had killed or frozen it."""
    takeovers: int
    """Changes of owner after the one before was gone."""
    rescued: int
    """Ends that were none: a run failed with its store, and was resumed."""
    offered: int
    """Late writes, as owners were told of them."""
    accepted: int
    """Late writes that count all the same."""


def judge(
    run_ids: Sequence[str],
    path: Sequence[Visit],
    journals: Mapping[str, Journal],
    log: Log,
    disturbances: Sequence[Disturbance],
    lease: float,
) -> Verdict:
    """Judge runs that each had to follow `path`; `lease` is how long a run stays with an owner that says nothing."""
    faults = list[Fault]()
    for run_id in run_ids:
        journal = journals.get(run_id)
        if journal is None:
            faults.append(Fault("not ended", run_id, "the store has no such run"))
        else:
            faults += (Fault(kind, run_id, told) for kind, told in _faults_of(journal, path))
    faults += _unkept_promises(journals, log.saved)
    calls_of = defaultdict[str, list[Execution]](list)
    for made in sorted(log.executions, key=lambda made: made.at):
        calls_of[made.run_id].append(made)
    excuses = _Excuses(disturbances, calls_of, journals, lease)
    repeats = [repeat for calls in calls_of.values() for repeat in _repeats(calls, excuses)]
    faults += (Fault("ran again", repeat.run_id, str(repeat)) for repeat in repeats if repeat.is_needless)
    for run_id, calls in calls_of.items():
        if run_id in journals:
            faults += (Fault("ran again", run_id, told) for told in _late_calls(journals[run_id], calls, excuses))
            faults += (Fault("ran again", run_id, told) for told in _unowned_calls(journals[run_id], calls, path))
    entries = [entry for journal in journals.values() for entry in journal.entries]
    return Verdict(
        tuple(faults),
        again=sum(repeat.times - 1 for repeat in repeats),
        stalled=sum(repeat.times - 1 - repeat.struck for repeat in repeats if repeat.struck < repeat.times - 1),
        takeovers=sum(entry.kind == "owner" and bool(entry.fields.get("crashed")) for entry in entries),
        rescued=sum(entry.kind == "finish" and entry.fields.get("status") == "failed" for entry in entries),
        offered=log.lost,
        accepted=sum(fault.kind == "late write" for fault in faults),
    )


# -- one journal ---------------------------------------------------------------------------------------


def _faults_of(journal: Journal, path: Sequence[Visit]) -> Iterator[tuple[str, str]]:
    yield from (("damage", told) for told in journal.damage)
    if journal.status != "finished":
        yield "not ended", f"its status is {journal.status}"
    yield from _faults_of_numbers(journal.entries)
    yield from _faults_of_owners(journal.entries)
    yield from _faults_of_work(journal, path)


def _faults_of_numbers(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    expected = 0
    for entry in entries:
        if entry.sequence > expected:
            yield "gap", f"record {entry.sequence} follows record {expected - 1}"
        elif entry.sequence < expected:
            yield "doubled number", f"record {entry.sequence} comes after record {expected - 1}"
        expected = max(expected, entry.sequence + 1)


def _faults_of_owners(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """A record counts for the owner of its time: a lower epoch was written by one who had lost the run already."""
    current = 0
    for entry in entries:
        epoch = entry.fields.get("epoch")
        what = f"record {entry.sequence} ({entry.kind} {entry.node_id}) has epoch {epoch}"
        if not isinstance(epoch, int):
            yield "epoch", what
        elif entry.kind in {"start", "owner"}:
            if epoch != current + 1:
                yield "epoch", f"{what}, and the owner before it had {current}"
            current = max(current, epoch)
        elif epoch < current:
            yield "late write", f"{what}, and the owner at that time had {current}"
        elif epoch > current:
            yield "epoch", f"{what}, which no owner had: the newest had {current}"


def _faults_of_work(journal: Journal, path: Sequence[Visit]) -> Iterator[tuple[str, str]]:
    """The live checkpoints must be the path, each with the state that the nodes up to it make."""
    done = [entry for entry in journal.entries if entry.kind == "checkpoint" and _is_live(entry, journal.live)]
    times = Counter((entry.node_id, entry.visit) for entry in done)
    for visited in times - Counter(path):
        yield "checkpoint too many", f"{visited[0]}#{visited[1]} has {times[visited]} that count"
    for node_id, visit in (Counter(path) - times) if journal.status == "finished" else ():
        yield "checkpoint missing", f"{node_id}#{visit} has none that counts"
    if times == Counter(path) and [(entry.node_id, entry.visit) for entry in done] != list(path):
        yield "order", "its checkpoints are not in the order of the flow"
    trail = [f"{node_id}#{visit}" for node_id, visit in path]
    for number, entry in enumerate(done, 1):
        if entry.fields.get("state") != {"run": journal.run_id, "trail": trail[:number]}:
            yield "wrong state", f"checkpoint {entry.sequence} ({entry.node_id}#{entry.visit}) has another state"
    last = journal.entries[-1] if journal.entries else None
    if journal.status == "finished" and (
        last is None
        or last.kind != "finish"
        or last.fields.get("status") != "finished"
        or not done
        or last.fields.get("result") != done[-1].sequence
    ):
        yield "wrong end", "its last record does not end it with its last checkpoint"


def _is_live(entry: Entry, live: Sequence[tuple[int, int | None]]) -> bool:
    return not live or any(first <= entry.sequence and (last is None or entry.sequence <= last) for first, last in live)


# -- journals beside the log ---------------------------------------------------------------------------


def _unkept_promises(journals: Mapping[str, Journal], saved: Iterable[Saved]) -> Iterator[Fault]:
    """What was reported durable is there, wherever the process that heard so was killed."""
    known = {
        (run_id, entry.sequence, entry.node_id)
        for run_id, journal in journals.items()
        for entry in journal.entries
        if entry.kind == "checkpoint"
    }
    for promise in saved:
        if promise not in known:
            yield Fault(
                "promise", promise.run_id, f"checkpoint {promise.sequence} at {promise.node_id} was reported saved"
            )


class _Excuses:
    """Which executions were disturbed, by what was done to their processes or because these stood still.

    A process that began nothing for long may not have been able to renew its leases either: it waited for another one
    that was frozen while it wrote, for a server, a disk or a processor.
    """

    def __init__(
        self,
        disturbances: Sequence[Disturbance],
        calls_of: Mapping[str, Sequence[Execution]],
        journals: Mapping[str, Journal],
        lease: float,
    ) -> None:
        self._lease = lease
        self._struck = [*disturbances]
        self._stalls = [
            Disturbance("stall", pid, began, ended)
            for pid, began, ended in (*_pauses(calls_of), *_slow_starts(calls_of, journals))
            if ended - began > lease / 2
        ]

    def explain_repeat(self, calls: Sequence[Execution], number: int, until: float, *, with_stalls: bool) -> bool:
        """Whether the call with that number may have been repeated, by the last of the repeats at `until`.

        Something must have come between the process's calls, in that run, before and after that one. A process that was
        held up may do some nodes more before it renews its leases, and lose the run only then.
        """
        before, after = self._neighbours(calls, number, until)
        found = (*self._struck, *self._stalls) if with_stalls else self._struck
        return any(
            d.pid in {None, calls[number].pid} and d.began <= min(after, until) and d.ended + self._lease / 3 >= before
            for d in found
        )

    def explain_late_call(self, calls: Sequence[Execution], number: int) -> bool:
        """Whether the call with that number may have come when its checkpoint was there already.

        A process that is held up just before it calls a node calls it afterwards. One that was killed does not.
        """
        call = calls[number]
        before, _ = self._neighbours(calls, number, call.at)
        return any(
            d.kind != "kill" and d.pid in {None, call.pid} and d.began <= call.at and d.ended >= before
            for d in (*self._struck, *self._stalls)
        )

    def _neighbours(self, calls: Sequence[Execution], number: int, until: float) -> tuple[float, float]:
        """When the process called a node of that run before that one, and after it."""
        call = calls[number]
        before = max((c.at for c in calls[:number] if c.pid == call.pid), default=call.at - self._lease)
        after = min((c.at for c in calls[number + 1 :] if c.pid == call.pid), default=until)
        return before, after


def _pauses(calls_of: Mapping[str, Sequence[Execution]]) -> Iterator[tuple[int, float, float]]:
    """From each call of a process to its next one, or to the end."""
    times_of = defaultdict[int, list[float]](list)
    for call in itertools.chain.from_iterable(calls_of.values()):
        times_of[call.pid].append(call.at)
    end = max(itertools.chain.from_iterable(times_of.values()), default=0.0)
    for pid, times in times_of.items():
        yield from ((pid, began, ended) for began, ended in itertools.pairwise((*sorted(times), end)))


def _slow_starts(
    calls_of: Mapping[str, Sequence[Execution]], journals: Mapping[str, Journal]
) -> Iterator[tuple[int, float, float]]:
    """From each change of owner to the new one's first call."""
    for run_id, calls in calls_of.items():
        for entry in journals[run_id].entries if run_id in journals else ():
            if entry.kind == "owner":
                claimed_at = _moment(entry)
                first = next((call for call in calls if call.at >= claimed_at), None)
                if first is not None:
                    yield first.pid, claimed_at, first.at


def _moment(entry: Entry) -> float:
    return datetime.fromisoformat(entry.fields["timestamp"]).timestamp()


class _Repeat(NamedTuple):
    """A visit that ran more than once."""

    run_id: str
    visited: Visit
    pids: tuple[int, ...]
    struck: int
    """How many of its executions fell into something that was done to their process."""
    excused: int
    """How many fell into that, or into a time in which their process stood still."""

    @property
    def times(self) -> int:
        return len(self.pids)

    @property
    def is_needless(self) -> bool:
        """Whether it ran more often than that explains: each explains the one execution that it fell into."""
        return self.excused < self.times - 1

    def __str__(self) -> str:
        who = ", ".join(map(str, self.pids))
        return f"{self.visited[0]}#{self.visited[1]} ran {self.times} times, by processes {who}: {self.excused} were disturbed"


def _repeats(calls: Sequence[Execution], excuses: _Excuses) -> Iterator[_Repeat]:
    by_visit = defaultdict[Visit, list[int]](list)
    for number, call in enumerate(calls):
        by_visit[call.node_id, call.visit].append(number)
    for visited, numbers in by_visit.items():
        if len(numbers) > 1:
            last = calls[numbers[-1]].at
            yield _Repeat(
                calls[0].run_id,
                visited,
                tuple(calls[number].pid for number in numbers),
                struck=sum(excuses.explain_repeat(calls, number, last, with_stalls=False) for number in numbers),
                excused=sum(excuses.explain_repeat(calls, number, last, with_stalls=True) for number in numbers),
            )


def _late_calls(journal: Journal, calls: Sequence[Execution], excuses: _Excuses) -> Iterator[str]:
    """Nodes that ran after their checkpoint was recorded, by a process that was not held up just before it."""
    recorded = {(entry.node_id, entry.visit): _moment(entry) for entry in journal.entries if entry.kind == "checkpoint"}
    for number, call in enumerate(calls):
        at = recorded.get((call.node_id, call.visit))
        if at is not None and call.at > at and not excuses.explain_late_call(calls, number):
            yield f"{call.node_id}#{call.visit} was called by process {call.pid} after its checkpoint was recorded"


def _unowned_calls(journal: Journal, calls: Sequence[Execution], path: Sequence[Visit]) -> Iterator[str]:
    """Each change of owner may cost one execution, and nothing else may."""
    owners = sum(entry.kind == "owner" for entry in journal.entries)
    if len(calls) > len(path) + owners:
        yield f"there were {len(calls)} executions of {len(path)} nodes, and {owners} changes of owner"
