"""The retry policy: which failed attempts are tried again, and after which pause."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from milepost.errors import OptionError, shown
from milepost.model.durations import as_seconds, is_number


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy. The default makes three attempts, with pauses of about one and two seconds.

    `max_attempts` counts the first one too. The pause after failure n is `min(backoff * factor ** (n - 1),
    max_delay)` seconds, times 0.5 to 1.5 with `jitter`. An error is tried again if it is one of `retry_on` and none
    of `give_up_on`. Failures are counted over all processes that ever ran the visit; a crash is no failure.

    Source: for jitter, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    >>> tries = []
    >>> def fetch(n: int) -> int:
    ...     tries.append(n)
    ...     if len(tries) < 3:
    ...         raise ConnectionError("not yet")
    ...     return n
    >>> often = Retry(max_attempts=5, backoff=0.01, retry_on=(ConnectionError,))
    >>> Graph(int).add_node("fetch", fetch, retry=often).set_entry("fetch").add_edge("fetch", END).compile().run(7)
    7
    >>> len(tries)
    3
    """

    max_attempts: int = 3
    backoff: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: bool = True
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise OptionError(
                f"max_attempts must be 1 or more, not {shown(self.max_attempts)}: it counts the first attempt too",
                option="max_attempts",
            )
        for name in ("backoff", "max_delay"):
            object.__setattr__(self, name, as_seconds(getattr(self, name), name))
        if not is_number(self.factor) or self.factor < 1:
            raise OptionError(f"factor must be 1 or more, not {shown(self.factor)}", option="factor")
        for name in ("retry_on", "give_up_on"):
            given = getattr(self, name)
            kinds = given if isinstance(given, tuple) else (given,)
            if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
                raise OptionError(f"{name} must be exception classes, not {shown(given)}", option=name)
            object.__setattr__(self, name, kinds)

    def allows(self, failures: int, error: BaseException) -> bool:
        """Return whether another attempt may follow after `failures` failed ones, the last with `error`."""
        return (
            failures < self.max_attempts and isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)
        )

    def delay(self, failures: int, run_id: str, node_id: str, visit: int) -> float:
        """Return the seconds to wait after failure number `failures`: the same each time for the same visit."""
        try:
            pause = min(self.backoff * float(self.factor) ** (failures - 1), self.max_delay)
        except OverflowError:
            # After many failures the pause is beyond a float, and so beyond max_delay, unless there is no pause at all.
            pause = self.max_delay if self.backoff else 0.0
        if not self.jitter:
            return pause
        drawn = hashlib.sha256(f"{run_id}\0{node_id}\0{visit}\0{failures}".encode()).digest()
        return pause * (0.5 + int.from_bytes(drawn[:8], "big") / 2**64)
