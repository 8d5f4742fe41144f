"""The console: web pages of a store's runs, drawn by the server, and the engine's verbs as buttons.

It executes no run. It stands on `views` and on what an engine and a store offer to everybody. Its packages (Starlette,
Jinja2, uvicorn) are the extra `console`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from milepost.errors import MissingExtraError, no_attribute

if TYPE_CHECKING:
    from milepost.console.app import Console, console

__all__ = ["Console", "console"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise no_attribute(sys.modules[__name__], name)
    try:
        from milepost.console import app
    except ImportError as exc:
        if exc.name is None or exc.name.partition(".")[0] not in {"jinja2", "starlette"}:
            raise
        missing = MissingExtraError(f"the console needs {exc.name}: pip install 'milepost[console]'", extra="console")
        raise missing.as_attribute() from exc
    return getattr(app, name)
