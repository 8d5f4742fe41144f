"""Who may import whom: a file imports from floors below its own, and the files of the core touch nothing outside.

Floors are what keeps the core a thing that can be tested by enumeration: values know of nothing, the logic does no
I/O, drivers hold no logic, and what a user calls is thin.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "milepost"

# A file may import from any file with a lower pair. A name that ends in a dot stands for all files of a folder, which
# may import each other too.
FLOORS: dict[str, tuple[int, int]] = {
    "errors": (0, 0),
    # -- 1 values: no I/O and, but for the sources of them, no clock and no randomness ----------------------------
    "codec.": (1, 0),
    "reducers": (1, 0),
    "reports": (1, 0),
    "events": (1, 1),
    "retry": (1, 0),
    "clock": (1, 0),
    "process": (1, 0),
    "identifiers": (1, 0),
    "ways": (1, 0),
    "record": (1, 0),
    "inventory": (1, 1),
    "agreement": (1, 0),
    "digests": (1, 1),
    "origins": (1, 0),
    "seals": (1, 1),
    "checkpoint": (1, 2),
    "checkpoint_data": (1, 3),
    "executors.": (1, 3),
    "results": (1, 2),
    # -- 2 contracts: between front ends, core, drivers and stores ------------------------------------------------
    "store": (2, 0),
    "hooks": (2, 0),
    "flow": (2, 0),
    "context": (2, 1),
    "effects": (2, 1),
    "options": (2, 1),
    "fence": (2, 1),
    "protocols": (2, 1),
    "steps": (2, 1),
    "workflow_context": (2, 2),
    # -- stores: implement the contract; only verbs open them -----------------------------------------------------
    "stores.": (2, 9),
    # -- 3 logic: no I/O ------------------------------------------------------------------------------------------
    "failures": (3, 0),
    "telling": (3, 1),
    "chronicle": (3, 1),
    "acceptance": (3, 1),
    "declarations": (3, 1),
    "forks": (3, 0),
    "parts": (3, 0),
    "topology": (3, 1),
    "merging": (3, 2),
    "drawing": (3, 2),
    "journal": (3, 1),
    "runtime": (3, 2),
    "attempts": (3, 3),
    "turning": (3, 3),
    "examining": (3, 4),
    "imported": (3, 5),
    "recorded": (3, 5),
    "comparing": (3, 1),
    "ordering": (3, 6),
    "standing": (3, 7),
    "taking": (3, 5),
    "finding": (3, 6),
    "parking": (3, 6),
    "visiting": (3, 6),
    "lanes": (3, 3),
    "undoing": (3, 7),
    "branching": (3, 7),
    "nesting": (3, 8),
    "visits": (3, 6),
    "walking": (3, 9),
    "graph_run": (3, 10),
    "composing": (3, 10),
    "answering": (3, 11),
    "performing": (3, 12),
    "replaying": (3, 13),
    "recording": (3, 13),
    "stepping": (3, 14),
    "resuming": (3, 15),
    "signalling": (3, 16),
    "starting": (3, 16),
    "watching": (3, 17),
    # -- 4 drivers: perform effects -------------------------------------------------------------------------------
    "branches": (4, 0),
    "threads": (4, 0),
    "pools": (4, 1),
    "elsewhere": (4, 2),
    "lane": (4, 0),
    "heartbeat": (4, 0),
    "wakeups": (4, 0),
    "drivers.": (4, 3),
    # -- 5 verbs: what users call ---------------------------------------------------------------------------------
    "stores.users": (5, -2),
    "stores.views": (5, -2),
    "stores.adapt": (5, -1),
    "forking_runs": (5, -1),
    "authorizing": (5, 0),
    "job": (5, 0),
    "verbs": (5, 1),
    "handles": (5, 1),
    "schedules": (5, 2),
    "worker": (5, 3),
    "engine": (5, 4),
    "compiled": (5, 2),
    "graph": (5, 5),
    "workflows": (5, 2),
    "workflow_engine": (5, 5),
    # -- 6 outside: nothing imports these -------------------------------------------------------------------------
    "": (6, 0),
    "demo.": (6, 1),
    "testing.": (6, 1),
    "cli.": (6, 2),
    "__main__": (6, 3),
}

# What only annotations need, and why it may point upwards or sideways: nothing of it is imported when the code runs.
ONLY_FOR_TYPES = {
    ("context", "effects"): "a context tells of the lease, which the effects define; effects carry contexts",
    ("effects", "context"): "a context tells of the lease, which the effects define; effects carry contexts",
    ("steps", "verbs"): "what a step may be told to run inside it; a step holds it and knows nothing of it",
    ("steps", "workflows"): "what a step may be told to run inside it; a step holds it and knows nothing of it",
    ("runtime", "examining"): "what a front end is asked for; the front ends, which are above both, know what it is",
    ("examining", "graph_run"): "a run of a graph, whose parts in files of their own are given it",
    ("finding", "graph_run"): "a run of a graph, whose parts in files of their own are given it",
    ("examining", "recorded"): "what is recorded since a point, which whoever examines it is given",
    ("visits", "branching"): "what tells a walker to stop, which it only holds",
    ("branching", "walking"): "a walker, whose parts in files of their own are given it",
    ("nesting", "walking"): "a walker, whose parts in files of their own are given it",
    ("visiting", "stepping"): "a run of steps, whose parts in files of their own are given it",
    ("composing", "stepping"): "a run of steps, whose parts in files of their own are given it",
    ("answering", "stepping"): "a run of steps, whose parts in files of their own are given it",
    ("performing", "stepping"): "a run of steps, whose parts in files of their own are given it",
    ("undoing", "stepping"): "a run of steps, whose parts in files of their own are given it",
    ("replaying", "stepping"): "a run of steps, whose parts in files of their own are given it",
    ("recording", "stepping"): "a run of steps, whose parts in files of their own are given it",
}

OUTSIDE = {"asyncio", "os", "random", "secrets", "signal", "socket", "sqlite3", "subprocess", "threading", "time"}
EXTRAS = ["attrs", "attr", "click", "cryptography", "jsonpatch", "psycopg", "pydantic", "rich", "starlette"]


class Import(NamedTuple):
    """One module of ours that a line of a file imports, by its name without the package's."""

    path: Path
    line: int
    target: str
    is_for_types: bool

    def __str__(self) -> str:
        text = self.path.read_text(encoding="utf-8").splitlines()[self.line - 1].strip()
        return f"{self.path.relative_to(SOURCE.parent)}:{self.line}: {text}"


