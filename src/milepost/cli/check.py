"""The command that checks the app's code before it is deployed: check."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from milepost.checking import CheckReport, Finding, FlowVersion, check, lint, versions
from milepost.checking.formats import github_commands, summary, to_junit
from milepost.checking.runs import MOST, OPEN
from milepost.cli.commands import FAILED, NOT_FOUND, OK, UNCHECKED, Invocation, NotFound, app_option, code_of, command
from milepost.cli.targets import engine_of, loaded
from milepost.cli.text import print_table, to_json
from milepost.cli.values import read_pairs
from milepost.engine.engine import Engine
from milepost.errors import StoreError
from milepost.stores.memory import MemoryStore
from milepost.views.text import ago, clean, plural

_NO_STORE = "memory://"
_SQLITE = b"SQLite format 3\0"


@command(
    "check",
    click.argument("places", metavar="[URL | FILE...]", nargs=-1),
    click.option("--flow", metavar="NAME", help="Only runs of this flow."),
    click.option("--status", multiple=True, type=click.Choice(OPEN), metavar="STATUS",
                 help=f"Only runs of this status: {', '.join(OPEN)}. Repeatable; default: all of these."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Only runs with this tag. Repeatable."),
    click.option("--sample", type=click.IntRange(1), default=2000, show_default=True,
                 help=f"How many to check where there are more than {MOST}."),
    click.option("--seed", type=int, metavar="N", help="Take the sample again that an earlier check names."),
    click.option("--finished", type=click.IntRange(0), default=0, metavar="N",
                 help="Also the newest N finished runs of each flow, as if they stood on their paths."),
    click.option("--versions", "is_of_versions", is_flag=True,
                 help="Instead, list the versions that open runs began with: what of the code may go."),
    click.option("--lint", "is_linting", is_flag=True,
                 help="Also read the code of the flows for what differs when it runs again. Without a store, that alone."),
    click.option("--lint-error", is_flag=True, help="The same, and fail if something is found."),
    click.option("--strict", is_flag=True, help="Fail if there are runs of flows that the app does not have."),
    click.option("--allow-empty", is_flag=True, help="Succeed if there is nothing to check."),
    click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the report there, as JSON."),
    click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write the report there, as JUnit XML."),
    click.option("--github", is_flag=True,
                 help="Print annotations for GitHub, and add a table to $GITHUB_STEP_SUMMARY."),
    app_option,
)  # fmt: skip
def check_runs(
    invocation: Invocation,
    places: tuple[str, ...],
    flow: str | None,
    status: tuple[str, ...],
    tags: tuple[str, ...],
    sample: int,
    seed: int | None,
    finished: int,
    is_of_versions: bool,
    is_linting: bool,
    lint_error: bool,
    strict: bool,
    allow_empty: bool,
    output: Path | None,
    junit: Path | None,
    github: bool,
) -> int:
    """Check the app's code against the runs that are open.

    URL is the store, as with --store. With FILEs, which export wrote, the runs in them are checked instead. Nothing is run
    and nothing is written: for each run it is asked what a resume would do. Exit code 1 if one would be refused or can't be
    read, and 6 if there was none to check.
    """
    is_linting = is_linting or lint_error
    files = _files_in(invocation, places)
    if is_of_versions and (files or is_linting or output or junit or github):
        raise click.UsageError("--versions lists what is in a store: leave out FILE, --lint, -o, --junit and --github")
    may_lint_alone = is_linting and not files and not is_of_versions
    if files:
        invocation.store_url = _NO_STORE
    which: dict[str, Any] = {"flow": flow, "status": status or None, "tags": read_pairs(tags, "--tag") or None}
    report = CheckReport(checked=0, of=0, groups=())
    findings: tuple[Finding, ...] = ()
    with loaded(invocation, read_only=True, needs_store=not may_lint_alone) as app:
        engine = engine_of(app)
        is_lint_alone = may_lint_alone and not _has_store(engine)
        if is_of_versions:
            return _show_versions(invocation, versions(engine, **which), allow_empty=allow_empty)
        if not is_lint_alone:
            with contextlib.redirect_stdout(sys.stderr):  # bodies of workflows, routers and prompts may print
                report = check(engine, sample=sample, seed=seed, finished=finished, files=files, **which)
        flows = [known for name, known in engine.flows.items() if flow in {None, name}]
        if is_linting:
            findings = lint(flows)
    document = report.to_dict() | ({"lint": [finding._asdict() for finding in findings]} if is_linting else {})
    if invocation.is_json:
        print(to_json(document))
    else:
        if not is_lint_alone:
            print(report)
        if is_linting:
            _print_findings(findings, len(flows))
    if github:
        _tell_github(report, findings, strict=strict, lint_error=lint_error, to_errors=invocation.is_json)
    if output is not None:
        _write(output, to_json(document, is_line=True) + "\n")
    if junit is not None:
        _write(junit, to_junit(report, findings, strict=strict, lint_error=lint_error))
    if not report.ok or (strict and report.unknown) or (lint_error and findings):
        return FAILED
    return OK if report.checked or is_lint_alone or allow_empty else UNCHECKED


def _files_in(invocation: Invocation, places: Sequence[str]) -> list[Path]:
    """Return the places that are files, and note a URL as the store. Raises `click.UsageError` and `NotFound`."""
    urls = [place for place in places if _is_url(place)]
    if len(urls) > 1 or (urls and (len(places) > 1 or invocation.store_url is not None)):
        raise click.UsageError("name one store, or files that export wrote")
    if urls:
        invocation.store_url = urls[0]
        return []
    files = [Path(place) for place in places]
    for file in files:
        if not file.is_file():
            raise NotFound(f"there is no file {str(file)!r}")
        with file.open("rb") as content:
            if content.read(len(_SQLITE)) == _SQLITE:
                raise click.UsageError(f"{str(file)!r} is no export; a store is named sqlite:///{quote(str(file))}")
    return files


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise click.UsageError(f"can't write {str(path)!r}: {exc.strerror}") from exc


def _is_url(place: str) -> bool:
    return "://" in place or (place.startswith("file:") and not Path(place).is_file())


def _has_store(engine: Engine) -> bool:
    """Return whether there may be runs: the engine's store is there, and is none in the memory of this process."""
    try:
        return not isinstance(engine.store, MemoryStore)
    except StoreError as exc:
        if code_of(exc) != NOT_FOUND:
            raise
        return False


