"""The runs of the examples as regression tests: each passes with the example as it is, and fails with a changed one."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from milepost import SQLiteStore
from milepost.testing import ReplayDifference, replay, run_flow

wide = pytest.mark.wide
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

Changes = tuple[tuple[str, str], ...]


class Example:
    """An example, as it is or with changes of its text."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.name = name
        self._monkeypatch = monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PACE", "0")
        monkeypatch.setattr(sys, "argv", [name, "runs.db"])

    def load(self, *changes: tuple[str, str]) -> ModuleType:
        """Execute the example's text; classes and functions have the same names each time."""
        path = EXAMPLES / f"{self.name}.py"
        source = path.read_text(encoding="utf-8")
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        module = ModuleType(self.name)
        module.__file__ = str(path)
        self._monkeypatch.setitem(sys.modules, self.name, module)
        exec(compile(source, str(path), "exec"), vars(module))
        return module

    def run(self, flow_name: str, given: Callable[[ModuleType], Any] | None, **options: Any) -> dict[str, bytes]:
        """Run the example, or with a `given` input only its flow; its exported runs by id."""
        module = self.load()
        if self.name == "temperatures":  # with few of its readings
            module.DATA = Path("readings.csv")
            header, *lines = (EXAMPLES / "data" / "seattle-temps.csv").read_text(encoding="utf-8").splitlines(True)
            module.DATA.write_text("".join([header, *lines[::40]]), encoding="utf-8")
        with SQLiteStore("runs.db", durability="normal") as store:
            if given is not None:
                run_flow(getattr(module, flow_name), given(module), store=store, run_id="r-1", **options)
            elif inspect.iscoroutinefunction(module.main):
                asyncio.run(module.main())
            else:
                module.main(*["runs.db"][: len(inspect.signature(module.main).parameters)])
            return {info.run_id: store.export(info.run_id) for info in store.list_runs()}


def check(example: Example, flow: str, failing: tuple[str, ...], changes: Changes, text: str, **given: Any) -> None:
    """Check that all runs pass as they are, and that with the changes those that are `failing` do, with `text`."""
    runs = example.run(flow, **{"given": None, **given})
    module = example.load()
    for data in runs.values():
        replay(data, getattr(module, flow)).check()
    module = example.load(*changes)
    for run_id, data in runs.items():
        if run_id not in failing:
            replay(data, getattr(module, flow)).check()
            continue
        with pytest.raises(ReplayDifference) as found:
            replay(data, getattr(module, flow)).check()
        assert text in str(found.value)


SCRIPTS = [
    (
        "order", "graph", ("o-18",), [('END if o.paid else "price"', '"price" if o.id == "o-18" else END')],
        "visit 1 of 'charge' (record 3):\n  ~ next_node  \"__end__\" -> \"price\"",
    ),
    (
        "agent_loop", "agent", ("chat-1",), [('return "tools" if "tool" in state["messages"][-1] else END', "return END")],
        "visit 1 of 'model' (record 1):\n  ~ next_node  \"tools\" -> \"__end__\"",
    ),
    (
        "fix_and_resume", "graph", ("invoice-1",),
        [
            ('"parse", "add")', '"parse", "report")'),
            ('("add", "report")', '("report", "add")'),
            ('("report", END)', '("add", END)'),
        ],
        "visit 1 of 'parse'",
    ),
    (
        "agent_graph", "agent", ("chat-1",), [('return "approve" if dangerous(chat) else "tools"', 'return "tools"')],
        "~ next_node  \"approve\" -> \"tools\"",
    ),
    ("airports", "summarise", ("airports-1",), [("lambda ctx: any(not", "lambda ctx: all(not")], "visit 1 of 'mend/fill'"),
    (
        "transfer", "graph", ("monday",), [("day.done == len(day.transfers)", "day.done == 3")],
        "visit 3 of 'transfer' (record 3):\n  ~ next_node  \"transfer\" -> \"__end__\"",
    ),
    (
        "weather_pipeline", "graph", ("seattle",), [('return "inspect_storm"', "return next_year(state)")],
        "visit 1 of 'summarise'",
    ),
    (
        "temperatures", "graph", ("seattle-2010",), [("one.celsius for one", "-one.celsius for one")],
        "visit 1 of 'hours'",
    ),
]  # fmt: skip
SMALL = {"order", "agent_loop"}


@pytest.mark.parametrize(
    ("name", "flow", "failing", "changes", "text"),
    [pytest.param(*script, id=script[0], marks=[] if script[0] in SMALL else [wide]) for script in SCRIPTS],
)
def test_a_run_of_an_example_is_a_test_of_it(
    name: str, flow: str, failing: Any, changes: Any, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    check(Example(name, monkeypatch, tmp_path), flow, failing, changes, text)
