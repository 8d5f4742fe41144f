"""What a state holds comes back equal and of the same type after a crash, or is refused where it would be saved."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Generic, TypeVar
from uuid import UUID

import pydantic
import pytest

from milepost import NodeError
from milepost.errors import DeserializeStateError, RunStopped, StateTypeError

T = TypeVar("T")


@dataclass
class Ticket:
    class Level(Enum):
        LOW = 1
        HIGH = 3

    level: Level = Level.LOW
    seen: list[Level] = field(default_factory=list)
    kind: Kind | None = None


class Kind(StrEnum):
    BUG = "bug"


@dataclass(frozen=True)
class Point:
    x: int
    y: int


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.items)


class Box(pydantic.BaseModel, Generic[T]):
    value: T


@dataclass
class Shapes:
    point: Point = Point(0, 0)
    basket: Basket = field(default_factory=Basket)
    box: Box[int] | None = None


@dataclass
class Holder:
    value: Any = None


def same(left: Any, right: Any) -> bool:
    """Equal and of the same type at every depth, where nan is nan and -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (left, math.copysign(1, left)) == (
            right,
            math.copysign(1, right),
        )
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, (list, tuple, deque)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (set, frozenset)):
        return left == right and {type(item) for item in left} == {type(item) for item in right}
    return left == right


def carried(verbs, store, line, kind: Any, state: Any, options: dict[str, Any] | None = None) -> Any:
    """What a node is given after a crash, when the node before it returned `state`."""
    seen = []
    graph = line(
        kind, "ab", {"a": lambda given: state, "b": lambda given: seen.append(given) or given}, **(options or {})
    )
    with pytest.raises(RunStopped):
        verbs.run(graph, kind(), store=store, run_id="r1", stop_after="a")
    verbs.resume(graph, store, "r1")
    return seen[0]


@pytest.mark.every_store
def test_enum_members_stay_members_wherever_they_are(verbs, store, line):
    found = carried(
        verbs,
        store,
        line,
        Ticket,
        Ticket(Ticket.Level.HIGH, [Ticket.Level.LOW, Ticket.Level.HIGH], Kind.BUG),
    )
    assert Ticket.Level.HIGH is found.level
    assert [Ticket.Level.LOW, Ticket.Level.HIGH] == found.seen
    assert all(member is Ticket.Level(member.value) for member in found.seen)
    assert (Kind, Kind.BUG) == (type(found.kind), found.kind)


def test_instances_stay_instances_with_all_their_fields(verbs, store, line):
    basket = Basket(["a", "b"])
    assert 2 == basket.count
    basket.count = 7
    found = carried(verbs, store, line, Shapes, Shapes(Point(1, 2), basket, Box[int](value=5)))
    assert (Point(1, 2), Point) == (found.point, type(found.point))
    assert (Basket, ["a", "b"], 7) == (type(found.basket), found.basket.items, found.basket.count)
    assert (Box[int], 5) == (type(found.box), found.box.value)


