"""Calls of the command line for tests: in this process where that is enough, in a real one where it is not."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from milepost.cli import main

SHOP = """
import sys
import time
from dataclasses import dataclass
from decimal import Decimal

from milepost import END, Graph, Retry


@dataclass
class Order:
    id: str
    total: Decimal = Decimal(0)
    paid: bool = False
    fails: bool = False
    holds: bool = False


def price(order):
    print("a node prints this")
    order.total += Decimal("12.50")
    return order


def charge(ctx, order):
    if order.holds:
        ctx.emit("held")
        time.sleep(60)
    if order.fails:
        raise RuntimeError("card refused\\nby the bank")
    order.paid = order.total > 20
    return order


def onwards(order):
    return END if order.paid else "price"


graph = (
    Graph(Order)
    .add_node("price", price)
    .add_node("charge", charge)
    .add_edge("price", "charge")
    .add_conditional_edge("charge", onwards, ["price", END])
    .set_entry("price")
    .compile("orders")
)


async def wait(order):
    return order


async_graph = Graph(Order).add_node("wait", wait).add_edge("wait", END).set_entry("wait").compile("async_orders")
builder = Graph(Order)
number = 3
"""


class Process(subprocess.Popen[str]):
    """A process that does not go on when the test that waits for it in its block has failed."""

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, traceback)


@dataclass(frozen=True)
class Answer:
    """What a call gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on the standard output."""
        return json.loads(self.out)

    @property
    def events(self) -> list[Any]:
        """The JSON lines on the standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


class Shop:
    """A working directory with `shop.py` in it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def call(self, *arguments: str) -> Answer:
        """Call `milepost` in this process."""
        self.capsys.readouterr()
        sys.modules.pop("shop", None)
        code = main(arguments)
        told = self.capsys.readouterr()
        return Answer(code, told.out, told.err)

    def spawn(self, *arguments: str, **options: Any) -> Process:
        """Start `milepost` in a process of its own."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        # A shell's background jobs ignore Ctrl-C, and so would children of tests that run in one.
        options["preexec_fn"] = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return Process([sys.executable, "-W", "error", "-m", "milepost", *arguments], cwd=self.folder, **options)

    def call_process(self, *arguments: str) -> Answer:
        """Call `milepost` in a process of its own."""
        with self.spawn(*arguments, stdin=subprocess.DEVNULL) as process:
            out, err = process.communicate(timeout=60)
        return Answer(process.returncode, out, err)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MILEPOST_STORE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield Shop(tmp_path, capsys)
    for name in {name for name in sys.modules if "shop" in name} - before:
        del sys.modules[name]
    os.environ.pop("MILEPOST_STORE", None)
