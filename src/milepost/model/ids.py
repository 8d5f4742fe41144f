"""Run ids, nonces, the clock and the identity of this process: all that differs from one call to the next."""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

# -- New run ids and nonces: the only place where the library draws real randomness ----------------
#
# Source: for the layout of a run id, RFC 9562 (UUID version 7): 48 bits of milliseconds, then random bits, so that ids
# made later sort later.


def new_run_id(seconds: float) -> str:
    """Make a UUIDv7 for a run that begins at this POSIX time."""
    value = (int(seconds * 1000) & ((1 << 48) - 1)) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return str(uuid.UUID(int=value))


def new_nonce() -> str:
    """Make 128 random bits, as hex text."""
    return os.urandom(16).hex()


# -- The library's only source of time. It is passed in, so that tests can replace it --------------


@runtime_checkable
class Clock(Protocol):
    """The interface that engines and stores ask for the time. `milepost.testing.FakeClock` implements it too."""

    def time(self) -> float:
        """Return POSIX seconds; they may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back; they can be compared within this process only."""
        ...

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Block until `wake` is set (True) or `seconds` have passed (False)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass without blocking the event loop."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    # Each node asks for the time several times, so these are the interpreter's own functions without a wrapper.
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Block until `wake` is set or `seconds` have passed."""
        return wake.wait(min(seconds, threading.TIMEOUT_MAX))

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        import asyncio  # whoever awaits this has imported it already

        await asyncio.sleep(seconds)


SYSTEM = SystemClock()


# The identity of this process, by which others on this host notice at once that an owner has ended.
#
# The name of a process has its boot, its pid namespace, its pid and its start time: together they are never used
# twice, while a pid alone is. Where the system does not give them (outside Linux), nothing is known of other
# processes, and only the end of a lease frees a run.


class Process:
    """One process. `name` is written to run rows; `key` is new in every process, forked children included.

    `host` is the boot and pid namespace of the process, or "" where the system does not give them. It never changes:
    only children of the process can enter another namespace.
    """

    __slots__ = ("host", "key", "name", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.key = os.urandom(8).hex()
        started = _own_start_time(self.pid)
        self.host = _host()
        is_told = self.host and started
        self.name = f"{self.host}:{self.pid}:{started}" if is_told else f"{platform.node()}::{self.pid}:"


def this_process() -> Process:
    """Return the calling process; a forked child gets another object."""
    return _current


def is_gone(name: str) -> bool:
    """Return whether the process called `name` was on this host and has ended; False if that is unknown."""
    host, _, rest = name.rpartition(":")[0].rpartition(":")
    started = name.rpartition(":")[2]
    if not rest.isdecimal() or not started or not host or host != _current.host:
        return False
    try:
        began = _start_time(int(rest))
    except OSError:  # such as no free descriptor, which says nothing about the process
        return False
    # Where /proc hides the processes of other users, a process that is missing there may still be alive.
    return began != started and (began != "" or not _is_hidden(int(rest)))


def describe_owner(name: str) -> str:
    """Describe the process called `name` for people: by its pid if it runs on this machine."""
    host, _, rest = name.rpartition(":")[0].rpartition(":")
    if not host or not rest.isdecimal():
        return f"owner {name!r}"
    here = _current.host
    if host == (here or f"{platform.node()}:"):
        return f"process {rest} on this machine"
    if here and host.partition(":")[0] == here.partition(":")[0]:
        return "a process in another container on this machine"
    return "a process on another machine"


def _host() -> str:
    """Return the value of `Process.host`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid').strip('pid:[]')}"
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return the start time of `pid` in clock ticks since boot; "" if there is no such process, or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError):
        return ""
    # The command name is in parentheses and may itself have spaces and parentheses. Field 22 is counted from its end.
    fields = stat.rpartition(b")")[2].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _own_start_time(pid: int) -> str:
    """Return `_start_time` of this process; "" where the system does not give it."""
    try:
        return _start_time(pid)
    except OSError:
        return ""


def _is_hidden(pid: int) -> bool:
    """Return whether there is a process `pid` of another user, which this one may not inspect."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    # It is of the same user, so /proc has said all there is to know: the process is a zombie.
    return False


_current = Process()


T = TypeVar("T", bound=Callable[[], Any])


def in_forked_child(call: T) -> T:
    """Call this function in the child of each fork, where the system has forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
    return call


@in_forked_child
def _after_fork() -> None:
    global _current
    _current = Process()
