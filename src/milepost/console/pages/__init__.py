"""The pages: each is a function that reads the store and returns a template's name and its values.

The values are plain JSON, and are the page's answer to programs too. Times are ISO 8601 in UTC. Templates have these
besides: `title`, `base`, `here` (the page's own path), `query` (its filters), `mark` (a digest of the values: with
`?part=BLOCK&mark=MARK` a block is asked for again, and 204 says that nothing has changed), `navigation` (`title`, `href`,
`is_current`), `page` (the page's name), `store.place`, `user`, `is_read_only`, `new_id` (a random id for a form); the
functions `link(segment, ..., name=value)` and `static(file)`; the module `parts` of `_parts.html`; and the filters of
`answers.environment`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from milepost.console import bulk
from milepost.console.answers import Page
from milepost.console.pages.flows import list_flows, show_flow
from milepost.console.pages.fork import confirm_one, show_fork, show_plan
from milepost.console.pages.home import show_home
from milepost.console.pages.record import show_record
from milepost.console.pages.run import show_run
from milepost.console.pages.runs import list_runs
from milepost.console.pages.store import show_store
from milepost.console.pages.waits import list_waits
from milepost.console.pages.workers import list_workers
from milepost.console.site import Asked, Site

HANDLERS: Mapping[str, Callable[[Site, Asked], Page]] = {
    "home": show_home,
    "runs": list_runs,
    "run": show_run,
    "record": show_record,
    "fork": show_fork,
    "plan": show_plan,
    "confirm-cancel": lambda site, asked: confirm_one(site, asked, "cancel"),
    "confirm-delete": lambda site, asked: confirm_one(site, asked, "delete"),
    "confirm-bulk": bulk.confirm,
    "waits": list_waits,
    "workers": list_workers,
    "flows": list_flows,
    "flow": show_flow,
    "store": show_store,
}
"""The function of each page, by its name in `routes.PAGES`."""
