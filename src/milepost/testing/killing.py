"""Crash tests with real processes: each child works on the run until SIGKILL ends it at a write, and another goes on.

A child works on a real store, and nothing that lives in memory outlives it. Its time is a `FakeClock`: timers pass at
once. It begins at the time of the newest record, so a crash takes no time, and a dead child's lease is over at once.
What a child observes it writes down before it goes on: calls in a log, the end of the run as its result.

Children are forks of a nursery: a process that has imported this library, and nothing of the user's. So a child costs
milliseconds and imports the user's code itself. Each hash seed has a nursery of its own.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from milepost.errors import OptionError, RunLockedError, RunSuspended
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Ask, Call, Effect, Write
from milepost.model.ids import Clock
from milepost.options import merge_options
from milepost.store import Store
from milepost.stores.file.store import FileStore
from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing.scenarios import RUN_ID, Crash, Machine, Output, Problem, Scenario, Subject, name_of, why

__all__ = ["ChildRuns", "UndisturbedRunError", "UsageOfChildError", "failure_text", "serve", "work"]

StoreKind = Literal["sqlite", "file"]


class UndisturbedRunError(Exception):
    """The error of an undisturbed run that a child could not bring to its end."""


class UsageOfChildError(Exception):
    """The error of a child that was given a wrong input or a probe that fails."""


# -- In the child ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Mortal(Scenario):
    """A scenario whose process dies by SIGKILL, at a write."""

    log: int = -1
    """The descriptor of the log. What was written to it outlives the process."""

    def can_die_at(self, effect: Effect) -> bool:
        return isinstance(effect, Write) or (isinstance(effect, Ask) and effect.method == "create")

    def meet(self, effect: Effect) -> Crash | None:
        # Not `super()`, which the copy of a class that `slots=True` makes does not know.
        crash = Scenario.meet(self, effect)
        if crash is not None:
            self._tell(died=self.died[-1])
        return crash

    def note_call(self, call: Call) -> None:
        if call.context is not None:
            visit = [call.context.node_id, call.context.visit] if call.announce is not None else None
            self._tell(name=name_of(call), visit=visit)
        Scenario.note_call(self, call)

    def end_process(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _tell(self, **said: Any) -> None:
        os.write(self.log, json.dumps(said).encode() + b"\n")


def work(task: Mapping[str, Any], make: Callable[[Callable[[Clock], Store]], Subject]) -> None:
    """Work on the run that `task` describes until it ends, or until this process dies. Write the result to its file.

    `make` makes the subject, whose store is opened by the function that it is given.
    """
    result: dict[str, Any] = {}
    try:
        result = _work(task, make)
    except Exception as exc:
        is_usage = isinstance(exc, OptionError) or getattr(exc, "exit_code", 1) == 2
        result = {"error": str(exc) if is_usage else failure_text(exc), "is_usage": is_usage}
    made = Path(task["result"] + ".new")
    made.write_text(json.dumps(result), encoding="utf-8")
    made.rename(task["result"])


def _work(task: Mapping[str, Any], make: Callable[[Callable[[Clock], Store]], Subject]) -> dict[str, Any]:
    path = Path(task["store"])
    subject = make(
        lambda clock: (
            SQLiteStore(path, durability="normal", clock=clock) if path.suffix else FileStore(path, clock=clock)
        )
    )
    if task["is_first"] and subject.before is not None:
        subject.before()
    scenario = _Mortal([Crash(*task["crash"])] if task["crash"] is not None else [])
    scenario.log = os.open(task["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Machine(subject.open_store) as machine:
        request = ResumeRequest() if machine.epoch else None
        if request is not None:
            scenario.note_records(machine.store.read(RUN_ID))
            machine.clock.set(machine.store.get_run(RUN_ID).info.updated_at)
        try:
            subject.live(machine, scenario, request)
        except RunLockedError:  # where nothing is known of other processes, only the end of a lease frees a run
            machine.clock.advance(merge_options({}, subject.options).lease + 1)
            subject.live(machine, scenario, request)
        scenario.read(machine.store, subject.flow)
    return {
        "status": scenario.status,
        "data": scenario.data.decode(),
        "visits": scenario.visits,
        "outputs": [_output_as_json(output) for output in scenario.outputs],
        "is_in_line": scenario.is_in_line,
        "effects": scenario.effects,
        "signals": sorted(scenario.signals),
        "world": subject.look(),
    }


def failure_text(error: Exception) -> str:
    """Describe the error that has kept an undisturbed run from its end, after "undisturbed"."""
    if not isinstance(error, RunSuspended):
        return why(error)
    waits = ", ".join(f"signal {wait.signal!r} at {wait.wait_id!r}" for wait in error.waiting_for if wait.signal)
    refused = [note for note in getattr(error, "__notes__", ()) if "is refused" in note]
    if refused:
        return f"it waits for {waits}: {refused[0]}"
    return f"it waits for {waits or 'a time without end'}, which nobody sends: give signals="


def _output_as_json(output: Output) -> list[Any]:
    arguments, data = output.value
    return [*output[:5], arguments, None if data is None else data.decode()]


def _output_of(told: Sequence[Any]) -> Output:
    node_id, visit, kind, branch, way, arguments, data = told
    return Output(node_id, visit, kind, branch, way, (arguments, None if data is None else data.encode()))


# -- In the nursery ----------------------------------------------------------------------------------------


def serve(timeout: float, child: Callable[[str], None]) -> None:
    """Fork a child for each path in the standard input, and answer with its exit code; null if it took too long.

    A child returns too, after `child` has got the path, and ends like any process. Where the system has no forks, the
    nursery is its own child. SIGINT ends the nursery, and with it the child that works.
    """
    gc.freeze()  # a child that ends walks over nothing of what it shares with the nursery
    with suppress(KeyboardInterrupt):
        for line in sys.stdin:
            path = line.strip()
            if not hasattr(os, "fork"):
                child(path)
                print(0, flush=True)
                return
            pid = os.fork()
            if pid == 0:
                os.setsid()
                _redirect(Path(path).with_name("output"))
                child(path)
                return
            print(json.dumps(_code_of(pid, timeout)), flush=True)


def _redirect(output: Path) -> None:
    """Give the standard streams of this process to a file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor, stream in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(descriptor, stream)


