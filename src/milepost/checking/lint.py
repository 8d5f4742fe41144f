"""Warnings about code that gives other answers when it runs again, found by reading it.

The code of workflows runs again on every resume, and so may routers, `merge` and `prompt` functions of graphs. What they
take from anywhere but their arguments, the record and the context may differ then. Nodes and the functions of steps may do
what they like: their results are recorded. Functions and lambdas inside the code are left alone, since most are steps'.

The source files are read and parsed; nothing of them is run. A function whose source can't be read is named; those that
Python itself has in C, such as `operator.itemgetter`, are passed over. A name is resolved by the imports and the globals of its
function. `# milepost: ignore[MP003]` at the end of a line switches a rule off there; several are given as
`ignore[MP001,MP003]`.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast

from milepost.checking.sources import function_of, is_the_users, module_of, shown_path
from milepost.executor.flow import Flow, GraphFlow, GraphWork, MapWork, Unit, WaitWork
from milepost.verbs import Verbs, flow_of
from milepost.views.text import clean

UNREAD = "MP000"
RULES: Mapping[str, str] = {
    UNREAD: "its source can't be read, so nothing is known of it: give a function written in Python, and keep its source",
    "MP001": "the time differs when this code runs again: use ctx.now()",
    "MP002": "random values differ when this code runs again: use ctx.random(), or ctx.uuid4()",
    "MP003": "the environment may differ when this code runs again: make it an input, or read it in a step",
    "MP004": "this code runs again on every resume: read and write in a step or a node",
    "MP005": "the order of a set differs in every process: iterate over sorted(...)",
    "MP006": "this sleep is done again on every resume: use step(...).sleep(...) or a timer",
    "MP007": "threads and tasks end in an order of their own: use parallel steps, or do this in a step",
    "MP010": "this catches the failure of a step too, which a replay throws here again: catch StepError, or name other classes",
}
"""The rules, each with its warning."""

_CALLS: Mapping[str, tuple[str, ...]] = {
    "MP001": (
        "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
        "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
        "time.localtime", "time.gmtime",
    ),
    "MP002": ("random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "os.urandom", "posix.urandom"),
    "MP003": ("os.getenv", "os.getenvb"),
    "MP004": (
        "_io.open", "io.open", "requests.", "httpx.", "socket.", "subprocess.", "urllib.request.", "os.system",
        "os.popen", "posix.system",
    ),
    "MP006": ("time.sleep", "asyncio.sleep"),
    "MP007": (
        "threading.Thread", "threading.Timer", "concurrent.futures.", "multiprocessing.", "asyncio.create_task",
        "asyncio.ensure_future", "asyncio.gather", "asyncio.wait", "asyncio.as_completed", "asyncio.to_thread",
        "asyncio.TaskGroup",
    ),
}  # fmt: skip
"""The calls that each rule is about: whole names or, with a dot at the end, all in a module."""
_ENVIRONMENT = ("os.environ", "os.environb")
_IGNORED = re.compile(r"#\s*milepost:\s*ignore\[([\w\s,]*)\]")
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_SETS = frozenset({"builtins.set", "builtins.frozenset"})
_KEEP_ORDER = frozenset({"builtins.list", "builtins.tuple", "builtins.iter", "builtins.enumerate", "builtins.reversed"})


class Finding(NamedTuple):
    """One place in the code of a flow that breaks a rule. `subject` is the kind of code and whose it is."""

    code: str
    message: str
    flow: str
    subject: str
    file: str
    line: int

    def __str__(self) -> str:
        return clean(f"{self.file}:{self.line}: {self.code} {self.subject} of flow {self.flow!r}: {self.message}")


def lint(flows: Iterable[Verbs[Any]]) -> tuple[Finding, ...]:
    """Return what in the code of these flows may give other answers when it runs again, or can't be read, by file and line."""
    found: dict[Finding, Finding] = {}
    for flow in map(flow_of, flows):
        for subject, fn, is_workflow in _subjects(flow):
            for finding in _lint_function(fn, flow.name, subject, is_workflow=is_workflow):
                found.setdefault(finding._replace(flow="", subject=""), finding)
    return tuple(sorted(found.values(), key=lambda finding: (finding.file, finding.line, finding.code)))


