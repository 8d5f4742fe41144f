"""The visits of nodes: what the attempts of a visit call, and what is recorded of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import (
    AttemptTimedOut,
    MilepostError,
    NodeError,
    NodeTimeoutError,
    RouterError,
    SerializeStateError,
    StatementError,
    StateTypeError,
    StoreError,
    shown,
)
from milepost.executor.attempt import AttemptOutcome, UnitVisit, announce_checkpoint
from milepost.executor.context import Context
from milepost.executor.effects import Alone, Call, Routine
from milepost.executor.flow import END, Function, Part, Router, Unit, Whole
from milepost.executor.history_values import AttemptBudget
from milepost.executor.run import Run, complete
from milepost.model.failure import describe, place
from milepost.model.record import REPLACED
from milepost.model.rope import Rope

if TYPE_CHECKING:
    from milepost.graph.walker import Walker
    from milepost.model.lifecycle import NodeCompleted, NodeStarted


class NodeOutcome(msgspec.Struct, eq=False):
    """The outcome of a node: the state after it, its bytes or the error of encoding it, and the updates if needed."""

    state: Any
    data: bytes | Rope | SerializeStateError | None = None
    updates: Mapping[str, Any] | None = None


class NodeVisit(UnitVisit):
    """One visit of a node, or of an item of a map.

    It flows through enter, attempt, check, route, record and announce; see `Walker._visit`.
    """

    __slots__ = ("backup", "data", "more", "next_node", "route_error", "state", "unit", "walker", "whole")

    def __init__(self, walker: Walker, unit: Unit, budget: AttemptBudget) -> None:
        policy = unit.retry or walker.options.retry
        super().__init__(walker.run, walker.prefix + unit.id, budget, walker.followed_at, policy, unit.timeout)
        self.takes_statements, self.over_at = True, walker.ends_at
        self.walker = walker
        self.unit = unit
        self.more: tuple[Any, ...] = ()
        """The arguments that the work before the node's function has made for it."""
        self.whole: Whole | None = None
        """The answer that the work has made already, so that nothing is called; None: the node's function makes it."""
        self.next_node = unit.next_node or ""
        self.route_error: BaseException | None = None
        """The error or the interruption of the router; None: it answered."""
        self.data: bytes | Rope | None = None
        """The encoded state after the node, once it is recorded; None if it cannot be encoded or there is no store."""
        self.state: Any = None
        self.backup: Any = None
        """The state that the node is given, as it is before the first attempt."""

    def give(self, state: Any) -> None:
        """Give the node this state, and the same again for each further attempt."""
        is_kept = self.policy is not None or self.walker.updates is not None
        self.backup = self.walker.keep(state) if is_kept else state
        self.state = state

    # -- attempt, check and route ----------------------------------------------------------------------

    def call(self, context: Context[Any], limit: float | None) -> Call | Routine[Any]:
        """Call the node's function on the state, or take the answer that its work has made."""
        unit, options = self.unit, self.run.options
        if self.whole is not None:
            return _answer(self.whole)
        args = (context, self.state, *self.more) if unit.takes_context else (self.state, *self.more)
        if unit.work is not None:
            # The node was announced when its work began. Its function only decides something, and runs here.
            return Call(unit.fn, args, context, unit.is_async, limit)
        announce = self.begin(context) if self.run.is_listening else None
        return Call(unit.fn, args, context, unit.is_async, limit, announce, False, unit.executor or options.executor)

    def check(self, returned: Any) -> NodeOutcome:
        """Make the node's outcome of what its function returned.

        Raises `StateTypeError` if that is no state. A value of user code is read first; a `Whole` comes from this
        library itself.
        """
        walker, flow = self.walker, self.walker.flow
        given = returned if isinstance(returned, Whole) else flow.read(self.state, returned)
        after = flow.accept(self.unit, self.state, given)
        data = walker.encode(after) if walker.is_recorded else None
        if walker.updates is None:
            return NodeOutcome(after, data)
        updates, refused = updates_of(walker, self.state, after, given)
        return NodeOutcome(after, data if refused is None or data is None else refused, updates)

    def route(self, outcome: AttemptOutcome) -> Routine[None]:
        """Ask the router for the next node. Keep its error, or an interruption, for `save`, which records the work."""
        self.route_error = None
        is_refused = isinstance(outcome.value.data, SerializeStateError)
        if is_refused and (outcome.statements or self.run.options.checkpoint_failure_fatal):
            return  # the run ends with that, so nobody needs to know where it would go on
        assert self.unit.router is not None
        try:
            self.next_node = yield from ask_router(self.run, self.unit.router, outcome.context, outcome.value.state)
        except GeneratorExit:
            raise
        except BaseException as end:
            self.route_error = end

    # -- record ----------------------------------------------------------------------------------------

    def save(self, outcome: AttemptOutcome) -> Routine[None]:
        """Save the checkpoint. Raises the router's error after that, and what keeps the run from going on."""
        walker, context, made, statements = self.walker, outcome.context, outcome.value, outcome.statements
        data = made.data
        if isinstance(data, SerializeStateError):
            yield from walker.go_on_unsaved(context, "encode", data, is_fatal=bool(statements))
            data = None
        if self.route_error is not None and data is None:
            raise self._unrouted(made)
        if statements:
            yield Alone()
        at, followed_at = walker.at, walker.followed_at
        walker.complete_node(self.unit.id, context.visit, made.updates)
        try:
            if self.route_error is not None:
                assert data is not None
                yield from self._save_unrouted(outcome, data, self.route_error)
                raise self._unrouted(made)
            if data is not None:
                yield from self._save(outcome, data)
        except StatementError:
            # The branch was alone meanwhile, so no other branch has counted on from these numbers.
            walker.at, walker.followed_at = at, followed_at
            walker.tally.iteration -= 1
            if walker.updates is not None and made.updates:
                walker.updates.pop()
            raise
        self.data = data

    def _save(self, outcome: AttemptOutcome, data: bytes | Rope) -> Routine[None]:
        """Record the completed node. The last one and the end of the run are one append."""
        walker, context, statements = self.walker, outcome.context, outcome.statements
        try:
            checkpoint = walker.checkpoint(outcome, data, self.next_node)
            if self.next_node == END and walker.is_root:
                yield from walker.journal.finish(checkpoint.sequence, (checkpoint,), context._tags, statements)
            else:
                yield from walker.journal.write((checkpoint,), None, context._tags, statements)
        except (SerializeStateError, StoreError) as exc:
            op = "append" if isinstance(exc, StoreError) else "encode"
            yield from walker.go_on_unsaved(context, op, exc, is_fatal=bool(statements))
            return
        walker.sequence, walker.is_untold = checkpoint.sequence, False
        if self.run.is_listening:
            yield announce_checkpoint(self.run, checkpoint)

    def _save_unrouted(self, outcome: AttemptOutcome, data: bytes | Rope, end: BaseException) -> Routine[None]:
        """Record the work of a node whose router failed or was interrupted, with `end`, without a next node."""
        walker, context, statements = self.walker, outcome.context, outcome.statements
        try:
            checkpoint = walker.checkpoint(outcome, data, None)
            if isinstance(end, RouterError):
                original = end.__cause__ or end
                failure = walker.failure("route", context, original, **walker.for_good())
                yield from walker.end_failed((checkpoint, failure), end, original, statements)
            else:
                yield from walker.journal.write((checkpoint,), None, context._tags, statements)
        except MilepostError as failed:
            if isinstance(end, RouterError) and not isinstance(failed, (StoreError, SerializeStateError)):
                raise
            end.add_note(f"the node's work could not be recorded: {describe(failed)}")

    def _unrouted(self, made: NodeOutcome) -> BaseException:
        """Return the router's error, with the state after the node."""
        assert self.route_error is not None
        if isinstance(self.route_error, RouterError):
            self.route_error.state = made.state
        return self.route_error

    def save_failure(self, outcome: AttemptOutcome, final: Exception | None) -> Routine[None]:
        """Record a failed attempt, and make the state for the next one."""
        walker = self.walker
        if walker.is_recorded:
            yield from walker.save_failure(outcome, outcome.op, final)
        if final is None:
            self.state = walker.fresh(self.backup)

    def give_up(self, outcome: AttemptOutcome) -> Exception:
        """Make the node's error after its last attempt."""
        exc, run, budget, policy = outcome.error, self.run, self.budget, self.policy
        assert exc is not None
        facts = self._facts(outcome.context)
        # A StateTypeError that user code raises, such as one of a nested run, is an error like any other.
        if outcome.is_refused and isinstance(exc, StateTypeError):
            return self._no_state(exc, facts)
        message = f"node {self.node_id!r} of run {run.run_id!r} {self.describe_end(exc, describe(exc))}"
        if isinstance(exc, AttemptTimedOut):
            advice = ": give it more time, or resume to try again"
            return NodeTimeoutError(message + advice, timeout=exc.timeout, **facts)
        is_used_up = policy is not None and budget.failures >= policy.max_attempts
        verb = "retry to run it again with fresh attempts" if is_used_up else "resume to run it again"
        advice = f"; mend the cause, then {verb}" if run.is_recorded else ""
        return NodeError(message + advice, op=outcome.op, **facts)

    def _no_state(self, exc: StateTypeError, facts: dict[str, Any]) -> StateTypeError:
        """Complete `exc`, the error of a node that returned no state of its graph, with the place and an advice."""
        complete(exc, **facts)
        act = "return a state of the declared type" if exc.path.startswith("state") else "give that"
        act += ", then resume" if self.run.is_recorded else ""
        place(exc, f"node {self.node_id!r} of run {self.run.run_id!r}", act)
        return exc

    def _facts(self, context: Context[Any]) -> dict[str, Any]:
        return {
            "run_id": self.run.run_id,
            "node_id": self.node_id,
            "visit": context.visit,
            "attempt": context.attempt,
            "state": self.walker.last_good() if self.walker.given is not None else self.backup,
        }

    # -- announce --------------------------------------------------------------------------------------

    def begin(self, context: Context[Any]) -> NodeStarted:
        """Make the event of an attempt that begins."""
        from milepost.model.lifecycle import NodeStarted

        return NodeStarted(
            run_id=self.run.run_id,
            timestamp=self.run.options.clock.time(),
            node_id=self.node_id,
            visit=context.visit,
            attempt=context.attempt,
        )

    def end(self, outcome: AttemptOutcome) -> NodeCompleted:
        """Make the event of the visit's end."""
        from milepost.model.lifecycle import NodeCompleted

        data, after, decode = self.data, outcome.value.state, self.walker.flow.codec.decode
        return NodeCompleted(
            run_id=self.run.run_id,
            timestamp=self.run.options.clock.time(),
            node_id=self.node_id,
            visit=outcome.context.visit,
            attempt=outcome.context.attempt,
            next_node=self.next_node,
            duration_ms=outcome.duration,
            _load=(lambda: after) if data is None else (lambda: decode(bytes(data))),
        )


