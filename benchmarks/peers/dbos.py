"""DBOS: a workflow that calls a step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

from benchmarks.peers.peer import Peer, Place, pragmas

__all__ = ["Dbos"]


class Dbos(Peer):
    """A step's output is recorded, in a loop of steps. Runs side by side are workflows that are started in the background."""

    resumes_when_opened = True

    @contextmanager
    def opened(self, place: Place) -> Iterator[Any]:
        if place.path and not place.as_it_comes:
            with closing(sqlite3.connect(place.path)) as connection:  # the mode stays with the file
                connection.execute("PRAGMA journal_mode = WAL")
        config: DBOSConfig = {
            "name": "peers",
            "system_database_url": place.dsn or f"sqlite:///{place.path}",
            "log_level": "ERROR",
            "executor_id": place.owner,
            "application_version": "1",
        }
        if place.dsn:
            config["sys_db_pool_size"] = 64
        task, turn = self.task, self.turn
        dbos = DBOS(config=config)

        @DBOS.step()
        def work(n: int) -> Any:
            return turn(n)

        @DBOS.workflow()
        def flow(times: int) -> None:
            value = task.begin()
            for n in range(times):
                value = task.merged(value, work(n))

        self._flow = flow
        DBOS.launch()
        yield dbos
        DBOS.destroy()

    def settings(self, store: Any) -> str:
        engine = store._sys_db.engine
        if engine.dialect.name != "sqlite":
            return "a pool of 64 connections"
        with engine.connect() as connection:
            return pragmas(connection.exec_driver_sql)

    def run(self, store: Any, run_id: str, times: int) -> None:
        with SetWorkflowID(run_id):
            self._flow(times)

    def together(self, store: Any, run_ids: list[str], times: int) -> None:
        handles = []
        for run_id in run_ids:
            with SetWorkflowID(run_id):
                handles.append(DBOS.start_workflow(self._flow, times))
        for handle in handles:
            handle.get_result()