def _code_of(pid: int, timeout: float) -> int | None:
    """Return the exit code of a child; None if it was killed because it took longer than `timeout` seconds."""
    ends = time.monotonic() + timeout
    has_ended, status = 0, 0
    try:
        while not has_ended and time.monotonic() < ends:
            has_ended, status = os.waitpid(pid, os.WNOHANG)
            if not has_ended:
                time.sleep(0.002)
    finally:
        with suppress(ProcessLookupError, PermissionError):  # the child's own children end with it
            os.killpg(pid, signal.SIGKILL)
    if has_ended:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(pid, 0)
    return None


# -- In the test -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ChildRuns:
    """A way to run the flow under test: in children, on a store in a folder of their own."""

    command: Sequence[str]
    """The command of a nursery, which calls `serve`."""
    task: Mapping[str, Any]
    """The facts about the flow that a child needs, as JSON."""
    folder: Path
    kind: StoreKind = "sqlite"
    before: object = None
    world: object = None
    """The names of the functions that children call before and after a run; None: there is none."""
    check_world: Callable[[Any], object] = field(default=lambda world: None)
    """A function that is given the world after each undisturbed run."""
    _nurseries: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def signals(self) -> Mapping[str, Any] | None:
        """The signals that answer waits, by name."""
        signals: Mapping[str, Any] | None = self.task.get("signals")
        return signals

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for nursery in self._nurseries.values():
            with nursery:  # closes the pipes, and waits
                nursery.send_signal(signal.SIGINT)

    def play(self, crashes: tuple[Crash, ...], hash_seed: int = 1) -> Scenario:
        """Run the flow from its beginning in children, with these crashes. An error of an undisturbed run is raised."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        scenario = Scenario(list(crashes))
        is_first = True
        while True:
            ended = self._child(scenario, hash_seed, is_first=is_first)
            if ended is not None:
                break
            is_first = False
        problem = ended.get("error")
        if problem is None:
            _take(scenario, ended)
        elif not scenario.died or ended["is_usage"]:
            raise (UsageOfChildError if ended["is_usage"] else UndisturbedRunError)(problem)
        else:
            scenario.error = Problem(problem)
        if not crashes:
            self.check_world(scenario.world)
        return scenario

    def moments(self, undisturbed: Scenario) -> int:
        """Return the number of writes at which a child can die."""
        return len(undisturbed.effects)

    def _child(self, scenario: Scenario, hash_seed: int, *, is_first: bool) -> dict[str, Any] | None:
        """Let a child work. Return its result, or None if it died where it had to."""
        task, log, result = (self.folder / name for name in ("task.json", "log.jsonl", "result.json"))
        store = self.folder / ("runs.db" if self.kind == "sqlite" else "runs")
        paths = {"store": str(store), "log": str(log), "result": str(result)}
        crash = scenario.to_come[0] if scenario.to_come else None
        task.write_text(json.dumps({**self.task, **paths, "crash": crash, "is_first": is_first}), encoding="utf-8")
        known = log.stat().st_size if log.exists() else 0
        code = self._ask(task, hash_seed)
        died = _read(scenario, log, known)
        if code is None:
            where = f"{_last_called(log)!r} was called last" if scenario.called else "no node was called"
            return {"error": f"the run has not ended within --timeout: {where}", "is_usage": False}
        if result.exists():
            ended: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return ended
        if died is not None and code == -signal.SIGKILL:
            scenario.to_come.pop(0)
            scenario.died.append(died)
            return None
        output = self.folder / "output"
        said = output.read_text(encoding="utf-8", errors="replace").strip().splitlines() if output.exists() else []
        last_line = f": {said[-1]}" if said else ""
        return {"error": f"the process ended by itself with exit code {code}{last_line}", "is_usage": False}

    def _ask(self, task: Path, hash_seed: int) -> int | None:
        """Let a child do a task. Return its exit code; None if it took too long."""
        nursery = self._nurseries.get(hash_seed)
        if nursery is None or nursery.poll() is not None:
            environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
            nursery = subprocess.Popen(  # noqa: S603  # the caller's own interpreter
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            self._nurseries[hash_seed] = nursery
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(f"{task}\n")
        nursery.stdin.flush()
        answer = nursery.stdout.readline()
        code: int | None = json.loads(answer) if answer else nursery.wait()
        return code


def _read(scenario: Scenario, log: Path, known: int) -> str | None:
    """Note what a child has logged. Return where it died; None if it has not reached that."""
    died = None
    scenario.first_after = None
    for said in _lines(log, known):
        if "died" in said:
            died = said["died"]
            continue
        scenario.called[said["name"]] += 1
        scenario.first_after = scenario.first_after or said["name"]
        if said["visit"] is not None:
            scenario.calls.append((said["visit"][0], said["visit"][1]))
    return died


def _lines(log: Path, known: int = 0) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_bytes()[known:].splitlines()]


def _last_called(log: Path) -> str:
    return next(str(said["name"]) for said in reversed(_lines(log)) if "name" in said)


def _take(scenario: Scenario, ended: Mapping[str, Any]) -> None:
    """Note how the run has ended."""
    scenario.status, scenario.data = ended["status"], ended["data"].encode()
    scenario.visits = [(node_id, visit) for node_id, visit in ended["visits"]]
    scenario.outputs = [_output_of(told) for told in ended["outputs"]]
    scenario.is_in_line = ended["is_in_line"]
    scenario.effects = ended["effects"]
    scenario.signals = {*ended["signals"]}
    scenario.world = ended["world"]
