"""Rounds of children, each a new process that does one work with one system."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.children import run_child, run_together
from benchmarks.peers.systems import SYSTEMS
from benchmarks.setting import Setting

__all__ = ["DEFAULT", "Bench", "Side", "systems_of"]

Side = Callable[[], Mapping[str, Any]]
"""Does a work once, in a new process, and gives what that told."""
DEFAULT = ":default"
"""Behind a system's name: with the library's own defaults."""
_CHILD = "benchmarks.peers.child"


@dataclass(slots=True)
class Bench:
    """What the works share: sizes and places, the environment of children, a server, and what is told beside figures."""

    setting: Setting
    env: dict[str, str]
    stack: ExitStack
    failed: list[str] = field(default_factory=list)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    server: Any = None

    def name(self) -> str:
        """A run id that no other run has."""
        return f"run-{next(self.numbers)}"

    def command(self, work: str, system: str, task: str, **facts: Any) -> list[str]:
        """The command of a child."""
        return [sys.executable, "-m", _CHILD, *self._arguments(work, system, task, facts)]

    def child(self, work: str, system: str, task: str, *, ends_with: int = 0, **facts: Any) -> dict[str, Any]:
        """What a child told; raises RuntimeError if it failed."""
        told = run_child(self.command(work, system, task, **facts), self.env, ends_with)
        return json.loads(told.splitlines()[-1]) if told else {}

    def children(self, work: str, system: str, task: str, many: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What children told that worked side by side."""
        return run_together([self._arguments(work, system, task, facts) for facts in many], _CHILD, self.env)

    @staticmethod
    def _arguments(work: str, system: str, task: str, facts: Mapping[str, Any]) -> list[str]:
        system, _, is_default = system.partition(":")
        given = dict(facts)
        if is_default:
            given["place"] = {**given["place"], "as_it_comes": True}
        return [work, system, task, json.dumps(given)]

    def rounds(self, count: int, sides: Mapping[str, Side]) -> dict[str, list[Mapping[str, Any]]]:
        """What each side told, in turn, `count` times after a turn that does not count. A side that fails is left out."""
        told: dict[str, list[Mapping[str, Any]]] = {name: [] for name in sides}
        for turn in range(count + 1):
            for name, side in sides.items():
                if name not in told:
                    continue
                try:
                    found = side()
                except RuntimeError as exc:
                    self.failed.append(f"{name}: {str(exc).strip().splitlines()[-1]}")
                    sys.stderr.write(f"{name} failed: {exc}\n")
                    del told[name]
                    continue
                if turn:
                    told[name].append(found)
        return told

    def on_a_file(self, place: str, work: str, system: str, task: str, **facts: Any) -> dict[str, Any]:
        """A child on a new SQLite file, and what it told of its settings noted."""
        with self.setting.folder(place) as folder:
            told = self.child(work, system, task, place={"path": str(folder / "runs.db")}, **facts)
        self.note(system, "SQLite", told)
        return told

    def note(self, system: str, store: str, told: dict[str, Any]) -> None:
        """Keep the settings that a child told."""
        system, _, is_default = system.partition(":")
        if "settings" in told:
            self.settings.setdefault(system, {})[store + " by default" * bool(is_default)] = told.pop("settings")

    def database(self, name: str) -> str:
        """The address of a database, made when it is first asked for, of a server of these benchmarks alone."""
        import psycopg

        if self.server is None:
            sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
            from postgres_server import Server

            self.server = self.stack.enter_context(Server({}))
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                connection.execute(f'CREATE DATABASE "{name}"')
        return str(self.server.dsn).replace("/postgres?", f"/{name}?")


def systems_of(
    told: Mapping[str, Sequence[Mapping[str, Any]]], fact: str, scale: float = 1.0
) -> dict[str, list[float]]:
    """One value per round of each system that was not asked for its defaults."""
    return {
        name: [float(round_[fact]) * scale for round_ in rounds]
        for name, rounds in told.items()
        if name in SYSTEMS and all(fact in round_ for round_ in rounds)
    }
