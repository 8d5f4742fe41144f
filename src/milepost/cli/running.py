"""The commands that run user code: run, resume, retry."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import click

from milepost.cli.commands import FAILED, INTERRUPTED, OK, WAITING, Invocation, app_option, code_of, command
from milepost.cli.live import watching
from milepost.cli.places import store_words
from milepost.cli.targets import Runnable, found_flow, is_target, read_input, split_input
from milepost.cli.text import fit_screen, pretty, to_json
from milepost.cli.values import read_pairs
from milepost.engine.engine import Engine
from milepost.errors import NodeError, RunSuspended, StepError, WorkflowError
from milepost.model.events import Event
from milepost.model.lifecycle import RunCompleted, RunStarted, WorkflowCompleted, WorkflowStarted
from milepost.model.reports import ResumePlan, RunResult
from milepost.model.results import WorkflowResult
from milepost.views.events import recorded
from milepost.views.text import clean, in_options, iso, plural, signal_command, wait_document, wait_text
from milepost.workflows.definition import Workflow

Result = RunResult[Any] | WorkflowResult[Any]


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    def add(fn: Any) -> Any:
        for option in reversed(options):
            fn = option(fn)
        return fn

    return add


_run_id = click.argument("run_id", metavar="RUN")
_target = click.argument("target", metavar="[TARGET]", required=False)
_iterations = click.option(
    "--max-iterations", type=click.IntRange(1, 100_000), metavar="N", help="How many nodes the run may execute in all."
)
_full = click.option("--full", "is_full", is_flag=True, help="Print all of the result, however long it is.")
_correcting = _options(
    click.option("--takeover", is_flag=True, help="Fence off an owner whose lease is live."),
    click.option("--on-locked", type=click.Choice(["error", "wait"]), default="error", show_default=True,
                 help="What to do while another owner executes the run."),
    click.option("--reopen", is_flag=True, help="Go on with a run that was cancelled or blocked."),
    click.option("--reroute/--no-reroute", default=None,
                 help="Ask the router again, or take the recorded route. Default: what a fork with another state left to do."),
    click.option("--rename", multiple=True, metavar="OLD=NEW", help="What a recorded node is called now; repeatable."),
    click.option("--strict", is_flag=True, help="Refuse if the flow's shape has changed."),
    _full,
    click.option("--on-corrupt", type=click.Choice(["error", "previous"]), default="error", show_default=True,
                 help="previous: go on from the newest record that is whole."),
    _iterations,
    app_option,
)  # fmt: skip


@command(
    "run",
    _target,
    click.argument("input", metavar="[INPUT]", required=False),
    click.option("--input", "-i", "fields", multiple=True, metavar="KEY=VALUE",
                 help="One field of the state, or one input; VALUE is JSON if it parses, else text. Repeatable."),
    click.option("--run-id", metavar="ID", help="Default: one is made."),
    click.option("--if-exists", type=click.Choice(["error", "resume", "retry", "return", "continue"]),
                 default="error", show_default=True, help="What becomes of a run of that id."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="A tag of the run. Repeatable."),
    _iterations,
    _full,
    app_option,
)  # fmt: skip
def run(
    invocation: Invocation,
    target: str | None,
    input: str | None,
    fields: tuple[str, ...],
    run_id: str | None,
    if_exists: str,
    tags: tuple[str, ...],
    max_iterations: int | None,
    is_full: bool,
) -> int:
    """Run a flow and record it.

    TARGET is module:flow or path.py:flow, a compiled graph or a workflow, or the name of one of the app's flows; it may be
    left out if the app has one. INPUT is the initial state of a graph, or an object of the inputs of a workflow, as JSON, or
    - to read it; without it, and without --input, the defaults.
    """
    options: dict[str, Any] = {"tags": read_pairs(tags, "--tag"), "if_exists": if_exists}
    if max_iterations is not None:
        options["max_iterations"] = max_iterations
    name, text = split_input(target, input)
    with found_flow(invocation, name) as (flow, open_engine):
        given = read_input(flow, text, fields)
        arguments: tuple[Any, ...] = (given,)
        if isinstance(flow, Workflow):
            arguments, options["inputs"] = (), given
        act = _Act(open_engine(), flow, "run", arguments, name if is_target(invocation, name) else None)
        return _perform(invocation, act, is_full=is_full, run_id=run_id, **options)


@command(
    "resume",
    _run_id,
    _target,
    click.option("--from", "node_id", metavar="NODE", help="Go on after this node; what came later is superseded."),
    click.option("--visit", type=click.IntRange(1), metavar="N", help="With --from: after this visit of the node."),
    click.option("--rerun", is_flag=True, help="With --from: run the node itself again."),
    click.option("--plan", is_flag=True, help="Only tell what would happen; runs and writes nothing."),
    _correcting,
)
def resume(
    invocation: Invocation,
    run_id: str,
    target: str | None,
    node_id: str | None,
    visit: int | None,
    rerun: bool,
    plan: bool,
    **correcting: Any,
) -> int:
    """Go on with a run where its records end.

    Nothing that is recorded runs again. TARGET is module:flow or path.py:flow; without it the app has the run's flow.
    Example: milepost resume o-17 shop:graph
    """
    if node_id is None and (visit is not None or rerun):
        raise click.UsageError("--visit and --rerun go with --from NODE")
    options = _read_correcting(correcting)
    with found_flow(invocation, target, run_id, is_looking=True) as (flow, open_engine):
        engine = open_engine()
        if plan:
            options.pop("is_full", None)
            planned = engine.plan_resume(flow, run_id, node_id, visit=visit, rerun=rerun, **options)
            return _show_plan(invocation, planned)
        if node_id is None:
            return _perform(invocation, _Act(engine, flow, "resume", (run_id,), target), **options)
        act = _Act(engine, flow, "resume_from", (run_id, node_id), target)
        return _perform(invocation, act, **options, visit=visit, rerun=rerun)


@command("retry", _run_id, _target, _correcting)
def retry(invocation: Invocation, run_id: str, target: str | None, **correcting: Any) -> int:
    """Run again what failed, with fresh attempts.

    Completed work is kept. TARGET is module:flow or path.py:flow; without it the app has the run's flow.
    Example: milepost retry o-17 shop:graph
    """
    options = _read_correcting(correcting)
    with found_flow(invocation, target, run_id, is_looking=True) as (flow, open_engine):
        return _perform(invocation, _Act(open_engine(), flow, "retry", (run_id,), target), **options)


def _read_correcting(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a verb from those of a command; what was not given stays at the verb's default."""
    reroute = given.pop("reroute")
    options = {name: value for name, value in given.items() if value not in (None, False, ())}
    if reroute is not None:
        options["reroute"] = reroute
    if "rename" in options:
        options["rename"] = read_pairs(options["rename"], "--rename")
    return options