def files() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 40
    return found


def name_of(path: Path) -> str:
    """A file's module, without the package's name: "" for the package, "codec" for that folder's __init__."""
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_key(module: str) -> str | None:
    """The line of the table that speaks of a module."""
    if module in FLOORS:
        return module
    folder = module.partition(".")[0] + "."
    return folder if folder in FLOORS else None


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(node: ast.AST, *, only_types: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """All import statements below a node, and whether only type checkers see each."""
    for child in ast.iter_child_nodes(node):
        seen_by_types = only_types or is_for_types(child)
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, seen_by_types
        yield from statements(child, only_types=seen_by_types)


def imported(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, full module name and whether it is for types, of everything that a file imports."""
    for node, only_types in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, only_types
            continue
        module = absolute(path, node)
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            # `from milepost import codec` imports a module, `from milepost.errors import X` a name in one.
            yield node.lineno, inner if is_module(inner) else module, only_types


def absolute(path: Path, node: ast.ImportFrom) -> str:
    """The full name of the module that a `from` line names."""
    if node.level == 0:
        return str(node.module)
    package = ("milepost", *path.relative_to(SOURCE).parts)[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports_of(path: Path) -> list[Import]:
    return [
        Import(path, line, module.partition(".")[2], only_types)
        for line, module, only_types in imported(path)
        if module.partition(".")[0] == "milepost"
    ]


def is_allowed(source: str, found: Import) -> bool:
    own, other = floor_key(source), floor_key(found.target)
    if own is None or other is None:
        return True  # told by the test of the table
    if own == other:
        return own.endswith(".")
    if found.is_for_types and (source, found.target) in ONLY_FOR_TYPES:
        return True
    if other == "stores." and FLOORS[own][0] < 5:
        return False
    return FLOORS[other] < FLOORS[own]


def test_every_file_has_a_floor_and_every_floor_has_files():
    modules = [name_of(path) for path in files()]
    assert [] == [module for module in modules if floor_key(module) is None]
    assert set(FLOORS) == {floor_key(module) for module in modules}


def test_a_file_imports_from_lower_floors_only():
    wrong = [str(found) for path in files() for found in imports_of(path) if not is_allowed(name_of(path), found)]
    assert not wrong, "imports from the own floor or a higher one:\n" + "\n".join(wrong)


def test_what_is_excused_for_types_is_still_there():
    there = {(name_of(path), found.target) for path in files() for found in imports_of(path) if found.is_for_types}
    assert set(ONLY_FOR_TYPES) <= there


def test_the_logic_touches_nothing_outside():
    wrong = [
        f"{path.relative_to(SOURCE.parent)}:{line}: {module}"
        for path in files()
        if FLOORS.get(str(floor_key(name_of(path))), (3, 0))[0] == 3
        for line, module, _ in imported(path)
        if module.partition(".")[0] in OUTSIDE
    ]
    assert not wrong, "files of the core must be given time, randomness and I/O:\n" + "\n".join(wrong)


def test_nothing_stored_can_be_executed():
    """No file has what turns data into code, but for the child processes of tests, which run the tests' own lines.

    `elsewhere` asks pickle whether a value can be sent back by an executor, and reads nothing.
    """
    suspicious = {"pickle", "cPickle", "dill", "marshal", "shelve"}
    wrong = []
    for path in files():
        if name_of(path) == "testing.children":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {ast.unparse(node.func)} if isinstance(node, ast.Call) else set()
            if names & {"eval", "exec", "compile", "__import__", "os.system"}:
                wrong.append(f"{path}:{node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
            if isinstance(node, ast.keyword) and node.arg == "shell":
                wrong.append(f"{path}:{node.value.lineno}: shell=")
        wrong += [
            f"{path}:{line}: {module}"
            for line, module, _ in imported(path)
            if module.split(".")[0] in suspicious and name_of(path) != "elsewhere"
        ]
    assert not wrong, "\n".join(wrong)


LOADING = """
import sys
before = {{*sys.modules}}  # what measures coverage begins with the interpreter, and imports things of its own
{program}
print(*(name for name in {unwanted!r} if name in sys.modules and name not in before))
"""
GRAPH = """
from milepost import Engine, Graph, SQLiteStore
graph = Graph(dict).add_node("add", lambda state: {**state, "n": 1}).set_entry("add").add_edge("add", "__end__").compile()
with SQLiteStore(":memory:") as store, Engine(store) as engine:
    assert engine.run(graph.bind({})) == {"n": 1}
"""
WORKFLOW = """
from milepost import Engine, SQLiteStore, step, workflow
@workflow("adding")
def adding(n: int):
    return (yield step("add").python(lambda: n + 1))
with SQLiteStore(":memory:") as store, Engine(store) as engine:
    assert engine.run(adding.bind(1)) == 2
"""
RARE = ["pickle", "milepost.drivers.executors", "milepost.drivers.pools", "milepost.graph.fork_run", "milepost.testing"]
UNHEARD = ["asyncio", "milepost.engine.handle", "milepost.engine.worker", "milepost.graph.drawing"]
"""What a sync run does without that nobody listens to or looks at from outside."""


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        pytest.param("import milepost.testing", ["pytest", "_pytest"], id="testing"),
        pytest.param(
            GRAPH,
            [*RARE, *UNHEARD, "milepost.model.results", "milepost.workflows.steps", "milepost.workflows.run"],
            id="graph",
        ),
        pytest.param(WORKFLOW, [*RARE, *UNHEARD, "milepost.graph.builder", "milepost.graph.topology"], id="workflow"),
    ],
)
def test_a_program_loads_no_extra_and_nothing_that_it_does_without(program: str, unwanted: list[str]):
    told = subprocess.run(
        [sys.executable, "-c", LOADING.format(program=program, unwanted=[*EXTRAS, *unwanted])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert "" == told.stdout.strip()


def test_the_tests_of_imports_find_an_import_that_points_upwards(tmp_path: Path):
    line = next(found for found in imports_of(SOURCE / "runtime.py") if found.target == "journal")
    assert is_allowed("runtime", line)
    assert not is_allowed("journal", line._replace(target="runtime"))
    assert not is_allowed("journal", line._replace(target="runtime", is_for_types=True))
    assert not is_allowed("runtime", line._replace(target="stores.memory"))
    assert not is_allowed("store", line._replace(target=""))
    assert is_allowed("engine", line._replace(target="stores.opening"))
    assert is_allowed("stores.sqlite", line._replace(target="stores.journal"))
