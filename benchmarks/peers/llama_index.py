"""LlamaIndex workflows: a step whose event leads to it again. The library keeps nothing durably by itself."""

from __future__ import annotations

import asyncio

from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from benchmarks.peers.peer import Peer

__all__ = ["LlamaIndex"]


class _Next(Event):
    n: int


class LlamaIndex(Peer):
    """One event per step, awaited."""

    def unsaved(self, times: int) -> None:
        task, turn = self.task, self.turn

        class Loop(Workflow):
            @step
            async def begin(self, event: StartEvent) -> _Next:
                return _Next(n=0)

            @step
            async def work(self, event: _Next) -> _Next | StopEvent:
                task.merged("", turn(event.n))
                return _Next(n=event.n + 1) if event.n + 1 < times else StopEvent(result=event.n)

        async def run() -> None:
            await Loop(timeout=None).run()

        asyncio.run(run())
