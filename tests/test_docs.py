"""Every Python block and every command of the documentation is executed, page by page, in an empty folder.

Blocks of one page share a namespace, in order, and the page says so; those of the README run alone, each of them twice. A
block below the comment `not run` is shown only; why it cannot run stands in the test's lists, so that a page cannot opt out
unnoticed. Examples in docstrings are executed too.
"""

from __future__ import annotations

import asyncio
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import GenericAlias
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NOT_RUN = {
    # installs; `.ci/run` executes them in fresh environments
    "README.md": 2,
    "CONTRIBUTING.md": 1,
    # measure for minutes
    "performance.md": 1,
}
PYTHON_NOT_RUN = {
    # one block of another library's, which is shown beside ours and which nothing here installs
    "from-langgraph.md": 1,
}
RUNNABLE = [page for page in PAGES if page.parent.name != "tutorial"]
"""The tutorial is walked as a whole by `test_tutorial.py`."""
GO_ON = "The Python blocks of this page go on from each other: run them from the first one on."
FENCE = re.compile(r"^(<!-- not run -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def marked(pages: list[Path], *wide: str) -> list[Any]:
    """Pages as parameters. Those are wide that take long, or need what `pytest` alone does not, as how-to pages may."""
    are_wide = {page for page in pages if page.name in wide or page.parent.name == "how-to"}
    return [pytest.param(page, marks=[pytest.mark.wide] if page in are_wide else [], id=page.stem) for page in pages]


def blocks(page: Path, *languages: str) -> list[tuple[int, str, bool]]:
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 2, found[3], bool(found[1]))
        for found in FENCE.finditer(text)
        if found[2] in languages
    ]


def commands(source: str) -> list[str]:
    joined = source.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("page", marked(RUNNABLE, "several-machines.md"))
