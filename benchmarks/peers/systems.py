"""The systems that are compared: what they are called, where their works are, what is imported to use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from benchmarks.peers.peer import Peer
from benchmarks.peers.tasks import Turn

__all__ = ["LIMIT", "OURS", "SYSTEMS", "System"]

LIMIT = "limit"
OURS = "milepost"


@dataclass(frozen=True, slots=True)
class System:
    """`module` has the class `peer`; `imports` are what a program with a SQLite store imports."""

    title: str
    module: str
    peer: str
    imports: tuple[str, ...]
    distributions: tuple[str, ...]

    def load(self, turn: Turn) -> Peer:
        """The system, ready for its works; imports the library."""
        made: Peer = getattr(import_module(f"benchmarks.peers.{self.module}"), self.peer)(turn)
        return made


SYSTEMS: Mapping[str, System] = {
    LIMIT: System("no library", "limit", "Limit", ("asyncio", "sqlite3"), ("psycopg",)),
    OURS: System(
        "Milepost, graph", "milepost", "Milepost", ("milepost:Graph", "milepost:SQLiteStore"), ("milepost", "msgspec")
    ),
    "milepost-steps": System("Milepost, steps", "milepost_steps", "MilepostSteps", (), ()),
    "langgraph": System(
        "LangGraph",
        "langgraph",
        "LangGraph",
        ("langgraph.graph", "langgraph.checkpoint.sqlite"),
        ("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"),
    ),
    "langgraph-delta": System("LangGraph, DeltaChannel (beta)", "langgraph", "LangGraphDelta", (), ()),
    "dbos": System("DBOS", "dbos", "Dbos", ("dbos",), ("dbos",)),
    "burr": System("Burr", "burr", "Burr", ("burr.core", "burr.core.persistence"), ("apache-burr",)),
    "absurd": System("absurd", "absurd", "AbsurdPeer", ("absurd_sdk",), ("absurd-sdk",)),
    "pydantic-graph": System(
        "pydantic-graph", "pydantic_graph", "PydanticGraph", ("pydantic_graph",), ("pydantic-graph",)
    ),
    "llama-index": System(
        "LlamaIndex workflows", "llama_index", "LlamaIndex", ("workflows",), ("llama-index-workflows",)
    ),
}
