"""The calls of pages and actions in a thread, with every error of the library as a page that says what happened."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from milepost.console.actions import ACTIONS
from milepost.console.answers import Page
from milepost.console.page_errors import AnswerRefusedError, PageError
from milepost.console.pages import HANDLERS
from milepost.console.pages.record import export_of, state_to_download
from milepost.console.pages.run import show_run
from milepost.console.site import Asked, Site
from milepost.errors import (
    InvalidIDError,
    MilepostError,
    NotAuthorizedError,
    OptionError,
    RunNotFoundError,
    StoreClosedError,
    StoreError,
)
from milepost.views.runs import near_ids
from milepost.views.text import clean


def make_page(site: Site, name: str, asked: Asked) -> Page:
    """Make a page. Raises `PageError` if it can't be shown."""
    with as_page_errors(site):
        return HANDLERS[name](site, asked)


def make_download(site: Site, name: str, asked: Asked) -> tuple[str, bytes]:
    """Return the name and the bytes of a file: what a record holds, or all of a run."""
    with as_page_errors(site):
        return export_of(site, asked) if name == "export" else state_to_download(site, asked)


def perform_action(site: Site, name: str, asked: Asked) -> str | Page:
    """Do an action on one run; return the run to look at then. A refused answer comes back as the page with its form."""
    with as_page_errors(site):
        try:
            if name == "fork" and asked.text("check"):
                return HANDLERS["fork"](site, asked)
            return ACTIONS[name].act(site, asked)
        except AnswerRefusedError as refused:
            return show_run(site, asked, refused=refused, status=422)


@contextmanager
def as_page_errors(site: Site) -> Iterator[None]:
    """Turn every error of the library into the page that says what happened."""
    try:
        yield
    except RunNotFoundError as exc:
        raise _no_run(site, exc.run_id or "") from exc
    except NotAuthorizedError as exc:
        raise PageError(403, "Not allowed", clean(exc)) from exc
    except (StoreError, StoreClosedError) as exc:
        if getattr(exc, "is_of_one_run", False):
            raise PageError(409, "It can't be read", clean(exc)) from exc
        logging.getLogger("milepost").warning("the console can't reach its store: %s", exc)
        raise PageError(503, "The store does not answer", clean(exc), is_temporary=True) from exc
    except (InvalidIDError, OptionError) as exc:
        raise PageError(400, "That makes no sense", clean(exc)) from exc
    except MilepostError as exc:
        raise PageError(409, "It was refused", clean(exc)) from exc


def _no_run(site: Site, run_id: str) -> PageError:
    """Make the page for a run that is not there, with ids that may have been meant."""
    try:
        near = near_ids(site.store, run_id)
    except MilepostError:
        near = []
    return PageError(404, "No such run", f"there is no run {run_id!r} in {site.store.place}", run_id=run_id, near=near)
