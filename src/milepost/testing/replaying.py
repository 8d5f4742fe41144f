"""A recorded run, played again with the flow as it is now: nothing is executed but what decides about its path.

The flow runs anew on a memory store. Each call of a node, step, item or rollback is answered with its recorded outcome,
each wait with its recorded reply, and time and random numbers are those of the record. Routers, merges, reducers, prompts,
predicates and the code of workflows run for real. So a difference between both journals is one of the flow's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from milepost.errors import OptionError, RunSuspended
from milepost.executor.flow import Flow
from milepost.executor.history_values import COUNTED_FAILURES
from milepost.model.failure import describe
from milepost.model.record import CONTINUE
from milepost.stores.memory import MemoryStore
from milepost.testing.answering import Player, Unrecorded, is_part_of
from milepost.testing.comparing import first_difference, json_changes
from milepost.testing.recorded import RecordedRun, RecordedVisit
from milepost.testing.recorded_errors import RecordedRetry
from milepost.verbs import Verbs, flow_of

__all__ = ["Replay", "ReplayDifference", "UnrecordedCall", "read_recorded", "replay"]

_LEASE = 86400.0 * 366 * 10


class ReplayDifference(AssertionError):
    """The error of a replay that does not go as the run did. `visit` is the first visit that differs; None: the end does."""

    def __init__(self, text: str, visit: RecordedVisit | None = None) -> None:
        super().__init__(text)
        self.visit = visit


class UnrecordedCall(ReplayDifference):
    """The error of a replay that asks for a call whose outcome is not in the record. Nothing was called."""


def replay(file: str | Path | bytes, flow: Verbs[Any], *, run: Collection[str] = (), **options: Any) -> Replay:
    """Play a recorded run again with `flow` as it is now, and return what came of it.

    `file` is what `milepost record-test` or `milepost export` wrote, or its bytes. `run` names nodes or steps that run
    for real, on the recorded state before them. `options` such as `deps` and `config` are for the code that runs. Raises
    `OptionError` for a run of another flow and a name in `run` that it does not call, and the errors of
    `Store.import_run` for a damaged file.
    """
    data = file if isinstance(file, bytes) else Path(file).read_bytes()
    return Replay(data, flow_of(flow), run, options)


def read_recorded(data: bytes) -> RecordedRun:
    """Read a run that `milepost record-test` or `milepost export` wrote."""
    with MemoryStore() as store:
        return RecordedRun.of(store, store.import_run(data))


class Replay:
    """A recorded run that was played again. `check` compares the replay with the record."""

    def __init__(self, data: bytes, flow: Flow, run: Collection[str], options: Mapping[str, Any]) -> None:
        self.recorded = read_recorded(data)
        info = self.recorded.row.info
        if flow.name != info.flow:
            raise OptionError(f"run {info.run_id!r} is one of flow {info.flow!r}, not of {flow.name!r}", option="flow")
        self._flow = flow
        self._result: Any = None
        self._end: BaseException | None = None
        player = Player(self.recorded, flow, frozenset(run))
        entropy = self.recorded.start.fields.get("entropy")
        bits = None if entropy is None else bytes.fromhex(str(entropy))
        with MemoryStore(clock=player.clock, entropy=None if bits is None else lambda size: bits) as store:
            try:
                self._play(player, store, info.run_id, options)
            except (Exception, Unrecorded) as end:
                self._end = end
            self.replayed = RecordedRun.of(store, info.run_id)
        recorded = {visit.node_id for visit in self.recorded.visits}
        for name in sorted({*run} - player.executed):
            if not any(is_part_of(node_id, name) for node_id in recorded):
                raise OptionError(f"run {info.run_id!r} calls no {name!r}, which run= names", option="run")

    def _play(self, player: Player, store: MemoryStore, run_id: str, given: Mapping[str, Any]) -> None:
        options = {
            "isolate": True,
            "max_iterations": None,
            "retry": RecordedRetry(backoff=0),
            "lease": _LEASE,
            **given,
            "on_wait": "suspend",
        }
        start, flow = self.recorded.start, player.flow
        amended = self.recorded.history.overrides.get(start.sequence)
        data = start.record.state() or b"{}" if amended is None else amended[0]
        self._result = player.play(store, run_id, options, flow.input_of(data))
        for turn in self.recorded.turns:
            self._result = player.play(store, run_id, {**options, "if_exists": CONTINUE}, flow.codec.decode(turn.state))

    @property
    def result(self) -> Any:
        """The result of the run, as `run(full=True)` returns it. Raises what the run ended with, or `UnrecordedCall`."""
        if isinstance(self._end, Unrecorded):
            raise UnrecordedCall(f"{self._name} has no result: {self._end}")
        if self._end is not None:
            raise self._end
        return self._result

    @property
    def path(self) -> tuple[str, ...]:
        """The ids of the nodes or steps that were visited, in the order in which they were completed."""
        return tuple(visit.node_id for visit in self.replayed.visits if not visit.is_decision)

    def check(self, *, path: bool = True, state: bool = True, output: bool = True) -> None:
        """Raise `ReplayDifference` or `UnrecordedCall` for the first visit that differs from the record.

        `path`: the nodes and steps, their order, where they go on, what steps and waits are asked with, and how the run
        ends. `state`: the states after nodes, and the outputs of steps. `output`: the final state, or the return value.
        """
        found = self._difference(path=path, state=state, output=output)
        if found is None:
            return
        text, visit = found
        lines = [f"{self._name} differs from its record{text}"]
        if self._end is not None:
            lines.append(f"the replay ended: {self._end if isinstance(self._end, Unrecorded) else describe(self._end)}")
        begun = self.recorded.start.fields
        if begun.get("fingerprint") != self._flow.fingerprint:
            lines += [f"since the run began: {change}" for change in self._flow.differences(begun.get("shape") or {})]
        kind = UnrecordedCall if isinstance(self._end, Unrecorded) else ReplayDifference
        raise kind("\n".join(lines), visit) from self._end

    def _difference(self, *, path: bool, state: bool, output: bool) -> tuple[str, RecordedVisit | None] | None:
        """Return the first difference in words, and the visit that it is at (None: the end); None if there is none."""
        found = first_difference(self.recorded, self.replayed, path=path, state=state)
        if found is not None:
            return f" at {found.text}", found.visit
        ends = self._difference_of_ends() if path else None
        if ends is None and output and self._end is None and self.recorded.status == "finished":
            lines = [*json_changes("output", self.recorded.output(), self.replayed.output())]
            ends = "\n  ".join([":", *lines]) if lines else None
        return None if ends is None else (ends, None)

    def _difference_of_ends(self) -> str | None:
        """Compare the ends. A run that has not ended stands in its replay where its record ends."""
        was, end = self.recorded.status, self._end
        if isinstance(end, Unrecorded):
            return f": it was {was}" if was == "finished" or (was == "failed" and self._can_fail_again) else None
        if was == "failed":
            before, after = self.recorded.failure, self.replayed.failure
            now = "it finishes" if after is None else f"it fails with {after}"
            return None if before == after else f": it failed with {before}, and now {now}"
        if end is not None and (was == "finished" or not isinstance(end, RunSuspended)):
            return f": it was {was}"
        return None

    @property
    def _can_fail_again(self) -> bool:
        """True if the failure that ended the run was one of code, whose outcome is recorded."""
        final = self.recorded.history.final
        return final is not None and final.fields.get("op") in COUNTED_FAILURES

    @property
    def _name(self) -> str:
        info = self.recorded.row.info
        return f"the replay of run {info.run_id!r} of flow {info.flow!r}"
