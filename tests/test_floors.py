"""Who may import whom. The rule fits on a postcard, and holds for imports that only type checkers see too.

Floors are what keeps the core a thing that can be tested by enumeration: values know of nothing, the logic does no I/O,
drivers hold no logic, and what a user calls is thin.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "milepost"

RULE = """
errors < model, codec, reducers < events, store < options < executor < drivers < adapters < verbs < graph < workflows < engine
< views < checking, console, demo, testing < cli
"""
"""A package imports what stands before it, and itself. Those between commas do not import each other."""
BELOW_STORES = {"errors", "model", "codec", "store"}
"""What stores import. They are opened by their URL: adapters and verbs import them, and what comes after."""
FLOOR = {name.strip(): place for place, names in enumerate(RULE.split("<")) for name in names.split(",")}

OUTSIDE = {"asyncio", "os", "random", "secrets", "signal", "socket", "sqlite3", "subprocess", "threading", "time"}
EXTRAS = [
    "attrs",
    "attr",
    "click",
    "cryptography",
    "jsonpatch",
    "jinja2",
    "psycopg",
    "pydantic",
    "rich",
    "starlette",
    "uvicorn",
]


class Import(NamedTuple):
    """One module of ours that a line of a file imports, by its name without the package's."""

    path: Path
    line: int
    target: str
    is_for_types: bool

    def __str__(self) -> str:
        text = self.path.read_text(encoding="utf-8").splitlines()[self.line - 1].strip()
        return f"{self.path.relative_to(SOURCE.parent)}:{self.line}: {text}"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def files() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 40
    return found


def name_of(path: Path) -> str:
    """A file's module, without the package's name: "" for the package, "codec" for that folder's __init__."""
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """The package, or the module on top, that a module belongs to."""
    return module.partition(".")[0]


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(node: ast.AST, *, only_types: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """All import statements below a node, and whether only type checkers see each."""
    for child in ast.iter_child_nodes(node):
        seen_by_types = only_types or is_for_types(child)
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, seen_by_types
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from statements(child, only_types=seen_by_types)


@cache
def imported(path: Path) -> list[tuple[int, str, bool]]:
    """Line, full module name and whether it is for types, of everything that a file imports."""
    return [*_imported(path)]


def _imported(path: Path) -> Iterator[tuple[int, str, bool]]:
    for node, only_types in statements(tree_of(path)):
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


@cache
def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports_of(path: Path) -> list[Import]:
    return [
        Import(path, line, module.partition(".")[2], only_types)
        for line, module, only_types in imported(path)
        if module.partition(".")[0] == "milepost"
    ]


def is_allowed(source: str, target: str) -> bool:
    """Whether the module `source` may import `target`; both without the name of the whole package."""
    own, other = package_of(source), package_of(target)
    if own == other:
        return own != "stores" or is_allowed_in_stores(source, target)
    if own == "":
        return other not in {"checking", "console", "demo", "testing", "cli"}
    if own == "__main__":
        return other == "cli"
    if other == "":
        return FLOOR[own] >= FLOOR["demo"]
    if own == "stores":
        return other in BELOW_STORES
    if other == "stores":
        return FLOOR[own] >= FLOOR["adapters"]
    return FLOOR[other] < FLOOR[own]


def is_allowed_in_stores(source: str, target: str) -> bool:
    """A kind of store imports itself and what all stores share; `url` and nothing else knows the kinds."""
    own, other = (module.split(".")[1:2] for module in (source, target))
    return own == ["url"] or other in (own, ["base"])


def test_every_package_has_a_place_in_the_rule():
    packages = {package_of(name_of(path)) for path in files()} - {"", "__main__", "stores"}
    assert set(FLOOR) == packages


def test_imports_go_down():
    wrong = [
        str(found) for path in files() for found in imports_of(path) if not is_allowed(name_of(path), found.target)
    ]
    assert not wrong, "imports from the own floor or a higher one:\n" + "\n".join(wrong)


def test_no_module_imports_itself_through_others_of_its_package():
    """What only annotations need is no part of a circle: nothing of it is imported when the code runs."""
    imports = {
        name_of(path): {found.target for found in imports_of(path) if not found.is_for_types} for path in files()
    }
    for module, targets in imports.items():
        reached, to_see = set(), set(targets)
        while to_see:
            other = to_see.pop()
            reached.add(other)
            to_see |= {name for name in imports[other] if package_of(name) == package_of(module)} - reached
        assert module not in reached, f"{module} imports itself through {sorted(reached)}"


def test_the_logic_touches_nothing_outside():
    """A context is what user code is given: it has random numbers drawn from the run, and an event that tells of the end."""
    wrong = [
        f"{path.relative_to(SOURCE.parent)}:{line}: {module}"
        for path in files()
        if package_of(name_of(path)) in {"executor", "graph", "workflows"} and name_of(path) != "executor.context"
        for line, module, _ in imported(path)
        if module.partition(".")[0] in OUTSIDE
    ]
    assert not wrong, "files of the core must be given time, randomness and I/O:\n" + "\n".join(wrong)


def test_nothing_stored_can_be_executed():
    """No file has what turns data into code, but for the child processes of tests, which run the tests' own lines.

    `drivers.executors` sends calls to other processes and reads their results, and nothing of it is stored.
    """
    suspicious = {"pickle", "cPickle", "dill", "marshal", "shelve"}
    wrong = []
    for path in files():
        if name_of(path) == "testing.children":
            continue
        for node in ast.walk(tree_of(path)):
            called = node.func if isinstance(node, ast.Call) else None
            is_simple = isinstance(called, ast.Name) or (isinstance(called, ast.Attribute) and called.attr == "system")
            if is_simple and ast.unparse(called) in {"eval", "exec", "compile", "__import__", "os.system"}:
                wrong.append(f"{path}:{node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
            if isinstance(node, ast.keyword) and node.arg == "shell":
                wrong.append(f"{path}:{node.value.lineno}: shell=")
        wrong += [
            f"{path}:{line}: {module}"
            for line, module, _ in imported(path)
            if module.split(".")[0] in suspicious and name_of(path) != "drivers.executors"
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
RARE = ["pickle", "milepost.drivers.executors", "milepost.graph.fork_run", "milepost.testing"]
UNHEARD = [
    *("asyncio", "milepost.engine.handle", "milepost.engine.worker", "milepost.graph.drawing"),
    *("milepost.model.info", "milepost.stores.base.export"),
]
"""What a sync run does without that nobody listens to or looks at from outside."""


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        pytest.param(
            "from milepost.testing import Stepper, context, crashtest, run_flow", ["pytest", "_pytest"], id="testing"
        ),
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


def test_the_tests_of_imports_find_an_import_that_points_upwards():
    assert is_allowed("executor.run", "executor.journal")
    assert is_allowed("executor.run", "model.record")
    assert not is_allowed("model.record", "executor.run")
    assert not is_allowed("graph.run", "workflows.run")
    assert not is_allowed("executor.run", "stores.memory")
    assert not is_allowed("stores.file.store", "stores.sqlite.store")
    assert not is_allowed("stores.sqlite.store", "options")
