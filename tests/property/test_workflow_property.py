"""Workflows of any shape, killed at any effects, end as they end in peace; and nothing that was recorded runs again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost import MemoryStore, Step, StepError, Workflow, WorkflowError, branch, current, parallel, step, workflow
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Effect
from milepost.model.record import CHECKPOINT, ROLLBACK
from milepost.store import ENDED
from milepost.testing import FakeClock
from milepost.testing.stepping import _StepDriver
from milepost.verbs import Job, flow_of
from thoroughness import examples

RUN = "r"


class Plan(NamedTuple):
    """One step: its kind, what it is made of, and how it is done."""

    kind: str
    parts: tuple[Any, ...] = ()
    fails: bool = False
    manner: str = ""
    is_undone: bool = False
    at_once: int | None = None


MANNERS = ("", "", "skip_on_error", "as_result", "on_error", "when", "unless", "retry")

leaves = st.builds(
    Plan,
    st.just("python"),
    st.just(()),
    fails=st.booleans(),
    manner=st.sampled_from(MANNERS),
    is_undone=st.booleans(),
    at_once=st.none(),
)


def made_of(parts: st.SearchStrategy[Plan]) -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        st.sampled_from(("parallel", "branch", "sub", "map")),
        st.lists(parts, min_size=1, max_size=3).map(tuple),
        fails=st.just(False),
        manner=st.sampled_from(("", "skip_on_error", "as_result", "on_error", "retry")),
        is_undone=st.booleans(),
        at_once=st.sampled_from((None, 1, 2)),
    )


plans = st.lists(st.recursive(leaves, made_of, max_leaves=5), min_size=1, max_size=4)


class World:
    """What the outside saw: calls and rollbacks, by step."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.undone: Counter[str] = Counter()

    def work(self, fails: bool) -> int:
        step_id = current().node_id
        self.calls[step_id] += 1
        if fails:
            raise ValueError(f"{step_id} fails")
        return len(step_id)

    def item(self, number: int) -> int:
        self.calls[current().node_id] += 1
        return number * 10

    def undo(self, ctx: Any, output: Any) -> None:
        self.undone[current().node_id] += 1


def built(world: World, name: str, plan: Plan) -> Step[Any]:
    made: Any
    if plan.kind == "python":
        made = step(name).python(world.work, args=(plan.fails,))
    elif plan.kind == "parallel":
        made = parallel(
            name, *(built(world, f"p{i}", part) for i, part in enumerate(plan.parts)), max_parallel=plan.at_once
        )
    elif plan.kind == "branch":
        last = len(plan.parts) - 1
        made = branch(name, *((lambda ctx, i=i: i == last, built(world, f"b{i}", p)) for i, p in enumerate(plan.parts)))
    elif plan.kind == "map":
        made = step(name).map(world.item, [*range(len(plan.parts))], max_parallel=plan.at_once)
    else:
        made = step(name).subworkflow(flow(world, "sub", plan.parts))
    if plan.manner in {"skip_on_error", "as_result"}:
        made = getattr(made, plan.manner)()
    elif plan.manner == "on_error":
        made = made.on_error(lambda ctx, failed: step("instead").python(world.work, args=(False,)))
    elif plan.manner in {"when", "unless"}:
        made = made.when(lambda ctx: plan.manner == "when")
    elif plan.manner == "retry":
        made = made.retry(2, backoff=1)
    return made.with_rollback(world.undo) if plan.is_undone else made


def flow(world: World, name: str, parts: tuple[Plan, ...]) -> Workflow[Any, Any]:
    @workflow(name)
    def body() -> Generator[Any, Any, list[str]]:
        seen = []
        for index, plan in enumerate(parts):
            seen.append(told((yield built(world, f"s{index}", plan))))
        return seen

    return body


def told(value: Any) -> str:
    """A result without what may differ from one process to the next."""
    if hasattr(value, "child_results"):
        return str([told(child) for child in value.child_results])
    if hasattr(value, "outcome"):
        return f"{value.name} {value.outcome} {told(value.output)}"
    if hasattr(value, "workflow_result"):
        return told(value.final_output)
    if hasattr(value, "inner_output"):
        return f"{value.selected_index} {told(value.inner_output)}"
    return repr(value)


class Died(BaseException):
    """The process was killed."""


class Mortal(_StepDriver):
    """Dies instead of performing one effect more than it has lives."""

    def __init__(self, clock: FakeClock, lives: int | None) -> None:
        super().__init__(clock, ())
        self.lives = lives
        self.performed = 0

    def perform(self, effect: Effect) -> Any:
        if self.lives is not None and self.performed >= self.lives:
            raise Died
        self.performed += 1
        return super().perform(effect)


def drive(flow: Workflow[Any, Any], store: MemoryStore, clock: FakeClock, is_first: bool, lives: int | None) -> int:
    """Run or resume; how many effects were performed. A death leaves the run as a dead process does."""
    job = Job(flow_of(flow), store, RUN, {"clock": clock}, {}, None if is_first else ResumeRequest())
    routine = job.routine({})
    hand = Mortal(clock, lives)
    try:
        effect = next(routine)
        while True:
            try:
                answer = hand.perform(effect)
            except Died:
                routine.close()
                for token in hand.tokens[-1:]:
                    store.abandon(token)
                return hand.performed
            except BaseException as exc:
                effect = routine.throw(exc)
            else:
                effect = routine.send(answer)
    except (StopIteration, StepError, WorkflowError):
        return hand.performed


def ending(store: MemoryStore) -> tuple[str, Any, list[tuple[str, str]]]:
    """How the run ended: status, output, and which steps ended how."""
    info = store.get_run(RUN).info
    finish = store.read(RUN, kinds=("finish",), newest=True, limit=1)
    steps = sorted(
        (record.node_id, str(record.fields().get("outcome"))) for record in store.read(RUN, kinds=(CHECKPOINT,))
    )
    return info.status, finish[0].state() if finish else None, steps


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans, st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_a_killed_workflow_ends_as_in_peace(parts: list[Plan], lives: list[int]) -> None:
    clock = FakeClock()
    quiet, peace = MemoryStore(clock=clock), World()
    drive(flow(peace, "main", tuple(parts)), quiet, clock, True, None)

    world, store = World(), MemoryStore(clock=clock)
    body = flow(world, "main", tuple(parts))
    is_first, deaths = True, 0
    done: Counter[str] = Counter()
    for left in (*lives, None, None):
        drive(body, store, clock, is_first, left)
        if not store.list_runs():
            continue  # it died before it was there
        is_first = False
        for step_id, calls in done.items():
            assert calls == world.calls[step_id], f"{step_id} was recorded and ran again"
        if store.get_run(RUN).info.status in ENDED:
            break
        deaths += 1
        done = Counter({r.node_id: world.calls[r.node_id] for r in store.read(RUN, kinds=(CHECKPOINT,))})

    assert ending(quiet) == ending(store)
    assert peace.undone.keys() == world.undone.keys()
    for step_id in world.undone:
        assert 1 <= world.undone[step_id] <= 1 + deaths
    for step_id, calls in peace.calls.items():
        assert calls <= world.calls[step_id] <= calls + deaths
    rolled_back = [record.node_id for record in store.read(RUN, kinds=(ROLLBACK,))]
    assert len(rolled_back) == len(set(rolled_back))