@dataclass(frozen=True, slots=True)
class _Act:
    """A verb of an engine on a flow. `target` names the flow if it is none of the app's."""

    engine: Engine
    flow: Runnable
    verb: str
    arguments: tuple[Any, ...]
    target: str | None

    def perform(self, **options: Any) -> None:
        """Call the verb, or its async twin where there may be coroutine functions: in a workflow always."""
        if not isinstance(self.flow, Workflow) and not self.flow._definition.async_names:
            getattr(self.engine, self.verb)(self.flow, *self.arguments, **options)
            return

        async def perform() -> None:
            with _ended_by_second_signal():
                await getattr(self.engine, f"a{self.verb}")(self.flow, *self.arguments, **options)

        asyncio.run(perform())


def _perform(invocation: Invocation, act: _Act, *, is_full: bool = False, **options: Any) -> int:
    """Perform an act, show what happens, then its result."""
    invocation.is_live = invocation.is_json
    results: list[Result] = []

    def note(event: Event) -> None:
        if isinstance(event, (RunStarted, WorkflowStarted)):
            invocation.run_id = event.run_id
        elif isinstance(event, (RunCompleted, WorkflowCompleted)) and event.result is not None:
            results.append(event.result)

    with watching(act.flow._definition.codec, is_json=invocation.is_json) as watcher:
        try:
            act.perform(hooks=(note, watcher), **options)
        except RunSuspended as exc:
            waiting: RunSuspended | None = exc
        except (NodeError, StepError, WorkflowError):
            _show_next(invocation, "failed", act.target)
            raise
        else:
            waiting = None
    if waiting is not None:
        _show_waits(invocation, waiting, act.target)
        return WAITING
    _show_result(invocation, act.flow, results[-1], is_full=is_full)
    _show_next(invocation, results[-1].status, act.target)
    return OK if results[-1].status == "finished" else FAILED