@pytest.mark.parametrize(
    "value",
    [
        {(5, "e"), (6, "f")},
        frozenset({frozenset({8}), frozenset()}),
        {"rows": [("x", 1), ("y", 2)]},
        {1: "int", "1": "text"},
        {date(2024, 2, 29): 1, UUID(int=5): 2, (1, "a"): 4, None: 5},
        [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, 1, True],
        "x\x00y",
        [10**40, 2**65, -(2**63), 2**64],
        [b"\x00\xff", bytearray(b"\x01")],
        Decimal("1.10"),
        [datetime(2024, 2, 29, 12), datetime(2024, 2, 29, 12, tzinfo=UTC)],
        Counter("aab"),
        OrderedDict([("b", 1), ("a", 2)]),
        {"$mp": 1, "plain": {"$mp": ["x"]}},
        3 + 4j,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_equal_and_of_the_same_type(verbs, store, line, value):
    assert same(value, carried(verbs, store, line, Holder, Holder(value)).value)
    json.loads(store.load("r1", "a"), parse_constant=pytest.fail)


def test_a_run_with_odd_numbers_does_not_disturb_the_listing_of_others(verbs, store, line):
    graph = line(Holder, "a", {"a": lambda state: Holder([math.nan, math.inf, -0.0])})
    for run_id in ("r1", "r2", "r3"):
        verbs.run(graph, Holder(), store=store, run_id=run_id, tags={"odd": "nan"})
    assert ["r3", "r2", "r1"] == [info.run_id for info in store.list_runs()]
    assert ["r3", "r2", "r1"] == [info.run_id for info in store.list_runs(tags={"odd": "nan"}, status="finished")]


def test_a_class_that_is_gone_is_a_typed_error_and_the_run_stays_readable(verbs, store, line):
    @dataclass
    class Parcel:
        weight: int = 0

    graph = line(Holder, "ab", {"a": lambda state: Holder(Parcel(5)), "b": lambda state: state}, types=(Parcel,))
    with pytest.raises(RunStopped):
        verbs.run(graph, Holder(), store=store, run_id="r1", stop_after="a")
    without = line(Holder, "ab", {"b": lambda state: state})
    with pytest.raises(DeserializeStateError, match="Parcel") as caught:
        verbs.resume(without, store, "r1")
    assert "state.value" == caught.value.path
    assert (["r1"], ["a"]) == ([info.run_id for info in store.list_runs()], [info.node_id for info in store.list("r1")])
    assert b"weight" in store.export("r1")
    assert Parcel(5) == verbs.resume(graph, store, "r1").value


# -- errors that are hard to keep --------------------------------------------------------------------------


class NeedsKeyword(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def holding_a_lock() -> Exception:
    error = ValueError("with a lock")
    error.lock = threading.Lock()
    return error


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (NeedsKeyword(reason="odd"), "NeedsKeyword"),
        (holding_a_lock(), "ValueError"),
        (Silent(), "Silent"),
        (ValueError("a\ud801b"), "ValueError"),
        (StateTypeError("mine"), "StateTypeError"),
    ],
    ids=["keyword", "lock", "silent", "surrogate", "ours"],
)
def test_whatever_a_node_raises_ends_the_run_as_failed_and_reaches_the_caller(verbs, store, line, error, name):
    def b(state: Holder) -> Holder:
        raise error

    graph = line(Holder, "ab", {"a": lambda state: state, "b": b})
    with pytest.raises(NodeError) as caught:
        verbs.run(graph, Holder(), store=store, run_id="r1")
    if not isinstance(error, StateTypeError):
        assert error is caught.value.__cause__
    failure = next(record.fields() for record in store.read("r1", kinds=("failure",)))
    assert ("failed", True) == (store.get_run("r1").info.status, bool(failure["traceback"]))
    assert failure["error_type"].endswith(name)
    with pytest.raises(NodeError) as recorded:
        verbs.run(graph, Holder(), store=store, run_id="r1", if_exists="return")
    assert None is recorded.value.__cause__


# -- new processes -----------------------------------------------------------------------------------------

FLOW = """
    import os, signal, sys
    from collections import defaultdict, deque
    from dataclasses import dataclass, field
    from datetime import datetime, UTC
    from decimal import Decimal
    from enum import Enum
    from milepost import END, Graph, NodeError, SQLiteStore

    class Level(Enum):
        HIGH = 3

    @dataclass
    class State:
        n: int = 0
        level: Level | None = None
        total: Decimal = Decimal(0)
        names: set[str] = field(default_factory=set)
        last: deque[int] = field(default_factory=deque)
        at: datetime | None = None

    def log(name):
        with open(sys.argv[2], "a") as file:
            file.write(name)

    class Odd(Exception):
        def __init__(self, *, reason):
            super().__init__(reason)

    def a(state):
        log("a")
        return State(1, Level.HIGH, Decimal("1.10"), {"x", "y"}, deque([7, 8], maxlen=2), datetime(2024, 2, 29, tzinfo=UTC))

    def b(state):
        log("b")
        if len(sys.argv) > 3 and sys.argv[3] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if len(sys.argv) > 3 and sys.argv[3] == "fail":
            raise Odd(reason="odd")
        state.last.append(9)
        return state

    graph = Graph(State).add_node("a", a).add_node("b", b).add_edge("a", "b").add_edge("b", END).set_entry("a").compile()
    store = SQLiteStore(sys.argv[1])
"""


@pytest.fixture
def in_process(tmp_path):
    """Run lines of Python behind the flow above, in a process of their own; its return code and output."""

    def run(lines: str, mode: str = "", seed: str = "0") -> tuple[int, str]:
        source = textwrap.dedent(FLOW) + textwrap.dedent(lines) + "\nstore.close()\n"
        places = [str(tmp_path / "runs.db"), str(tmp_path / "log")]
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", source, *places, mode],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            timeout=60,
            check=False,
        )
        assert not done.stderr or done.returncode, done.stderr
        return done.returncode, done.stdout.strip()

    run.log = tmp_path / "log"
    return run


def test_a_killed_run_goes_on_in_a_new_process_with_the_same_state(in_process):
    code, _ = in_process("graph.run(State(), store=store, run_id='r1')", "kill")
    assert -signal.SIGKILL == code
    code, listed = in_process("print([(i.run_id, i.flow, i.status) for i in store.list_runs()])")
    assert (0, "[('r1', 'State', 'dead')]") == (code, listed)
    code, told = in_process(
        """
        r = graph.resume(store, 'r1', full=True)
        s = r.state
        print(s.level is Level.HIGH, repr(s.total), sorted(s.names), s.last, s.at.isoformat(), r.resumed.repeated)
        """
    )
    expected = "True Decimal('1.10') ['x', 'y'] deque([8, 9], maxlen=2) 2024-02-29T00:00:00+00:00 ('b',)"
    assert (0, expected) == (code, told)
    assert "abb" == in_process.log.read_text()


def test_the_same_input_is_the_same_in_a_process_with_another_hash_seed(in_process):
    start = """
        try:
            graph.run(State(names={'x', 'y', 'z'}), store=store, run_id='r1', if_exists='resume')
        except NodeError:
            pass
    """
    assert 0 == in_process(start, "fail", "1")[0]
    assert 0 == in_process(start, "", "2")[0]
    assert "abb" == in_process.log.read_text()


def test_the_error_of_another_process_is_told_as_text(in_process):
    code, _ = in_process("graph.run(State(), store=store, run_id='r1')", "fail")
    assert 1 == code
    code, told = in_process(
        """
        try:
            graph.run(State(), store=store, run_id='r1', if_exists='return')
        except NodeError as exc:
            print(exc.run_id, exc.node_id, exc.__cause__, 'Odd: odd' in str(exc), 'Traceback' in str(exc))
        """
    )
    assert (0, "r1 b None True True") == (code, told)
