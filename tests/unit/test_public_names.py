"""What `milepost` gives: names that are loaded when they are asked for, and are what type checkers are told."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import milepost
from milepost.testing.tables import for_each

SOURCE = Path(milepost.__file__)
TOLD = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("milepost.")
    for alias in node.names
    if alias.name != "MissingExtraError"
}
"""Each name that type checkers see, and the module that it is from."""


def run(code: str) -> str:
    """What a new process writes that runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def test_what_type_checkers_are_told_is_all_there_is():
    assert set(milepost.__all__) == set(TOLD)
    assert sorted(set(milepost.__all__)) == sorted(milepost.__all__)


@for_each("name", milepost.__all__)
def test_a_name_is_what_type_checkers_are_told(name: str):
    assert getattr(import_module(TOLD[name]), name) is getattr(milepost, name)
    assert name in dir(milepost)


def test_another_name_is_an_attribute_error_that_says_so():
    with pytest.raises(AttributeError, match="module 'milepost' has no attribute 'Grpah'"):
        milepost.Grpah  # type: ignore[attr-defined]  # noqa: B018


@for_each(
    "name, place",
    [
        ("RunStopped", "milepost.errors"),
        ("NodeCompleted", "milepost.events"),
        ("ResumeInfo", "milepost.events"),
        ("Stats", "milepost.model.upkeep"),
        ("StepType", "milepost.model.results"),
    ],
)
def test_a_name_of_another_module_is_told_with_its_place(name: str, place: str):
    advice = f"module 'milepost' has no attribute '{name}': from {place} import {name}"
    with pytest.raises(AttributeError) as lookup:
        getattr(milepost, name)
    with pytest.raises(ImportError) as statement:
        exec(f"from milepost import {name}")
    assert [advice, advice] == [str(lookup.value), str(statement.value)]
    assert hasattr(import_module(place), name)


def test_a_public_name_has_one_place_and_errors_and_events_are_whole():
    errors, events = set(milepost.errors.__all__), set(milepost.events.__all__)
    assert 65 >= len(milepost.__all__)
    assert not errors & events
    homes = [vars(import_module(f"milepost.model.{name}")) for name in ("events", "lifecycle")]
    assert events == {
        name
        for home in homes
        for name, value in home.items()
        if isinstance(value, type) and issubclass(value, milepost.Event)
    } | {"ResumeInfo"}


def test_the_modules_of_names_are_there_without_an_import_of_their_own():
    assert "RunStarted" == run("import milepost; print(milepost.events.RunStarted.__name__)")
    assert "register" == run("import milepost; print(milepost.codec.register.__name__)")


def test_all_names_come_with_a_star():
    assert str(len(milepost.__all__)) == run(
        "from milepost import *; import milepost; print(len({*milepost.__all__} & {*dir()}))"
    )


HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            raise ModuleNotFoundError("No module named '{package}'", name="{package}")

sys.meta_path.insert(0, Hidden())
import inspect, pydoc
import {module} as looked_at
from {module} import *

assert not hasattr(looked_at, "{name}")
assert "{name}" not in looked_at.__all__
assert "{name}" not in dict(inspect.getmembers(looked_at))
assert len(pydoc.plain(pydoc.render_doc(looked_at))) > 1000
try:
    looked_at.{name}
except AttributeError as exc:
    print(exc)
try:
    from {module} import {name}
except ImportError as exc:
    print(type(exc).__name__, exc)
"""


@pytest.mark.parametrize(
    ("module", "name", "package", "advice"),
    [
        ("milepost", "PostgresStore", "psycopg", "pip install 'psycopg[binary]' 'milepost[postgres]'"),
        ("milepost.testing", "StoreContract", "pytest", "pip install pytest"),
    ],
)
def test_a_name_whose_package_is_missing_is_told_when_it_is_used_and_troubles_no_tool(
    module: str, name: str, package: str, advice: str
):
    told = run(HIDING.format(module=module, name=name, package=package)).splitlines()
    assert [True, True] == [line.endswith(advice) for line in told]
    assert told[1].startswith("MissingExtraError ")


def test_no_module_takes_the_place_of_a_name_that_is_called_as_it_is():
    loaded = "; ".join(
        f"import {module}" for module in sorted({*TOLD.values()}) if module != "milepost.stores.postgres.store"
    )
    assert "function" == run(f"{loaded}; from milepost import workflow; print(type(workflow).__name__)")


FAILING = """
import sys
from milepost import END, Engine, Graph, Retry, SQLiteStore, step, workflow

