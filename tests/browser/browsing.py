"""What tests need to look at a console in a browser."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page

CHROMIUM = Path(os.environ.get("MILEPOST_TEST_CHROMIUM", "/usr/bin/chromium"))
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

Open = Callable[..., "Page"]


def is_error(message: ConsoleMessage) -> bool:
    """Whether a page has logged an error. Pages that say 404 or 503 are none."""
    is_answer = message.text.startswith("Failed to load resource") and "/static/" not in message.location["url"]
    return message.type == "error" and not is_answer


def apart(function: Callable[[], Any]) -> Any:
    """Call a function in another thread, where it may run an event loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


@contextmanager
def served(application: Any) -> Iterator[str]:
    """Serve an application in a thread, and yield its address."""
    import uvicorn

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
