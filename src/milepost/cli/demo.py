"""The command demo: a real pipeline in a child process, killed with SIGKILL half-way, resumed, and compared.

Nothing is acted: the children are ordinary calls of this command line (`milepost run`, `milepost resume`), the kill is
the operating system's, and what is shown comes from the children's events and the journal.

Its story is told as a table, a chart and a verdict.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from milepost.cli.commands import FAILED, OK, Invocation, command
from milepost.cli.places import file_of, url_for
from milepost.cli.text import print_table, to_json
from milepost.errors import MilepostError
from milepost.views.text import clean

TARGET = "milepost.demo.weather:graph"


HELD = "summarise#3"
"""The visit in which the first process is killed: half-way, in the third of four years."""


CHART = "seattle-rain.svg"
"""The file that the pipeline writes into its working directory."""


_PATIENCE = 60.0
"""Seconds after which a child that neither ends nor says anything is given up."""


class DemoError(MilepostError):
    """The demo could not be shown."""


@dataclass(slots=True)
class DemoProcess:
    """A child process and the events that it told."""

    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def read(self, until: Callable[[dict[str, Any]], bool] = lambda event: False) -> Iterator[dict[str, Any]]:
        """Its events as they come, up to its end or the first for which `until` holds."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            self.events.append(event)
            yield event
            if until(event):
                return

    def wait(self) -> int:
        """Its exit code, negative for the signal that ended it."""
        code = self.process.wait(_PATIENCE)
        self.seconds = time.monotonic() - self.began
        return code

    def completed(self) -> list[str]:
        """The visits that it completed."""
        return [f"{e['node_id']}#{e['visit']}" for e in self.events if e.get("event") == "NodeCompleted"]

    def started(self) -> list[str]:
        """The visits that it began, an attempt each."""
        return [f"{e['node_id']}#{e['visit']}" for e in self.events if e.get("event") == "NodeStarted"]

    def state(self) -> Any:
        """The result that it told, or None."""
        results = [event["state"] for event in self.events if event.get("event") == "Result"]
        return results[-1] if results else None


@command(
    "demo",
    click.option("--keep", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
                 help="Where store and charts are kept. Default: milepost-demo in the working directory."),
)  # fmt: skip
def demo(invocation: Invocation, keep: Path | None) -> int:
    """See a pipeline survive a SIGKILL, on real data.

    A pipeline over four years of Seattle's weather (NOAA, public domain) runs in a child process, is killed half-way and
    resumed by another. Its result is compared with that of a run that nobody disturbed.
    """
    folder = (keep or Path("milepost-demo")).absolute()
    charts = {name: _folder(folder / name) / CHART for name in ("killed", "undisturbed")}
    path = file_of(invocation.store_url) if invocation.store_url else folder / "runs.db"
    if path is None:
        raise click.UsageError("the demo needs a store in a file, such as --store sqlite:///demo.db: it has to survive")
    run_id = f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    story = _act(url_for(path), run_id, charts, _silent if invocation.is_json else _say)
    if invocation.is_json:
        print(to_json(story.to_dict()))
    else:
        tell_story(story)
    return OK if story.is_good else FAILED


def _act(url: str, run_id: str, charts: dict[str, Path], say: Callable[[str], None]) -> Story:
    """Let it happen: a run that is killed, its resume, and a run that nobody disturbs."""
    for chart in charts.values():
        chart.unlink(missing_ok=True)
    say("1. A child process runs a pipeline over Seattle's weather, 2012 to 2015.")
    killed = _kill_half_way(url, run_id, charts["killed"].parent)
    say(f"2. SIGKILL to process {killed.process.pid}, in the middle of {HELD}. Nothing is left of its memory.")
    resumed = _run_to_end(["resume", run_id, TARGET], url, charts["killed"].parent)
    say(f"3. Process {resumed.process.pid} resumed the run at once and brought it to its end.")
    with tempfile.TemporaryDirectory(prefix="milepost-demo-") as other:
        alone = _run_to_end(["run", TARGET], url_for(Path(other, "runs.db")), charts["undisturbed"].parent)
    say(f"4. Process {alone.process.pid} ran the same pipeline undisturbed.")
    return Story(
        run_id=run_id,
        store=url,
        killed_in=HELD,
        before=tuple(killed.completed()),
        begun_before=tuple(killed.started()),
        after=tuple(resumed.completed()),
        begun_after=tuple(resumed.started()),
        undisturbed=tuple(alone.completed()),
        state=resumed.state(),
        chart=charts["killed"],
        is_equal=_is_equal(resumed, alone, charts),
        seconds=(killed.seconds, resumed.seconds, alone.seconds),
    )


def _silent(text: str) -> None:
    """Under JSON only the document is printed."""


def _say(text: str) -> None:
    print(text, flush=True)


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise click.UsageError(f"can't make the folder {path}: {exc.strerror}: choose another with --keep") from exc
    return path


