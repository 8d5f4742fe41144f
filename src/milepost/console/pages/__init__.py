"""The pages: each is a function that reads the store and returns a template's name and its values.

The values are plain JSON, and are the page's answer to programs too. Times are ISO 8601 in UTC. Templates have these
besides: `title`, `base`, `here` (the page's own path), `query` (its filters), `mark` (a digest of the values: with
`?part=BLOCK&mark=MARK` a block is asked for again, and 204 says that nothing has changed), `navigation` (`title`, `href`,
`is_current`), `page` (the page's name), `store.place`, `user`, `is_read_only`; the functions `link(segment, ..., name=value)`
and `static(file)`; the module `parts` of `_parts.html`; and the filters of `answers.environment`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from milepost.console.answers import Page
from milepost.console.pages.run import show_run
from milepost.console.pages.runs import list_runs
from milepost.console.site import Asked, Site

HANDLERS: Mapping[str, Callable[[Site, Asked], Page]] = {"home": list_runs, "run": show_run, "runs": list_runs}
"""The function of each page, by its name in `routes.PAGES`."""
