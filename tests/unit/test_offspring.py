"""Processes that tests start end with them, and with pytest."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of other processes")

# A child in a session of its own with a child of its own, and a fork; both are to outlive whoever started them.
SOURCE = """
import os, signal, subprocess, sys
from offspring import Offspring

offspring = Offspring()
offspring.begin()
with offspring.of_a_test():
    code = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    pids = [child.pid, int(child.stdout.readline())]
    if (fork := os.fork()) == 0:
        signal.pause()
    print(*pids, fork, flush=True)
    sys.stdin.read()
"""

# What pytest-xdist does: one pytest starts others, which run the tests.
OUTER = """
import subprocess, sys
from offspring import Offspring

Offspring().begin()
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""


@pytest.mark.parametrize("words", [[SOURCE], [OUTER, SOURCE]], ids=["pytest", "pytest of others"])
def test_what_a_pytest_has_started_is_gone_after_it_is_killed(words: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        descriptors = [os.pidfd_open(int(pid)) for pid in process.stdout.readline().split()]
        assert 3 == len(descriptors)
        process.send_signal(signal.SIGKILL)
    for descriptor in descriptors:
        with open(descriptor):
            assert select.select([descriptor], [], [], 100)[0]
