"""Schedules: the times at which a flow is due. A cron library reads the pattern and knows about summer time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from milepost.errors import MissingExtraError, OptionError, shown
from milepost.model.workers import ScheduleInfo
from milepost.store import check_run_id
from milepost.verbs import Bound


class Schedule:
    """A flow with its input, and the times at which it is to be started."""

    def __init__(self, name: str, flow: Bound[Any], cron: str, tz: str) -> None:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError as exc:
            raise MissingExtraError(
                "schedules need the extra 'cron': pip install 'milepost[cron]'", extra="cron"
            ) from exc
        self.name = name
        self.flow = flow
        self.cron, self.tz = cron, tz
        self.last_run_id: str | None = None
        """The run that was started last by this schedule."""
        self._due = datetime.max.replace(tzinfo=UTC)
        check_run_id(self.run_id if isinstance(name, str) else name)
        for option, text in (("cron", cron), ("tz", tz)):
            if not isinstance(text, str):
                raise OptionError(f"schedule {name!r}: {option} must be a str, not {shown(text)}", option=option)
        try:
            self._zone = ZoneInfo(tz)
        except (KeyError, ValueError, OSError) as exc:  # the last: a name that is a folder of zones
            raise OptionError(
                f"schedule {name!r}: there is no time zone {shown(tz)}, such as 'Europe/Berlin'", option="tz"
            ) from exc
        self._make: Callable[[datetime], Iterator[datetime]] = lambda moment: CronSim(cron, moment)
        try:
            if len(cron.split()) != 5:  # a sixth would be seconds; no worker looks that often
                raise CronSimError(f"{len(cron.split())} fields")
            next(self._make(datetime.now(self._zone)))
        except (CronSimError, StopIteration) as exc:
            raise OptionError(
                f"schedule {name!r}: {shown(cron)} is no cron pattern that ever comes ({exc or 'no such time'}): give five "
                f"fields, such as '30 6 * * mon'",
                option="cron",
            ) from exc
        self._times: Iterator[datetime] = iter(())
        self._following = self._due

    def begin(self, now: datetime) -> None:
        """Set the first times after `now`."""
        # In the hour that the end of summer time repeats, the pattern gives times of its first pass too.
        times = self._make(now.astimezone(self._zone))
        self._times = (time for time in times if time.timestamp() > now.timestamp())
        self.advance()
        self.advance()

    def advance(self) -> None:
        """Go on to the next time."""
        self._due, self._following = self._following, next(self._times, datetime.max.replace(tzinfo=UTC))

    def catch_up(self, now: float) -> int:
        """Go on to the newest time that has come by `now`; return the number of earlier times that are left out."""
        missed = 0
        while self._following.timestamp() <= now:
            self.advance()
            missed += 1
        return missed

    def info(self) -> ScheduleInfo:
        """Return what people see of the schedule."""
        return ScheduleInfo(
            self.name, self.flow.flow.name, self.cron, self.tz, self._due.astimezone(UTC), self.last_run_id
        )

    @property
    def due_at(self) -> float:
        """The time at which a run is due, in POSIX seconds."""
        return self._due.timestamp()

    @property
    def run_id(self) -> str:
        """The id of the run that is due. It is the same for every worker with this schedule."""
        return f"{self.name}@{self._due.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
