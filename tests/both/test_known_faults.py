"""Faults that users of other libraries met, and their neighbours: one restart more, one visit more, another type.

What the tests of each part show already is not shown again here.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Any, Generic, TypeVar
from uuid import UUID

import pydantic
import pytest

from milepost import (
    END,
    Graph,
    InputMismatchError,
    MemoryStore,
    NodeError,
    Retry,
    RunCancelled,
    RunExistsError,
    RunNotFoundError,
    RunNotResumableError,
    SerializeStateError,
    SQLiteStore,
    StoreError,
)
from milepost.errors import (
    CheckpointCorruptError,
    CheckpointVersionError,
    CheckpointWriteError,
    DeserializeStateError,
    InvalidIDError,
    RouterError,
    RunIDRequiredError,
    RunStopped,
    StateTypeError,
)
from milepost.model.failure import type_name

T = TypeVar("T")


@dataclass
class Count:
    n: int = 0


@dataclass
class Holder:
    value: Any = None


class Color(Enum):
    RED = 1


class Kind(StrEnum):
    BUG = "bug"


class Size(IntEnum):
    BIG = 3


class Right(Flag):
    READ = 1
    WRITE = 2


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
class Declared:
    """Each kind of value in a place whose type tells of it."""

    level: Color = Color.RED
    by_level: dict[Color, list[Color]] = field(default_factory=dict)
    rights: Right = Right.READ
    pairs: set[tuple[int, str]] = field(default_factory=set)
    nested: frozenset[frozenset[int]] = frozenset()
    points: dict[tuple[int, str], Point] = field(default_factory=dict)
    basket: Basket = field(default_factory=Basket)
    boxes: tuple[Box[int], ...] = ()
    last: deque[int] = field(default_factory=deque)
    groups: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    ordered: OrderedDict[str, int] = field(default_factory=OrderedDict)
    keys: dict[int | str, str] = field(default_factory=dict)
    numbers: list[float] = field(default_factory=list)
    total: Decimal = Decimal(0)
    at: datetime | None = None


def same(left: Any, right: Any) -> bool:
    """Equal and of the same type at every depth, where nan is nan and -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, (list, tuple, deque)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (set, frozenset)):
        return left == right and Counter(map(type, left)) == Counter(map(type, right))
    return left == right


def plus(state: Count) -> Count:
    return Count(state.n + 1)


def untouched(store, run_id: str = "r1") -> tuple[Any, ...]:
    """Everything of a run that a refusal must leave as it is."""
    row = store.get_run(run_id)
    return store.read(run_id), row.info.status, row.info.reason, row.epoch


# -- what was saved comes back, also after one restart more ------------------------------------------------


def after_two_restarts(verbs, store, line, kind: type, state: Any, **options: Any) -> list[Any]:
    """What the first node after each of two restarts is given, and the result that is stored in the end."""
    seen: list[Any] = []

    def look(given: Any) -> Any:
        seen.append(given)
        return given

    graph = line(kind, "abc", {"a": lambda given: state, "b": look, "c": look}, **options)
    with pytest.raises(RunStopped):
        verbs.run(graph, kind(), store=store, run_id="r1", stop_after="a")
    with pytest.raises(RunStopped):
        verbs.resume(graph, store, "r1", stop_after="b")
    verbs.resume(graph, store, "r1")
    return [*seen, verbs.resume(graph, store, "r1")]


@pytest.mark.parametrize(
    "value",
    [
        {(5, "e"), (6, "f")},
        frozenset({frozenset({8}), frozenset()}),
        {"rows": [("x", 1), ("y", 2)], ("t",): {"u": ()}},
        {1: "int", "1": "text"},
        {date(2024, 2, 29): 1, UUID(int=5): 2, Color.RED: 3, (1, "a"): 4, None: 5},
        {frozenset({1}): b"\x00\xff", b"1": 1, Decimal("1.10"): 2, 1.5: 3},
        [math.nan, math.inf, -math.inf, -0.0, {"deep": (math.nan, -0.0)}],
        {"nul": "x\x00y", "\x00": ["\x00"]},
        [10**40, -(10**40), 2**65, 2**53 + 1],
        [Decimal("1.10"), Decimal("1E+3")],
        [datetime(2024, 2, 29, 12), datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))],
        {"c": Counter("aab"), "o": OrderedDict([("b", 1), ("a", 2)]), "d": deque([7, 8], maxlen=2)},
        {"level": Color.RED, "seen": [Color.RED, (Color.RED,)], "kind": Kind.BUG, "size": Size.BIG},
        [Right.READ, Right.READ | Right.WRITE],
    ],
    ids=[
        "pairs",
        "nested sets",
        "tuples",
        "keys of two types",
        "keys of five types",
        "keys of four more types",
        "floats",
        "NUL",
        "large integers",
        "decimals",
        "times",
        "containers",
        "enums",
        "flags",
    ],
)
def test_a_value_is_the_same_after_each_of_two_restarts(verbs, store, line, value):
    types = (Color, Kind, Size, Right)
    for found in after_two_restarts(verbs, store, line, Holder, Holder(value), types=types):
        assert same(value, found.value)


