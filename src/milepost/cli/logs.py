"""The library's log on the command line: warnings of a command in one line each, or the log of a service that runs flows."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TextIO

from milepost.cli.commands import Invocation
from milepost.cli.text import to_json
from milepost.views.text import clean, error_text, iso


def prints_aside(is_json: bool) -> contextlib.AbstractContextManager[object]:
    """Send what nodes print to the standard error while the block lasts, if the standard output has JSON."""
    return contextlib.redirect_stdout(sys.stderr) if is_json else contextlib.nullcontext()


@contextlib.contextmanager
def logging_warnings(is_debug: bool) -> Iterator[None]:
    """Send the library's warnings to the standard error; with `is_debug` its whole log."""
    formatter = logging.Formatter("%(levelname)s: %(message)s") if is_debug else OneLine()
    handler = _Lines(sys.stderr, formatter)
    if not is_debug:
        handler.addFilter(_is_news)
    with _handled_by(handler, logging.DEBUG if is_debug else logging.WARNING):
        yield


@contextlib.contextmanager
def logging_runs(invocation: Invocation) -> Iterator[None]:
    """Log to the standard error: a line for each run that is taken or ends, and all warnings. `--debug` shows everything.

    As JSON the log goes to the standard output, and what nodes print goes to the standard error.
    """
    formatter = _Document() if invocation.is_json else _Timed()
    handler = _Lines(sys.stdout if invocation.is_json else sys.stderr, formatter)
    with prints_aside(invocation.is_json), _handled_by(handler, logging.DEBUG if invocation.is_debug else logging.INFO):
        yield


@contextlib.contextmanager
def _handled_by(handler: logging.Handler, level: int) -> Iterator[None]:
    """Add `handler` to the library's log in place of other handlers of this file. The user's own handlers stay."""
    logger = logging.getLogger("milepost")
    others, before = [other for other in logger.handlers if isinstance(other, _Lines)], logger.level
    for other in others:
        logger.removeHandler(other)
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        for other in others:
            logger.addHandler(other)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a log record is not one of an event, since the command shows events itself."""
    from milepost.model.events import log as log_event  # which most commands need as little as they log

    return record.pathname != log_event.__code__.co_filename


class _Lines(logging.StreamHandler[TextIO]):
    """The handler of the log's lines. It reports no error if the reader has gone or the disk is full."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is that of the standard library
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class OneLine(logging.Formatter):
    """A log record in one line, with its exception but without the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return f"{record.levelname}: {_text(record)}"


class _Timed(logging.Formatter):
    """A log record as a line of a service's log, which begins with the time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{iso(record.created)} {record.levelname.lower()}: {_line_by_line(_text(record))}"


class _Document(logging.Formatter):
    """A log record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "message": _text(record),
            "run_id": getattr(record, "run_id", None),
            "node_id": getattr(record, "node_id", None),
        }
        return to_json(fields, is_line=True)


def _line_by_line(text: str) -> str:
    """Clean a text line by line, so that a traceback keeps its lines."""
    return "\n".join(map(clean, text.split("\n")))


def _text(record: logging.LogRecord) -> str:
    exc = record.exc_info[1] if record.exc_info else None
    message = record.getMessage()
    return message if exc is None else f"{message}: {error_text(exc)} (--debug shows where)"
