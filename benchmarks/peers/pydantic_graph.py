"""pydantic-graph: a node that returns itself. It keeps nothing: since its second version it has no persistence."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_graph import GraphBuilder, StepContext

from benchmarks.peers.peer import Peer

__all__ = ["PydanticGraph"]


class PydanticGraph(Peer):
    """A step and a decision that goes back to it, awaited."""

    def unsaved(self, times: int) -> None:
        task, turn = self.task, self.turn
        builder = GraphBuilder(input_type=int, output_type=int)

        @builder.step
        async def work(ctx: StepContext[None, None, int]) -> int:
            task.merged("", turn(ctx.inputs))
            return ctx.inputs + 1

        again = builder.match(int, matches=lambda n: n < times)
        builder.add(
            builder.edge_from(builder.start_node).to(work),
            builder.edge_from(work).to(
                builder.decision().branch(again.to(work)).branch(builder.match(int).to(builder.end_node))
            ),
        )
        graph: Any = builder.build()
        asyncio.run(graph.run(inputs=0))
