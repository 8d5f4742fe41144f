"""Milepost: a workflow whose steps are recorded."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.peers.milepost import Milepost
from milepost import Steps, step, workflow

__all__ = ["MilepostSteps"]


class MilepostSteps(Milepost):
    """A generator that asks for one step after the other."""

    def prepare(self, store: Any, times: int) -> None:
        self.flow = self._flow()

    def unsaved(self, times: int) -> None:
        self.flow.run(times=times)

    def run(self, store: Any, run_id: str, times: int) -> None:
        self.flow.run(times=times, store=store, run_id=run_id)

    def resume(self, store: Any, run_id: str, times: int) -> None:
        self.flow.resume(store, run_id, max_crashes=None)

    def together(self, store: Any, run_ids: list[str], times: int) -> None:
        async def work() -> None:
            await asyncio.gather(*(self.flow.arun(times=times, store=store, run_id=run_id) for run_id in run_ids))

        asyncio.run(work())

    def _flow(self) -> Any:
        task, turn = self.task, self.turn

        def work(n: int) -> Any:
            return turn(n)

        work.__annotations__["return"] = task.made_type

        @workflow("stepping")
        def stepping(times: int) -> Steps[None]:
            value = task.begin()
            for n in range(times):
                made = yield from step(f"work-{n}").python(work, args=(n,))
                value = task.merged(value, made)

        return stepping
