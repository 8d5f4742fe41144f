"""Other processes in tests: each runs lines of Python from the test, and answers each with one line.

A child is a real interpreter, so that it can be killed, frozen and forked. Test and child talk through pipes: `tell`
sends source and waits for its answer; `begin` and `answer` are its two halves, for several children at once.

Run as a module, this file is the child.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

__all__ = ["Child", "forked"]


class Child:
    """A Python process that the test commands. Use it as a context manager, or `kill` it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # Python 3.12 and later warn of a fork beside threads, which some tests do on purpose.
            [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "milepost.testing.children"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def tell(self, source: str, **values: Any) -> Any:
        """Run `source` and return the value that it bound to `answer`; see `begin`."""
        self.begin(source, **values)
        return self.answer()

    def begin(self, source: str, **values: Any) -> None:
        """Send `source`. `values` (JSON) are names in it. Names that earlier sources bound are still there."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([source, values]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the value that the oldest source without an answer bound to `answer` (JSON), or None.

        Raise RuntimeError, with the type and text of the exception, if it raised, or if the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the child ended with {self._process.wait()} and no answer")
        answer, problem = json.loads(line)
        if problem:
            raise RuntimeError(problem)
        return answer

    def freeze(self) -> None:
        """Stop the process at once, by SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process by SIGKILL and wait until it is gone. Another call is no error."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


def forked(fn: Callable[[], Any]) -> Any:
    """Call `fn` in a fork of this process and return its result (JSON). Raise RuntimeError if it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, _outcome(fn).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    answer, problem = json.loads(text or '[null, "the fork ended with no answer"]')
    if problem:
        raise RuntimeError(problem)
    return answer


def _outcome(fn: Callable[[], Any]) -> str:
    try:
        return json.dumps([fn(), ""])
    except Exception as exc:
        return json.dumps([None, f"{type(exc).__name__}: {exc}"])


def main() -> None:
    """Answer each line of stdin until it ends."""
    names: dict[str, Any] = {"forked": forked}
    exec("from milepost.testing.journals import *", names)  # noqa: S102  # the sources use these names
    for line in sys.stdin:
        source, values = json.loads(line)
        names.update(values, answer=None)
        print(_outcome(partial(_run, source, names)), flush=True)


def _run(source: str, names: dict[str, Any]) -> Any:
    exec(source, names)  # noqa: S102  # the test's own code is what this process is for
    return names["answer"]


if __name__ == "__main__":
    main()
