"""The processes of crash tests: how a test starts them, talks with them, freezes and kills them.

There are two kinds. A `Process` is an interpreter of its own that does what it is told, line by line, until it is killed.
`Forks` makes a process for each call of a function, for a tenth of what an interpreter costs. Both say things by `say`,
and note in a `Log` what they execute. Run as a file, this is the process.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

from milepost import END, CompiledGraph, Context, Engine, Graph, MilepostError
from milepost.model.ids import this_process
from milepost.stores.url import open_store

__all__ = ["Call", "Ended", "Forks", "Log", "Process", "calls_of", "die", "die_at", "process", "row", "say"]


# -- in the process ----------------------------------------------------------------------------------------------


def say(*told: Any) -> None:
    """Tell the test something, in one write."""
    os.write(1, json.dumps(told).encode() + b"\n")


def heard() -> None:
    """Block until the test says something; end with the test."""
    if not sys.stdin.readline():
        os._exit(0)


def die() -> None:
    """Be killed at this point."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(moment: int, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, in which this process dies at a moment: 0 is before the call, the last is after it.

    A moment passes with each function, of Python or of C, that is called or returns. If `fn` has fewer it returns, says how
    many there were, and the process dies then; a negative moment never comes.
    """

    def dying(*args: Any, **options: Any) -> Any:
        passed = 0

        def look(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal passed
            if passed == moment:
                die()
            passed += 1

        if moment == 0:
            die()
        sys.setprofile(look)
        try:
            answer = fn(*args, **options)
        finally:
            sys.setprofile(None)
        say("moments", passed)
        if moment >= 0:
            die()
        return answer

    return dying


class Log:
    """A file of lines that several processes append to."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, ctx: Context[Any]) -> None:
        line = json.dumps([os.getpid(), ctx.run_id, ctx.node_id, ctx.visit, ctx.attempt])
        os.write(self._descriptor, line.encode() + b"\n")


def wait_there(node_id: str) -> None:
    """Say where this process is, and go on when it is told to."""
    say("in", node_id)
    heard()


def row(log: Log, act: Callable[[str], object] = wait_there) -> CompiledGraph[list[str]]:
    """Three nodes in a row; each calls `act` with its name, and then adds it."""

    def work(ctx: Context[Any], state: list[str]) -> list[str]:
        log.add(ctx)
        act(ctx.node_id)
        return [*state, ctx.node_id]

    graph = Graph(list[str]).add_node("a", work).add_node("b", work).add_node("c", work)
    return graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile("row")


def obey(url: str, log: str) -> None:
    """Run a verb for each line of standard input, and say how it ended."""
    graph = row(Log(log))
    with open_store(url) as store:
        say("up")
        for line in sys.stdin:
            verb, run_id, options = json.loads(line)
            try:
                if verb == "run":
                    say("done", graph.run([], store=store, run_id=run_id, **options))
                elif verb == "resume":
                    say("done", graph.resume(store, run_id, **options))
                elif verb == "move away":
                    # From now on nobody on this host can tell whether this process lives.
                    this_process().name = "another-boot:1:1:1"
                    say("away")
                else:
                    say("working")
                    Engine(store, flows=[graph]).worker(**options).run()
            except MilepostError as exc:
                say(type(exc).__name__)


def fork() -> None:
    """Call a function in a fork for each line of standard input, and tell how that ended and what it said."""
    for line in sys.stdin:
        module, name, arguments = json.loads(line)
        fn = getattr(importlib.import_module(module), name)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(writer, 1)
            try:
                fn(*arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            told = [json.loads(line) for line in pipe if line.endswith(b"\n")]
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told)


if __name__ == "__main__":
    if sys.argv[1] == "obey":
        obey(*sys.argv[2:])
    else:
        fork()
    sys.exit()


# -- in the test -------------------------------------------------------------------------------------------------


class Process:
    """A process that runs `file` with arguments: this file, if none is given, to obey."""

    def __init__(self, *arguments: str, file: str = __file__) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", file, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pid = self._process.pid

    def tell(self, verb: str = "", run_id: str = "", **options: Any) -> None:
        """Have it run a verb, or go on where it waits."""
        self.write([verb, run_id, options])

    def write(self, line: list[Any]) -> None:
        self._stdin.write(json.dumps(line).encode() + b"\n")
        self._stdin.flush()

    def hear(self) -> list[Any]:
        """What it says next; [] when it has ended."""
        line = self._stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else []

    def rest(self) -> Iterator[list[Any]]:
        """What it says until it ends."""
        while told := self.hear():
            yield told

    def says_nothing_for(self, seconds: float) -> None:
        """Let time pass, until it ends or says something at the latest."""
        select.select([self._stdout], [], [], seconds)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> bool:
        """Kill it; whether it was still alive then."""
        self._process.kill()
        return self._process.wait() == -signal.SIGKILL

    def end(self) -> None:
        self.kill()
        self._stdin.close()
        self._stdout.close()


@contextmanager
def process(*arguments: str, file: str = __file__) -> Iterator[Process]:
    started = Process(*arguments, file=file)
    try:
        yield started
    finally:
        started.end()


class Ended(NamedTuple):
    """How a process ended by itself, or killed, and what it had said by then."""

    was_killed: bool
    told: list[list[Any]]


class Forks:
    """A process that forks itself for each call; use it as a context manager. It opens no store itself."""

    def __init__(self) -> None:
        self._process = Process("fork")

    def call(self, fn: Callable[..., None], *arguments: Any) -> Ended:
        """Call a function of a file beside this one in a new process, with arguments that JSON carries."""
        self._process.write([fn.__module__, fn.__name__, arguments])
        ended, told = self._process.hear()
        assert ended in {0, -signal.SIGKILL}
        return Ended(ended != 0, told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.end()


class Call(NamedTuple):
    """A call of a node that a log tells of."""

    pid: int
    node_id: str
    visit: int


def calls_of(log: str, run_id: str) -> list[Call]:
    """The calls of a run's nodes, in order."""
    lines = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    return [Call(pid, node_id, visit) for pid, run, node_id, visit, _ in lines if run == run_id]