def _start(arguments: list[str], url: str, folder: Path, hold: str = "") -> DemoProcess:
    environment = {**os.environ, "MILEPOST_DEMO_HOLD": hold, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of our own
        [sys.executable, "-m", "milepost", *arguments, "--store", url, "--json"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    return DemoProcess(process)


def _kill_half_way(url: str, run_id: str, folder: Path) -> DemoProcess:
    """Run the pipeline and kill it where it holds still in the middle of a node."""
    child = _start(["run", TARGET, "--run-id", run_id], url, folder, hold=HELD)
    try:
        is_held = False
        for event in child.read(until=lambda e: e.get("event") == "Emitted" and e["name"] == "held"):
            is_held = event.get("event") == "Emitted"
        if not is_held:
            raise _failed(child, "ended before it could be killed")
    finally:
        child.process.kill()
        child.wait()
        _close(child)
    if hasattr(signal, "SIGKILL") and child.process.returncode != -signal.SIGKILL:
        raise DemoError(
            f"the demo's child process ended by itself ({child.process.returncode}) instead of being killed"
        )
    return child


def _run_to_end(arguments: list[str], url: str, folder: Path) -> DemoProcess:
    child = _start(arguments, url, folder)
    try:
        for _ in child.read():
            pass
        if child.wait() != 0:
            raise _failed(child, "failed")
    finally:
        child.process.kill()
        _close(child)
    return child


def _failed(child: DemoProcess, what: str) -> DemoError:
    assert child.process.stderr is not None
    child.process.kill()
    lines = child.process.stderr.read().strip().splitlines()
    return DemoError(f"the demo's child process {what}: {lines[-1] if lines else 'it said nothing'}")


def _close(child: DemoProcess) -> None:
    child.process.wait(_PATIENCE)
    for pipe in (child.process.stdout, child.process.stderr):
        if pipe is not None:
            pipe.close()


def _is_equal(resumed: DemoProcess, alone: DemoProcess, charts: dict[str, Path]) -> bool:
    """Return whether both runs came to the same state and drew the same chart."""
    drawn = {chart.read_bytes() for chart in charts.values()}
    return resumed.state() is not None and resumed.state() == alone.state() and len(drawn) == 1


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


_BAR = 40
"""Columns of the longest bar."""


@dataclass(frozen=True, slots=True)
class Story:
    """The facts. Visits are written node#visit; `begun_...` has one for each attempt."""

    run_id: str
    store: str
    killed_in: str
    before: tuple[str, ...]
    begun_before: tuple[str, ...]
    after: tuple[str, ...]
    begun_after: tuple[str, ...]
    undisturbed: tuple[str, ...]
    state: Any
    chart: Path
    is_equal: bool
    seconds: tuple[float, float, float]

    @property
    def repeated(self) -> tuple[str, ...]:
        """Visits that were finished before the kill and were begun again after it: there should be none."""
        return tuple(visit for visit in self.begun_after if visit in self.before)

    @property
    def is_good(self) -> bool:
        """Return whether the run came to the same result, by the same way, without doing anything twice."""
        return self.is_equal and not self.repeated and (*self.before, *self.after) == self.undisturbed

    def to_dict(self) -> dict[str, Any]:
        """The story as JSON."""
        return {
            **asdict(self),
            "chart": str(self.chart),
            "skipped": list(self.before),
            "repeated": list(self.repeated),
            "ok": self.is_good,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """For each visit in order: what the killed process did, and what the resumed one did."""
        rows = [(visit, self._ran(visit, self.begun_before), "skipped: it is recorded") for visit in self.before]
        for visit in self.after:
            was_cut = visit == self.killed_in
            rows.append((visit, "KILLED in the middle" if was_cut else "", self._ran(visit, self.begun_after, was_cut)))
        return rows

    @staticmethod
    def _ran(visit: str, begun: tuple[str, ...], was_cut: bool = False) -> str:
        attempts = begun.count(visit)
        if was_cut:
            return "ran again"
        return "ran" if attempts == 1 else f"ran, {attempts} attempts"


def tell_story(story: Story) -> None:
    """Print the story."""
    print()
    styles = [
        "green" if visit in story.before else "yellow" if visit == story.killed_in else "" for visit, *_ in story.rows()
    ]
    print_table(("visit", "first process", "second process"), story.rows(), styles=styles)
    print()
    counts = (len(story.before), len(story.after), len(story.repeated))
    print("{} visits ran before the kill, {} after it, {} of the finished ones twice.".format(*counts))
    print()
    _tell_result(story.state)
    print()
    print(f"chart  {story.chart}")
    print(f"store  {clean(story.store)}")
    print(f"look   milepost show {story.run_id} --store {clean(story.store)}")
    print()
    if story.is_good:
        print("The killed run's result equals the undisturbed one's.")
    elif not story.is_equal:
        print("DIFFERENT: the killed run's result is not that of the undisturbed one.")
    else:
        print("WRONG: the result is right, but finished work ran again or was left out.")


def _tell_result(state: Any) -> None:
    years = sorted(state["years"].items())
    print_table(
        ("year", "rain mm", "rainy days", "warmest", "coldest", "wettest day"),
        [
            (year, f"{y['rain']:.1f}", y["rainy_days"], f"{y['warmest']:.1f}", f"{y['coldest']:.1f}", y["wettest_day"])
            for year, y in years
        ],
    )
    print()
    print(
        f"wettest year {state['ranking'][0]}, wettest month {state['wettest_month']}; rain by month, mean of the years:"
    )
    means = [sum(y["rain_by_month"][month] for _, y in years) / len(years) for month in range(12)]
    bar = _bar()
    for name, mean in zip(_MONTHS, means, strict=True):
        print(f"  {name} {bar * round(mean / max(means) * _BAR)} {mean:.0f} mm")


def _bar() -> str:
    """Return the character that bars are made of: a block where the output can show it."""
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#"
    return "█"
