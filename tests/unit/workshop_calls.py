"""A shop with an engine: two flows, a worker with a schedule, and what else `--app` may name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_calls import Answer, Shop, shop

from milepost import Engine

__all__ = ["STORE", "Workshop", "shop", "workshop"]

STORE = ("--store", "sqlite:///runs.db")

ENGINES: list[Engine] = []
"""The engines that were made in this process: they are closed after each call."""

SOURCE = """
import sys
from dataclasses import dataclass

import shop
from milepost import END, Engine, Graph


@dataclass
class Parcel:
    weight: int = 0


def weigh(ctx, parcel):
    print("a node prints this")
    return Parcel(parcel.weight + ctx.deps)


parcels = Graph(Parcel).add_node("weigh", weigh).add_edge("weigh", END).set_entry("weigh").compile("parcels")


def make():
    print("made")
    made = Engine("sqlite:///runs.db", flows=[shop.graph, parcels], deps=7)
    if "workshop_calls" in sys.modules:
        sys.modules["workshop_calls"].ENGINES.append(made)
    return made


def fails():
    raise RuntimeError("no bank")


async def later():
    return make()


class Own:
    def run(self, until_idle=False):
        print(f"runs, until idle: {until_idle}")

    def stop(self):
        pass


engine = make()
worker = engine.worker(concurrency=3).every("nightly", parcels.bind(Parcel(1)), "0 3 * * *")
own = Own()
unnamed = Graph(Parcel).add_node("weigh", weigh).add_edge("weigh", END).set_entry("weigh").compile()
idle = Engine("memory://")
"""


class Workshop(Shop):
    """A working directory with `shop.py` and `workshop.py` in it."""

    def call(self, *arguments: str) -> Answer:
        sys.modules.pop("workshop", None)
        try:
            return super().call(*arguments)
        finally:
            while ENGINES:
                ENGINES.pop().close()

    def start(self, run_id: str, *arguments: str) -> None:
        """Have a run of the shop's flow recorded for a worker."""
        given = arguments or ("-i", "id=a")
        assert 0 == self.call("start", "orders", *given, "--run-id", run_id, "--app", "workshop:engine").code

    def status(self, run_id: str) -> str:
        """What became of a run."""
        status: str = self.call("show", run_id, "--json", *STORE).json["run"]["status"]
        return status

    def change(self, old: str, new: str) -> None:
        """Change the code of the shop's flow."""
        path = self.folder / "shop.py"
        source = path.read_text(encoding="utf-8")
        assert old in source
        path.write_text(source.replace(old, new), encoding="utf-8")


@pytest.fixture
def workshop(shop: Shop, tmp_path: Path) -> Iterator[Workshop]:
    (tmp_path / "workshop.py").write_text(SOURCE, encoding="utf-8")
    return Workshop(shop.folder, shop.capsys)
