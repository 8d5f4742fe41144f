"""The command crashtest, and its child processes.

Run as a module, this file is the nursery of its child processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from milepost.cli.commands import FAILED, OK, Invocation, command
from milepost.cli.targets import find_target, load_target, read_input, split_input
from milepost.cli.text import print_table, to_json
from milepost.cli.values import read_json, read_pairs
from milepost.errors import MilepostError, OptionError
from milepost.testing.crashing import CrashReport, NonDeterministicNode, Trial, check_worlds, examine, undisturbed
from milepost.testing.killing import ChildRuns, UndisturbedRunError, UsageOfChildError, failure_text, serve, work
from milepost.testing.playing import inputs_of
from milepost.testing.scenarios import Subject, plain_json
from milepost.testing.verdicts import NodeReport, check_repeatable
from milepost.verbs import flow_of
from milepost.views.states import changes
from milepost.views.text import clean, in_options, plural, short
from milepost.workflows.definition import Workflow

SLOW = 30.0
"""Seconds above which the command says beforehand how long it will take."""
_VERDICTS = {
    "safe": "safe",
    "not idempotent": "NOT IDEMPOTENT: use ctx.idempotency_key, or ctx.with_checkpoint",
    "not looked at": "side effects not looked at",
    "not tried": "not tried",
}


@command(
    "crashtest",
    click.argument("target", metavar="TARGET"),
    click.argument("input", metavar="[INPUT]", required=False),
    click.option("--input", "-i", "fields", multiple=True, metavar="KEY=VALUE",
                 help="One field of the state, or one input; VALUE is JSON if it parses, else text. Repeatable."),
    click.option("--input-from", metavar="MODULE:FUNCTION",
                 help="What returns the input: a state, or a mapping of inputs. For values that JSON does not have."),
    click.option("--signal", "signals", multiple=True, metavar="NAME=JSON", help="What answers a wait. Repeatable."),
    click.option("--world", metavar="MODULE:FUNCTION",
                 help="What returns, as JSON, the things that nodes do outside the state: rows, calls of a fake server."),
    click.option("--before", metavar="MODULE:FUNCTION", help="What resets the world before each run."),
    click.option("--nondeterministic", multiple=True, metavar="NODE",
                 help="A node whose output may differ each time, such as a call of a model. Repeatable."),
    click.option("--fails", is_flag=True, help="The run has to end as failed, and to be rolled back."),
    click.option("--places", type=click.IntRange(1), metavar="N", help="Try only so many moments of death, evenly spread."),
    click.option("--process", "is_killed", is_flag=True, help="Kill child processes by SIGKILL, on a SQLite store."),
    click.option("--files", "in_files", is_flag=True, help="With --process: on a store in files."),
    click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, metavar="SECONDS",
                 help="For one run in a child process."),
    click.option("--verbose", is_flag=True, help="Say of each scenario that ends otherwise at which effect it was."),
)  # fmt: skip
def crashtest(
    invocation: Invocation,
    target: str,
    input: str | None,
    fields: tuple[str, ...],
    input_from: str | None,
    signals: tuple[str, ...],
    world: str | None,
    before: str | None,
    nondeterministic: tuple[str, ...],
    fails: bool,
    places: int | None,
    is_killed: bool,
    in_files: bool,
    timeout: float,
    verbose: bool,
) -> int:
    """Kill a flow everywhere, and see whether it ends the same.

    TARGET is module:flow or path.py:flow. First two child processes with different hash seeds run it undisturbed: what differs
    is not deterministic. Then it dies before and after every effect (every write with --process), goes on, and must end like
    the undisturbed run. With --world a node that changes the world by running again is found too. Nothing of your stores is
    touched: runs are in memory, or in a temporary folder. Exit code 1 if something was found.
    """
    if invocation.store_url is not None:
        raise click.UsageError("crashtest has stores of its own: leave out --store")
    if input_from is not None and (input is not None or fields):
        raise click.UsageError("give the input either by --input-from or as JSON, not both")
    if in_files and not is_killed:
        raise click.UsageError("--files goes with --process")
    _, text = split_input(target, sys.stdin.read() if input == "-" else input)
    task = {
        "target": target,
        "text": text,
        "fields": fields,
        "input_from": input_from,
        "signals": {
            name: read_json(value, f"--signal {name}") for name, value in read_pairs(signals, "--signal").items()
        },
        "world": world,
        "before": before,
        "fails": fails,
    }
    subject = _subject(task)
    shown = _Shown(invocation, verbose=verbose, looks=world is not None)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="milepost-crashtest-")))
        stack.enter_context(_usage(subject))
        nursery = [sys.executable, "-m", "milepost.cli.crashing", str(timeout)]
        children = stack.enter_context(
            ChildRuns(nursery, task, folder / "run", "file" if in_files else "sqlite", before, world)
        )
        if is_killed and subject.world is not None:
            children.check_world = _outside(subject)
        try:
            return _try(invocation, shown, subject, children, is_killed, places, nondeterministic)
        except NonDeterministicNode as exc:
            return shown.differing(exc)
        except AssertionError as exc:
            return shown.problem(exc)


def _try(
    invocation: Invocation,
    shown: _Shown,
    subject: Subject,
    children: ChildRuns,
    is_killed: bool,
    places: int | None,
    nondeterministic: tuple[str, ...],
) -> int:
    """Run the flow undisturbed and disturbed, and show what comes of it."""
    flow, front = subject.flow.name, subject.flow.front
    began = time.monotonic()
    plain, other = children.play((), 1), children.play((), 2)
    check_repeatable(plain, other, flow, front, nondeterministic)
    check_worlds(plain, other, children.before)
    trial: Trial = children
    if not is_killed:
        trial, began = subject, time.monotonic()
        with _quiet(invocation):
            plain = undisturbed(subject, flow, front, nondeterministic)
    each = (time.monotonic() - began) / 2
    shown.equal()

    def estimate(number: int) -> None:
        if places is None and number * each > SLOW:
            told = f"one run and its probe take {each:.1f} s: {number} places take about {number * each:.0f} s"
            print(f"milepost: {told}; --places 20 tries a sample", file=sys.stderr)

    with _quiet(invocation):
        report, _ = examine(trial, flow, front, 1, places, nondeterministic, plain=plain, announce=estimate)
    return shown.report(report, plain.world, time.monotonic() - began)


class _Shown:
    """The output of the command."""

    def __init__(self, invocation: Invocation, *, verbose: bool, looks: bool) -> None:
        self._is_json = invocation.is_json
        self._verbose = verbose
        self._looks = looks

    def equal(self) -> None:
        """Say that the undisturbed runs were equal."""
        if not self._is_json:
            print("2 undisturbed runs: equal", flush=True)

    def differing(self, exc: NonDeterministicNode) -> int:
        """Show which node differed in the undisturbed runs."""
        found = {"node": exc.node, "visit": exc.visit, "values": exc.values, "message": str(exc)}
        return self._found({"nondeterministic": found}, f"2 undisturbed runs: they differ\n{clean(exc)}")

    def problem(self, exc: AssertionError) -> int:
        """Show what else was wrong with the undisturbed runs."""
        return self._found({"message": str(exc)}, clean(exc))

    def _found(self, document: Mapping[str, Any], text: str) -> int:
        print(to_json({"ok": False, **document}) if self._is_json else text)
        return FAILED

    def report(self, report: CrashReport, world: Any, seconds: float) -> int:
        """Show what the disturbed runs have shown."""
        is_ok = not report.not_idempotent and not report.disagreements
        if self._is_json:
            document = {
                "ok": is_ok,
                "places": report.scenarios,
                "crashes": report.crashes,
                "nodes": [asdict(node) for node in report.nodes],
                "disagreements": [
                    {"node": found.node, "what": found.what, "scenarios": len(found.places), "places": found.places}
                    for found in report.disagreements
                ],
            }
            print(to_json(document))
            return OK if is_ok else FAILED
        died = "1 process" if report.crashes == 1 else f"{report.crashes} processes"
        print(f"{plural(report.scenarios, 'place')}, {died} died, {seconds:.1f} s")
        otherwise = dict.fromkeys(found.node for found in report.disagreements)
        known = {node.node: node for node in report.nodes}
        rows = [self._row(node, world, is_other=node.node in otherwise) for node in report.nodes]
        rows += [(node, "", "", "ENDS OTHERWISE") for node in otherwise if node not in known]
        print_table(("node", "ran again", "world changed by that", "verdict"), rows)
        for found in report.disagreements:
            number = plural(len(found.places), "place")
            print(f"{clean(found.node)}: at {number} {clean(found.what)}")
            for place in found.places if self._verbose else ():
                print(f"  crashed {clean(place)}")
        return OK if is_ok else FAILED

    def _row(self, node: NodeReport, world: Any, *, is_other: bool) -> tuple[str, ...]:
        changed = "no" if self._looks and node.ran_again else ""
        if node.world_difference:
            found = [f"{path}: {sign} {value}" for path, sign, value in _told(world, node.world_difference)]
            changed = short("; ".join(found), 80)
        verdict = _VERDICTS[node.verdict]
        for code, place in (("code of ", "step"), ("decision of ", "node")):
            if node.verdict == "not idempotent" and node.node.startswith(code):
                verdict = f"NOT IDEMPOTENT: let a {place} do it"
        if is_other:
            verdict = "ENDS OTHERWISE" + (f"; {verdict}" if node.verdict == "not idempotent" else "")
        return node.node, f"{node.ran_again}x" if node.ran_again else "", changed, verdict


def _told(world: Any, patch: tuple[dict[str, Any], ...]) -> Iterator[tuple[str, str, str]]:
    """Yield where the world was changed, a sign, and the value."""
    for sign, text in changes(world, patch):
        path, _, value = text.partition("  ")
        yield path.strip("/").replace("/", ".") or "all", sign, value


@contextlib.contextmanager
def _quiet(invocation: Invocation) -> Iterator[None]:
    """Keep what nodes print and the library's warnings from the screen: they would come once for each place."""
    logger, before = logging.getLogger("milepost"), logging.getLogger("milepost").level
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        if not invocation.is_debug:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(before)


