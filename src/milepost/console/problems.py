"""The error that the console answers instead of a page."""

from __future__ import annotations

from typing import Any


class Problem(Exception):
    """The reason why a page can't be shown, or an action can't be done: a status of HTTP, a title, and one sentence.

    `more` are further values for the page, such as the ids of runs that may have been meant.
    """

    def __init__(self, status: int, title: str, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.title, self.text, self.more = status, title, text, more
