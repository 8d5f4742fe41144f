"""The processes that a test has started, and their end: with the test at the latest, also where the test or pytest dies.

Whatever is started inherits the environment, and with it the mark of the test; so does what that starts in turn. At the end of
a test all processes that have its mark are gone, or are killed and the test has failed. A watcher, which is a process of its
own, holds one end of a pipe. When pytest ends or dies it kills all processes that have a mark of that pytest. A fork that
executes nothing else keeps the environment with which pytest began, without a mark; it dies with pytest by itself.

Only Linux tells of other processes what this needs. Elsewhere nothing here does anything.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Offspring", "lasting"]

MARK = "MILEPOST_TEST_OFFSPRING"
LASTING = "lasting"
"""The mark of what ends with pytest by a way of its own."""
SECONDS = 20
"""How long a process may take to end that has been told to."""
POOLED = (b"multiprocessing", b"loky")
"""What the command lines have of workers of pools, which tests share and which their modules close, and of their trackers."""
PR_SET_PDEATHSIG = 1

WATCHER = """
import os, pathlib, signal, sys, time
mark = sys.argv[1].encode()
sys.stdin.read()
found = time.monotonic()
# A process in the middle of an exec shows no environment for a moment, so look for some time after the last one.
while time.monotonic() - found < 0.5:
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes():
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = time.monotonic()
        except OSError:
            pass
    time.sleep(0.02)
"""


class Offspring:
    """The processes of one pytest."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._tests = 0
        self._has_started = False
        self._watcher: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Mark what is started from now on, and have it die with this process."""
        if not sys.platform.startswith("linux"):
            return
        mark = f"{MARK}={self._token}."
        # Without the mark of a pytest that has started this one, whose watcher would kill this watcher too.
        others = {name: value for name, value in os.environ.items() if name != MARK}
        self._watcher = subprocess.Popen(
            [sys.executable, "-S", "-c", WATCHER, mark], stdin=subprocess.PIPE, start_new_session=True, env=others
        )
        os.environ[MARK] = f"{self._token}.0"
        libc, pipe, forking = ctypes.CDLL(None), self._watcher.stdin, [os.getpid()]
        assert pipe is not None

        def note_parent() -> None:
            forking[0] = os.getpid()

        def die_with_parent() -> None:
            pipe.close()  # held open here, it would keep the watcher from hearing that the parent is dead
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != forking[0]:
                os._exit(1)  # the parent died before this process could ask to die with it

        os.register_at_fork(before=note_parent, after_in_child=die_with_parent)
        sys.addaudithook(self._note)

    def end(self) -> None:
        """Kill whatever is left, and wait until it is gone."""
        if self._watcher is not None:
            assert self._watcher.stdin is not None
            self._watcher.stdin.close()
            self._watcher.wait()

    def _note(self, event: str, arguments: object) -> None:
        if event in {"subprocess.Popen", "os.fork"}:
            self._has_started = True

    @contextmanager
    def of_a_test(self) -> Iterator[None]:
        """Have what is started in the block end with it. AssertionError, naming them, if processes had to be killed."""
        self._tests += 1
        self._has_started = False
        with self._marking(f"{self._token}.{self._tests}") as mark:
            yield
        left = self._left(mark) if self._watcher is not None and self._has_started else {}
        killed = [told for pid, told in left.items() if not _ends(pid)]
        assert not killed, f"the test left processes, which were killed: {killed}"

    @contextmanager
    def of_more_tests(self) -> Iterator[None]:
        """Have what is started in the block go on when the test ends."""
        with self._marking(f"{self._token}.0"):
            yield

    @contextmanager
    def _marking(self, value: str) -> Iterator[bytes]:
        before = os.environ.get(MARK)
        if self._watcher is not None:
            os.environ[MARK] = value
        try:
            yield f"{MARK}={value}\0".encode()
        finally:
            if before is not None:
                os.environ[MARK] = before

    def _left(self, mark: bytes) -> dict[int, str]:
        """The processes of a test, with their command lines: those with its mark, and forks of this process."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                environ, command = (entry / "environ").read_bytes() + b"\0", (entry / "cmdline").read_bytes()
                is_fork = int(parent) == os.getpid() and f"{MARK}=".encode() not in environ
                is_pooled = int(parent) == os.getpid() and any(word in command for word in POOLED)
                if state not in "ZX" and not is_pooled and (mark in environ or is_fork):
                    found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")[:200]
        if self._watcher is not None:
            found.pop(self._watcher.pid, None)
        return found


@contextmanager
def lasting() -> Iterator[None]:
    """Have what is started in the block end with pytest by a way of its own."""
    before = os.environ.get(MARK)
    os.environ[MARK] = LASTING
    try:
        yield
    finally:
        os.environ.pop(MARK)
        if before is not None:
            os.environ[MARK] = before


def _ends(pid: int) -> bool:
    """Whether a process ends by itself; it is killed otherwise."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(descriptor):
        if select.select([descriptor], [], [], SECONDS)[0]:
            return True
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], SECONDS)
        return False