@contextlib.contextmanager
def _usage(subject: Subject) -> Iterator[None]:
    """Raise an error of an undisturbed run as one of usage: such a flow can't be tested."""
    try:
        yield
    except UndisturbedRunError as exc:
        raise click.UsageError(_named(str(exc), subject)) from exc
    except (OptionError, UsageOfChildError) as exc:
        raise click.UsageError(_in_options(str(exc))) from exc
    except (click.ClickException, AssertionError):
        raise
    except Exception as exc:
        raise click.UsageError(_named(failure_text(exc), subject)) from exc


def _named(text: str, subject: Subject) -> str:
    return f"flow {subject.flow.name!r} can't be tested with this input: undisturbed {_in_options(text)}"


def _in_options(text: str) -> str:
    """Replace the arguments of `crashtest` in a text by the options of the command."""
    return re.sub(r"\b(signal|fails|before|world|nondeterministic)s?=(True)?", r"--\1", in_options(text))


def _outside(subject: Subject) -> Callable[[Any], None]:
    """Return a check that the world is not in the memory of the child that has just ended."""

    def check(world: Any) -> None:
        if plain_json(subject.world and subject.world()) != world:
            raise click.UsageError(
                "--world sees another world in this process than in the child: with --process the world has to be outside "
                "of memory, in a file or a database"
            )

    return check


