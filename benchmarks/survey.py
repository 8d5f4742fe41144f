"""One state of many records, as each library that the codec knows declares it, and as a dict that declares nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypedDict

import msgspec

try:
    import attrs
except ImportError:
    attrs = None  # type: ignore[assignment]
try:
    import pydantic
except ImportError:
    pydantic = None  # type: ignore[assignment]

__all__ = ["State", "as_dict", "surveys"]


class State(NamedTuple):
    """A state of one kind, and the same as msgspec takes it without knowing the type."""

    kind: str
    type: Any
    value: Any
    plain: Any


@dataclass(frozen=True)
class Reading:
    """One record of the state, with the types that records have."""

    id: int
    station: str
    taken_at: datetime
    value: float
    is_checked: bool
    tags: list[str]
    note: str | None


@dataclass(frozen=True)
class Survey:
    """A state of many records."""

    name: str
    readings: list[Reading]
    totals: dict[str, float]


class ReadingDict(TypedDict):
    """The record as a dict with declared keys."""

    id: int
    station: str
    taken_at: datetime
    value: float
    is_checked: bool
    tags: list[str]
    note: str | None


class SurveyDict(TypedDict):
    """The state as a dict with declared keys."""

    name: str
    readings: list[ReadingDict]
    totals: dict[str, float]


class ReadingStruct(msgspec.Struct):
    """The record as a struct."""

    id: int
    station: str
    taken_at: datetime
    value: float
    is_checked: bool
    tags: list[str]
    note: str | None


class SurveyStruct(msgspec.Struct):
    """The state as a struct."""

    name: str
    readings: list[ReadingStruct]
    totals: dict[str, float]


if attrs is not None:

    @attrs.define
    class ReadingAttrs:
        """The record as a class of attrs."""

        id: int
        station: str
        taken_at: datetime
        value: float
        is_checked: bool
        tags: list[str]
        note: str | None

    @attrs.define
    class SurveyAttrs:
        """The state as a class of attrs."""

        name: str
        readings: list[ReadingAttrs]
        totals: dict[str, float]


if pydantic is not None:

    class ReadingModel(pydantic.BaseModel):
        """The record as a model."""

        id: int
        station: str
        taken_at: datetime
        value: float
        is_checked: bool
        tags: list[str]
        note: str | None

    class SurveyModel(pydantic.BaseModel):
        """The state as a model."""

        name: str
        readings: list[ReadingModel]
        totals: dict[str, float]


def surveys(size: int) -> Iterator[State]:
    """The state with about `size` bytes of records, of each kind whose library is installed; stderr tells of the others."""
    yield _survey("dataclass of records", Survey, Reading, size)
    yield _survey("TypedDict of records", SurveyDict, ReadingDict, size)
    yield _survey("msgspec struct of records", SurveyStruct, ReadingStruct, size)
    if attrs is None:
        sys.stderr.write("attrs is not installed: its classes are not measured\n")
    else:
        yield _survey("attrs class of records", SurveyAttrs, ReadingAttrs, size)
    if pydantic is None:
        sys.stderr.write("pydantic is not installed: its models are not measured\n")
    else:
        yield _survey("pydantic model of records", SurveyModel, ReadingModel, size)


def as_dict(size: int) -> tuple[State, State]:
    """The state as a dict that declares nothing, so that each time is tagged; and the one that it is compared with."""
    typed = _survey("dataclass of records", Survey, Reading, size)
    return State("dict of records", dict, typed.plain, typed.plain), typed


def _survey(kind: str, survey: Callable[..., Any], reading: Callable[..., Any], size: int) -> State:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        (n, f"station-{n % 17}", began + timedelta(seconds=n), n / 3, n % 2 == 0, ["new", "raw"], None)
        for n in range(size // 150)
    ]
    names = tuple(Reading.__dataclass_fields__)
    totals = {f"station-{n}": n / 7 for n in range(17)}
    records = [reading(**dict(zip(names, row, strict=True))) for row in rows]
    plain = asdict(Survey("spring", [Reading(*row) for row in rows], totals))
    return State(kind, survey, survey(name="spring", readings=records, totals=totals), plain)
