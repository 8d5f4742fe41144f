"""absurd: a task whose steps are checkpoints in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from absurd_sdk import Absurd, TaskContext
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers.peer import Peer, Place, in_threads

__all__ = ["AbsurdPeer"]

_QUEUE = "peers"


class AbsurdPeer(Peer):
    """A worker claims a task and does its steps. Runs side by side are workers in threads, each with a connection."""

    @contextmanager
    def opened(self, place: Place) -> Iterator[Any]:
        self._dsn = place.dsn
        with psycopg.connect(place.dsn, autocommit=True) as connection:
            if connection.execute("SELECT to_regnamespace('absurd')").fetchone() == (None,):
                connection.execute(BUNDLED_SCHEMA_SQL)
        app = self._app()
        app.create_queue(_QUEUE)
        yield app
        app.close()

    def settings(self, store: Any) -> str:
        return "a connection per worker, the queue unpartitioned as it comes"

    def run(self, store: Any, run_id: str, times: int) -> None:
        self._spawn(store, run_id, times)
        store.work_batch(run_id)

    def warm_up(self, store: Any, run_id: str, times: int) -> None:
        """In a queue of its own: a worker takes whatever waits in its queue."""
        app = self._app("warm")
        app.create_queue("warm")
        self.run(app, run_id, times)
        app.close()

    def resume(self, store: Any, run_id: str, times: int) -> None:
        store.work_batch(run_id)

    def together(self, store: Any, run_ids: list[str], times: int) -> None:
        for run_id in run_ids:
            self._spawn(store, run_id, times)
        workers = {run_id: self._app() for run_id in run_ids}
        in_threads([lambda run_id=run_id: workers[run_id].work_batch(run_id) for run_id in run_ids])
        for worker in workers.values():
            worker.close()

    def die(self) -> None:
        """Fail, so that the next worker may take the task at once: after a crash it would have to wait for the claim's end."""
        raise RuntimeError("interrupted")

    @staticmethod
    def _spawn(app: Absurd, run_id: str, times: int) -> None:
        app.spawn("loop", {"times": times}, max_attempts=1000, retry_strategy={"kind": "none"}, idempotency_key=run_id)

    def _app(self, queue: str = _QUEUE) -> Absurd:
        task, turn = self.task, self.turn
        app = Absurd(self._dsn, queue_name=queue)

        @app.register_task(name="loop")
        def loop(params: Any, ctx: TaskContext) -> None:
            value = task.begin()
            for n in range(params["times"]):
                value = task.merged(value, ctx.step("work", lambda n=n: turn(n)))

        return app
