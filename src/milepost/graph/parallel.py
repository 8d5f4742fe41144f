"""Forks: the walk of all branches at once, and the handling of their ends at the join.

Each branch has a walker of its own and a copy of the state; only calls of user code go to threads or tasks. If branches
end in different ways, this module decides which end counts: an interruption comes before an error of the store or of
the owner, that before failures, and those before a wait. A failure does not stop the branches beside it, unless the
fork is to fail fast: they run on to the join and are recorded, and then all failures are one `BranchError`. An end of
the whole run (a save that failed, a lease that was lost, a cancel, an interruption) does stop them: they begin no
further node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from milepost.errors import (
    BranchError,
    LeaseLost,
    MaxIterationsError,
    MilepostError,
    NodeError,
    RunCancelled,
    RunStopped,
    SerializeStateError,
    StateTypeError,
    StoreError,
)
from milepost.executor.attempt import AttemptOutcome, OutOfTime, UnitVisit, perform
from milepost.executor.context import Context
from milepost.executor.effects import Call, Halted, Outcome, Routine
from milepost.executor.flow import BranchEnd, Fork, Function
from milepost.executor.history_values import AttemptBudget
from milepost.executor.run import complete
from milepost.executor.waits import Parked
from milepost.graph.visits import updates_of
from milepost.model.failure import contained, describe
from milepost.model.record import branch_path

if TYPE_CHECKING:
    from milepost.graph.walker import Walker


class Stop:
    """A flag that makes the branches of a fork stop at their next boundary."""

    __slots__ = ("is_fast", "is_set")

    def __init__(self, *, is_fast: bool) -> None:
        self.is_fast = is_fast
        self.is_set = False

    def hear(self, error: BaseException) -> None:
        """Stop the other branches if `error` ends the run at once, or is a failure and the fork is to fail fast."""
        if isinstance(error, (Parked, Halted, GeneratorExit)):
            return
        if self.is_fast or not isinstance(error, (NodeError, RunStopped, MaxIterationsError)):
            self.is_set = True


def split(walker: Walker, fork: Fork, state: Any) -> Routine[Any]:
    """Walk all branches of a fork, each on its own copy of a state; return the merged state at the join."""
    run, stop = walker.run, Stop(is_fast=fork.fail_fast)
    walker.state = state = walker.keep(state)
    data = walker.given
    routines = {branch: stopping(stop, _branch(walker, fork, branch, state, data, stop)) for branch in fork.branches}
    limits = [limit for limit in (fork.max_parallel, run.options.max_parallel) if limit is not None]
    outcomes = yield from run.gather(routines, min(limits, default=None), lambda: stop.is_set)
    node_id = walker.prefix + fork.node_id
    where = f"of the fork after node {node_id!r}"
    raise_of(walker, node_id, walker.at[1], ("branch", "branches"), where, outcomes)
    ends: dict[str, BranchEnd] = {branch: outcomes[branch].value for branch in fork.branches}
    walker.not_before = max(end.sequence for end in ends.values())
    merged = yield from _merged(walker, fork, ends)
    walker.given = None
    walker.given = walker.journal.encode_if_possible(merged, walker.flow.codec) if walker.is_recorded else None
    return merged


def _branch(walker: Walker, fork: Fork, branch: str, state: Any, data: bytes | None, stop: Stop) -> Routine[BranchEnd]:
    inner = walker.inner(walker.flow, walker.prefix, label_of(walker, *walker.at, branch))
    inner.stops = (*walker.stops, stop)
    inner.prev_node_id = fork.node_id
    inner.updates = None if walker.flow.update_codec is None else []
    end = yield from inner.go(walker.fresh(state), data, branch, fork.join)
    return BranchEnd(
        end, tuple(inner.updates or ()), inner.is_untold, inner.given, max(inner.sequence, inner.not_before)
    )


def label_of(walker: Walker, node_id: str, visit: int, branch: str) -> str:
    """Return the path of a branch, or of an item: that of the fork, and then `fork#visit/branch`."""
    return branch_path(walker.label, walker.prefix + node_id, visit, branch)


def stopping(stop: Stop, routine: Routine[Any]) -> Routine[Any]:
    """Perform a routine. If it ends with an error, let `stop` decide whether the branches beside it stop."""
    try:
        return (yield from routine)
    except BaseException as exc:
        stop.hear(exc)
        raise


# -- what became of the branches ---------------------------------------------------------------------------


def raise_of(
    walker: Walker,
    node_id: str,
    visit: int,
    words: tuple[str, str],
    where: str,
    outcomes: Mapping[str, Outcome],
) -> None:
    """Raise the error that counts if not all branches of a fork, or items of a map, came to their ends.

    `words` are the noun for one of them and that for several.
    """
    errors = {name: outcome.error for name, outcome in outcomes.items() if outcome.error is not None}
    if not errors:
        return
    others = [error for error in errors.values() if not _is_ordinary(error)]
    if others:
        raise min(others, key=_rank)
    failed = {name: error for name, error in errors.items() if isinstance(error, NodeError)}
    if failed:
        raise _branch_error(walker, node_id, visit, words, where, failed)
    waits = [wait for error in errors.values() if isinstance(error, Parked) for wait in error.waits]
    if waits:
        raise Parked(tuple(waits))
    raise next(iter(errors.values()))


def _is_ordinary(error: BaseException) -> bool:
    return isinstance(error, (NodeError, Parked, Halted))


def _rank(error: BaseException) -> int:
    """Return the rank of an error: the lowest one is raised."""
    if isinstance(error, OutOfTime):
        return 1
    if not isinstance(error, Exception):
        return 0
    kinds: tuple[type[Exception], ...] = (LeaseLost, RunCancelled, StoreError, SerializeStateError, MilepostError)
    return next((2 + place for place, kind in enumerate(kinds) if isinstance(error, kind)), 1)


def _branch_error(
    walker: Walker,
    node_id: str,
    visit: int,
    words: tuple[str, str],
    where: str,
    failed: Mapping[str, NodeError],
) -> BranchError:
    run, (one, several) = walker.run, words
    errors = _first_few(f"{name!r}: {error}" for name, error in failed.items())
    kept = "; what the others did is kept" if walker.is_recorded else ""
    error = BranchError(
        f"{one if len(failed) == 1 else f'{len(failed)} {several}'} {where} of run {run.run_id!r} failed ({errors}){kept}",
        run_id=run.run_id,
        node_id=node_id,
        visit=visit,
        fork=node_id,
        errors=dict(failed),
        state=walker.last_good(),
    )
    error.__cause__ = next(iter(failed.values()))
    return error


def _first_few(texts: Iterable[str]) -> str:
    found = [*texts]
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    return "; ".join(found[:5]) + more


# -- merging -----------------------------------------------------------------------------------------------


def _merged(walker: Walker, fork: Fork, ends: Mapping[str, BranchEnd]) -> Routine[Any]:
    """Merge the states of the branches, and return the state for the join."""
    budget = AttemptBudget((yield from walker.begun_visit(fork.join)))
    return (yield from perform(MergeVisit(walker, fork, ends, budget))).value


class MergeVisit(UnitVisit):
    """The merging of the branches at a join. It has one attempt, and its result is recorded with the join's own state."""

    __slots__ = ("ends", "fork", "walker")

    def __init__(self, walker: Walker, fork: Fork, ends: Mapping[str, BranchEnd], budget: AttemptBudget) -> None:
        super().__init__(walker.run, walker.prefix + fork.join, budget, walker.followed_at)
        self.is_timed = False
        self.walker = walker
        self.fork = fork
        self.ends = ends

    def call(self, context: Context[Any], limit: float | None) -> Routine[Any]:
        """Call the fork's merge function, or merge field by field."""
        walker, fork, ends = self.walker, self.fork, self.ends
        before = walker.fresh(walker.state)
        if fork.merge is not None:
            return (yield from self._ask(fork.merge, before, context))
        if walker.updates is not None:
            walker.updates += [update for end in ends.values() for update in end.updates]
            walker.is_untold |= any(end.is_untold for end in ends.values())
        return contained(walker.flow.merged, fork, before, ends, walker.given)

    def _ask(self, merge: Function, before: Any, context: Context[Any]) -> Routine[Any]:
        walker = self.walker
        states = {branch: end.state for branch, end in self.ends.items()}
        returned = yield Call(merge.fn, (before, states), context, merge.is_async)
        base = walker.fresh(walker.state)
        given = walker.flow.read(base, returned)
        merged = contained(walker.flow.accept, walker.flow.units[self.fork.join], base, given)
        if walker.updates is not None:
            # For the fork around this one only the function's return value counts: no updates of nodes in the branches.
            walker.take_up(updates_of(walker, walker.state, merged, given)[0])
            walker.is_untold = True
        return merged

    def give_up(self, outcome: AttemptOutcome) -> NodeError:
        """Make the error of a merge that failed. The checkpoints of the branches stay."""
        walker, run, node_id, exc = self.walker, self.run, self.node_id, outcome.error
        advice = "; what the branches did is kept: mend the merge, then resume" if walker.is_recorded else ""
        error: NodeError
        if isinstance(exc, NodeError) and type(exc).op == "merge" and exc.run_id is None:
            error = exc
            error.args = (f"the branches of run {run.run_id!r} cannot be merged at node {node_id!r}: {exc.args[0]}",)
            complete(error, run_id=run.run_id)
        elif isinstance(exc, StateTypeError) and exc.run_id is None:
            error = exc
            error.op = "merge"
            error.args = (f"{self.fork.merge_option} of node {node_id!r} of run {run.run_id!r}: {exc.args[0]}{advice}",)
            complete(error, run_id=run.run_id)
        else:
            assert exc is not None
            error = NodeError(
                f"the branches of run {run.run_id!r} could not be merged at node {node_id!r}: {describe(exc)}{advice}",
                op="merge",
                run_id=run.run_id,
            )
        error.node_id, error.visit, error.attempt, error.state = node_id, self.budget.visit, 1, walker.last_good()
        return error

    def save_failure(self, outcome: AttemptOutcome, final: Exception | None) -> Routine[None]:
        """Record the failure."""
        if self.walker.is_recorded:
            yield from self.walker.save_failure(outcome, "merge", final)