class DecisionVisit(NodeVisit):
    """The visit of a node while a function of the state decides about its work, with the attempts of the node.

    `convert` makes the value of the function's answer, and raises `StateTypeError` for a wrong one.
    """

    __slots__ = ("convert", "function")

    def __init__(self, visit: NodeVisit, state: Any, function: Function, convert: Callable[[Any], Any]) -> None:
        super().__init__(visit.walker, visit.unit, visit.budget)
        self.takes_statements = False
        self.give(state)
        self.function = function
        self.convert = convert

    def call(self, context: Context[Any], limit: float | None) -> Call:
        """Call the function on the state."""
        return Call(self.function.fn, (self.state,), context, self.function.is_async, limit)

    def check(self, returned: Any) -> Any:
        """Convert the answer."""
        return self.convert(returned)

    def save(self, outcome: AttemptOutcome) -> Routine[None]:
        """Record nothing: what follows from the answer is recorded with the work."""
        yield from ()


def _answer(whole: Whole) -> Routine[Whole]:
    yield from ()
    return whole


def updates_of(
    walker: Walker, before: Any, after: Any, given: Whole | Part
) -> tuple[Mapping[str, Any], SerializeStateError | None]:
    """Return the part of a node's return value that the join needs, and the error if it cannot be recorded.

    The part is a copy, because the user's code may change the returned value in place later.
    """
    codec = walker.flow.update_codec
    if walker.updates is None or codec is None:
        return {}, None
    updates = walker.flow.updates(given)
    if updates is None:
        # The node may have changed its input in place.
        replaced = walker.flow.replaced(walker.fresh(before), after)
        return ({REPLACED: list(replaced)} if replaced else {}), None
    if not updates:
        return {}, None
    data = walker.journal.encode(updates, codec)
    if isinstance(data, SerializeStateError):
        return _copy_of(updates), data
    return codec.decode(data, root="updates"), None


