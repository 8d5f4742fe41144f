"""Burr: an action that follows itself, with a SQLite persister."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from burr.core import Application, ApplicationBuilder, State, action
from burr.core.persistence import SQLitePersister

from benchmarks.peers.peer import Peer, Place, in_threads, pragmas

__all__ = ["Burr"]


class Burr(Peer):
    """An application that is stepped `times` times. Runs side by side are threads with a persister each."""

    def unsaved(self, times: int) -> None:
        builder = self._builder().with_state(n=0, value=self.task.begin()).with_entrypoint("work")
        self._step(builder.build(), times)

    @contextmanager
    def opened(self, place: Place) -> Iterator[Any]:
        self._place = place
        persister = self._persister()
        persister.initialize()
        yield persister
        persister.cleanup()

    def _persister(self) -> SQLitePersister:
        timeout = 5 if self._place.as_it_comes else 30
        options = {"check_same_thread": False, "timeout": timeout}
        persister = SQLitePersister.from_values(self._place.path, connect_kwargs=options)
        if not self._place.as_it_comes:
            persister.connection.execute("PRAGMA journal_mode = WAL")
        return persister

    def settings(self, store: Any) -> str:
        return f"SQLitePersister, {pragmas(store.connection.execute)}"

    def run(self, store: Any, run_id: str, times: int) -> None:
        builder = self._builder().with_state(n=0, value=self.task.begin()).with_entrypoint("work")
        self._step(builder.with_identifiers(app_id=run_id).with_state_persister(store).build(), times)

    def resume(self, store: Any, run_id: str, times: int) -> None:
        builder = self._builder().with_identifiers(app_id=run_id).with_state_persister(store)
        builder = builder.initialize_from(
            store, resume_at_next_action=True, default_state={}, default_entrypoint="work"
        )
        self._step(builder.build(), 1)

    def together(self, store: Any, run_ids: list[str], times: int) -> None:
        def work(run_id: str) -> None:
            persister = self._persister()
            persister.initialize()
            self.run(persister, run_id, times)

        in_threads([lambda run_id=run_id: work(run_id) for run_id in run_ids])

    def _builder(self) -> ApplicationBuilder[Any]:
        task, turn = self.task, self.turn

        @action(reads=["n", "value"], writes=["n", "value"])
        def work(state: State[Any]) -> State[Any]:
            made, n = turn(state["n"]), state["n"] + 1
            if task.is_untouched:
                return state.update(n=n)
            if task.is_appended:
                return state.update(n=n).append(value=made)
            return state.update(n=n, value=task.merged(state["value"], made))

        return ApplicationBuilder().with_actions(work=work).with_transitions(("work", "work"))

    @staticmethod
    def _step(application: Application[Any], times: int) -> None:
        for _ in range(times):
            application.step()