@pytest.mark.every_store
def test_values_of_declared_types_are_the_same_after_each_of_two_restarts(verbs, store, line):
    basket = Basket(["a", "b"])
    basket.count = 7
    state = Declared(
        Color.RED,
        {Color.RED: [Color.RED]},
        Right.READ | Right.WRITE,
        {(5, "e"), (6, "f")},
        frozenset({frozenset({8}), frozenset()}),
        {(1, "a"): Point(1, 2)},
        basket,
        (Box[int](value=5),),
        deque([7, 8], maxlen=2),
        defaultdict(list, {"x": [1]}),
        Counter("aab"),
        OrderedDict([("b", 1), ("a", 2)]),
        {1: "int", "1": "text"},
        [math.inf, -0.0],
        Decimal("1.10"),
        datetime(2024, 2, 29, tzinfo=UTC),
    )
    for found in after_two_restarts(verbs, store, line, Declared, state):
        assert all(same(getattr(state, name), getattr(found, name)) for name in Declared.__dataclass_fields__)
        found.last.append(9)
        assert (deque([8, 9], maxlen=2), 2) == (found.last, found.last.maxlen)
        found.last.appendleft(7)
        assert [] == found.groups.pop("missing", found.groups["missing"])
        assert (Basket, 7, Box[int]) == (type(found.basket), found.basket.count, type(found.boxes[0]))


def test_a_field_that_a_node_sets_after_a_restart_is_kept_over_the_next(verbs, store, line):
    @dataclass
    class Shop:
        basket: Basket = field(default_factory=Basket)

    seen = []

    def b(state: Shop) -> Shop:
        seen.append(state.basket.count)
        state.basket.count = 7
        return state

    def c(state: Shop) -> Shop:
        seen.append(state.basket.count)
        return state

    graph = line(Shop, "abc", {"a": lambda state: Shop(Basket(["a", "b"])), "b": b, "c": c})
    with pytest.raises(RunStopped):
        verbs.run(graph, Shop(), store=store, run_id="r1", stop_after="a")
    with pytest.raises(RunStopped):
        verbs.resume(graph, store, "r1", stop_after="b")
    assert 7 == verbs.resume(graph, store, "r1").basket.count
    assert [2, 7] == seen


@pytest.mark.parametrize("member", [Color.RED, Kind.BUG, Size.BIG, Right.READ])
@pytest.mark.parametrize(
    ("held", "path"),
    [
        (lambda member: member, "state.value"),
        (lambda member: [0, member], "state.value[1]"),
        (lambda member: {"k": (member,)}, 'state.value["k"][0]'),
    ],
    ids=["alone", "list", "tuple"],
)
def test_a_member_of_an_unknown_enum_is_refused_by_path_and_never_kept_as_its_value(
    verbs, store, line, member, held, path
):
    graph = line(Holder, "ab", {"a": lambda state: state, "b": lambda state: Holder(held(member))})
    with pytest.raises(SerializeStateError) as caught:
        verbs.run(graph, Holder(), store=store, run_id="r1")
    assert ("r1", "b", path) == (caught.value.run_id, caught.value.node_id, caught.value.path)
    assert type(member).__name__ in caught.value.type_name
    assert ["a"] == [info.node_id for info in store.list("r1")]


def giving(state: Holder):
    return lambda given: state


@pytest.mark.parametrize("member", [Color.RED, Kind.BUG, (1, Color.RED)], ids=["enum", "str enum", "tuple"])
def test_a_key_or_an_element_of_an_unknown_enum_is_refused(verbs, store, line, member):
    for value in ({member: 1}, {member}, {"deep": [frozenset({member})]}):
        graph = line(Holder, "a", {"a": giving(Holder(value))})
        with pytest.raises(SerializeStateError, match=r"Color|Kind"):
            verbs.run(graph, Holder(), store=store)
        with pytest.raises(SerializeStateError, match=r"Color|Kind"):
            verbs.run(graph, Holder(value), store=store)


class Opaque:
    pass


def test_an_unknown_value_deep_in_a_dict_state_is_refused_by_its_path(verbs, store, line, log):
    is_broken = [True]

    def b(state: dict[str, Any]) -> dict[str, Any]:
        return {"frames": [{"table": Opaque() if is_broken[0] else "path"}]}

    graph = line(dict, "abc", {"a": lambda state: state, "b": b, "c": lambda state: state})
    with pytest.raises(SerializeStateError) as caught:
        verbs.run(graph, {"frames": []}, store=store, run_id="r1")
    error = caught.value
    assert ("r1", "b", 'state["frames"][0]["table"]') == (error.run_id, error.node_id, error.path)
    assert ("Opaque" in error.type_name, "r1" in str(error), "'b'" in str(error)) == (True, True, True)
    with pytest.raises(SerializeStateError):
        verbs.resume(graph, store, "r1")
    assert ["a"] == [info.node_id for info in store.history("r1")]
    assert b"Opaque object" not in store.export("r1")
    is_broken[0] = False
    assert {"frames": [{"table": "path"}]} == verbs.resume(graph, store, "r1")
    assert list("abbbc") == log


