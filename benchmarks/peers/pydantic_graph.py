"""pydantic-graph: a node that returns itself. It keeps nothing: since its second version it has no persistence."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pydantic_graph import BaseNode, End, GraphBuilder, GraphRunContext, StepContext

from benchmarks.peers.peer import Peer

__all__ = ["PydanticGraph"]


@dataclass(frozen=True)
class _Loop:
    """What a run is given."""

    peer: Peer
    times: int


@dataclass
class _Work(BaseNode[None, _Loop, int]):
    """A node of the declarative style, which takes less time than a step and a decision."""

    n: int

    async def run(self, ctx: GraphRunContext[None, _Loop]) -> _Work | End[int]:
        loop = ctx.deps
        loop.peer.task.merged("", loop.peer.turn(self.n))
        return _Work(self.n + 1) if self.n + 1 < loop.times else End(self.n)


class PydanticGraph(Peer):
    """A node that leads to itself, awaited."""

    def unsaved(self, times: int) -> None:
        builder = GraphBuilder(deps_type=_Loop, input_type=int, output_type=int)

        @builder.step
        async def begin(ctx: StepContext[None, _Loop, int]) -> _Work:
            return _Work(ctx.inputs)

        builder.add(builder.node(_Work), builder.edge_from(builder.start_node).to(begin))
        asyncio.run(builder.build().run(inputs=0, deps=_Loop(self, times)))
