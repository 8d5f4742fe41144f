"""Who this process is, so that the end of an owner on this host is noticed at once.

A process is named by the boot it runs under, its pid namespace, its pid and its start time: together they are
never used twice, while a pid alone is. Where the system does not tell these (outside Linux) nothing is known of
other processes, and only the end of a lease frees a run.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["Process", "describe_owner", "is_gone", "this_process"]


class Process:
    """One process. `name` goes into run rows; `key` is new in every process, forked children included.

    `host` is the boot and pid namespace that it lives in, or "" where the system does not tell. It never leaves
    them: to enter another namespace is for its children.
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
    """The process that calls; another object in a forked child."""
    return _current


def is_gone(name: str) -> bool:
    """Whether the process called `name` was on this host and has ended. False when that cannot be told."""
    host, _, rest = name.rpartition(":")[0].rpartition(":")
    started = name.rpartition(":")[2]
    if not rest.isdecimal() or not started or not host or host != _current.host:
        return False
    try:
        found = _start_time(int(rest))
    except OSError:  # no descriptor is left, say: that tells nothing of the process
        return False
    # Where /proc hides the processes of other users, one that is not found there may live all the same.
    return found != started and (found != "" or not _is_hidden(int(rest)))


def describe_owner(name: str) -> str:
    """The process called `name`, for people: by its pid where that means something on this machine."""
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
    """See `Process.host`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid').strip('pid:[]')}"
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """When `pid` started, in clock ticks since boot; "" if there is no such process, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError):
        return ""
    # The command name, in parentheses, may itself hold spaces and parentheses. Field 22 counts from its end.
    fields = stat.rpartition(b")")[2].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _own_start_time(pid: int) -> str:
    """`_start_time` of the process that asks; "" where the system does not tell."""
    try:
        return _start_time(pid)
    except OSError:
        return ""


def _is_hidden(pid: int) -> bool:
    """Whether there is a process `pid` of another user, which this one may not look at."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    # It is ours, so what /proc told of it is all there is: its remains.
    return False


_current = Process()


def _after_fork() -> None:
    global _current
    _current = Process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
