"""Processes by name, so that the end of an owner on this host is noticed at once; and new ids."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from milepost.model.ids import is_gone, new_nonce, new_run_id, this_process
from milepost.testing.tables import for_each

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of other processes")


def named(pid: int | str, started: str | None = None) -> str:
    """The name of a process on this host."""
    host, _, _ = this_process().name.rpartition(":")[0].rpartition(":")
    return f"{host}:{pid}:{this_process().name.rpartition(':')[2] if started is None else started}"


def test_a_process_that_runs_is_not_gone() -> None:
    assert not is_gone(this_process().name)


def test_another_start_time_is_another_process() -> None:
    assert is_gone(named(os.getpid(), "1"))


def test_a_process_that_has_ended_is_gone() -> None:
    code = "import milepost.model.ids as p; print(p.this_process().name, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        name = child.stdout.readline().strip()
        assert not is_gone(name)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(name), "what is left of a process that nobody has waited for counts as gone"
        child.wait()
    assert is_gone(name)


@for_each(
    "name",
    [
        "",
        "x",
        ":",
        "host::12:",
        "other-boot:4026531836:1:5",
        named(os.getpid(), ""),
        named("", "5"),
        named("pid", "5"),
        named("-1", "5"),
    ],
)
def test_of_a_name_that_tells_too_little_nothing_is_claimed(name: str) -> None:
    assert not is_gone(name)


def test_a_pid_that_never_was_is_gone() -> None:
    assert is_gone(named(2**22 + 1, "5"))
    assert is_gone(named(10**30, "5"))


def test_a_forked_child_is_another_process() -> None:
    code = (
        "import os, milepost.model.ids as p\n"
        "before = p.this_process()\n"
        "if os.fork() == 0:\n"
        "    now = p.this_process()\n"
        "    os._exit(0 if now.key != before.key and now.pid == os.getpid() and now.name != before.name else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_run_ids_are_uuids_that_sort_by_time() -> None:
    made = [new_run_id(1_767_225_600.0 + n) for n in range(50)]
    assert made == sorted(made)
    assert {(7, uuid.RFC_4122)} == {(uuid.UUID(run_id).version, uuid.UUID(run_id).variant) for run_id in made}
    assert 1_767_225_600_000 == uuid.UUID(made[0]).int >> 80
    assert made[0] != new_run_id(1_767_225_600.0)


def test_nonces_are_never_the_same() -> None:
    assert 100 == len({new_nonce() for _ in range(100)})
    assert {32} == {len(new_nonce()) for _ in range(10)}