def _subjects(flow: Flow) -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Yield the functions of a flow that may run again, each with its description, and whether it is a workflow's."""
    if flow.front != "graph":
        yield "workflow", cast("Any", flow).fn, True
        return
    graph = cast("GraphFlow", flow)
    for unit in graph.units.values():
        if unit.router is not None:
            yield f"router after {unit.id!r}", unit.router.fn, False
        work = unit.work
        if isinstance(work, MapWork):
            yield f"merge of map {unit.id!r}", unit.fn, False
        if isinstance(work, WaitWork) and hasattr(work.prompt, "fn"):
            yield f"prompt of wait {unit.id!r}", work.prompt.fn, False
        inner = work.graph if isinstance(work, GraphWork) else work.each if isinstance(work, MapWork) else None
        if inner is not None and not isinstance(inner, Unit):
            yield from _subjects(inner)
    for fork in graph.splits.values():
        if fork.merge is not None:
            yield f"merge at {fork.join!r}", fork.merge.fn, False


def _lint_function(fn: Callable[..., Any], flow: str, subject: str, *, is_workflow: bool) -> Iterator[Finding]:
    fn = function_of(fn)
    if not isinstance(fn, FunctionType):
        if is_the_users(fn):
            yield _unread(fn, flow, subject, getattr(sys.modules.get(module_of(fn)), "__file__", None) or "", 1)
        return
    if module_of(fn).partition(".")[0] == "milepost":
        return
    code = fn.__code__
    linecache.checkcache(code.co_filename)
    # A module may be imported from an archive: its loader knows the text.
    lines = linecache.getlines(code.co_filename, fn.__globals__)
    is_lambda = code.co_name == "<lambda>"
    nodes = [
        node
        for node in _functions("".join(lines)).get(code.co_firstlineno, ())
        if isinstance(node, ast.Lambda) == is_lambda
    ]
    if not nodes:
        yield _unread(fn, flow, subject, code.co_filename, code.co_firstlineno)
    for node in nodes:
        for rule, line in _Reader(fn, node, is_workflow=is_workflow).found():
            if rule not in _ignored(lines, line):
                yield Finding(rule, RULES[rule], flow, subject, shown_path(code.co_filename), line)


def _unread(fn: Any, flow: str, subject: str, path: str, line: int) -> Finding:
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return Finding(UNREAD, f"{name}: {RULES[UNREAD]}", flow, subject, shown_path(path), line)


@cache
def _functions(text: str) -> dict[int, list[ast.AST]]:
    """Return the functions in a source text by the line at which Python says that they begin."""
    functions: dict[int, list[ast.AST]] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return functions
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", ())
            functions.setdefault(min([node.lineno, *(d.lineno for d in decorators)]), []).append(node)
    return functions


def _ignored(lines: list[str], line: int) -> set[str]:
    match = _IGNORED.search(lines[line - 1]) if line <= len(lines) else None
    return set() if match is None else {code.strip() for code in match[1].split(",")}


