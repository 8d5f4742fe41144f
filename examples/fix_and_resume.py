"""A run fails on bad data. It is corrected and goes on; nothing that was done is done again.

python fix_and_resume.py [STORE]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

from milepost import END, Graph, NodeError, SQLiteStore
from milepost.errors import StateValidationError


@dataclass(frozen=True)
class Invoice:
    lines: list[str]
    amounts: list[int] = field(default_factory=list)
    total: int = 0
    report: str = ""


def load(state: Invoice) -> Invoice:
    print("  load: slow and expensive, hopefully once")
    return replace(state, lines=[*state.lines, "paper 40", "ink 25", "stamps 1O"])  # a letter where a zero should be


def parse(state: Invoice) -> Invoice:
    print("  parse")
    return replace(state, amounts=[int(line.rpartition(" ")[2]) for line in state.lines])


def add(state: Invoice) -> Invoice:
    print("  add")
    return replace(state, total=sum(state.amounts))


def report(state: Invoice) -> Invoice:
    print("  report")
    return replace(state, report=f"{len(state.lines)} lines, {state.total} in all")


graph = (
    Graph(Invoice)
    .add_node("load", load)
    .add_node("parse", parse)
    .add_node("add", add)
    .add_node("report", report)
    .set_entry("load")
    .add_edge("load", "parse")
    .add_edge("parse", "add")
    .add_edge("add", "report")
    .add_edge("report", END)
    .compile("invoice")
)


def correct(state: Invoice) -> Invoice:
    """What becomes of the recorded state before the run goes on; it is recorded itself."""
    return replace(state, lines=[line.replace("1O", "10") for line in state.lines])


def check(state: Invoice) -> str | None:
    """A text refuses to go on with such a state."""
    bad = [line for line in state.lines if not line.rpartition(" ")[2].isdigit()]
    return f"no amount in {', '.join(bad)}" if bad else None


def main(path: str) -> None:
    with SQLiteStore(path) as store:
        store.delete_run("invoice-1")
        try:
            graph.run(Invoice([]), store=store, run_id="invoice-1")
        except NodeError as error:
            print(f"failed at {error.node_id!r}: {error.__cause__}")
        try:
            graph.resume(store, "invoice-1", revalidate=check)
        except StateValidationError as error:
            print(f"refused, and nothing ran: {error}")
        print("plan:", graph.plan_resume(store, "invoice-1").reason)
        done = graph.resume(store, "invoice-1", state_override=correct, revalidate=check)
        print("report:", done.report)

        print("once more, from 'parse' on, with a discount:")
        done = graph.resume_from(
            store, "invoice-1", "parse", state_override=lambda state: replace(state, amounts=[*state.amounts, -5])
        )
        print("report:", done.report)
        for info in store.history("invoice-1"):
            mark = "superseded" if info.superseded else ""
            print(f"  record {info.sequence:>2}  {info.node_id}#{info.visit}  {mark}".rstrip())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "invoices.db")
