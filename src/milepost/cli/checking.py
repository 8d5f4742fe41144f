"""The commands that look at what is there before anything runs: graph and doctor."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from milepost import __version__
from milepost.cli.exits import FAILED, OK
from milepost.cli.invocation import Invocation, command
from milepost.cli.places import chosen_url, file_of, open_existing, url_of
from milepost.cli.tables import print_table
from milepost.cli.targets import load_target
from milepost.cli.text import to_json
from milepost.errors import MilepostError

__all__ = ["doctor", "draw_graph"]

FIXED_SQLITE = (3, 51, 3)
"""The first SQLite without the WAL-reset bug. Source: https://www.sqlite.org/wal.html#walresetbug"""
OLDEST_SQLITE = (3, 35)


@command(
    "graph",
    click.argument("target", metavar="TARGET"),
    click.option(
        "--format", "form", type=click.Choice(["mermaid", "dot", "json"]), default="mermaid", show_default=True
    ),
)
def draw_graph(invocation: Invocation, target: str, form: str) -> int:
    """Draw a graph as Mermaid, Graphviz or JSON.

    TARGET is module:graph or path.py:graph.
    """
    graph = load_target(target)
    if invocation.is_json or form == "json":
        warnings = [{"code": w.code, "where": w.where, "text": w.text} for w in graph.warnings]
        print(to_json({**graph.to_dict(), "warnings": warnings}))
    else:
        print(graph.to_mermaid() if form == "mermaid" else graph.to_dot(), end="")
    return OK


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    value: str
    verdict: Literal["ok", "note", "problem"] = "ok"
    note: str = ""


@command("doctor")
def doctor(invocation: Invocation) -> int:
    """Check Python, SQLite, the store and the extras.

    Exit code 1 if something is wrong.
    """
    findings = [
        Finding("milepost", __version__),
        _python(),
        _sqlite(),
        *_store(invocation),
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


def _python() -> Finding:
    return Finding("python", f"{platform.python_version()} ({platform.python_implementation()})")


def _sqlite() -> Finding:
    version, found = sqlite3.sqlite_version_info, sqlite3.sqlite_version
    if version < OLDEST_SQLITE:
        return Finding("sqlite", found, "problem", "SQLite stores need 3.35 or newer")
    if version < FIXED_SQLITE:
        note = (
            "has the WAL-reset bug (before 3.51.3); milepost guards against it: no write begins in its processes while "
            "the log is moved. Do not let other programs write to the same file"
        )
        return Finding("sqlite", found, "note", note)
    return Finding("sqlite", found)


def _store(invocation: Invocation) -> list[Finding]:
    url = url_of(invocation)
    source = "--store" if invocation.store_url else "MILEPOST_STORE" if chosen_url(invocation) else "the default"
    path = file_of(url)
    if path is not None:
        return _file_store(invocation, path.absolute(), source)
    try:
        with open_existing(invocation) as store:
            return [Finding("store", store.place, "ok", f"named by {source}")]
    except MilepostError as exc:
        return [Finding("store", f"{url.partition(':')[0]}:...", "problem", str(exc))]


def _file_store(invocation: Invocation, path: Path, source: str) -> list[Finding]:
    place = Finding("store", str(path), "ok", f"named by {source}")
    if not path.exists():
        folder = next(parent for parent in path.parents if parent.exists())
        if not os.access(folder, os.W_OK | os.X_OK):
            return [place, Finding("writable", "no", "problem", f"{folder} can't be written to")]
        if folder != path.parent and source != "the default":
            return [place, Finding("writable", "no", "problem", f"its folder is missing: make {path.parent} first")]
        return [place, Finding("writable", "yes", "ok", "it is not there yet; the first run makes it")]
    findings = [place]
    try:
        with open_existing(invocation) as store:
            store.list_runs(limit=1)
    except (MilepostError, click.ClickException) as exc:
        findings.append(Finding("readable", "no", "problem", str(exc)))
    is_writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)
    note = "" if is_writable else "the file and its folder must be writable, for the log beside it"
    findings.append(Finding("writable", "yes" if is_writable else "no", "ok" if is_writable else "problem", note))
    mode = stat.S_IMODE(path.stat().st_mode)
    is_open = bool(mode & 0o077)
    advice = f"others may use it, and states may hold secrets: chmod 600 {path}" if is_open else ""
    findings.append(Finding("file mode", f"{mode:04o}", "note" if is_open else "ok", advice))
    return findings


def _extras() -> list[Finding]:
    """Which extras are installed, as the package itself declares them."""
    from importlib import metadata  # a tenth of the start-up time of every other command

    try:
        distribution = metadata.distribution("milepost")
    except metadata.PackageNotFoundError:
        return [Finding("extras", "unknown", "note", "milepost runs from its source and is not installed")]
    needed: dict[str, list[str]] = {}
    for requirement in distribution.requires or ():
        match = re.match(r"([\w.-]+).*extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if match and match[2] != "test" and match[1] != "milepost":
            needed.setdefault(match[2], []).append(match[1])
    return [_extra(extra, packages) for extra, packages in sorted(needed.items())]


def _extra(extra: str, packages: list[str]) -> Finding:
    from importlib import metadata

    found: list[str] = []
    missing: list[str] = []
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        return Finding(f"extra {extra}", "not installed", "note", f"pip install 'milepost[{extra}]'")
    return Finding(f"extra {extra}", ", ".join(found))
