"""A browser without a window, consoles that it looks at, and pages that must log no error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from browsing import CHROMIUM, FLAGS, Open, is_error, served

from offspring import lasting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from milepost import Engine


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of a module's tests. While it is there no other event loop can run in this thread."""
    play = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"chromium is not installed: there is no {CHROMIUM}")
    with lasting(), play.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open pages: at an address, with options of a browser context. None of them may log an error or break the CSP."""
    contexts, errors = [], []

    def open_page(address: str, *, width: int = 1280, height: int = 900, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: errors.append(message.text) if is_error(message) else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors


@pytest.fixture
def serve() -> Iterator[Callable[[Engine], str]]:
    """Serve consoles of engines: bea is who asks, and may do everything."""
    from contextlib import ExitStack

    from milepost.console import console

    with ExitStack() as stack:

        def serve(engine: Engine) -> str:
            made = console(engine, user=lambda request: "bea", write=lambda user, action, run_id: True)
            return stack.enter_context(served(made))

        yield serve
