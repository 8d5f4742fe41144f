"""Crash tests of a flow: stop it at every effect, let another process go on, and compare with the undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, Unpack

from milepost.errors import OptionError, shown
from milepost.model.ids import Clock
from milepost.options import RunOptions
from milepost.store import Store
from milepost.testing.playing import inputs_of
from milepost.testing.scenarios import Crash, Scenario, Subject
from milepost.testing.verdicts import (
    CrashReport,
    Disagreement,
    Judge,
    NodeReport,
    NonDeterministicNode,
    check_repeatable,
    difference,
    names_of,
)
from milepost.verbs import Verbs, flow_of
from milepost.workflows.definition import Workflow

__all__ = [
    "Crash",
    "CrashReport",
    "Disagreement",
    "NodeReport",
    "NonDeterministicNode",
    "crashtest",
    "examine",
    "undisturbed",
]

StateT = TypeVar("StateT")


def crashtest(
    flow: Verbs[StateT],
    input: Any = None,
    *,
    store: Callable[[Clock], Store] | None = None,
    crashes: int | Sequence[Crash] = 1,
    places: int | None = None,
    resumes: int = 0,
    resume_from: str | None = None,
    turns: Sequence[Any] = (),
    before: Callable[[], object] | None = None,
    world: Callable[[], object] | None = None,
    signals: Mapping[str, Any] | None = None,
    nondeterministic: Collection[str] = (),
    fails: bool = False,
    **options: Unpack[RunOptions],
) -> CrashReport:
    """Crash `flow` at every effect. Raise AssertionError unless each crashed run ends like the undisturbed one.

    `input` is a graph's state, or a workflow's inputs: a mapping, a `Bound`, None for none.

    `store` is called with a clock and opens the store, at the same place each time: the same run id is used there again
    and again. None: a `MemoryStore`. `crashes` is the number of processes that die in one run: with 2 the resume dies
    at every effect too, which takes the square of the time. A sequence of `Crash` disturbs one run; those after its end
    are left out. `places` tries only so many moments of death, evenly spread. `resumes` is how often a run that stops by
    itself (a failed node or router, a breakpoint) is resumed until it ends. With `fails` the run has to end as failed,
    and how it failed is its result. With `resume_from` the first run is not disturbed, and a `resume_from` after that
    node is crashed instead. `turns` are the states with which the run is continued (`if_exists="continue"`), one each
    time that it has ended. `before` is called before each run, to reset what nodes keep outside the state. `world` is
    called after each run and returns what the nodes have done outside the state, as JSON: the rows of a test database,
    the calls that a fake server has seen. `signals` by name answer the run's waits, as they do in `run_flow`; other
    waits and timers pass by time. `options` are those of every verb; time is a `FakeClock`, which pauses advance. A name
    in `signals` or `nondeterministic` that the undisturbed run does not come to is refused with `OptionError`.

    First the flow runs twice undisturbed, with the same random bits and from the same time on. If the two runs do not
    record the same, `NonDeterministicNode` (an AssertionError) names the first node that differs, with both values.
    `nondeterministic` names nodes of which that is no surprise, such as calls of a model: from the first of them on only
    the way of the run and the number of calls are compared.

    These checks apply to each crashed run. It ends with the same status and an equal state or output. No visit is
    called again after its checkpoint was recorded, no router after its answer was, and no rollback after its outcome
    was. There is at most one call too many for each crash. The visits in its history are those of the undisturbed run.
    `verify` finds nothing. Nodes must do the same each time, except for what depends on their own attempt.

    A node that changes the world by running again is no error here: it is in `CrashReport.not_idempotent`.
    """
    given = inputs_of(flow, input) if isinstance(flow, Workflow) else input
    core = flow_of(flow)
    subject = Subject(
        core, core.codec.encode(given), store, resumes, resume_from, turns, before, world, signals, fails, options
    )
    report, error = examine(subject, core.name, core.front, crashes, places, nondeterministic)
    if report.disagreements:
        raise AssertionError("\n".join(_lines(report))) from error
    return report


def _lines(report: CrashReport) -> Iterator[str]:
    for found in report.disagreements:
        yield f"crashed {found.places[0]}, {found.what}"
        if len(found.places) > 1 or len(report.disagreements) > 1:
            yield f"  so it is at {len(found.places)} of {report.scenarios} places, first seen at node {found.node!r}"


class Trial(Protocol):
    """A way to run the flow under test, with processes that die."""

    @property
    def before(self) -> object:
        """The function that resets the world before each run, or its name; None: there is none."""
        ...

    @property
    def world(self) -> object:
        """The probe of the world, or its name; None: there is none."""
        ...

    @property
    def signals(self) -> Mapping[str, Any] | None:
        """The signals that answer waits, by name."""
        ...

    def play(self, crashes: tuple[Crash, ...]) -> Scenario:
        """Run the flow from its beginning, with these crashes."""
        ...

    def moments(self, undisturbed: Scenario) -> int:
        """Return the number of effects at which a process of the undisturbed run can die."""
        ...


def examine(
    trial: Trial,
    flow: str,
    front: str,
    crashes: int | Sequence[Crash],
    places: int | None,
    nondeterministic: Collection[str],
    *,
    plain: Scenario | None = None,
    announce: Callable[[int], object] = lambda places: None,
) -> tuple[CrashReport, Exception | None]:
    """Run the flow disturbed, as `crashtest` says. Return the report, and the error of the first run that disagrees.

    `plain` is the undisturbed run; None: the flow runs undisturbed first, twice unless a single scenario is asked for.
    `announce` is called with the number of places before the first disturbed run. Raises what undisturbed runs raise.
    """
    if plain is None and isinstance(crashes, int):
        plain = undisturbed(trial, flow, front, nondeterministic)
    elif plain is None:
        plain = trial.play(())
    nodes = set[str]().union(*(names_of(output.node_id) for output in plain.outputs))
    ran, signals = ", ".join(plain.called) or "nothing", ", ".join(sorted(plain.signals)) or "nothing"
    _check_names("nondeterministic", nondeterministic, nodes, f"which did not run: {ran} did")
    _check_names(
        "signals", trial.signals or (), plain.signals, f"for which the run did not wait: it waited for {signals}"
    )
    judge = Judge(plain, flow, front, nondeterministic, looks=trial.world is not None)
    disturbed: Iterator[Scenario] = iter(())
    if not isinstance(crashes, int):
        disturbed = iter([trial.play(tuple(crashes))])
    elif places is not None:
        disturbed = _sample(trial, plain, places, crashes)
    else:
        disturbed = _scenarios(trial, crashes)
    moments = 2 * trial.moments(plain)
    announce(moments if places is None else min(moments, places))
    for scenario in disturbed:
        judge.add(scenario)
    return judge.report(), judge.first_error


def _check_names(option: str, given: Collection[str], known: Collection[str], why: str) -> None:
    """Raise `OptionError` for names that the undisturbed run does not have."""
    if unknown := sorted({*given}.difference(known)):
        raise OptionError(f"{option}= names {', '.join(map(repr, unknown))}, {why}", option=option)


def undisturbed(trial: Trial, flow: str, front: str, nondeterministic: Collection[str]) -> Scenario:
    """Run the flow twice undisturbed. Return one of the runs. Raise if they differ, and what they raise themselves."""
    plain, other = trial.play(()), trial.play(())
    check_repeatable(plain, other, flow, front, nondeterministic)
    check_worlds(plain, other, trial.before)
    return plain


def check_worlds(one: Scenario, other: Scenario, before: object) -> None:
    """Raise unless two undisturbed runs have left the same world: `OptionError` if nothing reset it between them."""
    patch = difference(one.world, other.world)
    if patch and before is None:
        raise OptionError(
            f"two undisturbed runs leave different worlds, {list(patch)}: reset it with before=, or leave out of it what "
            f"differs each time",
            option="before",
        )
    if patch:
        raise AssertionError(f"two undisturbed runs do different things to the world: {list(patch)}")


def _sample(trial: Trial, plain: Scenario, places: int, crashes: int) -> Iterator[Scenario]:
    """Yield runs with one crash at so many places, evenly spread from the first to the last."""
    if places < 1 or crashes != 1:
        raise OptionError(f"places must be 1 or more, with crashes=1, not {shown(places)}", option="places")
    every = [Crash(number, is_after) for number in range(trial.moments(plain)) for is_after in (False, True)]
    step = max(1.0, (len(every) - 1) / max(1, places - 1))
    chosen = dict.fromkeys(round(number * step) for number in range(min(places, len(every))))
    for number in chosen:
        yield trial.play((every[number],))


def _scenarios(trial: Trial, depth: int) -> Iterator[Scenario]:
    """Yield all runs with up to `depth` crashes, each with the crashed runs that follow from it."""
    if depth < 1:
        raise OptionError(f"crashes must be 1 or more, not {shown(depth)}", option="crashes")

    def beneath(crashes: tuple[Crash, ...]) -> Iterator[Scenario]:
        number = 0
        while True:
            # Nothing that survives the process changes between an effect and the next one, so only a run's last crash
            # is tried both before and after an effect.
            is_last = len(crashes) + 1 == depth
            for is_after in (False, True) if is_last else (False,):
                scenario = trial.play((*crashes, Crash(number, is_after)))
                if not scenario.has_crashed:
                    if scenario.error is not None:
                        yield scenario
                    return
                yield scenario
            if not is_last:
                yield from beneath((*crashes, Crash(number)))
            number += 1

    return beneath(())