def test_an_unknown_value_in_an_override_is_refused_and_changes_nothing(verbs, store, line, log):
    graph = line(Holder, "ab", {"a": lambda state: state, "b": lambda state: state})
    with pytest.raises(RunStopped):
        verbs.run(graph, Holder(1), store=store, run_id="r1", stop_after="a")
    before = store.read("r1")
    with pytest.raises(SerializeStateError) as caught:
        verbs.resume(graph, store, "r1", state_override=lambda state: Holder([Opaque()]))
    assert "state.value[0]" == caught.value.path
    assert (["a"], before, "interrupted") == (log, store.read("r1"), store.get_run("r1").info.status)
    assert Holder(1) == verbs.resume(graph, store, "r1")


@pytest.mark.parametrize("value", ["a\ud801b", {"a\ud801b": 1}, ("\udfff",), {"\ud800"}])
def test_a_lone_surrogate_is_refused_wherever_a_state_comes_from(verbs, store, line, value):
    graph = line(Holder, "ab", {"a": lambda state: state, "b": lambda state: Holder(value)})
    with pytest.raises(SerializeStateError):
        verbs.run(graph, Holder(value), store=store, run_id="r1")
    assert [] == store.list_runs()
    with pytest.raises(SerializeStateError):
        verbs.run(graph, Holder(), store=store, run_id="r1")
    assert ["a"] == [info.node_id for info in store.history("r1")]


@pytest.fixture
def every_store(tmp_path):
    """One store of each kind: what they do with the same text must be the same."""
    stores = (SQLiteStore(tmp_path / "every.db"), MemoryStore())
    yield stores
    for store in stores:
        store.close()


@pytest.mark.parametrize("text", ["a\ud801b", "a\x00b"])
@pytest.mark.parametrize("place", ["key", "value"])
@pytest.mark.parametrize("way", ["call", "node"])
def test_a_tag_of_odd_text_is_kept_exactly_or_refused_by_every_store_alike(verbs, every_store, line, text, place, way):
    tags = {"k": text} if place == "value" else {text: "v"}
    shorter = {"k": "a"} if place == "value" else {"a": "v"}

    def tagging(ctx, state: Count) -> Count:
        for key, value in tags.items():
            ctx.tag(key, value)
        return state

    def verdict(store: Any) -> str:
        verbs.run(line(Count, "a"), Count(), store=store, run_id="other")
        try:
            if way == "call":
                verbs.run(line(Count, "a"), Count(), store=store, run_id="r1", tags=tags)
            else:
                verbs.run(line(Count, "a", {"a": tagging}), Count(), store=store, run_id="r1")
        except (TypeError, ValueError, NodeError) as exc:
            if isinstance(exc, UnicodeError) or isinstance(exc.__cause__, UnicodeError):
                raise
            assert ["other"] == [info.run_id for info in store.list_runs(status="finished")]
            return "refused"
        assert tags == dict(store.get_run("r1").info.tags)
        assert ["r1"] == [info.run_id for info in store.list_runs(tags=tags)]
        assert [] == store.list_runs(tags=shorter)
        return "kept"

    assert 1 == len({verdict(store) for store in every_store})


@pytest.mark.parametrize(
    "reason",
    [
        "a\ud801b",
        "a\x00b",
        "two\nlines",
        "x" * 5000,
    ],
    ids=["surrogate", "NUL", "lines", "long"],
)
def test_a_reason_of_odd_text_is_told_by_every_store_alike_and_ends_the_run(verbs, every_store, line, log, reason):
    def verdict(store: Any) -> tuple[str, str]:
        graph = line(Count, "ab")
        with pytest.raises(RunStopped):
            verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
        try:
            assert "requested" == store.request_cancel("r1", reason, None)
        except (TypeError, ValueError) as exc:
            if isinstance(exc, UnicodeError):
                raise
            return ("refused", store.get_run("r1").info.status)
        assert "?" not in store.get_run("r1").cancel
        with pytest.raises(RunCancelled):
            verbs.resume(graph, store, "r1")
        info = store.get_run("r1").info
        assert store.verify("r1").ok
        return (info.status, info.reason)

    (told,) = {verdict(store) for store in every_store}
    assert told[0] in {"cancelled", "refused"}
    assert list("aa") == log


def test_a_class_that_is_gone_stops_every_verb_that_would_run_and_none_that_looks(verbs, store, line, log):
    @dataclass
    class Parcel:
        weight: int = 0

    bodies = {"a": lambda state: Holder({"p": [Parcel(5)]}), "b": lambda state: state}
    graph, without = line(Holder, "ab", bodies, types=(Parcel,)), line(Holder, "ab", bodies)
    with pytest.raises(RunStopped):
        verbs.run(graph, Holder(), store=store, run_id="r1", stop_after="a")
    before = untouched(store)
    plan = verbs.plan(without, store, "r1")
    assert ("refuse", DeserializeStateError) == (plan.verdict, type(plan.error))
    for verb, more, options in (
        (verbs.resume, (), {}),
        (verbs.resume, (), {"state_override": lambda state: state}),
        (verbs.resume_from, ("a",), {}),
        (verbs.run, (Holder(),), {"if_exists": "resume"}),
    ):
        with pytest.raises(DeserializeStateError, match="Parcel") as caught:
            if verb == verbs.run:
                verb(without, *more, store=store, run_id="r1", **options)
            else:
                verb(without, store, "r1", *more, **options)
        assert ("r1", 'state.value["p"][0]') == (caught.value.run_id, caught.value.path)
    assert (["a"], before) == (log, untouched(store))
    assert b"Parcel" in store.load("r1", "a")
    assert ["a"] == [info.node_id for info in store.history("r1")]
    assert store.verify("r1").ok
    assert {"p": [Parcel(5)]} == verbs.resume(graph, store, "r1").value


