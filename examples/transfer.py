"""Money moves from account to account, each transfer exactly once, however often the process is killed.

python transfer.py [STORE]

The accounts are in the file of the store. A node may run twice, if the process dies in it; what it asks for by
`ctx.with_checkpoint` is in the transaction of its checkpoint, and so the money moves once or not at all.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace

from milepost import END, Context, Graph, NodeError, SQLiteStore

PACE = float(os.environ.get("PACE", "0.1"))
"""Seconds that a transfer takes, so that there is a moment to kill it."""

TABLE = """
CREATE TABLE IF NOT EXISTS accounts (
    owner TEXT PRIMARY KEY,
    balance INTEGER NOT NULL CHECK (balance >= 0)
)
"""


@dataclass(frozen=True)
class Transfer:
    source: str
    target: str
    amount: int


@dataclass(frozen=True)
class Day:
    transfers: list[Transfer]
    done: int = 0


def transfer(ctx: Context, day: Day) -> Day:
    one = day.transfers[day.done]
    print(f"  transfer {ctx.visit}: {one.amount} from {one.source} to {one.target}", flush=True)
    ctx.with_checkpoint("UPDATE accounts SET balance = balance - ? WHERE owner = ?", (one.amount, one.source))
    time.sleep(PACE)
    ctx.with_checkpoint("UPDATE accounts SET balance = balance + ? WHERE owner = ?", (one.amount, one.target))
    return replace(day, done=day.done + 1)


graph = (
    Graph(Day)
    .add_node("transfer", transfer)
    .add_conditional_edge(
        "transfer", lambda day: END if day.done == len(day.transfers) else "transfer", ["transfer", END]
    )
    .set_entry("transfer")
    .compile("transfers")
)

MONDAY = Day([Transfer(*names, 10 + n) for n, names in enumerate(6 * [("ada", "ben"), ("ben", "eve"), ("eve", "ada")])])
TOO_MUCH = Day([Transfer("ben", "eve", 5), Transfer("ada", "eve", 1_000_000)])


def show(path: str) -> None:
    with closing(sqlite3.connect(path)) as bank:
        accounts = bank.execute("SELECT owner, balance FROM accounts ORDER BY owner").fetchall()
    print(*(f"{owner} {balance}" for owner, balance in accounts), sep=", ", end="; ")
    print("in all", sum(balance for _, balance in accounts), flush=True)


def main(path: str) -> None:
    with SQLiteStore(path) as store:
        with closing(sqlite3.connect(path)) as bank, bank:
            bank.execute(TABLE)
            bank.executemany("INSERT OR IGNORE INTO accounts VALUES (?, 100)", [("ada",), ("ben",), ("eve",)])
        show(path)
        graph.run(MONDAY, store=store, run_id="monday", if_exists="resume")
        show(path)
        try:
            graph.run(TOO_MUCH, store=store, run_id="too-much", if_exists="resume")
        except NodeError as error:
            # The account's own rule refused it, and neither half of the transfer is there.
            print(f"refused at {error.node_id!r}, op {error.op!r}: {error.__cause__}")
        show(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "transfers.db")
