"""The flows of the examples that are services as regression tests, as in `test_examples_replayed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_examples_replayed import Example, check

PAID = {"event": "e-1", "order": "r-1", "payment": "p-1", "paid": True}
APPROVED = {"approved": True, "by": "bea"}


def test_a_workflow_that_asks_a_person(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("OUTSIDE", str(tmp_path / "outside.db"))
    check(
        Example("order_service", monkeypatch, tmp_path),
        "fulfil",
        ("r-1",),
        (("total >= LIMIT)", "False)"),),
        "visit 1 of 'approval'",
        given=lambda module: {"order": module.Order("ada", {"press": 2})},
        signals={"payment": PAID, "approval": APPROVED},
    )


@pytest.mark.parametrize(
    ("name", "flow", "given", "changes", "text"),
    [
        (
            "service", "orders", lambda module: module.Order(["pen"]),
            [
                ('"price", "charge")', '"price", "ship")'),
                ('("charge", "ship")', '("ship", "charge")'),
                ('"ship", END', '"charge", END'),
            ],
            "visit 1 of 'price'",
        ),
        (
            "streaming", "agent", lambda module: module.Chat("well?"),
            [('add_edge("answer", END)', 'add_node("more", answer).add_edge("answer", "more").add_edge("more", END)')],
            '~ next_node  "__end__" -> "more"',
        ),
        (
            "console_in_fastapi", "orders", lambda module: {"order": "o-1"}, [("ship {order}?", "send {order}?")],
            '~ prompt  "ship o-1?" -> "send o-1?"',
        ),
        (
            "long_running", "long_running", lambda module: {"data": "input"}, [("args=(data,)", 'args=(data + "!",)')],
            "visit 1 of 'expensive'",
        ),
    ],
    ids=["service", "streaming", "console_in_fastapi", "long_running"],
)  # fmt: skip
def test_other_flows_of_services(
    name: str, flow: str, given: Any, changes: Any, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    example = Example(name, monkeypatch, tmp_path)
    check(example, flow, ("r-1",), changes, text, given=given, signals={"approval": True})