def test_every_python_block_of_a_page_runs_and_does_so_again(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    parts, skipped = [], 0
    for line, source, is_shown_only in blocks(page, "python"):
        if is_shown_only:
            skipped += 1
            continue
        parts.append(f"exec(compile({source!r}, {f'{page.name}:{line}'!r}, 'exec'), namespace)")
    is_readme = page.name == "README.md"  # where readers paste blocks one by one
    assert is_readme or len(parts) < 2 or GO_ON in page.read_text(encoding="utf-8")
    assert skipped == PYTHON_NOT_RUN.get(page.name, 0), f"{page.name} has {skipped} Python blocks that are not run"
    if not parts:
        return
    if is_readme:
        parts = [line for part in parts for line in ("namespace = {'__name__': 'page'}", part, part)]
    script = tmp_path / "page.py"
    script.write_text("namespace = {'__name__': 'page'}\n" + "\n".join(parts) + "\n", encoding="utf-8")
    for time in ("first", "second")[: 2 if request.config.getoption("--all") else 1]:
        done = subprocess.run(
            [sys.executable, "-W", "error", script.name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}, the {time} time\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", marked(RUNNABLE, "several-machines.md", "command-line.md", "crash-test.md"))
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """A page may write the files that its commands need: a Python block that begins with `# name.py`."""
    for _, source, _ in blocks(page, "python"):
        name = re.match(r"# (\w+\.py)\n", source)
        if name:
            (tmp_path / name[1]).write_text(source, encoding="utf-8")
    skipped = 0
    for line, source, is_shown_only in blocks(page, "bash", "console", "sh"):
        for command in commands(source):
            is_ours = command.startswith("milepost ") and "|" not in command
            if is_shown_only or not is_ours:
                skipped += 1
                continue
            words = shlex.split(command, comments=True)
            allowed = re.search(r"# exits with (\d)", command)
            done = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=tmp_path,
                env={**os.environ, "COLUMNS": "120"},
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            expected = int(allowed[1]) if allowed else 0
            assert done.returncode == expected, f"{page.name}:{line}: {command}\n{done.stdout}\n{done.stderr}"
    assert skipped <= NOT_RUN.get(page.name, 0) + 1, f"{page.name} has {skipped} commands that are not run"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_names_the_two_commands_that_ci_runs() -> None:
    """CI must call exactly what a reader is told to type."""
    told = [command for _, source, _ in blocks(ROOT / "README.md", "bash") for command in commands(source)]
    called = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [command for command in told if command not in called] == []


def test_every_public_name_is_documented() -> None:
    import milepost

    values = {
        name: getattr(module, name)
        for module in (milepost, milepost.errors, milepost.events)
        for name in module.__all__
    }
    undocumented = [
        name
        for name, value in values.items()
        if value.__doc__ is None and not isinstance(value, (str, int, GenericAlias))
    ]
    assert undocumented == []


def test_the_reference_has_every_public_name_once() -> None:
    import milepost.checking
    import milepost.reducers
    import milepost.testing

    named = [
        name
        for page in sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
        for name in re.findall(r"^::: milepost\.(?:\w+\.)?(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    modules = (milepost, milepost.checking, milepost.errors, milepost.events, milepost.reducers, milepost.testing)
    assert sorted(named) == sorted({name for module in modules for name in module.__all__})


def test_the_table_of_errors_has_every_error_with_its_remedy() -> None:
    from milepost import errors

    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| \S.* \| \S.* \|$", page, re.MULTILINE)
    assert sorted(told) == sorted(set(errors.__all__) - {"MilepostError", "GraphProblem"})


def test_the_page_of_configuration_has_every_variable() -> None:
    read = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"MILEPOST_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert sorted(read) == sorted(set(re.findall(r"^ *\| `(MILEPOST_\w+)` \|", page, re.MULTILINE)))


def test_the_page_of_all_commands_is_what_the_commands_say() -> None:
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        from command_reference import PAGE, page
    finally:
        sys.path.pop(0)
    assert page() == PAGE.read_text(encoding="utf-8"), "run: python .ci/command_reference.py"


def test_the_tables_of_exit_codes_statuses_and_events_are_whole() -> None:
    from typing import get_args

    from milepost import events
    from milepost.cli.app import BROKEN_PIPE
    from milepost.cli.commands import EXIT_CODES
    from milepost.store import Status

    reference = ROOT / "docs" / "reference"
    codes = re.findall(r"^\| (\d+) \|", (reference / "command-line.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*EXIT_CODES, BROKEN_PIPE} == {int(code) for code in codes}
    statuses = re.findall(r"^\| `(\w+)` \|", (reference / "statuses.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(get_args(Status)) == sorted(statuses)
    told = set(re.findall(r"`([A-Z]\w+)[(`]", (reference / "events.md").read_text(encoding="utf-8")))
    assert set(events.__all__) - {"Event"} <= told


def test_the_page_of_options_has_them_all_with_their_defaults() -> None:
    from milepost.options import Options, RunOptions

    rows = re.findall(
        r"^\| `(\w+)` \| `(.+?)` \| \w",
        (ROOT / "docs" / "reference" / "options.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    told = {name: default for name, default in rows if name not in {"store", "run_id", "inputs", "full", "at"}}
    assert sorted(RunOptions.__annotations__) == sorted(told)
    defaults = Options()
    found = {name: repr(getattr(defaults, name)).replace("frozenset()", "()").replace("'", '"') for name in told}
    assert found == {name: default.replace("'", '"') for name, default in told.items()}


EXEMPLARY: dict[str, list[str]] = {
    "Graph": [],
    "CompiledGraph": ["run", "arun", "stream", "resume", "resume_from", "retry"],
    "Workflow": ["run", "stream", "fork_run", "plan_resume", "signal", "cancel"],
    "Engine": ["run", "start", "handle", "history"],
    "Worker": ["run"],
    "RunHandle": [],
    "RunOptions": [],
    "Context": [],
    "Retry": [],
    "MemoryStore": [],
    "SQLiteStore": [],
    "FileStore": [],
    "PostgresStore": [],
    "workflow": [],
    "step": [],
    "branch": [],
    "parallel": [],
}
"""Public names, and methods of them, whose docstrings have an example."""


def test_examples_in_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import milepost

    monkeypatch.chdir(tmp_path)
    public: dict[str, Any] = {name: getattr(milepost, name) for name in milepost.__all__} | {"asyncio": asyncio}
    parser, failures = doctest.DocTestParser(), io.StringIO()
    for value in (milepost.Graph, milepost.workflow):  # whose examples make the flows that the others call
        exec("".join(part.source for part in parser.get_examples(value.__doc__)), public | {"store": None}, public)
    for name, methods in EXEMPLARY.items():
        value = public[name]
        for place, part in {name: value, **{f"{name}.{method}": getattr(value, method) for method in methods}}.items():
            example = parser.get_doctest(part.__doc__, {**public, "store": milepost.MemoryStore()}, place, None, 0)
            assert example.examples, f"the docstring of {place} has no example"
            doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(example, out=failures.write)
    assert failures.getvalue() == ""