known = None

def look():
    global known
    known = known or {*sys.modules}

def fails(state):
    look()
    raise ValueError("no")

def closes(state):
    look()
    store.close()
    return state

def undo(output):
    pass

@workflow("undone")
def undone():
    yield step("do").python(dict).with_rollback(undo)
    yield step("fail").python(fails, args=({},))

what = sys.argv[1]
store = SQLiteStore(":memory:")
policy = Retry(2, backoff=0.001) if what == "retries" else None
graph = Graph(dict).add_node("a", closes if what == "closes" else fails, retry=policy)
graph = graph.add_edge("a", END).set_entry("a").compile("failing")
try:
    Engine(store).run((undone if what == "undoes" else graph).bind(*([] if what == "undoes" else [{}])), run_id="r")
except Exception as exc:
    # nobody listens, so no event of the life of a run was made
    print(type(exc).__name__, *sorted({*sys.modules} - known), *({"milepost.model.lifecycle"} & {*sys.modules}))
"""


@pytest.mark.parametrize(
    ("what", "error"),
    [("fails", "NodeError"), ("retries", "NodeError"), ("closes", "CheckpointWriteError"), ("undoes", "StepError")],
)
def test_what_fails_is_told_without_loading_anything(what: str, error: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FAILING, what], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert [error] == told.stdout.split()


RESUMING = """
import sys
from contextlib import suppress
from milepost import END, Graph, SQLiteStore
from milepost.errors import RunStopped

graph = Graph(dict).add_node("a", dict).add_node("b", dict).add_edge("a", "b").add_edge("b", END).set_entry("a").compile()
path, *verbs = sys.argv[1:]
with SQLiteStore(path) as store:
    if "run" in verbs:
        with suppress(RunStopped):
            graph.run({}, store=store, run_id="r", stop_after="a")
    known = {*sys.modules}
    if "resume" in verbs:
        graph.resume(store, "r")
print(*sorted({*sys.modules} - known))
"""


def test_the_first_resume_of_a_process_loads_only_what_walks_a_graph(tmp_path: Path) -> None:
    def loaded(name: str, *verbs: str) -> list[str]:
        command = [sys.executable, "-c", RESUMING, str(tmp_path / name), *verbs]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split()

    assert [] == loaded("both.db", "run", "resume")
    assert [] == loaded("one.db", "run")
    assert {
        "milepost.executor.attempt",
        *(f"milepost.graph.{name}" for name in ("checks", "resume", "run", "visits", "walker")),
    } == set(loaded("one.db", "resume"))


def test_completion_shows_the_documented_names_and_no_others() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    told = {
        kind: set(re.findall(r"`(\w+)`", names))
        for kind, names in re.findall(r"^\| ([\w ]+) \| (`.*) \|$", page, re.MULTILINE)
    }

    @milepost.workflow("w")
    def steps(n: int) -> milepost.Steps[int]:
        return (yield from milepost.step("a").python(abs, (n,)))

    graph = milepost.Graph(int).add_node("a", abs).set_entry("a").add_edge("a", milepost.END).compile("g")
    engine = milepost.Engine(milepost.MemoryStore(), flows=[graph])
    flows = told["graphs and workflows"]
    shown = {
        "graphs": (graph, flows),
        "workflows": (steps, flows),
        "engines": (engine, set()),
        "handles": (engine.handle("r"), set()),
        "workers": (engine.worker(), set()),
    }
    for kind, (value, common) in shown.items():
        assert told[kind] | common == {name for name in dir(value) if not name.startswith("_")}, kind
