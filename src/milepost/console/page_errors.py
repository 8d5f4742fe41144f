"""The errors that the console answers instead of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PageError(Exception):
    """The reason why a page can't be shown, or an action can't be done: a status of HTTP, a title, and one sentence.

    `more` are further values for the page, such as the ids of runs that may have been meant.
    """

    def __init__(self, status: int, title: str, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.title, self.text, self.more = status, title, text, more


class AnswerRefusedError(Exception):
    """An answer that the run would not take: the wait, the reason, and the inputs whose text is wrong, by name."""

    def __init__(self, wait_id: str, text: str, errors: Mapping[str, str]) -> None:
        super().__init__(text)
        self.wait_id, self.text, self.errors = wait_id, text, errors
