"""Values as text for people. Nothing here prints.

Text from a store or from user code is cleaned, so that a terminal does not take it for commands.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from milepost.errors import escaped

if TYPE_CHECKING:
    from milepost.model.info import Wait

_ENCRYPTED = re.compile(r"aesgcm:([A-Za-z0-9._-]+):[A-Za-z0-9+/]{38,}=*")
"""An encrypted text of a run's row, as a store without the key returns it."""


def clean(text: object) -> str:
    """Return text from a store or from user code, with everything escaped that a terminal could take for a command."""
    readable = _ENCRYPTED.sub(r"encrypted with key '\1'", str(text))
    return escaped(readable)


def short(text: object, limit: int = 60) -> str:
    """Return at most `limit` characters of cleaned text."""
    cleaned = clean(text)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 3] + "..."


def json_text(value: object) -> str:
    """Return recorded JSON in one line, without the codec's marks."""
    from milepost.codec.plain import plain_text  # the codec, which what is shown rarely needs

    return plain_text(json.dumps(value, ensure_ascii=False, default=str))


def error_text(error: BaseException) -> str:
    """Return the type and message of an error in one line."""
    return short(f"{type(error).__name__}: {error}", 160)


def iso(moment: datetime | float | None) -> str | None:
    """Return a time (POSIX seconds or an aware datetime) as ISO 8601 in UTC; None stays None."""
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def ago(moment: datetime) -> str:
    """Return a time for people, in the local time zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def utc(moment: datetime) -> str:
    """Return a time for people in different time zones, in the form that the reasons of runs have."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(milliseconds: float | None) -> str:
    """Return a duration for people, in a fitting unit."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def attempt_of(attempt: int, limit: int | None) -> str:
    """Return the number of an attempt, and how many the policy allows; a crash may have added attempts beyond them."""
    return f"{attempt} of {limit}" if limit is not None and attempt <= limit else str(attempt)


def elapsed(since: datetime) -> str:
    """Return the time that has passed since a moment, in a fitting unit."""
    return duration(max((datetime.now(UTC) - since).total_seconds(), 0.0) * 1000)


def size(count: int) -> str:
    """Return a number of bytes with its unit."""
    if count < 1024:
        return f"{count} B"
    if count < 1024 * 1024:
        return f"{count / 1024:.1f} KB"
    if count < 1024 * 1024 * 1024:
        return f"{count / 1024 / 1024:.1f} MB"
    return f"{count / 1024 / 1024 / 1024:.1f} GB"


def number(count: int) -> str:
    """Return a number with its thousands apart: `12 345`."""
    return f"{count:,}".replace(",", " ")


def plural(count: int, noun: str) -> str:
    """Return a number and its noun: `1 node`, `2 nodes`, `12 345 nodes`."""
    return f"{number(count)} {noun}" + ("" if count == 1 else "s")


_SPELLINGS: tuple[tuple[str, str], ...] = (
    (r"(?:pass )?\b(takeover|reopen|reroute|strict|rerun)=True", r"--\1"),
    (r"\bon_(locked|corrupt)='(\w+)'", r"--on-\1 \2"),
    (r"\bif_exists='(\w+)'", r"--if-exists \1"),
    (r"(?:pass )?\brename=\{'([^']*)': new name\}", r"--rename \1=NEW"),
    (r"\bwith rename=(?!\{)", "with --rename OLD=NEW"),
    (r"\bmax_iterations or None\b", "--max-iterations"),
    (r"\bmax_iterations\b", "--max-iterations"),
    (r", resume\(\) the run as it is, or pass compare_inputs=False", ", or resume the run as it is"),
    (r"\bsee history\(\)", "see milepost history"),
    (r"\bresume_from a node\b", "resume --from a node"),
    (r"\bresume_from\b", "resume --from NODE"),
    (r"\bnew_run_id\b", "--as ID"),
    (r"\brun_id\b", "run id"),
)
"""Patterns of the advice in the library's errors, and how to write that advice on the command line."""


def in_options(text: str) -> str:
    """Replace the keyword arguments in a text of the library by options of the command line."""
    if not any(sign in text for sign in "=_("):  # as in most reasons: the patterns take time to compile
        return text
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    return text


def wait_text(wait: Wait) -> str:
    """Describe a wait: its signal or time, and the prompt for the person who sends the signal."""
    until = "" if wait.wake_at is None else f" until {utc(wait.wake_at)}"
    if wait.signal is None:
        return f"its time{until}"
    prompt = wait.prompt if isinstance(wait.prompt, str) else json_text(wait.prompt)
    return f"signal {clean(wait.signal)!r}{until}" + (f": {short(prompt, 200)}" if wait.prompt else "")


def signal_command(run_id: str, wait: Wait, waits: Sequence[Wait], store: Sequence[str] = ()) -> str:
    """Return the command that sends the signal of a wait, ready to type. `waits` are all open waits of the run."""
    is_one_of_many = sum(other.signal == wait.signal for other in waits) > 1
    to = ["--to", wait.wait_id] if is_one_of_many else []
    words = shlex.join(["signal", run_id, str(wait.signal)]), "[JSON]", shlex.join([*to, *store])
    return clean(f"milepost {' '.join(words)}".rstrip())


def wait_document(wait: Wait) -> dict[str, Any]:
    """Return a wait as JSON."""
    return {"wait_id": wait.wait_id, "signal": wait.signal, "prompt": wait.prompt, "wake_at": iso(wait.wake_at)}
