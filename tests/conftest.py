"""A PostgreSQL server for the tests of all folders, which the first one starts that asks for it, and the end of processes."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from milepost.drivers.heartbeat import heartbeat
from offspring import Offspring
from postgres_server import Database, Server, given_dsn
from thoroughness import FEW

# How long an example takes is the machine's business, and no test's.
settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", settings.get_profile("all"), max_examples=FEW)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the whole matrix of stores and verbs, and what is `wide`")
    parser.addoption("--freeze", action="store_true", help="write the golden journals again, after a change on purpose")


def use_memory() -> None:
    """Have temporary files be in memory, unless TMPDIR says where. Most of what tests wait for is the disk.

    What survives the loss of a disk is tested with simulated ones.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**32:
        folder = memory / f"milepost-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def is_for_all_cores(config: pytest.Config) -> bool:
    """Whether whole folders are to be run. A file, a node id or `-k` runs in this process, and so begins at once."""
    asked = config.option
    in_one = asked.keyword or asked.usepdb or asked.trace or asked.capture == "no" or asked.collectonly
    return not in_one and all(Path(argument).is_dir() for argument in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Have whole folders run on all cores, unless `-n` says on how many, or pytest-xdist is missing or switched off.

    There is a process more than there are cores: tests wait for disks, servers and children of their own.
    """
    is_worker = hasattr(config, "workerinput")
    if config.pluginmanager.hasplugin("xdist") and not is_worker and config.option.dist == "no":
        if config.option.numprocesses is None and is_for_all_cores(config):
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            config.option.numprocesses = min(cores, MOST_CORES) + 1
        if config.option.numprocesses:
            config.option.dist = "worksteal"


MOST_CORES = 8
"""On how many cores tests run by themselves: each process has a PostgreSQL server of its own."""


def pytest_configure(config: pytest.Config) -> None:
    use_memory()
    settings.load_profile("all" if config.getoption("--all") else "few")
    config.pluginmanager.register(ShowAtOnce(config))


class ShowAtOnce:
    """Show a failure when it happens, and not only after the last test."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid} failed in its {report.when}:\n{report.longreprtext}")


WIDE_FILES = {
    f"test_{name}.py"
    for name in (
        "blocking",
        "cli_crashtest",
        "console_actions",
        "console_axe",
        "console_command",
        "console_in_fastapi",
        "console_journeys",
        "console_pages",
        "console_pictures",
        "console_security",
        "console_values",
        "console_weight",
        "demo",
        "drawn_graphs",
        "examples_killed",
        "faults_of_the_medium",
        "file_store_processes",
        "order_service",
        "pgbouncer",
        "postgres_failures",
        "power_loss_at_each_step",
        "service",
        "services_replayed",
        "streaming_example",
        "turns_of_large_graphs",
        "tutorial",
        "with_checkpoint_killed",
        "worker_processes",
    )
}
"""What is `wide` as a whole: servers that fail, services, and many processes that are killed."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that are wide, unless all is asked for, or just that file."""
    is_left_out = collection_path.name in WIDE_FILES and not config.getoption("--all")
    return True if is_left_out and not any(collection_path.name in argument for argument in config.args) else None


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    """Collect no class or function that is `wide`, unless all is asked for, and none that is `slow` beside others."""
    marks, option = {mark.name for mark in getattr(obj, "pytestmark", ())}, collector.config.option
    is_left_out = ("wide" in marks and not option.all) or ("slow" in marks and "not slow" in option.markexpr)
    return [] if is_left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the single parameters that are `wide`, unless all is asked for."""
    if config.getoption("--all"):
        return
    wide = [item for item in items if item.get_closest_marker("wide") is not None]
    if wide:
        config.hook.pytest_deselected(items=wide)
        items[:] = [item for item in items if item.get_closest_marker("wide") is None]


def pytest_collection_finish() -> None:
    """Take what was collected out of the sight of the garbage collector, which else walks over it during each test."""
    gc.collect()
    gc.freeze()


offspring = Offspring()


def pytest_sessionstart() -> None:
    offspring.begin()


def pytest_unconfigure() -> None:
    offspring.end()


@pytest.fixture(scope="session", autouse=True)
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have the processes that tests start compile the library once, also where Python is told to keep no bytecode."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.getbasetemp() / "bytecode")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    with offspring.of_more_tests():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def often() -> Iterator[None]:
    """Have this process look often whether a run was cancelled or a call has ended: tests wait for both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milepost.drivers.heartbeat.LOOK", 0.05)
        patch.setattr("milepost.engine.worker.GLANCE", 0.02)
        yield


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Have the processes of a test end with it."""
    with offspring.of_a_test():
        yield


@pytest.fixture(scope="session")
def own_server() -> Iterator[Server]:
    """A server of these tests alone."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """The database of all tests: that which MILEPOST_TEST_POSTGRES names, or one of `own_server`."""
    database = Database(given_dsn() or request.getfixturevalue("own_server").dsn)
    yield database
    database.close()


@pytest.fixture
def postgres(database: Database) -> str:
    """The URL of a database in which there are no runs."""
    database.clear()
    return database.dsn


@pytest.fixture
def schema(database: Database) -> Iterator[str]:
    """The name of a schema that is not there; gone afterwards."""
    name = f"test {secrets.token_hex(4)}"
    yield name
    database.query(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture(autouse=True)
def nothing_left_to_renew() -> Iterator[None]:
    """Have the process forget leases and releases of stores that a test broke: their warnings are no other test's."""
    yield
    with heartbeat._lock:
        heartbeat._held.clear()
        heartbeat._owed.clear()