def _print_findings(findings: Sequence[Finding], number_of_flows: int) -> None:
    for finding in findings:
        print(finding)
    if not findings:
        print(f"lint: nothing found in {plural(number_of_flows, 'flow')}")


def _tell_github(
    report: CheckReport, findings: Sequence[Finding], *, strict: bool, lint_error: bool, to_errors: bool
) -> None:
    """Print annotations (GitHub reads both outputs) and add to the summary of the job, if there is one."""
    for line in github_commands(report, findings, strict=strict, lint_error=lint_error):
        click.echo(line, err=to_errors)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(summary(report, findings, strict=strict, lint_error=lint_error))


def _show_versions(invocation: Invocation, found: Sequence[FlowVersion], *, allow_empty: bool) -> int:
    if invocation.is_json:
        print(to_json({"versions": [version.to_dict() for version in found]}))
    elif found:
        columns = ("flow", "version", "fingerprint", "runs", "oldest", "such as", "note")
        rows = [
            (one.flow, one.version, one.fingerprint[:12], one.runs, ago(one.oldest), one.example, _note_on(one))
            for one in found
        ]
        print_table(columns, rows)
    else:
        print("no open run")
    if any(one.problem for one in found):
        return FAILED
    return OK if found or allow_empty else UNCHECKED


def _note_on(one: FlowVersion) -> str:
    if one.problem:
        return clean(f"not read: {one.problem}")
    return {True: "as the code is", False: "older code", None: ""}[one.is_current]