# -- The flow, its input and the probes, in both processes -------------------------------------------------


def _subject(task: Mapping[str, Any]) -> Subject:
    """Import everything that a task names. Raises `click.UsageError`."""
    flow = load_target(task["target"])
    core = flow_of(flow)
    if task["input_from"] is not None:
        given = _function(task["input_from"], "--input-from")()
    else:
        given = read_input(flow, task["text"], task["fields"])
    try:
        data = core.codec.encode(inputs_of(flow, given) if isinstance(flow, Workflow) else given)
    except (MilepostError, TypeError) as exc:
        raise click.UsageError(f"the input is none of flow {flow.name!r}: {exc}") from exc
    return Subject(
        core,
        data,
        before=None if task["before"] is None else _function(task["before"], "--before"),
        world=None if task["world"] is None else _function(task["world"], "--world"),
        signals=task["signals"],
        fails=task["fails"],
    )


def _function(target: str, option: str) -> Callable[[], Any]:
    """Return the function that an option names. Its errors are those of usage."""
    place, _, name = target.rpartition(":")
    module = _imported(place)
    found = find_target(target)[1] if module is None else getattr(module, name, None)
    if not callable(found):
        raise click.UsageError(f"{option} {target!r} names no function")

    def call() -> Any:
        try:
            return found()
        except Exception as exc:
            raise click.UsageError(f"{option} {target!r} raised {type(exc).__name__}: {exc}") from exc

    return call


def _imported(place: str) -> ModuleType | None:
    """Return the module of a file that is imported already, so that nodes and probes share what is in it."""
    path = os.path.realpath(place)
    for module in reversed(list(sys.modules.values())):
        file = getattr(module, "__file__", None)
        if file is not None and place.endswith(".py") and os.path.realpath(file) == path:
            return module
    return None


def _child(path: str) -> None:
    task = json.loads(Path(path).read_text(encoding="utf-8"))
    work(task, lambda open_store: replace(_subject(task), open_store=open_store))


if __name__ == "__main__":
    serve(float(sys.argv[1]), _child)