def test_a_run_whose_node_broke_the_type_of_the_state_goes_on_with_an_override(verbs, store, log):
    @dataclass
    class Tagged:
        tags: list[str] = field(default_factory=list)

    is_broken = [True]

    def body(name: str, answer):
        def plain(state: Tagged) -> Tagged:
            log.append(name)
            return answer(state)

        return verbs.node(plain)

    graph = Graph(Tagged).add_node("a", body("a", lambda state: state))
    graph.add_node("b", body("b", lambda state: Tagged(None) if is_broken[0] else state))  # type: ignore[arg-type]
    graph.add_node("c", body("c", lambda state: state))
    compiled = graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile()
    for call in (
        lambda: verbs.run(compiled, Tagged(), store=store, run_id="r1"),
        lambda: verbs.resume(compiled, store, "r1"),
    ):
        with pytest.raises(StateTypeError, match="tags"):
            call()
        assert ["a"] == [info.node_id for info in store.history("r1")]
        assert "failed" == store.list_runs()[0].status
        assert b'"tags":[]' in store.load("r1", "a")
    is_broken[0] = False
    assert Tagged(["x"]) == verbs.resume(compiled, store, "r1", state_override=lambda state: Tagged(["x"]))
    assert list("abbbc") == log


# -- errors that are hard to keep --------------------------------------------------------------------------


