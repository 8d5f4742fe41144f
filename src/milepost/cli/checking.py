"""The commands that look at what is there before anything runs: graph and doctor."""

from __future__ import annotations

import contextlib
import platform
import re
from dataclasses import asdict
from typing import Any

import click

from milepost import __version__
from milepost.cli.commands import FAILED, OK, Invocation, app_option, command
from milepost.cli.database import store_findings
from milepost.cli.places import chosen_app, open_to_look
from milepost.cli.targets import Runnable, found_flow, is_target, load_target
from milepost.cli.text import print_table, to_json
from milepost.graph.builder import CompiledGraph
from milepost.graph.drawing import recorded_picture, to_dot, to_mermaid
from milepost.graph.status import RunStatus, read_status
from milepost.graph.topology import Topology
from milepost.model.info import RunInfo
from milepost.store import Store
from milepost.views.findings import Diagnosis, sqlite_finding
from milepost.views.journal import is_workflow, records_of
from milepost.views.tree import notes_of, status_document
from milepost.workflows.definition import Workflow


@command(
    "graph",
    click.argument("target", metavar="[TARGET]", required=False),
    click.option("--run", "run_id", metavar="RUN", help="Colour the nodes by where this run stands."),
    click.option(
        "--format", "form", type=click.Choice(["mermaid", "dot", "json"]), default="mermaid", show_default=True
    ),
    app_option,
)
def draw_graph(invocation: Invocation, target: str | None, run_id: str | None, form: str) -> int:
    """Draw a graph as Mermaid, Graphviz or JSON.

    TARGET is module:graph or path.py:graph, or the name of one of the app's graphs. A workflow has none: its steps are known
    only while it runs. With --run the nodes say where that run stands: what is done, running, failed, waiting or next. With
    neither TARGET nor --app the graph is drawn as it was when the run began, which needs no code.
    """
    if target is None and run_id is None and chosen_app(invocation) is None:
        raise click.UsageError("name the graph, as module:graph or path.py:graph, or a run with --run RUN")
    with contextlib.ExitStack() as stack:
        graph = found = store = None
        if is_target(invocation, target):
            graph = _graph(load_target(str(target)), target)
        elif target is not None or run_id is None or invocation.app is not None:
            looking = found_flow(invocation, target, run_id, read_only=True, takes_own=True)
            flow, open_engine = stack.enter_context(looking)
            graph = _graph(flow, target)
            store = None if run_id is None else open_engine().store
        if run_id is not None:
            found = _run_of(store or stack.enter_context(open_to_look(invocation)), run_id, graph)
    stands = None if found is None else found[1]
    status, notes = (None, None) if stands is None else (stands.statuses, notes_of(stands))
    if invocation.is_json or form == "json":
        document: dict[str, Any] = _recorded(found) if graph is None else graph.to_dict()
        document["warnings"] = (
            [] if graph is None else [{"code": w.code, "where": w.where, "text": w.text} for w in graph.warnings]
        )
        print(to_json(document if found is None else document | _run_document(*found)))
    elif graph is not None:
        print(graph.to_mermaid(status, notes) if form == "mermaid" else graph.to_dot(status, notes), end="")
    else:
        assert found is not None
        picture = recorded_picture(found[1].shape)
        print(
            to_mermaid(picture, status, notes) if form == "mermaid" else to_dot(picture, status, found[0].flow, notes),
            end="",
        )
    return OK


def _graph(graph: Runnable, target: str | None) -> CompiledGraph[Any]:
    if isinstance(graph, Workflow):
        raise click.UsageError(
            f"target {target or graph.name!r} is workflow {graph.name!r}, whose steps are known only while it runs: "
            f"milepost show RUN has those of a run"
        )
    return graph


def _run_of(store: Store, run_id: str, graph: CompiledGraph[Any] | None) -> tuple[RunInfo, RunStatus]:
    """Return a run of a graph, and where it stands."""
    latest = store.latest(run_id)
    row = latest.row
    if is_workflow(store, run_id):
        raise click.UsageError(f"run {run_id!r} is one of a workflow: milepost show {run_id} has its steps")
    stands = read_status(records_of(store, run_id, latest.newest), row.live, row.info.status)
    if graph is not None and row.info.flow != graph.name:
        raise click.UsageError(f"run {run_id!r} is one of flow {row.info.flow!r}, and the target is {graph.name!r}")
    if graph is None and not stands.shape:
        raise click.UsageError(
            f"what graph run {run_id!r} is of is not recorded: name it, as module:graph or path.py:graph"
        )
    return row.info, stands


def _recorded(found: tuple[RunInfo, RunStatus] | None) -> dict[str, Any]:
    assert found is not None
    info, stands = found
    topology = Topology.of(stands.shape)
    return {"name": info.flow, "fingerprint": topology.fingerprint, **topology.described}


def _run_document(info: RunInfo, stands: RunStatus) -> dict[str, Any]:
    document = status_document(stands)
    return {
        "run": {"run_id": info.run_id, "status": info.status},
        **{name: document[name] for name in ("statuses", "next_nodes", "maps")},
    }


@command("doctor")
def doctor(invocation: Invocation) -> int:
    """Check Python, SQLite, the store and the extras.

    Of a store: whether it can be used, its version, what its disk or its server promises, and its clock. Exit code 1 if
    something is wrong.
    """
    findings = [
        Diagnosis("milepost", __version__),
        _python(),
        sqlite_finding(),
        *store_findings(invocation),
        *_extras(),
    ]
    is_ok = all(finding.verdict != "problem" for finding in findings)
    if invocation.is_json:
        print(to_json({"ok": is_ok, "findings": [asdict(finding) for finding in findings]}))
    else:
        print_table(("what", "found", "verdict", "note"), [(f.name, f.value, f.verdict, f.note) for f in findings])
        if not is_ok:
            print("something is wrong: see the notes")
    return OK if is_ok else FAILED


def _python() -> Diagnosis:
    return Diagnosis("python", f"{platform.python_version()} ({platform.python_implementation()})")


def _extras() -> list[Diagnosis]:
    """Report which extras are installed, as the package itself declares them."""
    from importlib import metadata  # a tenth of the start-up time of every other command

    try:
        distribution = metadata.distribution("milepost")
    except metadata.PackageNotFoundError:
        return [Diagnosis("extras", "unknown", "note", "milepost runs from its source and is not installed")]
    needed: dict[str, list[str]] = {}
    for requirement in distribution.requires or ():
        match = re.match(r"([\w.-]+).*extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if match and match[2] != "test" and match[1] != "milepost":
            needed.setdefault(match[2], []).append(match[1])
    return [_extra(extra, packages) for extra, packages in sorted(needed.items())]


def _extra(extra: str, packages: list[str]) -> Diagnosis:
    from importlib import metadata

    found: list[str] = []
    missing: list[str] = []
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        return Diagnosis(f"extra {extra}", "not installed", "note", f"pip install 'milepost[{extra}]'")
    return Diagnosis(f"extra {extra}", ", ".join(found))
