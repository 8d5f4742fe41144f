"""The commands that run user code: run, resume, retry."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import click

from milepost.cli.exits import FAILED, OK, code_of
from milepost.cli.invocation import Invocation, command, in_options
from milepost.cli.live import recorded, watching
from milepost.cli.places import open_existing, open_or_make
from milepost.cli.targets import load_target, read_input, read_pairs
from milepost.cli.text import clean, plural, pretty, to_json
from milepost.events import Event, ResumePlan, RunResult, RunStarted
from milepost.graph import CompiledGraph

__all__ = ["resume", "retry", "run"]

Flow = CompiledGraph[Any]


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    def add(fn: Any) -> Any:
        for option in reversed(options):
            fn = option(fn)
        return fn

    return add


_run_id = click.argument("run_id", metavar="RUN")
_target = click.argument("target", metavar="TARGET")
_iterations = click.option(
    "--max-iterations", type=click.IntRange(1, 100_000), metavar="N", help="How many nodes the run may execute in all."
)
_correcting = _options(
    click.option("--takeover", is_flag=True, help="Fence off an owner whose lease is live."),
    click.option("--on-locked", type=click.Choice(["error", "wait"]), default="error", show_default=True,
                 help="What to do while another owner executes the run."),
    click.option("--reopen", is_flag=True, help="Go on with a run that was cancelled or blocked."),
    click.option("--reroute", is_flag=True, help="Ask the router again instead of taking the recorded route."),
    click.option("--rename", multiple=True, metavar="OLD=NEW", help="What a recorded node is called now; repeatable."),
    click.option("--strict", is_flag=True, help="Refuse if the flow's shape has changed."),
    click.option("--on-corrupt", type=click.Choice(["error", "previous"]), default="error", show_default=True,
                 help="previous: go on from the newest record that is whole."),
    _iterations,
)  # fmt: skip


@command(
    "run",
    _target,
    click.argument("input", metavar="[INPUT]", required=False),
    click.option("--input", "-i", "fields", multiple=True, metavar="KEY=VALUE",
                 help="One field of the input; VALUE is JSON if it parses, else text. Repeatable."),
    click.option("--run-id", metavar="ID", help="Default: one is made."),
    click.option("--if-exists", type=click.Choice(["error", "resume", "retry", "return"]), default="error",
                 show_default=True, help="What becomes of a run of that id."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="A tag of the run. Repeatable."),
    _iterations,
)  # fmt: skip
def run(
    invocation: Invocation,
    target: str,
    input: str | None,
    fields: tuple[str, ...],
    run_id: str | None,
    if_exists: str,
    tags: tuple[str, ...],
    max_iterations: int | None,
) -> int:
    """Run a flow and record it.

    TARGET is module:graph or path.py:graph. INPUT is the initial state as JSON, or - to read it; without it, and
    without --input, the state's defaults.
    """
    options: dict[str, Any] = {"tags": read_pairs(tags, "--tag"), "if_exists": if_exists}
    if max_iterations is not None:
        options["max_iterations"] = max_iterations
    flow = load_target(target)
    state = read_input(flow, input, fields)
    with open_or_make(invocation) as store:
        return _perform(invocation, flow, "run", (state,), store=store, run_id=run_id, **options)


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
    target: str,
    node_id: str | None,
    visit: int | None,
    rerun: bool,
    plan: bool,
    **correcting: Any,
) -> int:
    """Go on with a run where its records end. First the RUN, then its TARGET.

    Nothing that is recorded runs again. Example: milepost resume o-17 shop:graph
    """
    if node_id is None and (visit is not None or rerun):
        raise click.UsageError("--visit and --rerun go with --from NODE")
    options = _read_correcting(correcting)
    flow = load_target(target)
    with open_existing(invocation) as store:
        if plan:
            planned = flow.plan_resume(store, run_id, node_id, visit=visit, rerun=rerun, **options)
            return _show_plan(invocation, planned)
        if node_id is None:
            return _perform(invocation, flow, "resume", (store, run_id), **options)
        return _perform(invocation, flow, "resume_from", (store, run_id, node_id), visit=visit, rerun=rerun, **options)


@command("retry", _run_id, _target, _correcting)
def retry(invocation: Invocation, run_id: str, target: str, **correcting: Any) -> int:
    """Run again what failed, with fresh attempts. First the RUN, then its TARGET.

    Completed work is kept. Example: milepost retry o-17 shop:graph
    """
    options = _read_correcting(correcting)
    flow = load_target(target)
    with open_existing(invocation) as store:
        return _perform(invocation, flow, "retry", (store, run_id), **options)


def _read_correcting(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a verb from those of a command; what was not given stays at the verb's default."""
    options = {name: value for name, value in given.items() if value not in (None, False, ())}
    if "rename" in options:
        options["rename"] = read_pairs(options["rename"], "--rename")
    return options


def _perform(invocation: Invocation, flow: Flow, verb: str, arguments: tuple[Any, ...], **options: Any) -> int:
    """Call a verb, show what happens, then its result."""
    invocation.is_live = invocation.is_json

    def note(event: Event) -> None:
        if isinstance(event, RunStarted):
            invocation.run_id = event.run_id

    with watching(flow.codec, is_json=invocation.is_json) as watcher:
        result = _call(flow, verb, arguments, full=True, hooks=(note, watcher), **options)
    _show_result(invocation, flow, result)
    return OK if result.status == "finished" else FAILED


def _call(flow: Flow, verb: str, arguments: tuple[Any, ...], **options: Any) -> RunResult[Any]:
    """The sync verb, or its async twin where the flow has coroutine functions."""
    result: RunResult[Any]
    if not flow.async_names:
        result = getattr(flow, verb)(*arguments, **options)
        return result

    async def perform() -> RunResult[Any]:
        answer: RunResult[Any] = await getattr(flow, f"a{verb}")(*arguments, **options)
        return answer

    result = asyncio.run(perform())
    return result


def _show_result(invocation: Invocation, flow: Flow, result: RunResult[Any]) -> None:
    state = recorded(flow.codec, result.state)
    if invocation.is_json:
        print(to_json({"event": "Result", **result.to_dict(), "state": state}, is_line=True))
        return
    if result.degraded:
        print(f"without a checkpoint: {', '.join(map(clean, result.missed))}", file=sys.stderr)
    print(pretty(state))


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
