"""What `milepost.testing` gives to those who test flows."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from milepost import END, Context, Graph, MemoryStore, NodeError, RunCancelled, current
from milepost.errors import OptionError, RouterError
from milepost.events import Event, Progress
from milepost.testing import FakeClock, arun_flow, context, crashtest, run_flow

pytest_plugins = ["milepost.testing.plugin"]

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)
    total: int = 0


def pick(state: Cart) -> Cart:
    return Cart([*state.items, "book"], state.total)


def pay(ctx: Context[Any], state: Cart) -> Cart:
    return Cart(state.items, ctx.deps.price)


def graph_of(*nodes: tuple[str, Any], route: Any = None) -> Any:
    graph = Graph(Cart)
    for node_id, fn in nodes:
        graph.add_node(node_id, fn)
    for (source, _), (target, _) in itertools.pairwise(nodes):
        graph.add_edge(source, target)
    last = nodes[-1][0]
    graph = graph.add_edge(last, END) if route is None else graph.add_conditional_edge(last, route, [END])
    return graph.set_entry(nodes[0][0]).compile("cart")


SHOP = graph_of(("pick", pick), ("pay", pay))


def test_stubs_stand_in_for_nodes():
    result = run_flow(SHOP, Cart(), stubs={"pay": lambda state: Cart(state.items, 7)})
    assert ("finished", Cart(["book"], 7)) == (result.status, result.state)


def test_an_async_stub_stands_in_for_a_sync_node_and_the_other_way_round():
    async def later(ctx: Context[Any], state: Cart) -> Cart:
        return Cart([ctx.node_id], 1)

    assert Cart(["pay"], 1) == run_flow(SHOP, Cart(), stubs={"pay": later}).state
    async_shop = graph_of(("pick", pick), ("pay", later))
    assert Cart(["book"], 3) == run_flow(async_shop, Cart(), stubs={"pay": lambda s: Cart(s.items, 3)}).state


async def test_a_flow_is_run_inside_an_event_loop_by_the_twin():
    assert 7 == (await arun_flow(SHOP, Cart(), stubs={"pay": lambda state: Cart(state.items, 7)})).state.total


def test_the_results_of_a_map_may_be_of_another_type_than_its_items():
    def size(item: str) -> int:
        return len(item)

    graph = Graph(Cart).add_map("sizes", lambda cart: cart.items, size, merge=lambda cart, n: Cart(cart.items, sum(n)))
    flow = graph.add_edge("sizes", END).set_entry("sizes").compile("sizes")
    assert 7 == run_flow(flow, Cart(["pen", "book"])).state.total


def test_a_stub_of_no_node_is_refused_with_the_nodes_that_there_are():
    with pytest.raises(
        OptionError, match="stubs name 'ship', which flow 'cart' does not have: its nodes are 'pick', 'pay'"
    ):
        run_flow(SHOP, Cart(), stubs={"ship": pick})


def test_a_stub_that_cannot_be_called_as_a_node_is_refused():
    with pytest.raises(OptionError, match="the stub of node 'pay'"):
        run_flow(SHOP, Cart(), stubs={"pay": lambda: Cart()})


def test_the_input_is_not_changed():
    def add(state: Cart) -> Cart:
        state.items.append("pen")
        return state

    given = Cart()
    run_flow(graph_of(("add", add)), given)
    assert Cart() == given


def test_a_router_that_changes_the_state_is_refused():
    def route(state: Cart) -> str:
        state.total = 9
        return END

    with pytest.raises(AssertionError, match="the router after node 'pick' changed the state"):
        run_flow(graph_of(("pick", pick), route=route), Cart())


async def test_an_async_router_that_changes_the_state_is_refused():
    async def route(state: Cart) -> str:
        state.total = 9
        return END

    with pytest.raises(AssertionError, match="the router after node 'pick' changed the state"):
        await arun_flow(graph_of(("pick", pick), route=route), Cart())


def test_a_router_that_fails_is_still_a_router_error():
    def route(state: Cart) -> str:
        raise OSError("no")

    with pytest.raises(RouterError) as caught:
        run_flow(graph_of(("pick", pick), route=route), Cart())
    assert isinstance(caught.value.__cause__, OSError)


def test_a_state_that_is_changed_after_it_was_returned_is_refused():
    kept: list[Cart] = []

    def keep(state: Cart) -> Cart:
        kept.append(state)
        return state

    def change(state: Cart) -> Cart:
        kept[0].items.append("pen")
        return state

    with pytest.raises(AssertionError, match="the state that node 'keep' returned was changed later on"):
        run_flow(graph_of(("keep", keep), ("change", change)), Cart())


def test_two_nodes_share_no_object():
    seen: list[Cart] = []

    def keep(state: Cart) -> Cart:
        seen.append(state)
        return state

    run_flow(graph_of(("one", keep), ("two", keep)), Cart())
    assert seen[0] is not seen[1]


def test_a_node_that_fails_is_raised():
    def fail(state: Cart) -> Cart:
        raise OSError("no")

    with pytest.raises(NodeError):
        run_flow(SHOP, Cart(), stubs={"pick": fail})


def test_a_node_is_called_alone_under_a_context():
    @dataclass
    class Prices:
        price: int

    with context(deps=Prices(5), node_id="pay", visit=2, attempt=3, run_id="r-9") as ctx:
        assert ctx is current()
        assert 5 == pay(ctx, Cart()).total
        assert ("r-9", "pay", 2, 3) == (ctx.run_id, ctx.node_id, ctx.visit, ctx.attempt)
    with pytest.raises(LookupError):
        current()


def test_a_context_tells_its_times_by_the_clock_that_it_is_given():
    clock = FakeClock()
    with context(clock=clock, timeout=10) as ctx:
        assert clock.now() == ctx.now()
        clock.advance(4)
        assert 6 == ctx.deadline
    with context(now=datetime(2030, 1, 1, tzinfo=UTC)) as ctx:
        assert 2030 == ctx.now().year


def test_a_context_collects_what_a_node_tells():
    told: list[Event] = []
    with context(events=told) as ctx:
        ctx.progress(1, 2)
    assert [Progress] == [type(event) for event in told]


def test_a_cancelled_context_stops_a_node():
    with context(cancel="enough") as ctx:
        assert ctx.cancelled
        with pytest.raises(BaseException, match="enough") as caught:
            ctx.check_cancelled()
    assert not isinstance(caught.value, Exception)
    assert isinstance(caught.value.error, RunCancelled)  # type: ignore[attr-defined]


def test_the_fixtures_fit_together(fake_clock: FakeClock, memory_store: MemoryStore, request: pytest.FixtureRequest):
    run = request.getfixturevalue("run_flow")
    result = run(SHOP, Cart(), stubs={"pay": pick}, run_id="r-1")
    assert fake_clock is memory_store.clock
    assert "finished" == memory_store.get_run(result.run_id).info.status
    assert crashtest is request.getfixturevalue("crashtest")


PLUGIN = "milepost.testing.plugin"


def test_the_plugin_imports_nothing_of_the_library_before_a_fixture_is_asked_for():
    counted = (
        f"import milepost, pytest, sys; before = set(sys.modules); import {PLUGIN}; print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", counted], capture_output=True, text=True, check=True)
    assert {"milepost.testing", PLUGIN} == set(done.stdout.split())


@pytest.mark.wide
@pytest.mark.parametrize("line", ["", f'pytest_plugins = ["{PLUGIN}"]'])
def test_pytest_loads_the_plugin_of_an_installed_package_once(line: str, tmp_path: Path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {PLUGIN: PLUGIN} == project["entry-points"]["pytest11"]
    installed = tmp_path / "site" / "milepost_here-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: milepost-here\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{PLUGIN} = {PLUGIN}\n")
    (tmp_path / "conftest.py").write_text(line)
    (tmp_path / "test_it.py").write_text("def test_it(run_flow, crashtest, fake_clock, memory_store): pass\n")
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
