"""Plans of dates, times and zones.

ISO text alone is exact for naive times, for UTC and for offsets of whole seconds without a name. A zone from
the zone database, any other offset and `fold` are extra keys of the tagged form. A zone is looked up by its key in the
zone database, after keys that are no plain names were refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from .plan import NotCarried, Plan, Tagged, encode_json, qualified
from .scalars import TextPlan, checked_text

_ZONE, _FOLD = attrgetter("tzinfo"), attrgetter("fold")
_EXACT = {id(None), id(UTC)}  # the zones whose times are exact as text
_decode_texts: Callable[[bytes], list[str]] = msgspec.json.Decoder(list[str]).decode
_KEY = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*", re.ASCII)
_DURATION = re.compile(r"P(-?[0-9]+)DT([0-9]+)\.([0-9]{6})S", re.ASCII)


class ClockPlan(Tagged):
    """The plan of `datetime` or of `time`; both have the same methods here."""

    bare = frozenset({"str"})

    def __init__(self, cls: type[datetime] | type[time]) -> None:
        self.tag = cls.__name__
        self.types = (cls,)
        self.twin = cls
        self.revives = False
        self.expected = qualified(cls)
        self._cls: Any = cls

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        if type(value) is not self._cls:
            raise self.contradicted(value)
        zone = value.tzinfo
        extra: dict[str, Any] = {}
        if zone is not None and zone is not UTC:
            extra = _write_zone(zone)
        if value.fold:
            extra["fold"] = 1
        return value.isoformat(), extra or None

    def dump_all(self, values: list[Any], depth: int) -> list[Any]:
        if (
            {*map(type, values)} == {self._cls}
            and {*map(id, map(_ZONE, values))} <= _EXACT
            and not any(map(_FOLD, values))
        ):
            # msgspec writes times as `isoformat` does, except for the name of UTC; `isoformat` takes ten times as long.
            return _decode_texts(encode_json(values).replace(b'Z"', b'+00:00"'))
        return super().dump_all(values, depth)

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        if type(v) is not str:
            raise self.unreadable(v)
        try:
            value = self._cls.fromisoformat(v)
            zone = _read_zone(extra)
            if zone is not None:
                value = value.replace(tzinfo=zone)
            return value.replace(fold=1) if extra.get("fold") == 1 else value
        except (ValueError, TypeError, OverflowError, KeyError, OSError) as exc:
            raise self.unreadable(v) from exc


def _write_zone(zone: tzinfo) -> dict[str, Any]:
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if name:
            return {"offset": _write_duration(offset), "name": checked_text(name[0])}
        # `fromisoformat` takes an offset below a second for UTC (seen with Python 3.11)
        return {"offset": _write_duration(offset)} if offset.microseconds else {}
    if type(zone) is ZoneInfo and isinstance(zone.key, str) and _KEY.fullmatch(zone.key):
        return {"zone": zone.key}
    raise NotCarried(
        f"its zone is a {qualified(type(zone))} that has no name in the zone database: "
        "use zoneinfo.ZoneInfo(key), or turn the time to UTC",
        type_name=qualified(type(zone)),
    )


def _read_zone(extra: dict[str, Any]) -> tzinfo | None:
    if "zone" in extra:
        return _read_key(extra["zone"])
    if "name" in extra:
        if type(extra["name"]) is not str:
            raise ValueError("the name of an offset is no text")
        return timezone(_read_duration(extra["offset"]), extra["name"])
    return timezone(_read_duration(extra["offset"])) if "offset" in extra else None


def _write_key(zone: ZoneInfo) -> str:
    key: str = _write_zone(zone)["zone"]
    return key


def _read_key(key: str) -> ZoneInfo:
    if not _KEY.fullmatch(key):
        raise ValueError("no key of the zone database")
    try:
        return ZoneInfo(key)
    except (KeyError, OSError) as exc:
        raise ValueError(f"the zone database of this system has no {key!r}") from exc


def _write_timezone(zone: timezone) -> str:
    named = _write_zone(zone)
    offset = _write_duration(zone.utcoffset(None))
    return f"{offset} {named['name']}" if "name" in named else offset


def _read_timezone(text: str) -> timezone:
    offset, space, name = text.partition(" ")
    return timezone(_read_duration(offset), name) if space else timezone(_read_duration(offset))


def _write_duration(value: timedelta) -> str:
    return f"P{value.days}DT{value.seconds}.{value.microseconds:06}S"


def _read_duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if not found or len(text) > 40:
        raise ValueError("no duration")
    days, seconds, microseconds = map(int, found.groups())
    return timedelta(days, seconds, microseconds)


def time_plans() -> list[Plan]:
    """Make the plans of all dates, times, durations and zones, one for each class."""
    return [
        ClockPlan(datetime),
        ClockPlan(time),
        TextPlan(date, "date", date.isoformat, date.fromisoformat),
        TextPlan(timedelta, "timedelta", _write_duration, _read_duration),
        TextPlan(timezone, "timezone", _write_timezone, _read_timezone),
        TextPlan(ZoneInfo, "zoneinfo", _write_key, _read_key),
    ]
