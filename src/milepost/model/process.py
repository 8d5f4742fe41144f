"""The identity of this process, by which others on this host notice at once that an owner has ended.

The name of a process has its boot, its pid namespace, its pid and its start time: together they are never used
twice, while a pid alone is. Where the system does not give them (outside Linux), nothing is known of other
processes, and only the end of a lease frees a run.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["Process", "describe_owner", "is_gone", "this_process"]


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
        found = _start_time(int(rest))
    except OSError:  # such as no free descriptor, which says nothing about the process
        return False
    # Where /proc hides the processes of other users, a process that is missing there may still be alive.
    return found != started and (found != "" or not _is_hidden(int(rest)))


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
        stat = Path(f"/proc/{pid}/stat").read_bytes()
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


def _after_fork() -> None:
    global _current
    _current = Process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
