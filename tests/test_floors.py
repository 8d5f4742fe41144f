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
    "events": (1, 0),
    "retry": (1, 0),
    "clock": (1, 0),
    "process": (1, 0),
    "identifiers": (1, 0),
    "record": (1, 0),
    "checkpoint": (1, 1),
    # -- 2 contracts: between front ends, core, drivers and stores ------------------------------------------------
    "store": (2, 0),
    "hooks": (2, 0),
    "flow": (2, 0),
    "context": (2, 1),
    "effects": (2, 1),
    "options": (2, 1),
    "fence": (2, 1),
    # -- stores: implement the contract; only verbs open them -----------------------------------------------------
    "stores.": (2, 9),
    # -- 3 logic: no I/O ------------------------------------------------------------------------------------------
    "failures": (3, 0),
    "telling": (3, 1),
    "acceptance": (3, 1),
    "declarations": (3, 1),
    "topology": (3, 1),
    "drawing": (3, 1),
    "journal": (3, 1),
    "runtime": (3, 2),
    "examining": (3, 3),
    "taking": (3, 4),
    "resuming": (3, 5),
    "starting": (3, 6),
    # -- 4 drivers: perform effects -------------------------------------------------------------------------------
    "branches": (4, 0),
    "threads": (4, 0),
    "lane": (4, 0),
    "heartbeat": (4, 0),
    "drivers.": (4, 1),
    # -- 5 verbs: what users call ---------------------------------------------------------------------------------
    "authorizing": (5, 0),
    "job": (5, 0),
    "verbs": (5, 1),
    "engine": (5, 2),
    "graph": (5, 3),
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
    """No file has what turns data into code, but for the child processes of tests, which run the tests' own lines."""
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
            f"{path}:{line}: {module}" for line, module, _ in imported(path) if module.split(".")[0] in suspicious
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["milepost", "milepost.testing"])
def test_an_import_loads_no_extra(module: str):
    unwanted = [*EXTRAS, *(["pytest", "_pytest"] if module == "milepost.testing" else ["milepost.testing"])]
    told = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*(name for name in {unwanted!r} if name in sys.modules))"],
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