@contextlib.contextmanager
def _ended_by_second_signal() -> Iterator[None]:
    """Say that the first Ctrl-C cancels what runs, whose clean-up may take its time, and let the second end the process."""
    stops, loop = signal.getsignal(signal.SIGINT), asyncio.get_running_loop()
    if not callable(stops) or threading.current_thread() is not threading.main_thread():
        yield  # a shell has what it runs in the background ignore it
        return
    is_stopping = False

    def handle(number: int, frame: FrameType | None) -> None:
        # Streams may not be used in here: the signal may have come in the middle of a line.
        nonlocal is_stopping
        if is_stopping:
            os.write(2, b"milepost: ended at once: what ran is done again by a resume\n")
            os._exit(INTERRUPTED)
        is_stopping = True
        os.write(2, b"milepost: interrupted: cancelling what runs; once more to end at once\n")
        stops(number, frame)

    with contextlib.suppress(NotImplementedError):
        # Only so that a signal wakes the loop: one that comes just before it sleeps would be seen when it next wakes.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, stops)


def _show_result(invocation: Invocation, flow: Runnable, result: Result, *, is_full: bool) -> None:
    document = result.to_dict()
    if isinstance(result, WorkflowResult):
        assert isinstance(flow, Workflow)
        # Its events told of the steps, and show does.
        document = {name: document[name] for name in document if name not in {"step_results", "final_output"}}
        output = document["output"] = recorded(flow._definition.output_codec, result.output)
    else:
        output = document["state"] = recorded(flow._definition.codec, result.state)
    if invocation.is_json:
        print(to_json({"event": "Result", **document}, is_line=True))
        return
    if result.degraded:
        print(f"without a checkpoint: {', '.join(map(clean, result.missed))}", file=sys.stderr)
    text = pretty(output)
    shown, left_out = (text, 0) if is_full else fit_screen(text)
    print(shown)
    if left_out:
        print(f"… {plural(left_out, 'more line')}: --full prints all, as does {_command(invocation, 'state')}")


def _show_next(invocation: Invocation, status: str, target: str | None) -> None:
    """Show the commands that look at the run, or go on with it, as they can be typed."""
    if invocation.is_json or invocation.run_id is None:
        return
    show = _command(invocation, "show")
    verb = "retry" if status == "failed" else "resume"
    print(f"next: {show}" if status == "finished" else f"next: {show}, then {_command(invocation, verb, target)}")


def _command(invocation: Invocation, verb: str, target: str | None = None) -> str:
    """Return a command on the run of this call, with the flow, app and store that were named."""
    words, is_code_named = [verb, str(invocation.run_id)], verb in {"resume", "retry"}
    if is_code_named:
        words += [] if target is None else [target]
        words += [] if invocation.app is None else ["--app", invocation.app]
    return clean(f"milepost {shlex.join([*words, *_store_words(invocation, is_code_named=is_code_named)])}")


def _store_words(invocation: Invocation, *, is_code_named: bool = False) -> list[str]:
    """Return the option that names the store in a command; an app knows its own."""
    return store_words(invocation.store_url or (None if is_code_named else invocation.app_store))


def _show_waits(invocation: Invocation, waiting: RunSuspended, target: str | None) -> None:
    """Show what a run waits for, and the commands that go on with it as they can be typed."""
    run_id, waits = str(waiting.run_id), waiting.waiting_for
    if invocation.is_json:
        document = {"run_id": run_id, "status": "waiting", "waiting_for": [wait_document(wait) for wait in waits]}
        print(to_json({"event": "Result", **document, "wake_at": iso(waiting.wake_at)}, is_line=True))
        return
    store = _store_words(invocation)
    for wait in waits:
        print(f"{clean(wait.wait_id)} waits for {wait_text(wait)}")
        if wait.signal is not None:
            print(f"  {signal_command(run_id, wait, waits, store)}")
    invocation.run_id = run_id
    print(f"then a worker, or: {_command(invocation, 'resume', target)}")


def _show_plan(invocation: Invocation, plan: ResumePlan) -> int:
    code = OK if plan.error is None else code_of(plan.error)
    if invocation.is_json:
        print(to_json(plan.to_dict()))
        return code
    print(f"run {clean(plan.run_id)!r}: {plan.verdict}: {clean(in_options(plan.reason))}")
    if plan.from_node is not None:
        print(f"  from    {clean(plan.from_node)}#{plan.visit} (record {plan.sequence})")
    for title, names in (("skips", plan.skipped), ("runs", plan.repeated), ("missed", plan.missed)):
        if names:
            print(f"  {title:<7} {', '.join(map(clean, names))}")
    if plan.differences:
        print(f"  the flow has changed, {plural(len(plan.differences), 'difference')}:")
        for difference in plan.differences:
            print(f"    {clean(difference)}")
    return code
