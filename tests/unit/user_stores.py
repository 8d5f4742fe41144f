"""Stores as users write them against the two small protocols, and a graph to run over them.

One keeps bytes by run and node and blocks, one keeps `CheckpointData` and is awaited; each in memory and in files. Other
processes import this file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost import END, CheckpointData, CompiledGraph, Context, Graph


@dataclass
class Info:
    node_id: str


class Shelf:
    """Bytes by run and node, in a dict. It lists nodes in the order in which each was saved first."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, bytes]] = {}
        self.broken: Exception | None = None
        self.is_closed = False

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        if self.broken is not None:
            raise self.broken
        self.kept.setdefault(run_id, {})[node_id] = data

    def load(self, run_id: str, node_id: str) -> bytes:
        return self.kept[run_id][node_id]

    def list(self, run_id: str) -> list[Info]:
        return [Info(node_id) for node_id in self.kept.get(run_id, {})]

    def delete(self, run_id: str, node_id: str) -> None:
        del self.kept[run_id][node_id]

    def delete_run(self, run_id: str) -> None:
        self.kept.pop(run_id, None)

    def close(self) -> None:
        self.is_closed = True

    def nodes(self, run_id: str) -> list[str]:
        return sorted(self.kept.get(run_id, {}))


class Notes:
    """`CheckpointData` by run, in a dict of dicts."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, CheckpointData]] = {}
        self.broken: Exception | None = None
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        self.loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        self.kept.setdefault(workflow_id, {})[data.checkpoint_id] = data

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData | None:
        return self.kept.get(workflow_id, {}).get(checkpoint_id)

    async def load_latest(self, workflow_id: str) -> CheckpointData | None:
        found = sorted(self.kept.get(workflow_id, {}).values(), key=lambda data: data.saved_at)
        return found[-1] if found else None

    async def clear(self, workflow_id: str) -> None:
        self.kept.pop(workflow_id, None)

    async def list_checkpoints(self, workflow_id: str) -> list[str]:
        return list(self.kept.get(workflow_id, {}))

    def nodes(self, run_id: str) -> list[str]:
        return sorted(self.kept.get(run_id, {}))


class ShelfOfFiles:
    """Bytes by run and node, a file each."""

    def __init__(self, place: str) -> None:
        self.place = Path(place)

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        (self.place / run_id).mkdir(parents=True, exist_ok=True)
        (self.place / run_id / f"{node_id}.tmp").write_bytes(data)
        (self.place / run_id / f"{node_id}.tmp").rename(self.place / run_id / f"{node_id}.bin")

    def load(self, run_id: str, node_id: str) -> bytes:
        return (self.place / run_id / f"{node_id}.bin").read_bytes()

    def list(self, run_id: str) -> list[Info]:
        return [Info(path.stem) for path in sorted((self.place / run_id).glob("*.bin"))]

    def delete(self, run_id: str, node_id: str) -> None:
        (self.place / run_id / f"{node_id}.bin").unlink()

    def delete_run(self, run_id: str) -> None:
        for path in (self.place / run_id).glob("*.bin"):
            path.unlink()

    def close(self) -> None:
        pass

    def nodes(self, run_id: str) -> list[str]:
        return [info.node_id for info in self.list(run_id)]


class NotesInFiles:
    """`CheckpointData` by run, a JSON file each."""

    def __init__(self, place: str) -> None:
        self.place = Path(place)

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        (self.place / workflow_id).mkdir(parents=True, exist_ok=True)
        path = self.place / workflow_id / f"{data.checkpoint_id}.json"
        path.with_suffix(".tmp").write_text(json.dumps(data.to_dict(), indent=2))
        path.with_suffix(".tmp").rename(path)

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData | None:
        path = self.place / workflow_id / f"{checkpoint_id}.json"
        return CheckpointData.from_dict(json.loads(path.read_text())) if path.exists() else None

    async def load_latest(self, workflow_id: str) -> CheckpointData | None:
        raise NotImplementedError

    async def clear(self, workflow_id: str) -> None:
        for path in (self.place / workflow_id).glob("*.json"):
            path.unlink()

    async def list_checkpoints(self, workflow_id: str) -> list[str]:
        return [path.stem for path in (self.place / workflow_id).glob("*.json")]

    def nodes(self, run_id: str) -> list[str]:
        return sorted(path.stem for path in (self.place / run_id).glob("*.json"))


IN_FILES = {"by node": ShelfOfFiles, "by point": NotesInFiles}


# -- graphs ----------------------------------------------------------------------------------------------------


@dataclass
class Work:
    n: int = 0
    seen: list[str] = field(default_factory=list)


Act = Callable[[Context[Any], Work], None]


class Line:
    """a → b → c, each adds 1; `log` has the bodies that really ran. `at` is what else a node does."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.at: dict[str, Act] = {}

    def graph(self, name: str = "line") -> CompiledGraph[Work]:
        graph = Graph(Work)
        for node_id in "abc":
            graph.add_node(node_id, self._node(node_id))
        return graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile(name)

    def _node(self, node_id: str) -> Callable[[Context[Any], Work], Work]:
        def node(ctx: Context[Any], work: Work) -> Work:
            self.log.append(node_id)
            self.at.get(node_id, lambda ctx, work: None)(ctx, work)
            return Work(work.n + 1, [*work.seen, f"{node_id}{ctx.visit}"])

        return node

    def fail_once(self, node_id: str) -> None:
        def fail(ctx: Context[Any], work: Work) -> None:
            del self.at[node_id]
            raise ValueError(f"no {node_id} today")

        self.at[node_id] = fail