def _copy_of(updates: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy a node's updates; return them uncopied if copying fails, which runs the user's code."""
    try:
        return copy.deepcopy(updates)
    except Exception:
        return updates


def ask_router(run: Run, router: Router, context: Context[Any], state: Any) -> Routine[str]:
    """Ask a router for the next node and return it. Raises `RouterError` if it fails or answers anything else."""
    args = (context, state) if router.takes_context else (state,)
    try:
        answer = yield Call(router.fn, args, context, router.is_async, None, None, True)
    except Exception as exc:
        problem = f"failed: {describe(exc)}; the node's work is kept: mend the router, then resume"
        raise _router_error(run, context, problem) from exc
    target = answer
    if router.targets is not None:
        try:
            target = router.targets.get(answer)
        except TypeError:
            target = None
    if not isinstance(target, str) or (target != END and target not in router.known):
        allowed = router.targets if router.targets is not None else (*sorted(router.known), END)
        problem = (
            f"answered {shown(answer)}, which is none of {', '.join(map(repr, allowed))}: mend the router, then resume"
        )
        raise _router_error(run, context, problem, returned=answer)
    return str(target)


def _router_error(run: Run, context: Context[Any], problem: str, **facts: Any) -> RouterError:
    return RouterError(
        f"the router after node {context.node_id!r} of run {run.run_id!r} {problem}",
        run_id=run.run_id,
        node_id=context.node_id,
        from_node=context.node_id,
        visit=context.visit,
        **facts,
    )