class _Reader:
    """A reader of one function, without the functions and classes inside it."""

    def __init__(self, fn: FunctionType, node: Any, *, is_workflow: bool) -> None:
        self._names = _known_names(fn)
        self._is_workflow = is_workflow
        body = node.body if isinstance(node.body, list) else [node.body]
        self._nodes = [inner for statement in body for inner in _own_nodes(statement)]
        self._imported: dict[str, str] = {}
        for inner in self._nodes:
            self._imported |= _imports(inner)
        self._sets: frozenset[str] = frozenset()
        self._sets = self._names_of_sets()

    def found(self) -> Iterator[tuple[str, int]]:
        """Yield the rules that are broken, each with its line."""
        for node in self._nodes:
            if isinstance(node, ast.Call):
                name = self._name(node.func)
                code = None if name is None else _rule_of(name)
                # A generator with a seed gives the same numbers again.
                if code is not None and not (name == "random.Random" and node.args):
                    yield code, node.lineno
            elif isinstance(node, (ast.Attribute, ast.Name)) and self._name(node) in _ENVIRONMENT:
                yield "MP003", node.lineno
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and self._is_set(node.iter):
                yield "MP005", node.iter.lineno
            elif isinstance(node, ast.Try) and self._is_workflow:
                yield from (("MP010", handler.lineno) for handler in self._too_wide(node))

    def _name(self, node: ast.AST) -> str | None:
        """Return the full name of what an expression names, such as `datetime.datetime.now`; None if it is not known."""
        if isinstance(node, ast.Attribute):
            base = self._name(node.value)
            return None if base is None else f"{base}.{node.attr}"
        if not isinstance(node, ast.Name):
            return None
        if node.id in self._imported:
            return self._imported[node.id]
        return _name_of(self._names.get(node.id))

    def _is_set(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Set, ast.SetComp)):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._sets
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
            return self._is_set(node.left)
        if isinstance(node, ast.Call):
            name = self._name(node.func)
            return name in _SETS or (name in _KEEP_ORDER and bool(node.args) and self._is_set(node.args[0]))
        return False

    def _names_of_sets(self) -> frozenset[str]:
        """Return the local names that are sets wherever the function assigns to them."""
        values: dict[str, list[ast.AST]] = {}
        for node in self._nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        values.setdefault(target.id, []).append(node.value)
        return frozenset(name for name, given in values.items() if all(map(self._is_set, given)))

    def _too_wide(self, node: ast.Try) -> Iterator[ast.ExceptHandler]:
        """Yield the handlers that catch every exception of a block with a step in it, and do not raise it again."""
        inside = [inner for statement in node.body for inner in _own_nodes(statement)]
        if not any(isinstance(inner, (ast.Yield, ast.YieldFrom, ast.Await)) for inner in inside):
            return
        for handler in node.handlers:
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = {None if kind is None else self._name(kind) for kind in kinds}
            if "milepost.errors.StepError" in names:
                return  # a step's failure comes no further
            is_raised = any(
                isinstance(inner, ast.Raise) and inner.exc is None
                for statement in handler.body
                for inner in _own_nodes(statement)
            )
            if not is_raised and (handler.type is None or names & {"builtins.Exception", "builtins.BaseException"}):
                yield handler


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it but for those of inner functions and classes."""
    if isinstance(node, _INNER):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own_nodes(child)


def _imports(node: ast.AST) -> dict[str, str]:
    """Return the names that an import inside a function defines, with what they name."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
            for alias in node.names
        }
    if isinstance(node, ast.ImportFrom) and not node.level:
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {}


def _known_names(fn: FunctionType) -> dict[str, Any]:
    """Return the values of the names that a function has from outside."""
    names = {**vars(builtins), **fn.__globals__}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        with suppress(ValueError):  # nothing is assigned to it yet
            names[name] = cell.cell_contents
    for name in fn.__code__.co_varnames:
        names.pop(name, None)
    return names


def _name_of(value: Any) -> str | None:
    """Return the full name of a module, class or function; None for every other value."""
    if value is os.environ:
        return "os.environ"
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, (BuiltinFunctionType, MethodType)) and value.__self__ is not None:
        owner = value.__self__
        if isinstance(owner, ModuleType):
            return f"{owner.__name__}.{value.__name__}"
        return f"{_name_of(owner if isinstance(owner, type) else type(owner))}.{value.__name__}"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return None


def _rule_of(name: str) -> str | None:
    """Return the rule that a call of what has this full name breaks."""
    package, _, rest = name.partition(".")
    if package == "asyncio":
        # Its functions are defined in modules of the package.
        name = f"{package}.{rest.rpartition('.')[2]}"
    for code, names in _CALLS.items():
        if any(name.startswith(known) if known.endswith(".") else name == known for known in names):
            return code
    return None