class NeedsKeyword(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def holding_a_lock() -> Exception:
    error = ValueError("with a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    error.add_note("noted")
    return error


HARD = {
    "keyword": NeedsKeyword(reason="odd"),
    "lock": holding_a_lock(),
    "silent": Silent(),
    "group": ExceptionGroup("several", [Silent(), ValueError("no")]),
    "surrogate": OSError("a\ud801b\x00"),
}


@pytest.mark.parametrize("error", HARD.values(), ids=HARD.keys())
def test_an_odd_error_of_a_router_ends_the_run_as_failed_and_reaches_the_caller(verbs, store, log, error):
    def choose(state: Count) -> str:
        raise error

    graph = Graph(Count).add_node("a", verbs.node(plus)).add_conditional_edge("a", verbs.node(choose), [END])
    compiled = graph.set_entry("a").compile()
    for attempt in range(2):
        with pytest.raises(RouterError) as caught:
            if attempt:
                verbs.resume(compiled, store, "r1")
            else:
                verbs.run(compiled, Count(), store=store, run_id="r1")
        assert error is caught.value.__cause__
        assert ("failed", ["a"]) == (store.get_run("r1").info.status, [info.node_id for info in store.list("r1")])
    told = [record.fields() for record in store.read("r1", kinds=("failure",))]
    assert [True, True] == [
        type(error).__name__ in fields["error_type"] and bool(fields["traceback"]) for fields in told
    ]


@pytest.mark.parametrize("error", HARD.values(), ids=HARD.keys())
def test_an_odd_error_uses_up_its_attempts_like_any_other_and_streams_tell_it(verbs, store, line, error, log):
    def b(state: Count) -> Count:
        raise error

    graph = line(Count, "ab", {"b": b}, {"b": {"retry": Retry(2, backoff=0)}})
    told: list[Any] = []
    with pytest.raises(NodeError) as caught:
        verbs.events(graph, "stream", Count(), store=store, run_id="r1", seen=told)
    assert (error, list("abb")) == (caught.value.__cause__, log)
    assert [error, error] == [event.error for event in told if type(event).__name__ == "AttemptFailed"]
    assert 2 == len(store.read("r1", kinds=("failure",)))
    assert "failed" == store.get_run("r1").info.status
    with pytest.raises(RunNotResumableError):
        verbs.resume(graph, store, "r1")
    with pytest.raises(NodeError) as again:
        verbs.retry(graph, store, "r1")
    assert error is again.value.__cause__


def test_the_odd_name_of_an_error_s_type_can_be_recorded():
    odd = type("Odd", (Exception,), {"__qualname__": "Odd\ud801", "__module__": "of\ud801"})
    is_printable = type_name(odd("no")).isprintable()
    assert is_printable


# -- what was reported saved is there ----------------------------------------------------------------------


def test_a_run_killed_three_times_in_its_first_node_is_listed_each_time_and_ends(verbs, medium, timed, line, log):
    dying = [True]

    def a(state: Count) -> Count:
        if dying[0]:
            raise verbs.Killed
        return plus(state)

    graph = line(Count, "ab", {"a": a})
    for crash in range(3):
        verbs.crash(graph, timed, "r1", *([] if crash else [Count(5)]))
        (info,) = timed.list_runs()
        assert ("r1", "line") == (info.run_id, info.flow)
        assert medium.has_lease_end == (info.status == "dead")
        assert b'{"n":5}' == timed.read("r1", kinds=("start",))[0].state()
        assert "continue" == verbs.plan(graph, timed, "r1").verdict
    dying[0] = False
    result = verbs.resume(graph, timed, "r1", full=True)
    assert (Count(7), "start", list("aaaab")) == (result.state, result.resumed.source, log)


@pytest.mark.every_store
def test_a_run_that_kills_every_owner_is_not_recovered_for_ever(verbs, medium, timed, line, log):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")

    def a(state: Count) -> Count:
        raise verbs.Killed

    graph = line(Count, "ab", {"a": a})
    verbs.crash(graph, timed, "r1", Count(5))
    for _ in range(9):
        if timed.get_run("r1").info.status == "blocked":
            break
        try:
            verbs.crash(graph, timed, "r1")
        except RunNotResumableError:
            break
    assert ("blocked", 5, ["a"] * 5) == (timed.get_run("r1").info.status, timed.get_run("r1").info.crash_count, log)
    assert ["r1"] == [info.run_id for info in timed.list_runs(status="blocked")]
    assert "blocked" == timed.get_run("r1").info.status
    assert "refuse" == verbs.plan(graph, timed, "r1").verdict


class NoSpace:
    """A store on whose medium there is no room for more checkpoints of a node."""

    full_for: tuple[str, int] | None = None

    def append(self, batch):
        for append in batch:
            if any((record.node_id, record.visit) == self.full_for for record in append.records):
                raise StoreError("no space left on device")
        return super().append(batch)


def test_a_save_that_fails_in_a_later_visit_stops_a_loop_there(verbs, medium, log):
    store = medium.open(NoSpace)

    def b(state: Count) -> Count:
        log.append(state.n)
        return plus(state)

    graph = Graph(Count).add_node("b", verbs.node(b))
    graph.add_conditional_edge("b", lambda state: "b" if state.n < 4 else END, ["b", END])
    loop = graph.set_entry("b").compile()
    store.full_for = ("b", 2)
    told: list[Any] = []
    with pytest.raises(CheckpointWriteError, match="no space left") as caught:
        verbs.events(loop, "stream", Count(), store=store, run_id="r1", seen=told)
    assert ("r1", "b", [0, 1]) == (caught.value.run_id, caught.value.node_id, log)
    with pytest.raises(CheckpointWriteError):
        verbs.resume(loop, store, "r1")
    assert [1] == [info.visit for info in store.history("r1")]
    store.full_for = None
    assert Count(4) == verbs.resume(loop, store, "r1")
    assert ([0, 1, 1, 1, 2, 3], [1, 2, 3, 4]) == (log, [info.visit for info in store.history("r1")])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_a_router_is_no_success_and_no_failure(verbs, store, log, error):
    is_first = [True]

    def body(name: str):
        def plain(state: Count) -> Count:
            log.append(name)
            return plus(state)

        return verbs.node(plain)

    def choose(state: Count) -> str:
        if is_first[0]:
            raise error
        return "sink"

    graph = Graph(Count).add_node("a", body("a")).add_node("sink", body("sink")).add_edge("sink", END)
    compiled = graph.add_conditional_edge("a", verbs.node(choose), ["sink"]).set_entry("a").compile()
    with pytest.raises(error):
        verbs.run(compiled, Count(), store=store, run_id="r1")
    assert "interrupted" == store.get_run("r1").info.status
    assert [] == store.read("r1", kinds=("failure", "finish"))
    is_first[0] = False
    assert Count(2) == verbs.resume(compiled, store, "r1")
    assert "sink" == log[-1]
    assert 1 == log.count("sink")
    assert "finished" == store.get_run("r1").info.status


# -- it goes on at the right place -------------------------------------------------------------------------


def test_a_router_that_fails_in_a_later_visit_is_asked_again_for_that_visit(verbs, store, log):
    is_broken = [True]

    def b(state: Count) -> Count:
        log.append(f"b{state.n}")
        return plus(state)

    def sink(state: Count) -> Count:
        log.append("sink")
        return Count(state.n + 100)

    def choose(state: Count) -> str:
        if state.n == 2 and is_broken[0]:
            raise ValueError("no")
        return "b" if state.n < 3 else "sink"

    graph = Graph(Count).add_node("b", verbs.node(b)).add_node("sink", verbs.node(sink)).add_edge("sink", END)
    compiled = graph.add_conditional_edge("b", verbs.node(choose), ["b", "sink"]).set_entry("b").compile()
    with pytest.raises(RouterError):
        verbs.run(compiled, Count(), store=store, run_id="r1")
    with pytest.raises(RouterError):
        verbs.resume(compiled, store, "r1")
    assert ("failed", ["b0", "b1"]) == (store.get_run("r1").info.status, log)
    is_broken[0] = False
    assert Count(103) == verbs.resume(compiled, store, "r1")
    assert ["b0", "b1", "b2", "sink"] == log
    assert [("b", 1), ("b", 2), ("b", 3), ("sink", 1)] == [(i.node_id, i.visit) for i in store.history("r1")]


def test_in_place_changes_of_failed_attempts_add_up_over_no_number_of_resumes(verbs, store, line, log):
    @dataclass
    class Bag:
        n: int = 0
        items: dict[str, list[int]] = field(default_factory=dict)

    left, seen = [3], []

    def b(state: Bag) -> Bag:
        seen.append((state.n, {key: list(values) for key, values in state.items.items()}))
        state.n += 3
        state.items["x"].append(2)
        state.items["y"] = []
        if left[0]:
            left[0] -= 1
            raise ValueError("no")
        return state

    graph = line(Bag, "ab", {"a": lambda state: Bag(4, {"x": [1]}), "b": b})
    with pytest.raises(NodeError):
        verbs.run(graph, Bag(), store=store, run_id="r1")
    for _ in range(2):
        with pytest.raises(NodeError) as caught:
            verbs.resume(graph, store, "r1")
        assert Bag(4, {"x": [1]}) == caught.value.state
    assert Bag(7, {"x": [1, 2], "y": []}) == verbs.resume(graph, store, "r1")
    assert ([(4, {"x": [1]})] * 4, list("abbbb")) == (seen, log)


@pytest.mark.parametrize("ending", ["dead", "failed"])
def test_another_input_for_a_run_that_died_or_failed_is_refused_and_both_are_shown(
    verbs, medium, timed, line, log, ending
):
    is_broken = [True]

    def b(state: Count) -> Count:
        if is_broken[0]:
            raise verbs.Killed if ending == "dead" else ValueError("no")
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    if ending == "dead":
        verbs.crash(graph, timed, "r1", Count(1))
    else:
        with pytest.raises(NodeError):
            verbs.run(graph, Count(1), store=timed, run_id="r1")
    before = untouched(timed)
    for mode, kind in (("error", RunExistsError), ("resume", InputMismatchError), ("retry", InputMismatchError)):
        for call in (verbs.run, verbs.stream):
            with pytest.raises(kind) as caught:
                call(graph, Count(2), store=timed, run_id="r1", if_exists=mode)
            assert ('{"n":1}' in str(caught.value), '{"n":2}' in str(caught.value)) == (True, True)
    assert (before, ["a", "b"]) == (untouched(timed), log)
    is_broken[0] = False
    assert Count(4) == verbs.run(graph, Count(1), store=timed, run_id="r1", if_exists="resume")
    assert list("abbc") == log


def test_a_stream_of_an_unknown_run_leaves_nothing_behind(verbs, store, line, log):
    graph = line(Count)
    with pytest.raises(RunNotFoundError, match="nope"):
        verbs.resume_stream(graph, store, "nope")
    assert ([], []) == (log, store.list_runs())


def test_a_loop_whose_process_dies_in_its_third_visit_counts_on(verbs, timed, log):
    dying = [True]

    def b(ctx, state: Count) -> Count:
        log.append((ctx.visit, state.n))
        if state.n == 2 and dying[0]:
            raise verbs.Killed
        return plus(state)

    graph = Graph(Count).add_node("b", verbs.node(b))
    graph.add_conditional_edge("b", lambda state: "b" if state.n < 3 else END, ["b", END])
    loop = graph.set_entry("b").compile()
    verbs.crash(loop, timed, "r1", Count())
    verbs.crash(loop, timed, "r1")
    dying[0] = False
    assert Count(3) == verbs.resume(loop, timed, "r1")
    assert [(1, 0), (2, 1), (3, 2), (3, 2), (3, 2)] == log
    history = timed.history("r1")
    assert [("b", 1), ("b", 2), ("b", 3)] == [(info.node_id, info.visit) for info in history]
    assert sorted({info.sequence for info in history}) == [info.sequence for info in history]
    assert b'"n":3' in timed.load("r1", "b")
    assert [("b", 3)] == [(info.node_id, info.visit) for info in timed.list("r1")]


def test_saves_with_equal_times_and_a_clock_that_goes_back_keep_their_order_over_restarts(verbs, timed, clock, log):
    def b(state: Count) -> Count:
        clock.set(clock.now() - timedelta(hours=1))
        return plus(state)

    graph = Graph(Count).add_node("b", verbs.node(b)).add_node("a", verbs.node(plus)).add_edge("a", "b")
    graph.add_conditional_edge("b", lambda state: "a" if state.n < 6 else END, ["a", END])
    loop = graph.set_entry("a").compile()
    with pytest.raises(RunStopped):
        verbs.run(loop, Count(), store=timed, run_id="r1", stop_after="b", clock=clock)
    with pytest.raises(RunStopped):
        verbs.resume(loop, timed, "r1", stop_after="a", clock=clock)
    assert Count(6) == verbs.resume(loop, timed, "r1", clock=clock)
    assert list("ababab") == [info.node_id for info in timed.history("r1")]
    assert ["a", "b"] == [info.node_id for info in timed.list("r1")]
    assert (b'"n":5' in timed.load("r1", "a"), b'"n":6' in timed.load("r1", "b")) == (True, True)
    assert Count(6) == verbs.resume(loop, timed, "r1", clock=clock)


# -- inputs are compared by value and type -----------------------------------------------------------------


def test_inputs_that_differ_in_the_order_of_their_keys_alone_are_the_same(verbs, store, line):
    graph = line(Holder, "a", {"a": lambda state: state})
    given = Holder({"a": 1, "b": {"c": {"x", "y", "z"}, "d": 2}})
    verbs.run(graph, given, store=store, run_id="r1")
    turned = Holder({"b": {"d": 2, "c": {"z", "y", "x"}}, "a": 1})
    assert given == verbs.run(graph, turned, store=store, run_id="r1", if_exists="resume")


def test_a_dict_as_input_is_the_same_in_any_order_of_its_keys(verbs, store, line):
    graph = line(dict, "a", {"a": lambda state: state})
    verbs.run(graph, {"a": 1, "b": 2}, store=store, run_id="r1")
    assert {"a": 1, "b": 2} == verbs.run(graph, {"b": 2, "a": 1}, store=store, run_id="r1", if_exists="resume")


@pytest.mark.parametrize(
    "nest",
    [lambda v: v, lambda v: [v], lambda v: {"k": (v,)}, lambda v: {v}, lambda v: {v: 0}],
    ids=["alone", "list", "tuple", "set", "key"],
)
def test_inputs_of_different_types_are_never_the_same(verbs, store, line, nest):
    graph = line(Holder, "a", {"a": lambda state: state})
    scalars = (1, True, 1.0, "1", Decimal(1), b"1")
    for number, kept in enumerate(scalars):
        verbs.run(graph, Holder(nest(kept)), store=store, run_id=f"r{number}")
        before = untouched(store, f"r{number}")
        for other in scalars:
            given = Holder(nest(other))
            if other is kept:
                verbs.run(graph, given, store=store, run_id=f"r{number}", if_exists="resume")
                continue
            with pytest.raises(InputMismatchError) as caught:
                verbs.run(graph, given, store=store, run_id=f"r{number}", if_exists="resume")
            assert caught.value.expected_hash != caught.value.actual_hash
            for text in (caught.value.expected_hash, caught.value.actual_hash):
                assert text[:16] in str(caught.value)
        assert before == untouched(store, f"r{number}")


# -- who may write -----------------------------------------------------------------------------------------


def test_a_paused_stream_and_a_loop_over_a_listing_block_nobody(verbs, medium, line):
    store, other = medium.open(), medium.open()
    graph = line(Count, "abc")
    results: list[Any] = []

    def meanwhile(event: Any) -> bool:
        if type(event).__name__ == "CheckpointSaved" and not results:
            with ThreadPoolExecutor(1) as pool:
                results.append(pool.submit(verbs.run, graph, Count(10), store=other, run_id="r2").result(10))
                pool.submit(other.save, "r3", "x", b"{}").result(10)
        return False

    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r0", stop_after="a")
    for _ in store.list_runs():
        verbs.events(graph, "stream", Count(), store=store, run_id="r1", until=meanwhile)
        break
    assert [Count(13)] == results
    assert {"r0", "r1", "r2", "r3"} == {info.run_id for info in store.list_runs()}
    for number, info in enumerate(store.history("r1")):
        store.save("r3", info.node_id, store.load("r1", info.node_id))
        if number == 0:
            assert Count(3) == verbs.resume(graph, store, "r0")
    assert ["finished"] * 3 == [store.get_run(f"r{n}").info.status for n in range(3)]


def test_a_run_id_that_was_deleted_begins_afresh(verbs, store, line, log):
    graph = line(Count, "ab")
    for start in (1, 10):
        with pytest.raises(RunStopped):
            verbs.run(graph, Count(start), store=store, run_id="r1", stop_after="a", tags={str(start): "x"})
        assert Count(start + 2) == verbs.resume(graph, store, "r1")
        assert {str(start): "x"} == dict(store.get_run("r1").info.tags)
        assert [("a", 1), ("b", 1)] == [(info.node_id, info.visit) for info in store.history("r1")]
        store.delete_run("r1")
        assert ([], []) == (store.list_runs(), store.read("r1"))
    assert list("abab") == log


# -- ids ---------------------------------------------------------------------------------------------------

KEPT = ("R1", "r1", "1", "../up", "in/voice", "in", "/abs", "%2e%2e", "é", "e\u0301", " r1", "r1 ", "con", "y" * 320)


def test_ids_that_look_alike_are_runs_of_their_own(verbs, medium, line, tmp_path):
    store, graph = medium.open(), line(Count, "ab")
    for number, run_id in enumerate(KEPT):
        with pytest.raises(RunStopped):
            verbs.run(graph, Count(10 * number), store=store, run_id=run_id, stop_after="a")
    for number, run_id in enumerate(KEPT):
        assert Count(10 * number + 2) == verbs.resume(graph, store, run_id)
        assert [run_id] * 2 == [info.run_id for info in store.history(run_id)]
    assert set(KEPT) == {info.run_id for info in store.list_runs()}
    store.delete_run("r1")
    assert set(KEPT) - {"r1"} == {info.run_id for info in store.list_runs()}
    assert all(entry.name.startswith("runs.db") for entry in tmp_path.iterdir())
    assert not any(entry.name.startswith(("up", "runs.dbup")) for entry in tmp_path.parent.iterdir())


@pytest.mark.parametrize(
    ("run_id", "error"),
    [
        ("", RunIDRequiredError),
        ("   ", RunIDRequiredError),
        ("a\x00b", InvalidIDError),
        ("..", InvalidIDError),
        ("y" * 5000, InvalidIDError),
        ("a\ud800", InvalidIDError),
        (1, TypeError),
    ],
    ids=["empty", "blank", "NUL", "dots", "long", "surrogate", "int"],
)
def test_an_id_that_no_store_takes_is_refused_by_every_verb_before_anything_is_stored_or_run(
    verbs, store, line, log, run_id, error
):
    graph = line(Count, "ab")
    for call in (verbs.run, verbs.stream):
        with pytest.raises(error):
            call(graph, Count(), store=store, run_id=run_id)
    for verb in (verbs.resume, verbs.retry, verbs.plan, verbs.resume_stream):
        with pytest.raises(error):
            verb(graph, store, run_id)
    with pytest.raises(error):
        verbs.resume_from(graph, store, run_id, "a")
    assert ([], []) == (log, store.list_runs())


# -- stored bytes are data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE records SET payload = CAST(replace(payload, '10', '90') AS BLOB) WHERE sequence = 2 AND run = 1",
        "UPDATE records SET payload = substr(payload, 1, length(payload) / 2) WHERE sequence = 2 AND run = 1",
        "UPDATE records SET payload = x'' WHERE sequence = 2 AND run = 1",
        "UPDATE records SET payload = (SELECT payload FROM records WHERE sequence = 1 AND run = 1) "
        "WHERE sequence = 2 AND run = 1",
        "UPDATE records SET header = replace(header, '\"version\":1', '\"version\":99') WHERE sequence = 2 AND run = 1",
    ],
    ids=["flipped", "cut", "emptied", "swapped", "version"],
)
def test_a_record_that_was_changed_in_the_file_stops_its_run_and_no_other(verbs, medium, line, log, damage):
    if medium.kind != "sqlite":
        pytest.skip("there is no file")
    store = medium.open()
    bodies = {"a": lambda state: Holder("total 1"), "b": lambda state: Holder("total 10"), "c": lambda state: state}
    graph = line(Holder, "abc", bodies)
    for run_id in ("r1", "r2"):
        with pytest.raises(RunStopped):
            verbs.run(graph, Holder(), store=store, run_id=run_id, stop_after="b")
    with sqlite3.connect(medium.path) as connection:
        assert 1 == connection.execute(damage).rowcount
    connection.close()
    before, ran = untouched(store), list(log)
    for verb, more in ((verbs.resume, ()), (verbs.resume_from, ("b",))):
        with pytest.raises((CheckpointCorruptError, CheckpointVersionError)) as caught:
            verb(graph, store, "r1", *more)
        assert ("r1", "version" in damage) == (caught.value.run_id, type(caught.value) is CheckpointVersionError)
    assert "refuse" == verbs.plan(graph, store, "r1").verdict
    assert (before, ran) == (untouched(store), log)
    assert b"total 1" in store.load("r1", "a")
    assert ["a", "b"] == [info.node_id for info in store.list("r1")]
    assert {"r1", "r2"} == {info.run_id for info in store.list_runs()}
    assert Holder("total 10") == verbs.resume(graph, store, "r2")
    assert store.verify("r2").ok
    assert not store.verify("r1").ok
    if "version" not in damage:
        assert Holder("total 10") == verbs.resume(graph, store, "r1", on_corrupt="previous")


@pytest.mark.parametrize(
    "value",
    [
        {"$mp": "os.system", "args": ["true"]},
        {"$mp": ["obj", "os:system", ["true"]]},
        {"__reduce__": ["os.system", ["true"]]},
        {"lc": 1, "type": "constructor", "id": ["subprocess", "Popen"], "kwargs": {"args": "true"}},
        {"py/object": "antigravity"},
    ],
    ids=["tag", "tagged", "reduce", "constructor", "object"],
)
def test_a_state_that_names_a_callable_comes_back_as_data(verbs, store, line, value):
    for found in after_two_restarts(verbs, store, line, Holder, Holder(value)):
        assert same(value, found.value)


def test_a_filter_is_bound_as_data(verbs, store, line):
    graph = line(Count, "a")
    verbs.run(graph, Count(), store=store, run_id="r1", tags={"k": "v"})
    hostile = "k') OR 2>1 --"
    assert [] == store.list_runs(tags={hostile: "v"})
    assert [] == store.list_runs(tags={"k": hostile})
    assert [] == store.list_runs(flow=hostile)
    verbs.run(graph, Count(), store=store, run_id="r2", tags={hostile: hostile})
    assert ["r2"] == [info.run_id for info in store.list_runs(tags={hostile: hostile})]
